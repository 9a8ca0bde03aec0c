//! Regular files: reading.
//!
//! The size is an attribute. Blocks may end before it (a hole at the end), but hold only zeros behind it.
//! Truncation zeroes the tail of the last block, so a file that grows later shows zeros. A file has one block
//! that grows in steps of 512 bytes up to the record size. Then it gets more blocks.

use crate::attr::encode_time;
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::State;
use crate::inode_flags::InodeFlags;
use crate::intents::Intent;
use crate::operation::{Change, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::record::Record;
use crate::types::{AccessTimes, Ino, ReadOptions, Time, mode};
use smallvec::smallvec;
use terrane_dataset::AccessTime;
use terrane_txg::cost::Cost;

/// Age in seconds at which a relative access time is renewed even if the file did not change.
const ACCESS_TIME_SECS: i64 = 24 * 3600;

/// Stores an access time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreAccessTime {
    pub ino: Ino,
    pub at: Time,
}

impl Operation for StoreAccessTime {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        Ok(HoldResult::Held(fs.hold(self.ino)?))
    }

    fn cost<'h>(&self, _: &'h Fs, inode: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        Ok(OperationCost { cost: Cost::NOTHING, needs: smallvec![(&inode.claims, Need::attrs())] })
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let state = change.locked.get(inode.ino);
        state.attrs.zpl.atime = encode_time(self.at);
        // Loss of an access time in a crash is acceptable.
        if let Err(errno) = change.fs.save_access_time(change.tx, inode, state) {
            log::warn!("failed to store the access time of inode {}: {errno}", inode.ino);
        }
        Ok(Outcome::Saved(()))
    }

    fn is_call(&self) -> bool {
        false
    }

    fn intent(&self, change: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        let StoreAccessTime { ino, at } = *self;
        change.content_intent(ino, Record::StoreAccessTime { ino, at })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

impl State {
    /// `EISDIR`: a directory. `EINVAL`: any other inode that is not a regular file.
    pub(crate) fn check_file(&self) -> Result<(), Errno> {
        match self.attrs.file_type() {
            mode::S_IFREG => Ok(()),
            mode::S_IFDIR => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn note_content_changed(&mut self, now: Time) {
        self.attrs.zpl.mtime = encode_time(now);
        self.attrs.zpl.ctime = encode_time(now);
    }
}

impl Fs {
    /// Appends up to `len` bytes from `offset` on to `out`; fewer only at the end of the file. Sequential and
    /// strided reads are prefetched.
    pub fn read(&self, ino: Ino, offset: u64, len: u32, out: &mut Vec<u8>) -> Result<(), Errno> {
        self.read_as(ino, offset, len, ReadOptions::default(), out)
    }

    /// The same, with the options of the open file.
    pub fn read_as(
        &self,
        ino: Ino,
        offset: u64,
        len: u32,
        how: ReadOptions,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let inode = self.hold(ino)?;
        if !how.no_prefetch {
            inode.object().prefetch_after(offset..offset.saturating_add(len.into()));
        }
        self.read_held(&inode, offset, len, out)?;
        if !how.keeps_atime {
            self.note_access(&inode);
        }
        Ok(())
    }

    fn read_held(&self, inode: &InodeRef<'_>, offset: u64, len: u32, out: &mut Vec<u8>) -> Result<(), Errno> {
        let failed = {
            let state = inode.read();
            state.check_file()?;
            let available = state.attrs.zpl.size.saturating_sub(offset).min(u64::from(len));
            let available = usize::try_from(available).map_err(|_| Errno::EINVAL)?;
            let start = out.len();
            out.resize(start + available, 0);
            let read = inode.object().read(offset, out.get_mut(start..).unwrap_or_default());
            read.inspect_err(|_| out.truncate(start)).err()
        };
        if failed.is_some() && self.is_closed() {
            return Err(Errno::ESTALE);
        }
        if let Some(error) = failed {
            // No lock is held here: building the path locks the directories up to the root.
            log::error!("read failed: {} at byte {offset}: {error}", self.path_of(inode.ino));
            return Err(error.into());
        }
        Ok(())
    }

    /// Renews the access time if mount options and property ask for it. A failure does not fail the read, for
    /// example on a full or read-only pool.
    pub(crate) fn note_access(&self, inode: &InodeRef<'_>) {
        if self.is_read_only() {
            return;
        }
        let is_dir = || inode.read().attrs.is_dir();
        let policy = match self.access_times() {
            AccessTimes::Never => AccessTime::Off,
            AccessTimes::Always => AccessTime::On,
            AccessTimes::NeverForDirectories if is_dir() => AccessTime::Off,
            AccessTimes::NeverForDirectories | AccessTimes::AsProperty => self.dataset().access_time(),
        };
        if policy == AccessTime::Off || InodeFlags::of(&inode.read().attrs).no_access_time {
            return;
        }
        let now = self.now();
        if policy == AccessTime::Relative && !is_access_time_old(&inode.read(), now) {
            return;
        }
        let _ = self.execute(&StoreAccessTime { ino: inode.ino, at: now });
    }

    /// `SEEK_DATA`. `ENXIO`: no data at or after `offset`.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64, Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        state.check_file()?;
        let size = state.attrs.zpl.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        inode.object().next_data(offset)?.filter(|at| *at < size).ok_or(Errno::ENXIO)
    }

    /// `SEEK_HOLE`; the end of the file counts as a hole. `ENXIO`: `offset` is beyond the end.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64, Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        state.check_file()?;
        let size = state.attrs.zpl.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        Ok(inode.object().next_hole(offset)?.min(size))
    }
}

/// True if the access time is not later than the last change, or is a day old.
fn is_access_time_old(state: &State, now: Time) -> bool {
    let zpl = &state.attrs.zpl;
    let [atime, mtime, ctime] = [zpl.atime, zpl.mtime, zpl.ctime].map(crate::attr::decode_time);
    atime <= mtime || atime <= ctime || now.secs.saturating_sub(atime.secs) >= ACCESS_TIME_SECS
}
