//! Snapshots of the data sets of a tree, clones, holds and bookmarks.

use super::{COST, COST_FREEING, Datasets, check_name, names_in, split};
use crate::branch::space_of_pool;
use crate::chain::{Chain, ChainChange, Link, kept_bytes, new_part};
use crate::dataset::Dataset;
use crate::error::DatasetError;
use crate::free_policy::{open_set, read_snapshot, snapshots_of};
use crate::mos_zap::zap;
use crate::node::{
    BOOKMARKS, CLONES, DEAD_LIST, HOLDS, Node, ORIGIN, ORIGIN_NODE, SET, SNAPSHOTS, object_in,
};
use crate::props;
use crate::snapshot_info::SnapshotInfo;
use crate::tree::nodes;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_format::{BlockPtr, Feature};
use terrane_object::{Account, Object, ObjectError, ObjectKind, ObjectSet, ObjectSpec};
use terrane_pool::Tx;
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};
use terrane_zap::{Value, ValueRef};

/// Metadata blocks that become dirty with each further snapshot of an operation.
const BLOCKS_EACH: u32 = 6;
/// One transaction that destroys snapshots takes at most this part of the dirty limit, and destroys at most so many, so that others need
/// not wait for theirs.
const SHARE: u64 = 8;
const AT_ONCE_MAX: u64 = 256;

/// The cost of a rollback that destroys so many newer snapshots.
fn cost_of_rollback(later: usize) -> Cost {
    let blocks = BLOCKS_EACH.saturating_mul(u32::try_from(later).unwrap_or(u32::MAX));
    Cost { meta_blocks: blocks.saturating_add(64), ..COST_FREEING }
}

/// Paths of the clones of each snapshot that has clones.
pub(super) type Clones = BTreeMap<ObjectId, Vec<String>>;

/// A snapshot with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name in its data set.
    pub name: String,
    /// Its stored facts.
    pub info: SnapshotInfo,
}

/// A hold, which protects a snapshot from being destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The name of the snapshot.
    pub snapshot: String,
    /// The name of the hold.
    pub tag: String,
    /// When it was made, in seconds since 1970.
    pub time: u64,
}

/// A bookmark: facts about a snapshot, which may have been destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// Its name in its data set.
    pub name: String,
    /// The guid of the snapshot.
    pub guid: u64,
    /// The txg that the snapshot shows.
    pub created: Txg,
    /// Time of the snapshot in nanoseconds since 1970.
    pub time_ns: u64,
}

impl Datasets {
    /// Takes snapshots of these data sets under these names, all of the same txg. Durable on return.
    pub fn snapshot(&self, wanted: &[(&str, &str)]) -> Result<Vec<Snapshot>, DatasetError> {
        for (path, name) in wanted {
            check_name(name, &format!("{path}@{name}"))?;
        }
        self.enable()?;
        let mos = self.objects.mos();
        let taken = loop {
            match self.take_all(wanted)? {
                Some(taken) => break taken,
                // Two snapshots of a data set must not be of the same txg.
                None => mos.commit()?,
            }
        };
        mos.commit()?;
        // Other callers may have destroyed them meanwhile, and taken others under the same names.
        let _tree = self.tree.lock();
        let found = wanted.iter().zip(taken).map(|((path, name), guid)| {
            let found = self.snapshot_of(&self.node(path)?, path, name)?;
            if found.info.guid != guid {
                return Err(DatasetError::Unknown { name: format!("{path}@{name}"), nearest: None });
            }
            Ok(found)
        });
        found.collect()
    }

    /// Takes snapshots in the open txg. Returns their guids. `None`: the txg takes a snapshot of one of the data sets already.
    fn take_all(&self, wanted: &[(&str, &str)]) -> Result<Option<Vec<u64>>, DatasetError> {
        let mos = self.objects.mos();
        let blocks = COST.meta_blocks.saturating_add(BLOCKS_EACH.saturating_mul(wanted.len() as u32));
        let tx = mos.begin(Cost { meta_blocks: blocks, ..COST })?;
        tx.pool().note_use(Feature::Snapshots);
        let _tree = self.tree.lock();
        let mut nodes: Vec<(Node, Arc<ObjectSet>, &str)> = Vec::with_capacity(wanted.len());
        for (path, name) in wanted {
            let node = self.node(path)?;
            let snapshots = node.zap_of(SNAPSHOTS)?;
            let known = snapshots.map(|zap| zap.lookup_u64(name.as_bytes())).transpose()?.flatten();
            if known.is_some() || nodes.iter().any(|(other, _, _)| other.set == node.set) {
                return Err(DatasetError::Exists { name: format!("{path}@{name}") });
            }
            let set = self.open_head_to_change(path, &node)?;
            if Chain::of(&set).is_some_and(|chain| chain.is_being_taken()) {
                return Ok(None);
            }
            if !set.has_queue_outside() {
                // A snapshot would contain the queue, and a clone would free its subtrees again.
                let by = "its pool was upgraded while it was open: unmount it once".to_string();
                return Err(DatasetError::InUse { name: path.to_string(), by });
            }
            nodes.push((node, set, *name));
        }
        let pool = space_of_pool(self.objects.pool());
        let mut growth = 0u64;
        for (path, _) in wanted {
            let (more, room) = self.branch(path)?.charge_of_snapshot(pool);
            growth = growth.saturating_add(more);
            if more > 0 && growth > room {
                let error = PoolError::NoSpace { need: growth, free: room };
                return Err(ObjectError::from(error).into());
            }
        }
        let time_ns = self.objects.pool().env().wall_ns();
        let take = |(mut node, set, name): (Node, Arc<ObjectSet>, &str)| {
            self.take(&tx, &mut node, &set, name, time_ns)
        };
        self.change(|| nodes.into_iter().map(take).collect::<Result<Vec<_>, _>>().map(Some))
    }

    fn take(
        &self,
        tx: &Tx,
        node: &mut Node,
        set: &Arc<ObjectSet>,
        name: &str,
        time_ns: u64,
    ) -> Result<u64, DatasetError> {
        let mos = self.objects.mos();
        let dead_list = match node.get(DEAD_LIST)? {
            Some(list) => list,
            None => mos.create(tx, new_part())?.id(),
        };
        let new_list = mos.create(tx, new_part())?.id();
        let guid = loop {
            let guid = mos.random_u64();
            if guid != 0 {
                break guid;
            }
        };
        let mut info = SnapshotInfo {
            id: ObjectId(0),
            root: BlockPtr::default(),
            guid,
            created: tx.txg(),
            time_ns,
            dead_list,
            set: node.set,
            referenced: Account::default(),
        };
        let (kind, block_size) = (ObjectKind::Snapshot, 512);
        let spec = ObjectSpec { kind, block_size, dnode_slots: 1, bonus: info.encode(), spill: None };
        info.id = mos.create(tx, spec)?.id();
        node.zap_of_mut(tx, SNAPSHOTS)?.add_u64(tx, name.as_bytes(), info.id.0)?;
        node.set(tx, DEAD_LIST, new_list)?;
        if let Some(chain) = Chain::of(set) {
            chain.change(tx, ChainChange::Take { info, new_list });
        }
        Ok(guid)
    }

    /// The snapshots of a data set, oldest first.
    pub fn snapshots(&self, path: &str) -> Result<Vec<Snapshot>, DatasetError> {
        let _tree = self.tree.lock();
        self.snapshots_in(&self.node(path)?)
    }

    pub(super) fn snapshots_in(&self, node: &Node) -> Result<Vec<Snapshot>, DatasetError> {
        let found = snapshots_of(self.objects.mos(), node)?;
        let named =
            |(name, info): (Vec<u8>, _)| Snapshot { name: String::from_utf8_lossy(&name).into_owned(), info };
        Ok(found.into_iter().map(named).collect())
    }

    /// A snapshot by its name.
    pub fn find_snapshot(&self, path: &str, name: &str) -> Result<Snapshot, DatasetError> {
        let _tree = self.tree.lock();
        self.snapshot_of(&self.node(path)?, path, name)
    }

    pub(super) fn snapshot_of(&self, node: &Node, path: &str, name: &str) -> Result<Snapshot, DatasetError> {
        let snapshots = node.zap_of(SNAPSHOTS)?;
        let found = snapshots.as_ref().map(|zap| zap.lookup_u64(name.as_bytes())).transpose()?.flatten();
        let Some(id) = found else {
            let names = snapshots.map(|zap| names_in(&zap)).transpose()?.unwrap_or_default();
            let nearest = DatasetError::nearest(name, names).map(|found| format!("{path}@{found}"));
            return Err(DatasetError::Unknown { name: format!("{path}@{name}"), nearest });
        };
        Ok(Snapshot { name: name.to_string(), info: read_snapshot(self.objects.mos(), ObjectId(id))? })
    }

    /// Changes the number of clones of a snapshot by `by`. `node`: that of the data set that has the snapshot.
    pub(super) fn count_clone(
        &self,
        tx: &Tx,
        node: Option<ObjectId>,
        snapshot: ObjectId,
        by: i64,
    ) -> Result<(), DatasetError> {
        let Some(id) = node else { return Ok(()) };
        let mut clones = crate::node::zap_of_mut(self.objects.mos(), tx, id, CLONES)?;
        let name = snapshot.to_string();
        let count = clones.lookup_u64(name.as_bytes())?.unwrap_or(0).saturating_add_signed(by);
        match count {
            0 => drop(clones.remove(tx, name.as_bytes())?),
            count => clones.update_u64(tx, name.as_bytes(), count)?,
        }
        Ok(())
    }

    /// Fails if [`count_clone`](Self::count_clone) would.
    pub(super) fn check_clone_count(
        &self,
        node: Option<ObjectId>,
        snapshot: ObjectId,
    ) -> Result<(), DatasetError> {
        let Some(id) = node else { return Ok(()) };
        let mos = self.objects.mos();
        let clones = zap(mos, id)?.lookup_u64(CLONES)?.filter(|id| *id != 0);
        let clones = clones.map(|id| zap(mos, ObjectId(id))).transpose()?;
        clones.map(|clones| clones.lookup_u64(snapshot.to_string().as_bytes())).transpose()?;
        Ok(())
    }

    /// Refuses snapshots that have holds or clones. Clones at the paths in `doomed` do not count.
    fn check_unused(
        &self,
        node: &Node,
        path: &str,
        snapshots: &[Snapshot],
        doomed: &[String],
    ) -> Result<(), DatasetError> {
        let mut holds: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for hold in self.holds_in(node)? {
            holds.entry(hold.snapshot).or_default().push(hold.tag);
        }
        let clones = self.clones()?;
        for snapshot in snapshots {
            let in_use = |by: String| DatasetError::InUse { name: format!("{path}@{}", snapshot.name), by };
            if let Some(tags) = holds.get(&snapshot.name) {
                return Err(in_use(format!("held by {}: release it first", tags.join(", "))));
            }
            let clones = clones.get(&snapshot.info.id).into_iter().flatten();
            let clones: Vec<&str> =
                clones.map(String::as_str).filter(|clone| !doomed.iter().any(|path| path == clone)).collect();
            if !clones.is_empty() {
                return Err(in_use(format!(
                    "cloned as {}: destroy or promote that first",
                    clones.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The clones of each snapshot. Read from the clones and not from the counts: blocks of a clone must never be freed, even if a count
    /// is wrong. Kept while the tree stays as it is, as a snapshot of each of a thousand data sets may be destroyed in turn.
    fn clones(&self) -> Result<Arc<Clones>, DatasetError> {
        let mut known = self.clones.lock();
        if let Some(known) = &*known {
            return Ok(Arc::clone(known));
        }
        let mut clones = Clones::new();
        for (path, node) in nodes(self.objects.mos())? {
            if let Some(origin) = node.get(ORIGIN)? {
                clones.entry(origin).or_default().push(path);
            }
        }
        Ok(Arc::clone(known.insert(Arc::new(clones))))
    }

    /// Refuses what [`destroy_snapshots`](Self::destroy_snapshots) would refuse.
    pub fn check_destroyable(&self, path: &str, names: &[&str]) -> Result<(), DatasetError> {
        let _tree = self.tree.lock();
        let node = self.node(path)?;
        let found: Result<Vec<_>, _> = names.iter().map(|name| self.snapshot_of(&node, path, name)).collect();
        self.check_unused(&node, path, &found?, &[])
    }

    /// Refuses to destroy data sets with their snapshots, if one is open, or has a snapshot with a hold or with a clone that
    /// is not among them.
    pub fn check_destroy_all(&self, doomed: &[String]) -> Result<(), DatasetError> {
        let _tree = self.tree.lock();
        for path in doomed {
            split(path)?;
            let node = self.node(path)?;
            self.check_not_open(path, &node)?;
            self.check_unused(&node, path, &self.snapshots_in(&node)?, doomed)?;
        }
        Ok(())
    }

    /// Refuses a snapshot whose txg has not synced, so that it has no root yet. That of an empty object set has none later either.
    fn check_taken(&self, tx: &Tx, path: &str, snapshot: &Snapshot) -> Result<(), DatasetError> {
        if snapshot.info.created >= tx.txg() {
            return Err(being_taken(path, &snapshot.name));
        }
        Ok(())
    }

    /// Refuses a set with subtrees that wait to be freed, or with lists that are not at rest. The caller holds the tree.
    fn check_drained(&self, path: &str, set: &ObjectSet) -> Result<(), DatasetError> {
        if set.is_freeing().is_some() || Chain::of(set).is_some_and(|chain| !chain.is_at_rest()) {
            let by = "something of it is just being freed: try again".to_string();
            return Err(DatasetError::InUse { name: path.to_string(), by });
        }
        Ok(())
    }

    /// Destroys snapshots of a data set. Blocks that only they refer to are freed in the background. It is one transaction if that
    /// takes a small part of the dirty limit and the pool has space for it. Otherwise parts of the names are one each, and a crash
    /// may leave some of the snapshots. An error then says how many are gone.
    pub fn destroy_snapshots(&self, path: &str, names: &[&str]) -> Result<(), DatasetError> {
        let mut known = BTreeSet::new();
        let names: Vec<&str> = names.iter().copied().filter(|name| known.insert(*name)).collect();
        let each = Cost { meta_blocks: BLOCKS_EACH, ..Cost::NOTHING };
        let limit = self.objects.mos().pool().load().1;
        let at_once = (limit / SHARE / each.dirty_bytes()).clamp(1, AT_ONCE_MAX) as usize;
        if names.len() > at_once {
            self.check_destroyable(path, &names)?;
        }
        let mut done = 0;
        names.chunks(at_once).try_for_each(|part| self.destroy_in_halves(path, part, &mut done)).map_err(
            |error| match done {
                0 => error,
                _ => DatasetError::Partly { done, all: names.len(), error: Box::new(error) },
            },
        )
    }

    /// In one transaction if there is space for it, otherwise first one half of them. Adds to `done`.
    fn destroy_in_halves(&self, path: &str, names: &[&str], done: &mut usize) -> Result<(), DatasetError> {
        match self.destroy_at_once(path, names) {
            Err(error) if error.is_no_space() && names.len() > 1 => {
                self.check_destroyable(path, names)?;
                let (first, second) = names.split_at(names.len() / 2);
                self.destroy_in_halves(path, first, done)?;
                self.destroy_in_halves(path, second, done)
            }
            outcome => {
                *done += if outcome.is_ok() { names.len() } else { 0 };
                outcome
            }
        }
    }

    fn destroy_at_once(&self, path: &str, names: &[&str]) -> Result<(), DatasetError> {
        let blocks = COST.meta_blocks.saturating_add(BLOCKS_EACH.saturating_mul(names.len() as u32));
        let tx = self.begin_settled(Cost { meta_blocks: blocks, ..COST_FREEING })?;
        let _tree = self.tree.lock();
        let mut node = self.node(path)?;
        let mut found: Vec<Snapshot> = Vec::with_capacity(names.len());
        let names: BTreeSet<&str> = names.iter().copied().collect();
        for name in names {
            let snapshot = self.snapshot_of(&node, path, name)?;
            self.check_taken(&tx, path, &snapshot)?;
            found.push(snapshot);
        }
        if found.is_empty() {
            return Ok(());
        }
        self.check_unused(&node, path, &found, &[])?;
        let set = self.open_head_to_change(path, &node)?;
        let found = self.hold_snapshots(found)?;
        self.change(|| self.remove_snapshots(&tx, &mut node, &set, found))
    }

    /// The objects of snapshots that are to be destroyed.
    fn hold_snapshots(&self, found: Vec<Snapshot>) -> Result<Vec<(Snapshot, Arc<Object>)>, DatasetError> {
        let mos = self.objects.mos();
        found
            .into_iter()
            .map(|found| mos.hold(found.info.id).map(|object| (found, object)).map_err(Into::into))
            .collect()
    }

    /// Removes snapshots from a data set. For [`change`](Self::change).
    fn remove_snapshots(
        &self,
        tx: &Tx,
        node: &mut Node,
        set: &ObjectSet,
        snapshots: Vec<(Snapshot, Arc<Object>)>,
    ) -> Result<(), DatasetError> {
        let mos = self.objects.mos();
        let mut names = node.zap_of_mut(tx, SNAPSHOTS)?;
        for (snapshot, object) in snapshots {
            names.remove(tx, snapshot.name.as_bytes())?;
            self.close_snapshot(&snapshot.info);
            mos.destroy(tx, &object)?;
            if let Some(chain) = Chain::of(set) {
                chain.change(tx, ChainChange::Destroy(snapshot.info.created));
            }
        }
        Ok(())
    }

    /// Gives a snapshot another name in its data set.
    pub fn rename_snapshot(&self, path: &str, from: &str, to: &str) -> Result<(), DatasetError> {
        check_name(to, &format!("{path}@{to}"))?;
        let tx = self.objects.mos().begin(COST)?;
        let _tree = self.tree.lock();
        let mut node = self.node(path)?;
        let snapshot = self.snapshot_of(&node, path, from)?;
        let mut snapshots = node.zap_of_mut(&tx, SNAPSHOTS)?;
        if snapshots.lookup_u64(to.as_bytes())?.is_some() {
            return Err(DatasetError::Exists { name: format!("{path}@{to}") });
        }
        self.open_head_to_change(path, &node)?;
        self.change(|| {
            snapshots.add_u64(&tx, to.as_bytes(), snapshot.info.id.0)?;
            snapshots.remove(&tx, from.as_bytes())?;
            Ok(())
        })
    }

    /// Waits until the free queue of a data set is empty and its dead lists are at rest.
    pub fn drain(&self, path: &str) -> Result<(), DatasetError> {
        let set = {
            let _tree = self.tree.lock();
            self.open_head_to_change(path, &self.node(path)?)?
        };
        let is_at_rest = || Chain::of(&set).is_none_or(|chain| chain.is_at_rest());
        loop {
            match set.is_freeing() {
                Some(false) => {
                    let by = "blocks that are to be freed cannot be read now: try again later".to_string();
                    return Err(DatasetError::InUse { name: path.to_string(), by });
                }
                None if is_at_rest() => return Ok(()),
                _ => set.wait_synced(set.open_txg())?,
            }
        }
    }

    /// Returns a data set to the state of a snapshot. All later changes are lost. The data set must not be open. `newer`: destroys newer
    /// snapshots; without it there must be none.
    pub fn rollback(&self, path: &str, name: &str, newer: bool) -> Result<(), DatasetError> {
        self.rollback_of(path, name, newer, None)
    }

    /// The same for a data set that only `held` has open. `held` is the data set after the rollback from then on.
    pub fn rollback_held(
        &self,
        path: &str,
        name: &str,
        newer: bool,
        held: &mut Arc<Dataset>,
    ) -> Result<(), DatasetError> {
        self.rollback_of(path, name, newer, Some(held))
    }

    fn rollback_of(
        &self,
        path: &str,
        name: &str,
        newer: bool,
        held: Option<&mut Arc<Dataset>>,
    ) -> Result<(), DatasetError> {
        let mos = self.objects.mos();
        // Subtrees in the free queue may hold blocks that belong on dead lists, which the new object set takes over.
        self.drain(path)?;
        let find = |held| self.find_for_rollback(path, name, newer, held);
        let later = {
            let _tree = self.tree.lock();
            find(held.as_deref())?.2
        };
        let tx = match self.begin_settled(cost_of_rollback(later.len())) {
            // A full pool has no space for all at once. Nothing is destroyed if the rollback alone does not fit either.
            Err(error) if error.is_no_space() && !later.is_empty() => {
                drop(self.begin_settled(cost_of_rollback(0))?);
                let names: Vec<&str> = later.iter().map(|later| later.name.as_str()).collect();
                log::warn!(
                    "data set /{path}: {} newer snapshots are destroyed before the rollback",
                    names.len()
                );
                self.destroy_snapshots(path, &names)?;
                self.drain(path)?;
                self.begin_settled(cost_of_rollback(0))?
            }
            begun => begun?,
        };
        let tree = self.tree.lock();
        let (mut node, snapshot, later) = find(held.as_deref())?;
        for snapshot in later.iter().chain([&snapshot]) {
            self.check_taken(&tx, path, snapshot)?;
        }
        let old = self.open_head_to_change(path, &node)?;
        self.check_drained(path, &old)?;
        let (snapshot, old_list) = (snapshot.info, node.get(DEAD_LIST)?);
        let later = self.hold_snapshots(later)?;
        self.check_retirable()?;
        let new = self.change(|| {
            self.remove_snapshots(&tx, &mut node, &old, later)?;
            let set = self.objects.create_objset_at(&tx, &snapshot.root)?;
            node.set(&tx, SET, set)?;
            let new_list = mos.create(&tx, new_part())?.id();
            node.set(&tx, DEAD_LIST, new_list)?;
            let new = open_set(&self.objects, &node)?;
            self.retire(&tx, &old, old_list, snapshot.created.next())?;
            new.correct_account(&tx, snapshot.referenced);
            self.branch(path)?.open_head(&new);
            if let Some(held) = held {
                *held = self.open_node(path, &node)?;
            }
            Ok(new)
        })?;
        // A commit waits for all operations that have joined the txg, and some of them may wait for the tree.
        drop(tree);
        drop(tx);
        mos.commit()?;
        if let Some(Err(error)) = Chain::of(&new).map(|chain| chain.read()) {
            log::warn!("data set /{path}: snapshots are read later: {error}");
        }
        Ok(())
    }

    /// The node, the snapshot and newer snapshots, if nothing speaks against a rollback. The caller holds the tree.
    fn find_for_rollback(
        &self,
        path: &str,
        name: &str,
        newer: bool,
        held: Option<&Arc<Dataset>>,
    ) -> Result<(Node, Snapshot, Vec<Snapshot>), DatasetError> {
        let node = self.node(path)?;
        // Others get it only under the lock of the tree.
        let is_held =
            |held: &Arc<Dataset>| held.object_set().id().0 == node.set.0 && Arc::strong_count(held) == 1;
        if !held.is_some_and(is_held) {
            self.check_not_open(path, &node)?;
        }
        let (snapshot, later) = self.find_snapshots_for_rollback(path, name, newer, &node)?;
        Ok((node, snapshot, later))
    }

    /// Checks whether a data set could be rolled back if it were not open.
    pub fn check_rollback(&self, path: &str, name: &str, newer: bool) -> Result<(), DatasetError> {
        {
            let _tree = self.tree.lock();
            self.find_snapshots_for_rollback(path, name, newer, &self.node(path)?)?;
        }
        // The pool may be full, or read-only.
        self.begin_settled(cost_of_rollback(0)).map(drop)
    }

    fn find_snapshots_for_rollback(
        &self,
        path: &str,
        name: &str,
        newer: bool,
        node: &Node,
    ) -> Result<(Snapshot, Vec<Snapshot>), DatasetError> {
        let snapshot = self.snapshot_of(node, path, name)?;
        let mut later = self.snapshots_in(node)?;
        later.retain(|other| other.info.created > snapshot.info.created);
        if !later.is_empty() && !newer {
            let names: Vec<String> = later.iter().map(|later| format!("{path}@{}", later.name)).collect();
            let by = format!("newer snapshots would be lost: {}; destroy them too with -r", names.join(", "));
            return Err(DatasetError::InUse { name: path.to_string(), by });
        }
        self.check_unused(node, path, &later, &[])?;
        // The head goes only for a snapshot that can be read.
        self.objects.check_root(snapshot.info.set, &snapshot.info.root)?;
        Ok((snapshot, later))
    }

    /// Creates a data set that begins with the content of a snapshot.
    pub fn clone_snapshot(&self, path: &str, name: &str, target: &str) -> Result<Arc<Dataset>, DatasetError> {
        let (parent, child) = split(target)?;
        // An unreadable snapshot is refused before anything changes.
        drop(self.open_snapshot(path, name)?);
        // The snapshot's sums are exact only when the free queue is empty.
        self.drain(path)?;
        let check = |tx: &Tx| {
            let source = self.node(path)?;
            let snapshot = self.snapshot_of(&source, path, name)?;
            self.check_taken(tx, path, &snapshot)?;
            self.check_drained(path, &*self.open_head_to_change(path, &source)?)?;
            self.objects.check_root(snapshot.info.set, &snapshot.info.root)?;
            source.load_props()?;
            self.check_clone_count(source.id(), snapshot.info.id)?;
            Ok((source, snapshot.info))
        };
        let make = |tx: &Tx, (mut source, info): (Node, SnapshotInfo)| {
            let mos = self.objects.mos();
            let set = self.objects.create_objset_at(tx, &info.root)?;
            let mut own_props = ObjectZap::create(mos, &ZapPolicy::of(mos), tx, ObjectKind::Zap)?;
            // The values that the source itself stores: the clone may have other data sets above it.
            props::copy(&zap(mos, source.props)?, &mut own_props, tx)?;
            props::store_creation(&mut own_props, tx)?;
            let mut node = Node::create(mos, tx, set, own_props.object().id())?;
            node.set(tx, ORIGIN, info.id)?;
            node.set(tx, ORIGIN_NODE, source.id_mut(tx)?)?;
            node.set(tx, DEAD_LIST, mos.create(tx, new_part())?.id())?;
            let dataset = self.open_node(target, &node)?;
            self.count_clone(tx, source.id(), info.id, 1)?;
            dataset.object_set().correct_account(tx, info.referenced);
            self.objects.pool().lose_uses(Feature::TinyZap, "those of a clone are not counted");
            Ok((node, dataset))
        };
        self.make_child(parent, child, check, make, &mut |_, _| Ok(()))
    }

    /// Exchanges the roles of a clone and the data set of its origin. The origin and all older snapshots move to the clone.
    pub fn promote(&self, path: &str) -> Result<(), DatasetError> {
        let mos = self.objects.mos();
        let not_a_clone =
            || DatasetError::InUse { name: path.to_string(), by: "it is not a clone".to_string() };
        let source_path = {
            let _tree = self.tree.lock();
            let source = self.node(path)?.get(ORIGIN_NODE)?.ok_or_else(not_a_clone)?;
            let found = nodes(mos)?.into_iter().find(|(_, other)| other.id() == Some(source));
            found.map(|(path, _)| path).ok_or_else(not_a_clone)?
        };
        self.drain(path)?;
        self.drain(&source_path)?;
        let _reserving = self.root.reserving();
        let tx = self.begin_settled(Cost { meta_blocks: 256, ..COST })?;
        let tree = self.tree.lock();
        let (mut node, mut source) = (self.node(path)?, self.node(&source_path)?);
        let origin = node.get(ORIGIN)?.ok_or_else(not_a_clone)?;
        if source.id().is_none() || source.id() != node.get(ORIGIN_NODE)? {
            let by = format!("{source_path} is just being changed: try again");
            return Err(DatasetError::InUse { name: path.to_string(), by });
        }
        let origin_info = read_snapshot(mos, origin)?;
        let origin_txg = origin_info.created;
        let (own, others) = (self.snapshots_in(&node)?, self.snapshots_in(&source)?);
        let (moved, left): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|other| other.info.created <= origin_txg);
        if let Some(taken) = moved.iter().find(|moved| own.iter().any(|own| own.name == moved.name)) {
            return Err(DatasetError::Exists { name: format!("{path}@{}", taken.name) });
        }
        let set = self.open_head_to_change(path, &node)?;
        let source_set = self.open_head_to_change(&source_path, &source)?;
        self.check_drained(path, &set)?;
        self.check_drained(&source_path, &source_set)?;
        for snapshot in moved.iter().chain(&left).chain(&own) {
            self.check_taken(&tx, path, snapshot)?;
        }
        let source_origin = (source.get(ORIGIN)?, source.get(ORIGIN_NODE)?);
        let older = source_origin.0.map(|id| read_snapshot(mos, id)).transpose()?;
        let older_txg = older.as_ref().map_or(Txg(0), |info| info.created);
        // Names, holds and counts of clones go with the snapshots.
        let ids: BTreeSet<ObjectId> = moved.iter().map(|moved| moved.info.id).collect();
        let mut entries: Vec<(&[u8], Vec<u8>, u64)> = Vec::new();
        for name in [SNAPSHOTS, HOLDS, CLONES] {
            let Some(from) = source.zap_of(name)? else { continue };
            let is_moved = |key: &[u8], value: &Value| match name {
                SNAPSHOTS => matches!(value, Value::U64(id) if ids.contains(&ObjectId(*id))),
                _ => snapshot_in_key(key).is_some_and(|id| ids.contains(&id)),
            };
            for entry in from.entries()? {
                let (Some(key), Value::U64(number)) = (entry.key.name(), &entry.value) else { continue };
                if is_moved(key, &entry.value) {
                    entries.push((name, key.to_vec(), *number));
                }
            }
        }
        // The blocks that they are added to can be read as well.
        for (name, key, _) in &entries {
            node.zap_of(name)?.map(|zap| zap.lookup_u64(key)).transpose()?;
        }
        // Other clones of the snapshots that move.
        let mut other_clones = Vec::new();
        for (_, other) in nodes(mos)? {
            let is_of_moved = other.get(ORIGIN)?.is_some_and(|id| ids.contains(&id));
            if is_of_moved && other.get(ORIGIN_NODE)? == source.id() && other.id() != node.id() {
                other_clones.push(other);
            }
        }
        let list_after = |own: &[Snapshot], node: &Node| -> Result<ObjectId, DatasetError> {
            Ok(own.first().map_or(node.get(DEAD_LIST)?.unwrap_or(ObjectId(0)), |first| first.info.dead_list))
        };
        let (recount, source_recount) = (list_after(&own, &node)?, list_after(&left, &source)?);
        // The origin is shared with the source from then on, and what is older than that with the origin of the source.
        let of_older = older.map_or(0, |info| info.referenced.used_bytes);
        let mut bytes = origin_info.referenced.used_bytes.saturating_sub(of_older);
        for snapshot in &moved {
            bytes = bytes.saturating_add(kept_bytes(mos, snapshot.info.dead_list)?);
        }
        self.branch(path)?.take_over(&tx, &self.branch(&source_path)?, bytes)?;
        self.tree_changes();
        self.change(|| {
            for (name, key, number) in entries {
                node.zap_of_mut(&tx, name)?.add_u64(&tx, &key, number)?;
                source.zap_of_mut(&tx, name)?.remove(&tx, &key)?;
            }
            let node_id = node.id_mut(&tx)?;
            node.set(&tx, ORIGIN, source_origin.0.unwrap_or(ObjectId(0)))?;
            node.set(&tx, ORIGIN_NODE, source_origin.1.unwrap_or(ObjectId(0)))?;
            source.set(&tx, ORIGIN, origin)?;
            source.set(&tx, ORIGIN_NODE, node_id)?;
            other_clones.iter_mut().try_for_each(|other| other.set(&tx, ORIGIN_NODE, node_id))
        })?;
        let links = |all: &mut dyn Iterator<Item = &Snapshot>| {
            all.map(|found| Link::of(&found.info)).collect::<Vec<Link>>()
        };
        if let Some(chain) = Chain::of(&set) {
            let links = links(&mut moved.iter().chain(&own));
            chain.change(&tx, ChainChange::Replace { origin: older_txg, links, recount });
        }
        if let Some(chain) = Chain::of(&source_set) {
            let links = links(&mut left.iter());
            chain.change(&tx, ChainChange::Replace { origin: origin_txg, links, recount: source_recount });
        }
        // As in `rollback`.
        drop(tree);
        drop(tx);
        mos.commit()?;
        let _tree = self.tree.lock();
        for path in [path, &source_path] {
            match self.recount_branch(path) {
                // Another caller may have renamed or destroyed it meanwhile.
                Ok(()) | Err(DatasetError::Unknown { .. }) => {}
                Err(error) => {
                    log::warn!("data set /{path}: its space is counted at the next import: {error}")
                }
            }
        }
        Ok(())
    }

    /// Protects a snapshot from being destroyed until the hold of this tag is released.
    pub fn hold(&self, path: &str, name: &str, tag: &str) -> Result<(), DatasetError> {
        check_name(tag, tag)?;
        let tx = self.objects.mos().begin(COST)?;
        let _tree = self.tree.lock();
        let mut node = self.node(path)?;
        let snapshot = self.snapshot_of(&node, path, name)?;
        let key = format!("{}:{tag}", snapshot.info.id);
        let mut holds = node.zap_of_mut(&tx, HOLDS)?;
        if holds.lookup_u64(key.as_bytes())?.is_some() {
            return Err(DatasetError::Exists { name: format!("hold {tag} on {path}@{name}") });
        }
        let secs = self.objects.pool().env().wall_ns() / 1_000_000_000;
        Ok(holds.add_u64(&tx, key.as_bytes(), secs)?)
    }

    /// Ends a hold.
    pub fn release(&self, path: &str, name: &str, tag: &str) -> Result<(), DatasetError> {
        let tx = self.objects.mos().begin(COST_FREEING)?;
        let _tree = self.tree.lock();
        let mut node = self.node(path)?;
        let snapshot = self.snapshot_of(&node, path, name)?;
        let key = format!("{}:{tag}", snapshot.info.id);
        if !node.zap_of_mut(&tx, HOLDS)?.remove(&tx, key.as_bytes())? {
            let tags =
                self.holds_in(&node)?.into_iter().filter(|hold| hold.snapshot == name).map(|hold| hold.tag);
            let nearest = DatasetError::nearest(tag, tags.collect()).map(|tag| format!("hold {tag}"));
            return Err(DatasetError::Unknown { name: format!("hold {tag} on {path}@{name}"), nearest });
        }
        Ok(())
    }

    /// All holds on snapshots of a data set.
    pub fn holds(&self, path: &str) -> Result<Vec<Hold>, DatasetError> {
        let _tree = self.tree.lock();
        self.holds_in(&self.node(path)?)
    }

    fn holds_in(&self, node: &Node) -> Result<Vec<Hold>, DatasetError> {
        let Some(holds) = node.zap_of(HOLDS)? else { return Ok(Vec::new()) };
        let entries = holds.entries()?;
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let names: BTreeMap<ObjectId, String> =
            self.snapshots_in(node)?.into_iter().map(|snapshot| (snapshot.info.id, snapshot.name)).collect();
        let mut found = Vec::new();
        for entry in entries {
            let (Some(key), Value::U64(time)) = (entry.key.name(), &entry.value) else { continue };
            let Some(snapshot) = snapshot_in_key(key).and_then(|id| names.get(&id)) else { continue };
            let text = String::from_utf8_lossy(key);
            let tag = text.split_once(':').map_or("", |(_, tag)| tag).to_string();
            found.push(Hold { snapshot: snapshot.clone(), tag, time: *time });
        }
        found.sort_by(|a, b| (&a.snapshot, &a.tag).cmp(&(&b.snapshot, &b.tag)));
        Ok(found)
    }

    /// Creates a bookmark of a snapshot. It stays when the snapshot is destroyed.
    pub fn bookmark(&self, path: &str, snapshot: &str, name: &str) -> Result<(), DatasetError> {
        check_name(name, &format!("{path}#{name}"))?;
        let tx = self.objects.mos().begin(COST)?;
        let _tree = self.tree.lock();
        let mut node = self.node(path)?;
        let SnapshotInfo { guid, created, time_ns, .. } = self.snapshot_of(&node, path, snapshot)?.info;
        let mut bookmarks = node.zap_of_mut(&tx, BOOKMARKS)?;
        if bookmarks.lookup(name.as_bytes())?.is_some() {
            return Err(DatasetError::Exists { name: format!("{path}#{name}") });
        }
        Ok(bookmarks.add(&tx, name.as_bytes(), ValueRef::U64s(&[guid, created.0, time_ns]))?)
    }

    /// The bookmarks of a data set, oldest first.
    pub fn bookmarks(&self, path: &str) -> Result<Vec<Bookmark>, DatasetError> {
        let _tree = self.tree.lock();
        let Some(bookmarks) = self.node(path)?.zap_of(BOOKMARKS)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in bookmarks.entries()? {
            let Some(name) = entry.key.name() else { continue };
            let &[guid, created, time_ns] = entry.value.ints().as_slice() else { continue };
            let name = String::from_utf8_lossy(name).into_owned();
            found.push(Bookmark { name, guid, created: Txg(created), time_ns });
        }
        found.sort_by_key(|bookmark| bookmark.created);
        Ok(found)
    }

    /// Destroys a bookmark.
    pub fn destroy_bookmark(&self, path: &str, name: &str) -> Result<(), DatasetError> {
        let tx = self.objects.mos().begin(COST_FREEING)?;
        let _tree = self.tree.lock();
        let mut node = self.node(path)?;
        let mut bookmarks = node.zap_of_mut(&tx, BOOKMARKS)?;
        if !bookmarks.remove(&tx, name.as_bytes())? {
            let nearest =
                DatasetError::nearest(name, names_in(&bookmarks)?).map(|name| format!("{path}#{name}"));
            return Err(DatasetError::Unknown { name: format!("{path}#{name}"), nearest });
        }
        Ok(())
    }
}

/// The error for a snapshot that has no root yet.
pub(super) fn being_taken(path: &str, name: &str) -> DatasetError {
    let by = "it is just being taken: try again".to_string();
    DatasetError::InUse { name: format!("{path}@{name}"), by }
}

/// The snapshot in the name of a hold or of a count of clones.
pub fn snapshot_in_key(key: &[u8]) -> Option<ObjectId> {
    let text = std::str::from_utf8(key).ok()?;
    object_in(text.split(':').next()?)
}
