//! System calls that a mount's daemon needs and the standard library does not have.
#![expect(unsafe_code, reason = "the C library's allocator and pre-exec have no safe form")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts a new session (setsid), so that closing the terminal does not end this process.
pub fn detach_from_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Redirects standard error of this process to `file`.
pub fn replace_stderr(file: &File) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// Has the kernel write back its dirty pages of the file system that `file` lies on.
pub fn sync_fs(file: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

/// Sends a signal to a process of ours.
pub fn signal(process: u32, signal: i32) -> io::Result<()> {
    let process = i32::try_from(process).ok().filter(|process| *process > 1).and_then(Pid::from_raw);
    let (Some(process), Some(signal)) = (process, Signal::from_named_raw(signal)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok(rustix::process::kill_process(process, signal)?)
}

/// Raises the limit of open descriptors of this process to its hard limit. A server has about ten descriptors for each
/// mount.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // If that fails, the process works with fewer mounts.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Lowers the calling thread's priority (nice 15). If that is refused, the thread keeps its priority.
pub fn lower_priority() {
    // On Linux no process means the calling thread.
    let _ = rustix::process::setpriority_process(None, 15);
}

/// Has the child that `command` starts keep these descriptors open. In this process, and in children that other
/// threads start meanwhile, they are closed on exec. They stay open here until the command is dropped.
pub(crate) fn pass_down(command: &mut Command, files: Vec<OwnedFd>) {
    let keep_open = |file: &OwnedFd| fcntl_setfd(file, FdFlags::empty()).map_err(io::Error::from);
    let keep = move || files.iter().try_for_each(keep_open);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `keep` makes one kind, fcntl, which is; an
    // error made from errno allocates nothing.
    unsafe { command.pre_exec(keep) };
}

/// Which of the events `wanted`, or of those that are always reported, a descriptor has now.
pub(crate) fn pending(file: impl AsFd, wanted: PollFlags) -> PollFlags {
    let mut asked = [PollFd::new(&file, wanted)];
    match poll(&mut asked, Some(&Timespec::default())) {
        Ok(_) => asked[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

/// Free bytes at the end of a heap that are kept. Records are allocated and freed by megabytes, and each page
/// that was given back costs a page fault and zeroing.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD_BYTES: i32 = 32 << 20;
/// Allocations of at least this size are mapped separately, not taken from a heap.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD_BYTES: i32 = 8 << 20;

/// Has all threads share two heaps. A heap per thread is faster only for threads that mostly allocate, and
/// free memory of one heap is of no use to the others.
#[cfg(target_env = "gnu")]
pub fn share_heaps() {
    // SAFETY: mallopt takes two numbers and changes only how later allocations are made.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
    }
}

/// Returns free memory of the heaps to the kernel.
#[cfg(target_env = "gnu")]
pub fn trim_heap() {
    // SAFETY: malloc_trim takes the heap's own locks, and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(not(target_env = "gnu"))]
pub fn share_heaps() {}

#[cfg(not(target_env = "gnu"))]
pub fn trim_heap() {}
