//! Sync of one txg (group): append all its changes, then one commit record, flush, one uberblock, flush.
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
    ($group:expr) => {
        Source { pool: $group.pool, alloc: &mut $group.st.alloc, txg: $group.txg }
    };
}

mod commit;
mod source;

use self::source::Source;
use crate::levels::Turn;
use crate::mover::Mover;
use crate::nopwrite::{Judged, Tried};
use crate::pool::{Group, Pool, Stream, SyncState, WriteRequest};
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
use terrane_format::record::Class;
use terrane_space::policy::{Heat, Looks};
use terrane_store::PoolError;
use terrane_store::append::{Spot, Stored};
use terrane_store::patience::Patience;
use terrane_store::pipeline::{EncodeContext, Made, Pipeline, Ready};
use terrane_store::workers::Pending;
use terrane_txg::commit::CommitBuilder;
use terrane_txg::levels::Method;
use terrane_wire::{Txg, ZoneSeq};

/// Maximum number of blocks, and of bytes, that are compressed before the current one is appended. Memory
/// holds both forms. Large blocks may exceed the bytes, so that all workers stay busy.
const AHEAD_MAX: usize = 64;
const AHEAD_BYTES: usize = 16 << 20;
/// Up to this many bytes are compressed on the calling thread, because waking a worker costs more. Most
/// `fsync` calls wait for no more than this.
const HERE_MAX: usize = 32 << 10;

/// [`Method`], as handed to a worker.
enum How {
    As(Compression),
    Auto(Turn),
    Made(Made),
}

impl Pool {
    /// Syncs the quiesced txg.
    pub(crate) fn sync_group(self: &Arc<Self>, st: &mut SyncState, txg: Txg) -> Result<(), PoolError> {
        self.sync_parts(st, txg).map_err(|error| match error {
            // Users had reserved the space, so `NoSpace` would be wrong: deleting files does not help.
            PoolError::NoSpace { need, free } => PoolError::Failed {
                reason: format!("no zone takes {need} bytes of a group, {free} at the most").into(),
            },
            other => other,
        })
    }

    fn sync_parts(self: &Arc<Self>, st: &mut SyncState, txg: Txg) -> Result<(), PoolError> {
        let client = self.client_if_alive()?;
        let started_ns = self.env.monotonic_ns();
        if self.looks_afresh.swap(false, Ordering::Relaxed) {
            st.looks = Looks::default();
        }
        let mut group = Group {
            pool: self,
            st,
            txg,
            commit: CommitBuilder::default(),
            released: false,
            uncached: Vec::new(),
            started_ns,
            logical_bytes: 0,
        };
        group.close_leaving()?;
        let root = match client {
            Some(client) => {
                let _waits = Patience::unlimited();
                client.sync(&mut group)?
            }
            None => group.st.root.clone(),
        };
        // Evicted only now, not at release: readers follow the old trees until the new ones are in place.
        std::mem::take(&mut group.uncached).into_iter().for_each(|key| self.reader.uncache(key));
        group.commit.suspect.append(&mut group.st.suspects);
        Mover::new(&mut group).run()?;
        group.write_sections()?;
        group.commit(root)
    }
}

impl Group<'_> {
    pub fn txg(&self) -> Txg {
        self.txg
    }

    pub fn pool(&self) -> &Arc<Pool> {
        self.pool
    }

    /// Writes blocks and returns their pointers, in order. Workers compress and checksum while earlier blocks
    /// are appended.
    pub fn write(&mut self, requests: Vec<WriteRequest>) -> Result<Vec<BlockPtr>, PoolError> {
        let mut pointers = Vec::with_capacity(requests.len());
        let bytes: usize = requests.iter().map(|request| request.data.len()).sum();
        if requests.len() <= 1 || bytes <= HERE_MAX {
            for request in &requests {
                let made = self.pool.reader.pipeline.workers().here(self.job(request));
                pointers.push(self.place(request, made)?);
            }
            return Ok(pointers);
        }
        let mut pending = VecDeque::new();
        let outcome = self.write_ahead(requests, &mut pending, &mut pointers);
        // Jobs hold a reference to the pool: none may outlive its txg, even if that failed.
        pending.into_iter().for_each(|(_, made)| drop(made.wait()));
        outcome.map(|()| pointers)
    }

    fn write_ahead(
        &mut self,
        requests: Vec<WriteRequest>,
        pending: &mut VecDeque<(WriteRequest, Pending<Tried>)>,
        pointers: &mut Vec<BlockPtr>,
    ) -> Result<(), PoolError> {
        let (ahead_min, mut ahead_bytes) = (2 * self.pool.env.workers(), 0);
        for request in requests {
            // The queue is bounded: finished blocks go to the device, and their memory is reused, while the
            // rest is compressed.
            while (pending.len() >= AHEAD_MAX || ahead_bytes >= AHEAD_BYTES && pending.len() >= ahead_min)
                && let Some((request, made)) = pending.pop_front()
            {
                ahead_bytes -= request.data.len();
                pointers.push(self.place(&request, made.wait()?)?);
            }
            ahead_bytes += request.data.len();
            let job = self.job(&request);
            pending.push_back((request, self.pool.reader.pipeline.workers().submit(job)));
        }
        while let Some((request, made)) = pending.pop_front() {
            pointers.push(self.place(&request, made.wait()?)?);
        }
        Ok(())
    }

    /// The job that encodes a block, by the method chosen when the job is made.
    fn job(&self, request: &WriteRequest) -> impl FnOnce(&mut Compressor) -> Tried + Send + 'static {
        let WriteRequest { ref data, owner, checksum, may_embed, .. } = *request;
        let (data, context) = (data.clone(), EncodeContext { owner, checksum, may_embed });
        let how = match &request.compression {
            Method::As(compression) => How::As(*compression),
            // The level is chosen when a worker takes the block. Chosen now, it would ignore the blocks that
            // are queued before.
            Method::Auto(levels) => How::Auto(Turn::new(levels, self.pool, self.txg, self.logical_bytes)),
            Method::Made(made) => How::Made(made.clone()),
        };
        let (look, standing) = (self.look_first(request), self.standing(request));
        move |codec| {
            let differs = look.is_some();
            if let Some(same) = look.and_then(|look| look.take(&data)) {
                return Tried::Same(same);
            }
            let mut encode = |compression| Pipeline::encode(&context, codec, &data, compression);
            let ready = match how {
                How::As(compression) => encode(compression),
                How::Auto(turn) => turn.encode(data.len() as u64, encode),
                How::Made(made) => Pipeline::encode_made(&context, made),
            };
            let stands = standing.is_some_and(|standing| standing.is(&ready));
            Tried::New { ready, differs, stands }
        }
    }

    fn place(&mut self, request: &WriteRequest, tried: Tried) -> Result<BlockPtr, PoolError> {
        let level = match request.owner {
            Owner::Block { level, .. } => level,
            Owner::Pool { .. } => 0,
        };
        let lsize = request.data.len() as u32;
        self.logical_bytes += request.data.len() as u64;
        let ready = match self.judge(request, tried) {
            Judged::Stays(old) => return Ok(old),
            Judged::New(ready) => ready,
        };
        self.pool.store.counters.logical_bytes.add(request.data.len() as u64);
        let (compression, bytes, checksum, crc) = match ready {
            Ready::Zero => {
                return Ok(BlockPtr::Hole(Hole { kind: request.kind, level, lsize, birth: self.txg }));
            }
            Ready::Embedded { compression, payload } => {
                return Ok(BlockPtr::Embedded(Embedded {
                    kind: request.kind,
                    level,
                    compression,
                    lsize,
                    birth: self.txg,
                    payload,
                }));
            }
            Ready::Stored { compression, bytes, checksum, crc } => (compression, bytes, checksum, crc),
        };
        self.pool.store.counters.stored_bytes.add(bytes.len() as u64);
        let mut addrs = [Addr::NONE; COPIES_MAX];
        match request.stream {
            Stream::Data(placement) => {
                let heat = self.st.collector.ages.heat(&placement);
                let stock = self.pool.admission.zone_stock(self.st);
                let slot = self.st.streams.place(&placement, (heat, bytes.len() as u64), stock, self.txg)?;
                let spot = self.append((slot, Class::Data), &bytes, request.owner, crc, Vec::new())?;
                if heat == Heat::Hot {
                    self.st.collector.ages.note_hot(spot.seq);
                }
                addrs[0] = Addr::new(spot.seq, spot.offset);
                self.pool.recorder.data(addrs[0], bytes.len(), &placement);
            }
            Stream::Metadata => {
                let spots = self.append_twice(&bytes, request.owner, crc)?;
                let copies = spots.map(|spot| Addr::new(spot.seq, spot.offset));
                addrs[..2].copy_from_slice(&copies);
                self.pool.recorder.metadata(copies, bytes.len());
            }
        }
        // Older versions take such a pointer for damage.
        let content_birth = request.content_birth.filter(|_| self.pool.has(Feature::Births));
        // A block that is only stored in another form will not be read soon, so it is not cached.
        let is_news = !matches!(request.compression, Method::Made(_));
        if is_news && request.may_embed || request.stream == Stream::Metadata {
            let kind = if request.stream == Stream::Metadata { Kind::Metadata } else { Kind::Data };
            let key = Key { addr: addrs[0], birth: self.txg };
            self.pool.reader.keep_written(key, kind, (compression, &bytes), &request.data);
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
        }))
    }

    fn append(
        &mut self,
        (slot, class): (usize, Class),
        bytes: &[u8],
        owner: Owner,
        crc: u32,
        siblings: Vec<Addr>,
    ) -> Result<Spot, PoolError> {
        let near: Vec<ZoneSeq> = siblings.iter().map(|addr| addr.seq()).collect();
        self.append_born((slot, class), (bytes, crc), owner, siblings, near)
    }

    /// Appends a block that is born here. If zones have failed and no other takes the block, zones that wait
    /// for their reset are used.
    fn append_born(
        &mut self,
        (slot, class): (usize, Class),
        (bytes, crc): (&[u8], u32),
        owner: Owner,
        siblings: Vec<Addr>,
        near: Vec<ZoneSeq>,
    ) -> Result<Spot, PoolError> {
        let birth = self.txg;
        let block = |siblings, near| Stored {
            bytes,
            identity: None,
            birth,
            owner,
            siblings,
            near,
            crc,
            joins: false,
        };
        let first = block(siblings.clone(), near.clone());
        match self.st.streams.append(slot, class, birth, first, &mut source!(self)) {
            Err(PoolError::NoSpace { .. }) => {
                self.pool.keep_only_the_newest(self.st, u64::MAX)?;
                self.st.streams.append(slot, class, birth, block(siblings, near), &mut source!(self))
            }
            spot => spot,
        }
    }

    /// Appends a block of the pool's own metadata, in a zone other than these if possible.
    fn append_own(
        &mut self,
        (slot, class): (usize, Class),
        bytes: &[u8],
        what: u8,
        near: Vec<ZoneSeq>,
    ) -> Result<Spot, PoolError> {
        let crc = crc32c::crc32c(bytes);
        self.append_born((slot, class), (bytes, crc), Owner::Pool { what }, Vec::new(), near)
    }

    /// Appends both copies of a metadata block.
    fn append_twice(&mut self, bytes: &[u8], owner: Owner, crc: u32) -> Result<[Spot; 2], PoolError> {
        let [a, b] = self.st.streams.layout().meta();
        let first = self.append((a, Class::MetaA), bytes, owner, crc, Vec::new())?;
        let sibling = Addr::new(first.seq, first.offset);
        let second = self.append((b, Class::MetaB), bytes, owner, crc, vec![sibling])?;
        // If both copies had to go to one slot, its last block is the second copy.
        if second.slot != first.slot {
            self.st.streams.add_sibling(first.slot, Addr::new(second.seq, second.offset));
        }
        Ok([first, second])
    }

    /// Appends a block under its old address. Returns the slot that took it.
    pub(crate) fn append_moved(&mut self, slot: usize, block: Stored<'_>) -> Result<usize, PoolError> {
        let identity = block.identity;
        let spot = self.st.streams.append(slot, Class::Collection, self.txg, block, &mut source!(self))?;
        self.commit.moved_now.extend(identity.map(|identity| (identity, spot.seq)));
        Ok(spot.slot)
    }

    /// Frees a block. There is no other way to free one. Holes and embedded blocks occupy no space.
    pub fn release(&mut self, ptr: &BlockPtr) {
        self.released = true;
        if let BlockPtr::Normal(normal) = ptr {
            self.uncached.push(Key::of(normal));
            self.commit.free_block(normal);
        }
    }
}
