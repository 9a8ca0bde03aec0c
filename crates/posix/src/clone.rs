//! Copying ranges between files. Whole records share their blocks, so such a copy writes only pointers.
//!
//! A copy runs as several operations: pieces that share blocks, and pieces that copy bytes. Shared are records
//! at the same place in their records, of files with records of one size. Other parts are copied: ends that are
//! no whole records, and records that are not stored yet.

use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::State;
use crate::intents::Intent;
use crate::operation::{Change, Charges, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::record::Record;
use crate::types::{Cloned, FILE_SIZE_MAX, Ino, WriteFlags};
use crate::write::{CHUNK_BYTES, Write, edges_cost};
use smallvec::smallvec;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use terrane_dataset::Charge;
use terrane_object::shared::{ClonableRecords, SharedTable};
use terrane_txg::cost::Cost;

/// Records that one operation shares at most.
const PIECE_RECORDS: u64 = 1024;
/// After so long a copy returns what it has done, so that its caller can be interrupted.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Bytes on a dead list for a replaced record that a snapshot refers to.
const DEAD_ENTRY_BYTES: u64 = 32;
/// Entries of the table of shared blocks in one of its blocks, at least.
const LEAF_ENTRIES: u64 = 512;

/// Puts a piece of one file into another, in whole records.
#[derive(Clone)]
pub(crate) struct CloneRecords<'s> {
    /// The source's file system: a data set or a snapshot of the same pool.
    pub source: &'s Fs,
    pub from: Ino,
    pub to: Ino,
    /// Bytes of the source.
    pub range: Range<u64>,
    /// The first byte in the target.
    pub into: u64,
}

/// What can be cloned of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    record_bytes: u32,
    /// Records of the source.
    records: Range<u64>,
    /// The first record in the target.
    to: u64,
    /// Bytes of the files that the records hold.
    bytes: u64,
    /// The records are a hole.
    is_hole: bool,
}

/// Two files, and what a piece needs.
pub(crate) struct HeldClone<'f, 's> {
    source: InodeRef<'s>,
    target: InodeRef<'f>,
    /// Both are in one file system.
    is_within: bool,
    plan: Plan,
    /// Records of the plan that are taken.
    taken: ClonableRecords,
}

impl CloneRecords<'_> {
    /// What can be cloned of the range, from its start on. `None`: nothing.
    fn plan(
        &self,
        fs: &Fs,
        (source, source_bytes): (&InodeRef<'_>, u64),
        (target, target_bytes): (&InodeRef<'_>, u64),
    ) -> Result<Option<Plan>, Errno> {
        let (from, into) = (source.object(), target.object());
        let record_bytes = from.block_size();
        let record = u64::from(record_bytes);
        // A file's reservation counts the bytes of holes: writes settle that. What is reserved for a data set must be
        // enough to overwrite its data, and an overwritten or removed shared block stays.
        let may_share = SharedTable::is_in_force(fs.set.pool())
            && !target.has_reservation()
            && [fs, self.source].iter().all(|fs| !fs.dataset().branch().has_reserved_space());
        let is_aligned = self.range.start.is_multiple_of(record) && self.into.is_multiple_of(record);
        let is_fitting = into.block_size() == record_bytes || into.block_count() == 0;
        // A single record that is shorter than others grows with its file. Several of them would not.
        let is_single = record_bytes < fs.set.record_size() && from.block_count() <= 1;
        if !may_share || !is_aligned || !is_fitting || is_single && self.into > 0 {
            return Ok(None);
        }
        let end = self.range.end.min(source_bytes);
        let bytes = end.saturating_sub(self.range.start);
        let (mut records, rest) = (bytes / record, bytes % record);
        // Behind the end of both files a record holds zeros.
        if rest > 0 && end == source_bytes && self.into.saturating_add(bytes) >= target_bytes {
            records += 1;
        }
        let first = self.range.start / record;
        let data = from.next_data(self.range.start)?.map_or(u64::MAX, |at| at / record);
        let hole = data.saturating_sub(first).min(records);
        let is_hole = hole > PIECE_RECORDS;
        records = if is_hole { hole } else { records.min(PIECE_RECORDS) };
        let bytes = bytes.min(records.saturating_mul(record));
        let records = first..first + records;
        let plan = Plan { record_bytes, records, to: self.into / record, bytes, is_hole };
        Ok(Some(plan).filter(|plan| plan.bytes > 0))
    }
}

impl<'s> Operation for CloneRecords<'s> {
    type Held<'f> = HeldClone<'f, 's>;
    type Done = Cloned;
    /// `None`: bytes must be copied.
    type Answer = Option<Cloned>;

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldClone<'f, 's>, Option<Cloned>>, Errno> {
        let is_within = ptr::eq(fs, self.source);
        let (source, target) = (self.source.hold(self.from)?, fs.hold(self.to)?);
        let sizes = [&source, &target].map(|inode| inode.read().attrs.zpl.size);
        let [source_bytes, target_bytes] = sizes;
        let Some(plan) = self.plan(fs, (&source, source_bytes), (&target, target_bytes))? else {
            return Ok(HoldResult::NoChange(None));
        };
        let copies_max = (CHUNK_BYTES as u64 / u64::from(plan.record_bytes)).max(1);
        let taken = match plan.is_hole {
            true => {
                ClonableRecords { count: plan.records.end - plan.records.start, ..ClonableRecords::default() }
            }
            false => fs.set.clonable_records(source.object(), plan.records.clone(), copies_max)?,
        };
        if taken.copies == taken.count {
            return Ok(HoldResult::NoChange(None));
        }
        Ok(HoldResult::Held(HeldClone { source, target, is_within, plan, taken }))
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldClone<'_, 's>) -> Result<OperationCost<'h>, Errno> {
        let HeldClone { target, plan, taken, .. } = held;
        let ClonableRecords { count, copies, shared_bytes } = *taken;
        let needs = smallvec![(&target.claims, Need::attrs())];
        if plan.is_hole {
            return Ok(OperationCost { cost: edges_cost(target), needs });
        }
        let record = u64::from(plan.record_bytes);
        let data = self.into..self.into.saturating_add(count.saturating_mul(record));
        let file_bytes = data.end.max(target.object().block_count().saturating_mul(record));
        let need = Need::records(target.object(), data, plan.record_bytes, file_bytes);
        let pointer_blocks: u64 =
            need.pointer_blocks().map(|(_, indices)| indices.end() - indices.start() + 1).sum();
        // Blocks of neighbours are neighbours mostly, but each may be in another leaf.
        let leaves = count.min(fs.set.shared().leaf_count() + count / LEAF_ENTRIES + 2);
        let table = leaves + leaves / LEAF_ENTRIES + 8;
        let cost = Cost {
            write_bytes: copies.saturating_mul(record),
            meta_bytes: pointer_blocks
                .saturating_mul(need.pointer_block_bytes)
                .saturating_add(count.saturating_mul(DEAD_ENTRY_BYTES)),
            meta_blocks: u32::try_from(table).unwrap_or(u32::MAX),
            shared_bytes,
            ..Cost::NOTHING
        };
        Ok(OperationCost { cost, needs })
    }

    /// An owner is charged for shared blocks too.
    fn charges(&self, _: &Fs, held: &HeldClone<'_, 's>) -> Result<Charges, Errno> {
        let HeldClone { target, plan, taken, .. } = held;
        let copied = taken.copies.saturating_mul(plan.record_bytes.into());
        let bytes = taken.shared_bytes.saturating_add(copied);
        Ok(smallvec![Charge::of(target.read().owners(), bytes, 0)])
    }

    /// A source elsewhere is not locked, since numbers do not order the inodes of several file systems. Each record of a
    /// piece is as it was at some time of the copy. What its block is counted for does not depend on the lock: all
    /// operations of a txg end before the next txg opens, and the sync counts references and frees of one txg together.
    fn locks<'h>(held: &'h HeldClone<'_, 's>) -> Locks<'h> {
        if held.is_within { to_lock([&held.source, &held.target]) } else { to_lock([&held.target]) }
    }

    fn run<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &HeldClone<'f, 's>,
    ) -> Result<Outcome<Cloned>, Errno> {
        let (fs, tx) = (change.fs, change.tx);
        let HeldClone { source, target, is_within, plan, taken } = held;
        let source_bytes = if *is_within {
            file_bytes(change.locked.get(source.ino))?
        } else {
            // A copy in the other direction may hold that lock, and wait for ours.
            let Some(state) = source.try_read() else { return Ok(Outcome::Retry) };
            file_bytes(&state)?
        };
        let target_bytes = change.locked.get(target.ino).attrs.zpl.size;
        if self.plan(fs, (source, source_bytes), (target, target_bytes))?.as_ref() != Some(plan) {
            return Ok(Outcome::Retry);
        }
        let state = change.locked.get(target.ino);
        let bytes = plan.bytes.min(taken.count.saturating_mul(plan.record_bytes.into()));
        let end = self.into.checked_add(bytes).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        state.check_writable(self.into)?;
        let shared_bytes = if plan.is_hole {
            if self.into < target_bytes {
                target.object().zero_range(tx, self.into, end.min(target_bytes) - self.into)?;
            }
            0
        } else {
            if target.object().block_size() != plan.record_bytes {
                target.object().set_block_size(tx, plan.record_bytes)?;
            }
            let records = plan.records.start..plan.records.start + taken.count;
            let (from, to) = ((source.object(), records), (target.object(), plan.to));
            match fs.set.clone_records(tx, from, to, *taken)? {
                Some(cloned) => cloned.shared.saturating_mul(plan.record_bytes.into()).min(bytes),
                None => return Ok(Outcome::Retry),
            }
        };
        state.attrs.zpl.size = target_bytes.max(end);
        state.note_content_changed(change.now);
        target.clear_set_ids(state);
        // The source has not changed.
        fs.save(tx, target, state)?;
        Ok(Outcome::Saved(Cloned { bytes, shared_bytes }))
    }

    /// The source may be another one when it is replayed, except if all changes are replayed.
    fn intent(&self, _: &mut Change<'_, '_>, held: &HeldClone<'_, 's>, done: &Cloned) -> Intent<'_> {
        if !held.is_within {
            return Intent::Unrecorded(self.to);
        }
        let range = self.range.start..self.range.start + done.bytes;
        Intent::Kept(self.to, Record::Clone { ino: self.to, from: self.from, range, into: self.into })
    }

    fn end<'f>(
        &self,
        _: Change<'_, 'f>,
        _: &HeldClone<'f, 's>,
        done: Cloned,
    ) -> Result<Option<Cloned>, Errno> {
        Ok(Some(done))
    }
}

/// The size of a file.
fn file_bytes(state: &State) -> Result<u64, Errno> {
    state.check_file()?;
    Ok(state.attrs.zpl.size)
}

impl Fs {
    /// Copies bytes and returns their number, as [`clone_range`](Self::clone_range) does.
    pub fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        Ok(self.clone_range(from, from_offset, to, to_offset, len)?.bytes)
    }

    /// Copies bytes, and shares the blocks of whole records where it can. Less than `len` is copied at the end of
    /// `from`, if the pool is full, or after a second. `EINVAL`: the ranges overlap in one file.
    pub fn clone_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<Cloned, Errno> {
        self.clone_range_from(self, (from, from_offset), to, to_offset, len)
    }

    /// The same from a file of another data set or of a snapshot. `EXDEV`: it is in another pool.
    pub fn clone_range_from(
        &self,
        source_fs: &Fs,
        (from, from_offset): (Ino, u64),
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<Cloned, Errno> {
        if !Arc::ptr_eq(self.set.pool(), source_fs.set.pool()) {
            return Err(Errno::EXDEV);
        }
        let source = source_fs.hold(from)?;
        source.read().check_file()?;
        let target = self.hold(to)?;
        target.read().check_file()?;
        let is_within = ptr::eq(self, source_fs);
        if is_within && from == to && from_offset.abs_diff(to_offset) < len {
            return Err(Errno::EINVAL);
        }
        // By the current size: within one file the copy itself may move the end.
        let len = len.min(source.read().attrs.zpl.size.saturating_sub(from_offset));
        let begun = self.monotonic_ns();
        let (mut done, mut data) = (Cloned::default(), Vec::new());
        while done.bytes < len {
            let (Some(at), Some(into)) =
                (from_offset.checked_add(done.bytes), to_offset.checked_add(done.bytes))
            else {
                break;
            };
            let range = at..at.saturating_add(len - done.bytes);
            match self.clone_piece(source_fs, (&source, range), (&target, into), &mut data) {
                Ok(piece) if piece.bytes == 0 => break,
                Ok(piece) => {
                    done.bytes += piece.bytes;
                    done.shared_bytes += piece.shared_bytes;
                }
                Err(_) if done.bytes > 0 => break,
                Err(errno) => return Err(errno),
            }
            if self.monotonic_ns().saturating_sub(begun) > PATIENCE_NS {
                break;
            }
        }
        if done.shared_bytes > 0 {
            source_fs.note_access(&source);
        }
        if !is_within && done.bytes > 0 && self.intents.keeps_changes() {
            // What was taken from another file system, blocks or holes, is kept nowhere.
            self.set.commit()?;
        }
        Ok(done)
    }

    /// Clones or copies the beginning of a range.
    fn clone_piece(
        &self,
        source_fs: &Fs,
        (source, range): (&InodeRef<'_>, Range<u64>),
        (target, into): (&InodeRef<'_>, u64),
        data: &mut Vec<u8>,
    ) -> Result<Cloned, Errno> {
        let (from, to) = (source.ino, target.ino);
        let clone = CloneRecords { source: source_fs, from, to, range: range.clone(), into };
        if let Some(cloned) = self.execute(&clone)? {
            return Ok(cloned);
        }
        let record = u64::from(source.object().block_size());
        let mut step = (range.end - range.start).min(CHUNK_BYTES as u64);
        // To the next record, if what follows may be shared.
        let inside = into % record;
        if inside > 0 && range.start % record == inside {
            step = step.min(record - inside);
        }
        data.clear();
        source_fs.read(from, range.start, u32::try_from(step).unwrap_or(u32::MAX), data)?;
        if data.is_empty() {
            return Ok(Cloned::default());
        }
        let flags = WriteFlags { kill_suidgid: true, ..WriteFlags::default() };
        let bytes = self.execute(&Write { ino: to, offset: into, data, flags })? as u64;
        Ok(Cloned { bytes, shared_bytes: 0 })
    }
}
