//! Expected lifetimes of an object's blocks, passed from the sources to placement.
//!
//! Sources are hints of users and data sets, predictions from files that died, and each overwrite: it shows how
//! long the old version lived. It is advice: nothing is stored here, and the values at the moment of the sync
//! count.
//!
//! Invariant: it causes no read that the sync would not do anyway.

use crate::dirty::Frozen;
use crate::dnode::Dnode;
use crate::tree::{TreeId, lookup, pointer_at};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use terrane_format::BlockPtr;
use terrane_pool::Pool;
use terrane_space::policy::{Hint, Placement};
use terrane_wire::Txg;

/// A file counts as finished if its first sync writes at most this many bytes. Mounts do not report when files
/// are closed, and a writer still at work would have written little in a whole txg.
const SMALL_BYTES: u64 = 1 << 20;

/// Lifetime advice for one object. Leaf atomics: a race costs a bad placement.
#[derive(Debug, Default)]
pub(crate) struct LifetimeHints {
    /// The number of a [`Hint`].
    hint: AtomicU8,
    /// Bytes plus one, saturated; 0: unknown.
    expected_life: AtomicU64,
}

impl LifetimeHints {
    pub fn set_hint(&self, hint: Hint) {
        self.hint.store(hint as u8, Ordering::Relaxed);
    }

    pub fn hint(&self) -> Hint {
        Hint::from_id(u64::from(self.hint.load(Ordering::Relaxed))).unwrap_or_default()
    }

    pub fn set_expected_life(&self, bytes: Option<u64>) {
        self.expected_life.store(bytes.map_or(0, |bytes| bytes.saturating_add(1)), Ordering::Relaxed);
    }

    pub fn expected_life(&self) -> Option<u64> {
        match self.expected_life.load(Ordering::Relaxed) {
            u64::MAX => Some(u64::MAX),
            stored => stored.checked_sub(1),
        }
    }

    /// Placement of all blocks that the sync writes for the object. `default` is the set's hint for objects
    /// without one.
    pub fn placement(&self, tree: TreeId, frozen: &Frozen, default: Hint) -> Placement {
        let burst_bytes = frozen.dirty.written_bytes();
        let hint = self.hint();
        Placement {
            // Unique in the set; equal numbers in two sets are harmless.
            file: tree.object.0,
            hint: if hint == Hint::NotSet { default } else { hint },
            burst_bytes,
            is_closed: frozen.dnode.root.is_hole() && burst_bytes <= SMALL_BYTES,
            expected_life_bytes: self.expected_life(),
            ..Placement::default()
        }
    }
}

/// Birth of a block's content; 0: a hole.
pub(crate) fn content_birth(ptr: &BlockPtr) -> Txg {
    if ptr.is_hole() { Txg(0) } else { ptr.logical_birth() }
}

/// Looks up the pointers that new blocks replace, in the order of blocks.
pub(crate) struct ReplacedPointers<'a> {
    pool: &'a Pool,
    tree: TreeId,
    /// With the tree before the sync.
    old: &'a Dnode,
    /// Index and content of the last level-1 indirect block.
    last_leaf: Option<(u64, Option<Arc<Vec<u8>>>)>,
}

impl<'a> ReplacedPointers<'a> {
    pub fn new(pool: &'a Pool, tree: TreeId, old: &'a Dnode) -> Self {
        ReplacedPointers { pool, tree, old, last_leaf: None }
    }

    /// `None`: it is unreadable, which the rewrite of the tree will report.
    pub fn pointer(&mut self, block: u64) -> Option<BlockPtr> {
        if self.old.root.is_hole() {
            return Some(BlockPtr::default());
        }
        if self.old.levels == 1 {
            return Some(if block == 0 { self.old.root.clone() } else { BlockPtr::default() });
        }
        let pointers = self.old.pointers_per_block();
        let leaf = self.leaf(block / pointers)?;
        pointer_at(&leaf, block % pointers, &"pointer of a replaced block").ok()
    }

    /// An indirect block of level 1; empty for a hole.
    fn leaf(&mut self, index: u64) -> Option<Arc<Vec<u8>>> {
        if let Some((_, leaf)) = self.last_leaf.as_ref().filter(|(stored_index, _)| *stored_index == index) {
            return leaf.clone();
        }
        let leaf = lookup(self.pool, self.tree, self.old, 1, index).and_then(|ptr| match ptr.is_hole() {
            true => Ok(Arc::default()),
            false => self.pool.read(&ptr, self.tree.owner(1, index)),
        });
        let leaf = leaf.ok();
        self.last_leaf = Some((index, leaf.clone()));
        leaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::{Dirty, DirtyBlock};
    use crate::{Object, ObjectKind, ObjectSets, ObjectSpec};
    use terrane_device::{SimConfig, SimDevice};
    use terrane_pool::{CreateOptions, ImportOptions};
    use terrane_store::env::SeededEnv;
    use terrane_txg::cost::Cost;
    use terrane_wire::ObjectId;

    const COST: Cost = Cost { write_bytes: 2 << 20, meta_blocks: 16, ..Cost::NOTHING };

    fn objects() -> Arc<ObjectSets> {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let (create, import) = (CreateOptions::named("outlook"), ImportOptions::default());
        let pool = Pool::create(vec![Arc::new(device)], &create, Arc::new(SeededEnv::new(1)), &import);
        ObjectSets::create(pool.unwrap()).unwrap()
    }

    fn birth(replaced: &mut ReplacedPointers<'_>, block: u64) -> Txg {
        content_birth(&replaced.pointer(block).unwrap())
    }

    fn tree_id(object: &Object) -> TreeId {
        TreeId { objset: terrane_wire::ObjsetId(0), object: object.id() }
    }

    #[test]
    fn overwrite_reports_the_birth_of_the_replaced_block() {
        let objects = objects();
        let set = objects.mos();
        let spec = ObjectSpec {
            kind: ObjectKind::File,
            block_size: 4096,
            dnode_slots: 1,
            bonus: Vec::new(),
            spill: None,
        };
        let noise = |at: u64| (0..4096u64).map(|i| (i.wrapping_mul(i + at) >> 3) as u8).collect::<Vec<u8>>();
        let mut births = std::collections::BTreeMap::new();
        let object = set.create(&set.begin(COST).unwrap(), spec).unwrap();
        // A single block is the root. Then come one level of indirect blocks, a second level, and holes.
        for (round, blocks) in (1..).zip([vec![0], vec![0, 1], vec![3, 130, 131], vec![1, 131], vec![300]]) {
            let before = object.dnode();
            let mut replaced = ReplacedPointers::new(set.pool(), tree_id(&object), &before);
            for block in [0, 1, 2, 3, 4, 129, 130, 131, 132, 299, 300, 301, 1 << 30] {
                let expected = births.get(&block).copied().unwrap_or(Txg(0));
                assert_eq!(birth(&mut replaced, block), expected, "block {block}");
            }
            let tx = set.begin(COST).unwrap();
            for block in &blocks {
                object.write(&tx, block * 4096, &noise(block + 7 * round)).unwrap();
                births.insert(*block, tx.txg());
            }
            drop(tx);
            set.commit().unwrap();
        }
        let tx = set.begin(COST).unwrap();
        object.truncate(&tx, 2 * 4096).unwrap();
        drop(tx);
        set.commit().unwrap();
        let cut = object.dnode();
        let mut replaced = ReplacedPointers::new(set.pool(), tree_id(&object), &cut);
        assert_eq!([1, 3, 131].map(|block| birth(&mut replaced, block)), [births[&1], Txg(0), Txg(0)]);
    }

    #[test]
    fn object_hint_overrides_set_hint() {
        let tree = TreeId { objset: terrane_wire::ObjsetId(1), object: ObjectId(7) };
        let mut frozen =
            Frozen { dirty: Dirty::new(Txg(5)), dnode: Dnode::new(ObjectKind::File, 1, 4096, Txg(5)) };
        frozen.dirty.blocks.insert(0, DirtyBlock::Data(Arc::new(vec![1; 4096])));
        let hints = LifetimeHints::default();
        let placed = hints.placement(tree, &frozen, Hint::Long);
        assert_eq!((placed.file, placed.hint, placed.burst_bytes), (7, Hint::Long, 4096));
        assert_eq!((placed.is_closed, placed.expected_life_bytes), (true, None));
        for (hint_set, hint) in
            [(Hint::None, Hint::None), (Hint::Short, Hint::Short), (Hint::NotSet, Hint::Long)]
        {
            hints.set_hint(hint_set);
            assert_eq!(hints.hint(), hint_set);
            assert_eq!(hints.placement(tree, &frozen, Hint::Long).hint, hint);
        }
        for life in [Some(0), Some(1 << 40), Some(u64::MAX), None] {
            hints.set_expected_life(life);
            assert_eq!(hints.placement(tree, &frozen, Hint::NotSet).expected_life_bytes, life);
        }
        frozen.dirty.blocks.insert(1, DirtyBlock::Data(Arc::new(vec![1; SMALL_BYTES as usize])));
        assert!(!hints.placement(tree, &frozen, Hint::NotSet).is_closed, "a large one may go on");
    }
}
