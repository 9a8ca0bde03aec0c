//! One object, alive.
//!
//! Reads look at what the open group changed, then at what the syncing group changed, then at the tree. Writes change whole blocks in
//! memory; a block that the syncing group also holds is copied first. When the tree of the syncing group has been
//! rewritten its new root replaces the old one in one step.
//!
//! Invariant: at most one group besides the open one has changes that are not in the tree.

mod again;
mod beside;
mod form;
#[cfg(test)]
mod tests;

use crate::dirty::{Dirty, Known, Spill};
use crate::dnode::{Dnode, OBJECT_BYTES_MAX, ObjectKind, SPILL, check_block_bytes};
use crate::error::ObjectError;
use crate::objset::ObjectSet;
use crate::outlook::Outlook;
use crate::streams::{Bounds, Streams};
use crate::tree::{Whose, lookup, next_allocated};
pub use again::Again;
pub use beside::Changes;
pub use form::StoredBlock;
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_format::{BlockPtr, Feature};
use terrane_pool::{Hint, PoolError, Tx};
use terrane_wire::{Corrupt, ObjectId, Txg};

/// What the syncing group takes from an object: its changes, and the dnode as that group leaves it (with the old tree).
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub dirty: Dirty,
    pub dnode: Dnode,
}

pub(crate) struct State {
    /// As seen by the open group; tree and `used` as of the last finished sync.
    pub dnode: Dnode,
    pub open: Option<Dirty>,
    pub syncing: Option<Arc<Frozen>>,
    pub destroyed: bool,
    recent: Recent,
    /// What the spill pointer of `dnode` was seen to lead to, while somebody keeps it.
    recent_spill: Weak<Vec<u8>>,
}

/// Blocks of the tree that were read a moment ago and are still in the cache, found without walking the tree again.
///
/// Invariant: what is here is what the tree of the state's dnode says.
#[derive(Default)]
struct Recent(Vec<(u64, Weak<Vec<u8>>)>);

impl Recent {
    /// Of the dnodes every object is found through, many. Names of a large ZAP are sought in all of its leaves alike: a place, 16
    /// bytes, for each block. Files are read in order.
    fn places(kind: ObjectKind) -> u64 {
        match kind {
            ObjectKind::Dnodes => 4096,
            ObjectKind::Zap | ObjectKind::Master | ObjectKind::Directory | ObjectKind::DeleteQueue => 16_384,
            _ => 16,
        }
    }

    fn get(&self, block: u64) -> Option<Arc<Vec<u8>>> {
        let place = block.checked_rem(self.0.len() as u64)?;
        let (held, data) = self.0.get(place as usize)?;
        if *held == block { data.upgrade() } else { None }
    }

    fn put(&mut self, kind: ObjectKind, block: u64, block_count: u64, data: &Arc<Vec<u8>>) {
        let places = Self::places(kind).min(block_count.next_power_of_two()).max(1);
        if places as usize > self.0.len() {
            self.0 = vec![(0, Weak::new()); places as usize];
        }
        let place = block % self.0.len() as u64;
        if let Some(held) = self.0.get_mut(place as usize) {
            *held = (block, Arc::downgrade(data));
        }
    }
}

impl State {
    /// The open group's changes, after those of a group that has quiesced were set aside.
    fn dirty(&mut self, txg: Txg) -> &mut Dirty {
        self.freeze_before(txg);
        self.open.get_or_insert_with(|| Dirty::new(txg))
    }

    /// Sets changes of groups before `txg` aside for the sync.
    pub fn freeze_before(&mut self, txg: Txg) {
        if self.open.as_ref().is_some_and(|open| open.txg < txg) {
            assert!(self.syncing.is_none(), "a group opens only after the sync before it has ended");
            self.syncing =
                self.open.take().map(|dirty| Arc::new(Frozen { dirty, dnode: self.dnode.clone() }));
        }
    }

    /// Changes that are not in the tree, newest first.
    fn layers(&self) -> impl Iterator<Item = &Dirty> + Clone {
        self.open.iter().chain(self.syncing.iter().map(|frozen| &frozen.dirty))
    }

    /// These blocks are freed by the group of `tx`: their share of what the object has stored, and of what no group frees yet. What each
    /// block takes is known only where the tree is read.
    fn note_freeing(&mut self, tx: &Tx, blocks: Range<u64>) -> u64 {
        let all = self.dnode.block_count.max(1);
        let freed = blocks.end.min(all).saturating_sub(blocks.start);
        let share = u128::from(self.dnode.used) * u128::from(freed) / u128::from(all);
        let so_far = self.layers().fold(0u64, |sum, dirty| sum.saturating_add(dirty.freeing));
        let left = self.dnode.used.saturating_sub(so_far);
        let freeing = u64::try_from(share).unwrap_or(u64::MAX).min(left);
        let dirty = self.dirty(tx.txg());
        dirty.freeing = dirty.freeing.saturating_add(freeing);
        freeing
    }

    fn known(&self, block: u64) -> Known {
        for dirty in self.layers() {
            match dirty.known(block) {
                Known::Nothing => {}
                known => return known,
            }
        }
        Known::Nothing
    }

    /// What groups whose changes are not in the tree did to the spill, the newest of them.
    fn known_spill(&self) -> &Spill {
        let mut changes = self.layers().map(|dirty| &dirty.spill);
        changes.find(|spill| !matches!(spill, Spill::Unchanged)).unwrap_or(&Spill::Unchanged)
    }

    fn has_spill(&self) -> bool {
        match self.known_spill() {
            Spill::New(_) => true,
            Spill::Gone => false,
            Spill::Unchanged => !self.dnode.spill.is_hole(),
        }
    }

    /// The spill's bytes, if they are in memory.
    fn held_spill(&self) -> Option<Arc<Vec<u8>>> {
        match self.known_spill() {
            Spill::New(spill) => Some(spill.clone()),
            Spill::Gone => None,
            Spill::Unchanged => self.recent_spill.upgrade(),
        }
    }

    /// A block that is in memory, and whole.
    fn held(&self, block: u64) -> Option<Arc<Vec<u8>>> {
        let held = match self.known(block) {
            Known::Data(data) => Some(data),
            Known::Zeros => None,
            Known::Nothing => self.recent.get(block),
        };
        held.filter(|data| data.len() == self.dnode.block_bytes as usize)
    }
}

/// Block 0, and the number of blocks.
pub type FirstBlock = (Arc<Vec<u8>>, u64);

/// An object of an object set. All methods take its own short lock.
pub struct Object {
    set: Weak<ObjectSet>,
    own: Whose,
    /// The object whose blocks these will be; 0: they are its own.
    written_for: AtomicU64,
    kind: ObjectKind,
    pub(crate) outlook: Outlook,
    /// Of a file that somebody reads.
    streams: Mutex<Option<Box<Streams>>>,
    pub(crate) state: RwLock<State>,
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Some(set) = self.set.upgrade() {
            set.forget(self.id());
        }
    }
}

impl Object {
    pub(crate) fn new(set: Weak<ObjectSet>, own: Whose, dnode: Dnode) -> Object {
        let state = State {
            dnode,
            open: None,
            syncing: None,
            destroyed: false,
            recent: Recent::default(),
            recent_spill: Weak::new(),
        };
        Object {
            set,
            own,
            written_for: AtomicU64::new(0),
            kind: state.dnode.kind,
            outlook: Outlook::default(),
            streams: Mutex::default(),
            state: RwLock::new(state),
        }
    }

    pub fn id(&self) -> ObjectId {
        self.own.object
    }

    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// What somebody said about the life time of its blocks: holds for what is stored from now on, until this `Object` is dropped.
    /// Where nobody said anything the set's policy says it.
    pub fn set_hint(&self, hint: Hint) {
        self.outlook.set_hint(hint);
    }

    /// As it was set: [`Hint::NotSet`] if it was not.
    pub fn hint(&self) -> Hint {
        self.outlook.hint()
    }

    /// How long its blocks will live, in bytes that users write to the pool meanwhile, as far as somebody can tell; forgotten when
    /// this `Object` is dropped.
    pub fn expect_life(&self, bytes: Option<u64>) {
        self.outlook.expect_life(bytes);
    }

    pub fn expected_life(&self) -> Option<u64> {
        self.outlook.expected_life()
    }

    /// In whose name its blocks are written: its own, unless another object will have them.
    pub(crate) fn whose(&self) -> Whose {
        match self.written_for.load(Ordering::Relaxed) {
            0 => self.own,
            other => Whose { object: ObjectId(other), ..self.own },
        }
    }

    fn set(&self) -> Result<Arc<ObjectSet>, ObjectError> {
        self.set
            .upgrade()
            .ok_or_else(|| PoolError::Failed { reason: "the object set was closed".into() }.into())
    }

    /// Bytes of the blocks of pointers that it has or will have, with level-0 blocks of so many bytes.
    pub fn indirect_bytes(&self, block_bytes: u32) -> u32 {
        let has_small = self.set().is_ok_and(|set| set.pool().has(Feature::Pointers));
        self.state.read().dnode.indirect_bytes_of(block_bytes, has_small)
    }

    pub fn block_size(&self) -> u32 {
        self.state.read().dnode.block_bytes
    }

    /// Highest block ever written and not cut off, plus one.
    pub fn block_count(&self) -> u64 {
        self.state.read().dnode.block_count
    }

    /// The group that made the object; of one that is filled for another ([`write_for`](Self::write_for)) and lost changes, the group
    /// of those.
    pub fn birth(&self) -> Txg {
        self.state.read().dnode.birth
    }

    pub fn bonus(&self) -> Arc<Vec<u8>> {
        self.state.read().dnode.bonus.clone()
    }

    /// Bytes of bonus that fit; beside a spill, a block pointer less.
    pub fn bonus_max(&self) -> usize {
        Dnode::bonus_max(self.state.read().dnode.slots)
    }

    /// Whether there is a spill block, as the open group sees it.
    pub fn has_spill(&self) -> bool {
        self.state.read().has_spill()
    }

    /// What does not fit the bonus, as it was set: at most 128 KiB. Costs a read where nothing has it in memory.
    pub fn spill(&self) -> Result<Option<Arc<Vec<u8>>>, ObjectError> {
        let mut tried = None;
        loop {
            let ptr = {
                let state = self.state.read();
                if let Some(held) = state.held_spill() {
                    return Ok(Some(held));
                }
                if !state.has_spill() {
                    return Ok(None);
                }
                state.dnode.spill.clone()
            };
            match self.set()?.pool().read(&ptr, self.whose().owner(0, SPILL)) {
                Ok(spill) => {
                    let mut state = self.state.write();
                    if state.dnode.spill == ptr {
                        state.recent_spill = Arc::downgrade(&spill);
                    }
                    return Ok(Some(spill));
                }
                // A group may have synced since, and what it replaced was collected.
                Err(_) if tried.as_ref() != Some(&ptr) => tried = Some(ptr),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The dnode as the open group sees it, with the tree of the last sync. For `check` and `debug`.
    pub fn dnode(&self) -> Dnode {
        self.state.read().dnode.clone()
    }

    /// It was destroyed: its number may name another object by now.
    pub fn is_destroyed(&self) -> bool {
        self.state.read().destroyed
    }

    /// Blocks that the group of `tx` has changed: what it reserved for others, nobody needs.
    pub fn dirty_blocks(&self, tx: &Tx) -> usize {
        let state = self.state.read();
        state.open.as_ref().filter(|open| open.txg == tx.txg()).map_or(0, |open| open.blocks.len())
    }

    /// Stored bytes, all copies, as of the last sync, and bytes that are dirty now.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state.read();
        state.dnode.used.saturating_add(state.layers().map(Dirty::bytes).sum::<u64>())
    }

    /// The same with what lies in the dnode: a block that fits its pointer takes none of its own, and is not nothing.
    pub fn occupied_bytes(&self) -> u64 {
        let state = self.state.read();
        let embedded = match &state.dnode.root {
            BlockPtr::Embedded(embedded) => embedded.payload.len() as u64,
            BlockPtr::Hole(_) | BlockPtr::Normal(_) => 0,
        };
        drop(state);
        self.used_bytes().saturating_add(embedded)
    }

    /// Runs `change` on the open group's changes, and has the object synced with that group.
    fn change<R>(self: &Arc<Self>, tx: &Tx, change: impl FnOnce(&mut State) -> R) -> Result<R, ObjectError> {
        let mut state = self.state.write();
        if state.destroyed {
            return Err(ObjectError::NotFound(self.id()));
        }
        let first = state.open.as_ref().is_none_or(|open| open.txg < tx.txg());
        // Asked for only then: all objects of a set count at one place.
        let set = if first { Some(self.set()?) } else { None };
        state.dirty(tx.txg());
        let result = change(&mut state);
        drop(state);
        if let Some(set) = set {
            set.mark_dirty(self.clone());
        }
        Ok(result)
    }

    /// Sets the bonus beside the spill that there is, or is not.
    pub fn set_bonus(self: &Arc<Self>, tx: &Tx, bonus: Vec<u8>) -> Result<(), ObjectError> {
        self.change(tx, |state| {
            check_room("bonus", Dnode::bonus_room(state.dnode.slots, state.has_spill()), bonus.len())?;
            state.dnode.bonus = Arc::new(bonus);
            Ok(())
        })?
    }

    /// Sets the bonus and the spill; `None` frees the spill. One that is empty, or zeros, is none. Who sets a spill has reserved its length
    /// as `meta_bytes`. Refused if the bonus does not leave room for the pointer, or the spill is larger than the set takes
    /// ([`ObjectSet::spill_max`]).
    pub fn set_attributes(
        self: &Arc<Self>,
        tx: &Tx,
        bonus: Vec<u8>,
        spill: Option<Vec<u8>>,
    ) -> Result<(), ObjectError> {
        // Zeros would be stored as a hole, which no dnode may name.
        let spill = spill.filter(|spill| spill.iter().any(|byte| *byte != 0));
        if let Some(spill) = &spill {
            check_room("spill", self.set()?.spill_max(), spill.len())?;
        }
        self.change(tx, |state| {
            check_room("bonus", Dnode::bonus_room(state.dnode.slots, spill.is_some()), bonus.len())?;
            state.dnode.bonus = Arc::new(bonus);
            let new = match spill {
                Some(spill) if state.held_spill().is_some_and(|held| *held == spill) => return Ok(()),
                Some(spill) => Spill::New(Arc::new(spill)),
                None if !state.has_spill() => return Ok(()),
                None => Spill::Gone,
            };
            state.dirty(tx.txg()).spill = new;
            Ok(())
        })?
    }

    /// Changes the block size while there is at most one block; its content is kept, cut or extended with zeros.
    pub fn set_block_size(self: &Arc<Self>, tx: &Tx, bytes: u32) -> Result<(), ObjectError> {
        check_block_bytes(bytes, self.set()?.pool().max_block())?;
        let (count, old) = {
            let state = self.state.read();
            (state.dnode.block_count, state.dnode.block_bytes)
        };
        if count > 1 {
            return Err(ObjectError::TooBig {
                what: "blocks of an object whose block size changes",
                limit: 1,
                asked: count,
            });
        }
        if old == bytes {
            return Ok(());
        }
        let base = if count == 1 && !self.is_dirty(tx, 0) { self.raw_block(0)? } else { None };
        self.change(tx, |state| {
            state.dnode.block_bytes = bytes;
            // A directory grows by small steps: in place, after the first in a group.
            state.dirty(tx.txg()).recoded.remove(&0);
            state.dirty(tx.txg()).is_resized = true;
            // A hole as well: it covers more or less than it did, and what tells changes by births must see that.
            let hole = (count == 1).then(Arc::default);
            if let Some(mut content) = state.dirty(tx.txg()).blocks.remove(&0).or(base).or(hole) {
                Arc::make_mut(&mut content).resize(bytes as usize, 0);
                state.dirty(tx.txg()).blocks.insert(0, content);
            }
        })
    }

    /// The block was read a moment ago and is in the cache.
    pub(crate) fn has_read(&self, block: u64) -> bool {
        self.state.read().recent.get(block).is_some()
    }

    /// A block's bytes, perhaps without trailing zeros; `None`: all zeros.
    fn raw_block(&self, block: u64) -> Result<Option<Arc<Vec<u8>>>, ObjectError> {
        let mut tried = None;
        loop {
            let dnode = {
                let state = self.state.read();
                match state.known(block) {
                    Known::Data(data) => return Ok(Some(data)),
                    Known::Zeros => return Ok(None),
                    Known::Nothing => {}
                }
                if let Some(data) = state.recent.get(block) {
                    return Ok(Some(data));
                }
                state.dnode.clone()
            };
            let set = self.set()?;
            let pool = set.pool();
            let read = lookup(pool, self.whose(), &dnode, 0, block).and_then(|ptr| match ptr.is_hole() {
                true => Ok(None),
                false if ptr.lsize() > dnode.block_bytes => {
                    let at =
                        format!("object set {} object {} block {block}", self.own.objset, self.own.object);
                    Err(Corrupt::new(
                        at,
                        "logical size",
                        format_args!("at most {}", dnode.block_bytes),
                        ptr.lsize(),
                    )
                    .into())
                }
                false => pool.read(&ptr, self.whose().owner(0, block)).map(Some),
            });
            match read {
                Ok(Some(data)) => {
                    let mut state = self.state.write();
                    if state.dnode.root == dnode.root {
                        state.recent.put(self.kind, block, dnode.block_count, &data);
                    }
                    return Ok(Some(data));
                }
                Ok(None) => return Ok(None),
                // The tree may have been replaced, and its old blocks collected, between look-up and read.
                Err(_) if tried.as_ref() != Some(&dnode.root) => tried = Some(dnode.root),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A whole block that nothing in memory holds, straight into `out`: the cache keeps what is stored of it.
    /// False: something is in memory, or it must be looked up again.
    fn read_whole(&self, block: u64, out: &mut [u8]) -> Result<bool, ObjectError> {
        let dnode = {
            let state = self.state.read();
            if !matches!(state.known(block), Known::Nothing) || state.recent.get(block).is_some() {
                return Ok(false);
            }
            state.dnode.clone()
        };
        let set = self.set()?;
        let pool = set.pool();
        let Ok(ptr) = lookup(pool, self.whose(), &dnode, 0, block) else { return Ok(false) };
        if ptr.is_hole() {
            out.fill(0);
            return Ok(true);
        }
        let Some((content, rest)) = out.split_at_mut_checked(ptr.lsize() as usize) else { return Ok(false) };
        match pool.read_into(&ptr, self.whose().owner(0, block), content) {
            Ok(()) => rest.fill(0),
            Err(error) if self.state.read().dnode.root == dnode.root => return Err(error.into()),
            // The tree was replaced meanwhile, and its old blocks collected.
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// One block, always of the block size.
    pub fn read_block(&self, block: u64) -> Result<Arc<Vec<u8>>, ObjectError> {
        let held = self.state.read().held(block);
        held.map_or_else(|| self.find_block(block), Ok)
    }

    /// Block 0 and the number of blocks, of one moment; `None`: there is no block.
    pub fn first_block(&self) -> Result<Option<FirstBlock>, ObjectError> {
        let (held, count) = {
            let state = self.state.read();
            (state.held(0), state.dnode.block_count)
        };
        match held {
            _ if count == 0 => Ok(None),
            Some(held) => Ok(Some((held, count))),
            None => Ok(Some((self.find_block(0)?, count))),
        }
    }

    fn find_block(&self, block: u64) -> Result<Arc<Vec<u8>>, ObjectError> {
        let bytes = self.block_size() as usize;
        Ok(match self.raw_block(block)? {
            Some(data) if data.len() == bytes => data,
            Some(data) => {
                let mut whole = data.to_vec();
                whole.resize(bytes, 0);
                Arc::new(whole)
            }
            None => Arc::new(vec![0; bytes]),
        })
    }

    /// Somebody is about to read these bytes, and may go on: has what follows from that read by other threads. For files.
    pub fn expect_more(&self, read: Range<u64>) {
        let (block_bytes, block_count) = {
            let state = self.state.read();
            (state.dnode.block_bytes, state.dnode.block_count)
        };
        // Of two blocks the second is asked for before anybody could know.
        if block_count <= 2 || self.kind != ObjectKind::File {
            return;
        }
        let Ok(set) = self.set() else { return };
        let pool = set.pool();
        let bounds = Bounds {
            block_bytes: block_bytes.into(),
            block_count,
            window_max: pool.read_ahead_max(block_bytes),
            wasted: pool.read_ahead_wasted(),
        };
        if bounds.window_max == 0 {
            return;
        }
        let asked = self.streams.lock().get_or_insert_default().note(read, &bounds);
        if !asked.is_empty() {
            set.read_blocks_ahead(self.id(), block_bytes, asked);
        }
    }

    /// Brings blocks that are stored and not in memory into the cache. Whoever asks for one that cannot be read meets the same error,
    /// and reports it.
    pub(crate) fn read_blocks_ahead(&self, blocks: &[Range<u64>]) {
        let (dnode, wanted) = {
            let state = self.state.read();
            let stored = |block: &u64| matches!(state.known(*block), Known::Nothing);
            let wanted: Vec<u64> = blocks.iter().cloned().flatten().filter(stored).collect();
            (state.dnode.clone(), wanted)
        };
        let Ok(set) = self.set() else { return };
        let mut found = Vec::with_capacity(wanted.len());
        for block in wanted {
            match lookup(set.pool(), self.whose(), &dnode, 0, block) {
                Ok(BlockPtr::Normal(normal)) if normal.lsize <= dnode.block_bytes => found.push(normal),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        set.pool().read_ahead(&found);
    }

    /// Fills `buf` from `offset`; holes and what lies beyond the last block are zeros.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), ObjectError> {
        let bytes = u64::from(self.block_size());
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let (block, inside) = (at / bytes, (at % bytes) as usize);
            let len = rest.len().min(bytes as usize - inside);
            let (piece, after) = rest.split_at_mut(len);
            if len as u64 == bytes && self.read_whole(block, piece)? {
                (rest, at) = (after, at + len as u64);
                continue;
            }
            let data = self.raw_block(block)?;
            let have = data.as_ref().and_then(|data| data.get(inside..)).unwrap_or(&[]);
            let have = have.get(..len).unwrap_or(have);
            piece[..have.len()].copy_from_slice(have);
            piece[have.len()..].fill(0);
            (rest, at) = (after, at + len as u64);
        }
        Ok(())
    }

    /// Reads a block, changes it, and keeps it dirty. Nothing else may write the block meanwhile.
    pub fn modify_block(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<(), ObjectError> {
        let bytes = self.block_size() as usize;
        self.with_block(tx, block, bytes, |data| change(data))
    }

    pub fn write(self: &Arc<Self>, tx: &Tx, offset: u64, data: &[u8]) -> Result<(), ObjectError> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= OBJECT_BYTES_MAX);
        if end.is_none() {
            return Err(ObjectError::TooBig {
                what: "end of a write",
                limit: OBJECT_BYTES_MAX,
                asked: offset,
            });
        }
        if self.kind() == ObjectKind::File {
            tx.pool().note_user_bytes(data.len() as u64);
        }
        let bytes = u64::from(self.block_size());
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (block, inside) = (at / bytes, (at % bytes) as usize);
            let len = rest.len().min(bytes as usize - inside);
            let (piece, after) = rest.split_at(len);
            if len as u64 == bytes {
                // Nothing of the old block is needed, but the way to it is: without it the sync could not store the new one.
                let (dnode, set) = (self.state.read().dnode.clone(), self.set()?);
                lookup(set.pool(), self.whose(), &dnode, 0, block)?;
                let whole = Arc::new(piece.to_vec());
                self.change(tx, |state| state.put(tx.txg(), block, whole))?;
            } else {
                self.with_block(tx, block, inside + len, |data| {
                    data[inside..inside + len].copy_from_slice(piece)
                })?;
            }
            (rest, at) = (after, at + len as u64);
        }
        Ok(())
    }

    /// Whether the group of `tx` has changed the block already.
    fn is_dirty(&self, tx: &Tx, block: u64) -> bool {
        let state = self.state.read();
        state.open.as_ref().is_some_and(|open| open.txg == tx.txg() && open.blocks.contains_key(&block))
    }

    /// Changes a dirty block in place; a clean one is read first. It is extended with zeros to at least `len` bytes.
    fn with_block(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        len: usize,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), ObjectError> {
        let change = |data: &mut Arc<Vec<u8>>| {
            // A copy only if a reader, the cache or the syncing group holds it too.
            let bytes = Arc::make_mut(data);
            if bytes.len() < len {
                bytes.resize(len, 0);
            }
            change(bytes);
        };
        if let Some(data) = self.state.write().dirty_block(tx, block) {
            change(data);
            return Ok(());
        }
        let mut data = self.raw_block(block)?.unwrap_or_default();
        self.change(tx, |state| {
            change(&mut data);
            state.put(tx.txg(), block, data);
        })
    }

    /// Zeros a range: whole blocks become holes, edges are overwritten. Costs nothing for what lies between.
    pub fn zero_range(self: &Arc<Self>, tx: &Tx, offset: u64, len: u64) -> Result<(), ObjectError> {
        let bytes = u64::from(self.block_size());
        let written = self.block_count().saturating_mul(bytes);
        let end = offset.saturating_add(len).min(written);
        if offset >= end {
            return Ok(());
        }
        let (first, last) = (offset.div_ceil(bytes), end / bytes);
        if first > last {
            return self.zero_inside(tx, offset / bytes, (offset % bytes) as usize, (end % bytes) as usize);
        }
        if !offset.is_multiple_of(bytes) {
            self.zero_inside(tx, offset / bytes, (offset % bytes) as usize, bytes as usize)?;
        }
        if !end.is_multiple_of(bytes) {
            self.zero_inside(tx, last, 0, (end % bytes) as usize)?;
        }
        // To the end of the object is to the end of everything, so that whole subtrees can go.
        let last = if end == written { u64::MAX } else { last };
        if first < last {
            let freeing = self.change(tx, |state| {
                state.dirty(tx.txg()).free(first, last);
                state.note_freeing(tx, first..last)
            })?;
            self.set()?.note_freeing(tx.txg(), freeing);
        }
        Ok(())
    }

    fn zero_inside(self: &Arc<Self>, tx: &Tx, block: u64, from: usize, to: usize) -> Result<(), ObjectError> {
        let Some(data) = self.raw_block(block)? else { return Ok(()) };
        if data.len() <= from {
            return Ok(());
        }
        self.with_block(tx, block, 0, |data| {
            if to >= data.len() {
                data.truncate(from);
            } else if let Some(range) = data.get_mut(from..to) {
                range.fill(0);
            }
        })
    }

    /// Cuts everything from `size` on off.
    pub fn truncate(self: &Arc<Self>, tx: &Tx, size: u64) -> Result<(), ObjectError> {
        self.zero_range(tx, size, u64::MAX)?;
        self.change(tx, |state| {
            let count = size.div_ceil(u64::from(state.dnode.block_bytes));
            state.dnode.block_count = state.dnode.block_count.min(count);
        })
    }

    /// Frees one block.
    pub fn free_block(self: &Arc<Self>, tx: &Tx, block: u64) -> Result<(), ObjectError> {
        self.change(tx, |state| state.dirty(tx.txg()).free(block, block + 1))
    }

    /// The tree of the finished sync replaces the one before.
    pub(crate) fn install(&self, new: &Dnode) {
        let mut state = self.state.write();
        if state.dnode.root != new.root {
            state.recent = Recent::default();
        }
        if state.dnode.spill != new.spill {
            state.recent_spill = match &state.syncing.as_ref().map(|synced| &synced.dirty.spill) {
                Some(Spill::New(spill)) => Arc::downgrade(spill),
                _ => Weak::new(),
            };
            state.dnode.spill = new.spill.clone();
        }
        state.dnode.root = new.root.clone();
        state.dnode.levels = new.levels;
        state.dnode.indirect_bytes = new.indirect_bytes;
        state.dnode.used = new.used;
        state.dnode.birth = new.birth;
        if !self.kind.is_changed_by_callers() {
            state.dnode.block_count = new.block_count;
        }
        state.syncing = None;
    }

    /// A group synced without what it changed here.
    pub(crate) fn forget_changes(&self) {
        self.state.write().syncing = None;
    }

    /// Changes that a group should have stored were lost, because all copies of the object's dnode or of a part of its tree are damaged.
    /// That holds as long as the set is open: no later commit brings them back.
    pub fn has_lost_changes(&self) -> bool {
        self.set().is_ok_and(|set| set.has_lost_changes(self.id()))
    }

    pub(crate) fn destroy(self: &Arc<Self>, tx: &Tx) -> Result<(), ObjectError> {
        let freeing = self.change(tx, |state| {
            let dirty = state.dirty(tx.txg());
            dirty.free(0, u64::MAX);
            dirty.spill = Spill::Gone;
            dirty.destroyed = true;
            let freeing = state.note_freeing(tx, 0..u64::MAX);
            state.dnode.block_count = 0;
            state.destroyed = true;
            freeing
        })?;
        self.set()?.note_freeing(tx.txg(), freeing);
        Ok(())
    }

    /// The first byte at or after `offset` that is data, to the block; `None`: none.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, ObjectError> {
        let bytes = u64::from(self.block_size());
        let found = self.next_block(offset / bytes)?;
        Ok(found.map(|block| (block * bytes).max(offset)))
    }

    /// The first byte at or after `offset` that lies in a hole, to the block; the end of the object counts as one.
    pub fn next_hole(&self, offset: u64) -> Result<u64, ObjectError> {
        let bytes = u64::from(self.block_size());
        let mut block = offset / bytes;
        while self.next_block(block)? == Some(block) {
            block += 1;
        }
        Ok((block * bytes).max(offset))
    }

    /// The first block at or after `from` that is not a hole.
    fn next_block(&self, from: u64) -> Result<Option<u64>, ObjectError> {
        let set = self.set()?;
        let mut from = from;
        loop {
            let (dnode, dirty) = {
                let state = self.state.read();
                let blocks = state
                    .layers()
                    .filter_map(|dirty| dirty.blocks.range(from..).next().map(|(block, _)| *block));
                (state.dnode.clone(), blocks.min())
            };
            if from >= dnode.block_count {
                return Ok(None);
            }
            let stored = next_allocated(set.pool(), self.whose(), &dnode, from, dirty.unwrap_or(u64::MAX))?;
            let Some(candidate) = stored.into_iter().chain(dirty).min() else { return Ok(None) };
            let state = self.state.read();
            if !matches!(state.known(candidate), Known::Zeros) {
                return Ok(Some(candidate).filter(|block| *block < dnode.block_count));
            }
            // Freed in a group that is not in the tree yet: go on behind what was freed, but not past what was written into it.
            let end = state
                .layers()
                .filter_map(|dirty| dirty.freed.end_of(candidate))
                .max()
                .unwrap_or(candidate + 1);
            // The first one may be of an older group, and freed itself: there may be others behind it.
            let written = state.layers().filter_map(|dirty| dirty.blocks.range(candidate + 1..).next());
            let next = written.map(|(block, _)| *block).min();
            from = next.map_or(end, |next| end.min(next)).max(candidate + 1);
        }
    }
}

pub(crate) fn check_room(what: &'static str, limit: usize, asked: usize) -> Result<(), ObjectError> {
    if asked > limit {
        return Err(ObjectError::TooBig { what, limit: limit as u64, asked: asked as u64 });
    }
    Ok(())
}

impl State {
    /// A block that the group of `tx` has changed already.
    fn dirty_block(&mut self, tx: &Tx, block: u64) -> Option<&mut Arc<Vec<u8>>> {
        let open = self.open.as_mut().filter(|open| open.txg == tx.txg() && !self.destroyed)?;
        open.recoded.remove(&block);
        open.blocks.get_mut(&block)
    }

    fn put(&mut self, txg: Txg, block: u64, data: Arc<Vec<u8>>) {
        self.dnode.block_count = self.dnode.block_count.max(block + 1);
        let dirty = self.dirty(txg);
        dirty.recoded.remove(&block);
        dirty.blocks.insert(block, data);
    }
}
