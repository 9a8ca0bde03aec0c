//! Under the preload, `fcntl` does what the kernel does, for all files that are not on Terrane. What it does for
//! those is tested with the program (`crates/cli/tests/hints.rs`).
#![expect(unsafe_code, reason = "fcntl is what is tested")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE: &str = "TERRANE_TEST_PRELOAD_FILE";
const TEST: &str = "fcntl_does_what_the_kernel_does";

fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("libterrane_hints.so")
}

/// What a list of calls returns, and their errors.
fn outcomes(path: &Path) -> String {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let fd = file.as_raw_fd();
    let mut out = String::new();
    let mut note = |what: &str, result: libc::c_int, value: u64| {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let errno = if result == -1 { errno } else { 0 };
        out.push_str(&format!("{what} {result} {errno} {value};"));
    };
    // SAFETY: each command gets the argument that fcntl(2) demands, and pointers are to locals that outlive the
    // call. An address of 8 is no memory of this process, which the kernel finds out.
    unsafe {
        note("getfl", libc::fcntl(fd, libc::F_GETFL), 0);
        note("getfd", libc::fcntl(fd, libc::F_GETFD), 0);
        note("setfd", libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC), 0);
        note("getfd", libc::fcntl(fd, libc::F_GETFD), 0);
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 700);
        note("dupfd", copy, 0);
        note("close", libc::close(copy), 0);
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_len) = (libc::F_WRLCK as _, 7);
        note("setlk", libc::fcntl(fd, libc::F_SETLK, &raw mut lock), 0);
        note("getlk", libc::fcntl(fd, libc::F_GETLK, &raw mut lock), lock.l_len as u64);
        note("getown", libc::fcntl(fd, libc::F_GETOWN), 0);
        for get in [1035, 1037] {
            for hint in [0u64, 2, 5, 6, 1 << 40] {
                note("set", libc::fcntl(fd, get + 1, &raw const hint), hint);
                let mut found = 99u64;
                let result = libc::fcntl(fd, get, &raw mut found);
                note("get", result, found);
            }
            note("bad", libc::fcntl(fd, get, 8), 0);
            note("bad", libc::fcntl(fd, get + 1, 8), 0);
            let mut found = 99u64;
            note("closed", libc::fcntl(copy, get, &raw mut found), found);
        }
        note("unknown", libc::fcntl(fd, 99_999, 0), 0);
    }
    out
}

#[test]
fn fcntl_does_what_the_kernel_does() {
    if let Some(path) = std::env::var_os(FILE) {
        // In the child: with the library or without.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        println!("outcome {} {}", maps.contains("libterrane_hints.so"), outcomes(Path::new(&path)));
        return;
    }
    let library = library();
    assert!(library.exists(), "{} should be built with this test", library.display());
    for dir in [std::env::temp_dir(), PathBuf::from("/dev/shm")].into_iter().filter(|dir| dir.is_dir()) {
        let path = dir.join(format!("terrane-preload-{}", std::process::id()));
        std::fs::write(&path, b"content").unwrap();
        let [without, with] = [None, Some(&library)].map(|preload| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", TEST, "--nocapture"]).env(FILE, &path);
            match preload {
                Some(library) => child.env("LD_PRELOAD", library),
                None => child.env_remove("LD_PRELOAD"),
            };
            let output = child.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line =
                text.lines().find_map(|line| line.split_once("outcome ")).map(|(_, rest)| rest.to_owned());
            line.unwrap_or_else(|| panic!("{text} {output:?}"))
        });
        std::fs::remove_file(&path).unwrap();
        let (without, with) = (without.strip_prefix("false "), with.strip_prefix("true "));
        assert!(without.is_some_and(|outcomes| outcomes.contains("dupfd 700 0 0;")), "{without:?}");
        assert_eq!(without, with, "{}", dir.display());
    }
}
