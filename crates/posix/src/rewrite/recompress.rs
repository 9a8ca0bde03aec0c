//! Steps of the walk that recompresses cold files in idle time.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::jobs::{Ground, Job, JobStep, Next, RecompressStatus, is_worth, level_of, next};
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
        let ground = *self.fs.rewriting.idle.ground.lock();
        RecompressStatus {
            is_under_way: ground.cutoff != 0,
            records: ground.records,
            before_bytes: ground.before_bytes,
            after_bytes: ground.after_bytes,
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
        let Some(days) = self.dataset().recompress_days() else { return Ok(false) };
        let idle = &self.rewriting.idle;
        let mut ahead = idle.ahead.lock();
        let mut ground = *idle.ground.lock();
        match next(&ground, self.now().secs, days) {
            Next::Nothing => return Ok(false),
            Next::Begin { cutoff } => {
                ahead.clear();
                (ground.cutoff, ground.object, ground.record) = (cutoff, 0, 0);
            }
            Next::GoOn => {}
        }
        let outcome = self.recompress_next(&mut ahead, &mut ground);
        *idle.ground.lock() = ground;
        if let Ok(false) = outcome {
            // Store the end of a walk, even if nothing else changes in this txg.
            let tx = self.begin(terrane_txg::cost::Cost::NOTHING, &[idle.words.need()])?;
            idle.words.reserved(&tx);
        }
        outcome
    }

    fn recompress_next(&self, ahead: &mut VecDeque<Ino>, ground: &mut Ground) -> Result<bool, Errno> {
        let Some(ino) = ahead.front().copied() else {
            match self.set.files_from(ObjectId(ground.object))? {
                Some((files, next)) => {
                    ahead.extend(files.iter().map(|id| id.0).filter(|id| *id >= ground.object));
                    ground.object = ahead.front().copied().unwrap_or(next.0);
                    return Ok(true);
                }
                None => {
                    ground.before = ground.before.max(ground.cutoff);
                    (ground.cutoff, ground.object, ground.record) = (0, 0, 0);
                    return Ok(false);
                }
            }
        };
        match self.recompress_record(ino, ground) {
            Ok(true) => return Ok(true),
            Ok(false) | Err(Errno::ESTALE) => {}
            Err(Errno::EIO) => log::error!("idle time: inode {ino} cannot be read; it stays as it is"),
            Err(errno) => return Err(errno),
        }
        ahead.pop_front();
        (ground.object, ground.record) = (ahead.front().copied().unwrap_or(ino + 1), 0);
        Ok(true)
    }

    /// Handles the next record of a file. False: there is none.
    fn recompress_record(&self, ino: Ino, ground: &mut Ground) -> Result<bool, Errno> {
        let inode = self.hold(ino)?;
        {
            let state = inode.read();
            let zpl = &state.attrs.zpl;
            // A time before 1970 counts as cold.
            let secs = |stored| u64::try_from(crate::attr::time(stored).secs).unwrap_or(0);
            let changed = secs(zpl.mtime).max(secs(zpl.ctime));
            if changed >= ground.cutoff || changed < ground.before {
                return Ok(false);
            }
        }
        let object = inode.object();
        let block_bytes = u64::from(object.block_size());
        let Some(at) = object.next_data(ground.record.saturating_mul(block_bytes))? else { return Ok(false) };
        let block = at / block_bytes;
        ground.record = block + 1;
        let Some(ptr) = object.stored_pointer(block)? else { return Ok(true) };
        let compression = level_of(ptr.lsize());
        if self.is_made_well(&ptr, compression) {
            return Ok(true);
        }
        let before = ptr.allocated_bytes();
        let keep = |_: u8, made: &terrane_store::pipeline::Made| is_worth(before, made.stored_bytes());
        match self.recode(&inode, block, (compression, &keep), &self.rewriting.idle.words) {
            Ok(Some(after)) => {
                ground.records += 1;
                ground.before_bytes += before;
                ground.after_bytes += after;
                Ok(true)
            }
            Ok(None) => Ok(true),
            Err(Errno::EIO) => {
                log::error!("idle time: record {block} of {} cannot be read", self.path_of(ino));
                Ok(true)
            }
            Err(errno) => {
                ground.record = block;
                Err(errno)
            }
        }
    }

    /// Whether a record is compressed with at least this zstd level, or does not need it.
    fn is_made_well(&self, ptr: &BlockPtr, compression: Compression) -> bool {
        let (BlockPtr::Normal(normal), Compression::Zstd(wanted)) = (ptr, compression) else { return true };
        let found = self.set.pool().zstd_level(normal);
        found.is_ok_and(|found| found.is_some_and(|found| found.level() >= wanted.level()))
    }
}
