//! Reading: from a birthplace to verified bytes.
//!
//! The zone table says whether a birth zone is whole, partly moved or gone; only then is a run asked, and the directory part it
//! names: one hop, never a chain. Every block is verified against its pointer. A copy that fails is replaced: the good
//! bytes are queued and appended in the next group under the old address, as a moved block.
//!
//! Invariant: a zone is not reset while a reader is between look-up and completion (`Pin`).

use crate::pool::Pool;
use crate::state::pinned::{Heal, Held, Pin, StoredBytes};
use crate::state::second::SecondLevel;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_cache::blocks::{Found, Packed, Source};
use terrane_codec::{Compression, compute};
use terrane_device::{AlignedBuf, Device, DeviceError};
use terrane_format::addr::{Addr, GRANULE};
use terrane_format::block_ptr::Key;
use terrane_format::block_ptr::{BlockPtr, Normal};
use terrane_format::directory::{Owner, Part, PartTrailer, SPILL, parse_part, parse_trailer};
use terrane_format::record::{Home, PartCopy};
use terrane_store::PoolError;
use terrane_store::patience::Tries;
use terrane_wire::{Corrupt, ZoneSeq};

/// Further tries of a read that failed, at once. Callers do not see an error that lasts a moment, as after the reset of a bus.
const READ_RETRIES: u32 = 2;

/// Heals waiting for the next group are bounded; more are dropped and found again.
const HEALS_MAX: usize = 256;

impl Pool {
    /// The block behind a pointer, verified and decompressed: `lsize` bytes. A hole reads as zeros. `owner` names it in the log.
    pub fn read(&self, ptr: &BlockPtr, owner: Owner) -> Result<Arc<Vec<u8>>, PoolError> {
        match ptr {
            BlockPtr::Hole(hole) => Ok(Arc::new(vec![0; hole.lsize as usize])),
            BlockPtr::Embedded(embedded) => {
                let mut out = Vec::new();
                let lsize = embedded.lsize as usize;
                self.workers
                    .here(|codec| codec.decompress(embedded.compression, &embedded.payload, lsize, &mut out))
                    .map_err(|corrupt| self.damaged(owner, corrupt.within("embedded block")))?;
                Ok(Arc::new(out))
            }
            BlockPtr::Normal(normal) => {
                let (key, kind) = (Key::of(normal), Kind::of(normal));
                let mut found = self.find_cached(key, kind);
                if let Some(Found::Plain(block)) = found {
                    return self.whole(normal, owner, block);
                }
                // Held until the block is in the cache.
                let flight = self.flights.board(key);
                if flight.is_none() {
                    found = self.cache.get(key, kind);
                }
                if let Some(Found::Plain(block)) = found {
                    return self.whole(normal, owner, block);
                }
                let mut out = Vec::new();
                if let Some(Found::Packed(packed) | Found::Ahead(packed)) = found {
                    self.unpack(normal, owner, packed.bytes(), &mut out)?;
                    let block = Arc::new(out);
                    self.cache.insert_plain(key, &block);
                    return Ok(block);
                }
                let (stored, source) = self.fetch(normal, owner)?;
                self.unpack(normal, owner, &stored, &mut out)?;
                let block = Arc::new(out);
                // What is stored as it is shares its memory.
                let packed = match is_stored_as_it_is(normal) {
                    true => Packed::Content(block.clone()),
                    false => packed(normal, &stored),
                };
                self.cache.insert(key, kind, (packed, source), Some(block.clone()));
                Ok(block)
            }
        }
    }

    fn unpack(
        &self,
        normal: &Normal,
        owner: Owner,
        stored: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), PoolError> {
        let lsize = normal.lsize as usize;
        self.workers
            .here(|codec| codec.decompress(normal.compression, stored, lsize, out))
            .map_err(|corrupt| self.damaged(owner, corrupt.within(normal.addrs[0])))
    }

    /// Like [`read`](Pool::read), into the caller's memory of exactly the block's size: for whole blocks, whose content nobody needs a
    /// second time. On an error the memory holds anything.
    pub fn read_into(&self, ptr: &BlockPtr, owner: Owner, out: &mut [u8]) -> Result<(), PoolError> {
        let BlockPtr::Normal(normal) = ptr else {
            out.copy_from_slice(&self.read(ptr, owner)?);
            return Ok(());
        };
        let (key, kind) = (Key::of(normal), Kind::of(normal));
        let unpack = |stored: &[u8], out: &mut [u8]| {
            self.workers
                .here(|codec| codec.decompress_into(normal.compression, stored, out))
                .map_err(|corrupt| self.damaged(owner, corrupt.within(normal.addrs[0])))
        };
        match self.find_cached(key, kind) {
            Some(Found::Plain(block)) => out.copy_from_slice(&self.whole(normal, owner, block)?),
            Some(Found::Ahead(packed)) => unpack(packed.bytes(), out)?,
            Some(Found::Packed(packed)) => {
                unpack(packed.bytes(), out)?;
                // Somebody needed it a second time after all.
                if self.cache.wants_plain(key, kind, out.len()) {
                    self.cache.insert_plain(key, &Arc::new(out.to_vec()));
                }
            }
            None => {
                let (stored, source) = self.fetch(normal, owner)?;
                unpack(&stored, out)?;
                let plain = self.cache.is_plain_only().then(|| Arc::new(out.to_vec()));
                self.cache.insert(key, kind, (packed(normal, &stored), source), plain);
            }
        }
        Ok(())
    }

    /// Keeps a block that was just written.
    pub(crate) fn keep_written(
        &self,
        key: Key,
        kind: Kind,
        (compression, bytes): (u8, &Arc<Vec<u8>>),
        content: &Arc<Vec<u8>>,
    ) {
        let packed = if compression == Compression::Off.id() && bytes.capacity() == bytes.len() {
            Packed::Content(bytes.clone())
        } else {
            // What was compressed lies in memory for what it might have become.
            Packed::copy_of(compression, bytes)
        };
        let plain = self.cache.wants_plain(key, kind, content.len()).then(|| content.clone());
        self.cache.insert(key, kind, (packed, Source::Pool), plain);
    }

    /// Reads and verifies every copy of a block, past the cache; the findings name what is damaged. For `check`.
    pub fn verify(&self, ptr: &BlockPtr) -> Vec<(Addr, PoolError)> {
        let BlockPtr::Normal(normal) = ptr else { return Vec::new() };
        let copies: Vec<Addr> = normal.copies().collect();
        copies
            .into_iter()
            .filter_map(|addr| self.read_copy(normal, addr).err().map(|error| (addr, error)))
            .collect()
    }

    /// Reads every copy of a block, and has those that are damaged replaced by a good one in the next group. Returns how many were.
    pub fn scrub(&self, normal: &Normal, owner: Owner) -> usize {
        self.counters.scrubbed_blocks.add(1);
        let copies: Vec<Addr> = normal.copies().collect();
        let read: Vec<_> = copies.iter().map(|addr| self.read_copy(normal, *addr)).collect();
        let Some(good) = read.iter().find_map(|read| read.as_ref().ok()) else {
            read.iter()
                .take(1)
                .flat_map(|read| read.as_ref().err())
                .for_each(|e| self.error_log.note_block(owner, e));
            return copies.len();
        };
        let bad = copies.iter().zip(&read).filter(|(_, read)| read.is_err());
        bad.map(|(addr, _)| self.queue_heal(*addr, good, normal, owner)).count()
    }

    /// The stored bytes of a block, from a cache device if one has them.
    fn fetch(&self, normal: &Normal, owner: Owner) -> Result<(StoredBytes, Source), PoolError> {
        if let Some(stored) = self.read_cached(normal) {
            return Ok((stored, Source::CacheDevice));
        }
        Ok((self.read_verified(normal, owner)?, Source::Pool))
    }

    /// Content that was found in memory, if it is as long as this pointer says: two that lie may share a birthplace.
    fn whole(&self, normal: &Normal, owner: Owner, block: Arc<Vec<u8>>) -> Result<Arc<Vec<u8>>, PoolError> {
        if block.len() == normal.lsize as usize {
            return Ok(block);
        }
        let corrupt = Corrupt::new(normal.addrs[0], "logical size", block.len(), normal.lsize);
        Err(self.damaged(owner, corrupt))
    }

    pub(crate) fn read_cached(&self, normal: &Normal) -> Option<StoredBytes> {
        let key = Key::of(normal);
        let find = |cache: &Arc<SecondLevel>| Some((cache.clone(), cache.find(key)?));
        let (cache, spot) = self.caches.read().iter().find_map(find)?;
        let unit = u64::from(cache.device().info().write_unit);
        let from = spot.offset / unit * unit;
        let start = (spot.offset - from) as usize;
        let mut stored = StoredBytes::new(start..start + spot.psize as usize);
        stored.buf.prepare((start + spot.psize as usize).next_multiple_of(unit as usize));
        let was_read = cache.device().read(spot.zone, from, &mut stored.buf).is_ok();
        let is_whole = was_read
            && spot.psize == normal.psize
            && compute(normal.checksum_kind, &stored) == normal.checksum;
        cache.note_read(key, spot, is_whole);
        is_whole.then_some(stored)
    }

    /// The block was freed.
    pub(crate) fn uncache(&self, key: Key) {
        self.cache.forget(key);
        self.caches.read().iter().for_each(|cache| cache.forget(key));
    }

    /// The stored bytes of a block from its first good copy. A commit waits for a device that fails: see `suspend`.
    pub(crate) fn read_verified(&self, normal: &Normal, owner: Owner) -> Result<StoredBytes, PoolError> {
        let mut tries = Tries::default();
        let outcome = loop {
            match self.read_any_copy(normal, owner) {
                Err(error) if error.may_pass() => {
                    if let Err(error) = self.wait_for_device(&mut tries, error) {
                        break Err(error);
                    }
                }
                outcome => break outcome,
            }
        };
        self.stop_waiting(&tries, outcome.is_ok());
        outcome.map_err(|error| {
            self.counters.lost_blocks.add(1);
            match error {
                PoolError::Corrupt(corrupt) => self.damaged(owner, corrupt),
                other => {
                    log::error!("{other}; {}", owner_text(owner));
                    self.error_log.note_block(owner, &other);
                    other
                }
            }
        })
    }

    /// A block is damaged if all its copies are: one that could not be read may be good.
    fn read_any_copy(&self, normal: &Normal, owner: Owner) -> Result<StoredBytes, PoolError> {
        let mut bad: Vec<(Addr, PoolError)> = Vec::new();
        for addr in normal.copies() {
            match self.read_copy(normal, addr) {
                Ok(stored) => {
                    for (addr, error) in &bad {
                        log::warn!("{error}; read from another copy, {}", owner_text(owner));
                        self.queue_heal(*addr, &stored, normal, owner);
                    }
                    return Ok(stored);
                }
                Err(error) => bad.push((addr, error)),
            }
        }
        let unread = bad.iter().position(|(_, error)| error.may_pass());
        let (_, error) = bad.swap_remove(unread.unwrap_or(0));
        Err(error)
    }

    fn damaged(&self, owner: Owner, corrupt: Corrupt) -> PoolError {
        log::error!("{corrupt}; {}", owner_text(owner));
        self.error_log.note_block(owner, &corrupt);
        PoolError::Corrupt(corrupt)
    }

    fn queue_heal(&self, addr: Addr, stored: &[u8], normal: &Normal, owner: Owner) {
        let mut heals = self.heals.lock();
        if heals.len() < HEALS_MAX && !heals.iter().any(|heal| heal.addr == addr) {
            let siblings = normal.copies().filter(|copy| *copy != addr).collect();
            heals.push(Heal {
                addr,
                bytes: stored.to_vec(),
                birth: normal.block_birth,
                owner,
                siblings,
                is_damaged: true,
            });
        }
    }

    pub(crate) fn read_copy(&self, normal: &Normal, addr: Addr) -> Result<StoredBytes, PoolError> {
        let mut first = None;
        // A mismatch is looked up afresh once: collection may have moved the block under us.
        for _ in 0..2 {
            let (held, offset) = self.locate(addr, normal.psize)?;
            let mut found = None;
            let read = held.try_replicas(|home| {
                let stored = self.read_replica(&held, home, offset, normal.psize)?;
                self.counters.reads(held.class).blocks.add(1);
                if compute(normal.checksum_kind, &stored) == normal.checksum {
                    return Ok(stored);
                }
                let at = format!("{home} granule {} ({addr})", offset / GRANULE);
                let corrupt =
                    Corrupt::new(at, "checksum of the stored bytes", "that of the block pointer", "another");
                found = Some((home.device, corrupt.clone()));
                Err(corrupt.into())
            });
            match read {
                Ok(stored) => return Ok(stored),
                Err(error) if found.is_none() || error.may_pass() => return Err(error),
                Err(_) if first == found => break,
                Err(_) => first = found,
            }
        }
        let (device, corrupt) = first.expect("set in the first round");
        self.note_checksum_error(device);
        Err(PoolError::Corrupt(corrupt))
    }

    /// Where the block born at `addr` is now.
    pub(crate) fn locate(&self, addr: Addr, psize: u32) -> Result<(Held, u64), PoolError> {
        let unknown = |what| PoolError::Corrupt(Corrupt::new(addr, what, "in the zone tables", "nothing"));
        let (held, moved) = {
            let tables = self.tables.read();
            let run = tables.whereabouts(addr).ok_or_else(|| unknown("birthplace of a block that lives"))?;
            let (seq, part_end) = run.map_or((addr.seq(), None), |run| (run.dest, Some(run.part_end())));
            let zone = tables.zones.get(&seq).ok_or_else(|| unknown("zone of a run"))?;
            (hold(seq, zone), part_end)
        };
        let offset = match moved {
            None => addr.offset(),
            Some(part_end) => {
                let part = self.part(&held, part_end)?;
                let entry = part.find(addr).filter(|entry| entry.psize == psize);
                entry.ok_or_else(|| unknown("block in the directory part of its run"))?.offset
            }
        };
        if offset + u64::from(psize) > held.capacity {
            return Err(Corrupt::new(
                addr,
                "end of the block",
                format_args!("at most {}", held.capacity),
                offset + u64::from(psize),
            )
            .into());
        }
        Ok((held, offset))
    }

    /// Holds a zone that is there.
    pub(crate) fn hold(&self, seq: ZoneSeq) -> Option<Held> {
        self.tables.read().zones.get(&seq).map(|zone| hold(seq, zone))
    }

    /// Bytes of a zone, from what was gathered or from the device.
    pub(crate) fn read_zone(&self, held: &Held, offset: u64, buf: &mut [u8]) -> Result<(), PoolError> {
        let len = u32::try_from(buf.len()).expect("nothing that is read in one piece is larger than a zone");
        buf.copy_from_slice(&self.read_stored(held, offset, len)?);
        Ok(())
    }

    pub(crate) fn read_stored(&self, held: &Held, offset: u64, len: u32) -> Result<StoredBytes, PoolError> {
        held.try_replicas(|home| self.read_replica(held, home, offset, len))
    }

    /// The same from one replica.
    pub(crate) fn read_replica(
        &self,
        held: &Held,
        home: Home,
        offset: u64,
        len: u32,
    ) -> Result<StoredBytes, PoolError> {
        let unit = u64::from(self.device(home.device)?.info().write_unit);
        // Reads are widened to whole write units, which is what devices serve.
        let (from, to) = (offset / unit * unit, (offset + u64::from(len)).next_multiple_of(unit));
        let start = (offset - from) as usize;
        let mut stored = StoredBytes::new(start..start + len as usize);
        stored.buf.prepare((to - from) as usize);
        if held.unwritten.as_ref().is_none_or(|gather| !gather.read(offset, stored.wanted_mut())) {
            self.read_device(held, home, from, &mut stored.buf)?;
        }
        Ok(stored)
    }

    fn read_device(&self, held: &Held, home: Home, from: u64, buf: &mut [u8]) -> Result<(), PoolError> {
        let device = self.device(home.device)?;
        let counters = &*self.counters;
        let reads = counters.reads(held.class);
        reads.operations.add(1);
        reads.bytes.add(buf.len() as u64);
        let mut read = || counters.timed(&counters.device_read, || device.read(home.zone, from, buf));
        let mut outcome = read();
        for _ in 0..READ_RETRIES {
            if !matches!(outcome, Err(DeviceError::Io { .. })) {
                break;
            }
            counters.read_errors.add(1);
            outcome = read();
        }
        if outcome.is_err() {
            counters.read_errors.add(1);
        }
        Ok(outcome?)
    }

    /// A range of a zone that is full, widened to whole write units: where it begins in the zone.
    pub(crate) fn read_units(
        &self,
        held: &Held,
        from: u64,
        to: u64,
        buf: &mut AlignedBuf,
    ) -> Result<u64, PoolError> {
        held.try_replicas(|home| {
            let unit = u64::from(self.device(home.device)?.info().write_unit);
            let from = from / unit * unit;
            buf.prepare((to.next_multiple_of(unit) - from) as usize);
            self.read_device(held, home, from, buf)?;
            Ok(from)
        })
    }

    /// The directory part of a zone that ends at `end`; from its second copy if the first is damaged.
    pub(crate) fn part(&self, held: &Held, end: u64) -> Result<Arc<Part>, PoolError> {
        self.part_near(held, end, &mut Near::new(PART_BYTES))
    }

    fn part_near(&self, held: &Held, end: u64, near: &mut Near) -> Result<Arc<Part>, PoolError> {
        if let Some(part) = self.parts.get(held.seq, end) {
            return Ok(part);
        }
        let part = match self.read_part(held, end, near) {
            Ok(part) => part,
            Err(error) => {
                log::warn!("{error}; trying the second copy");
                match self.read_part_copy(held.seq, end) {
                    Ok(Some(part)) => part,
                    // One that could not be read may be good.
                    Err(unread) if unread.may_pass() => return Err(unread),
                    Ok(None) | Err(_) => return Err(error),
                }
            }
        };
        let part = Arc::new(part);
        self.parts.insert(part.clone());
        Ok(part)
    }

    fn read_part(&self, held: &Held, end: u64, near: &mut Near) -> Result<Part, PoolError> {
        held.try_replicas(|home| self.read_part_of(held, home, end, near))
    }

    fn read_part_of(&self, held: &Held, home: Home, end: u64, near: &mut Near) -> Result<Part, PoolError> {
        near.turn_to(home);
        let bad_end = || {
            Corrupt::new(format_args!("zone {}", held.seq), "end of a directory part", "inside the zone", end)
        };
        if end > held.capacity || end < PartTrailer::SIZE as u64 {
            return Err(bad_end().into());
        }
        if near.up_to(end, PartTrailer::SIZE as u64).is_none() {
            self.read_near(held, home, end, near.reach, near)?;
        }
        let trailer = parse_trailer(near.up_to(end, 0).unwrap_or(&[]), held.seq, end)?;
        let len = end - trailer.part_start;
        if near.up_to(end, len).is_none() {
            self.read_near(held, home, end, len.max(near.reach), near)?;
        }
        let raw = near.up_to(end, len).ok_or_else(bad_end)?;
        let from = raw.len().saturating_sub(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(parse_part(self.pool_id, &trailer, raw.get(from..).unwrap_or(&[]), end)?)
    }

    /// The zone's bytes up to `end`, `len` of them if there are so many.
    fn read_near(
        &self,
        held: &Held,
        home: Home,
        end: u64,
        len: u64,
        near: &mut Near,
    ) -> Result<(), PoolError> {
        let from = end.saturating_sub(len);
        near.from = from;
        near.bytes.clear();
        // It lies in a zone, and the length of one fits.
        let len = u32::try_from(end - from).expect("nothing that is read in one piece is larger than a zone");
        near.bytes.extend_from_slice(&self.read_replica(held, home, from, len)?);
        Ok(())
    }

    /// `None`: there is none.
    fn read_part_copy(&self, seq: ZoneSeq, end: u64) -> Result<Option<Part>, PoolError> {
        let known = {
            let tables = self.tables.read();
            let copies = tables.zones.get(&seq).map_or(&[][..], |zone| &zone.part_copies);
            copies.iter().find(|copy| copy.part_end == end).copied()
        };
        let len = |copy: &PartCopy| u32::try_from(end.checked_sub(copy.part_start)?).ok();
        let Some((copy, len)) = known.and_then(|copy| Some((copy, len(&copy)?))) else { return Ok(None) };
        let (held, offset) = self.locate(copy.addr, len)?;
        let mut raw = vec![0; len as usize];
        self.read_zone(&held, offset, &mut raw)?;
        let trailer = parse_trailer(&raw, seq, end)?;
        Ok(Some(parse_part(self.pool_id, &trailer, &raw, end)?))
    }

    /// All directory parts of a zone, oldest first.
    pub(crate) fn parts_of(&self, held: &Held, claimed: u64) -> Result<Vec<Arc<Part>>, PoolError> {
        let mut parts = Vec::new();
        let mut near = Near::new(PARTS_BYTES);
        let mut end = (claimed > 0).then_some(claimed);
        while let Some(at) = end {
            let part = self.part_near(held, at, &mut near)?;
            // Each part lies before the one that names it, so this ends.
            end = part.previous.filter(|previous| *previous < at && *previous > 0);
            parts.push(part);
        }
        parts.reverse();
        Ok(parts)
    }
}

/// What is read to find one directory part, in bytes, and what to find all of a zone: small groups leave many that lie close together.
const PART_BYTES: u64 = 16 << 10;
const PARTS_BYTES: u64 = 64 << 10;

/// Bytes of a zone, as they were read last.
struct Near {
    home: Home,
    from: u64,
    bytes: Vec<u8>,
    reach: u64,
}

impl Near {
    fn new(reach: u64) -> Near {
        Near { home: Home::default(), from: 0, bytes: Vec::new(), reach }
    }

    /// From now on it holds bytes of this replica.
    fn turn_to(&mut self, home: Home) {
        if self.home != home {
            (self.home, self.from) = (home, 0);
            self.bytes.clear();
        }
    }

    /// What is here of the zone up to `end`, if that is at least `len` bytes.
    fn up_to(&self, end: u64, len: u64) -> Option<&[u8]> {
        let count = usize::try_from(end.checked_sub(self.from)?).ok()?;
        self.bytes.get(..count).filter(|bytes| bytes.len() as u64 >= len)
    }
}

fn hold(seq: ZoneSeq, zone: &terrane_space::zones::Zone) -> Held {
    Held {
        seq,
        class: zone.class,
        replicas: zone.replicas(),
        capacity: zone.capacity,
        unwritten: zone.unwritten.clone(),
        _pin: Pin::new(&zone.pins),
    }
}

fn is_stored_as_it_is(normal: &Normal) -> bool {
    normal.compression == Compression::Off.id()
}

/// What the cache keeps of a block that was read: of content that is stored as it is, not the zeros that may follow.
pub(crate) fn packed(normal: &Normal, stored: &[u8]) -> Packed {
    let content = stored.get(..normal.lsize as usize).filter(|_| is_stored_as_it_is(normal));
    Packed::copy_of(normal.compression, content.unwrap_or(stored))
}

/// A block's owner in words, for the log.
pub fn owner_text(owner: Owner) -> String {
    match owner {
        Owner::Block { objset, object, block: SPILL, .. } => {
            format!("object set {objset} object {object} spill")
        }
        Owner::Block { objset, object, level, block } => {
            format!("object set {objset} object {object} level {level} block {block}")
        }
        Owner::Pool { .. } => "pool metadata".into(),
    }
}
