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

#[cfg(test)]
mod tests {
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
