//! A block of metadata that is written anew with what it holds: a block of names, a spill, a block of pointers, or of dnodes.
//!
//! It is looked for first, and read: so that what cannot be read, or is not there any more, joins no group. Then its change is made, if it
//! is still what was found. A block of dnodes is written whenever one of its objects is, and so are the blocks of pointers above it: there
//! it is enough to write any object that lies below, unchanged.

use super::Object;
use crate::dirty::{Known, Spill};
use crate::dnode::{Dnode, SLOT_BYTES, SLOTS_PER_BLOCK, SPILL, dnode_offsets};
use crate::error::ObjectError;
use crate::objset::{FREE_QUEUE, HEADER, ObjectSet};
use crate::tree::{children, lookup};
use std::sync::Arc;
use terrane_format::{Addr, BlockPtr, Owner};
use terrane_pool::{Made, Tx};
use terrane_wire::ObjectId;

/// A block that was found.
#[derive(Debug)]
pub struct Again {
    object: Arc<Object>,
    what: What,
    ptr: BlockPtr,
    /// Of the blocks that will be written, but for the dnode's: at the worst, one copy.
    bytes: u64,
}

#[derive(Debug)]
enum What {
    /// A block of the object, and what it holds.
    Block(u64, Arc<Vec<u8>>),
    Spill(Arc<Vec<u8>>),
    /// Of pointers: its level, and number in it.
    Pointers(u8, u64),
    /// Of dnodes, or of pointers above them: the object lies below.
    Dnode,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {}", self.id())
    }
}

impl ObjectSet {
    /// The block of metadata of this set of which one copy was born at `addr`, as of the last sync. `None`: it is none, is not there any
    /// more, or changes in any case.
    pub fn find_again(&self, owner: Owner, addr: Addr) -> Result<Option<Again>, ObjectError> {
        let Owner::Block { objset, object: number, level, block } = owner else { return Ok(None) };
        // The header is written with every group that changes anything, and the free queue whenever it does.
        if objset != self.id().0 || number == HEADER || number == FREE_QUEUE.0 {
            return Ok(None);
        }
        if number == 0 {
            return self.find_dnode(level, block, addr);
        }
        let object = self.hold(ObjectId(number))?;
        if level > 0 {
            return object.find_pointers(level, block, addr);
        }
        if block == SPILL {
            let ptr = object.dnode().spill;
            let Some(spill) = object.spill()?.filter(|_| is_born_at(&ptr, addr)) else { return Ok(None) };
            let bytes = spill.len() as u64;
            return Ok(Some(Again { object, what: What::Spill(spill), ptr, bytes }));
        }
        if !object.kind().is_metadata() {
            return Ok(None);
        }
        let found = object.stored_block(block)?.filter(|(ptr, _)| is_born_at(ptr, addr));
        Ok(found.map(|(ptr, content)| {
            let bytes = content.len() as u64 + object.dnode().pointers_above(0);
            Again { object, what: What::Block(block, content), ptr, bytes }
        }))
    }

    /// An object below a block of dnodes, or of pointers above them.
    fn find_dnode(&self, level: u8, index: u64, addr: Addr) -> Result<Option<Again>, ObjectError> {
        let dnodes = self.dnodes();
        let dnode = dnodes.dnode();
        let ptr = lookup(self.pool(), dnodes.whose(), &dnode, level, index)?;
        if !is_born_at(&ptr, addr) {
            return Ok(None);
        }
        let bytes_each = u64::from(dnode.block_bytes);
        let first = index.saturating_mul(dnode.span(level));
        let Some(offset) = dnodes.next_data(first.saturating_mul(bytes_each))? else { return Ok(None) };
        let block = offset / bytes_each;
        if block >= first.saturating_add(dnode.span(level)) {
            return Ok(None);
        }
        let Some(offset) = dnode_offsets(&dnodes.read_block(block)?).next() else { return Ok(None) };
        let number = block.saturating_mul(SLOTS_PER_BLOCK).saturating_add((offset / SLOT_BYTES) as u64);
        let object = self.hold(ObjectId(number))?;
        if object.state.read().layers().next().is_some() {
            return Ok(None);
        }
        // The dnode's block and the one above it are counted with the object.
        Ok(Some(Again { object, what: What::Dnode, ptr, bytes: dnode.pointers_above(1) }))
    }
}

impl Object {
    fn find_pointers(
        self: Arc<Self>,
        level: u8,
        index: u64,
        addr: Addr,
    ) -> Result<Option<Again>, ObjectError> {
        let dnode = self.living_dnode()?;
        let (set, whose) = (self.set()?, self.whose());
        let ptr = lookup(set.pool(), whose, &dnode, level, index)?;
        if !is_born_at(&ptr, addr) {
            return Ok(None);
        }
        if self.state.read().layers().any(|dirty| dirty.pointers.contains(&(level, index))) {
            return Ok(None);
        }
        children(set.pool(), whose, &ptr, level, index)?;
        let bytes = u64::from(dnode.indirect_bytes) + dnode.pointers_above(level);
        Ok(Some(Again { object: self, what: What::Pointers(level, index), ptr, bytes }))
    }

    /// Has a block stored anew with this group, its content being what [`stored_block`](Self::stored_block) said; in the form that `made`
    /// has, or as any other of its kind. False: the block is not `was` any more, and whoever changed it wins. What it holds does not
    /// change, so no lock of a floor above is needed.
    pub(super) fn put_again(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        (was, content): (&BlockPtr, &Arc<Vec<u8>>),
        made: Option<&Made>,
    ) -> Result<bool, ObjectError> {
        loop {
            let root = self.state.read().dnode.root.clone();
            if self.stored_pointer(block)?.as_ref() != Some(was) {
                return Ok(false);
            }
            // Looked for again where the tree was replaced between the look and this.
            let outcome = self.change(tx, |state| {
                if state.dnode.root != root {
                    return None;
                }
                let is_same = matches!(state.known(block), Known::Nothing);
                if is_same {
                    let dirty = state.dirty(tx.txg());
                    dirty.blocks.insert(block, content.clone());
                    dirty.recoded.extend(made.map(|made| (block, made.clone())));
                }
                Some(is_same)
            })?;
            if let Some(done) = outcome {
                return Ok(done);
            }
        }
    }
}

impl Again {
    pub fn object(&self) -> ObjectId {
        self.object.id()
    }

    /// What writing it takes beside the object's dnode, in bytes of metadata.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Has it written with this group, if it is still what was found. Returns stored bytes, all copies; 0: it is not.
    pub fn write(&self, tx: &Tx) -> Result<u64, ObjectError> {
        let object = &self.object;
        let is_same = match &self.what {
            What::Block(block, content) => object.put_again(tx, *block, (&self.ptr, content), None)?,
            What::Spill(spill) => object.change(tx, |state| {
                let is_same =
                    matches!(state.known_spill(), Spill::Unchanged) && state.dnode.spill == self.ptr;
                if is_same {
                    state.dirty(tx.txg()).spill = Spill::New(spill.clone());
                }
                is_same
            })?,
            // Whether it is still there is seen when the tree is rewritten.
            What::Pointers(level, index) => {
                object.change(tx, |state| state.dirty(tx.txg()).pointers.insert((*level, *index)))?
            }
            // Any change writes it.
            What::Dnode => object.change(tx, |_| true)?,
        };
        Ok(if is_same { self.ptr.allocated_bytes() } else { 0 })
    }
}

impl Dnode {
    /// Bytes of the blocks of pointers above one of this level.
    fn pointers_above(&self, level: u8) -> u64 {
        u64::from(self.indirect_bytes) * u64::from(self.levels.saturating_sub(level + 1))
    }
}

fn is_born_at(ptr: &BlockPtr, addr: Addr) -> bool {
    matches!(ptr, BlockPtr::Normal(normal) if normal.copies().any(|copy| copy == addr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, CreateOptions, ImportOptions, ObjectKind, ObjectSpec, Objects, SeededEnv};
    use terrane_device::{SimConfig, SimDevice};
    use terrane_pool::Pool;

    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 1200;
    const COST: Cost = Cost { write_bytes: 8 << 20, meta_blocks: 64, ..Cost::NOTHING };

    fn content(block: u64) -> Vec<u8> {
        (0..BLOCK as u64).map(|at| (at * 7 + block * 13 + at * at / 97) as u8).collect()
    }

    /// A set with a file of three levels of pointers, and a spill.
    fn made() -> (Arc<Objects>, Arc<ObjectSet>, Arc<Object>) {
        let device = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
        let (create, import) = (CreateOptions::named("again"), ImportOptions::default());
        let pool = Pool::create(vec![device], &create, Arc::new(SeededEnv::new(1)), &import).unwrap();
        let objects = Objects::create(pool).unwrap();
        let set = objects.mos().clone();
        let tx = set.begin(COST).unwrap();
        let spec = ObjectSpec {
            kind: ObjectKind::File,
            block_size: BLOCK as u32,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: Some(content(9)),
        };
        let file = set.create(&tx, spec).unwrap();
        (0..BLOCKS).for_each(|block| file.write(&tx, block * BLOCK as u64, &content(block)).unwrap());
        drop(tx);
        set.commit().unwrap();
        (objects, set, file)
    }

    fn pointer(object: &Object, level: u8, index: u64) -> BlockPtr {
        let set = object.set().unwrap();
        lookup(set.pool(), object.whose(), &object.dnode(), level, index).unwrap()
    }

    fn born(ptr: &BlockPtr) -> Addr {
        let BlockPtr::Normal(normal) = ptr else { panic!("{ptr:?}") };
        normal.copies().last().unwrap()
    }

    fn find(set: &ObjectSet, object: &Object, level: u8, block: u64, ptr: &BlockPtr) -> Option<Again> {
        set.find_again(object.whose().owner(level, block), born(ptr)).unwrap()
    }

    fn holds_what_it_did(file: &Object, blocks: u64) {
        for block in 0..blocks {
            assert!(*file.read_block(block).unwrap() == content(block), "block {block}");
        }
    }

    #[test]
    fn blocks_of_pointers_are_written_once_in_a_group_and_nothing_below_them() {
        let (_objects, set, file) = made();
        assert_eq!(file.dnode().levels, 4, "or it says little");
        for (level, index) in [(1, 3), (1, 37), (2, 1), (3, 0)] {
            let (before, below) = (pointer(&file, level, index), pointer(&file, level - 1, index * 32));
            let again = find(&set, &file, level, index, &before).unwrap();
            let tx = set.begin(COST).unwrap();
            assert_eq!(again.write(&tx).unwrap(), before.allocated_bytes());
            assert_eq!(again.write(&tx).unwrap(), 0, "it is written already");
            assert!(find(&set, &file, level, index, &before).is_none());
            drop(tx);
            set.commit().unwrap();
            assert_ne!(born(&pointer(&file, level, index)), born(&before));
            assert_eq!(pointer(&file, level - 1, index * 32), below);
            assert!(find(&set, &file, level, index, &before).is_none(), "it is gone");
        }
        let all =
            (0..4).flat_map(|level| (0..BLOCKS.div_ceil(32u64.pow(level))).map(move |index| (level, index)));
        let stored = all.map(|(level, index)| pointer(&file, level as u8, index).allocated_bytes());
        assert_eq!(file.dnode().used, stored.sum::<u64>() + file.dnode().spill.allocated_bytes());
        holds_what_it_did(&file, BLOCKS);
        assert_eq!(set.pool().check_tables(), vec![]);
    }

    #[test]
    fn spills_and_blocks_of_dnodes_are_written_anew() {
        let (_objects, set, file) = made();
        for (object, block) in [(&file, SPILL), (set.dnodes(), 0)] {
            let before = if block == SPILL { file.dnode().spill } else { pointer(object, 0, block) };
            let again = find(&set, object, 0, block, &before).unwrap();
            let tx = set.begin(COST).unwrap();
            assert_eq!(again.write(&tx).unwrap(), before.allocated_bytes());
            drop(tx);
            set.commit().unwrap();
            assert!(find(&set, object, 0, block, &before).is_none());
        }
        assert_eq!(*file.spill().unwrap().unwrap(), content(9));
        assert!(find(&set, &file, 0, 5, &pointer(&file, 0, 5)).is_none(), "contents are not metadata");
        holds_what_it_did(&file, BLOCKS);
        assert_eq!(set.pool().check_tables(), vec![]);
    }

    /// In one group a block of pointers is to be written anew, and the file is cut, grows, or goes.
    #[test]
    fn whoever_changes_the_tree_wins() {
        for cut in [0, 1, 32 * 3, 32 * 3 + 5, 32 * 4, 32 * 33, BLOCKS + 1] {
            for first in [false, true] {
                let (_objects, set, file) = made();
                let named = [(1, 3), (1, 36), (2, 0), (2, 1), (3, 0)];
                let found = named.map(|(level, index)| {
                    find(&set, &file, level, index, &pointer(&file, level, index)).unwrap()
                });
                let tx = set.begin(COST).unwrap();
                let change = || match cut {
                    cut if cut > BLOCKS => {
                        // A level more.
                        file.write(&tx, 32 * 32 * 32 * BLOCK as u64, &content(1)).unwrap();
                    }
                    cut => file.truncate(&tx, cut * BLOCK as u64).unwrap(),
                };
                if first {
                    change();
                }
                for again in &found {
                    again.write(&tx).unwrap();
                }
                if !first {
                    change();
                }
                drop(tx);
                set.commit().unwrap();
                holds_what_it_did(&file, cut.min(BLOCKS));
                assert_eq!(file.dnode().root.is_hole(), cut == 0);
                let tx = set.begin(COST).unwrap();
                set.destroy(&tx, &file).unwrap();
                drop(tx);
                (0..4).for_each(|_| set.commit().unwrap());
                assert_eq!(set.pool().check_tables(), vec![], "cut to {cut}");
                assert_eq!(set.pool().errors().findings, Vec::<String>::new(), "cut to {cut}");
            }
        }
    }
}
