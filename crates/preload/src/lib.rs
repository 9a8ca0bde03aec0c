//! `libterrane_hints.so`: write hints by `fcntl(2)`, for programs that run with it in `LD_PRELOAD`.
//!
//! The kernel answers `F_SET_RW_HINT` and the like itself, and does not tell a FUSE server. This library
//! defines `fcntl` and `fcntl64`. It turns these four commands into Terrane's `ioctl` where the file lies on a
//! mount of Terrane. All other commands, and all other files, get the C library's own `fcntl`.
//!
//! | command | becomes |
//! |---|---|
//! | `F_GET_RW_HINT` (1035), `F_GET_FILE_RW_HINT` (1037) | `ioctl` 0x800854f0 |
//! | `F_SET_RW_HINT` (1036), `F_SET_FILE_RW_HINT` (1038) | `ioctl` 0x400854f1 |
//!
//! A program that is linked statically, or that makes its system calls without the C library, is not reached.
//!
//! `fcntl` may be called in a signal handler, and after a fork. So nothing here allocates or locks, and the C
//! library's functions are looked up when the library is loaded.

#![expect(unsafe_code, reason = "it replaces functions of the C library, whose interface is C")]
#![deny(missing_docs)]

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "the calling convention of variadic functions was checked for Linux on x86-64 and AArch64 only"
);

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

const F_GET_RW_HINT: c_int = 1035;
const F_SET_RW_HINT: c_int = 1036;
const F_GET_FILE_RW_HINT: c_int = 1037;
const F_SET_FILE_RW_HINT: c_int = 1038;

/// Terrane's calls, `_IOR('T', 0xf0, u64)` and `_IOW('T', 0xf1, u64)`.
const GET_WRITE_HINT: c_ulong = 0x8008_54f0;
const SET_WRITE_HINT: c_ulong = 0x4008_54f1;

/// `f_type` of a FUSE file system.
const FUSE_MAGIC: i64 = 0x6573_5546;

/// The C library's function.
type Fcntl = unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;

/// A function of the C library, found behind this library.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn get(&self) -> Option<Fcntl> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string, and RTLD_NEXT needs no handle.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        if found.is_null() {
            return None;
        }
        // SAFETY: not null, so it is the C library's function of this name. fcntl(2) declares both names with
        // this type.
        Some(unsafe { std::mem::transmute::<*mut c_void, Fcntl>(found) })
    }
}

static FCNTL: Next = Next::new(c"fcntl");
/// Programs with 64-bit file offsets call this name.
static FCNTL64: Next = Next::new(c"fcntl64");

/// Looks both up before `main`: `dlsym` is not allowed in a signal handler.
extern "C" fn look_up() {
    FCNTL.get();
    FCNTL64.get();
}

// SAFETY: the loader calls each pointer in this section with the C calling convention once the library's
// symbols are bound. `look_up` takes no arguments, and may ignore those that glibc passes.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK_UP: extern "C" fn() = look_up;

/// Whether the file lies on a FUSE file system. `errno` may change.
fn is_on_fuse(fd: c_int) -> bool {
    // SAFETY: all bytes zero are a valid `statfs`: it has numbers only.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `statfs` of ours. The kernel checks the descriptor.
    let result = unsafe { libc::fstatfs(fd, &raw mut about) };
    result == 0 && about.f_type == FUSE_MAGIC
}

fn errno() -> c_int {
    // SAFETY: the C library returns a valid pointer to this thread's `errno`.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: as in `errno`; no other thread has the pointer.
    unsafe { *libc::__errno_location() = errno }
}

/// The outcome of the command for a file of Terrane. `None`: the command or the file is not ours, and `errno`
/// is as before.
fn hint(fd: c_int, cmd: c_int, arg: usize) -> Option<c_int> {
    let request = match cmd {
        F_GET_RW_HINT | F_GET_FILE_RW_HINT => GET_WRITE_HINT,
        F_SET_RW_HINT | F_SET_FILE_RW_HINT => SET_WRITE_HINT,
        _ => return None,
    };
    let before = errno();
    let done = is_on_fuse(fd).then(|| {
        // SAFETY: for these requests the kernel itself copies eight bytes from or to `arg`, and answers `EFAULT`
        // if it is no address of the caller. The caller passed it for the same use, as a pointer to a `u64`.
        unsafe { libc::ioctl(fd, request, arg) }
    });
    match done {
        // Not Terrane, but another FUSE file system.
        Some(-1) if matches!(errno(), libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP) => {}
        Some(result) => return Some(result),
        None => {}
    }
    set_errno(before);
    None
}

fn call(next: &Next, fd: c_int, cmd: c_int, arg: usize) -> c_int {
    if let Some(result) = hint(fd, cmd, arg) {
        return result;
    }
    match next.get() {
        // SAFETY: the arguments are the caller's, unchanged. The C library reads the third one only if the
        // command has one, as an `int`, a `long` or a pointer: each is in one register, as passed here.
        Some(next) => unsafe { next(fd, cmd, arg) },
        None => {
            set_errno(libc::ENOSYS);
            -1
        }
    }
}

/// `fcntl(2)`.
///
/// # Safety
/// As for the C library's: `arg` is what the command demands.
// SAFETY (of the name and the type): this replaces the C library's function on purpose. That one is variadic,
// and this is not, because a variadic definition needs unstable Rust. The conventions of Linux on x86-64 and
// AArch64 pass an integer or pointer behind `...` in the same register as a named third parameter. A caller
// without a third argument leaves an unspecified value in that register. It is then passed on unused.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    call(&FCNTL, fd, cmd, arg)
}

/// `fcntl` under the name that programs with 64-bit file offsets call.
///
/// # Safety
/// As for [`fcntl`].
// SAFETY (of the name and the type): as for `fcntl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    call(&FCNTL64, fd, cmd, arg)
}
