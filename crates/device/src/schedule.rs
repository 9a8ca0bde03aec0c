//! Scheduling of threads by the kernel.

#![expect(unsafe_code, reason = "rustix has no wrapper for sched_getattr and sched_setattr")]

use libc::sched_attr;
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::time::Duration;

/// The scheduling attributes of the calling thread.
fn attributes() -> io::Result<sched_attr> {
    let mut attr = MaybeUninit::<sched_attr>::zeroed();
    // SAFETY: the call writes at most as many bytes as its third argument says, and `attr` is that long. All fields
    // are numbers, for which the zeros that remain are values. 0 is the calling thread.
    unsafe {
        match libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size_of::<sched_attr>(), 0) {
            0 => Ok(attr.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sets the scheduling attributes of the calling thread.
fn set_attributes(attr: sched_attr) -> io::Result<()> {
    let attr = sched_attr { size: size_of::<sched_attr>() as u32, ..attr };
    // SAFETY: `attr` is ours and outlives the call, which reads `size` bytes of it; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the calling thread never preempt a running one when it wakes, as `SCHED_BATCH` does (`sched(7)`). Its share
/// of processor time stays the same. If the kernel refuses, nothing changes.
pub fn set_batch_policy() {
    let set = attributes().and_then(|attr| {
        let sched_policy = libc::SCHED_BATCH as u32;
        // No slice of its own: 0 is the kernel's default.
        set_attributes(sched_attr { sched_policy, sched_priority: 0, sched_runtime: 0, ..attr })
    });
    if let Err(error) = set {
        log::debug!("SCHED_BATCH refused: {error}");
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
    let set = attributes().and_then(|attr| match attr.sched_policy as i32 {
        libc::SCHED_OTHER | libc::SCHED_BATCH => {
            set_attributes(sched_attr { sched_runtime: SHORT_SLICE_NS, ..attr })
        }
        _ => Ok(()),
    });
    if let Err(error) = set {
        log::debug!("short time slices refused: {error}");
    }
}

/// Added to the nice value of a thread that no other thread waits for.
const NICE_INCREMENT: i32 = 5;

/// Gives the calling thread a third of the share of the threads that compete with it (`nice(2)`, which on Linux
/// affects one thread). If the kernel refuses, nothing changes.
pub fn lower_priority() {
    let _ = rustix::process::nice(NICE_INCREMENT);
}

/// Sleeps with the timer's own precision. By default the kernel may end a sleep 50 us late, so that several end at
/// once (`PR_SET_TIMERSLACK(2const)`). This call turns that off for the calling thread.
pub fn sleep_exactly(time: Duration) {
    thread_local! {
        static IS_EXACT: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_EXACT.replace(true) {
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
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
            let attr = super::attributes().unwrap();
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
        let slack = || rustix::thread::current_timer_slack().unwrap();
        let before = slack();
        let in_thread = std::thread::spawn(move || {
            super::sleep_exactly(Duration::from_nanos(1));
            slack()
        });
        assert_eq!((in_thread.join().unwrap(), slack()), (1, before));
    }

    #[test]
    fn lower_priority_affects_the_calling_thread_only() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
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
        let policy = || super::attributes().unwrap().sched_policy as i32;
        let before = policy();
        let in_thread = std::thread::spawn(move || {
            super::set_batch_policy();
            policy()
        });
        assert_eq!(in_thread.join().unwrap(), libc::SCHED_BATCH);
        assert_eq!(policy(), before);
    }
}
