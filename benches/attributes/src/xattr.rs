//! The system calls, with whole values in and out, and the two structures that the kernel itself parses.

use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::path::Path;

type Answer<T> = Result<T, Errno>;

/// The kernel's own limit, xattr(7).
pub const VALUE_MAX: usize = 65536;
/// The kernel's limit for a list of names.
pub const LIST_MAX: usize = 65536;
pub const ACCESS: &str = "system.posix_acl_access";
pub const DEFAULT: &str = "system.posix_acl_default";
pub const CAPABILITY: &str = "security.capability";

/// Names are bytes, and need not be text.
pub trait Name: rustix::path::Arg {}
impl<T: rustix::path::Arg> Name for T {}

pub fn set(path: &Path, name: impl Name, value: &[u8]) -> Answer<()> {
    fs::setxattr(path, name, value, XattrFlags::empty())
}

pub fn create(path: &Path, name: impl Name, value: &[u8]) -> Answer<()> {
    fs::setxattr(path, name, value, XattrFlags::CREATE)
}

pub fn replace(path: &Path, name: impl Name, value: &[u8]) -> Answer<()> {
    fs::setxattr(path, name, value, XattrFlags::REPLACE)
}

/// Of the symbolic link itself.
pub fn lset(path: &Path, name: impl Name, value: &[u8]) -> Answer<()> {
    fs::lsetxattr(path, name, value, XattrFlags::empty())
}

pub fn fset(file: impl AsFd, name: impl Name, value: &[u8]) -> Answer<()> {
    fs::fsetxattr(file, name, value, XattrFlags::empty())
}

/// What a call writes to a buffer of `len` bytes.
fn filled(len: usize, call: impl FnOnce(&mut [u8]) -> Answer<usize>) -> Answer<Vec<u8>> {
    let mut buffer = vec![0; len];
    let written = call(&mut buffer)?;
    buffer.truncate(written);
    Ok(buffer)
}

pub fn get(path: &Path, name: impl Name) -> Answer<Vec<u8>> {
    get_into(path, name, VALUE_MAX)
}

/// With a buffer of `len` bytes, 1 or more: with 0 the call only returns the length.
pub fn get_into(path: &Path, name: impl Name, len: usize) -> Answer<Vec<u8>> {
    filled(len, |buffer| fs::getxattr(path, name, buffer))
}

pub fn lget(path: &Path, name: impl Name) -> Answer<Vec<u8>> {
    filled(VALUE_MAX, |buffer| fs::lgetxattr(path, name, buffer))
}

pub fn fget(file: impl AsFd, name: impl Name) -> Answer<Vec<u8>> {
    filled(VALUE_MAX, |buffer| fs::fgetxattr(file, name, buffer))
}

pub fn value_len(path: &Path, name: impl Name) -> Answer<usize> {
    fs::getxattr_query(path, name)
}

fn names(list: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = list.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    // Each name ends with a NUL: nothing is behind the last one.
    if names.last().is_some_and(Vec::is_empty) {
        names.pop();
    }
    // What a security module sets on each file does not come from the file system.
    names.retain(|name| name != b"security.selinux");
    names.sort();
    names
}

pub fn list(path: &Path) -> Answer<Vec<Vec<u8>>> {
    filled(LIST_MAX, |buffer| fs::listxattr(path, buffer)).map(|list| names(&list))
}

pub fn list_into(path: &Path, len: usize) -> Answer<usize> {
    filled(len, |buffer| fs::listxattr(path, buffer)).map(|list| list.len())
}

pub fn list_len(path: &Path) -> Answer<usize> {
    fs::listxattr_query(path)
}

pub fn llist(path: &Path) -> Answer<Vec<Vec<u8>>> {
    filled(LIST_MAX, |buffer| fs::llistxattr(path, buffer)).map(|list| names(&list))
}

pub fn flist(file: impl AsFd) -> Answer<Vec<Vec<u8>>> {
    filled(LIST_MAX, |buffer| fs::flistxattr(file, buffer)).map(|list| names(&list))
}

pub fn remove(path: &Path, name: impl Name) -> Answer<()> {
    fs::removexattr(path, name)
}

pub fn lremove(path: &Path, name: impl Name) -> Answer<()> {
    fs::lremovexattr(path, name)
}

pub fn fremove(file: impl AsFd, name: impl Name) -> Answer<()> {
    fs::fremovexattr(file, name)
}

/// A list in the form of expectations.
pub fn listed(names: &[&str]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    names.sort();
    names
}

/// Incompressible bytes, unique for each seed.
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// One line of an ACL, as setfacl(1) writes it.
#[derive(Clone, Copy)]
pub enum Entry {
    Owner(u16),
    User(u32, u16),
    Group(u16),
    NamedGroup(u32, u16),
    Mask(u16),
    Other(u16),
}

/// The id of entries whose tag needs none.
const NOBODY: u32 = u32::MAX;

impl Entry {
    /// Tag, permissions, id: linux/posix_acl_xattr.h.
    fn fields(self) -> (u16, u16, u32) {
        match self {
            Entry::Owner(may) => (0x01, may, NOBODY),
            Entry::User(uid, may) => (0x02, may, uid),
            Entry::Group(may) => (0x04, may, NOBODY),
            Entry::NamedGroup(gid, may) => (0x08, may, gid),
            Entry::Mask(may) => (0x10, may, NOBODY),
            Entry::Other(may) => (0x20, may, NOBODY),
        }
    }
}

/// The value of `system.posix_acl_*`: a version, then 8 bytes for each entry, little endian.
pub fn acl(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, may, id) = entry.fields();
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&may.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// The value of `security.capability`, version 2: cap_net_raw, permitted and effective.
pub fn net_raw() -> Vec<u8> {
    const CAP_NET_RAW: u32 = 13;
    let mut value = 0x0200_0001_u32.to_le_bytes().to_vec();
    for word in [1 << CAP_NET_RAW, 0, 0, 0] {
        value.extend_from_slice(&u32::to_le_bytes(word));
    }
    value
}
