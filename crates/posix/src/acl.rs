//! POSIX access control lists, as acl(5) defines them, as values.
//!
//! An ACL refines the nine permission bits of a mode. Its entries are: owner, named users, owning group, named
//! groups, mask, others. The mask bounds all entries except owner and others. The mode's bits are a view of the
//! ACL: its owner and other bits are those entries. Its group bits are the mask, or the owning group if there
//! is no mask. So changing one changes the other. An ACL that a mode can express (a *minimal* one) is stored as
//! a mode alone.
//!
//! The kernel checks access with the ACL that we return to it. We validate ACLs that are set, keep ACL and mode
//! consistent, and let new files inherit from their directory.
//!
//! The stored form is the kernel's: a version, then entries in the order above. Each has a tag, permissions and
//! an id.
//!
//! Invariant: an existing [`Acl`] is valid. The type cannot hold a second owner or lack a group; named entries
//! imply a mask.

use crate::errno::Errno;
use std::iter::Peekable;
use terrane_wire::{Reader, Writer};

/// Name of the access ACL as an extended attribute.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of a directory's default ACL as an extended attribute.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// Largest ACL value in bytes, 511 entries. The kernel rejects larger values and then refuses access to the
/// file.
pub const ACL_BYTES_MAX: usize = 4096;

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of entries without a named user or group.
const NO_ID: u32 = u32::MAX;

const OWNER: u16 = 0x01;
const NAMED_USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A valid access control list. Permissions are 0 to 7: read 4, write 2, execute 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    owner: u32,
    users: Vec<NamedEntry>,
    group: u32,
    groups: Vec<NamedEntry>,
    /// `Some` if there are named entries.
    mask: Option<u32>,
    other: u32,
}

/// An entry of a named user or group. Ids may repeat: the first entry of a user counts, and all of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedEntry {
    id: u32,
    permissions: u32,
}

/// One entry, as stored.
#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    permissions: u32,
    id: u32,
}

impl Acl {
    /// Parses and validates a value. `None`: it has no entry, which removes the ACL. `EOPNOTSUPP`: the version
    /// is not 2. `E2BIG`: more than [`ACL_BYTES_MAX`]. `EINVAL`: any other violation.
    pub fn parse(raw: &[u8]) -> Result<Option<Acl>, Errno> {
        if raw.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader::new(raw);
        if reader.u32().map_err(|_| Errno::EINVAL)? != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if !reader.remaining().is_multiple_of(ENTRY_BYTES) {
            return Err(Errno::EINVAL);
        }
        if raw.len() > ACL_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        if reader.is_empty() {
            return Ok(None);
        }
        let mut entries = Vec::with_capacity(reader.remaining() / ENTRY_BYTES);
        while !reader.is_empty() {
            entries.push(Entry::parse(&mut reader)?);
        }
        Self::from_entries(&mut entries.into_iter().peekable()).map(Some)
    }

    fn from_entries(entries: &mut Peekable<impl Iterator<Item = Entry>>) -> Result<Acl, Errno> {
        let acl = Acl {
            owner: take_one(entries, OWNER)?,
            users: take_named(entries, NAMED_USER)?,
            group: take_one(entries, GROUP)?,
            groups: take_named(entries, NAMED_GROUP)?,
            mask: take_one(entries, MASK).ok(),
            other: take_one(entries, OTHER)?,
        };
        let is_bounded = acl.mask.is_some() || acl.users.is_empty() && acl.groups.is_empty();
        if is_bounded && entries.next().is_none() { Ok(acl) } else { Err(Errno::EINVAL) }
    }

    /// Encodes the ACL, so that [`parse`](Self::parse) returns it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let one = |tag, permissions| Entry { tag, permissions, id: NO_ID };
        let named =
            |tag| move |named: &NamedEntry| Entry { tag, permissions: named.permissions, id: named.id };
        let entries = [one(OWNER, self.owner)]
            .into_iter()
            .chain(self.users.iter().map(named(NAMED_USER)))
            .chain([one(GROUP, self.group)])
            .chain(self.groups.iter().map(named(NAMED_GROUP)))
            .chain(self.mask.map(|mask| one(MASK, mask)))
            .chain([one(OTHER, self.other)]);
        let count = 4 + self.users.len() + self.groups.len();
        let mut writer = Writer::with_capacity(HEADER_BYTES + count * ENTRY_BYTES);
        writer.u32(VERSION);
        entries.for_each(|entry| entry.write(&mut writer));
        writer.into_bytes()
    }

    /// Whether the nine mode bits express the whole ACL.
    pub fn is_minimal(&self) -> bool {
        self.mask.is_none()
    }

    /// The nine mode bits of a file with this access ACL.
    pub fn permissions(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.other
    }

    /// `chmod`: sets owner and others, and the mask, or the group if there is no mask.
    pub fn set_permissions(&mut self, bits: u32) {
        self.owner = bits >> 6 & 7;
        *self.group_class_mut() = bits >> 3 & 7;
        self.other = bits & 7;
    }

    /// Access ACL of a new file with mode `bits`, in a directory with this default ACL. It grants nothing
    /// beyond `bits`. The result may be minimal.
    pub fn for_new(&self, bits: u32) -> Acl {
        let mut new = self.clone();
        new.owner &= bits >> 6;
        *new.group_class_mut() &= bits >> 3;
        new.other &= bits;
        new
    }

    /// The entry that the mode's group bits show.
    fn group_class_mut(&mut self) -> &mut u32 {
        self.mask.as_mut().unwrap_or(&mut self.group)
    }
}

impl Entry {
    fn parse(reader: &mut Reader<'_>) -> Result<Entry, Errno> {
        let mut fields = || Ok((reader.u16()?, u32::from(reader.u16()?), reader.u32()?));
        let (tag, permissions, id) = fields().map_err(|_: terrane_wire::Truncated| Errno::EINVAL)?;
        if permissions > 7 { Err(Errno::EINVAL) } else { Ok(Entry { tag, permissions, id }) }
    }

    fn write(self, writer: &mut Writer) {
        writer.u16(self.tag);
        writer.u16(u16::try_from(self.permissions).expect("0 to 7"));
        writer.u32(self.id);
    }
}

/// Takes the next entry if it has this tag, and returns its permissions. `EINVAL`: it has another tag.
fn take_one(entries: &mut Peekable<impl Iterator<Item = Entry>>, tag: u16) -> Result<u32, Errno> {
    entries.next_if(|entry| entry.tag == tag).map(|entry| entry.permissions).ok_or(Errno::EINVAL)
}

/// Takes all next entries with this tag. Ids may be in any order and may repeat.
fn take_named(
    entries: &mut Peekable<impl Iterator<Item = Entry>>,
    tag: u16,
) -> Result<Vec<NamedEntry>, Errno> {
    let mut named = Vec::new();
    while let Some(Entry { permissions, id, .. }) = entries.next_if(|entry| entry.tag == tag) {
        if id == NO_ID {
            return Err(Errno::EINVAL);
        }
        named.push(NamedEntry { id, permissions });
    }
    Ok(named)
}

#[cfg(test)]
mod tests;
