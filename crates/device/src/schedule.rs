//! How the kernel treats a thread.

#![expect(unsafe_code, reason = "scheduling policies have no safe face among our dependencies")]

/// From now on the calling thread takes no processor from one that runs when it wakes, as `SCHED_BATCH` says (`sched(7)`); its share
/// stays what it is. Where the kernel refuses, nothing changes.
pub fn never_preempt() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is ours and outlives the call, which only reads it; 0 is the calling thread.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &none) };
    if rc != 0 {
        log::debug!("the kernel keeps its way of scheduling: {}", std::io::Error::last_os_error());
    }
}

/// How much nicer than its process a thread is that others do not wait for.
const NICER: i32 = 5;

/// From now on the calling thread has a third of the share of those that compete with it (`nice(2)`, which on Linux is about one thread),
/// and they need not wait for the end of its slice. Where the kernel refuses, nothing changes.
pub fn be_nice() {
    // SAFETY: no memory is involved.
    unsafe { libc::nice(NICER) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_becomes_nice_and_its_parent_does_not() {
        // SAFETY: 0 is the calling thread; no memory is involved.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let in_thread = std::thread::spawn(move || {
            super::be_nice();
            nice()
        });
        assert_eq!(in_thread.join().unwrap(), (before + super::NICER).min(19));
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_thread_becomes_one_that_takes_no_processor_and_its_parent_does_not() {
        // SAFETY: 0 is the calling thread; nothing is written.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let in_thread = std::thread::spawn(move || {
            super::never_preempt();
            policy()
        });
        assert_eq!(in_thread.join().unwrap(), libc::SCHED_BATCH);
        assert_eq!(policy(), before);
    }
}
