//! Reserving space for files by `fallocate`, using it in writes, and releasing it. See
//! [`reservations`](crate::reservations).

use crate::attr::encode_time;
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::Inode;
use crate::intents::Intent;
use crate::operation::{Change, Charges, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::record::Record;
use crate::reservations::{NAME_BYTES_MAX, RESERVED, Reservation, ReservationsZap, STEPS_MAX, WORDS_MAX};
use crate::types::{FILE_SIZE_MAX, Ino};
use smallvec::smallvec;
use std::ops::Range;
use std::sync::atomic::Ordering;
use terrane_codec::{Compression, CompressionPolicy};
use terrane_dataset::{Charge, DatasetError};
use terrane_object::{Object, ObjectKind};
use terrane_pool::{Pool, Tx};
use terrane_txg::cost::Cost;
use terrane_zap::ValueRef;

/// Reserved bytes by both counts, which must be equal.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedBytes {
    /// The count of the pool.
    pub by_pool: u64,
    /// The sum over all files.
    pub by_files: u64,
}

/// Bytes that a transaction reserved for a file and no reservation holds yet. The rest is released on drop.
struct ReservationGuard<'a> {
    pool: &'a Pool,
    bytes: u64,
}

impl ReservationGuard<'_> {
    /// Passes `bytes` of them to a reservation.
    fn transfer(mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for ReservationGuard<'_> {
    fn drop(&mut self) {
        self.pool.end_file_reservation(self.bytes);
    }
}

/// The holes in a range. After `steps` records the rest counts as one hole.
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

/// Reserves space for the parts of a range that are not stored.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    pub ino: Ino,
    /// Byte range, not empty, and within the largest file size.
    pub range: Range<u64>,
    /// The file grows to the end of the range, which programs can see.
    pub extends: bool,
}

/// A reservation counted without a lock, and the state that it was computed from.
pub(crate) struct HeldReserve<'f> {
    inode: InodeRef<'f>,
    block_bytes: u32,
    /// The file's reservation at that time.
    before: Option<Reservation>,
    /// The same, or an empty one.
    base: Reservation,
    /// Record size that the file will have.
    record_bytes: u64,
    /// The parts of the range that are not reserved yet, and the number of hole bytes in them.
    missing: Vec<Range<u64>>,
    holes: u64,
}

impl HeldReserve<'_> {
    /// The file's reservation if `holes` bytes of the range are new holes.
    fn with_added(&self, range: &Range<u64>, holes: u64) -> Reservation {
        let mut after = self.base.clone();
        after.record_bytes = after.record_bytes.max(self.record_bytes);
        after.add(range.clone(), holes);
        after.charge = after.worst_case_bytes().max(self.base.charge);
        after
    }

    /// Bytes that the pool has to reserve in addition.
    fn extra_bytes(&self, range: &Range<u64>) -> u64 {
        if self.holes > 0 { self.with_added(range, self.holes).charge - self.base.charge } else { 0 }
    }
}

impl Operation for Reserve {
    type Held<'f> = HeldReserve<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldReserve<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        let object = inode.object();
        let block_bytes = object.block_size();
        let before = fs.reservations.get(self.ino);
        let (size, generation) = {
            let state = inode.read();
            state.check_extensible()?;
            (state.attrs.zpl.size, state.attrs.zpl.generation)
        };
        let record = fs.block_for(&inode, self.range.end.max(size)).unwrap_or(block_bytes);
        let base = before.clone().unwrap_or(Reservation { generation, ..Reservation::default() });
        let missing = base.missing(self.range.clone());
        let mut holes = 0;
        for part in &missing {
            holes += sum_of(&holes_in(object, part.clone(), u32::MAX)?);
        }
        let record_bytes = record.into();
        let reserve = HeldReserve { inode, block_bytes, before, base, record_bytes, missing, holes };
        if !fs.is_replaying && reserve.extra_bytes(&self.range) > fs.set.usage().available_bytes {
            return Err(Errno::ENOSPC);
        }
        if holes > 0 {
            fs.create_reservations_zap()?;
        }
        Ok(HoldResult::Held(reserve))
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldReserve<'_>) -> Result<OperationCost<'h>, Errno> {
        let mut cost = Cost { meta_blocks: 4, ..Cost::NOTHING };
        if held.holes > 0 {
            let Some(stored) = fs.reservations.stored.get() else { return Err(Errno::EIO) };
            let put = stored.zap.lock().put_cost(NAME_BYTES_MAX, ValueRef::U64s(&[0; WORDS_MAX]));
            cost = Cost { meta_bytes: put.bytes, file_reservation: held.extra_bytes(&self.range), ..cost };
        }
        Ok(OperationCost { cost, needs: smallvec![(&held.inode.claims, Need::attrs())] })
    }

    fn charges(&self, _: &Fs, held: &HeldReserve<'_>) -> Result<Charges, Errno> {
        Ok(smallvec![Charge::of(held.inode.read().owners(), held.holes, 0)])
    }

    fn locks<'h>(held: &'h HeldReserve<'_>) -> Locks<'h> {
        to_lock([&held.inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, held: &HeldReserve<'f>) -> Result<Outcome<()>, Errno> {
        let (fs, tx, inode, now) = (change.fs, change.tx, &held.inode, change.now);
        let guard = ReservationGuard { pool: tx.pool(), bytes: held.extra_bytes(&self.range) };
        let state = change.locked.get(inode.ino);
        state.check_extensible()?;
        let object = inode.object();
        if object.block_size() != held.block_bytes || fs.reservations.get(inode.ino) != held.before {
            return Ok(Outcome::Retry);
        }
        // Parts that were written since then would never be written for the first time.
        let mut holes_now = 0;
        for part in held.missing.iter().filter(|_| held.holes > 0) {
            holes_now += sum_of(&holes_in(object, part.clone(), STEPS_MAX)?);
        }
        let holes = held.holes.min(holes_now);
        let set_ids_went = inode.clear_set_ids(state);
        let grows = self.extends && self.range.end > state.attrs.zpl.size;
        if grows {
            state.attrs.zpl.size = self.range.end;
            state.note_content_changed(now);
        } else if set_ids_went {
            state.attrs.zpl.ctime = encode_time(now);
        }
        // No other change is visible to programs.
        if grows || set_ids_went {
            fs.save(tx, inode, state)?;
        }
        if holes > 0 {
            let after = held.with_added(&self.range, holes);
            let kept = after.charge - held.base.charge;
            let mut files = fs.reservations.files.lock();
            files.put(inode.ino, Some(after));
            fs.reservations.count.store(files.by_ino.len(), Ordering::Relaxed);
            fs.reservations.queue_store(tx, &mut files, inode.ino);
            inode.set_has_reservation(true);
            guard.transfer(kept);
            drop(files);
            fs.touch(tx, inode);
        }
        Ok(Outcome::Saved(()))
    }

    fn intent(&self, change: &mut Change<'_, '_>, _: &HeldReserve<'_>, (): &()) -> Intent<'_> {
        let Reserve { ino, ref range, extends } = *self;
        change.content_intent(ino, Record::Reserve { ino, range: range.clone(), extends })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &HeldReserve<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

impl Fs {
    pub(crate) fn reserved_for(&self, inode: &Inode, range: Range<u64>) -> Option<u64> {
        // Checked only if the file has a reservation.
        let is_plain = inode.has_reservation()
            && matches!(self.set.policy().compression, CompressionPolicy::Fixed(Compression::Off));
        self.reservations.reserved_for(inode, range, is_plain)
    }

    /// The holes in the records of a write. To be called before the write. Also before the file's only record
    /// grows to `grown` bytes.
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

    /// Records a write of these bytes. The caller holds the inode's lock.
    pub(crate) fn note_reserved_write(
        &self,
        tx: &Tx,
        inode: &Inode,
        written: &Range<u64>,
        holes: &[Range<u64>],
    ) {
        if inode.has_reservation() {
            self.reservations.change(tx, inode, |own| own.write(written, holes));
        }
    }

    /// Releases the reservation of all whole records in this range. If the range cuts the file, everything
    /// behind its start is released. To be called before the records become holes, under the inode's lock.
    pub(crate) fn end_reservation(&self, tx: &Tx, inode: &Inode, range: Range<u64>) -> Result<(), Errno> {
        if !inode.has_reservation() {
            return Ok(());
        }
        let record = u64::from(inode.object().block_size());
        let (cut, start) = (range.start, range.start.next_multiple_of(record));
        let is_cut = range.end >= FILE_SIZE_MAX;
        let range = if is_cut { cut..u64::MAX } else { start..range.end / record * record };
        let Some(reservation) = self.reservations.get(inode.ino) else { return Ok(()) };
        let released =
            reservation.ranges.iter().map(|own| own.start.max(range.start)..own.end.min(range.end));
        let released: Vec<Range<u64>> = released.filter(|part| part.start < part.end).collect();
        let bytes = sum_of(&released);
        let (mut holes, mut partial) = (0, 0);
        if reservation.holes >= reservation.len() || bytes >= reservation.len() {
            holes = bytes;
        } else {
            for part in released {
                let last = part.start..part.end.min(start).max(part.start);
                let (in_last, part) =
                    (holes_in(inode.object(), last.clone(), STEPS_MAX)?, last.end..part.end);
                partial += (last.end - last.start) - sum_of(&in_last);
                holes += sum_of(&in_last);
                if reservation.holes > 0 {
                    holes += sum_of(&holes_in(inode.object(), part, STEPS_MAX)?);
                }
            }
        }
        if bytes > 0 {
            self.reservations.change(tx, inode, |own| own.remove(&range, holes, partial));
        }
        Ok(())
    }

    /// Releases the reservation of a file that is being destroyed.
    pub(crate) fn drop_reservation(&self, tx: &Tx, inode: &Inode) {
        if self.reservations.has(inode.ino) {
            self.reservations.change(tx, inode, |own| own.remove(&(0..u64::MAX), u64::MAX, 0));
        }
    }

    /// Recounts the holes after the file's record size changed. The caller holds the inode's lock.
    pub(crate) fn recount_reservation(&self, tx: &Tx, inode: &Inode) -> Result<(), Errno> {
        let Some(own) = self.reservations.get(inode.ino).filter(|_| inode.has_reservation()) else {
            return Ok(());
        };
        let mut holes = 0;
        for range in own.ranges {
            holes += sum_of(&holes_in(inode.object(), range, STEPS_MAX)?);
        }
        self.reservations.change(tx, inode, |own| {
            let written = own.holes.saturating_sub(holes);
            own.holes -= written;
            // They lie in a record of which another part was written.
            own.partial = own.partial.saturating_add(written);
        });
        Ok(())
    }

    fn create_reservations_zap(&self) -> Result<(), Errno> {
        let reservations = &self.reservations;
        if reservations.is_unreadable {
            return Err(Errno::EIO);
        }
        let _making = reservations.creation_lock.lock();
        if reservations.stored.get().is_some() {
            return Ok(());
        }
        let put = self.master.lock().put_cost(RESERVED.len(), ValueRef::U64s(&[0]));
        let cost = Cost { meta_bytes: put.bytes, meta_blocks: 8, objects: 2, ..Cost::NOTHING };
        let tx = self.begin(cost, &[])?;
        let zap = self.dataset().new_zap(&tx, ObjectKind::Zap).map_err(|error| match error {
            DatasetError::Object(error) => error.into(),
            error => {
                log::error!("failed to create the ZAP of reservations: {error}");
                Errno::EIO
            }
        })?;
        let number = zap.object().id().0;
        self.claim_new(&tx, number);
        if let Err(error) = self.master.lock().add_u64(&tx, RESERVED, number) {
            self.set.destroy(&tx, zap.object())?;
            return Err(error.into());
        }
        let _ = reservations.stored.set(ReservationsZap::new(zap));
        Ok(())
    }

    #[doc(hidden)]
    pub fn reserved_bytes(&self) -> ReservedBytes {
        ReservedBytes { by_pool: self.set.pool().file_reserved_bytes(), by_files: self.reservations.sum() }
    }
}
