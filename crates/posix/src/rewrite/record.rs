//! Storing records with another algorithm.
//!
//! A *batch* is a set of records of one or more files. They are looked up, then read and compressed by one
//! thread per processor. Then they join a txg one by one. The walk's progress counts once all of them have.

use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::jobs::{RewriteFigures, RewriteJob, Walk, WalkFile};
use crate::master::{JobCursor, StoredCursor};
use crate::types::Ino;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_codec::Compression;
use terrane_format::BlockPtr;
use terrane_object::Object;
use terrane_object::object::StoredBlock;
use terrane_store::pipeline::PreEncoded;

/// Records that one batch checks at most, if none needs a rewrite.
const CHECKS_MAX: usize = 512;

/// An algorithm, and a predicate. It gets the old algorithm's id and the new stored form, and decides whether
/// to replace.
pub(super) type RecodeRule<'a> = (Compression, &'a (dyn Fn(u8, &PreEncoded) -> bool + Sync));

/// A record to be stored with another algorithm.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecodeRecord {
    ino: Ino,
    block: u64,
    old_ptr: BlockPtr,
}

/// The stored block, and its new form. `None`: it was changed meanwhile, or is kept.
type Recoded = Option<(StoredBlock, PreEncoded)>;

struct Batch {
    records: Vec<RecodeRecord>,
    /// Bytes of content that it may still take.
    bytes_left: u64,
    checks_left: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes_left == 0 || self.checks_left == 0
    }
}

impl Fs {
    /// Rewrites records with `bytes` of content. False: nothing is left.
    pub(super) fn recode_batch(
        &self,
        job: &RewriteJob,
        walk: &mut Walk,
        figures: &mut RewriteFigures,
        bytes: u64,
    ) -> Result<bool, Errno> {
        let Some(compression) = job.spec.compression else { return Ok(false) };
        let mut seen = *figures;
        let outcome = self.collect(job, walk, &mut seen, bytes).and_then(|(records, has_more)| {
            self.store_all(&records, compression, figures)?;
            Ok(has_more)
        });
        match outcome {
            Ok(_) => {
                (figures.files, figures.stored_bytes) = (seen.files, seen.stored_bytes);
                figures.logical_bytes = seen.logical_bytes;
                figures.errors += seen.errors - job.figures.errors;
            }
            // Records that are done will be skipped the next time.
            Err(_) => walk.go_back(self, job),
        }
        outcome
    }

    /// The next records to rewrite. False: the walk is complete, and no record is among them.
    pub(super) fn collect(
        &self,
        job: &RewriteJob,
        walk: &mut Walk,
        figures: &mut RewriteFigures,
        bytes: u64,
    ) -> Result<(Vec<RecodeRecord>, bool), Errno> {
        let mut batch = Batch { records: Vec::new(), bytes_left: bytes, checks_left: CHECKS_MAX };
        while !batch.is_full() {
            let Some(file) = walk.current_file(self) else {
                let has_more = batch.checks_left < CHECKS_MAX;
                return Ok((batch.records, has_more));
            };
            let outcome = self.hold(file.ino).and_then(|inode| match file.is_same_file(&inode) {
                true => self.collect_file(&inode, file, job, figures, &mut batch),
                false => Err(Errno::ESTALE),
            });
            batch.checks_left = batch.checks_left.saturating_sub(1);
            self.handle_result(outcome, job, walk, figures)?;
        }
        Ok((batch.records, true))
    }

    /// Collects the records of one file. True: the file is complete.
    fn collect_file(
        &self,
        inode: &InodeRef<'_>,
        file: &mut WalkFile,
        job: &RewriteJob,
        figures: &mut RewriteFigures,
        batch: &mut Batch,
    ) -> Result<bool, Errno> {
        let Some(compression) = job.spec.compression else { return Ok(true) };
        let object = inode.object();
        let block_bytes = u64::from(object.block_size());
        while !batch.is_full() {
            batch.checks_left -= 1;
            let Some(at) = object.next_data(file.record.saturating_mul(block_bytes))? else {
                return Ok(true);
            };
            let block = at / block_bytes;
            file.record = block + 1;
            let Some(old_ptr) = object.stored_pointer(block)? else { continue };
            figures.stored_bytes += old_ptr.allocated_bytes();
            figures.logical_bytes += u64::from(old_ptr.lsize());
            let is_old = old_ptr.block_birth().0 < job.since;
            if is_old && !self.set.is_held(&old_ptr) && !self.has_compression(&old_ptr, compression) {
                batch.bytes_left = batch.bytes_left.saturating_sub(old_ptr.lsize().into());
                batch.records.push(RecodeRecord { ino: inode.ino, block, old_ptr });
            }
        }
        Ok(false)
    }

    /// Whether a record is stored with this algorithm and level. An uncompressed one may be worth another try.
    fn has_compression(&self, ptr: &BlockPtr, compression: Compression) -> bool {
        let BlockPtr::Normal(normal) = ptr else { return true };
        if normal.compression != compression.id() {
            return false;
        }
        let Compression::Zstd(level) = compression else { return true };
        self.set.pool().zstd_level(normal).is_ok_and(|found| found == Some(level))
    }

    fn store_all(
        &self,
        records: &[RecodeRecord],
        compression: Compression,
        figures: &mut RewriteFigures,
    ) -> Result<(), Errno> {
        // Stored uncompressed again: it does not compress with this algorithm either.
        let keep =
            |old: u8, encoded: &PreEncoded| encoded.compression() != old || old != Compression::Off.id();
        let encoded = self.compress_all(records, (compression, &keep));
        // Logged at the end: if the pool is full, these records come again.
        let mut unreadable = Vec::new();
        for (record, encoded) in records.iter().zip(encoded) {
            let outcome = encoded.and_then(|encoded| {
                let Some(encoded) = encoded else { return Ok(None) };
                self.store_recoded(&self.hold(record.ino)?, record.block, encoded, &self.rewriting.cursor)
            });
            match outcome {
                Ok(Some(after)) => {
                    figures.before_bytes += record.old_ptr.allocated_bytes();
                    figures.after_bytes += after;
                }
                // A file removed in the meantime is not an error.
                Ok(None) | Err(Errno::ESTALE) => {}
                // The pool is full, has stopped, or is closed.
                Err(errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS)) => return Err(errno),
                Err(errno) if self.set.pool().status().failed.is_some() => return Err(errno),
                Err(errno) => unreadable.push((record, errno)),
            }
        }
        for (record, errno) in unreadable {
            let (path, block) = (self.path_of(record.ino), record.block);
            log::error!("rewrite skipped record {block} of {path}: {errno}");
            figures.errors += 1;
        }
        Ok(())
    }

    /// Reads and compresses all records, on several threads including this one.
    fn compress_all(&self, records: &[RecodeRecord], rule: RecodeRule<'_>) -> Vec<Result<Recoded, Errno>> {
        let slots: Vec<OnceLock<Result<Recoded, Errno>>> = records.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let (Some(record), Some(slot)) = (records.get(at), slots.get(at)) else { return };
                let encoded =
                    self.hold(record.ino).and_then(|inode| self.compress_record(&inode, record.block, rule));
                // If the record changed in between, the writer wins.
                let _ = slot.set(
                    encoded.map(|encoded| encoded.filter(|((old_ptr, _), _)| *old_ptr == record.old_ptr)),
                );
            }
        };
        let threads = self.set.pool().env().workers().min(records.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If no thread can be started, this one does all the work.
                let builder = std::thread::Builder::new().name("terrane-rewrite".to_owned());
                let _ = builder.spawn_scoped(scope, work);
            }
            work();
        });
        slots.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(Errno::EIO))).collect()
    }

    /// Stores a record with another algorithm, if the rule accepts the result. Returns its stored size. `None`:
    /// it was changed meanwhile, or is kept.
    pub(super) fn recode<C: JobCursor<N>, const N: usize>(
        &self,
        inode: &InodeRef<'_>,
        block: u64,
        rule: RecodeRule<'_>,
        cursor: &StoredCursor<C, N>,
    ) -> Result<Option<u64>, Errno> {
        let Some(encoded) = self.compress_record(inode, block, rule)? else { return Ok(None) };
        self.store_recoded(inode, block, encoded, cursor)
    }

    fn compress_record(
        &self,
        inode: &InodeRef<'_>,
        block: u64,
        (compression, keep): RecodeRule<'_>,
    ) -> Result<Recoded, Errno> {
        let Some((old_ptr, content)) = inode.object().stored_block(block)? else { return Ok(None) };
        let BlockPtr::Normal(normal) = &old_ptr else { return Ok(None) };
        if self.set.is_held(&old_ptr) {
            return Ok(None);
        }
        let encoded = self.set.pool().pre_encode(&content, compression);
        Ok(keep(normal.compression, &encoded).then_some(((old_ptr, content), encoded)))
    }

    fn store_recoded<C: JobCursor<N>, const N: usize>(
        &self,
        inode: &InodeRef<'_>,
        block: u64,
        ((old_ptr, content), encoded): (StoredBlock, PreEncoded),
        cursor: &StoredCursor<C, N>,
    ) -> Result<Option<u64>, Errno> {
        let object: &Arc<Object> = inode.object();
        let block_bytes = object.block_size();
        let start = block.saturating_mul(block_bytes.into());
        let file_bytes = inode.read().attrs.zpl.size;
        let data = start..start.saturating_add(block_bytes.into());
        let need = Need::records(object, data, block_bytes, file_bytes);
        let tx = self.begin_with_cursor(cursor, &[(&inode.claims, need)])?;
        let after = encoded.stored_bytes();
        let is_stored = object.recode_block(&tx, block, (&old_ptr, content), encoded)?;
        if is_stored {
            self.note_restored(inode);
        }
        Ok(is_stored.then_some(after))
    }
}
