//! Sync of one txg: append all its changes, then one commit record, flush, one uberblock, flush.
//!
//! The order makes the commit atomic. Data, indirect blocks, dnodes, the meta object set, dead-log blocks and
//! table sections are written first. Then comes the commit record that lists them, and a flush. Only then the
//! uberblock that names the record is appended and flushed. A crash before that leaves unclaimed bytes; after
//! it, the txg is whole.
//!
//! The tables in memory change only after the uberblock, by the same
//! [`Tables::apply`](terrane_space::zones::Tables::apply) that import replays.
//!
//! Invariant: no pointer in a committed tree leads to a block that no record covers.

macro_rules! source {
    ($txg_sync:expr) => {
        Source { pool: $txg_sync.pool, alloc: &mut $txg_sync.st.alloc, txg: $txg_sync.txg }
    };
}

mod commit;
mod source;

use self::source::Source;
use crate::levels::CompressionTicket;
use crate::mover::Mover;
use crate::nopwrite::{EncodeOutcome, WriteDecision};
use crate::pool::{Dropping, Pool, Stream, SyncState, TxgSync, WriteRequest};
use crate::references::{FreedNow, References};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_cache::Kind;
use terrane_codec::{Compression, Compressor};
use terrane_format::Feature;
use terrane_format::addr::Addr;
use terrane_format::block_ptr::Key;
use terrane_format::block_ptr::{BlockPtr, COPIES_MAX, Embedded, Hole, Normal};
use terrane_format::directory::Owner;
use terrane_format::record::ZoneClass;
use terrane_space::policy::{Heat, NopwriteSampling};
use terrane_store::PoolError;
use terrane_store::append::{AppendLocation, Stored};
use terrane_store::pipeline::{EncodeContext, EncodedBlock, Pipeline, PreEncoded};
use terrane_store::read_retry::ReadRetry;
use terrane_store::workers::Pending;
use terrane_txg::commit::CommitBuilder;
use terrane_txg::levels::Method;
use terrane_wire::{Txg, ZoneSeq};

/// Maximum number of blocks, and of bytes, that are compressed before the current one is appended. Memory
/// holds both forms. Large blocks may exceed the bytes, so that all workers stay busy.
const QUEUED_BLOCKS_MAX: usize = 64;
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// Up to this many bytes are compressed on the calling thread, because waking a worker costs more. Most
/// `fsync` calls wait for no more than this.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// [`Method`], as handed to a worker.
enum JobMethod {
    Fixed(Compression),
    Auto(CompressionTicket),
    PreEncoded(PreEncoded),
}

impl Pool {
    /// Syncs the quiesced txg.
    pub(crate) fn sync_txg(self: &Arc<Self>, st: &mut SyncState, txg: Txg) -> Result<(), PoolError> {
        self.sync_steps(st, txg).map_err(|error| match error {
            // Users had reserved the space, so `NoSpace` would be wrong: deleting files does not help.
            PoolError::NoSpace { need, free } => PoolError::Failed {
                reason: format!("no zone takes {need} bytes of the txg, at most {free} are free").into(),
            },
            other => other,
        })
    }

    fn sync_steps(self: &Arc<Self>, st: &mut SyncState, txg: Txg) -> Result<(), PoolError> {
        let client = self.client_if_running()?;
        let started_ns = self.env.monotonic_ns();
        if self.sampling_reset_wanted.swap(false, Ordering::Relaxed) {
            st.nopwrite_sampling = NopwriteSampling::default();
        }
        let mut txg_sync = TxgSync {
            pool: self,
            st,
            txg,
            commit: CommitBuilder::default(),
            released: false,
            uncached: Vec::new(),
            started_ns,
            logical_bytes: 0,
            dropping: Dropping::default(),
            references: References::default(),
        };
        txg_sync.st.streams.begin_txg(txg, self.collection().open_zones_max);
        txg_sync.close_leaving()?;
        let root = match client {
            Some(client) => {
                let _waits = ReadRetry::unlimited();
                client.sync(&mut txg_sync)?
            }
            None => txg_sync.st.root.clone(),
        };
        // Evicted only now, not at release: readers follow the old trees until the new ones are in place.
        std::mem::take(&mut txg_sync.uncached).into_iter().for_each(|key| self.reader.drop_cached(key));
        txg_sync.commit.suspect.append(&mut txg_sync.st.suspects);
        Mover::new(&mut txg_sync).run()?;
        txg_sync.write_sections()?;
        txg_sync.commit(root)
    }
}

impl TxgSync<'_> {
    /// The txg that syncs.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// The pool of the txg.
    pub fn pool(&self) -> &Arc<Pool> {
        self.pool
    }

    /// Writes blocks and returns their pointers, in order. Workers compress and checksum while earlier blocks
    /// are appended.
    pub fn write(&mut self, requests: Vec<WriteRequest>) -> Result<Vec<BlockPtr>, PoolError> {
        let mut pointers = Vec::with_capacity(requests.len());
        let bytes: usize = requests.iter().map(|request| request.data.len()).sum();
        if requests.len() <= 1 || bytes <= INLINE_BYTES_MAX {
            for request in &requests {
                let encoded = self.pool.reader.pipeline.workers().run_inline(self.job(request));
                pointers.push(self.store_block(request, encoded)?);
            }
            return Ok(pointers);
        }
        let mut pending = VecDeque::new();
        let outcome = self.write_queued(requests, &mut pending, &mut pointers);
        // Jobs hold a reference to the pool: none may outlive its txg, even if that failed.
        pending.into_iter().for_each(|(_, encoded)| drop(encoded.wait()));
        outcome.map(|()| pointers)
    }

    fn write_queued(
        &mut self,
        requests: Vec<WriteRequest>,
        pending: &mut VecDeque<(WriteRequest, Pending<EncodeOutcome>)>,
        pointers: &mut Vec<BlockPtr>,
    ) -> Result<(), PoolError> {
        let (queued_min, mut queued_bytes) = (2 * self.pool.env.workers(), 0);
        for request in requests {
            // The queue is bounded: finished blocks go to the device, and their memory is reused, while the
            // rest is compressed.
            while (pending.len() >= QUEUED_BLOCKS_MAX
                || queued_bytes >= QUEUED_BYTES_MAX && pending.len() >= queued_min)
                && let Some((request, encoded)) = pending.pop_front()
            {
                queued_bytes -= request.data.len();
                pointers.push(self.store_block(&request, encoded.wait()?)?);
            }
            queued_bytes += request.data.len();
            let job = self.job(&request);
            pending.push_back((request, self.pool.reader.pipeline.workers().submit(job)));
        }
        while let Some((request, encoded)) = pending.pop_front() {
            pointers.push(self.store_block(&request, encoded.wait()?)?);
        }
        Ok(())
    }

    /// The job that encodes a block, by the method chosen when the job is made.
    fn job(&self, request: &WriteRequest) -> impl FnOnce(&mut Compressor) -> EncodeOutcome + Send + 'static {
        let WriteRequest { ref data, owner, checksum, may_embed, .. } = *request;
        let (data, context) = (data.clone(), EncodeContext { owner, checksum, may_embed });
        let how = match &request.compression {
            Method::Fixed(compression) => JobMethod::Fixed(*compression),
            // The level is chosen when a worker takes the block. Chosen now, it would ignore the blocks that
            // are queued before.
            Method::Auto(levels) => {
                JobMethod::Auto(CompressionTicket::new(levels, self.pool, self.txg, self.logical_bytes))
            }
            Method::PreEncoded(pre_encoded) => JobMethod::PreEncoded(pre_encoded.clone()),
        };
        let (comparison, old_block) = (self.compare_first(request), self.old_block(request));
        move |codec| {
            let differs = comparison.is_some();
            if let Some(same) = comparison.and_then(|comparison| comparison.into_match(&data)) {
                return EncodeOutcome::Same(same);
            }
            let mut encode = |compression| Pipeline::encode(&context, codec, &data, compression);
            let ready = match how {
                JobMethod::Fixed(compression) => encode(compression),
                JobMethod::Auto(ticket) => ticket.encode(data.len() as u64, encode),
                JobMethod::PreEncoded(pre_encoded) => Pipeline::finish_pre_encoded(&context, pre_encoded),
            };
            let is_same = old_block.is_some_and(|old_block| old_block.is_same_as(&ready));
            EncodeOutcome::New { ready, differs, is_same }
        }
    }

    fn store_block(&mut self, request: &WriteRequest, tried: EncodeOutcome) -> Result<BlockPtr, PoolError> {
        let ptr = self.place_block(request, tried)?;
        ptr.features().for_each(|feature| self.pool.note_use(feature));
        Ok(ptr)
    }

    fn place_block(&mut self, request: &WriteRequest, tried: EncodeOutcome) -> Result<BlockPtr, PoolError> {
        let level = match request.owner {
            Owner::Block { level, .. } => level,
            Owner::Pool { .. } => 0,
        };
        let lsize = request.data.len() as u32;
        self.logical_bytes += request.data.len() as u64;
        let ready = match self.decide(request, tried) {
            WriteDecision::Keep(old) => return Ok(old),
            WriteDecision::New(ready) => ready,
        };
        self.pool.store.counters.logical_bytes.add(request.data.len() as u64);
        let (compression, bytes, checksum, crc) = match ready {
            EncodedBlock::Zero => {
                return Ok(BlockPtr::Hole(Hole { kind: request.kind, level, lsize, birth: self.txg }));
            }
            EncodedBlock::Embedded { compression, payload } => {
                return Ok(BlockPtr::Embedded(Embedded {
                    kind: request.kind,
                    level,
                    compression,
                    lsize,
                    birth: self.txg,
                    payload,
                }));
            }
            EncodedBlock::Stored { compression, bytes, checksum, crc } => (compression, bytes, checksum, crc),
        };
        self.pool.store.counters.stored_bytes.add(bytes.len() as u64);
        let mut addrs = [Addr::NONE; COPIES_MAX];
        match request.stream {
            Stream::Data(placement) => {
                let heat = self.st.collector.ages.heat(&placement);
                let supply = self.pool.admission.zone_supply(self.st);
                let slot = self.st.streams.pick_data_slot(
                    &placement,
                    (heat, bytes.len() as u64),
                    supply,
                    self.txg,
                )?;
                let location = self.append((slot, ZoneClass::Data), &bytes, request.owner, crc, None)?;
                if heat == Heat::Hot {
                    self.st.collector.ages.note_hot(location.seq);
                }
                addrs[0] = Addr::new(location.seq, location.offset);
                self.pool.recorder.data(addrs[0], bytes.len(), &placement);
            }
            Stream::Metadata => {
                let locations = self.append_twice(&bytes, request.owner, crc)?;
                let copies = locations.map(|location| Addr::new(location.seq, location.offset));
                addrs[..2].copy_from_slice(&copies);
                self.pool.recorder.metadata(copies, bytes.len());
            }
        }
        // Older versions take such a pointer for damage.
        let content_birth = request.content_birth.filter(|_| self.pool.has(Feature::Births));
        // A block that is only stored in another form will not be read soon, so it is not cached.
        let is_news = !matches!(request.compression, Method::PreEncoded(_));
        if is_news && request.may_embed || request.stream == Stream::Metadata {
            let kind = if request.stream == Stream::Metadata { Kind::Metadata } else { Kind::Data };
            let key = Key { addr: addrs[0], birth: self.txg };
            self.pool.reader.cache_written(key, kind, (compression, &bytes), &request.data);
        }
        Ok(BlockPtr::Normal(Normal {
            addrs,
            checksum,
            checksum_kind: request.checksum,
            compression,
            kind: request.kind,
            level,
            lsize,
            psize: bytes.len() as u32,
            logical_birth: content_birth.unwrap_or(self.txg),
            block_birth: self.txg,
            fill: request.fill,
            is_clone: false,
        }))
    }

    fn append(
        &mut self,
        (slot, class): (usize, ZoneClass),
        bytes: &[u8],
        owner: Owner,
        crc: u32,
        other_copy: Option<Addr>,
    ) -> Result<AppendLocation, PoolError> {
        let near = other_copy.map(|addr| addr.seq());
        self.append_born((slot, class), (bytes, crc), owner, other_copy.as_slice(), near.as_slice())
    }

    /// Appends a block that is born here. If zones have failed and no other takes the block, zones that wait
    /// for their reset are used.
    fn append_born(
        &mut self,
        (slot, class): (usize, ZoneClass),
        (bytes, crc): (&[u8], u32),
        owner: Owner,
        other_copies: &[Addr],
        near: &[ZoneSeq],
    ) -> Result<AppendLocation, PoolError> {
        let birth = self.txg;
        let block =
            Stored { bytes, identity: None, birth, owner, other_copies, near, crc, shares_run: false };
        match self.st.streams.append(slot, class, birth, block, &mut source!(self)) {
            Err(PoolError::NoSpace { .. }) => {
                self.pool.drop_rollback_txgs(self.st, u64::MAX)?;
                self.st.streams.append(slot, class, birth, block, &mut source!(self))
            }
            location => location,
        }
    }

    /// Appends a block of the pool's own metadata, in a zone other than these if possible.
    fn append_own(
        &mut self,
        (slot, class): (usize, ZoneClass),
        bytes: &[u8],
        what: u8,
        near: &[ZoneSeq],
    ) -> Result<AppendLocation, PoolError> {
        let crc = crc32c::crc32c(bytes);
        self.append_born((slot, class), (bytes, crc), Owner::Pool { structure: what }, &[], near)
    }

    /// Appends both copies of a metadata block.
    fn append_twice(
        &mut self,
        bytes: &[u8],
        owner: Owner,
        crc: u32,
    ) -> Result<[AppendLocation; 2], PoolError> {
        let [a, b] = self.st.streams.layout().meta();
        let first = self.append((a, ZoneClass::MetaA), bytes, owner, crc, None)?;
        let other_copy = Addr::new(first.seq, first.offset);
        let second = self.append((b, ZoneClass::MetaB), bytes, owner, crc, Some(other_copy))?;
        // If both copies had to go to one slot, its last block is the second copy.
        if second.slot != first.slot {
            self.st.streams.add_other_copy(first.slot, Addr::new(second.seq, second.offset));
        }
        Ok([first, second])
    }

    /// Appends a block under its old address. Returns the slot that took it.
    pub(crate) fn append_moved(&mut self, slot: usize, block: Stored<'_>) -> Result<usize, PoolError> {
        let identity = block.identity;
        let location =
            self.st.streams.append(slot, ZoneClass::Collection, self.txg, block, &mut source!(self))?;
        self.commit.moved_now.extend(identity.map(|identity| (identity, location.seq)));
        Ok(location.slot)
    }

    /// Frees one copy of a block whose pointer is gone, or its reference if the block is shared.
    pub fn release_copy(&mut self, addr: Addr, granules: u32) {
        self.released = true;
        match self.references.note_freed_copy(addr, granules) {
            FreedNow::Block => self.commit.free_copy(addr, granules),
            FreedNow::Deferred => {}
            FreedNow::TooLate => self.report_late_free(addr),
        }
    }

    /// Frees a block, or one of its references if it is shared. There is no other way to free one. Holes and
    /// embedded blocks occupy no space.
    pub fn release(&mut self, ptr: &BlockPtr) {
        self.released = true;
        if let BlockPtr::Normal(normal) = ptr {
            match self.references.note_freed(normal) {
                FreedNow::Block => self.free_unshared(normal),
                FreedNow::Deferred => {}
                FreedNow::TooLate => self.report_late_free(normal.addrs[0]),
            }
        }
    }

    fn free_unshared(&mut self, normal: &Normal) {
        self.uncached.push(Key::of(normal));
        self.commit.free_block(normal);
    }
}
