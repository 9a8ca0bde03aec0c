//! How the kernel treats a thread.

#![expect(unsafe_code, reason = "scheduling policies have no safe face among our dependencies")]

use std::cell::Cell;
use std::time::Duration;

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

/// From now on the calling thread has a third of the share of those that compete with it (`nice(2)`, which on Linux is about one thread).
/// Where the kernel refuses, nothing changes.
pub fn be_nice() {
    // SAFETY: no memory is involved.
    unsafe { libc::nice(NICER) };
}

/// Sleeps no longer than the kernel's timers need. By default they may end 50 us late, so that several of them end at once
/// (`PR_SET_TIMERSLACK(2const)`); those of the calling thread do not any more.
pub fn sleep_exactly(time: Duration) {
    thread_local! {
        static IS_EXACT: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_EXACT.replace(true) {
        let slack: libc::c_ulong = 1;
        // SAFETY: no memory is involved; it is about the calling thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack) };
    }
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn who_sleeps_exactly_has_exact_timers_and_its_parent_has_not() {
        // SAFETY: no memory is involved.
        let slack = || unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        let before = slack();
        let in_thread = std::thread::spawn(move || {
            super::sleep_exactly(Duration::from_nanos(1));
            slack()
        });
        assert_eq!((in_thread.join().unwrap(), slack()), (1, before));
    }

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
