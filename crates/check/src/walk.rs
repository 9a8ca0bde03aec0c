//! Walks everything that the roots reach, block by block.
//!
//! Each copy of each block is read and verified; levels, kinds, fill counts and births are compared along the
//! way. Reached blocks are recorded, so that [`space`](crate::space) can compare them with the zone
//! directories.
//!
//! Invariants:
//! * An indirect block is walked once, however many pointers name it. So a walk ends after as many steps as
//!   the pool has blocks.
//! * 16 bytes are kept for each stored copy of a block, and an entry of a map for each clone in a set. Nothing else
//!   grows with the pool.

use crate::ahead::{Ahead, Coming, WINDOW};
use crate::report::{Progress, Report, Stage, kind};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use terrane_dataset::stored::StoredDataset;
use terrane_format::directory::SPILL;
use terrane_format::features::FeatureState;
use terrane_format::{Addr, BlockPtr, Feature, Owner, granule_bytes};
use terrane_object::dnode::{
    DNODE_BLOCK_BYTES, Dnode, INDIRECT_BYTES, ObjsetHeader, SLOT_BYTES, SLOTS_PER_BLOCK, SPILL_BYTES_MAX,
    dnodes_in,
};
use terrane_object::objset::{FREE_QUEUE, HEADER};
use terrane_object::queued_subtree::QueuedSubtree;
use terrane_object::{Account, HeaderCounts, ObjectKind, ObjectSet, ObjectSets, OwnerKind};
use terrane_pool::Pool;
use terrane_store::reports::owner_text;
use terrane_wire::{ObjectId, Txg, ZoneSeq};

/// Set in `Reached::psize` when a zone directory lists the block. Sizes need 25 bits.
const LISTED: u32 = 1 << 31;
/// Set in `Reached::psize` if the size is known in whole granules only.
const ROUNDED: u32 = 1 << 30;
/// Set in `Reached::psize` if the pointer is that of a clone.
const CLONE: u32 = 1 << 29;
/// The owner digest of blocks whose owner is unknown.
const UNKNOWN_OWNER: u32 = 0;
pub(crate) const POOL_OWNER: u32 = 1;

/// One stored copy that was reached.
#[derive(Clone, Copy)]
pub(crate) struct Reached {
    addr: u64,
    psize: u32,
    owner: u32,
}

impl Reached {
    pub fn addr(&self) -> Addr {
        Addr::from_raw(self.addr)
    }

    pub fn psize(&self) -> u32 {
        self.psize & !(LISTED | ROUNDED | CLONE)
    }

    /// The size that a zone directory should have for this block. `stored`: the size that it has.
    pub fn psize_like(&self, stored: u32) -> u32 {
        let is_like = granule_bytes(u64::from(stored)) == u64::from(self.psize());
        if self.psize & ROUNDED != 0 && is_like { stored } else { self.psize() }
    }

    pub fn is_listed(&self) -> bool {
        self.psize & LISTED != 0
    }

    /// Whether its size is known in whole granules only.
    pub fn is_rounded(&self) -> bool {
        self.psize & ROUNDED != 0
    }

    /// Whether a clone's pointer leads to it. Its owner is unknown: it has that of the first pointer.
    pub fn is_clone(&self) -> bool {
        self.psize & CLONE != 0
    }

    pub fn mark_listed(&mut self) {
        self.psize |= LISTED;
    }

    pub fn may_be_owned_by(&self, owner: Owner) -> bool {
        self.owner == UNKNOWN_OWNER || self.owner == digest(owner)
    }
}

/// The 32-bit hash of an owner: enough to detect a wrong one, and a quarter of the memory.
fn digest(owner: Owner) -> u32 {
    let Owner::Block { objset, object, level, block } = owner else { return POOL_OWNER };
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in [objset, object, u64::from(level), block] {
        // FNV-1a by words, with a shift so that high bits reach low ones.
        hash = (hash ^ word).wrapping_mul(0x100_0000_01b3);
        hash ^= hash >> 29;
    }
    (hash ^ hash >> 32) as u32 | 2
}

/// The tree that is walked.
#[derive(Clone, Copy)]
struct Tree {
    objset: u64,
    object: u64,
    kind: u8,
    metadata: bool,
    block_bytes: u32,
    /// Bytes of an indirect block.
    indirect_bytes: u32,
    /// Unknown owners and positions: a subtree that waits to be freed.
    is_detached: bool,
    /// Unknown owners: it may soon belong to another object.
    is_second_copy: bool,
    /// Blocks born before belong to another tree too.
    prune_below: Txg,
}

impl Tree {
    fn owner(&self, level: u8, block: u64) -> Owner {
        Owner::Block { objset: self.objset, object: self.object, level, block }
    }
}

/// What a subtree holds.
#[derive(Clone, Copy, Default)]
struct SubtreeTotals {
    fill: u64,
    bytes: u64,
    /// Behind the last block of level 0.
    end: u64,
    /// Something could not be read, so the numbers are too small.
    partial: bool,
}

/// Facts about blocks that an object set shares with an older one.
#[derive(Clone, Copy, Default)]
pub(crate) struct History {
    /// Blocks that were born in this txg or before belong to the snapshot from which it was cloned.
    pub origin: Txg,
    /// Blocks that were born before this txg name another set as their owner.
    pub created: Txg,
}

impl History {
    /// The history of a set of the pool.
    pub fn of(objects: &ObjectSets, id: ObjectId, stored: Option<&StoredDataset>) -> History {
        // If the identity cannot be read, the set could not be opened, which is reported elsewhere.
        let identity = objects.identity(id).ok().flatten();
        History {
            origin: stored.map_or(Txg(0), |stored| stored.origin),
            created: identity.map_or(Txg(0), |identity| identity.created),
        }
    }
}

/// Takes each dnode as it is met: set, number, dnode. True: its blocks may be owned by another object.
pub(crate) type DnodeVisitor<'a> = &'a mut dyn FnMut(&mut Report, ObjectId, &Dnode) -> bool;

pub(crate) struct Walk<'a> {
    pool: &'a Arc<Pool>,
    pub report: &'a mut Report,
    progress: &'a mut dyn FnMut(Progress),
    synced: Txg,
    live_bytes: u64,
    reported_bytes: u64,
    pub reached: Vec<Reached>,
    /// Bytes found in each zone.
    pub by_zone: BTreeMap<ZoneSeq, u64>,
    /// Of the object set that is being walked.
    account: Account,
    /// Bytes of its blocks by birth, without those that wait to be freed.
    pub by_birth: BTreeMap<Txg, u64>,
    /// The history of the object set that is being walked.
    history: History,
    /// Pointers of clones in the set that is being walked, by address and birth.
    pub clones: BTreeMap<(Addr, Txg), u32>,
    /// Number of findings in the table of shared blocks, for a walk that need not report them. `None`: they are
    /// reported.
    pub shared_table_findings: Option<u64>,
    seen_indirect: HashSet<u64>,
    ahead: Ahead,
}

/// Progress is reported each time this many bytes were read.
const PROGRESS_BYTES: u64 = 1 << 20;

impl<'a> Walk<'a> {
    pub fn new(pool: &'a Arc<Pool>, report: &'a mut Report, progress: &'a mut dyn FnMut(Progress)) -> Self {
        Walk {
            pool,
            report,
            progress,
            synced: pool.synced_txg(),
            live_bytes: pool.status().live_bytes,
            reported_bytes: 0,
            reached: Vec::new(),
            by_zone: BTreeMap::new(),
            account: Account::default(),
            by_birth: BTreeMap::new(),
            history: History::default(),
            clones: BTreeMap::new(),
            shared_table_findings: None,
            seen_indirect: HashSet::new(),
            ahead: Ahead::default(),
        }
    }

    /// Walks the blocks that the pool itself keeps.
    pub fn walk_bootstrap(&mut self) {
        for (addr, len) in self.pool.bootstrap_blocks() {
            self.record_copy(addr, len, POOL_OWNER, &"pool metadata");
        }
    }

    /// Walks an object set: its header, its dnodes, their trees, and its free queue.
    pub fn walk_objset(&mut self, set: &ObjectSet, history: History, each: DnodeVisitor<'_>) {
        let root = set.root();
        let objset = set.id().0;
        self.history = history;
        self.seen_indirect.clear();
        self.by_birth.clear();
        self.clones.clear();
        self.account = Account::default();
        if root.is_hole() {
            self.walk_queue(objset, set.inner_trees().2);
            return;
        }
        let header = Tree {
            objset,
            object: HEADER,
            kind: ObjectKind::Objset as u8,
            metadata: true,
            block_bytes: u32::MAX,
            indirect_bytes: INDIRECT_BYTES,
            is_detached: false,
            is_second_copy: false,
            prune_below: Txg(0),
        };
        self.check_copies(&header, &root, 0, 0, self.synced);
        self.account = Account::default();
        let findings = self.report.findings_count;
        let (dnodes, free_queue, queued) = set.inner_trees();
        let mut dnode_count = 0;
        let mut numbers_end = 1;
        let mut visit = |report: &mut Report, id: ObjectId, dnode: &Dnode| {
            dnode_count += 1;
            numbers_end = id.0.saturating_add(u64::from(dnode.slots));
            each(report, id, dnode)
        };
        let is_whole = !self.walk_object(objset, (ObjectId(0), false), &dnodes, Some(&mut visit)).partial;
        self.walk_object(objset, (FREE_QUEUE, false), &free_queue, None);
        if let Some(owners) = set.owner_tables() {
            self.report.add_use(Feature::Owners);
            for (kind, table) in OwnerKind::ALL.into_iter().zip(&owners.tables) {
                self.walk_object(objset, (kind.table_id(), false), table, None);
            }
        }
        self.walk_queue(objset, queued);
        if set.account().is_some() {
            self.report.add_use(Feature::Accounts);
        }
        // Parts that could not be walked were not counted.
        if let Some(stored) = set.account()
            && self.report.findings_count == findings
        {
            let at = format!("object set {objset}");
            let show =
                |all: Account| format!("{}, {}, {}", all.used_bytes, all.logical_bytes, all.physical_bytes);
            self.report.expect(kind::ACCOUNT, at, show(self.account), show(stored));
        }
        let HeaderCounts { objects, high_water } = set.header_counts();
        if is_whole {
            self.report.expect(kind::OBJECT_COUNT, format_args!("object set {objset}"), dnode_count, objects);
        }
        if high_water < numbers_end {
            let at = format!("object set {objset}");
            self.report.add(kind::HIGH_WATER, at, format_args!("at least {numbers_end}"), high_water);
        }
    }

    /// Walks subtrees that wait to be freed.
    fn walk_queue(&mut self, objset: u64, queue: Vec<QueuedSubtree>) {
        for queued in queue {
            let tree = Tree {
                objset,
                object: FREE_QUEUE.0,
                kind: 0,
                metadata: false,
                block_bytes: u32::MAX,
                indirect_bytes: INDIRECT_BYTES,
                is_detached: true,
                is_second_copy: false,
                prune_below: queued.prune_below,
            };
            if queued.owns(&queued.root) {
                self.walk_subtree(&tree, &queued.root, 0, self.synced, &mut None);
            }
        }
    }

    /// Walks the subtrees below a header block or a block of dnodes of a destroyed set.
    fn walk_detached_leaf(&mut self, tree: &Tree, ptr: &BlockPtr) {
        let owner = tree.owner(0, 0);
        let raw = match self.pool.read(ptr, owner) {
            Ok(raw) => raw,
            Err(error) => {
                self.report.add(kind::UNREADABLE, owner_text(owner), "a block of a destroyed set", error);
                return;
            }
        };
        let at = owner_text(owner);
        let roots = if ptr.kind() == ObjectKind::Objset as u8 {
            ObjsetHeader::parse(&raw, &at).map(|header| header.roots())
        } else {
            let all = |dnodes: Vec<(usize, Dnode)>| {
                dnodes.into_iter().flat_map(|(_, dnode)| [dnode.root, dnode.spill]).collect()
            };
            dnodes_in(&raw, &at).map(all)
        };
        match roots {
            Ok(roots) => {
                for root in
                    roots.iter().filter(|root| !root.is_hole() && root.latest_birth() >= tree.prune_below)
                {
                    self.walk_subtree(tree, root, 0, self.synced, &mut None);
                }
            }
            Err(corrupt) => self.report.damage(kind::UNREADABLE, &corrupt),
        }
    }

    /// Counts a copy that waits on a dead list to be freed.
    pub fn record_waiting(&mut self, addr: Addr, bytes: u64) {
        let at = format!("dead list, copy born at {addr}");
        // It may be shared, and several references may wait.
        self.record_copy(addr, bytes as u32 | ROUNDED | CLONE, UNKNOWN_OWNER, &at);
    }

    /// Verifies and counts a block that only snapshots refer to.
    pub fn record_of_snapshot(&mut self, ptr: &BlockPtr, at: &str) {
        let BlockPtr::Normal(normal) = ptr else { return };
        self.count_features(ptr, true);
        for (addr, error) in self.pool.verify(ptr) {
            self.report.add(kind::COPY, format_args!("{at}, copy born at {addr}"), "whole", error);
        }
        let psize = normal.psize | if normal.is_clone { CLONE } else { 0 };
        for addr in normal.copies() {
            self.record_copy(addr, psize, UNKNOWN_OWNER, &at);
        }
    }

    fn walk_object(
        &mut self,
        objset: u64,
        (id, is_second_copy): (ObjectId, bool),
        dnode: &Dnode,
        mut each: Option<DnodeVisitor<'_>>,
    ) -> SubtreeTotals {
        let at = format!("object set {objset} object {id}");
        if dnode.indirect_bytes != INDIRECT_BYTES {
            self.report.add_use(Feature::Pointers);
        }
        let tree = Tree {
            objset,
            object: id.0,
            kind: dnode.kind as u8,
            metadata: dnode.kind.is_metadata(),
            block_bytes: dnode.block_bytes,
            indirect_bytes: dnode.indirect_bytes,
            is_detached: false,
            is_second_copy,
            prune_below: Txg(0),
        };
        if !dnode.root.is_hole() {
            self.report.expect(kind::LEVEL, &at, dnode.levels.saturating_sub(1), dnode.root.level());
        }
        let totals = self.walk_subtree(&tree, &dnode.root, 0, self.synced, &mut each);
        if totals.end > dnode.block_count {
            self.report.add(
                kind::BLOCK_COUNT,
                &at,
                format_args!("at least {}", totals.end),
                dnode.block_count,
            );
        }
        // Metadata, whatever the object is.
        let tree = Tree { metadata: true, block_bytes: SPILL_BYTES_MAX as u32, ..tree };
        let spill = self.walk_subtree(&tree, &dnode.spill, SPILL, self.synced, &mut None);
        // Freed subtrees of three levels and more subtract an estimate.
        if dnode.levels <= 2 && !totals.partial {
            self.report.expect(kind::USED, &at, totals.bytes.saturating_add(spill.bytes), dnode.used);
        }
        totals
    }

    /// Walks the subtree of a pointer. `each` takes the dnodes if it is the tree of dnodes.
    fn walk_subtree(
        &mut self,
        tree: &Tree,
        ptr: &BlockPtr,
        block: u64,
        birth_max: Txg,
        each: &mut Option<DnodeVisitor<'_>>,
    ) -> SubtreeTotals {
        if ptr.is_hole() {
            return SubtreeTotals::default();
        }
        let level = ptr.level();
        let owner = tree.owner(level, block);
        let bytes = self.check_copies(tree, ptr, level, block, birth_max);
        let mut totals = if level > 0 {
            let mut totals = self.walk_indirect(tree, ptr, block, each);
            totals.bytes = totals.bytes.saturating_add(bytes);
            totals
        } else {
            let fill = self.check_leaf(tree, ptr, block, each);
            SubtreeTotals {
                fill: fill.unwrap_or(0),
                bytes,
                end: block.saturating_add(1),
                partial: fill.is_none(),
            }
        };
        if totals.partial {
            totals.fill = ptr.fill();
        } else if !tree.is_detached {
            self.report.expect(kind::FILL, owner_text(owner), totals.fill, ptr.fill());
        }
        totals
    }

    fn walk_indirect(
        &mut self,
        tree: &Tree,
        ptr: &BlockPtr,
        block: u64,
        each: &mut Option<DnodeVisitor<'_>>,
    ) -> SubtreeTotals {
        let partial = SubtreeTotals { partial: true, ..SubtreeTotals::default() };
        let level = ptr.level();
        let owner = tree.owner(level, block);
        let at = owner_text(owner);
        if let BlockPtr::Normal(normal) = ptr
            && !self.seen_indirect.insert(normal.addrs[0].raw())
        {
            // `space` reports it, with its location.
            return partial;
        }
        if ptr.lsize() > tree.indirect_bytes || !(ptr.lsize() as usize).is_multiple_of(BlockPtr::SIZE) {
            let sizes = format!("whole pointers, at most {} bytes", tree.indirect_bytes);
            self.report.add(kind::BLOCK_SIZE, &at, sizes, ptr.lsize());
            return partial;
        }
        let raw = match self.pool.read(ptr, owner) {
            Ok(raw) => raw,
            Err(error) => {
                self.report.add(kind::UNREADABLE, &at, "an indirect block", error);
                return partial;
            }
        };
        let mut totals = SubtreeTotals::default();
        let pointers = u64::from(tree.indirect_bytes) / BlockPtr::SIZE as u64;
        let index = |child: u64| block.saturating_mul(pointers).saturating_add(child);
        for (child, pointer) in (0u64..).zip(raw.chunks_exact(BlockPtr::SIZE)) {
            let at = format!("{at} pointer {child}");
            if child.is_multiple_of(WINDOW as u64) {
                let is_read = level > 1 || tree.metadata || each.is_some();
                let window = raw.chunks_exact(BlockPtr::SIZE).skip(child as usize).take(WINDOW);
                let parsed = (child..).zip(window.map(|pointer| BlockPtr::parse(pointer, &at)));
                let coming = parsed.filter_map(|(child, ptr)| {
                    let ptr = ptr
                        .ok()
                        .filter(|ptr| ptr.level() + 1 == level && ptr.latest_birth() >= tree.prune_below)?;
                    Some(Coming { ptr, owner: tree.owner(level - 1, index(child)), is_read })
                });
                self.ahead.read(self.pool, coming.collect());
            }
            let child_ptr = match BlockPtr::parse(pointer, &at) {
                Ok(child_ptr) => child_ptr,
                Err(corrupt) => {
                    self.report.damage(kind::UNREADABLE, &corrupt);
                    totals.partial = true;
                    continue;
                }
            };
            if child_ptr.is_hole() || child_ptr.latest_birth() < tree.prune_below {
                continue;
            }
            // Without this check forged levels could lead down for ever.
            if child_ptr.level() + 1 != level {
                self.report.add(kind::LEVEL, &at, level - 1, child_ptr.level());
                totals.partial = true;
                continue;
            }
            let below = self.walk_subtree(tree, &child_ptr, index(child), ptr.latest_birth(), each);
            totals.fill = totals.fill.saturating_add(below.fill);
            totals.bytes = totals.bytes.saturating_add(below.bytes);
            totals.end = totals.end.max(below.end);
            totals.partial |= below.partial;
        }
        totals
    }

    /// The fill of a block of level 0; `None`: it could not be read.
    fn check_leaf(
        &mut self,
        tree: &Tree,
        ptr: &BlockPtr,
        block: u64,
        each: &mut Option<DnodeVisitor<'_>>,
    ) -> Option<u64> {
        let owner = tree.owner(0, block);
        if !tree.is_detached && ptr.lsize() > tree.block_bytes {
            let most = format!("at most {}", tree.block_bytes);
            self.report.add(kind::BLOCK_SIZE, owner_text(owner), most, ptr.lsize());
        }
        let is_expanded = [ObjectKind::Objset as u8, ObjectKind::Dnodes as u8].contains(&ptr.kind());
        if tree.is_detached && is_expanded {
            self.walk_detached_leaf(tree, ptr);
            return Some(1);
        }
        let Some(each) = each else {
            // A readable block also decompresses. File contents are verified by their checksum alone.
            if tree.metadata
                && let Err(error) = self.pool.read(ptr, owner)
            {
                self.report.add(kind::UNREADABLE, owner_text(owner), "a block", error);
            }
            return Some(1);
        };
        let at = owner_text(owner);
        let parsed = self.pool.read(ptr, owner).map_err(|error| error.to_string()).and_then(|raw| {
            if raw.len() != DNODE_BLOCK_BYTES as usize {
                return Err(format!("{} bytes", raw.len()));
            }
            dnodes_in(&raw, &at).map_err(|corrupt| corrupt.to_string())
        });
        let dnodes = match parsed {
            Ok(dnodes) => dnodes,
            Err(found) => {
                self.report.add(kind::UNREADABLE, &at, "a block of dnodes", found);
                return None;
            }
        };
        let fill = dnodes.len() as u64;
        let number = |offset: usize| {
            block.saturating_mul(SLOTS_PER_BLOCK).saturating_add((offset / SLOT_BYTES) as u64)
        };
        let trees = dnodes.iter().flat_map(|(offset, dnode)| {
            let owner =
                |level| Owner::Block { objset: tree.objset, object: number(*offset), level, block: 0 };
            let is_read = dnode.root.level() > 0 || dnode.kind.is_metadata();
            [
                Coming { ptr: dnode.root.clone(), owner: owner(dnode.root.level()), is_read },
                Coming {
                    ptr: dnode.spill.clone(),
                    owner: Owner::Block {
                        objset: tree.objset,
                        object: number(*offset),
                        level: 0,
                        block: SPILL,
                    },
                    is_read: true,
                },
            ]
        });
        self.ahead.read(self.pool, trees.collect());
        for (offset, dnode) in dnodes {
            let id = number(offset);
            let is_second_copy = each(self.report, ObjectId(id), &dnode);
            let is_table = dnode.kind == ObjectKind::SharedTable;
            let Some(before) = self.shared_table_findings.filter(|_| is_table) else {
                self.walk_object(tree.objset, (ObjectId(id), is_second_copy), &dnode, None);
                continue;
            };
            let outer = std::mem::take(self.report);
            self.walk_object(tree.objset, (ObjectId(id), is_second_copy), &dnode, None);
            let of_table = std::mem::replace(self.report, outer);
            self.shared_table_findings = Some(before.saturating_add(of_table.findings_count));
        }
        Some(fill)
    }

    /// Verifies every copy and records where it is. Returns the space they take.
    fn check_copies(&mut self, tree: &Tree, ptr: &BlockPtr, level: u8, block: u64, birth_max: Txg) -> u64 {
        let owner = tree.owner(level, block);
        let at = owner_text(owner);
        if ptr.latest_birth() > birth_max {
            self.report.add(kind::BIRTH, &at, format_args!("at most {birth_max}"), ptr.latest_birth());
        }
        let of_kind = match ptr {
            BlockPtr::Hole(_) => return 0,
            BlockPtr::Embedded(embedded) => embedded.kind,
            BlockPtr::Normal(normal) => normal.kind,
        };
        let is_file = ObjectKind::from_id(of_kind).is_some_and(|kind| !kind.is_metadata());
        self.account.add(ptr, is_file && level == 0 && !tree.metadata);
        if !tree.is_detached {
            self.report.expect(kind::BLOCK_KIND, &at, tree.kind, of_kind);
        }
        self.count_features(ptr, tree.is_detached);
        let BlockPtr::Normal(normal) = ptr else { return 0 };
        for (addr, error) in self.ahead.verify(self.pool, ptr) {
            self.report.add(kind::COPY, format_args!("{at}, copy born at {addr}"), "whole", error);
        }
        if !tree.is_detached {
            let bytes = self.by_birth.entry(ptr.latest_birth()).or_default();
            *bytes = bytes.saturating_add(ptr.allocated_bytes());
        }
        if ptr.latest_birth() <= self.history.origin {
            return ptr.allocated_bytes();
        }
        let is_of_other = ptr.latest_birth() < self.history.created;
        let is_unknown = tree.is_detached || tree.is_second_copy || is_of_other || normal.is_clone;
        let owner = if is_unknown { UNKNOWN_OWNER } else { digest(owner) };
        let psize = normal.psize | if normal.is_clone { CLONE } else { 0 };
        if normal.is_clone {
            *self.clones.entry((normal.addrs[0], ptr.latest_birth())).or_default() += 1;
        }
        let mut zones: Vec<ZoneSeq> = Vec::new();
        for addr in normal.copies() {
            if let Some(zone) = self.record_copy(addr, psize, owner, &at) {
                if zones.contains(&zone) {
                    self.report.add(
                        kind::COPIES,
                        &at,
                        "in different zones",
                        format_args!("two in zone {zone}"),
                    );
                }
                zones.push(zone);
            }
        }
        if !tree.is_detached && (tree.metadata || level > 0) && normal.copies().count() < 2 {
            self.report.add(kind::COPIES, &at, 2, 1);
        }
        ptr.allocated_bytes()
    }

    /// Counts what a pointer uses. The tree of a detached subtree is unknown: its indirect blocks may be small if there are small ones at
    /// all.
    fn count_features(&mut self, ptr: &BlockPtr, is_detached: bool) {
        let is_indirect = is_detached && !ptr.is_hole() && ptr.level() > 0;
        let may_be_small = is_indirect && self.pool.feature_state(Feature::Pointers) == FeatureState::Active;
        let used = ptr.features().chain(may_be_small.then_some(Feature::Pointers));
        used.for_each(|feature| self.report.add_use(feature));
    }

    fn record_copy(
        &mut self,
        addr: Addr,
        psize: u32,
        owner: u32,
        at: &dyn std::fmt::Display,
    ) -> Option<ZoneSeq> {
        let reached = Reached { addr: addr.raw(), psize, owner };
        self.reached.push(reached);
        let psize = reached.psize();
        // A clone's block is counted once, when all pointers are known.
        if reached.is_clone() {
            return self.locate(addr, psize, at);
        }
        self.count_copy(psize);
        let zone = self.locate(addr, psize, at)?;
        self.count_in_zone(zone, psize);
        Some(zone)
    }

    /// Counts a stored copy.
    pub fn count_copy(&mut self, psize: u32) {
        let bytes = granule_bytes(u64::from(psize));
        let counts = &mut self.report.counts;
        counts.blocks += 1;
        counts.bytes = counts.bytes.saturating_add(bytes);
        if counts.bytes - self.reported_bytes >= PROGRESS_BYTES {
            self.reported_bytes = counts.bytes;
            let total = self.live_bytes.max(counts.bytes);
            (self.progress)(Progress { stage: Stage::Blocks, done: counts.bytes, total });
        }
    }

    /// Counts a stored copy in the zone where it is.
    pub fn count_in_zone(&mut self, zone: ZoneSeq, psize: u32) {
        let zone_bytes = self.by_zone.entry(zone).or_default();
        *zone_bytes = zone_bytes.saturating_add(granule_bytes(u64::from(psize)));
    }

    fn locate(&mut self, addr: Addr, psize: u32, at: &dyn std::fmt::Display) -> Option<ZoneSeq> {
        match self.pool.locate(addr, psize) {
            Ok((seq, _, _)) => Some(seq),
            Err(error) => {
                self.report.add(kind::COPY, format_args!("{at}, copy born at {addr}"), "in a zone", error);
                None
            }
        }
    }

    pub fn report_progress(&mut self, stage: Stage, done: u64, total: u64) {
        (self.progress)(Progress { stage, done, total });
    }
}
