//! Append: blocks are gathered into batches, and batches are written to zones.
//!
//! Each slot gathers blocks for its open zone. A block gets its final address at once. A batch is written as one contiguous write, with
//! its directory part at the end. Only the end of a batch is padded to the write unit. Reads are served from the gathered bytes until
//! their write has completed.
//!
//! If a batch write fails, its zone is closed after the last good batch. Its blocks are appended elsewhere under their old addresses,
//! as *moved* blocks: an address is final when it is assigned.
//!
//! Only the sync thread of the txg appends. One writer thread at most stands between it and the device, so writes to a zone keep their
//! order. A zone that is full is finished on its drive before the next one is opened, so a drive's open limits always hold. The sync
//! thread hands a batch to the writer. On one processor it writes the batch itself if the writer is idle and the device is fast
//! (`Writer::is_slower_than_caller`).
//!
//! Open zones are slots ([`Layout`]). When no empty zone is left, a block goes to any open zone with free space. Placement is a hint;
//! that a txg can commit is not.
//!
//! Invariant: `WriteBuffer` holds exactly the bytes between what the device has and the end of what was appended.

mod write_buffer;
mod writer;

use crate::PoolError;
use crate::counters::Counters;
use crate::devices::Devices;
pub use colocated::ColocatedCopy;
use flume::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_cache::parts::PartCache;
use terrane_device::{AlignedBuf, Device};
use terrane_format::addr::{Addr, GRANULE, granule_bytes};
use terrane_format::directory::{
    Entry, NO_PART, Owner, POOL_DEAD_LOG, POOL_SECTION, Part, PartEncoder, PartHead,
};
use terrane_format::record::{Home, Move, OpenedZone, PartCopy, WrittenZone, ZoneClass, runs_of};
use terrane_format::zone_header::{ZONE_MAGIC, ZoneHeader};
use terrane_space::account::MetadataReserve;
use terrane_space::policy::{Age, Heat, Layout, Placement, Placer, Supply, ZoneSupply};
use terrane_wire::{DeviceIdx, Txg, ZoneSeq};
pub use write_buffer::WriteBuffer;

mod colocated;
mod slots;
use writer::{Done, Pace, Work, Writer, execute};

/// Supplies empty zones. Behind it are the pool's space tables.
pub trait ZoneSource {
    /// Empty zones that [`ZoneSource::open_zone`] can open, given that zones are open on the devices `open`.
    fn empty_zones(&self, open: &[DeviceIdx]) -> usize;

    /// Opens an empty physical zone under a new sequence number, on a special device if `special` is set and there is one. Zones are
    /// open on the devices `open`. `NoSpace`: none of the zones that counted as empty takes writes.
    fn open_zone(
        &mut self,
        class: ZoneClass,
        special: bool,
        open: &[DeviceIdx],
    ) -> Result<(OpenedZone, Arc<WriteBuffer>), PoolError>;
}

/// A batch is sealed at this many bytes. In smaller zones it is sealed when the zone is full. Each batch ends on a write unit.
pub const BATCH_BYTES: u64 = 1 << 20;
/// Batch size for survivors while the relocation index must shrink: a run lies in one batch, so larger batches mean fewer runs.
pub const COARSE_BATCH_BYTES: u64 = 8 << 20;
/// Batch size in an object store. The parts of a zone's directory name each other, so there should be few.
const FAR_BATCH_BYTES: u64 = 4 << 20;
/// Most batches queued for the device. Multiplied by the batch size, this bounds their memory.
const IN_FLIGHT: usize = 4;
/// Upper bound of one entry of a directory part, in bytes.
const ENTRY_BYTES_MAX: u64 = 96;

/// A sealed batch: what the writer needs, and what a rescue needs if the write fails.
struct Batch {
    slot: usize,
    /// The class of most of its blocks.
    class: ZoneClass,
    seq: ZoneSeq,
    home: Home,
    start: u64,
    txg: Txg,
    /// End of the directory part before this batch, or [`NO_PART`].
    previous: u64,
    data: Arc<AlignedBuf>,
    entries: Vec<Entry>,
    shares_run: Vec<bool>,
    write_buffer: Arc<WriteBuffer>,
}

struct OpenZone {
    seq: ZoneSeq,
    home: Home,
    capacity: u64,
    /// Offset of the batch being gathered.
    start: u64,
    /// End of the newest directory part, or [`NO_PART`].
    last_part: u64,
    entries: Vec<Entry>,
    /// All entries but the last, which may still get the address of another copy.
    part: PartEncoder,
    /// For each entry: whether it may share a run with the moved block before it.
    shares_run: Vec<bool>,
    /// Blocks and bytes in the batch being gathered, indexed as [`ZoneClass::ALL`].
    gathered: [(u64, u64); ZoneClass::ALL.len()],
    write_buffer: Arc<WriteBuffer>,
}

impl OpenZone {
    /// The head of the directory part that will end the batch being gathered.
    fn part_head(&self, (pool, incarnation): (u64, u64), txg: Txg, part_start: u64) -> PartHead {
        PartHead {
            pool,
            incarnation,
            seq: self.seq,
            txg,
            batch_start: self.start,
            part_start,
            previous: self.last_part,
        }
    }
}

/// A block to append.
#[derive(Clone, Copy)]
pub struct Stored<'a> {
    /// The bytes as they are stored: compressed, without padding.
    pub bytes: &'a [u8],
    /// Its birthplace. `None`: it is born here.
    pub identity: Option<Addr>,
    /// The txg in which the block was born.
    pub birth: Txg,
    /// The owner, for the directory entry.
    pub owner: Owner,
    /// Addresses of the other copies that are known already.
    pub other_copies: &'a [Addr],
    /// Zones that hold those copies. The block avoids them if it can.
    pub near: &'a [ZoneSeq],
    /// CRC-32C of `bytes`, for the directory entry.
    pub crc: u32,
    /// No block that lives elsewhere was born between the moved block appended before and this one. So both may share a run: a birth
    /// range has exactly one home.
    pub shares_run: bool,
}

/// Where a block was appended.
#[derive(Clone, Copy, Debug)]
pub struct AppendLocation {
    /// The slot whose open zone took the block.
    pub slot: usize,
    /// The zone.
    pub seq: ZoneSeq,
    /// Offset of the block in the zone, in bytes.
    pub offset: u64,
}

/// Totals of the appends of one txg.
#[derive(Default)]
pub struct AppendTotals {
    /// Zones that were opened.
    pub opened: Vec<OpenedZone>,
    /// Zones that take no more blocks.
    pub filled: Vec<ZoneSeq>,
    /// For each zone that was written to: its claimed end and the bytes born in it.
    pub written: BTreeMap<ZoneSeq, WrittenZone>,
    /// New runs of moved blocks.
    pub moves: Vec<Move>,
    /// Live bytes carried over by moves: identity, destination zone, bytes.
    pub carried: Vec<(Addr, ZoneSeq, u64)>,
    /// Directory parts with moved blocks that need a second copy: zone, part.
    pub moved_parts: Vec<(ZoneSeq, PartCopy, Vec<u8>)>,
    /// Bootstrap blocks of failed batches. They are named by place, so they cannot move under their old address.
    pub lost_boot: Vec<LostBoot>,
    /// Blocks of older txgs that were to move in failed batches, with their granules. They stay where they were.
    pub unmoved: Vec<(Addr, u32)>,
    /// Copies that went to the zone of another copy of the same block.
    pub colocated: Vec<ColocatedCopy>,
    /// Bytes sent to devices, for throttling and statistics.
    pub device_bytes: u64,
    /// Bytes of first copies of metadata.
    metadata_bytes: u64,
}

/// A bootstrap block whose batch write failed.
pub struct LostBoot {
    /// Its address in the failed batch.
    pub addr: Addr,
    /// The slot to append it to again.
    pub slot: usize,
    /// The class of the zone to append it to again.
    pub class: ZoneClass,
    /// Its structure: `POOL_SECTION` or `POOL_DEAD_LOG`.
    pub what: u8,
    /// Its stored bytes.
    pub bytes: Vec<u8>,
}

/// The open zone of every slot, and the writes in flight.
pub struct Streams {
    pool: u64,
    incarnation: u64,
    unit: u64,
    batch_bytes: u64,
    /// Batch size for survivors while the relocation index must shrink.
    coarse_bytes: u64,
    is_coarse: bool,
    metadata: MetadataReserve,
    placer: Placer,
    open: Vec<Option<OpenZone>>,
    to_writer: Option<Writer>,
    pace: Arc<Pace>,
    from_writer: Receiver<Done>,
    done: Sender<Done>,
    /// Work items whose completion was not received yet.
    in_flight: usize,
    failed: Vec<Batch>,
    /// Bytes of zones that moved blocks must leave for the commit: see [`set_commit_floor`](Streams::set_commit_floor).
    commit_floor: u64,
    /// Buffers of completed batches, for reuse.
    spare: Vec<AlignedBuf>,
    devices: Arc<Devices>,
    counters: Arc<Counters>,
    /// Newly written directory parts go here: the collector reads them again.
    parts: Arc<PartCache>,
    /// Totals of the syncing txg, so far.
    pub txg_totals: AppendTotals,
}

impl Streams {
    /// Starts a writer thread unless `workers` is 0.
    pub fn new(
        (pool, incarnation): (u64, u64),
        devices: Arc<Devices>,
        capacity: u64,
        layout: Layout,
        workers: usize,
        counters: Arc<Counters>,
        parts: Arc<PartCache>,
    ) -> Streams {
        let unit = devices.write_unit();
        let (done, from_writer) = unbounded();
        let open = std::iter::repeat_with(|| None).take(layout.slots()).collect();
        let pace = Arc::<Pace>::default();
        let start = || Writer::start(&done, &devices, &counters, (workers == 1, pace.clone()));
        let to_writer = (workers > 0).then(start);
        let batch_bytes = if devices.are_far() { FAR_BATCH_BYTES } else { BATCH_BYTES }.min(capacity);
        Streams {
            pool,
            incarnation,
            unit,
            batch_bytes,
            coarse_bytes: COARSE_BATCH_BYTES.min(capacity),
            is_coarse: false,
            metadata: MetadataReserve { zone_bytes: capacity, recent_txg_bytes: 0 },
            placer: Placer::new(layout, capacity),
            open,
            to_writer,
            pace,
            from_writer,
            done,
            in_flight: 0,
            failed: Vec::new(),
            commit_floor: 0,
            spare: Vec::new(),
            devices,
            counters,
            parts,
            txg_totals: AppendTotals::default(),
        }
    }

    /// The cache of directory parts, which gets every new part.
    pub fn parts(&self) -> &Arc<PartCache> {
        &self.parts
    }

    /// The assignment of roles to slots.
    pub fn layout(&self) -> Layout {
        *self.placer.layout()
    }

    /// From now on metadata shares no slot with data. Zones that are open stay in their slots.
    pub fn separate_metadata(&mut self) {
        let layout = self.layout().with_metadata_slots();
        if layout != self.layout() {
            self.placer = self.placer.with_layout(layout);
            self.open.resize_with(layout.slots(), || None);
        }
    }

    /// Picks the slot for a data block of `bytes` bytes. This may fill the slot's zone; then the next append opens another.
    pub fn pick_data_slot(
        &mut self,
        placement: &Placement,
        (heat, bytes): (Heat, u64),
        supply: Supply,
        txg: Txg,
    ) -> Result<usize, PoolError> {
        if !self.placer.extra_may_continue(supply) {
            // They open no zone, so one that is full would stay open, and could not be collected.
            for slot in self.layout().extra() {
                if self.open[slot].is_some() && self.data_free_bytes(slot) < bytes {
                    self.close_slot(slot, txg)?;
                }
            }
        }
        let choice = self.placer.choose(placement, (heat, bytes), supply, |slot| self.data_free_bytes(slot));
        self.placer.note_placed(choice, placement, heat, bytes);
        if choice.is_fresh {
            self.close_slot(choice.slot, txg)?;
        }
        Ok(choice.slot)
    }

    /// Blocks that are placed from now on belong to this txg. Placement has at most `open_max` zones open, those for which space is
    /// kept in any case; `None`: no limit.
    pub fn begin_txg(&mut self, txg: Txg, open_max: Option<u32>) {
        self.placer.begin_txg(txg);
        self.placer.set_open_max(open_max);
    }

    /// Extra slots with an open zone that took no data lately.
    pub fn left_slots(&self) -> Vec<usize> {
        self.layout()
            .extra()
            .filter(|slot| self.open[*slot].is_some() && self.placer.is_left(*slot))
            .collect()
    }

    /// Whether the end of the slot's zone is better left unused than filled.
    pub fn is_end_spared(&self, slot: usize, supply: Supply) -> bool {
        supply.zones >= ZoneSupply::Ample
            && self.placer.extra_may_continue(supply)
            && self.placer.is_scrap(self.data_free_bytes(slot), supply)
    }

    /// Extra slots that would take data now if zones were plenty.
    pub fn extra_wanted(&self) -> usize {
        self.placer.extra_wanted()
    }

    /// Bytes of zones that the txg has taken, gathered but unsent bytes included.
    pub fn taken_bytes(&self) -> u64 {
        let gathered = self.open.iter().flatten().flat_map(|open| open.gathered);
        self.txg_totals.device_bytes + gathered.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Bytes that still fit into the slot's open zone.
    pub fn free_bytes(&self, slot: usize) -> u64 {
        let open = self.open.get(slot).and_then(Option::as_ref);
        // A zone with a failed batch takes no more, which bounds the blocks that must be rescued.
        let open = open.filter(|open| self.failed.iter().all(|batch| batch.seq != open.seq));
        open.map_or(0, |open| {
            let used = open.start + open.write_buffer.state.lock().tail.len() as u64;
            // One entry for the last block and one for the next.
            let part = open.part.stored_bytes() + 2 * ENTRY_BYTES_MAX;
            (open.capacity - open.capacity % self.unit).saturating_sub(used + part)
        })
    }

    /// Like [`free_bytes`](Streams::free_bytes), without the space kept for metadata in each zone.
    pub fn data_free_bytes(&self, slot: usize) -> u64 {
        self.free_bytes(slot).saturating_sub(self.metadata_reserve())
    }

    fn metadata_reserve(&self) -> u64 {
        self.metadata.reserved()
    }

    /// Bytes of the slot's next zone, of `zone_bytes`, that its metadata will need soon.
    pub fn metadata_needs(&self, slot: usize, zone_bytes: u64) -> u64 {
        self.metadata.needed_of_next_zone(self.data_free_bytes(slot), zone_bytes)
    }

    /// Continues to write in a zone that was open before import.
    pub fn resume_zone(
        &mut self,
        class: ZoneClass,
        seq: ZoneSeq,
        home: Home,
        capacity: u64,
        start: u64,
        claimed: u64,
    ) -> Option<Arc<WriteBuffer>> {
        // Extra slots come first: others may be shared with metadata.
        let mut slots = self.placer.layout().slots_of(class).rev();
        let slot = slots.find(|slot| self.open.get(*slot).is_some_and(Option::is_none))?;
        let write_buffer = Arc::<WriteBuffer>::default();
        write_buffer.state.lock().tail_start = start;
        let last_part = if claimed == 0 { NO_PART } else { claimed };
        let open = OpenZone {
            seq,
            home,
            capacity,
            start,
            last_part,
            entries: Vec::new(),
            part: PartEncoder::new(start),
            shares_run: Vec::new(),
            gathered: Default::default(),
            write_buffer: write_buffer.clone(),
        };
        self.open[slot] = Some(open);
        self.placer.note_opened(slot);
        Some(write_buffer)
    }

    /// Whether batches of survivors are large, so that there are fewer runs.
    pub fn set_coarse(&mut self, is_coarse: bool) {
        self.is_coarse = is_coarse;
    }

    fn batch_bytes_of(&self, slot: usize) -> u64 {
        let is_survivors = || Age::ALL.iter().any(|age| self.layout().survivors(*age) == slot);
        if self.is_coarse && is_survivors() { self.coarse_bytes } else { self.batch_bytes }
    }

    /// Appends one block to a slot. Uses another slot if this one has no space and no zone is empty. Returns the slot, zone and offset,
    /// and the address if the block is born here.
    pub fn append(
        &mut self,
        slot: usize,
        class: ZoneClass,
        txg: Txg,
        block: Stored<'_>,
        source: &mut dyn ZoneSource,
    ) -> Result<AppendLocation, PoolError> {
        let len = granule_bytes(block.bytes.len() as u64);
        // Seal here, not right after the append that filled the batch: its last entry may still get the address of another copy.
        if self.gathered(slot) >= self.batch_bytes_of(slot) {
            self.seal(slot, txg)?;
        }
        let wanted = slot;
        let is_metadata = class.is_metadata() || !block.other_copies.is_empty();
        let is_bounded = block.identity.is_some() && self.commit_floor > 0;
        let needs_empty = is_bounded && self.check_commit_floor(len, source)?;
        let slot = self.slot_with_space(slot, (class, is_metadata), (txg, len), block.near, source)?;
        if needs_empty {
            // Zones that counted as empty may have failed when they were opened.
            self.check_commit_floor(len, source)?;
        }
        if self.gathered(slot) >= 2 * self.batch_bytes_of(slot) {
            // Blocks of other slots come here as well.
            self.seal(slot, txg)?;
        }
        let open = self.open[slot].as_mut().expect("the slot has an open zone");
        let mut state = open.write_buffer.state.lock();
        if state.tail.capacity() == 0 {
            state.tail = take_buffer(&mut self.spare, self.batch_bytes);
        }
        let offset = open.start + state.tail.len() as u64;
        state.tail.extend_from_slice(block.bytes);
        let padded = state.tail.len().next_multiple_of(GRANULE as usize);
        state.tail.resize(padded);
        drop(state);
        let identity = block.identity.unwrap_or_else(|| Addr::new(open.seq, offset));
        if block.near.contains(&open.seq) {
            self.txg_totals.colocated.extend(ColocatedCopy::of(identity, &block));
        }
        // `shares_run` holds only for the requested slot.
        open.shares_run.push(block.shares_run && slot == wanted);
        if let Some(last) = open.entries.last() {
            open.part.push(open.seq, last);
        }
        open.entries.push(Entry {
            offset,
            identity,
            psize: block.bytes.len() as u32,
            crc: block.crc,
            birth: block.birth,
            owner: block.owner,
            other_copies: block.other_copies.to_vec(),
        });
        if class == ZoneClass::MetaA {
            self.txg_totals.metadata_bytes += len;
        }
        let counted = if is_metadata && !class.is_metadata() { ZoneClass::MetaA } else { class };
        let gathered = &mut open.gathered[counted.index()];
        *gathered = (gathered.0 + 1, gathered.1 + len);
        let seq = open.seq;
        if block.identity.is_none() {
            self.written(seq).born_bytes += len;
        } else {
            self.txg_totals.carried.push((identity, seq, len));
        }
        Ok(AppendLocation { slot, seq, offset })
    }

    fn gathered(&self, slot: usize) -> u64 {
        self.open[slot].as_ref().map_or(0, |open| open.write_buffer.state.lock().tail.len() as u64)
    }

    /// Records the address of the other copy in the block appended last to a slot. Does nothing if a new zone has replaced that block's
    /// zone.
    pub fn add_other_copy(&mut self, slot: usize, copy: Addr) {
        if let Some(last) = self.open[slot].as_mut().and_then(|open| open.entries.last_mut()) {
            last.other_copies.push(copy);
        }
    }

    /// The zone that is open in a slot.
    pub fn zone_of(&self, slot: usize) -> Option<ZoneSeq> {
        self.open[slot].as_ref().map(|open| open.seq)
    }

    /// The device of the zone that is open in a slot.
    pub fn device_of(&self, slot: usize) -> Option<DeviceIdx> {
        self.open[slot].as_ref().map(|open| open.home.device)
    }

    /// Pads batches to `unit` bytes from now on. The unit never shrinks.
    pub fn set_unit(&mut self, unit: u64) {
        self.unit = self.unit.max(unit);
    }

    /// Writes one bootstrap block as a batch of its own and waits for it. Nothing else may be gathered or in flight. Returns its
    /// offset, and the bytes from there to the end of the batch. On failure the zone is closed.
    pub fn write_single_batch(
        &mut self,
        slot: usize,
        class: ZoneClass,
        txg: Txg,
        what: u8,
        bytes: &[u8],
    ) -> Result<(ZoneSeq, Home, u64, u64), PoolError> {
        // Wait until filled zones are finished: a drive may have no open zone to spare.
        self.wait_idle();
        assert!(self.failed.is_empty(), "failed batches left before a single-batch write");
        let crc = crc32c::crc32c(bytes);
        let open = self.open[slot].as_mut().expect("the slot was opened before");
        assert!(open.entries.is_empty());
        let mut data = std::mem::take(&mut open.write_buffer.state.lock().tail);
        if data.capacity() == 0 {
            data = take_buffer(&mut self.spare, self.batch_bytes);
        }
        if open.start == 0 {
            // Both copies of a record must take as many bytes, and the zone of the other copy may have been written to.
            data.resize(self.unit as usize);
        }
        let offset = open.start + data.len() as u64;
        data.extend_from_slice(bytes);
        data.resize(data.len().next_multiple_of(GRANULE as usize));
        let entry = Entry {
            offset,
            identity: Addr::new(open.seq, offset),
            psize: bytes.len() as u32,
            crc,
            birth: txg,
            owner: Owner::Pool { structure: what },
            other_copies: Vec::new(),
        };
        let part_start = open.start + data.len() as u64;
        let head = open.part_head((self.pool, self.incarnation), txg, part_start);
        open.part.push(open.seq, &entry);
        let part = std::mem::replace(&mut open.part, PartEncoder::new(0)).finish(&head, self.unit as usize);
        data.extend_from_slice(&part);
        let end = open.start + data.len() as u64;
        let device = self.devices.get(open.home.device)?;
        let counters = &self.counters;
        let written = counters
            .record_duration(&counters.device_write, || device.write(open.home.zone, open.start, &data));
        if let Err(error) = written {
            counters.write_errors.add(1);
            self.close(slot);
            return Err(error.into());
        }
        let bytes = end - open.start;
        let entries = vec![entry];
        counters.count_batch(open.seq, bytes, &entries, &part);
        let previous = (open.last_part != NO_PART).then_some(open.last_part);
        self.parts.insert(Arc::new(Part::new(open.seq, txg, (open.start, end), previous, entries)));
        (open.start, open.last_part, open.part) = (end, end, PartEncoder::new(end));
        open.write_buffer.state.lock().tail_start = end;
        let place = (open.seq, open.home, offset, end - offset);
        self.recycle(data);
        self.txg_totals.device_bytes += bytes;
        let mut gathered = <[(u64, u64); ZoneClass::ALL.len()]>::default();
        gathered[class.index()] = (1, bytes);
        self.note_write(class, &gathered, bytes);
        Ok(place)
    }

    /// Counts a batch of `bytes` bytes. Header, directory part and padding count for the batch's class.
    fn note_write(&self, class: ZoneClass, gathered: &[(u64, u64); ZoneClass::ALL.len()], bytes: u64) {
        self.counters.writes(class).operations.add(1);
        let explained: u64 = gathered.iter().map(|(_, bytes)| bytes).sum();
        self.counters.writes(class).bytes.add(bytes - explained);
        for (class, (blocks, bytes)) in ZoneClass::ALL.into_iter().zip(gathered) {
            self.counters.writes(class).blocks.add(*blocks);
            self.counters.writes(class).bytes.add(*bytes);
        }
    }

    fn written(&mut self, seq: ZoneSeq) -> &mut WrittenZone {
        self.txg_totals.written.entry(seq).or_insert(WrittenZone { seq, claimed: 0, born_bytes: 0 })
    }

    /// Opens an empty zone in a slot. The zone that was open there is closed only once the new one is there.
    fn open_zone(
        &mut self,
        slot: usize,
        class: ZoneClass,
        txg: Txg,
        source: &mut dyn ZoneSource,
    ) -> Result<(), PoolError> {
        let own = self.layout().metadata_only_class(slot);
        let beside = self.other_open_devices(&[slot]);
        // `own` comes from the slot, not from the block: survivors in the slot do not change the kind of its zone.
        let (opened, write_buffer) = source.open_zone(own.unwrap_or(class), own.is_some(), &beside)?;
        self.close_slot(slot, txg)?;
        let header = ZoneHeader {
            magic: ZONE_MAGIC,
            pool: self.pool,
            seq: opened.seq,
            incarnation: self.incarnation,
            txg,
            capacity: opened.capacity,
            class: class as u8,
            granule_shift: 4,
            reserved: [0; 14],
            seal: [0; 16],
        };
        let mut tail = take_buffer(&mut self.spare, self.batch_bytes);
        tail.extend_from_slice(&header.encode_sealed());
        write_buffer.state.lock().tail = tail;
        self.txg_totals.opened.push(opened);
        self.placer.note_opened(slot);
        self.open[slot] = Some(OpenZone {
            seq: opened.seq,
            home: opened.home,
            capacity: opened.capacity,
            start: 0,
            last_part: NO_PART,
            entries: Vec::new(),
            part: PartEncoder::new(0),
            shares_run: Vec::new(),
            gathered: Default::default(),
            write_buffer,
        });
        Ok(())
    }

    /// Ends the batch of a slot and queues it for the writer.
    pub fn seal(&mut self, slot: usize, txg: Txg) -> Result<(), PoolError> {
        let Some(open) = self.open[slot].as_mut().filter(|open| !open.entries.is_empty()) else {
            return Ok(());
        };
        let entries = std::mem::take(&mut open.entries);
        let shares_run = std::mem::take(&mut open.shares_run);
        let gathered = std::mem::take(&mut open.gathered);
        let mut state = open.write_buffer.state.lock();
        let part_start = open.start + state.tail.len() as u64;
        let head = open.part_head((self.pool, self.incarnation), txg, part_start);
        entries.last().iter().for_each(|last| open.part.push(open.seq, last));
        let part = std::mem::replace(&mut open.part, PartEncoder::new(0)).finish(&head, self.unit as usize);
        let end = part_start + part.len() as u64;
        state.tail.extend_from_slice(&part);
        let data = Arc::new(std::mem::take(&mut state.tail));
        state.chunks.push((open.start, data.clone()));
        state.tail_start = end;
        drop(state);
        let (seq, start) = (open.seq, open.start);
        self.counters.count_batch(seq, end - start, &entries, &part);
        let moves = runs_of(seq, end, &entries, &shares_run);
        if !moves.is_empty() {
            self.txg_totals.moves.extend(moves);
            let copy = PartCopy { part_end: end, part_start, addr: Addr::NONE };
            self.txg_totals.moved_parts.push((seq, copy, part));
        }
        let previous = std::mem::replace(&mut open.last_part, end);
        (open.start, open.part) = (end, PartEncoder::new(end));
        let most = ZoneClass::ALL.into_iter().max_by_key(|class| gathered[class.index()].1);
        let batch = Batch {
            slot,
            class: most.unwrap_or(ZoneClass::Data),
            seq,
            home: open.home,
            start,
            txg,
            previous,
            data,
            entries,
            shares_run,
            write_buffer: open.write_buffer.clone(),
        };
        self.written(seq).claimed = end;
        self.txg_totals.device_bytes += end - start;
        self.note_write(batch.class, &gathered, end - start);
        self.submit(Work::Write(batch));
        // Process completions now, so that written buffers are not kept until the txg ends.
        self.poll_completions();
        Ok(())
    }

    /// Processes all completions from the writer, without waiting.
    fn poll_completions(&mut self) {
        while let Ok(done) = self.from_writer.try_recv() {
            self.process_completion(done);
        }
    }

    /// Processes one completion.
    fn process_completion(&mut self, done: Done) {
        self.in_flight -= 1;
        let Some((batch, result)) = done else { return };
        if let Err(error) = &result {
            log::warn!(
                "batch write failed, rewriting to another zone: zone {} at byte {}: {error}",
                batch.seq,
                batch.start
            );
        }
        // A device may store what it reported as failed, and then accept the next batch. That batch lies beyond the claimed end, so it
        // failed too.
        if result.is_err() || self.failed.iter().any(|failed| failed.seq == batch.seq) {
            self.failed.push(batch);
            return;
        }
        batch.write_buffer.state.lock().chunks.retain(|(start, _)| *start != batch.start);
        let end = batch.start + batch.data.len() as u64;
        let previous = (batch.previous != NO_PART).then_some(batch.previous);
        self.parts.insert(Arc::new(Part::new(
            batch.seq,
            batch.txg,
            (batch.start, end),
            previous,
            batch.entries,
        )));
        if let Some(memory) = Arc::into_inner(batch.data) {
            self.recycle(memory);
        }
    }

    fn recycle(&mut self, mut memory: AlignedBuf) {
        // Large buffers are rare, and are not kept. The bound covers the queued batches, the one being written, the one not yet
        // completed, and one for each slot for which space is kept. In an object store that would be too much.
        let is_usual = (1..=4 * self.batch_bytes).contains(&(memory.capacity() as u64));
        let spare_max = if self.batch_bytes > BATCH_BYTES {
            IN_FLIGHT
        } else {
            IN_FLIGHT + 2 + self.layout().kept_slots()
        };
        if is_usual && self.spare.len() < spare_max {
            memory.clear();
            self.spare.push(memory);
        }
    }

    fn submit(&mut self, work: Work) {
        self.poll_completions();
        // Queued work comes first.
        let writer =
            self.to_writer.as_ref().filter(|writer| self.in_flight > 0 || !writer.is_slower_than_caller());
        self.in_flight += 1;
        let answer = match writer.and_then(|writer| writer.queue.as_ref()) {
            Some(queue) => match queue.send(work) {
                Ok(()) => return,
                Err(unsent) => match unsent.0 {
                    Work::Write(batch) => {
                        let ended = PoolError::Failed { reason: "the writer thread ended".into() };
                        Some((batch, Err(ended)))
                    }
                    Work::Finish(_) => None,
                },
            },
            None => execute(work, &self.devices, &self.counters, &self.pace),
        };
        self.done.send(answer).expect("the other end is open");
    }

    /// Waits until the writer is idle.
    fn wait_idle(&mut self) {
        while self.in_flight > 0 {
            let done = self.from_writer.recv().expect("the other end is open");
            self.process_completion(done);
        }
    }

    /// Closes the slot's zone. The next append opens another.
    pub fn close_slot(&mut self, slot: usize, txg: Txg) -> Result<(), PoolError> {
        self.seal(slot, txg)?;
        self.close(slot);
        Ok(())
    }

    fn close(&mut self, slot: usize) {
        if let Some(open) = self.open[slot].take() {
            let memory = std::mem::take(&mut open.write_buffer.state.lock().tail);
            self.recycle(memory);
            self.placer.note_closed(slot);
            self.txg_totals.filled.push(open.seq);
            self.submit(Work::Finish(open.home));
        }
    }

    /// Seals all batches and waits until the devices have them. Returns the bytes whose write failed. Zones with a failed write take no
    /// more.
    pub fn write_out(&mut self, txg: Txg) -> Result<u64, PoolError> {
        for slot in 0..self.open.len() {
            self.seal(slot, txg)?;
        }
        self.wait_idle();
        let mut failed = std::mem::take(&mut self.failed);
        failed.sort_by_key(|batch| (batch.seq, batch.start));
        for batch in &failed {
            // Batches before the first failure stay claimed. The zone takes no more.
            let written = self.written(batch.seq);
            let good = if batch.previous == NO_PART { 0 } else { batch.previous };
            written.claimed = written.claimed.min(good);
            if self.zone_of(batch.slot) == Some(batch.seq) {
                // All batches were sealed above, so nothing is gathered behind the failure.
                debug_assert!(self.open[batch.slot].as_ref().is_some_and(|open| open.entries.is_empty()));
                self.close(batch.slot);
            }
            self.txg_totals
                .moves
                .retain(|moved| !(moved.run.dest == batch.seq && moved.run.part_end() > batch.start));
            self.txg_totals
                .moved_parts
                .retain(|(seq, copy, _)| !(*seq == batch.seq && copy.part_end > batch.start));
        }
        self.failed = failed;
        Ok(self.failed.iter().map(|batch| batch.data.len() as u64).sum())
    }

    /// Appends the blocks of failed batches elsewhere, as moved blocks. Blocks of older txgs that were to move with them stay where
    /// they were and take no space: when zones fail there may be none.
    pub fn rescue(&mut self, txg: Txg, source: &mut dyn ZoneSource) -> Result<(), PoolError> {
        let failed = std::mem::take(&mut self.failed);
        for batch in &failed {
            // A block that went to another slot breaks the sequence: its successor cannot join a run here.
            let mut before = None;
            for (index, entry) in batch.entries.iter().enumerate() {
                let from = usize::try_from(entry.offset - batch.start).unwrap_or(usize::MAX);
                let bytes =
                    batch.data.get(from..from + entry.psize as usize).expect("an entry lies in its batch");
                if let Owner::Pool { structure: what @ (POOL_SECTION | POOL_DEAD_LOG) } = entry.owner {
                    self.written(batch.seq).born_bytes -= granule_bytes(u64::from(entry.psize));
                    let (slot, class) = (batch.slot, batch.class);
                    let lost = LostBoot { addr: entry.identity, slot, class, what, bytes: bytes.to_vec() };
                    self.txg_totals.lost_boot.push(lost);
                    continue;
                }
                let moved = entry.is_moved(batch.seq);
                if moved {
                    // The move did not happen.
                    let len = granule_bytes(u64::from(entry.psize));
                    self.txg_totals.carried.retain(|carried| *carried != (entry.identity, batch.seq, len));
                    if entry.birth < txg {
                        self.txg_totals.unmoved.push((entry.identity, entry.granules()));
                        continue;
                    }
                }
                let near: Vec<ZoneSeq> = entry.other_copies.iter().map(|addr| addr.seq()).collect();
                let block = Stored {
                    bytes,
                    identity: Some(entry.identity),
                    birth: entry.birth,
                    owner: entry.owner,
                    other_copies: &entry.other_copies,
                    near: &near,
                    crc: entry.crc,
                    // Of blocks born here, everything from the failure on moves, so they may share runs. Blocks that were rescued into this
                    // batch keep their `shares_run`.
                    shares_run: index > 0
                        && before == Some(batch.slot)
                        && (!moved || batch.shares_run.get(index) == Some(&true)),
                };
                before = Some(self.append(batch.slot, batch.class, txg, block, source)?.slot);
            }
        }
        Ok(())
    }

    /// Takes the totals of the txg, for its record, and starts anew.
    pub fn take_txg_totals(&mut self) -> AppendTotals {
        self.metadata.note(self.txg_totals.metadata_bytes);
        std::mem::take(&mut self.txg_totals)
    }
}

/// A buffer for a batch: a spare one, or a new one larger than a batch needs, because growing costs new pages and a copy.
fn take_buffer(spare: &mut Vec<AlignedBuf>, batch_bytes: u64) -> AlignedBuf {
    spare.pop().unwrap_or_else(|| AlignedBuf::with_capacity(batch_bytes as usize * 5 / 2))
}

#[cfg(test)]
mod tests;
