//! POSIX access control lists: what acl(5) says, as a value.
//!
//! An ACL says who may do what in more words than nine bits have: owner, named users, the owning group, named groups, others,
//! and a mask that bounds all but owner and others. The mode's bits stay a view of it: owner and others are theirs, the
//! group's bits are the mask if there is one. So a change of the mode changes the ACL, and the other way round; a list that
//! says no more than a mode does (a *minimal* one) is stored as a mode alone.
//!
//! The kernel decides by it who may do what (it asks for the list, as it was set); what is left for us is to judge lists that
//! are set, to keep list and mode one, and to give new files what their directory says.
//!
//! Stored and set is the kernel's form: a version, then entries in the order above, each a tag, permissions and an id.
//!
//! Invariant: an [`Acl`] that exists is valid, so it has no place for a second owner or a missing group; named entries have
//! a mask beside them.

use crate::errno::Errno;
use std::iter::Peekable;
use terrane_wire::{Reader, Writer};

/// What the access ACL is called as an extended attribute.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// What a directory's default ACL is called as one.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// Most bytes that an ACL takes as a value, 511 entries: a mounted kernel reads no larger one, and refuses the file to everybody if
/// it has one.
pub const ACL_BYTES_MAX: usize = 4096;

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of an entry that names nobody.
const NOBODY: u32 = u32::MAX;

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
    users: Vec<Named>,
    group: u32,
    groups: Vec<Named>,
    /// Always there with named entries.
    mask: Option<u32>,
    other: u32,
}

/// One user's or group's entry. One id may have several: the first of a user's counts, all of a group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    id: u32,
    permissions: u32,
}

/// One entry as it is stored.
#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    permissions: u32,
    id: u32,
}

impl Acl {
    /// Judges a value. `None`: it has no entry, which means that there shall be no ACL. `EOPNOTSUPP`: a version that is not 2;
    /// `E2BIG`: more than [`ACL_BYTES_MAX`]; `EINVAL`: any other damage.
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

    /// The value that [`parse`](Self::parse) understands as this ACL.
    pub fn to_bytes(&self) -> Vec<u8> {
        let one = |tag, permissions| Entry { tag, permissions, id: NOBODY };
        let named = |tag| move |named: &Named| Entry { tag, permissions: named.permissions, id: named.id };
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

    /// Whether nine bits of a mode say all that it says.
    pub fn is_minimal(&self) -> bool {
        self.mask.is_none()
    }

    /// The nine bits of the mode of a file that has it as its access ACL.
    pub fn permissions(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.other
    }

    /// `chmod`: nine bits become those of owner, others, and mask, or group where there is no mask.
    pub fn set_permissions(&mut self, bits: u32) {
        self.owner = bits >> 6 & 7;
        *self.group_class_mut() = bits >> 3 & 7;
        self.other = bits & 7;
    }

    /// The access ACL of a file that is made with these nine bits in a directory whose default ACL this is: nobody gets what the
    /// bits do not have. It may be minimal.
    pub fn for_new(&self, bits: u32) -> Acl {
        let mut new = self.clone();
        new.owner &= bits >> 6;
        *new.group_class_mut() &= bits >> 3;
        new.other &= bits;
        new
    }

    /// What the mode's group bits are a view of.
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

/// The permissions of the entry that comes next, if it is of this kind.
fn take_one(entries: &mut Peekable<impl Iterator<Item = Entry>>, tag: u16) -> Result<u32, Errno> {
    entries.next_if(|entry| entry.tag == tag).map(|entry| entry.permissions).ok_or(Errno::EINVAL)
}

/// All entries of this kind that come next. The order of ids is nobody's business, nor is one that comes twice.
fn take_named(entries: &mut Peekable<impl Iterator<Item = Entry>>, tag: u16) -> Result<Vec<Named>, Errno> {
    let mut named = Vec::new();
    while let Some(Entry { permissions, id, .. }) = entries.next_if(|entry| entry.tag == tag) {
        if id == NOBODY {
            return Err(Errno::EINVAL);
        }
        named.push(Named { id, permissions });
    }
    Ok(named)
}

#[cfg(test)]
mod tests;
