//! Scheduling of threads by the kernel.

#![expect(unsafe_code, reason = "scheduling policies have no safe face among our dependencies")]

use std::cell::Cell;
use std::time::Duration;

/// Makes the calling thread never preempt a running one when it wakes, as `SCHED_BATCH` does (`sched(7)`). Its share
/// of processor time stays the same. If the kernel refuses, nothing changes.
pub fn set_batch_policy() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is ours and outlives the call, which only reads it; 0 is the calling thread.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &none) };
    if rc != 0 {
        log::debug!("SCHED_BATCH refused: {}", std::io::Error::last_os_error());
    }
}

/// The time slice of a thread whose answer other threads wait for, in nanoseconds. It is longer than most answers
/// take, and shorter than the kernel's default (2 to 3 ms).
const SHORT_SLICE_NS: u64 = 400_000;

/// Gives the calling thread short time slices, so that it goes before running threads when it wakes. Its share of
/// processor time stays the same. Linux supports this since 6.12. Without it, a thread that returns from a device
/// waits for the end of the slice of a compressing thread, however nice that one is. Threads that it starts inherit
/// the setting. If the kernel refuses, nothing changes.
pub fn set_short_slice() {
    // SAFETY: no memory is involved; 0 is the calling thread.
    let (policy, nice) = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
    let attr = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SHORT_SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    let is_fair = matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH);
    // SAFETY: `attr` is ours and outlives the call, which reads `size` bytes of it; 0 is the calling thread.
    if is_fair && unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) } != 0 {
        log::debug!("short time slices refused: {}", std::io::Error::last_os_error());
    }
}

/// Added to the nice value of a thread that no other thread waits for.
const NICE_INCREMENT: i32 = 5;

/// Gives the calling thread a third of the share of the threads that compete with it (`nice(2)`, which on Linux
/// affects one thread). If the kernel refuses, nothing changes.
pub fn lower_priority() {
    // SAFETY: no memory is involved.
    unsafe { libc::nice(NICE_INCREMENT) };
}

/// Sleeps with the timer's own precision. By default the kernel may end a sleep 50 us late, so that several end at
/// once (`PR_SET_TIMERSLACK(2const)`). This call turns that off for the calling thread.
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
    #[test]
    fn a_short_slice_affects_the_calling_thread_only() {
        /// Policy, nice value and slice in nanoseconds of the calling thread. A kernel before 6.12 has one slice for
        /// all, and reports 0.
        fn scheduled() -> (u32, i32, u64) {
            // SAFETY: all fields are numbers, for which zeros are values.
            let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
            let size = size_of::<libc::sched_attr>() as u32;
            // SAFETY: `attr` is ours and outlives the call, which writes at most `size` bytes of it; 0 is the calling thread.
            assert_eq!(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) }, 0);
            (attr.sched_policy, attr.sched_nice, attr.sched_runtime)
        }
        let before = scheduled();
        let in_thread = std::thread::spawn(move || {
            super::set_short_slice();
            scheduled()
        });
        let (policy, nice, slice) = in_thread.join().unwrap();
        assert_eq!((policy, nice), (before.0, before.1), "its share stays");
        assert!(before.2 == 0 || slice == super::SHORT_SLICE_NS, "{} before, {slice} after", before.2);
        assert_eq!(scheduled(), before);
    }

    use std::time::Duration;

    #[test]
    fn exact_sleep_affects_the_calling_thread_only() {
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
    fn lower_priority_affects_the_calling_thread_only() {
        // SAFETY: 0 is the calling thread; no memory is involved.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let in_thread = std::thread::spawn(move || {
            super::lower_priority();
            nice()
        });
        assert_eq!(in_thread.join().unwrap(), (before + super::NICE_INCREMENT).min(19));
        assert_eq!(nice(), before);
    }

    #[test]
    fn batch_policy_affects_the_calling_thread_only() {
        // SAFETY: 0 is the calling thread; nothing is written.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let in_thread = std::thread::spawn(move || {
            super::set_batch_policy();
            policy()
        });
        assert_eq!(in_thread.join().unwrap(), libc::SCHED_BATCH);
        assert_eq!(policy(), before);
    }
}
