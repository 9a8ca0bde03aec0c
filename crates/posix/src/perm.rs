//! Permission effects that the kernel leaves to the file system.
//!
//! The mount uses the kernel's checks (`default_permissions`). They decide before a request arrives whether a
//! caller may search, read, write, delete in a sticky directory or change an owner. The effects remain: which
//! group a new file gets, and which bits are cleared when a file is written, truncated or given away.

use crate::acl::Acl;
use crate::attr::Attributes;
use crate::types::{Cred, mode};

/// What a new inode inherits from its directory.
pub(crate) struct Inherited {
    pub gid: u64,
    /// Its mode.
    pub bits: u32,
}

/// The directory's default ACL replaces the umask. In a set-gid directory, all new inodes take the directory's
/// gid, and directories also the set-gid bit.
pub(crate) fn inherit(parent: &Attributes, bits: u32, cred: &Cred, default: Option<&Acl>) -> Inherited {
    let is_symlink = bits & mode::S_IFMT == mode::S_IFLNK;
    let bits = match default {
        Some(acl) => bits & !0o777 | acl.for_new(bits).permissions(),
        None if is_symlink => bits,
        None => bits & !(cred.umask & 0o777),
    };
    if parent.mode() & mode::S_ISGID == 0 {
        return Inherited { gid: u64::from(cred.gid), bits };
    }
    let is_dir = bits & mode::S_IFMT == mode::S_IFDIR;
    Inherited { gid: parent.zpl.gid, bits: if is_dir { bits | mode::S_ISGID } else { bits } }
}

/// Clears set-uid, and set-gid if the group may execute; without that it means mandatory locking. True: a bit
/// was set.
pub(crate) fn clear_set_ids(attrs: &mut Attributes) -> bool {
    if attrs.is_dir() {
        return false;
    }
    let before = attrs.mode();
    let mut bits = attrs.mode() & !mode::S_ISUID;
    if bits & mode::S_IXGRP != 0 {
        bits &= !mode::S_ISGID;
    }
    attrs.set_permissions(bits);
    attrs.mode() != before
}
