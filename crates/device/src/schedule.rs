//! How the kernel treats a thread.

#![expect(unsafe_code, reason = "scheduling policies have no safe face among our dependencies")]

/// Nanoseconds that a thread of ours which others do not wait for asks for at a time. Linux (6.12 and later) lets who wakes, and asks for
/// less, go first; else it would wait for the end of what the other was given, or for the next tick, which is up to 4 ms.
const LONG_SLICE_NS: u64 = 20_000_000;

/// From now on the calling thread takes no processor from one that runs when it wakes, as `SCHED_BATCH` says (`sched(7)`), and gives its
/// own to one that wakes; its share stays what it is. Where the kernel refuses, nothing changes.
pub fn never_preempt() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is ours and outlives the call, which only reads it; 0 is the calling thread.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &none) };
    if rc != 0 {
        log::debug!("the kernel keeps its way of scheduling: {}", std::io::Error::last_os_error());
    }
    ask_for_long_slices();
}

/// How much nicer than its process a thread is that others do not wait for.
const NICER: i32 = 5;

/// From now on the calling thread has a third of the share of those that compete with it (`nice(2)`, which on Linux is about one thread),
/// and they need not wait for the end of its slice. Where the kernel refuses, nothing changes.
pub fn be_nice() {
    // SAFETY: no memory is involved.
    unsafe { libc::nice(NICER) };
    ask_for_long_slices();
}

/// Keeps policy and niceness.
fn ask_for_long_slices() {
    // SAFETY: no memory is involved; 0 is the calling thread.
    let (policy, nice) = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
    let attr = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: LONG_SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: `attr` is ours and outlives the call, which reads `size` bytes of it; 0 is the calling thread.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) };
    if rc != 0 {
        log::debug!("the kernel keeps its slices: {}", std::io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    /// Of the calling thread: nanoseconds, or nothing where the kernel does not tell.
    fn slice_ns() -> u64 {
        // SAFETY: all of it are numbers, for which zeros are values.
        let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>() as u32;
        // SAFETY: `attr` is ours and outlives the call, which writes at most `size` bytes of it; 0 is the calling thread.
        let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) };
        if rc == 0 { attr.sched_runtime } else { 0 }
    }

    /// Kernels before 6.12 have one slice for all, and say 0.
    fn assert_long_where_known((before, after): (u64, u64)) {
        assert!(before == 0 || after == super::LONG_SLICE_NS, "{before} before, {after} after");
    }

    #[test]
    fn a_thread_becomes_nice_and_its_parent_does_not() {
        // SAFETY: 0 is the calling thread; no memory is involved.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let (before, slice_before) = (nice(), slice_ns());
        let in_thread = std::thread::spawn(move || {
            super::be_nice();
            assert_long_where_known((slice_before, slice_ns()));
            nice()
        });
        assert_eq!(in_thread.join().unwrap(), (before + super::NICER).min(19));
        assert_eq!((nice(), slice_ns()), (before, slice_before));
    }

    #[test]
    fn a_thread_becomes_one_that_takes_no_processor_and_its_parent_does_not() {
        // SAFETY: 0 is the calling thread; nothing is written.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let (before, slice_before) = (policy(), slice_ns());
        let in_thread = std::thread::spawn(move || {
            super::never_preempt();
            assert_long_where_known((slice_before, slice_ns()));
            policy()
        });
        assert_eq!(in_thread.join().unwrap(), libc::SCHED_BATCH);
        assert_eq!((policy(), slice_ns()), (before, slice_before));
    }
}
