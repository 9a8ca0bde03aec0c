//! Intent records: changes as bytes, from which a replay makes them again.
//!
//! A record is an operation as a value: inode numbers, names, bytes, flags, the credentials that it used, and the one
//! time that it gave to everything it changed. For a new inode it also has the number, the generation and the size of
//! the dnode. So a replay gives the same result, whatever the clock and the allocator say then.
//!
//! Stored form: one byte for the kind, the time, then the fields of the kind in the order of [`Record`]. FORMAT.md
//! has the table. Numbers are varints.
//!
//! Invariant: [`Record::parse`] returns only what an operation accepts as its input, or an error. It never panics.

use crate::attr::kind_of;
use crate::new_file::NewFile;
use crate::types::{
    Cred, EntryWords, FILE_SIZE_MAX, Ino, NAME_MAX, SYMLINK_MAX, SetAttr, SetTime, SetXattr, Time,
    XATTR_SIZE_MAX, mode,
};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use terrane_dataset::XattrPlacement;
use terrane_object::dnode::SLOTS_MAX;
use terrane_space::policy::Hint;
use terrane_wire::{ObjectId, Reader, Truncated, Writer};

/// An inode that an operation created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewInode {
    pub ino: Ino,
    pub generation: u64,
    /// Slots of its dnode, 1 to 32.
    pub dnode_slots: u8,
}

/// How a hint was set through its extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintXattr {
    /// False: the attribute was removed.
    pub is_set: bool,
    /// Whether the attribute must exist or must not. A removal ignores it.
    pub how: SetXattr,
}

/// One change. Fields are those of the operation of the same name.
#[derive(Clone, Debug)]
pub(crate) enum Record<'a> {
    CreateFile {
        dir: Ino,
        name: &'a [u8],
        words: EntryWords,
        file: NewFile<'a>,
        new: NewInode,
    },
    CreateTmpfile {
        dir: Ino,
        file: NewFile<'a>,
        new: NewInode,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: &'a [u8],
        words: EntryWords,
    },
    Remove {
        dir: Ino,
        name: &'a [u8],
        wants_dir: bool,
        /// The inode that had the name.
        ino: Ino,
    },
    Rename {
        dir: Ino,
        name: &'a [u8],
        new_dir: Ino,
        new_name: &'a [u8],
        flags: u32,
        whiteout: Option<(Cred, NewInode)>,
        /// The inode that had the old name.
        moved: Ino,
    },
    SetAttributes {
        ino: Ino,
        set: SetAttr,
    },
    PutXattr {
        ino: Ino,
        name: &'a [u8],
        value: &'a [u8],
        how: SetXattr,
        placement: XattrPlacement,
    },
    RemoveXattr {
        ino: Ino,
        name: &'a [u8],
    },
    SetAcl {
        ino: Ino,
        is_default: bool,
        /// `None`: it was removed.
        acl: Option<Cow<'a, [u8]>>,
        kill_sgid: bool,
    },
    SetInodeFlags {
        ino: Ino,
        /// Bits, as attributes store them.
        flags: u64,
        project: Option<u32>,
    },
    SetHint {
        ino: Ino,
        hint: Hint,
        as_xattr: Option<HintXattr>,
    },
    SetEntryWords {
        dir: Ino,
        name: &'a [u8],
        words: EntryWords,
    },
    Write {
        ino: Ino,
        /// Where the bytes are, also those of an append.
        offset: u64,
        data: &'a [u8],
        kill_suidgid: bool,
    },
    TruncateOnOpen {
        ino: Ino,
    },
    ZeroRange {
        ino: Ino,
        range: Range<u64>,
        punches: bool,
        keeps_size: bool,
    },
    Reserve {
        ino: Ino,
        range: Range<u64>,
        extends: bool,
    },
    StoreAccessTime {
        ino: Ino,
        at: Time,
    },
    /// Bytes of one file that were put into another, which may share blocks with it.
    Clone {
        ino: Ino,
        from: Ino,
        /// Bytes of the source.
        range: Range<u64>,
        /// The first byte in the target.
        into: u64,
    },
}

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoRecord {
    /// Newer versions may know this kind.
    UnknownKind(u8),
    Damaged {
        what: &'static str,
        expected: String,
        found: String,
    },
}

impl NoRecord {
    fn damaged(what: &'static str, expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        NoRecord::Damaged { what, expected: expected.to_string(), found: found.to_string() }
    }
}

/// Set in the stored kind of a record that was made without access control lists.
const WITHOUT_ACLS: u8 = 0x80;

/// The kinds, as stored.
mod kind {
    pub const CREATE_FILE: u8 = 1;
    pub const CREATE_TMPFILE: u8 = 2;
    pub const LINK: u8 = 3;
    pub const REMOVE: u8 = 4;
    pub const RENAME: u8 = 5;
    pub const SET_ATTRIBUTES: u8 = 6;
    pub const PUT_XATTR: u8 = 7;
    pub const REMOVE_XATTR: u8 = 8;
    pub const SET_ACL: u8 = 9;
    pub const SET_INODE_FLAGS: u8 = 10;
    pub const SET_HINT: u8 = 11;
    pub const SET_ENTRY_WORDS: u8 = 12;
    pub const WRITE: u8 = 13;
    pub const TRUNCATE_ON_OPEN: u8 = 14;
    pub const ZERO_RANGE: u8 = 15;
    pub const RESERVE: u8 = 16;
    pub const STORE_ACCESS_TIME: u8 = 17;
    pub const CLONE: u8 = 18;
}

impl Record<'_> {
    /// A lower bound of the stored bytes, which costs nothing to compute.
    pub fn bytes_min(&self) -> usize {
        match self {
            Record::Write { data, .. } => data.len(),
            Record::PutXattr { value, .. } => value.len(),
            _ => 0,
        }
    }

    /// Inodes that the change is about.
    pub fn inodes(&self) -> Vec<Ino> {
        match self {
            Record::CreateFile { dir, new, .. } | Record::CreateTmpfile { dir, new, .. } => {
                vec![*dir, new.ino]
            }
            Record::Link { ino, dir, .. } | Record::Remove { dir, ino, .. } => vec![*dir, *ino],
            Record::Rename { dir, new_dir, moved, .. } => vec![*dir, *new_dir, *moved],
            Record::SetEntryWords { dir, .. } => vec![*dir],
            Record::SetAttributes { ino, .. }
            | Record::PutXattr { ino, .. }
            | Record::RemoveXattr { ino, .. }
            | Record::SetAcl { ino, .. }
            | Record::SetInodeFlags { ino, .. }
            | Record::SetHint { ino, .. }
            | Record::Write { ino, .. }
            | Record::TruncateOnOpen { ino }
            | Record::ZeroRange { ino, .. }
            | Record::Reserve { ino, .. }
            | Record::StoreAccessTime { ino, .. }
            | Record::Clone { ino, .. } => vec![*ino],
        }
    }

    /// The inode that the change creates.
    pub fn new_inode(&self) -> Option<NewInode> {
        match self {
            Record::CreateFile { new, .. } | Record::CreateTmpfile { new, .. } => Some(*new),
            Record::Rename { whiteout, .. } => whiteout.map(|(_, new)| new),
            _ => None,
        }
    }

    /// Says in the stored form that there were no access control lists when the change was made.
    pub fn mark_without_acls(stored: &mut [u8]) {
        stored.iter_mut().take(1).for_each(|kind| *kind |= WITHOUT_ACLS);
    }

    /// Whether the stored form says so.
    pub fn was_without_acls(stored: &[u8]) -> bool {
        stored.first().is_some_and(|kind| kind & WITHOUT_ACLS != 0)
    }

    /// The end of the stored form, which is not copied by [`write_head`](Self::write_head).
    pub fn tail(&self) -> &[u8] {
        match self {
            Record::Write { data, .. } => data,
            _ => &[],
        }
    }

    /// Appends the stored form of a change that was made at this time.
    pub fn write(&self, now: Time, w: &mut Writer) {
        self.write_head(now, w);
        w.bytes(self.tail());
    }

    /// The same without its [`tail`](Self::tail).
    pub fn write_head(&self, now: Time, w: &mut Writer) {
        let begin = |w: &mut Writer, kind: u8| {
            w.u8(kind);
            put_time(w, now);
        };
        match self {
            Record::CreateFile { dir, name, words, file, new } => {
                begin(w, kind::CREATE_FILE);
                w.varint(*dir);
                w.blob(name);
                put_words(w, words);
                put_file(w, file);
                put_new(w, new);
            }
            Record::CreateTmpfile { dir, file, new } => {
                begin(w, kind::CREATE_TMPFILE);
                w.varint(*dir);
                put_file(w, file);
                put_new(w, new);
            }
            Record::Link { ino, dir, name, words } => {
                begin(w, kind::LINK);
                w.varint(*ino);
                w.varint(*dir);
                w.blob(name);
                put_words(w, words);
            }
            Record::Remove { dir, name, wants_dir, ino } => {
                begin(w, kind::REMOVE);
                w.varint(*dir);
                w.blob(name);
                put_flags(w, [*wants_dir]);
                w.varint(*ino);
            }
            Record::Rename { dir, name, new_dir, new_name, flags, whiteout, moved } => {
                begin(w, kind::RENAME);
                w.varint(*dir);
                w.blob(name);
                w.varint(*new_dir);
                w.blob(new_name);
                w.varint((*flags).into());
                put_flags(w, [whiteout.is_some()]);
                if let Some((cred, new)) = whiteout {
                    put_cred(w, cred);
                    put_new(w, new);
                }
                w.varint(*moved);
            }
            Record::SetAttributes { ino, set } => {
                begin(w, kind::SET_ATTRIBUTES);
                w.varint(*ino);
                put_set_attr(w, set);
            }
            Record::PutXattr { ino, name, value, how, placement } => {
                begin(w, kind::PUT_XATTR);
                w.varint(*ino);
                w.blob(name);
                w.blob(value);
                put_how(w, how);
                put_flags(w, [*placement == XattrPlacement::Dir]);
            }
            Record::RemoveXattr { ino, name } => {
                begin(w, kind::REMOVE_XATTR);
                w.varint(*ino);
                w.blob(name);
            }
            Record::SetAcl { ino, is_default, acl, kill_sgid } => {
                begin(w, kind::SET_ACL);
                w.varint(*ino);
                put_flags(w, [*is_default, *kill_sgid, acl.is_some()]);
                w.blob(acl.as_deref().unwrap_or_default());
            }
            Record::SetInodeFlags { ino, flags, project } => {
                begin(w, kind::SET_INODE_FLAGS);
                w.varint(*ino);
                w.varint(*flags);
                put_flags(w, [project.is_some()]);
                w.varint(project.unwrap_or(0).into());
            }
            Record::SetHint { ino, hint, as_xattr } => {
                begin(w, kind::SET_HINT);
                w.varint(*ino);
                w.varint(*hint as u64);
                put_flags(w, [as_xattr.is_some(), as_xattr.is_some_and(|xattr| xattr.is_set)]);
                put_how(w, &as_xattr.map(|xattr| xattr.how).unwrap_or_default());
            }
            Record::SetEntryWords { dir, name, words } => {
                begin(w, kind::SET_ENTRY_WORDS);
                w.varint(*dir);
                w.blob(name);
                put_words(w, words);
            }
            Record::Write { ino, offset, data, kill_suidgid } => {
                begin(w, kind::WRITE);
                w.varint(*ino);
                w.varint(*offset);
                put_flags(w, [*kill_suidgid]);
                w.varint(data.len() as u64);
            }
            Record::TruncateOnOpen { ino } => {
                begin(w, kind::TRUNCATE_ON_OPEN);
                w.varint(*ino);
            }
            Record::ZeroRange { ino, range, punches, keeps_size } => {
                begin(w, kind::ZERO_RANGE);
                w.varint(*ino);
                put_range(w, range);
                put_flags(w, [*punches, *keeps_size]);
            }
            Record::Reserve { ino, range, extends } => {
                begin(w, kind::RESERVE);
                w.varint(*ino);
                put_range(w, range);
                put_flags(w, [*extends]);
            }
            Record::StoreAccessTime { ino, at } => {
                begin(w, kind::STORE_ACCESS_TIME);
                w.varint(*ino);
                put_time(w, *at);
            }
            Record::Clone { ino, from, range, into } => {
                begin(w, kind::CLONE);
                w.varint(*ino);
                w.varint(*from);
                put_range(w, range);
                w.varint(*into);
            }
        }
    }
}

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::CreateFile { dir, name, new, .. } => {
                write!(f, "create of '{}' in directory {dir} as inode {}", name.escape_ascii(), new.ino)
            }
            Record::CreateTmpfile { dir, new, .. } => {
                write!(f, "create of a nameless file in directory {dir} as inode {}", new.ino)
            }
            Record::Link { ino, dir, name, .. } => {
                write!(f, "link of inode {ino} to '{}' in directory {dir}", name.escape_ascii())
            }
            Record::Remove { dir, name, ino, .. } => {
                write!(f, "removal of '{}' (inode {ino}) from directory {dir}", name.escape_ascii())
            }
            Record::Rename { dir, name, new_dir, new_name, moved, flags, .. } => {
                let (name, new_name) = (name.escape_ascii(), new_name.escape_ascii());
                write!(
                    f,
                    "rename of '{name}' (inode {moved}) in directory {dir} to '{new_name}' in directory {new_dir}, flags {flags}"
                )
            }
            Record::SetAttributes { ino, .. } => write!(f, "change of attributes of inode {ino}"),
            Record::PutXattr { ino, name, .. } => {
                write!(f, "extended attribute '{}' of inode {ino}", name.escape_ascii())
            }
            Record::RemoveXattr { ino, name } => {
                write!(f, "removal of extended attribute '{}' of inode {ino}", name.escape_ascii())
            }
            Record::SetAcl { ino, .. } => write!(f, "access control list of inode {ino}"),
            Record::SetInodeFlags { ino, .. } => write!(f, "flags of inode {ino}"),
            Record::SetHint { ino, .. } => write!(f, "write hint of inode {ino}"),
            Record::SetEntryWords { dir, name, .. } => {
                write!(f, "words beside '{}' in directory {dir}", name.escape_ascii())
            }
            Record::Write { ino, offset, data, .. } => {
                write!(f, "write of {} bytes at {offset} to inode {ino}", data.len())
            }
            Record::TruncateOnOpen { ino } => write!(f, "truncation of inode {ino}"),
            Record::ZeroRange { ino, range, .. } => write!(f, "zeros at {range:?} of inode {ino}"),
            Record::Reserve { ino, range, .. } => write!(f, "reservation of {range:?} of inode {ino}"),
            Record::StoreAccessTime { ino, .. } => write!(f, "access time of inode {ino}"),
            Record::Clone { ino, from, .. } => write!(f, "copy of a part of inode {from} into inode {ino}"),
        }
    }
}

impl<'a> Record<'a> {
    /// The time of the change, and the change.
    pub fn parse(raw: &'a [u8]) -> Result<(Time, Record<'a>), NoRecord> {
        let mut fields = Fields(Reader::new(raw));
        let stored = fields.0.u8().map_err(|short| fields.short("kind", short))?;
        let kind = stored & !WITHOUT_ACLS;
        if !(kind::CREATE_FILE..=kind::CLONE).contains(&kind) {
            return Err(NoRecord::UnknownKind(stored));
        }
        let now = fields.time("time of the change")?;
        let record = fields.record(kind)?;
        match fields.0.remaining() {
            0 => Ok((now, record)),
            rest => Err(NoRecord::damaged("end", "no further bytes", format_args!("{rest} bytes"))),
        }
    }
}

fn put_flags<const N: usize>(w: &mut Writer, flags: [bool; N]) {
    w.u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
}

fn put_time(w: &mut Writer, time: Time) {
    w.varint_signed(time.secs);
    w.varint(time.nanos.into());
}

fn put_cred(w: &mut Writer, cred: &Cred) {
    for number in [cred.uid, cred.gid, cred.umask] {
        w.varint(number.into());
    }
}

fn put_words(w: &mut Writer, words: &EntryWords) {
    let words = words.as_slice();
    w.varint(words.len() as u64);
    words.iter().for_each(|word| w.u64(*word));
}

fn put_file(w: &mut Writer, file: &NewFile<'_>) {
    w.varint(file.bits.into());
    w.varint(file.rdev.unwrap_or(0).into());
    w.blob(file.target.unwrap_or_default());
    put_cred(w, &file.cred);
}

fn put_new(w: &mut Writer, new: &NewInode) {
    w.varint(new.ino);
    w.varint(new.generation);
    w.u8(new.dnode_slots);
}

fn put_how(w: &mut Writer, how: &SetXattr) {
    put_flags(w, [how.create, how.replace, how.kill_sgid]);
}

fn put_range(w: &mut Writer, range: &Range<u64>) {
    w.varint(range.start);
    w.varint(range.end);
}

fn put_set_attr(w: &mut Writer, set: &SetAttr) {
    let SetAttr { mode, uid, gid, size, atime, mtime, ctime, kill_suidgid } = set;
    put_flags(w, [mode.is_some(), uid.is_some(), gid.is_some(), size.is_some(), *kill_suidgid]);
    let is_at = |time: &Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    put_flags(w, [atime.is_some(), is_at(atime), mtime.is_some(), is_at(mtime), ctime.is_some()]);
    for number in [mode, uid, gid].into_iter().flatten() {
        w.varint((*number).into());
    }
    if let Some(size) = size {
        w.varint(*size);
    }
    for time in [atime, mtime] {
        if let Some(SetTime::At(time)) = time {
            put_time(w, *time);
        }
    }
    if let Some(time) = ctime {
        put_time(w, *time);
    }
}

/// Reads the fields of a record.
struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    fn short(&self, what: &'static str, short: Truncated) -> NoRecord {
        NoRecord::damaged(what, "a whole one", format_args!("{short}, {} left", self.0.remaining()))
    }

    fn record(&mut self, kind: u8) -> Result<Record<'a>, NoRecord> {
        Ok(match kind {
            kind::CREATE_FILE => {
                let (dir, name, words) = (self.ino()?, self.name()?, self.words()?);
                Record::CreateFile { dir, name, words, file: self.file()?, new: self.new_inode()? }
            }
            kind::CREATE_TMPFILE => {
                Record::CreateTmpfile { dir: self.ino()?, file: self.file()?, new: self.new_inode()? }
            }
            kind::LINK => {
                Record::Link { ino: self.ino()?, dir: self.ino()?, name: self.name()?, words: self.words()? }
            }
            kind::REMOVE => {
                let (dir, name, [wants_dir]) = (self.ino()?, self.name()?, self.flags()?);
                Record::Remove { dir, name, wants_dir, ino: self.ino()? }
            }
            kind::RENAME => {
                let (dir, name) = (self.ino()?, self.name()?);
                let (new_dir, new_name, flags) = (self.ino()?, self.name()?, self.u32("rename flags")?);
                let whiteout = match self.flags()? {
                    [true] => Some((self.cred()?, self.new_inode()?)),
                    [false] => None,
                };
                Record::Rename { dir, name, new_dir, new_name, flags, whiteout, moved: self.ino()? }
            }
            kind::SET_ATTRIBUTES => Record::SetAttributes { ino: self.ino()?, set: self.set_attr()? },
            kind::PUT_XATTR => {
                let (ino, name) = (self.ino()?, self.name()?);
                let value = self.blob("value", XATTR_SIZE_MAX)?;
                let (how, [is_dir]) = (self.how()?, self.flags()?);
                let placement = if is_dir { XattrPlacement::Dir } else { XattrPlacement::Sa };
                Record::PutXattr { ino, name, value, how, placement }
            }
            kind::REMOVE_XATTR => Record::RemoveXattr { ino: self.ino()?, name: self.name()? },
            kind::SET_ACL => {
                let (ino, [is_default, kill_sgid, has_acl]) = (self.ino()?, self.flags()?);
                let acl = self.blob("access control list", XATTR_SIZE_MAX)?;
                Record::SetAcl { ino, is_default, acl: has_acl.then_some(Cow::Borrowed(acl)), kill_sgid }
            }
            kind::SET_INODE_FLAGS => {
                let (ino, flags) = (self.ino()?, self.u64("inode flags")?);
                let ([has_project], project) = (self.flags()?, self.u32("project")?);
                Record::SetInodeFlags { ino, flags, project: has_project.then_some(project) }
            }
            kind::SET_HINT => {
                let (ino, hint) = (self.ino()?, self.u64("write hint")?);
                let hint = Hint::from_id(hint)
                    .ok_or_else(|| NoRecord::damaged("write hint", "a known one", hint))?;
                let ([is_xattr, is_set], how) = (self.flags()?, self.how()?);
                Record::SetHint { ino, hint, as_xattr: is_xattr.then_some(HintXattr { is_set, how }) }
            }
            kind::SET_ENTRY_WORDS => {
                Record::SetEntryWords { dir: self.ino()?, name: self.name()?, words: self.words()? }
            }
            kind::WRITE => {
                let (ino, offset, [kill_suidgid]) = (self.ino()?, self.u64("offset")?, self.flags()?);
                let data = self.blob("data", usize::MAX)?;
                if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
                    return Err(NoRecord::damaged("offset", "an end below 2^63", offset));
                }
                Record::Write { ino, offset, data, kill_suidgid }
            }
            kind::TRUNCATE_ON_OPEN => Record::TruncateOnOpen { ino: self.ino()? },
            kind::ZERO_RANGE => {
                let (ino, range, [punches, keeps_size]) = (self.ino()?, self.range()?, self.flags()?);
                Record::ZeroRange { ino, range, punches, keeps_size }
            }
            kind::RESERVE => {
                let (ino, range, [extends]) = (self.ino()?, self.range()?, self.flags()?);
                Record::Reserve { ino, range, extends }
            }
            kind::STORE_ACCESS_TIME => {
                Record::StoreAccessTime { ino: self.ino()?, at: self.time("access time")? }
            }
            kind::CLONE => {
                let (ino, from, range) = (self.ino()?, self.ino()?, self.range()?);
                let into = self.u64("offset")?;
                if into.checked_add(range.end - range.start).is_none_or(|end| end > FILE_SIZE_MAX) {
                    return Err(NoRecord::damaged("offset", "an end below 2^63", into));
                }
                Record::Clone { ino, from, range, into }
            }
            other => return Err(NoRecord::UnknownKind(other)),
        })
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, NoRecord> {
        self.0.varint().map_err(|short| self.short(what, short))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, NoRecord> {
        let number = self.u64(what)?;
        u32::try_from(number).map_err(|_| NoRecord::damaged(what, "below 2^32", number))
    }

    fn ino(&mut self) -> Result<Ino, NoRecord> {
        let ino = self.u64("inode number")?;
        let is_possible = (1..=ObjectId::MASK).contains(&ino);
        if is_possible { Ok(ino) } else { Err(NoRecord::damaged("inode number", "1 to 2^48 - 1", ino)) }
    }

    fn flags<const N: usize>(&mut self) -> Result<[bool; N], NoRecord> {
        let bits = self.0.u8().map_err(|short| self.short("flags", short))?;
        if u32::from(bits) >> N != 0 {
            return Err(NoRecord::damaged("flags", format_args!("{N} bits"), format_args!("{bits:#x}")));
        }
        Ok(std::array::from_fn(|at| bits >> at & 1 == 1))
    }

    fn blob(&mut self, what: &'static str, bytes_max: usize) -> Result<&'a [u8], NoRecord> {
        let raw = self.0.blob().map_err(|short| self.short(what, short))?;
        match raw.len() {
            bytes if bytes <= bytes_max => Ok(raw),
            bytes => Err(NoRecord::damaged(what, format_args!("at most {bytes_max} bytes"), bytes)),
        }
    }

    fn name(&mut self) -> Result<&'a [u8], NoRecord> {
        let name = self.blob("name", NAME_MAX)?;
        let is_name = !name.is_empty() && !name.contains(&0) && !name.contains(&b'/');
        // Names of extended attributes may have a slash.
        let is_xattr = name.contains(&b'.') && !name.contains(&0);
        if is_name || is_xattr {
            Ok(name)
        } else {
            Err(NoRecord::damaged("name", "a possible one", format_args!("'{}'", name.escape_ascii())))
        }
    }

    fn time(&mut self, what: &'static str) -> Result<Time, NoRecord> {
        let secs = self.0.varint_signed().map_err(|short| self.short(what, short))?;
        let nanos = self.u32(what)?;
        if nanos >= 1_000_000_000 {
            return Err(NoRecord::damaged(what, "below 10^9 nanoseconds", nanos));
        }
        Ok(Time { secs, nanos })
    }

    fn cred(&mut self) -> Result<Cred, NoRecord> {
        Ok(Cred { uid: self.u32("user")?, gid: self.u32("group")?, umask: self.u32("umask")? })
    }

    fn words(&mut self) -> Result<EntryWords, NoRecord> {
        let count = self.0.count(8).map_err(|short| self.short("words of an entry", short))?;
        let damaged =
            || NoRecord::damaged("words of an entry", format_args!("at most {}", EntryWords::MAX), count);
        let mut words = [0; EntryWords::MAX];
        for word in words.get_mut(..count).ok_or_else(damaged)? {
            *word = self.0.u64().map_err(|short| self.short("words of an entry", short))?;
        }
        EntryWords::from_slice(words.get(..count).unwrap_or(&[])).ok_or_else(damaged)
    }

    fn file(&mut self) -> Result<NewFile<'a>, NoRecord> {
        let (bits, rdev) = (self.u32("mode")?, self.u32("device number")?);
        let target = self.blob("target of a symbolic link", SYMLINK_MAX)?;
        let cred = self.cred()?;
        let file_type = bits & mode::S_IFMT;
        let is_link = file_type == mode::S_IFLNK;
        if kind_of(bits).is_none() || is_link == target.is_empty() {
            let expected = "a file type, and a target if it is a symbolic link";
            let found = format_args!("{bits:#o} and {} bytes", target.len());
            return Err(NoRecord::damaged("mode", expected, found));
        }
        let is_device = matches!(file_type, mode::S_IFBLK | mode::S_IFCHR);
        Ok(NewFile { bits, rdev: is_device.then_some(rdev), target: is_link.then_some(target), cred })
    }

    fn new_inode(&mut self) -> Result<NewInode, NoRecord> {
        let (ino, generation) = (self.ino()?, self.u64("generation")?);
        let dnode_slots = self.0.u8().map_err(|short| self.short("dnode slots", short))?;
        if !(1..=SLOTS_MAX).contains(&dnode_slots) {
            return Err(NoRecord::damaged("dnode slots", format_args!("1 to {SLOTS_MAX}"), dnode_slots));
        }
        Ok(NewInode { ino, generation, dnode_slots })
    }

    fn how(&mut self) -> Result<SetXattr, NoRecord> {
        let [create, replace, kill_sgid] = self.flags()?;
        Ok(SetXattr { create, replace, kill_sgid })
    }

    fn range(&mut self) -> Result<Range<u64>, NoRecord> {
        let range = self.u64("range")?..self.u64("range")?;
        let is_possible = range.start < range.end && range.end <= FILE_SIZE_MAX;
        if is_possible {
            Ok(range)
        } else {
            Err(NoRecord::damaged("range", "one below 2^63", format_args!("{range:?}")))
        }
    }

    fn set_attr(&mut self) -> Result<SetAttr, NoRecord> {
        let [has_mode, has_uid, has_gid, has_size, kill_suidgid] = self.flags()?;
        let [has_atime, is_atime_at, has_mtime, is_mtime_at, has_ctime] = self.flags()?;
        let mut number = |has, what| if has { self.u32(what).map(Some) } else { Ok(None) };
        let (mode, uid, gid) =
            (number(has_mode, "mode")?, number(has_uid, "user")?, number(has_gid, "group")?);
        let size = if has_size { Some(self.u64("size")?) } else { None };
        let mut set_time = |has, is_at, what| match (has, is_at) {
            (true, true) => Ok(Some(SetTime::At(self.time(what)?))),
            (true, false) => Ok(Some(SetTime::Now)),
            (false, false) => Ok(None),
            (false, true) => Err(NoRecord::damaged("flags", "no time without its field", what)),
        };
        let atime = set_time(has_atime, is_atime_at, "access time")?;
        let mtime = set_time(has_mtime, is_mtime_at, "modification time")?;
        let ctime = if has_ctime { Some(self.time("change time")?) } else { None };
        Ok(SetAttr { mode, uid, gid, size, atime, mtime, ctime, kill_suidgid })
    }
}

#[cfg(test)]
mod tests;
