//! Storing records with another algorithm.
//!
//! A *batch* is a set of records of one or more files. They are looked up, then read and compressed by one
//! thread per processor. Then they join a txg one by one. The walk's progress counts once all of them have.

use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::jobs::{File, RewriteFigures, RewriteJob, Walk};
use crate::master::{Cursor, Words};
use crate::types::Ino;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_codec::Compression;
use terrane_format::BlockPtr;
use terrane_object::Object;
use terrane_object::object::StoredBlock;
use terrane_store::pipeline::Made;

/// Records that one batch checks at most, if none needs a rewrite.
const LOOKS: usize = 512;

/// An algorithm, and a predicate. It gets the old algorithm's id and the new stored form, and decides whether
/// to replace.
pub(super) type Wanted<'a> = (Compression, &'a (dyn Fn(u8, &Made) -> bool + Sync));

/// A record to be stored with another algorithm.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    ino: Ino,
    block: u64,
    was: BlockPtr,
}

/// The stored block, and its new form. `None`: it was changed meanwhile, or is kept.
type Recoded = Option<(StoredBlock, Made)>;

struct Batch {
    records: Vec<Record>,
    /// Bytes of content that it may still take.
    bytes_left: u64,
    looks_left: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes_left == 0 || self.looks_left == 0
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
        let outcome = self.collect(job, walk, &mut seen, bytes).and_then(|(records, goes_on)| {
            self.store_all(&records, compression, figures)?;
            Ok(goes_on)
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
    ) -> Result<(Vec<Record>, bool), Errno> {
        let mut batch = Batch { records: Vec::new(), bytes_left: bytes, looks_left: LOOKS };
        while !batch.is_full() {
            let Some(file) = walk.file(self) else {
                let goes_on = batch.looks_left < LOOKS;
                return Ok((batch.records, goes_on));
            };
            let outcome = self.hold(file.ino).and_then(|inode| match file.is(&inode) {
                true => self.collect_of(&inode, file, job, figures, &mut batch),
                false => Err(Errno::ESTALE),
            });
            batch.looks_left = batch.looks_left.saturating_sub(1);
            self.went(outcome, job, walk, figures)?;
        }
        Ok((batch.records, true))
    }

    /// Collects the records of one file. True: the file is complete.
    fn collect_of(
        &self,
        inode: &InodeRef<'_>,
        file: &mut File,
        job: &RewriteJob,
        figures: &mut RewriteFigures,
        batch: &mut Batch,
    ) -> Result<bool, Errno> {
        let Some(compression) = job.spec.compression else { return Ok(true) };
        let object = inode.object();
        let block_bytes = u64::from(object.block_size());
        while !batch.is_full() {
            batch.looks_left -= 1;
            let Some(at) = object.next_data(file.record.saturating_mul(block_bytes))? else {
                return Ok(true);
            };
            let block = at / block_bytes;
            file.record = block + 1;
            let Some(was) = object.stored_pointer(block)? else { continue };
            figures.stored_bytes += was.allocated_bytes();
            figures.logical_bytes += u64::from(was.lsize());
            if was.block_birth().0 < job.since && !self.is_made_by(&was, compression) {
                batch.bytes_left = batch.bytes_left.saturating_sub(was.lsize().into());
                batch.records.push(Record { ino: inode.ino, block, was });
            }
        }
        Ok(false)
    }

    /// Whether a record is stored with this algorithm and level. An uncompressed one may be worth another try.
    fn is_made_by(&self, ptr: &BlockPtr, compression: Compression) -> bool {
        let BlockPtr::Normal(normal) = ptr else { return true };
        if normal.compression != compression.id() {
            return false;
        }
        let Compression::Zstd(level) = compression else { return true };
        self.set.pool().zstd_level(normal).is_ok_and(|found| found == Some(level))
    }

    fn store_all(
        &self,
        records: &[Record],
        compression: Compression,
        figures: &mut RewriteFigures,
    ) -> Result<(), Errno> {
        // Stored uncompressed again: it does not compress with this algorithm either.
        let keep = |was: u8, made: &Made| made.compression() != was || was != Compression::Off.id();
        let made = self.make_all(records, (compression, &keep));
        // Logged at the end: if the pool is full, these records come again.
        let mut unreadable = Vec::new();
        for (record, made) in records.iter().zip(made) {
            let outcome = made.and_then(|made| {
                let Some(made) = made else { return Ok(None) };
                self.store_recoded(&self.hold(record.ino)?, record.block, made, &self.rewriting.words)
            });
            match outcome {
                Ok(Some(after)) => {
                    figures.before_bytes += record.was.allocated_bytes();
                    figures.after_bytes += after;
                }
                // A file removed in the meantime is not an error.
                Ok(None) | Err(Errno::ESTALE) => {}
                // The pool is full, has stopped, or is closed.
                Err(errno @ (Errno::ENOSPC | Errno::EROFS)) => return Err(errno),
                Err(errno) if self.set.pool().status().failed.is_some() => return Err(errno),
                Err(errno) => unreadable.push((record, errno)),
            }
        }
        for (record, errno) in unreadable {
            let (path, block) = (self.path_of(record.ino), record.block);
            log::error!("rewriting {path}: record {block} stays as it is: {errno}");
            figures.errors += 1;
        }
        Ok(())
    }

    /// Reads and compresses all records, on several threads including this one.
    fn make_all(&self, records: &[Record], wanted: Wanted<'_>) -> Vec<Result<Recoded, Errno>> {
        let slots: Vec<OnceLock<Result<Recoded, Errno>>> = records.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let (Some(record), Some(slot)) = (records.get(at), slots.get(at)) else { return };
                let made =
                    self.hold(record.ino).and_then(|inode| self.make_recoded(&inode, record.block, wanted));
                // If the record changed in between, the writer wins.
                let _ = slot.set(made.map(|made| made.filter(|((was, _), _)| *was == record.was)));
            }
        };
        let threads = self.set.pool().env().workers().min(records.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If no thread can be started, this one does all the work.
                let named = std::thread::Builder::new().name("terrane-rewrite".to_owned());
                let _ = named.spawn_scoped(scope, work);
            }
            work();
        });
        slots.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(Errno::EIO))).collect()
    }

    /// Stores a record with another algorithm, if `keep` accepts the result. Returns its stored size. `None`:
    /// it was changed meanwhile, or is kept.
    pub(super) fn recode<C: Cursor<N>, const N: usize>(
        &self,
        inode: &InodeRef<'_>,
        block: u64,
        wanted: Wanted<'_>,
        words: &Words<C, N>,
    ) -> Result<Option<u64>, Errno> {
        let Some(made) = self.make_recoded(inode, block, wanted)? else { return Ok(None) };
        self.store_recoded(inode, block, made, words)
    }

    fn make_recoded(
        &self,
        inode: &InodeRef<'_>,
        block: u64,
        (compression, keep): Wanted<'_>,
    ) -> Result<Recoded, Errno> {
        let Some((was, content)) = inode.object().stored_block(block)? else { return Ok(None) };
        let BlockPtr::Normal(normal) = &was else { return Ok(None) };
        let made = self.set.pool().make(&content, compression);
        Ok(keep(normal.compression, &made).then_some(((was, content), made)))
    }

    fn store_recoded<C: Cursor<N>, const N: usize>(
        &self,
        inode: &InodeRef<'_>,
        block: u64,
        ((was, content), made): (StoredBlock, Made),
        words: &Words<C, N>,
    ) -> Result<Option<u64>, Errno> {
        let object: &Arc<Object> = inode.object();
        let block_bytes = object.block_size();
        let start = block.saturating_mul(block_bytes.into());
        let file_bytes = inode.read().attrs.zpl.size;
        let data = start..start.saturating_add(block_bytes.into());
        let need = Need::records(object, data, block_bytes, file_bytes);
        let tx = self.begin_rewriting(words, &[(&inode.claims, need)])?;
        let after = made.stored_bytes();
        Ok(object.recode_block(&tx, block, (&was, content), made)?.then_some(after))
    }
}
