//! Steps of the walk that recompresses cold files in idle time.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::jobs::{
    Job, JobStep, NextAction, RecompressProgress, RecompressStatus, is_worthwhile, level_for, next_action,
};
use crate::types::Ino;
use std::collections::VecDeque;
use terrane_codec::Compression;
use terrane_format::BlockPtr;
use terrane_wire::ObjectId;

/// Recompresses cold files if the property `recompress` is set. To be run in idle time.
#[derive(Clone, Copy)]
pub struct Recompress<'f> {
    fs: &'f Fs,
}

impl Job for Recompress<'_> {
    type Progress = RecompressStatus;

    /// Handles one record, or checks one file.
    fn step(&self, _: u64) -> Result<JobStep, Errno> {
        JobStep::of(self.fs.recompress_one())
    }

    /// What recompression has done so far.
    fn progress(&self) -> RecompressStatus {
        let progress = *self.fs.rewriting.recompress.progress.lock();
        RecompressStatus {
            is_running: progress.cutoff != 0,
            records: progress.records,
            before_bytes: progress.before_bytes,
            after_bytes: progress.after_bytes,
        }
    }
}

impl Fs {
    /// The job that recompresses cold files.
    pub fn recompress(&self) -> Recompress<'_> {
        Recompress { fs: self }
    }

    /// False: there is nothing to do for now, or the property is off.
    fn recompress_one(&self) -> Result<bool, Errno> {
        let Some(days) = self.dataset().recompress_days().filter(|_| !self.is_read_only()) else {
            return Ok(false);
        };
        let state = &self.rewriting.recompress;
        let mut files = state.pending_files.lock();
        let mut progress = *state.progress.lock();
        match next_action(&progress, self.now().secs, days) {
            NextAction::Wait => return Ok(false),
            NextAction::Begin { cutoff } => {
                files.clear();
                (progress.cutoff, progress.object, progress.record) = (cutoff, 0, 0);
            }
            NextAction::Continue => {}
        }
        let outcome = self.recompress_next(&mut files, &mut progress);
        *state.progress.lock() = progress;
        if let Ok(false) = outcome {
            // Store the end of a walk, even if nothing else changes in this txg.
            let tx = self.begin(terrane_txg::cost::Cost::NOTHING, &[state.cursor.need()])?;
            state.cursor.note_reserved(&tx);
        }
        outcome
    }

    fn recompress_next(
        &self,
        pending: &mut VecDeque<Ino>,
        progress: &mut RecompressProgress,
    ) -> Result<bool, Errno> {
        let Some(ino) = pending.front().copied() else {
            match self.set.files_from(ObjectId(progress.object))? {
                Some((files, next)) => {
                    pending.extend(files.iter().map(|id| id.0).filter(|id| *id >= progress.object));
                    progress.object = pending.front().copied().unwrap_or(next.0);
                    return Ok(true);
                }
                None => {
                    progress.before = progress.before.max(progress.cutoff);
                    (progress.cutoff, progress.object, progress.record) = (0, 0, 0);
                    return Ok(false);
                }
            }
        };
        match self.recompress_record(ino, progress) {
            Ok(true) => return Ok(true),
            Ok(false) | Err(Errno::ESTALE) => {}
            Err(Errno::EIO) => log::error!("recompression skipped inode {ino}: unreadable"),
            Err(errno) => return Err(errno),
        }
        pending.pop_front();
        (progress.object, progress.record) = (pending.front().copied().unwrap_or(ino + 1), 0);
        Ok(true)
    }

    /// Handles the next record of a file. False: there is none.
    fn recompress_record(&self, ino: Ino, progress: &mut RecompressProgress) -> Result<bool, Errno> {
        let inode = self.hold(ino)?;
        {
            let state = inode.read();
            let zpl = &state.attrs.zpl;
            // A time before 1970 counts as cold.
            let secs = |stored| u64::try_from(crate::attr::decode_time(stored).secs).unwrap_or(0);
            let changed = secs(zpl.mtime).max(secs(zpl.ctime));
            if changed >= progress.cutoff || changed < progress.before {
                return Ok(false);
            }
        }
        let object = inode.object();
        let block_bytes = u64::from(object.block_size());
        let Some(at) = object.next_data(progress.record.saturating_mul(block_bytes))? else {
            return Ok(false);
        };
        let block = at / block_bytes;
        progress.record = block + 1;
        let Some(ptr) = object.stored_pointer(block)? else { return Ok(true) };
        let compression = level_for(ptr.lsize());
        if self.has_min_level(&ptr, compression) {
            return Ok(true);
        }
        let before = ptr.allocated_bytes();
        let keep = |_: u8, encoded: &terrane_store::pipeline::PreEncoded| {
            is_worthwhile(before, encoded.stored_bytes())
        };
        match self.recode(&inode, block, (compression, &keep), &self.rewriting.recompress.cursor) {
            Ok(Some(after)) => {
                progress.records += 1;
                progress.before_bytes += before;
                progress.after_bytes += after;
                Ok(true)
            }
            Ok(None) => Ok(true),
            Err(Errno::EIO) => {
                log::error!("recompression skipped record {block} of {}: unreadable", self.path_of(ino));
                Ok(true)
            }
            Err(errno) => {
                progress.record = block;
                Err(errno)
            }
        }
    }

    /// Whether a record is compressed with at least this zstd level, or does not need it.
    fn has_min_level(&self, ptr: &BlockPtr, compression: Compression) -> bool {
        let (BlockPtr::Normal(normal), Compression::Zstd(wanted)) = (ptr, compression) else { return true };
        let found = self.set.pool().zstd_level(normal);
        found.is_ok_and(|found| found.is_some_and(|found| found.level() >= wanted.level()))
    }
}
