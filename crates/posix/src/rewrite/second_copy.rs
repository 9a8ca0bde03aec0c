//! Rewriting a large file in records of another size: a second copy is filled piece by piece, then the trees
//! are exchanged.
//!
//! The copy proceeds in *rounds*. The first copies everything. Each later one copies what changed during the
//! one before, as the births in the tree's pointers tell. So writers do no extra work, no state is kept in
//! memory, and a crash loses at most the last txg. When little is left, it is copied under the file's lock, and
//! the trees are exchanged in the same txg. The old tree is then freed like any other.
//!
//! It is a second tree, not one tree with two record sizes, because the file stays intact until the exchange. A
//! failed copy costs only space and time. The space is checked before a file is begun, and freed when it
//! becomes scarce.
//!
//! The second copy is in the delete queue from its first txg on. So a version or mount that does not know the
//! job destroys it. Its blocks carry the file's object number.
//!
//! Invariants:
//! * A round copies only what was synced before the txg that stores it. A change that is undone in its own txg
//!   leaves no birth by which it could be found.
//! * Changes since txg `until` are copied again, by the next round.

use crate::attr::encode_time;
use crate::claims::{FREES, Need, UNLINKED};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::jobs::{CopyProgress, RewriteFigures, SecondCopy, WalkFile};
use crate::types::{FILE_SIZE_MAX, Ino, mode};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_object::object::ChangedRanges;
use terrane_object::{Object, ObjectError, ObjectKind, ObjectSpec};
use terrane_pool::Tx;
use terrane_sa::ZplAttrs;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};

/// Bytes copied in one step, or one record if it is larger. At most a quarter of what is rewritten at once.
const PIECE_BYTES: u64 = 4 << 20;
/// Bytes that the last copy may dirty: they fit beside other changes even with the least memory.
const LAST_COST_MAX: u64 = 24 << 20;
/// Records that may be copied under the lock, whatever their size.
const LAST_RECORDS_MIN: u64 = 4;
/// Every so many rounds, four times as much may be copied under the lock, at most twice. After `ROUNDS_MAX`
/// rounds the file is skipped.
const ROUNDS_PER_INCREASE: u64 = 6;
const ROUNDS_MAX: u64 = 24;
/// Free bytes required to begin a file, beside 1.25 times its size: records of another size may compress less.
const SPARE_BYTES: u64 = 8 << 20;
/// Indirect blocks that change where a hole begins and ends.
const META_BLOCKS_OF_A_HOLE: u32 = 4;
/// Indirect blocks above a record that no other change dirties, except the topmost.
const LEVELS: u64 = 3;

/// Records with their content, without trailing zeros.
type Blocks = Vec<(u64, Vec<u8>)>;

/// Records to copy, and ranges of records to free.
#[derive(Default)]
struct CopyPlan {
    records: BTreeSet<u64>,
    freed: Vec<Range<u64>>,
}

impl CopyPlan {
    /// Adds the records of this size that hold changes. Holes count only if `target` has data there.
    fn add(&mut self, changes: &ChangedRanges, record_bytes: u64, target: &Object) -> Result<(), Errno> {
        for range in &changes.written {
            self.records.extend(range.start / record_bytes..range.end.div_ceil(record_bytes));
        }
        for range in &changes.holes {
            let whole = range.start.div_ceil(record_bytes)..range.end / record_bytes;
            // A record that is partly a hole keeps its other bytes, so it is copied.
            self.records.extend((range.start % record_bytes != 0).then_some(range.start / record_bytes));
            let end = range.end / record_bytes;
            let is_cut = range.end != u64::MAX && range.end % record_bytes != 0;
            self.records.extend(is_cut.then_some(end));
            let found = target.next_data(whole.start.saturating_mul(record_bytes))?;
            if found.is_some_and(|at| at / record_bytes < whole.end) {
                self.freed.push(whole);
            }
        }
        Ok(())
    }

    /// Keeps `most` records from record `from` on. Returns the first omitted one; `u64::MAX`: none.
    fn cut(&mut self, from: u64, most: u64) -> u64 {
        self.records = self.records.split_off(&from);
        let behind = self.records.iter().nth(usize::try_from(most).unwrap_or(usize::MAX)).copied();
        let to = behind.unwrap_or(u64::MAX);
        self.records.split_off(&to);
        for range in &mut self.freed {
            *range = range.start.max(from)..range.end.min(to);
        }
        self.freed.retain(|range| range.start < range.end);
        to
    }
}

/// Result of trying to finish a copy.
enum ExchangeResult {
    Done,
    /// Too much has changed meanwhile.
    NeedsRound,
}

impl Fs {
    /// Advances a copy. True: the file is done.
    pub(super) fn advance_copy(
        &self,
        inode: &InodeRef<'_>,
        file: &mut WalkFile,
        bytes: u32,
        figures: &mut RewriteFigures,
    ) -> Result<bool, Errno> {
        let outcome = self.copy_step(inode, file, bytes, figures);
        if !matches!(outcome, Err(Errno::ENOSPC | Errno::EDQUOT)) {
            return outcome;
        }
        // Other writers used the space, and half a copy is useless.
        let stored_bytes = inode.object().used_bytes();
        log::warn!(
            "rewrite skipped {}: the pool or a quota became full while it was copied into records of {bytes} bytes. \
             Free about {stored_bytes} bytes and run the same command again",
            self.path_of(inode.ino)
        );
        figures.no_room += 1;
        self.finish_file(file, stored_bytes, figures);
        Ok(true)
    }

    /// Ends work on a file that took `stored_bytes`, and destroys its copy if there is one.
    fn finish_file(&self, file: &mut WalkFile, stored_bytes: u64, figures: &mut RewriteFigures) {
        figures.stored_bytes += stored_bytes.saturating_sub(file.copy_progress.counted);
        self.abandon_copy(file);
    }

    fn copy_step(
        &self,
        inode: &InodeRef<'_>,
        file: &mut WalkFile,
        bytes: u32,
        figures: &mut RewriteFigures,
    ) -> Result<bool, Errno> {
        if file.second_copy.is_none() {
            file.second_copy =
                self.open_copy(&file.copy_progress, bytes).map(|object| SecondCopy::new(object, inode));
        }
        // A file with a reused number is another file. The old content must not show through its holes.
        if inode.object().birth() > Txg(file.copy_progress.birth) {
            file.second_copy = None;
        }
        let Some(copy) = file.second_copy.as_mut() else {
            if file.copy_progress.object != 0 {
                self.abandon_copy(file);
            }
            return self.begin_copy(inode, file, bytes, figures);
        };
        if copy.object.birth() != Txg(file.copy_progress.birth) {
            // The copy lost changes of a txg; the log has the reason.
            return Err(Errno::EIO);
        }
        if file.copy_progress.until == 0 {
            // All changes of earlier txgs must be in the tree.
            let tx = self.begin_with_cursor(&self.rewriting.cursor, &[])?;
            self.wait_for_sync(&tx)?;
            (file.copy_progress.until, file.record, copy.copied) = (tx.txg().0, 0, 0);
            return Ok(false);
        }
        let object = inode.object();
        let stored_bytes = object.used_bytes();
        let piece_bytes = PIECE_BYTES.min(self.at_once_bytes() / 4).max(bytes.into());
        let changes = object.changes_since(Txg(file.copy_progress.since), file.record, piece_bytes)?;
        let from = file.record;
        let copied = self.copy_piece(inode, copy, &changes, from, piece_bytes)?;
        file.record = copied.to;
        copy.copied = copy.copied.saturating_add(copied.bytes);
        if file.copy_progress.rounds == 0 {
            let size = inode.read().attrs.zpl.size.max(1);
            let share =
                |at: u64| (u128::from(stored_bytes) * u128::from(at.min(size)) / u128::from(size)) as u64;
            let more = share(file.record).saturating_sub(share(from));
            file.copy_progress.counted += more;
            figures.stored_bytes += more;
            figures.logical_bytes += copied.bytes;
        }
        if file.record != u64::MAX {
            return Ok(false);
        }
        let last_bytes = self.last_copy_bytes(file.copy_progress.rounds, bytes);
        if (copy.copied <= last_bytes || file.copy_progress.rounds == 0)
            && let ExchangeResult::Done = self.try_exchange(inode, copy, &file.copy_progress, last_bytes)?
        {
            figures.reshaped += 1;
            self.finish_file(file, stored_bytes, figures);
            return Ok(true);
        }
        (file.copy_progress.since, file.copy_progress.until) = (file.copy_progress.until, 0);
        file.copy_progress.rounds += 1;
        if file.copy_progress.rounds <= ROUNDS_MAX {
            return Ok(false);
        }
        log::warn!(
            "rewrite skipped {}: it changes faster than it is copied into records of {bytes} bytes. \
             Run the same command again when less is written to it",
            self.path_of(inode.ino)
        );
        figures.busy += 1;
        self.finish_file(file, stored_bytes, figures);
        Ok(true)
    }

    /// Bytes that may be copied under the lock; more in later rounds.
    fn last_copy_bytes(&self, rounds: u64, bytes: u32) -> u64 {
        let shift = 2 * (rounds / ROUNDS_PER_INCREASE).min(2);
        (self.at_once_bytes() << shift).max(LAST_RECORDS_MIN * u64::from(bytes))
    }

    fn wait_for_sync(&self, tx: &Tx) -> Result<(), Errno> {
        Ok(tx.pool().wait_for_sync().map_err(terrane_object::ObjectError::from)?)
    }

    /// The second copy that a job names, if it matches the job.
    fn open_copy(&self, progress: &CopyProgress, bytes: u32) -> Option<Arc<Object>> {
        let object = self.set.hold(ObjectId(progress.object)).ok().filter(|_| progress.object != 0)?;
        // After the exchange it has the old records, and is useless.
        let is_match = object.birth() == Txg(progress.birth)
            && object.block_size() == bytes
            && object.kind() == ObjectKind::File;
        is_match.then_some(object)
    }

    fn begin_copy(
        &self,
        inode: &InodeRef<'_>,
        file: &mut WalkFile,
        bytes: u32,
        figures: &mut RewriteFigures,
    ) -> Result<bool, Errno> {
        let used = inode.object().used_bytes();
        let usage = self.set.usage();
        let last = last_copy_limit(inode.object(), bytes, self.last_copy_bytes(0, bytes)).1;
        let wanted =
            used + used / 4 + SPARE_BYTES.min(usage.size_bytes / 64) + last.write_bytes + 2 * last.meta_bytes;
        if usage.available_bytes < wanted {
            log::warn!(
                "rewrite skipped {}: a copy in records of {bytes} bytes needs {wanted} bytes, {} are free. \
                 Free space and run the same command again",
                self.path_of(inode.ino),
                usage.available_bytes
            );
            figures.no_room += 1;
            figures.stored_bytes += used;
            return Ok(true);
        }
        let new = (&self.claims_of_new, Need::attrs());
        let cursor = &self.rewriting.cursor;
        let tx = self.begin(UNLINKED, &[self.unlinked.need(), new, cursor.need()])?;
        cursor.note_reserved(&tx);
        let now = encode_time(self.now());
        // The size is larger than any that it may get: the file's final size is not known yet.
        let zpl = ZplAttrs {
            mode: u64::from(mode::S_IFREG | 0o600),
            size: FILE_SIZE_MAX,
            generation: tx.txg().0,
            parent: inode.ino,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links: 0,
            ..ZplAttrs::default()
        };
        let bonus_max = terrane_object::dnode::Dnode::bonus_max(1);
        let encoded = self.layouts.encode(&tx, &zpl.to_list(), bonus_max)?;
        let bonus = encoded.bonus.as_bytes().to_vec();
        let kind = ObjectKind::File;
        let object = self
            .set
            .create(&tx, ObjectSpec { kind, block_size: bytes, dnode_slots: 1, bonus, spill: None })?;
        let number = object.id().0;
        self.claim_new(&tx, number);
        // Before it is in the queue: objects in the queue are destroyed.
        self.rewriting.copy_object.store(number, Ordering::Release);
        self.unlinked.add(number);
        file.copy_progress = CopyProgress { object: number, birth: tx.txg().0, ..CopyProgress::default() };
        // In the txg that creates it. Otherwise a successor would take it for an unlinked file that is still
        // open.
        if let Some(running) = self.rewriting.running.lock().as_mut() {
            let position = &mut running.job.position;
            (position.file, position.record, position.copy_progress) = (inode.ino, 0, file.copy_progress);
        }
        file.second_copy = Some(SecondCopy::new(object, inode));
        Ok(false)
    }

    /// Copies one piece of the changes.
    fn copy_piece(
        &self,
        inode: &InodeRef<'_>,
        copy: &SecondCopy,
        changes: &ChangedRanges,
        from: u64,
        piece_bytes: u64,
    ) -> Result<CopiedPiece, Errno> {
        let record_bytes = u64::from(copy.object.block_size());
        let mut plan = CopyPlan::default();
        plan.add(changes, record_bytes, &copy.object)?;
        let to = plan.cut(from / record_bytes, (piece_bytes / record_bytes).max(1));
        // Before joining a txg, so that nothing is copied that a later txg wrote.
        let mut blocks = Vec::with_capacity(plan.records.len());
        let records: Vec<u64> = std::mem::take(&mut plan.records).into_iter().collect();
        read_records(
            inode.object(),
            Version::Synced,
            record_bytes,
            &records,
            (&mut blocks, &mut plan.freed),
        )?;
        let bytes = (blocks.len() as u64).saturating_mul(record_bytes);
        let to = to.saturating_mul(record_bytes).min(changes.scanned_to);
        let freed = ranges_with_data(&copy.object, record_bytes, plan.freed)?;
        if blocks.is_empty() && freed.is_empty() {
            return Ok(CopiedPiece { to, bytes });
        }
        let file_bytes = inode.read().attrs.zpl.size;
        let record = copy.object.block_size();
        let need = |data| (&copy.claims, Need::records(&copy.object, data, record, file_bytes));
        let mut needs: Vec<_> = runs_of(blocks.iter().map(|(block, _)| *block))
            .map(|run| need(run.start * record_bytes..run.end * record_bytes))
            .collect();
        needs.push((&copy.claims, Need::attrs()));
        let edges = u32::try_from(freed.len()).unwrap_or(u32::MAX).saturating_mul(META_BLOCKS_OF_A_HOLE);
        let cursor = &self.rewriting.cursor;
        needs.push(cursor.need());
        let tx = self.begin(Cost { meta_blocks: edges, ..Cost::NOTHING }, &needs)?;
        cursor.note_reserved(&tx);
        copy.object.put_blocks(&tx, &freed, blocks)?;
        Ok(CopiedPiece { to, bytes })
    }

    /// Copies the rest, and exchanges the trees.
    fn try_exchange(
        &self,
        inode: &InodeRef<'_>,
        copy: &SecondCopy,
        progress: &CopyProgress,
        last_bytes: u64,
    ) -> Result<ExchangeResult, Errno> {
        let (object, target) = (inode.object(), &copy.object);
        let record_bytes = u64::from(target.block_size());
        let (most, cost) = last_copy_limit(target, target.block_size(), last_bytes);
        let scan_bytes = last_bytes.max(LAST_RECORDS_MIN * u64::from(object.block_size()));
        let plan = || -> Result<Option<CopyPlan>, Errno> {
            let changes = object.changes_since(Txg(progress.until), 0, scan_bytes)?;
            if changes.scanned_to != u64::MAX {
                return Ok(None);
            }
            let mut plan = CopyPlan::default();
            plan.add(&changes, record_bytes, target)?;
            plan.add(&object.unsynced_changes(), record_bytes, target)?;
            // Each freed range changes indirect blocks, as a record does.
            let is_small = (plan.records.len() + plan.freed.len()) as u64 <= most;
            Ok(is_small.then_some(plan))
        };
        // Once before joining the txg, to bring cold records into the cache. Otherwise a sync would wait while
        // they are read.
        let Some(preview) = plan()? else { return Ok(ExchangeResult::NeedsRound) };
        for record in preview.records {
            let _state = inode.read();
            let discarded = (&mut Vec::new(), &mut Vec::new());
            read_records(object, Version::Newest, record_bytes, &[record], discarded)?;
        }
        let (needs, cursor) = ([&inode.claims, &copy.claims], &self.rewriting.cursor);
        let needs = needs.map(|claims| (claims, Need::attrs()));
        let tx = self.begin(cost, &[needs[0].clone(), needs[1].clone(), cursor.need()])?;
        cursor.note_reserved(&tx);
        self.wait_for_sync(&tx)?;
        let state = inode.write();
        let Some(mut plan) = plan()? else { return Ok(ExchangeResult::NeedsRound) };
        let records: Vec<u64> = plan.records.into_iter().collect();
        let mut blocks = Vec::with_capacity(records.len());
        read_records(object, Version::Newest, record_bytes, &records, (&mut blocks, &mut plan.freed))?;
        plan.freed.push(state.attrs.zpl.size.div_ceil(record_bytes)..u64::MAX);
        let freed = ranges_with_data(target, record_bytes, plan.freed)?;
        target.put_blocks(&tx, &freed, blocks)?;
        target.truncate(&tx, state.attrs.zpl.size)?;
        let exchanged = object.take_content(&tx, target, Txg(progress.birth))?;
        if exchanged {
            self.note_restored(inode);
        }
        if exchanged && let Err(errno) = self.recount_reservation(&tx, inode) {
            log::warn!("failed to recount the reservation of inode {}: {errno}", inode.ino);
        }
        Ok(if exchanged { ExchangeResult::Done } else { ExchangeResult::NeedsRound })
    }

    /// Destroys the second copy of a file.
    pub(super) fn abandon_copy(&self, file: &mut WalkFile) {
        let CopyProgress { object, .. } = std::mem::take(&mut file.copy_progress);
        (file.second_copy, file.record) = (None, 0);
        self.destroy_copy(object);
    }

    /// The same, by object number; 0: there is none.
    pub(super) fn destroy_copy(&self, number: Ino) {
        if number == 0 {
            return;
        }
        if let Err(errno) = self.destroy_copy_object(number) {
            log::warn!("failed to destroy object {number}, the second copy of a rewritten file: {errno}");
        }
    }

    /// In one txg, so that the copy either is named by the job or does not exist. A successor would take any
    /// other nameless object for an open file.
    fn destroy_copy_object(&self, number: Ino) -> Result<(), Errno> {
        let rewriting = &self.rewriting;
        let entered = self.hold_unloaded(number);
        let needs =
            [self.unlinked.need_of_one(number), (&entered.claims, Need::attrs()), rewriting.cursor.need()];
        let tx = self.begin(FREES, &needs)?;
        rewriting.cursor.note_reserved(&tx);
        if let Some(running) = rewriting.running.lock().as_mut() {
            running.job.position.copy_progress = CopyProgress::default();
        }
        rewriting.copy_object.store(0, Ordering::Release);
        let object = match self.set.hold(ObjectId(number)) {
            Ok(object) => object,
            Err(ObjectError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if self.unlinked.remove(&tx, number)? {
            self.set.destroy(&tx, &object)?;
        }
        Ok(())
    }
}

/// Result of copying a piece: copied bytes, and the offset of the next piece.
struct CopiedPiece {
    to: u64,
    bytes: u64,
}

/// A version of a file's content.
#[derive(Clone, Copy)]
enum Version {
    /// As of the last sync.
    Synced,
    /// As it is now.
    Newest,
}

/// Reads records of a file; those that hold only zeros are added to `freed`.
fn read_records(
    object: &Object,
    version: Version,
    record_bytes: u64,
    records: &[u64],
    (blocks, freed): (&mut Blocks, &mut Vec<Range<u64>>),
) -> Result<(), Errno> {
    for record in records {
        let start = record.saturating_mul(record_bytes);
        object.prefetch_after(start..start.saturating_add(record_bytes));
        let mut content = vec![0; usize::try_from(record_bytes).map_err(|_| Errno::EINVAL)?];
        match version {
            Version::Synced => object.read_synced(start, &mut content)?,
            Version::Newest => object.read(start, &mut content)?,
        }
        let len = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if len == 0 {
            freed.push(*record..record + 1);
            continue;
        }
        content.truncate(len);
        blocks.push((*record, content));
    }
    Ok(())
}

/// Maximum of records in the last part, and their cost. A larger part would have to wait until no other change
/// is dirty, and delay other writers.
fn last_copy_limit(object: &Object, bytes: u32, last_bytes: u64) -> (u64, Cost) {
    let (record_bytes, pointer_bytes) = (u64::from(bytes), u64::from(object.indirect_bytes(bytes)));
    let most =
        (last_bytes / record_bytes).min(LAST_COST_MAX / (record_bytes + LEVELS * pointer_bytes)).max(1);
    let cost = Cost {
        write_bytes: most * record_bytes,
        meta_bytes: most * LEVELS * pointer_bytes,
        meta_blocks: META_BLOCKS_OF_A_HOLE,
        ..Cost::NOTHING
    };
    (most, cost)
}

/// Merges ranges of records to free, and drops those in which `target` has no data.
fn ranges_with_data(
    target: &Object,
    record_bytes: u64,
    freed: Vec<Range<u64>>,
) -> Result<Vec<Range<u64>>, Errno> {
    let mut kept = Vec::new();
    for range in merged(freed) {
        let found = target.next_data(range.start.saturating_mul(record_bytes))?;
        kept.extend(found.is_some_and(|at| at / record_bytes < range.end).then_some(range));
    }
    Ok(kept)
}

/// Sorted, with adjacent and overlapping ranges merged.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Merges adjacent blocks.
fn runs_of(blocks: impl Iterator<Item = u64>) -> impl Iterator<Item = Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(last) if last.end == block => last.end = block + 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Job;

    #[test]
    fn a_piece_ends_where_the_next_one_begins() {
        let plan = || CopyPlan {
            records: BTreeSet::from([3, 4, 9, 10]),
            freed: vec![0..2, 5..8, 8..9, 11..u64::MAX],
        };
        let mut whole = plan();
        assert_eq!((whole.cut(0, 4), whole.records.len(), whole.freed.len()), (u64::MAX, 4, 4));
        let mut first = plan();
        assert_eq!(first.cut(0, 2), 9);
        assert_eq!((first.records, first.freed), (BTreeSet::from([3, 4]), vec![0..2, 5..8, 8..9]));
        let mut second = plan();
        assert_eq!(second.cut(4, 1), 9);
        assert_eq!((second.records, second.freed), (BTreeSet::from([4]), vec![5..8, 8..9]));
        let mut inside = plan();
        assert_eq!(inside.cut(7, 9), u64::MAX);
        assert_eq!((inside.records, inside.freed), (BTreeSet::from([9, 10]), vec![7..8, 8..9, 11..u64::MAX]));
    }

    #[test]
    fn freed_ranges_are_merged() {
        let ranges = [9..10, 1..2, 2..3, 3..5, 4..5, 20..u64::MAX, 7..9, 30..31].to_vec();
        assert_eq!(merged(ranges), [1..5, 7..10, 20..u64::MAX]);
        assert_eq!(merged(Vec::new()), []);
    }

    #[test]
    fn adjacent_records_are_reserved_together() {
        assert_eq!(runs_of([1, 2, 3, 7, 9, 10].into_iter()).collect::<Vec<_>>(), [1..4, 7..8, 9..11]);
    }

    use crate::RewriteSpec;
    use crate::support::{Machine, Short};
    use crate::types::WriteFlags;
    use terrane_wire::Prng;

    fn put(m: &Machine, ino: Ino, at: u64, seed: u64, bytes: usize) {
        let mut rng = Prng::new(seed);
        for from in (0..bytes).step_by(8 << 20) {
            let piece = rng.random_bytes((bytes - from).min(8 << 20));
            m.fs().write(ino, at + from as u64, &piece, WriteFlags::default()).unwrap();
        }
    }

    fn begin(m: &Machine, root: Ino, bytes: u32) {
        let spec = RewriteSpec { root, recursive: false, compression: None, record_size: Some(bytes) };
        m.fs().rewrite().begin(&spec).unwrap();
    }

    #[test]
    fn ranges_that_the_copy_does_not_hold_are_left_out() {
        const BYTES: u64 = 4096;
        let m = Machine::new(1, &[("recordsize", "4K")]);
        let ino = m.fs().file(m.fs().root(), "target").ino;
        put(&m, ino, 3 * BYTES, 1, BYTES as usize);
        put(&m, ino, 10 * BYTES, 1, BYTES as usize);
        put(&m, ino, 30 * BYTES, 1, BYTES as usize);
        let target = m.fs().set.hold(ObjectId(ino)).unwrap();
        let freed = [0..2, 6..9, 9..12, 4..5, 20..u64::MAX, 2..3].to_vec();
        assert_eq!(ranges_with_data(&target, BYTES, freed).unwrap(), [6..12, 20..u64::MAX]);
        let freed = [0..4, 9..11, 12..20].to_vec();
        assert_eq!(ranges_with_data(&target, BYTES, freed).unwrap(), [0..4, 9..11]);
        let mut plan = CopyPlan::default();
        let holes = [0..3 * BYTES, 5 * BYTES + 1..11 * BYTES, 12 * BYTES..u64::MAX].to_vec();
        plan.add(&ChangedRanges { written: Vec::new(), holes, scanned_to: u64::MAX }, BYTES, &target)
            .unwrap();
        assert_eq!((plan.records, plan.freed), (BTreeSet::from([5]), [6..11, 12..u64::MAX / BYTES].to_vec()));
    }

    #[test]
    fn a_copy_without_space_for_its_last_records_is_not_begun() {
        const RECORD: u32 = 2 << 20;
        for (spared, no_room) in [(2 << 20, 1), (14 << 20, 0)] {
            // 256 MiB.
            let m = Machine::sized(1, &[("recordsize", "16K"), ("compression", "off")], 32, 8 << 20);
            let (fs, root) = (m.fs(), m.fs().root());
            let ino = fs.file(root, "large").ino;
            put(&m, ino, 0, 1, 5_000_000);
            // From now on, the pool reserves space for its records at the ends of zones.
            begin(&m, ino, RECORD);
            let filler = fs.file(root, "filler").ino;
            fs.sync().unwrap();
            let copy = fs.hold(ino).unwrap().object().used_bytes() / 4 * 5;
            let usage = fs.set.usage();
            let wanted = copy + SPARE_BYTES.min(usage.size_bytes / 64) + spared;
            put(&m, filler, 0, 2, (usage.available_bytes - wanted) as usize);
            fs.sync().unwrap();
            while fs.unlinked_count() == Ok(0) && fs.rewrite().step(1).unwrap() != crate::JobStep::NothingToDo
            {
            }
            assert_eq!(
                fs.rewrite().progress().unwrap().figures.no_room,
                no_room,
                "{} bytes",
                fs.set.usage().available_bytes
            );
        }
    }
}
