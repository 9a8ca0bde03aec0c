//! Finding metadata blocks by owner and address, to rewrite them.

use super::{FREE_QUEUE, HEADER, ObjectSet};
use crate::dnode::{SLOT_BYTES, SLOTS_PER_BLOCK, dnode_offsets};
use crate::error::ObjectError;
use crate::object::{MetadataRewrite, has_copy_born_at};
use crate::owner_header::OwnerKind;
use crate::tree::lookup;
use terrane_format::{Addr, Owner};
use terrane_wire::ObjectId;

impl ObjectSet {
    /// Finds the metadata block of this set with a copy born at `addr`, as of the last sync. `None`: it is not
    /// metadata, no longer exists, or will be written anyway.
    pub fn find_for_rewrite(&self, owner: Owner, addr: Addr) -> Result<Option<MetadataRewrite>, ObjectError> {
        let Owner::Block { objset, object: number, level, block } = owner else { return Ok(None) };
        // Every txg with changes writes the header, and every change of the free queue writes the queue.
        if objset != self.id().0 || number == HEADER || number == FREE_QUEUE.0 {
            return Ok(None);
        }
        // Only syncs change the tables of owners: content read earlier must not come back.
        if OwnerKind::of_table(ObjectId(number)).is_some() {
            return Ok(None);
        }
        let found = match number {
            0 => self.find_dnode(level, block, addr)?,
            number => self.hold(ObjectId(number))?.find_for_rewrite(level, block, addr)?,
        };
        Ok(found.filter(|found| !self.is_held(found.pointer())))
    }

    /// Finds an object below a dnode block, or below an indirect block above dnodes.
    fn find_dnode(&self, level: u8, index: u64, addr: Addr) -> Result<Option<MetadataRewrite>, ObjectError> {
        let dnodes = &self.dnodes;
        let dnode = dnodes.dnode();
        let ptr = lookup(self.pool(), dnodes.tree_id(), &dnode, level, index)?;
        if !has_copy_born_at(&ptr, addr) {
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
        // The dnode's block and the one above it are counted with the object.
        Ok(MetadataRewrite::of_dnode(object, ptr, dnode.indirect_bytes_above(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;
    use crate::{ObjectKind, ObjectSets, ObjectSpec};
    use std::sync::Arc;
    use terrane_device::{SimConfig, SimDevice};
    use terrane_format::BlockPtr;
    use terrane_format::directory::SPILL;
    use terrane_pool::{CreateOptions, ImportOptions, Pool};
    use terrane_store::env::SeededEnv;
    use terrane_txg::cost::Cost;

    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 1200;
    const COST: Cost = Cost { write_bytes: 8 << 20, meta_blocks: 64, ..Cost::NOTHING };

    fn content(block: u64) -> Vec<u8> {
        (0..BLOCK as u64).map(|at| (at * 7 + block * 13 + at * at / 97) as u8).collect()
    }

    /// A set with a file that has three levels of indirect blocks and a spill.
    fn new_file() -> (Arc<ObjectSets>, Arc<ObjectSet>, Arc<Object>) {
        let device = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
        let (create, import) = (CreateOptions::named("again"), ImportOptions::default());
        let pool = Pool::create(vec![device], &create, Arc::new(SeededEnv::new(1)), &import).unwrap();
        let objects = ObjectSets::create(pool).unwrap();
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
        let table = object.table().unwrap();
        lookup(table.pool(), object.tree_id(), &object.dnode(), level, index).unwrap()
    }

    fn birth_addr(ptr: &BlockPtr) -> Addr {
        let BlockPtr::Normal(normal) = ptr else { panic!("{ptr:?}") };
        normal.copies().last().unwrap()
    }

    fn find(
        set: &ObjectSet,
        object: &Object,
        level: u8,
        block: u64,
        ptr: &BlockPtr,
    ) -> Option<MetadataRewrite> {
        set.find_for_rewrite(object.tree_id().owner(level, block), birth_addr(ptr)).unwrap()
    }

    fn assert_content(file: &Object, blocks: u64) {
        for block in 0..blocks {
            assert!(*file.read_block(block).unwrap() == content(block), "block {block}");
        }
    }

    #[test]
    fn indirect_blocks_are_rewritten_once_per_txg() {
        let (_objects, set, file) = new_file();
        assert_eq!(file.dnode().levels, 4, "or it says little");
        for (level, index) in [(1, 3), (1, 37), (2, 1), (3, 0)] {
            let (before, below) = (pointer(&file, level, index), pointer(&file, level - 1, index * 32));
            let rewrite = find(&set, &file, level, index, &before).unwrap();
            let tx = set.begin(COST).unwrap();
            assert_eq!(rewrite.write(&tx).unwrap(), before.allocated_bytes());
            assert_eq!(rewrite.write(&tx).unwrap(), 0, "it is written already");
            assert!(find(&set, &file, level, index, &before).is_none());
            drop(tx);
            set.commit().unwrap();
            assert_ne!(birth_addr(&pointer(&file, level, index)), birth_addr(&before));
            assert_eq!(pointer(&file, level - 1, index * 32), below);
            assert!(find(&set, &file, level, index, &before).is_none(), "it is gone");
        }
        let all =
            (0..4).flat_map(|level| (0..BLOCKS.div_ceil(32u64.pow(level))).map(move |index| (level, index)));
        let stored = all.map(|(level, index)| pointer(&file, level as u8, index).allocated_bytes());
        assert_eq!(file.dnode().used, stored.sum::<u64>() + file.dnode().spill.allocated_bytes());
        assert_content(&file, BLOCKS);
        assert_eq!(set.pool().check_tables(), vec![]);
    }

    #[test]
    fn spills_and_dnode_blocks_are_rewritten() {
        let (_objects, set, file) = new_file();
        for (object, block) in [(&file, SPILL), (&set.dnodes, 0)] {
            let before = if block == SPILL { file.dnode().spill } else { pointer(object, 0, block) };
            let rewrite = find(&set, object, 0, block, &before).unwrap();
            let tx = set.begin(COST).unwrap();
            assert_eq!(rewrite.write(&tx).unwrap(), before.allocated_bytes());
            drop(tx);
            set.commit().unwrap();
            assert!(find(&set, object, 0, block, &before).is_none());
        }
        assert_eq!(*file.spill().unwrap().unwrap(), content(9));
        assert!(find(&set, &file, 0, 5, &pointer(&file, 0, 5)).is_none(), "contents are not metadata");
        assert_content(&file, BLOCKS);
        assert_eq!(set.pool().check_tables(), vec![]);
    }

    /// In one txg an indirect block is to be rewritten, and the file is truncated, extended or destroyed.
    #[test]
    fn tree_changes_win_over_rewrites() {
        for cut in [0, 1, 32 * 3, 32 * 3 + 5, 32 * 4, 32 * 33, BLOCKS + 1] {
            for first in [false, true] {
                let (_objects, set, file) = new_file();
                let positions = [(1, 3), (1, 36), (2, 0), (2, 1), (3, 0)];
                let found = positions.map(|(level, index)| {
                    find(&set, &file, level, index, &pointer(&file, level, index)).unwrap()
                });
                let tx = set.begin(COST).unwrap();
                let change = || match cut {
                    cut if cut > BLOCKS => {
                        // One more level.
                        file.write(&tx, 32 * 32 * 32 * BLOCK as u64, &content(1)).unwrap();
                    }
                    cut => file.truncate(&tx, cut * BLOCK as u64).unwrap(),
                };
                if first {
                    change();
                }
                for rewrite in &found {
                    rewrite.write(&tx).unwrap();
                }
                if !first {
                    change();
                }
                drop(tx);
                set.commit().unwrap();
                assert_content(&file, cut.min(BLOCKS));
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
