//! Room kept for files by `fallocate`, taken by writes and given back: what [`reservations`](crate::reservations) hold.

use crate::attr::stored;
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::Inode;
use crate::reservations::{NAME_BYTES_MAX, RESERVED, Reservation, STEPS_MAX, Stored, WORDS_MAX};
use crate::types::FILE_SIZE_MAX;
use std::ops::Range;
use std::sync::atomic::Ordering;
use terrane_codec::{Compression, CompressionPolicy};
use terrane_dataset::DatasetError;
use terrane_object::{Object, ObjectKind};
use terrane_pool::{Cost, Pool, Tx};
use terrane_zap::ValueRef;

/// What was promised by a transaction, until somebody has it.
struct Promise<'a> {
    pool: &'a Pool,
    bytes: u64,
}

impl Promise<'_> {
    /// So much of it has somebody.
    fn keep(mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.pool.end_promise(self.bytes);
    }
}

/// The parts of a range that are holes; after so many records the rest counts as one.
fn holes_in(object: &Object, range: Range<u64>, mut steps: u32) -> Result<Vec<Range<u64>>, Errno> {
    let record = u64::from(object.block_size());
    let mut holes = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let data =
            if steps == 0 { range.end } else { object.next_data(at)?.unwrap_or(u64::MAX).min(range.end) };
        if data > at {
            holes.push(at..data);
        }
        at = (data / record).saturating_add(1).saturating_mul(record);
        steps = steps.saturating_sub(1);
    }
    Ok(holes)
}

fn sum_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

impl Fs {
    pub(crate) fn promised_to(&self, inode: &Inode, range: Range<u64>) -> Option<u64> {
        // Asked for only where there is something.
        let is_plain = inode.is_reserved()
            && matches!(self.set.policy().compression, CompressionPolicy::As(Compression::Off));
        self.reservations.promised_to(inode, range, is_plain)
    }

    /// The parts of the records of a write that are holes in what is reserved. To be asked before the write, and before the records get
    /// `grown` bytes, if the file has one record only.
    pub(crate) fn holes_before(
        &self,
        inode: &Inode,
        records: Range<u64>,
        grown: Option<u32>,
    ) -> Result<Vec<Range<u64>>, Errno> {
        if !self.reservations.has_holes(inode) {
            return Ok(Vec::new());
        }
        let object = inode.object();
        let first = grown.filter(|_| object.block_count() > 0).map_or(0, u64::from).min(records.start);
        let mut holes = holes_in(object, 0..first, STEPS_MAX)?;
        holes.extend(holes_in(object, records, STEPS_MAX)?);
        Ok(holes)
    }

    /// These bytes were written. The caller holds the inode's lock.
    pub(crate) fn wrote_reserved(&self, tx: &Tx, inode: &Inode, written: &Range<u64>, holes: &[Range<u64>]) {
        if inode.is_reserved() {
            self.reservations.change(tx, inode, |own| own.write(written, holes));
        }
    }

    /// Nothing is kept for whole records of this range any more, and of one that ends the file nothing behind its end: what is written of
    /// it would not take that. To be asked before they become holes, under the inode's lock.
    pub(crate) fn end_reservation(&self, tx: &Tx, inode: &Inode, range: Range<u64>) -> Result<(), Errno> {
        if !inode.is_reserved() {
            return Ok(());
        }
        let record = u64::from(inode.object().block_size());
        let (cut, start) = (range.start, range.start.next_multiple_of(record));
        let is_cut = range.end >= FILE_SIZE_MAX;
        let range = if is_cut { cut..u64::MAX } else { start..range.end / record * record };
        let Some(own) = self.reservations.get(inode.ino) else { return Ok(()) };
        let gone = own.ranges.iter().map(|own| own.start.max(range.start)..own.end.min(range.end));
        let gone: Vec<Range<u64>> = gone.filter(|part| part.start < part.end).collect();
        let bytes = sum_of(&gone);
        let (mut holes, mut partial) = (0, 0);
        if own.holes >= own.len() || bytes >= own.len() {
            holes = bytes;
        } else {
            for part in gone {
                let last = part.start..part.end.min(start).max(part.start);
                let (in_last, part) =
                    (holes_in(inode.object(), last.clone(), STEPS_MAX)?, last.end..part.end);
                partial += (last.end - last.start) - sum_of(&in_last);
                holes += sum_of(&in_last);
                if own.holes > 0 {
                    holes += sum_of(&holes_in(inode.object(), part, STEPS_MAX)?);
                }
            }
        }
        if bytes > 0 {
            self.reservations.change(tx, inode, |own| own.remove(&range, holes, partial));
        }
        Ok(())
    }

    /// The file goes, and is in nobody's hands.
    pub(crate) fn drop_reservation(&self, tx: &Tx, inode: &Inode) {
        if self.reservations.has(inode.ino) {
            self.reservations.change(tx, inode, |own| own.remove(&(0..u64::MAX), u64::MAX, 0));
        }
    }

    /// The file has other records. The caller holds the inode's lock.
    pub(crate) fn recount_reservation(&self, tx: &Tx, inode: &Inode) -> Result<(), Errno> {
        let Some(own) = self.reservations.get(inode.ino).filter(|_| inode.is_reserved()) else {
            return Ok(());
        };
        let mut holes = 0;
        for range in own.ranges {
            holes += sum_of(&holes_in(inode.object(), range, STEPS_MAX)?);
        }
        self.reservations.change(tx, inode, |own| {
            let written = own.holes.saturating_sub(holes);
            own.holes -= written;
            // They lie in a record that others have written a part of.
            own.partial = own.partial.saturating_add(written);
        });
        Ok(())
    }

    fn make_reservations(&self) -> Result<(), Errno> {
        let reservations = &self.reservations;
        if reservations.is_broken {
            return Err(Errno::EIO);
        }
        let _making = reservations.making.lock();
        if reservations.stored.get().is_some() {
            return Ok(());
        }
        let put = self.master.lock().put_cost(RESERVED.len(), ValueRef::U64s(&[0]));
        let cost = Cost { meta_bytes: put.bytes, meta_blocks: 8, objects: 2, ..Cost::NOTHING };
        let tx = self.begin(cost, &[])?;
        let zap = self.dataset().new_zap(&tx, ObjectKind::Zap).map_err(|error| match error {
            DatasetError::Object(error) => error.into(),
            error => {
                log::error!("the ZAP of reservations cannot be created: {error}");
                Errno::EIO
            }
        })?;
        let number = zap.object().id().0;
        self.claim_new(&tx, number);
        if let Err(error) = self.master.lock().add_u64(&tx, RESERVED, number) {
            self.set.destroy(&tx, zap.object())?;
            return Err(error.into());
        }
        let _ = reservations.stored.set(Stored::new(zap));
        Ok(())
    }

    /// Keeps room for what is not stored of a range. `extends`: the file gets as long. What others can see changed, or not.
    pub(crate) fn reserve(&self, inode: &Inode, range: &Range<u64>, extends: bool) -> Result<(), Errno> {
        let object = inode.object();
        loop {
            let block = object.block_size();
            let before = self.reservations.get(inode.ino);
            let (size, generation) = {
                let state = inode.read();
                state.check_extensible()?;
                (state.attrs.zpl.size, state.attrs.zpl.generation)
            };
            let record = self.block_for(inode, range.end.max(size)).unwrap_or(block);
            let first = before.clone().unwrap_or(Reservation { generation, ..Reservation::default() });
            let missing = first.missing(range.clone());
            let mut holes = 0;
            for part in &missing {
                holes += sum_of(&holes_in(object, part.clone(), u32::MAX)?);
            }
            let charged = first.charge;
            let with = |holes| {
                let mut after = first.clone();
                after.record_bytes = after.record_bytes.max(record.into());
                after.add(range.clone(), holes);
                after.charge = after.worst().max(charged);
                after
            };
            let more = if holes > 0 { with(holes).charge - charged } else { 0 };
            if more > self.set.usage().available_bytes {
                return Err(Errno::ENOSPC);
            }
            let mut cost = Cost { meta_blocks: 4, ..Cost::NOTHING };
            if holes > 0 {
                self.make_reservations()?;
                let Some(stored) = self.reservations.stored.get() else { return Err(Errno::EIO) };
                let put = stored.zap.lock().put_cost(NAME_BYTES_MAX, ValueRef::U64s(&[0; WORDS_MAX]));
                cost = Cost { meta_bytes: put.bytes, promises: more, ..cost };
            }
            let tx = self.begin(cost, &[(&inode.claims, Need::attrs())])?;
            let promise = Promise { pool: tx.pool(), bytes: more };
            let mut state = inode.write();
            state.check_extensible()?;
            if object.block_size() != block || self.reservations.get(inode.ino) != before {
                continue;
            }
            // What others have written since it was counted would never be written for the first time.
            let mut holes_now = 0;
            for part in missing.iter().filter(|_| holes > 0) {
                holes_now += sum_of(&holes_in(object, part.clone(), STEPS_MAX)?);
            }
            let holes = holes.min(holes_now);
            let set_ids_went = inode.lose_set_ids(&mut state);
            let grows = extends && range.end > state.attrs.zpl.size;
            if grows {
                state.attrs.zpl.size = range.end;
                state.content_changed(self.now());
            } else if set_ids_went {
                state.attrs.zpl.ctime = stored(self.now());
            }
            // Nothing else that anybody could see has changed.
            if grows || set_ids_went {
                self.save(&tx, inode, &mut state)?;
            }
            if holes > 0 {
                let after = with(holes);
                let kept = after.charge - charged;
                let mut files = self.reservations.files.lock();
                files.put(inode.ino, Some(after));
                self.reservations.count.store(files.all.len(), Ordering::Relaxed);
                self.reservations.note(&tx, &mut files, inode.ino);
                inode.set_reserved(true);
                promise.keep(kept);
                drop(files);
                self.touch(&tx, inode);
            }
            return Ok(());
        }
    }

    /// Bytes that are promised to files, and their sum: equal, or something is wrong.
    #[doc(hidden)]
    pub fn promised(&self) -> (u64, u64) {
        (self.set.pool().promised_bytes(), self.reservations.sum())
    }
}
