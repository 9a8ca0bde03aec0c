//! Replay: changes that the intent log has, and that no commit contains, are made again.
//!
//! A replay runs the operations of the records in the order of their numbers. It gives them the time of the first
//! time, and new inodes their numbers and generations, so that programs see the same inodes. What was checked when the
//! change was made is not checked again: limits, quotas, `readonly`.
//!
//! It runs on an `Fs` of its own, which destroys no inode. An inode that loses its last name waits in the delete
//! queue, so a later record may still name it. The mount that follows destroys it, or keeps it if it takes over a mount
//! that may have it open.
//!
//! Nothing is durable before the caller commits. So after a crash in a replay, the next one finds the same state.

use crate::acl::Acl;
use crate::acl_files::{AclKind, SetAcl};
use crate::clone::CloneRecords;
use crate::create::{CreateFile, CreateTmpfile};
use crate::entry_words::SetEntryWords;
use crate::errno::Errno;
use crate::file::StoreAccessTime;
use crate::fs::Fs;
use crate::hint::SetHint;
use crate::inode_flags::{InodeFlags, SetInodeFlags};
use crate::intents::NoLog;
use crate::link::{Link, Remove};
use crate::mount::Opening;
use crate::operation::{Given, Operation, PART_OF_A_CHANGE};
use crate::record::{NewInode, NoRecord, Record};
use crate::rename::Rename;
use crate::reserve::Reserve;
use crate::setattr::SetAttributes;
use crate::types::{Ino, Time, WriteFlags};
use crate::write::{CHUNK_BYTES, TruncateOnOpen, Write, ZeroRange};
use crate::xattr::{PutXattr, RemoveXattr};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_dataset::{Dataset, DatasetError};
use terrane_format::log::Frame;
use terrane_txg::cost::Cost;
use terrane_wire::{Txg, Writer};

/// What a replay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Changes that were made again.
    pub records: u64,
    /// Records of changes that a commit contains.
    pub skipped: u64,
    /// The open txg has all of it. False: the pool committed a part meanwhile, and a crash now would lose the rest.
    pub is_whole: bool,
}

/// Why a replay has stopped. The changes before are made, and must not be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayError {
    /// Path of the data set.
    pub dataset: String,
    /// Number of the record in the order of changes.
    pub change: u64,
    /// Txg of the change.
    pub txg: Txg,
    /// What is wrong.
    pub cause: ReplayCause,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayCause {
    /// A newer version wrote it.
    UnknownFeature {
        /// The kind of the record.
        kind: u8,
    },
    /// Its bytes do not parse, although their checksum is right.
    Damaged {
        /// A field.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// It does not fit the state that the records before it lead to.
    Unfit {
        /// The change.
        record: String,
        /// The state that it needs.
        expected: String,
        /// The state.
        found: String,
    },
    /// It may succeed at another time: a device does not answer, or there is no space.
    Failed {
        /// The change.
        record: String,
        /// The error.
        errno: Errno,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data set '{}', intent record {} of txg {}: ", self.dataset, self.change, self.txg)?;
        match &self.cause {
            ReplayCause::UnknownFeature { kind } => {
                write!(
                    f,
                    "unknown feature: kind {kind}; import the pool with a newer version, or discard its log"
                )
            }
            ReplayCause::Damaged { what, expected, found } => {
                write!(f, "{what} should be {expected}, found {found}")
            }
            ReplayCause::Unfit { record, expected, found } => {
                write!(f, "{record}: expected {expected}, found {found}")
            }
            ReplayCause::Failed { record, errno } => write!(f, "{record}: failed with {errno}"),
        }
    }
}

impl std::error::Error for ReplayError {}

impl ReplayError {
    /// Whether it is the same at every try.
    pub fn is_unfit(&self) -> bool {
        !matches!(self.cause, ReplayCause::Failed { .. })
    }
}

impl From<NoRecord> for ReplayCause {
    fn from(error: NoRecord) -> Self {
        match error {
            NoRecord::UnknownKind(kind) => ReplayCause::UnknownFeature { kind },
            NoRecord::Damaged { what, expected, found } => ReplayCause::Damaged { what, expected, found },
        }
    }
}

/// A record, and the frame that it came in.
pub(crate) struct Parsed<'a> {
    frame: Frame<'a>,
    now: Time,
    record: Record<'a>,
}

impl Parsed<'_> {
    /// Inodes that the record changes.
    pub fn inodes(&self) -> Vec<Ino> {
        self.record.inodes()
    }

    /// Slots that the inode of the record must get, if it creates one.
    pub fn slots(&self) -> impl Iterator<Item = u64> {
        self.record.new_inode().into_iter().flat_map(slots_of)
    }
}

/// The inodes that a record is about. None: its bytes do not parse.
pub fn inodes_of_record(body: &[u8]) -> Vec<Ino> {
    Record::parse(body).map(|(_, record)| record.inodes()).unwrap_or_default()
}

/// A record written again from what its bytes mean. `None`: they do not parse.
pub fn rewritten_record(body: &[u8]) -> Option<Vec<u8>> {
    let (now, record) = Record::parse(body).ok()?;
    let mut writer = Writer::new();
    record.write(now, &mut writer);
    let mut raw = writer.into_bytes();
    if Record::was_without_acls(body) {
        Record::mark_without_acls(&mut raw);
    }
    Some(raw)
}

impl Fs {
    /// Opens a formatted data set for [`replay`](Self::replay) alone. Commit and drop it before the data set is opened
    /// again.
    pub fn open_to_replay(dataset: Arc<Dataset>) -> Result<Arc<Fs>, DatasetError> {
        let log = Some(Box::new(NoLog) as _);
        Fs::open_as(dataset, Opening { is_replaying: true, log, ..Opening::default() })
    }

    /// Makes the changes again that these records have of this data set, except those until txg `after`, which the
    /// imported state contains. The records may be in any order, and of several data sets.
    ///
    /// All of it must become durable in one commit, or else a crash between two commits would leave a state in which
    /// some changes are made twice. So the pool must not commit meanwhile.
    ///
    /// # Errors
    /// A record is damaged or does not fit. Nothing may be committed then.
    ///
    /// # Panics
    /// If this was not opened with [`open_to_replay`](Self::open_to_replay).
    pub fn replay(&self, records: &[Frame<'_>], after: Txg) -> Result<Replayed, ReplayError> {
        assert!(self.is_replaying, "it has an Fs of its own");
        let mine = || records.iter().filter(|frame| frame.set == self.set.id());
        let mut order: Vec<Frame<'_>> = mine().filter(|frame| frame.txg > after).copied().collect();
        order.sort_unstable_by_key(|frame| frame.change);
        let twice = order.iter().zip(order.iter().skip(1)).find(|(one, two)| one.change == two.change);
        if let Some((frame, _)) = twice {
            let (expected, found) = ("that of one record".to_string(), frame.change.to_string());
            return Err(self.stopped(*frame, ReplayCause::Damaged { what: "number", expected, found }));
        }
        let parsed: Vec<Parsed<'_>> =
            order.iter().map(|frame| self.parse_record(*frame)).collect::<Result<_, _>>()?;
        // Operations also create objects that have no record, such as values of extended attributes. Those must not
        // take the number of an inode that is created later.
        let txg = self.set.open_txg();
        let slots = || parsed.iter().flat_map(Parsed::slots);
        self.set.withhold_slots(slots());
        let outcome = parsed.iter().try_for_each(|change| self.replay_one(change));
        self.set.release_slots(slots());
        outcome?;
        let count = parsed.len() as u64;
        let is_whole = self.set.open_txg() == txg;
        Ok(Replayed { records: count, skipped: mine().count() as u64 - count, is_whole })
    }

    pub(crate) fn parse_record<'a>(&self, frame: Frame<'a>) -> Result<Parsed<'a>, ReplayError> {
        match Record::parse(frame.body) {
            Ok((now, record)) => Ok(Parsed { frame, now, record }),
            Err(error) => Err(self.stopped(frame, error.into())),
        }
    }

    fn stopped(&self, frame: Frame<'_>, cause: ReplayCause) -> ReplayError {
        let dataset = self.dataset().branch().path();
        ReplayError { dataset, change: frame.change, txg: frame.txg, cause }
    }

    pub(crate) fn replay_one(&self, Parsed { frame, now, record }: &Parsed<'_>) -> Result<(), ReplayError> {
        self.had_acls.store(!Record::was_without_acls(frame.body), Ordering::Relaxed);
        let unfit = |found: String| ReplayCause::Unfit {
            record: record.to_string(),
            expected: needed_by(record),
            found,
        };
        let cause = match self.find_unfit(record) {
            Ok(Some(found)) => unfit(found),
            Ok(None) => match self.make_again((*now, frame.change), record) {
                Ok(()) => return Ok(()),
                Err(errno @ (Errno::EIO | Errno::ENOSPC | Errno::EROFS)) => {
                    ReplayCause::Failed { record: record.to_string(), errno }
                }
                Err(Errno::EBUSY) if record.new_inode().is_some() => unfit("its number taken".to_string()),
                Err(errno) => unfit(errno.to_string()),
            },
            Err(errno) => ReplayCause::Failed { record: record.to_string(), errno },
        };
        Err(self.stopped(*frame, cause))
    }

    /// Whether a name belongs to another inode than the record says.
    fn find_unfit(&self, record: &Record<'_>) -> Result<Option<String>, Errno> {
        let (dir, name, ino) = match record {
            Record::Remove { dir, name, ino, .. } => (dir, name, ino),
            Record::Rename { dir, name, moved, .. } => (dir, name, moved),
            _ => return Ok(None),
        };
        let found = match self.hold(*dir) {
            Ok(dir) => dir.read().find(name),
            Err(errno) => Err(errno),
        };
        match found {
            Ok(Some(child)) if child.ino == *ino => Ok(None),
            Ok(Some(child)) => Ok(Some(format!("inode {} under that name", child.ino))),
            Ok(None) => Ok(Some("no such name".to_string())),
            Err(errno @ (Errno::ESTALE | Errno::ENOTDIR)) => Ok(Some(format!("{errno} of the directory"))),
            Err(errno) => Err(errno),
        }
    }

    /// Carries out one operation at the time of its first time.
    fn again<O: Operation>(
        &self,
        (now, change): (Time, u64),
        operation: &O,
        new: Option<NewInode>,
    ) -> Result<O::Answer, Errno> {
        self.execute_as(operation, Some(Given { now, new, change }))
    }

    fn make_again(&self, now: (Time, u64), record: &Record<'_>) -> Result<(), Errno> {
        match *record {
            Record::CreateFile { dir, name, words, file, new } => {
                let made = self.again(now, &CreateFile { dir, name, file, words }, Some(new))?;
                self.forget(made.ino, 1);
            }
            Record::CreateTmpfile { dir, file, new } => {
                let made = self.again(now, &CreateTmpfile { dir, file }, Some(new))?;
                self.forget(made.ino, 1);
            }
            Record::Link { ino, dir, name, words } => {
                self.again(now, &Link { ino, dir, name, words }, None)?;
                self.forget(ino, 1);
            }
            Record::Remove { dir, name, wants_dir, .. } => {
                self.again(now, &Remove { dir, name, wants_dir }, None)?;
            }
            Record::Rename { dir, name, new_dir, new_name, flags, whiteout, .. } => {
                let (cred, new) = whiteout.unzip();
                self.again(now, &Rename { dir, name, new_dir, new_name, flags, whiteout: cred }, new)?;
            }
            Record::SetAttributes { ino, ref set } => {
                self.again(now, &SetAttributes { ino, set }, None)?;
                if set.uid.is_some() || set.gid.is_some() {
                    self.move_owners_again(ino);
                }
            }
            Record::PutXattr { ino, name, value, how, placement } => {
                self.again(now, &PutXattr { ino, name, value, how, placement }, None)?;
            }
            Record::RemoveXattr { ino, name } => {
                self.again(now, &RemoveXattr { ino, name }, None)?;
            }
            Record::SetAcl { ino, is_default, ref acl, kill_sgid } => {
                let acl = acl.as_deref().map_or(Ok(None), Acl::parse)?;
                self.again(now, &SetAcl { ino, kind: AclKind::new(is_default), acl, kill_sgid }, None)?;
            }
            Record::SetInodeFlags { ino, flags, project } => {
                let flags = InodeFlags::from_bits(flags);
                self.again(now, &SetInodeFlags { ino, flags, project }, None)?;
                if project.is_some() {
                    self.move_owners_again(ino);
                }
            }
            Record::SetHint { ino, hint, as_xattr } => {
                self.again(now, &SetHint { ino, hint, as_xattr }, None)?;
            }
            Record::SetEntryWords { dir, name, words } => {
                self.again(now, &SetEntryWords { dir, name, words }, None)?;
            }
            Record::Write { ino, offset, data, kill_suidgid } => {
                let flags = WriteFlags { kill_suidgid, ..WriteFlags::default() };
                self.check_is_file(ino)?;
                self.again(now, &Write { ino, offset, data, flags }, None)?;
            }
            Record::TruncateOnOpen { ino } => {
                self.again(now, &TruncateOnOpen { ino }, None)?;
            }
            Record::ZeroRange { ino, ref range, punches, keeps_size } => {
                self.check_is_file(ino)?;
                self.again(now, &ZeroRange { ino, range: range.clone(), punches, keeps_size }, None)?;
            }
            Record::Reserve { ino, ref range, extends } => {
                self.check_is_file(ino)?;
                self.again(now, &Reserve { ino, range: range.clone(), extends }, None)?;
            }
            Record::StoreAccessTime { ino, at } => {
                self.again(now, &StoreAccessTime { ino, at }, None)?;
            }
            Record::Clone { ino, from, ref range, into } => {
                self.check_is_file(ino)?;
                self.clone_again(now, (from, range.clone()), (ino, into))?;
            }
        }
        Ok(())
    }

    /// What can be shared may be less or more than at first. The bytes are the same.
    fn clone_again(
        &self,
        now: (Time, u64),
        (from, range): (Ino, Range<u64>),
        (ino, into): (Ino, u64),
    ) -> Result<(), Errno> {
        // A piece is not the whole change: it is noted at the end.
        let (piece, mut at) = ((now.0, PART_OF_A_CHANGE), range.start);
        while at < range.end {
            let into = into + (at - range.start);
            let clone = CloneRecords { source: self, from, to: ino, range: at..range.end, into };
            let done = match self.again(piece, &clone, None)? {
                Some(cloned) => cloned.bytes,
                None => {
                    let mut data = Vec::new();
                    let len = (range.end - at).min(CHUNK_BYTES as u64);
                    self.read(from, at, u32::try_from(len).unwrap_or(u32::MAX), &mut data)?;
                    let write = Write { ino, offset: into, data: &data, flags: WriteFlags::default() };
                    self.again(piece, &write, None)? as u64
                }
            };
            // The source is as long as it was.
            if done == 0 {
                return Err(Errno::EINVAL);
            }
            at += done;
        }
        let tx = self.begin(Cost::NOTHING, &[])?;
        tx.pool().note_replayed(&tx, now.1);
        Ok(())
    }

    fn check_is_file(&self, ino: Ino) -> Result<(), Errno> {
        self.hold(ino)?.read().check_file()
    }

    fn move_owners_again(&self, ino: Ino) {
        if let Err(errno) = self.move_xattr_owners(ino) {
            log::warn!("object {ino}: some extended attributes still count for the old owners: {errno}");
        }
    }
}

fn slots_of(new: NewInode) -> Range<u64> {
    new.ino..new.ino.saturating_add(new.dnode_slots.into())
}

/// The state that a change needs.
fn needed_by(record: &Record<'_>) -> String {
    let needed = match record {
        Record::CreateFile { .. } => "the directory without that name, and the number free",
        Record::CreateTmpfile { .. } => "the directory, and the number free",
        Record::Link { .. } => "the directory without that name, and the inode",
        Record::Remove { .. } | Record::Rename { .. } => "this inode under that name, and the directory",
        Record::RemoveXattr { .. } => "the inode with that attribute",
        Record::SetEntryWords { .. } => "the directory with that name",
        Record::Write { .. }
        | Record::TruncateOnOpen { .. }
        | Record::ZeroRange { .. }
        | Record::Clone { .. }
        | Record::Reserve { .. } => "a regular file that may be changed",
        Record::SetAttributes { .. }
        | Record::PutXattr { .. }
        | Record::SetAcl { .. }
        | Record::SetInodeFlags { .. }
        | Record::SetHint { .. }
        | Record::StoreAccessTime { .. } => "an inode of a fitting type that may be changed",
    };
    needed.to_string()
}

#[cfg(test)]
mod tests;
