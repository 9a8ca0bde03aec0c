//! System calls that a mount's daemon needs and the standard library does not have.
#![expect(unsafe_code, reason = "they have no safe wrapper among our dependencies")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Starts a new session (setsid), so that closing the terminal does not end this process.
pub fn detach_from_terminal() -> io::Result<()> {
    // SAFETY: setsid takes no arguments and touches no memory; it changes only what the kernel knows of this process.
    match unsafe { libc::setsid() } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Redirects standard error of this process to `file`.
pub fn replace_stderr(file: &File) -> io::Result<()> {
    // SAFETY: dup2 touches no memory. The descriptor is open for as long as `file` is borrowed, and 2 is replaced in one step, so a
    // thread that writes to it meanwhile reaches the old file or the new one.
    match unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has the kernel write back its dirty pages of the file system that `file` lies on.
pub fn sync_fs(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed; the kernel reads and writes no memory of ours.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal to a process of ours.
pub fn signal(process: u32, signal: i32) -> io::Result<()> {
    let process = i32::try_from(process).ok().filter(|process| *process > 1);
    let process = process.ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: kill touches no memory; it changes only what the kernel knows of that process.
    match unsafe { libc::kill(process, signal) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Lowers the calling thread's priority (nice 15).
pub fn lower_priority() {
    // SAFETY: setpriority takes numbers and touches no memory. On Linux 0 means the calling thread, not its
    // process. If it is refused, the thread keeps its priority.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 15);
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
