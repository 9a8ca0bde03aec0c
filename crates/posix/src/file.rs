//! Regular files: bytes, holes, and how long they are.
//!
//! The size is an attribute; blocks may end before it (a hole at the end) but never hold anything behind it:
//! what shrinks a file zeroes the tail of its last block, so what grows it later shows zeros. A file is one
//! block that grows in steps of 512 bytes until it has the record size; then it gets more blocks.
//!
//! A write larger than 1 MiB is several transactions, each with the size and times that fit what it wrote.

use crate::attr::stored;
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::{Inode, State};
use crate::types::{
    AccessTimes, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, FILE_SIZE_MAX, Ino, Reading, Time,
    WriteFlags, mode,
};
use parking_lot::RwLockWriteGuard;
use std::ops::Range;
use terrane_dataset::AccessTime;
use terrane_object::{Cost, Tx};

/// Bytes written in one transaction, at most.
const CHUNK_BYTES: usize = 1 << 20;
/// Relative access times are renewed after this, changed or not.
const ACCESS_TIME_SECS: i64 = 24 * 3600;

impl State {
    /// `EISDIR`, `EINVAL`: only regular files hold bytes.
    fn check_file(&self) -> Result<(), Errno> {
        match self.attrs.file_type() {
            mode::S_IFREG => Ok(()),
            mode::S_IFDIR => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn content_changed(&mut self, now: Time) {
        self.attrs.zpl.mtime = stored(now);
        self.attrs.zpl.ctime = stored(now);
    }
}

/// The blocks of `block` bytes that hold these bytes.
fn blocks_of(block: u64, start: u64, end: u64) -> Range<u64> {
    let end = end.checked_next_multiple_of(block).unwrap_or(end);
    start / block * block..end
}

impl Fs {
    /// Appends to `out` what there is from `offset` on, up to `len` bytes; fewer only at the end of the file. Who goes on where an earlier
    /// read ended, or in equal steps, has what follows read ahead.
    pub fn read(&self, ino: Ino, offset: u64, len: u32, out: &mut Vec<u8>) -> Result<(), Errno> {
        self.read_as(ino, offset, len, Reading::default(), out)
    }

    /// The same, by what a file was opened with.
    pub fn read_as(
        &self,
        ino: Ino,
        offset: u64,
        len: u32,
        how: Reading,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let inode = self.hold(ino)?;
        if !how.alone {
            inode.object().expect_more(offset..offset.saturating_add(len.into()));
        }
        self.read_held(&inode, offset, len, out)?;
        if !how.quiet {
            self.note_access(&inode);
        }
        Ok(())
    }

    fn read_held(&self, inode: &InodeRef<'_>, offset: u64, len: u32, out: &mut Vec<u8>) -> Result<(), Errno> {
        let failed = {
            let state = inode.read();
            state.check_file()?;
            let there = state.attrs.zpl.size.saturating_sub(offset).min(u64::from(len));
            let there = usize::try_from(there).map_err(|_| Errno::EINVAL)?;
            let start = out.len();
            out.resize(start + there, 0);
            let read = inode.object().read(offset, out.get_mut(start..).unwrap_or_default());
            read.inspect_err(|_| out.truncate(start)).err()
        };
        if let Some(error) = failed {
            // With no lock held: the way to the root takes those of the directories.
            log::error!("reading {} at byte {offset} failed", self.path_of(inode.ino));
            return Err(error.into());
        }
        Ok(())
    }

    /// Renews the access time where mount and property ask for it. Reading never fails because of it: not on a full
    /// pool, not on one that is read-only.
    pub(crate) fn note_access(&self, inode: &InodeRef<'_>) {
        let is_dir = || inode.read().attrs.is_dir();
        let policy = match self.access_times() {
            AccessTimes::Never => AccessTime::Off,
            AccessTimes::Always => AccessTime::On,
            AccessTimes::NotOfDirectories if is_dir() => AccessTime::Off,
            AccessTimes::NotOfDirectories | AccessTimes::AsProperty => self.dataset().access_time(),
        };
        if policy == AccessTime::Off {
            return;
        }
        let now = self.now();
        if policy == AccessTime::Relative && !is_access_time_old(&inode.read(), now) {
            return;
        }
        let Ok(tx) = self.begin(Cost::NOTHING, &[(&inode.claims, Need::attrs())]) else { return };
        let mut state = inode.write();
        state.attrs.zpl.atime = stored(now);
        if let Err(errno) = self.save_read(&tx, inode, &mut state) {
            log::warn!("access time of object {} not stored: {errno}", inode.ino);
        }
    }

    /// How many bytes were written: all, unless the pool filled up or a large append (over 1 MiB) was cut so
    /// that it is one piece. `EFBIG` beyond 2^63-1.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<u32, Errno> {
        let inode = self.hold(ino)?;
        inode.read().check_file()?;
        let mut done = 0usize;
        for chunk in data.chunks(CHUNK_BYTES) {
            let at = offset.checked_add(done as u64).ok_or(Errno::EFBIG);
            match at.and_then(|at| self.write_chunk(&inode, at, chunk, flags)) {
                Ok(written) => {
                    done += written;
                    if written < chunk.len() || flags.append {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        u32::try_from(done).map_err(|_| Errno::EINVAL)
    }

    fn write_chunk(
        &self,
        inode: &InodeRef<'_>,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, Errno> {
        loop {
            let (need, from_promise) = {
                let size = inode.read().attrs.zpl.size;
                let start = if flags.append { size } else { offset };
                let end = start.saturating_add(data.len() as u64);
                let from_promise = self.promised_to(inode, start..end);
                let file_bytes = end.max(size);
                let object = inode.object();
                let block = self.block_for(inode, file_bytes).unwrap_or(object.block_size());
                (Need::records(object, blocks_of(block.into(), start, end), block, file_bytes), from_promise)
            };
            let reserved = need.block_bytes;
            let cost = Cost { writes_back: flags.writes_back, from_promise, ..Cost::NOTHING };
            let tx = self.begin(cost, &[(&inode.claims, need)])?;
            if let Some(written) = self.write_in(&tx, inode, (offset, data, flags), reserved)? {
                return Ok(written);
            }
        }
    }

    /// Writes where room for records of so many bytes was reserved. `None`: while that was waited for the file got larger ones, and
    /// nothing was done.
    fn write_in(
        &self,
        tx: &Tx,
        inode: &Inode,
        (offset, data, flags): (u64, &[u8], WriteFlags),
        reserved: u64,
    ) -> Result<Option<usize>, Errno> {
        let mut state = inode.write();
        let offset = if flags.append { state.attrs.zpl.size } else { offset };
        let room = FILE_SIZE_MAX.checked_sub(offset).filter(|room| *room > 0).ok_or(Errno::EFBIG)?;
        let data = data.get(..usize::try_from(room).unwrap_or(usize::MAX)).unwrap_or(data);
        state.check_writable(offset)?;
        let end = offset + data.len() as u64;
        let wanted = self.block_for(inode, end.max(state.attrs.zpl.size));
        if u64::from(wanted.unwrap_or(inode.object().block_size())) > reserved {
            return Ok(None);
        }
        let block = wanted.unwrap_or(inode.object().block_size());
        let holes = self.holes_before(inode, blocks_of(block.into(), offset, end), wanted)?;
        if let Some(bytes) = wanted {
            inode.object().set_block_size(tx, bytes)?;
        }
        inode.object().write(tx, offset, data)?;
        self.wrote_reserved(tx, inode, &(offset..end), &holes);
        state.attrs.zpl.size = state.attrs.zpl.size.max(end);
        state.content_changed(self.now());
        if flags.kill_suidgid {
            inode.lose_set_ids(&mut state);
        }
        self.save(tx, inode, &mut state)?;
        Ok(Some(data.len()))
    }

    /// The block size a file of `end` bytes should get, if it should and can have another one.
    pub(crate) fn block_for(&self, inode: &Inode, end: u64) -> Option<u32> {
        let object = inode.object();
        let (now, max) = (object.block_size(), self.set.record_size());
        let wanted = u32::try_from(end).unwrap_or(max).min(max).next_multiple_of(512).min(max);
        match object.block_count() {
            // Emptied: it may become a small file again.
            0 => (wanted != now).then_some(wanted),
            1 => (wanted > now).then_some(wanted),
            _ => None,
        }
    }

    /// What zeroing a range may dirty: its edges, in the records that the file has now. What lies between them becomes a hole.
    fn edges_cost(inode: &Inode) -> Cost {
        let block_bytes = u64::from(inode.object().block_size());
        Cost { write_bytes: 2 * block_bytes, meta_blocks: 4, ..Cost::NOTHING }
    }

    /// Begins a transaction with room for the edges of what is zeroed, in the records that the file has by then: a rewrite may give it
    /// others while room is waited for. `cost` is asked for what else is needed.
    pub(crate) fn begin_zeroing<'a>(
        &self,
        inode: &'a InodeRef<'_>,
        cost: impl Fn() -> Result<Cost, Errno>,
    ) -> Result<(Tx, RwLockWriteGuard<'a, State>), Errno> {
        loop {
            let reserved = inode.object().block_size();
            let tx = self.begin(cost()?, &[(&inode.claims, Need::attrs())])?;
            let state = inode.write();
            if inode.object().block_size() <= reserved {
                return Ok((tx, state));
            }
        }
    }

    pub(crate) fn resize_cost(&self, inode: &InodeRef<'_>, size: u64) -> Result<Cost, Errno> {
        let state = inode.read();
        state.check_file()?;
        // What ends at a record's boundary, as nothing at all does, has no edge.
        let edges = if size == 0 { 0 } else { Self::edges_cost(inode).write_bytes };
        Ok(Cost { write_bytes: edges, frees: size <= state.attrs.zpl.size, ..Self::edges_cost(inode) })
    }

    /// The caller sets the times and saves.
    pub(crate) fn resize(&self, tx: &Tx, inode: &Inode, state: &mut State, size: u64) -> Result<(), Errno> {
        state.check_file()?;
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if size <= state.attrs.zpl.size {
            self.end_reservation(tx, inode, size..u64::MAX)?;
        }
        if size < state.attrs.zpl.size {
            inode.object().truncate(tx, size)?;
        }
        state.attrs.zpl.size = size;
        Ok(())
    }

    /// `O_TRUNC`
    pub fn truncate_on_open(&self, ino: Ino) -> Result<(), Errno> {
        let inode = self.hold(ino)?;
        let tx = self.begin(self.resize_cost(&inode, 0)?, &[(&inode.claims, Need::attrs())])?;
        let mut state = inode.write();
        state.check_changeable()?;
        self.resize(&tx, &inode, &mut state, 0)?;
        state.content_changed(self.now());
        self.save(&tx, &inode, &mut state)?;
        self.forget_loss(ino);
        Ok(())
    }

    /// Modes: 0, `KEEP_SIZE`, `PUNCH_HOLE|KEEP_SIZE`, `ZERO_RANGE`, `ZERO_RANGE|KEEP_SIZE`; others are
    /// `EOPNOTSUPP`.
    ///
    /// All but a punch keep room for what is not stored of the range, so that its first write finds some whatever others do. `ENOSPC`:
    /// there is not as much. What is written again later needs room like any other write: every block is written anew.
    ///
    /// Set-id bits go, whoever calls: the kernel does not say who may keep them. So with [`copy_range`](Self::copy_range).
    pub fn fallocate(&self, ino: Ino, mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
        const PUNCH: u32 = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
        const ZERO_AND_KEEP: u32 = FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE;
        let (zeroes, keeps_size) = match mode {
            0 => (false, false),
            FALLOC_KEEP_SIZE => (false, true),
            FALLOC_ZERO_RANGE => (true, false),
            PUNCH | ZERO_AND_KEEP => (true, true),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        let inode = self.hold(ino)?;
        inode.read().check_file()?;
        if zeroes {
            self.zero(&inode, offset..end, (mode, keeps_size))?;
        }
        if mode != PUNCH {
            self.reserve(&inode, &(offset..end), !keeps_size)?;
        }
        Ok(())
    }

    /// Makes a range zeros, as far as the file goes, and the file as long if it says so.
    fn zero(
        &self,
        inode: &InodeRef<'_>,
        range: Range<u64>,
        (mode, keeps_size): (u32, bool),
    ) -> Result<(), Errno> {
        let punches = mode & FALLOC_PUNCH_HOLE != 0;
        // What it holds and what is kept for it comes back, or is asked for again.
        let own = inode.object().used_bytes().saturating_add(self.reservations.left(inode));
        let available = self.set.usage().available_bytes.saturating_add(own);
        if !punches && range.end - range.start > available {
            return Err(Errno::ENOSPC);
        }
        let cost = || Ok(Cost { frees: punches, ..Self::edges_cost(inode) });
        let (tx, mut state) = self.begin_zeroing(inode, cost)?;
        state.check_changeable()?;
        let size = state.attrs.zpl.size;
        self.end_reservation(&tx, inode, range.clone())?;
        if range.start < size {
            inode.object().zero_range(&tx, range.start, range.end.min(size) - range.start)?;
        }
        inode.lose_set_ids(&mut state);
        if !keeps_size && range.end > size {
            state.attrs.zpl.size = range.end;
        }
        state.content_changed(self.now());
        self.save(&tx, inode, &mut state)
    }

    /// `SEEK_DATA`; `ENXIO`: there is no data at or after `offset`.
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

    /// `SEEK_HOLE`; the end of the file counts as one. `ENXIO`: `offset` is not in the file.
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

    /// How many bytes were copied: fewer than `len` at the end of `from`, or when the pool filled up. `EINVAL`:
    /// the ranges overlap in one file.
    pub fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        let source = self.hold(from)?;
        source.read().check_file()?;
        let target = self.hold(to)?;
        target.read().check_file()?;
        if from == to && from_offset.abs_diff(to_offset) < len {
            return Err(Errno::EINVAL);
        }
        // By the size it has now: within one file the copy itself may move the end.
        let len = len.min(source.read().attrs.zpl.size.saturating_sub(from_offset));
        let mut done = 0;
        let mut data = Vec::new();
        while done < len {
            let (Some(at), Some(into)) = (from_offset.checked_add(done), to_offset.checked_add(done)) else {
                break;
            };
            let step = (len - done).min(CHUNK_BYTES as u64);
            data.clear();
            let copied =
                self.read(from, at, u32::try_from(step).unwrap_or(u32::MAX), &mut data).and_then(|()| {
                    if data.is_empty() {
                        Ok(0)
                    } else {
                        self.write_chunk(
                            &target,
                            into,
                            &data,
                            WriteFlags { kill_suidgid: true, ..WriteFlags::default() },
                        )
                    }
                });
            match copied {
                Ok(0) => break,
                Ok(bytes) => done += bytes as u64,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

/// Not later than the last change, or a day old.
fn is_access_time_old(state: &State, now: Time) -> bool {
    let zpl = &state.attrs.zpl;
    let [atime, mtime, ctime] = [zpl.atime, zpl.mtime, zpl.ctime].map(crate::attr::time);
    atime <= mtime || atime <= ctime || now.secs.saturating_sub(atime.secs) >= ACCESS_TIME_SECS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{Machine, Short};

    /// A file of many small records.
    fn file(m: &Machine) -> Ino {
        let file = m.fs().file(m.fs().root(), "file").ino;
        m.fs().write(file, 0, &[7; 100_000], WriteFlags::default()).unwrap();
        file
    }

    #[test]
    fn who_waited_with_the_need_of_small_records_asks_again_for_large_ones() {
        let m = Machine::new(1, &[("recordsize", "4K")]);
        let (fs, file) = (m.fs(), file(&m));
        let inode = fs.hold(file).unwrap();
        let cost = Cost { write_bytes: 1 << 20, meta_blocks: 16, ..Cost::NOTHING };
        let tx = fs.begin(cost, &[(&inode.claims, Need::attrs())]).unwrap();
        // What a rewrite does while a writer waits for room for its 4 KiB.
        inode.object().set_record_size(&tx, 64 << 10).unwrap();
        let write = (10, [9; 4].as_slice(), WriteFlags::default());
        assert_eq!(fs.write_in(&tx, &inode, write, 4096), Ok(None));
        let mut found = [0; 20];
        inode.object().read(0, &mut found).unwrap();
        assert_eq!(found, [7; 20], "nothing was done");
        assert_eq!(fs.write_in(&tx, &inode, write, 64 << 10), Ok(Some(4)));
    }

    #[test]
    fn who_cuts_reserves_the_records_that_the_file_has_by_then() {
        let m = Machine::new(1, &[("recordsize", "4K")]);
        let (fs, file) = (m.fs(), file(&m));
        let inode = fs.hold(file).unwrap();
        // A rewrite goes on, and has not come to it.
        let record_size = Some(128 << 10);
        let spec = crate::RewriteSpec { root: fs.root(), recursive: true, compression: None, record_size };
        fs.rewrite_begin(&spec).unwrap();
        assert_eq!(fs.resize_cost(&inode, 5000).unwrap().write_bytes, 8 << 10);
        let asked = std::cell::RefCell::new(Vec::new());
        let cost = || {
            let cost = Fs::edges_cost(&inode);
            asked.borrow_mut().push(cost.write_bytes);
            if asked.borrow().len() == 1 {
                // What it does while room is waited for.
                let all = Cost { write_bytes: 1 << 20, meta_blocks: 16, ..Cost::NOTHING };
                let tx = fs.begin(all, &[(&inode.claims, Need::attrs())])?;
                inode.object().set_record_size(&tx, 64 << 10)?;
            }
            Ok(cost)
        };
        drop(fs.begin_zeroing(&inode, cost).unwrap());
        assert_eq!(*asked.borrow(), [8 << 10, 128 << 10]);
    }
}
