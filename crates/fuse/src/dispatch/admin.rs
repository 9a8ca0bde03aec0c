//! Whether a caller may see what only administrators see.
//!
//! Kernel file systems require CAP_SYS_ADMIN to list names of the namespace `trusted`. A request does not
//! carry the caller's capabilities, but `/proc` shows them, and the caller sleeps while it waits for the
//! answer. Reading `/proc` costs about as much as the request itself, so it is done only if there is such a
//! name.
//!
//! A capability counts in the server's user namespace: root in a container is no administrator here.

use crate::proto::{Header, NO_USER};
use std::fs;

const CAP_SYS_ADMIN: u32 = 21;

/// The user id by which the caller is checked. If idmapped mounts are possible, a request that creates nothing
/// does not carry it, so it is read from `/proc`. For a process that is not visible it is [`NO_USER`].
pub(super) fn uid_of(caller: &Header) -> u32 {
    if caller.uid != NO_USER {
        return caller.uid;
    }
    let status = fs::read_to_string(format!("/proc/{}/status", caller.pid)).ok();
    status.and_then(|status| uid_in(&status)).unwrap_or(NO_USER)
}

/// The file system uid from the line `Uid:`, which lists the real, effective, saved and file system uid.
fn uid_in(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(3)?.parse().ok()
}

pub(super) fn is_admin(caller: &Header) -> bool {
    let of = |name: &str| format!("/proc/{}/{name}", caller.pid);
    let Some(capable) = fs::read_to_string(of("status")).ok().and_then(|status| is_capable(&status)) else {
        // The caller is in another process namespace, or there is no /proc.
        return caller.uid == 0;
    };
    // Only a process that may trace the caller sees its namespace. A daemon of an ordinary user may not trace
    // root.
    let is_ours = match (fs::read_link(of("ns/user")), fs::read_link("/proc/self/ns/user")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => caller.uid == 0,
    };
    capable && is_ours
}

/// Whether the line `CapEff` of a status file has CAP_SYS_ADMIN. `None`: the line is missing or unreadable.
fn is_capable(status: &str) -> Option<bool> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let capabilities = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(capabilities >> CAP_SYS_ADMIN & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_a_status_file() {
        let status = |bits: &str| {
            format!("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t{bits}\nCapBnd:\t000001ffffffffff\n")
        };
        assert_eq!(is_capable(&status("000001ffffffffff")), Some(true));
        assert_eq!(is_capable(&status("0000000000200000")), Some(true));
        assert_eq!(is_capable(&status("000001ffffdfffff")), Some(false));
        assert_eq!(is_capable(&status("x")), None);
        assert_eq!(is_capable("Name:\tx\n"), None);
    }

    #[test]
    fn a_missing_uid_is_read_from_proc() {
        assert_eq!(uid_in("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t0\t0\t0\t0\n"), Some(4));
        assert_eq!(uid_in("Uid:\t1\n"), None);
        let caller = Header { opcode: 39, unique: 2, nodeid: 1, uid: NO_USER, gid: NO_USER, pid: 0 };
        assert_eq!((uid_of(&Header { uid: 7, ..caller }), uid_of(&caller)), (7, NO_USER));
        let here = Header { pid: std::process::id(), ..caller };
        assert_eq!(Some(uid_of(&here)), uid_in(&fs::read_to_string("/proc/self/status").unwrap()));
    }

    #[test]
    fn an_invisible_caller_is_checked_by_uid() {
        let caller = Header { opcode: 23, unique: 2, nodeid: 1, uid: 0, gid: 0, pid: 0 };
        assert!(is_admin(&caller));
        assert!(!is_admin(&Header { uid: 1000, ..caller }));
        // The test process itself, whatever user id the request carries.
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let here = Header { pid: std::process::id(), ..caller };
        assert_eq!(Some(is_admin(&here)), is_capable(&status));
        assert_eq!(Some(is_admin(&Header { uid: 1000, ..here })), is_capable(&status));
    }
}
