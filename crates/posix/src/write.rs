//! Regular files: writing, truncating and allocating.
//!
//! A write larger than 1 MiB runs as several operations. Each updates size and times for what it wrote.

use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::{Inode, State};
use crate::intents::Intent;
use crate::operation::{
    Change, Charges, HoldResult, Locks, NAMES_RECORD_BYTES_MAX, Operation, OperationCost, Outcome, to_lock,
};
use crate::record::Record;
use crate::reserve::Reserve;
use crate::types::{FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, FILE_SIZE_MAX, Ino, WriteFlags};
use smallvec::smallvec;
use std::ops::Range;
use terrane_codec::{Compression, CompressionPolicy};
use terrane_dataset::Charge;
use terrane_object::Object;
use terrane_pool::Tx;
use terrane_txg::cost::Cost;

/// Maximum of bytes written in one transaction.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// `write`, up to the bytes of one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'a> {
    pub ino: Ino,
    /// Unused for appends.
    pub offset: u64,
    /// The file may get less of it: it ends at the largest file size.
    pub data: &'a [u8],
    pub flags: WriteFlags,
}

/// A file, and the records that a write needs.
pub(crate) struct HeldWrite<'f> {
    inode: InodeRef<'f>,
    start: u64,
    /// Record size after the write.
    block: u32,
    need: Need,
    from_file_reservation: Option<u64>,
}

impl Operation for Write<'_> {
    type Held<'f> = HeldWrite<'f>;
    /// What was written.
    type Done = Range<u64>;
    /// Bytes that were written.
    type Answer = usize;

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldWrite<'f>, usize>, Errno> {
        let inode = fs.hold(self.ino)?;
        let size = inode.read().attrs.zpl.size;
        let start = if self.flags.append { size } else { self.offset };
        let end = start.saturating_add(self.data.len() as u64);
        let from_file_reservation = fs.reserved_for(&inode, start..end);
        let file_bytes = end.max(size);
        let object = inode.object();
        let block = fs.block_for(&inode, file_bytes).unwrap_or(object.block_size());
        let need = Need::records(object, blocks_of(block.into(), start, end), block, file_bytes);
        Ok(HoldResult::Held(HeldWrite { inode, start, block, need, from_file_reservation }))
    }

    fn cost<'h>(&self, _: &'h Fs, held: &'h HeldWrite<'_>) -> Result<OperationCost<'h>, Errno> {
        let (writes_back, from_file_reservation) = (self.flags.writes_back, held.from_file_reservation);
        let cost = Cost { writes_back, from_file_reservation, ..Cost::NOTHING };
        Ok(OperationCost { cost, needs: smallvec![(&held.inode.claims, held.need.clone())] })
    }

    fn charges(&self, fs: &Fs, held: &HeldWrite<'_>) -> Result<Charges, Errno> {
        let HeldWrite { inode, start, block, .. } = held;
        let bytes = fs.stored_zeros(inode.object(), *start, *block)?.saturating_add(self.data.len() as u64);
        Ok(smallvec![Charge::of(inode.read().owners(), bytes, 0)])
    }

    fn record_bytes_max(&self) -> usize {
        NAMES_RECORD_BYTES_MAX + self.data.len()
    }

    fn locks<'h>(held: &'h HeldWrite<'_>) -> Locks<'h> {
        to_lock([&held.inode])
    }

    fn run<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &HeldWrite<'f>,
    ) -> Result<Outcome<Range<u64>>, Errno> {
        let (fs, tx, inode) = (change.fs, change.tx, &held.inode);
        let state = change.locked.get(inode.ino);
        let offset = if self.flags.append { state.attrs.zpl.size } else { self.offset };
        let bytes_max = FILE_SIZE_MAX.checked_sub(offset).filter(|bytes| *bytes > 0).ok_or(Errno::EFBIG)?;
        let data = self.data.get(..usize::try_from(bytes_max).unwrap_or(usize::MAX)).unwrap_or(self.data);
        state.check_writable(offset)?;
        let end = offset + data.len() as u64;
        let wanted = fs.block_for(inode, end.max(state.attrs.zpl.size));
        let block = wanted.unwrap_or(inode.object().block_size());
        if u64::from(block) > held.need.block_bytes {
            // The file got larger records while the operation waited for space.
            return Ok(Outcome::Retry);
        }
        let holes = fs.holes_before(inode, blocks_of(block.into(), offset, end), wanted)?;
        if let Some(bytes) = wanted {
            inode.object().set_block_size(tx, bytes)?;
        }
        // A replay finds at once what it cannot decompress, since its changes were acknowledged.
        if fs.is_replaying || !inode.object().write_part(tx, offset, data)? {
            inode.object().write(tx, offset, data)?;
        }
        fs.note_reserved_write(tx, inode, &(offset..end), &holes);
        state.attrs.zpl.size = state.attrs.zpl.size.max(end);
        state.note_content_changed(change.now);
        if self.flags.kill_suidgid {
            inode.clear_set_ids(state);
        }
        Ok(Outcome::Changed(offset..end))
    }

    fn is_call(&self) -> bool {
        !self.flags.writes_back
    }

    fn intent(&self, change: &mut Change<'_, '_>, _: &HeldWrite<'_>, written: &Range<u64>) -> Intent<'_> {
        let (ino, offset, kill_suidgid) = (self.ino, written.start, self.flags.kill_suidgid);
        let data = self.data.get(..bytes_of(written)).unwrap_or(self.data);
        change.content_intent(ino, Record::Write { ino, offset, data, kill_suidgid })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &HeldWrite<'f>, written: Range<u64>) -> Result<usize, Errno> {
        Ok(bytes_of(&written))
    }
}

/// Bytes of a range in memory.
fn bytes_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX)
}

/// A file of which a range is zeroed. Whole records inside the range become holes.
pub(crate) struct HeldZero<'f> {
    pub inode: InodeRef<'f>,
    /// Bytes of its records when the cost was computed.
    record_bytes: u32,
}

impl<'f> HeldZero<'f> {
    /// Notes the current record size.
    pub fn of(inode: InodeRef<'f>) -> Self {
        HeldZero { record_bytes: inode.object().block_size(), inode }
    }

    /// Whether a rewrite gave it larger records while the operation waited for space.
    pub fn has_larger_records(&self) -> bool {
        self.inode.object().block_size() > self.record_bytes
    }

    /// This cost, and the inode's attributes.
    pub fn operation_cost(&self, cost: Cost) -> OperationCost<'_> {
        OperationCost { cost, needs: smallvec![(&self.inode.claims, Need::attrs())] }
    }
}

/// `O_TRUNC`
#[derive(Clone, Copy, Debug)]
pub(crate) struct TruncateOnOpen {
    pub ino: Ino,
}

impl Operation for TruncateOnOpen {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        fs.hold(self.ino).map(HoldResult::Held)
    }

    fn cost<'h>(&self, fs: &'h Fs, inode: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        Ok(OperationCost {
            cost: fs.resize_cost(inode, 0)?,
            needs: smallvec![(&inode.claims, Need::attrs())],
        })
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let state = change.locked.get(inode.ino);
        state.check_changeable()?;
        change.fs.resize(change.tx, inode, state, 0)?;
        state.note_content_changed(change.now);
        Ok(Outcome::Changed(()))
    }

    fn intent(&self, change: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        change.content_intent(self.ino, Record::TruncateOnOpen { ino: self.ino })
    }

    fn end<'f>(&self, change: Change<'_, 'f>, _: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        change.fs.forget_loss(self.ino);
        Ok(())
    }
}

/// `fallocate` with holes or zeros: zeroes a range up to the end of the file. Without `keeps_size`, the file
/// grows to it.
#[derive(Clone, Debug)]
pub(crate) struct ZeroRange {
    pub ino: Ino,
    /// Its first byte, and the first one behind it.
    pub range: Range<u64>,
    /// `FALLOC_PUNCH_HOLE`: the range needs no free space. False: `ENOSPC` if the range could not be written.
    pub punches: bool,
    /// The size stays, also if the range ends behind it.
    pub keeps_size: bool,
}

impl Operation for ZeroRange {
    type Held<'f> = HeldZero<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldZero<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        // The space that it holds or has reserved is freed, or reserved again.
        let own = inode.object().used_bytes().saturating_add(fs.reservations.unwritten_bytes(&inode));
        let available = fs.set.usage().available_bytes.saturating_add(own);
        if !self.punches && !fs.is_replaying && self.range.end - self.range.start > available {
            return Err(Errno::ENOSPC);
        }
        Ok(HoldResult::Held(HeldZero::of(inode)))
    }

    fn cost<'h>(&self, _: &'h Fs, held: &'h HeldZero<'_>) -> Result<OperationCost<'h>, Errno> {
        Ok(held.operation_cost(Cost { frees: self.punches, ..edges_cost(&held.inode) }))
    }

    fn locks<'h>(held: &'h HeldZero<'_>) -> Locks<'h> {
        to_lock([&held.inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, held: &HeldZero<'f>) -> Result<Outcome<()>, Errno> {
        if held.has_larger_records() {
            return Ok(Outcome::Retry);
        }
        let (fs, tx, inode) = (change.fs, change.tx, &held.inode);
        let Range { start, end } = self.range.clone();
        let state = change.locked.get(inode.ino);
        state.check_changeable()?;
        let size = state.attrs.zpl.size;
        fs.end_reservation(tx, inode, start..end)?;
        if start < size {
            inode.object().zero_range(tx, start, end.min(size) - start)?;
        }
        inode.clear_set_ids(state);
        if !self.keeps_size && end > size {
            state.attrs.zpl.size = end;
        }
        state.note_content_changed(change.now);
        Ok(Outcome::Changed(()))
    }

    fn intent(&self, change: &mut Change<'_, '_>, _: &HeldZero<'_>, (): &()) -> Intent<'_> {
        let ZeroRange { ino, ref range, punches, keeps_size } = *self;
        change.content_intent(ino, Record::ZeroRange { ino, range: range.clone(), punches, keeps_size })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &HeldZero<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

/// The byte range of whole blocks of `block` bytes that contains these bytes.
fn blocks_of(block: u64, start: u64, end: u64) -> Range<u64> {
    let end = end.checked_next_multiple_of(block).unwrap_or(end);
    start / block * block..end
}

/// Upper bound of what zeroing a range dirties: the records at its edges, at their current size. The rest
/// becomes holes.
pub(crate) fn edges_cost(inode: &Inode) -> Cost {
    let block_bytes = u64::from(inode.object().block_size());
    Cost { write_bytes: 2 * block_bytes, meta_blocks: 4, ..Cost::NOTHING }
}

impl Fs {
    /// Writes data, and returns the number of bytes. It is short only if the pool is full, or for a large
    /// append (over 1 MiB), which must be atomic. `EFBIG`: beyond 2^63-1.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<u32, Errno> {
        let inode = self.hold(ino)?;
        inode.read().check_file()?;
        let mut done = 0usize;
        for chunk in data.chunks(CHUNK_BYTES) {
            let at = offset.checked_add(done as u64).ok_or(Errno::EFBIG);
            match at.and_then(|at| self.execute(&Write { ino, offset: at, data: chunk, flags })) {
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

    /// Zeros that a write from `start` on adds to a new record of this size, where no compression removes them. Zeros
    /// at the end of a record are never stored.
    fn stored_zeros(&self, object: &Object, start: u64, block: u32) -> Result<u64, Errno> {
        let is_plain = matches!(self.set.policy().compression, CompressionPolicy::Fixed(Compression::Off));
        let zeros = start % u64::from(block);
        if !is_plain || zeros == 0 {
            return Ok(0);
        }
        let record = start - zeros;
        let is_new = object.next_data(record)?.is_none_or(|at| at - record >= u64::from(block));
        Ok(if is_new { zeros } else { 0 })
    }

    /// The block size that a file of `end` bytes should get, if it should and can change.
    pub(crate) fn block_for(&self, inode: &Inode, end: u64) -> Option<u32> {
        let object = inode.object();
        let (now, max) = (object.block_size(), self.set.record_size());
        let wanted = u32::try_from(end).unwrap_or(max).min(max).next_multiple_of(512).min(max);
        match object.block_count() {
            // Truncated to nothing: it may become a small file again.
            0 => (wanted != now).then_some(wanted),
            1 => (wanted > now).then_some(wanted),
            _ => None,
        }
    }

    pub(crate) fn resize_cost(&self, inode: &InodeRef<'_>, size: u64) -> Result<Cost, Errno> {
        let state = inode.read();
        state.check_file()?;
        // A size of 0 is at a record boundary, so there is no edge.
        let edges = if size == 0 { 0 } else { edges_cost(inode).write_bytes };
        Ok(Cost { write_bytes: edges, frees: size <= state.attrs.zpl.size, ..edges_cost(inode) })
    }

    /// Changes the size. The caller sets the times and saves.
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
        self.execute(&TruncateOnOpen { ino })
    }

    /// Modes: 0, `KEEP_SIZE`, `PUNCH_HOLE|KEEP_SIZE`, `ZERO_RANGE`, `ZERO_RANGE|KEEP_SIZE`; others are
    /// `EOPNOTSUPP`.
    ///
    /// All modes but a punch reserve space for the parts of the range that are not stored. So their first write
    /// succeeds, whatever other writers do. `ENOSPC`: the pool does not have it. Overwrites need new space like
    /// any other, because of copy-on-write.
    ///
    /// Set-id bits are cleared for every caller: the kernel does not say which callers may keep them.
    /// [`copy_range`](Self::copy_range) does the same.
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
        // Held from here on, so that both steps use the same inode.
        let inode = self.hold(ino)?;
        inode.read().check_file()?;
        if zeroes {
            let punches = mode & FALLOC_PUNCH_HOLE != 0;
            self.execute(&ZeroRange { ino, range: offset..end, punches, keeps_size })?;
        }
        if mode != PUNCH {
            self.execute(&Reserve { ino, range: offset..end, extends: !keeps_size })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{Machine, Short};
    use std::cell::RefCell;

    /// An operation that runs `meanwhile` once while it waits for space, and records the reservations that it
    /// asked for.
    struct WithConcurrentChange<O, F> {
        operation: O,
        meanwhile: F,
        reserved_bytes: RefCell<Vec<u64>>,
    }

    impl<O: Operation, F: Fn(&Fs)> Operation for WithConcurrentChange<O, F> {
        type Held<'f> = O::Held<'f>;
        type Done = O::Done;
        type Answer = O::Answer;

        fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<O::Held<'f>, O::Answer>, Errno> {
            self.operation.hold(fs)
        }

        fn cost<'h>(&self, fs: &'h Fs, held: &'h O::Held<'_>) -> Result<OperationCost<'h>, Errno> {
            let operation_cost = self.operation.cost(fs, held)?;
            let data: u64 =
                operation_cost.needs.iter().map(|(_, need)| need.data.end - need.data.start).sum();
            self.reserved_bytes.borrow_mut().push(operation_cost.cost.write_bytes + data);
            if self.reserved_bytes.borrow().len() == 1 {
                (self.meanwhile)(fs);
            }
            Ok(operation_cost)
        }

        fn locks<'h>(held: &'h O::Held<'_>) -> Locks<'h> {
            O::locks(held)
        }

        fn run<'f>(
            &self,
            change: &mut Change<'_, 'f>,
            held: &O::Held<'f>,
        ) -> Result<Outcome<O::Done>, Errno> {
            self.operation.run(change, held)
        }

        fn intent(&self, change: &mut Change<'_, '_>, held: &O::Held<'_>, done: &O::Done) -> Intent<'_> {
            self.operation.intent(change, held, done)
        }

        fn end<'f>(
            &self,
            change: Change<'_, 'f>,
            held: &O::Held<'f>,
            done: O::Done,
        ) -> Result<O::Answer, Errno> {
            self.operation.end(change, held, done)
        }
    }

    /// A file of many small records.
    fn file(m: &Machine) -> Ino {
        let file = m.fs().file(m.fs().root(), "file").ino;
        m.fs().write(file, 0, &[7; 100_000], WriteFlags::default()).unwrap();
        file
    }

    /// As a rewrite does.
    fn enlarge_records(fs: &Fs, file: Ino) {
        let inode = fs.hold(file).unwrap();
        let cost = Cost { write_bytes: 1 << 20, meta_blocks: 16, ..Cost::NOTHING };
        let tx = fs.begin(cost, &[(&inode.claims, Need::attrs())]).unwrap();
        inode.object().set_record_size(&tx, 64 << 10).unwrap();
    }

    #[test]
    fn a_write_reserves_again_if_records_grew_while_it_waited() {
        let m = Machine::new(1, &[("recordsize", "4K")]);
        let (fs, file) = (m.fs(), file(&m));
        let operation = Write { ino: file, offset: 10, data: &[9; 4], flags: WriteFlags::default() };
        let meanwhile = |fs: &Fs| enlarge_records(fs, file);
        let write = WithConcurrentChange { operation, meanwhile, reserved_bytes: RefCell::default() };
        assert_eq!(fs.execute(&write), Ok(4));
        assert_eq!(*write.reserved_bytes.borrow(), [4 << 10, 64 << 10]);
        let mut found = Vec::new();
        fs.read(file, 0, 20, &mut found).unwrap();
        assert_eq!(found, [[7; 10].as_slice(), &[9; 4], &[7; 6]].concat());
    }

    #[test]
    fn a_truncate_reserves_again_if_records_grew_while_it_waited() {
        let m = Machine::new(1, &[("recordsize", "4K")]);
        let (fs, file) = (m.fs(), file(&m));
        // A rewrite is running, and has not reached the file.
        let record_size = Some(128 << 10);
        let spec = crate::RewriteSpec { root: fs.root(), recursive: true, compression: None, record_size };
        fs.rewrite().begin(&spec).unwrap();
        assert_eq!(fs.resize_cost(&fs.hold(file).unwrap(), 5000).unwrap().write_bytes, 8 << 10);
        let set = crate::SetAttr { size: Some(5000), ..crate::SetAttr::default() };
        let meanwhile = |fs: &Fs| enlarge_records(fs, file);
        let zero = ZeroRange { ino: file, range: 10..5000, punches: true, keeps_size: true };
        let zero = WithConcurrentChange { operation: zero, meanwhile, reserved_bytes: RefCell::default() };
        fs.execute(&zero).unwrap();
        assert_eq!(*zero.reserved_bytes.borrow(), [8 << 10, 128 << 10]);
        let file = m.fs().file(m.fs().root(), "another").ino;
        fs.write(file, 0, &[7; 100_000], WriteFlags::default()).unwrap();
        let meanwhile = |fs: &Fs| enlarge_records(fs, file);
        let cut = crate::setattr::SetAttributes { ino: file, set: &set };
        let cut = WithConcurrentChange { operation: cut, meanwhile, reserved_bytes: RefCell::default() };
        assert_eq!(fs.execute(&cut).unwrap().size, 5000);
        assert_eq!(*cut.reserved_bytes.borrow(), [8 << 10, 128 << 10]);
    }
}
