//! The tree of data sets of a pool, and the snapshots of each.
//!
//! A data set has a *path* in its pool: empty for the root, else names joined by `/`. A snapshot has a name in its data set.
//!
//! A data set that is destroyed leaves the tree at once, and its object set is *retired*: following txgs free its blocks. Until they have
//! done so, the pool directory's ZAP `retired` names the object set, so that a later import continues.
//!
//! Invariant: each operation is one transaction, so after a crash all of it is there or nothing. The same holds if it fails: an operation
//! reads what it needs and refuses what it must before its first change. From then on nothing should fail. If something does, the pool
//! stops before the txg commits ([`Datasets::change`]). Exception: on a pool without space for that, many snapshots are destroyed in
//! several transactions, each of some of them.

mod branches;
mod open_snapshots;
mod snapshots;
mod space;
mod usage;

use snapshots::Clones;
pub use snapshots::{Bookmark, Hold, Snapshot, snapshot_in_key};
pub use space::SpaceUsage;
pub use usage::DatasetUsage;

use crate::branch::{Branch, space_of_pool};
use crate::chain::{Chain, ChainChange, read_soon};
use crate::dataset::{Dataset, NewProps};
use crate::directory::RETIRED;
use crate::error::DatasetError;
use crate::free_policy::{due_lists, many_snapshots, open_set, read_snapshot, snapshots_of};
use crate::mos_zap::{change_directory, find_in_directory, zap};
use crate::node::{CHILDREN, CLONES, DEAD_LIST, Node, ORIGIN, ORIGIN_NODE, object_in};
use crate::owners::CountOwners;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use terrane_format::Feature;
use terrane_object::{Object, ObjectError, ObjectKind, ObjectSet, ObjectSets};
use terrane_pool::Tx;
use terrane_store::read_retry::ReadRetry;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};
use terrane_zap::{Entry, Value};

/// Cost of an operation on one data set or snapshot.
const COST: Cost = Cost { meta_blocks: 12, ..Cost::NOTHING };
/// The same, for one that frees space, which must be possible when the pool is full.
const COST_FREEING: Cost = Cost { frees: true, ..COST };
/// Cost of a new data set, with its first objects.
const COST_CREATE: Cost = Cost { write_bytes: 256 << 10, meta_blocks: 64, ..Cost::NOTHING };
/// Most bytes of a path, as in OpenZFS.
const PATH_MAX: usize = 255;
/// Metadata blocks that become dirty when a drained retired set is destroyed.
const REAP_BLOCKS: u32 = 24;
/// After so many txgs a drained retired set that could not be read is read again.
const REAP_AGAIN: u64 = 32;

/// The ZAP of retired sets has entries whose names are a set's number and one of these suffixes.
const DEAD_LIST_OF: &str = ".dead_list";
const PRUNE_BELOW: &str = ".prune_below";

/// Facts about a data set that are known without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Its path; empty: the root.
    pub path: String,
    /// The object of the MOS that stands for its object set.
    pub set: ObjectId,
    /// Its guid. `None`: the pool is older than guids.
    pub guid: Option<u64>,
    /// Txg that created its object set.
    pub created: Option<Txg>,
    /// The snapshot of which it is a clone, as `path@name`.
    pub origin: Option<String>,
}

/// The data sets of a pool.
pub struct Datasets {
    objects: Arc<ObjectSets>,
    open: Mutex<BTreeMap<ObjectId, Weak<Dataset>>>,
    /// Open snapshots by the object that stands for each. Taken while `tree` is held.
    open_snapshots: Mutex<BTreeMap<ObjectId, Weak<Dataset>>>,
    /// GUIDs of snapshots that were destroyed since the pool was opened, in order.
    destroyed_snapshots: Mutex<Vec<u64>>,
    /// All data sets, open or not.
    root: Arc<Branch>,
    /// Held while the tree changes. Taken after the transaction begins.
    tree: Mutex<()>,
    /// Sets that are being freed.
    retired: Mutex<Vec<Retired>>,
    /// `None`: not read since the tree changed. Taken while `tree` is held.
    clones: Mutex<Option<Arc<Clones>>>,
}

struct Retired {
    set: Arc<ObjectSet>,
    /// First part of its dead list, or 0.
    dead_list: ObjectId,
    /// The last txg in which its own objects could not be read, so that they were not destroyed.
    failed: Option<Txg>,
}

/// The objects of a retired set, and the ZAP that names it.
struct RetiredObjects {
    set: ObjectId,
    objects: Vec<Arc<Object>>,
    list: Option<ObjectZap>,
}

impl Datasets {
    /// Opens the tree of a pool, and continues to free destroyed data sets and snapshots. A pool must have only one `Datasets`.
    pub fn open(objects: &Arc<ObjectSets>) -> Result<Arc<Datasets>, DatasetError> {
        // No other thread can wait for the tree or for a txg yet.
        objects.identify_older(Node::root(objects.mos())?.set)?;
        let datasets = Arc::new(Datasets {
            objects: Arc::clone(objects),
            open: Mutex::default(),
            open_snapshots: Mutex::default(),
            destroyed_snapshots: Mutex::default(),
            root: branches::load(objects)?,
            tree: Mutex::default(),
            retired: Mutex::default(),
            clones: Mutex::default(),
        });
        if !objects.pool().is_read_only() {
            read_soon(objects.pool(), &datasets.continue_freeing());
            let of_hook = Arc::downgrade(&datasets);
            objects.mos().on_txg_end(move |last_tx| {
                let Some(datasets) = of_hook.upgrade() else { return false };
                datasets.reap(last_tx);
                true
            });
        }
        Ok(datasets)
    }

    /// Opens what has blocks to be freed. Damage of one data set delays only what that one has to free, until a later import. Returns
    /// chains whose snapshots are unread.
    fn continue_freeing(&self) -> Vec<Arc<Chain>> {
        let objects = &self.objects;
        let (mut named, mut unread) = (BTreeSet::new(), Vec::new());
        for (path, node) in readable_nodes(objects.mos()) {
            named.insert(node.set);
            match self.open_if_due(&path, &node) {
                Ok(set) => {
                    unread.extend(set.and_then(|set| Chain::of(&set)).filter(|chain| chain.is_unread()))
                }
                Err(error) => log::warn!("data set /{path}: what is to be freed waits: {error}"),
            }
        }
        let retired = retired_sets(objects).unwrap_or_else(|error| {
            log::warn!("destroyed data sets wait to be freed: {error}");
            Vec::new()
        });
        for StoredRetired { set, dead_list, .. } in retired {
            if named.contains(&set) {
                // As a retired set it would lose all changes.
                log::error!("object set {set} is not freed: it is destroyed, but a data set has it");
                continue;
            }
            match open_retired(objects, set) {
                Ok(set) => self.retired.lock().push(Retired { set, dead_list, failed: None }),
                Err(error) => log::warn!("object set {set}: what is to be freed waits: {error}"),
            }
        }
        unread
    }

    /// The object sets of the pool.
    pub fn objects(&self) -> &Arc<ObjectSets> {
        &self.objects
    }

    /// The data set with this path. While it is open, every caller gets the same one.
    pub fn open_dataset(&self, path: &str) -> Result<Arc<Dataset>, DatasetError> {
        let _tree = self.tree.lock();
        let node = self.node(path)?;
        self.open_node(path, &node)
    }

    fn open_node(&self, path: &str, node: &Node) -> Result<Arc<Dataset>, DatasetError> {
        let mut open = self.open.lock();
        if let Some(found) = open.get(&node.set).and_then(Weak::upgrade) {
            return Ok(found);
        }
        let branch = self.branch_of(path, node)?;
        let opened = Arc::new(Dataset::open(&self.objects, node, &branch)?);
        open.insert(node.set, Arc::downgrade(&opened));
        Ok(opened)
    }

    /// Opens the object set of a data set. Its branch counts its space from now on.
    fn open_head(&self, path: &str, node: &Node) -> Result<Arc<ObjectSet>, DatasetError> {
        let branch = self.branch(path)?;
        let set = open_set(&self.objects, node)?;
        branch.open_head(&set);
        Ok(set)
    }

    /// The same for an operation that changes snapshots: those that the data set has are known.
    fn open_head_to_change(&self, path: &str, node: &Node) -> Result<Arc<ObjectSet>, DatasetError> {
        let set = self.open_head(path, node)?;
        Chain::of(&set).map_or(Ok(()), |chain| chain.read())?;
        Ok(set)
    }

    /// Opens the object set of a data set if blocks of it wait to be freed, so that following txgs continue. A set with many snapshots is
    /// opened as well: which of their lists are due is found when they are read.
    fn open_if_due(&self, path: &str, node: &Node) -> Result<Option<Arc<ObjectSet>>, DatasetError> {
        let mos = self.objects.mos();
        if many_snapshots(&self.objects, node)?.is_some() {
            return self.open_head(path, node).map(Some);
        }
        let snapshots = snapshots_of(mos, node)?;
        let lists = snapshots.iter().map(|(_, info)| info.dead_list).chain(node.get(DEAD_LIST)?);
        let is_due = !due_lists(mos, lists)?.is_empty();
        let queue =
            self.objects.identity(node.set)?.map(|identity| mos.hold(identity.free_queue)).transpose()?;
        if is_due || queue.is_some_and(|queue| queue.block_count() > 0) {
            return self.open_head(path, node).map(Some);
        }
        Ok(None)
    }

    /// To be called before data sets are created, destroyed or renamed, or change their origin.
    fn tree_changes(&self) {
        *self.clones.lock() = None;
    }

    /// Makes the changes of an operation. Reads wait for a failing device. If the changes fail anyway, the pool stops: a commit would
    /// store half of the operation.
    fn change<T>(&self, changes: impl FnOnce() -> Result<T, DatasetError>) -> Result<T, DatasetError> {
        let _waits = ReadRetry::unlimited();
        changes().inspect_err(|error| self.objects.pool().fail_operation(error))
    }

    /// Whether a caller has the data set open.
    fn is_open(&self, node: &Node) -> bool {
        self.open.lock().get(&node.set).is_some_and(|open| open.strong_count() > 0)
    }

    fn node(&self, path: &str) -> Result<Node, DatasetError> {
        let mos = self.objects.mos();
        let mut node = Node::root(mos)?;
        let mut known = String::new();
        for name in path.split('/').filter(|_| !path.is_empty()) {
            let children = node.zap_of(CHILDREN)?;
            let found =
                children.as_ref().map(|children| children.lookup_u64(name.as_bytes())).transpose()?.flatten();
            let Some(id) = found else {
                let names = children.map(|children| names_in(&children)).transpose()?.unwrap_or_default();
                return Err(DatasetError::unknown(path, &known, name, names));
            };
            node = Node::open(mos, ObjectId(id))?;
            known = join(&known, name);
        }
        Ok(node)
    }

    /// All data sets, each after the one above it, in the order of their names.
    pub fn list(&self) -> Result<Vec<DatasetInfo>, DatasetError> {
        let _tree = self.tree.lock();
        let nodes = nodes(self.objects.mos())?;
        let mut names: BTreeMap<ObjectId, String> = BTreeMap::new();
        for (path, node) in &nodes {
            if node.get(CLONES)?.is_none() {
                continue;
            }
            for (name, info) in snapshots_of(self.objects.mos(), node)? {
                names.insert(info.id, format!("{path}@{}", String::from_utf8_lossy(&name)));
            }
        }
        nodes
            .into_iter()
            .map(|(path, node)| {
                let identity = self.objects.identity(node.set)?;
                let origin = node.get(ORIGIN)?;
                Ok(DatasetInfo {
                    path,
                    set: node.set,
                    guid: identity.map(|identity| identity.guid),
                    created: identity.map(|identity| identity.created),
                    origin: origin
                        .map(|id| names.get(&id).cloned().unwrap_or_else(|| format!("object {id}"))),
                })
            })
            .collect()
    }

    /// Creates a data set below an existing one. `init` fills it in the same transaction.
    pub fn create(
        &self,
        path: &str,
        props: &[(&str, &str)],
        init: &mut dyn FnMut(&Dataset, &Tx) -> Result<(), DatasetError>,
    ) -> Result<Arc<Dataset>, DatasetError> {
        let (parent, name) = split(path)?;
        let above = self.open_dataset(parent)?;
        let _reserving = above.branch().reserving();
        let new = NewProps::parse(self.objects.mos(), Some(&above), props)?;
        let make = |tx: &Tx, ()| {
            let set = self.objects.create_objset(tx)?;
            let mos = self.objects.mos();
            let props = new.store(mos, &ZapPolicy::of(mos), tx)?;
            let node = Node::create(mos, tx, set, props)?;
            new.store_fixed(&open_set(&self.objects, &node)?, tx)?;
            let dataset = self.open_node(path, &node)?;
            Ok((node, dataset))
        };
        self.make_child(parent, name, |_| Ok(()), make, init)
    }

    /// Creates a data set and its node, in one transaction. `check` reads what `make` needs, and may refuse. `init` may fail as well: then
    /// what `make` did is undone.
    fn make_child<T>(
        &self,
        above: &str,
        name: &str,
        check: impl FnOnce(&Tx) -> Result<T, DatasetError>,
        make: impl FnOnce(&Tx, T) -> Result<(Node, Arc<Dataset>), DatasetError>,
        init: &mut dyn FnMut(&Dataset, &Tx) -> Result<(), DatasetError>,
    ) -> Result<Arc<Dataset>, DatasetError> {
        let path = join(above, name);
        self.enable()?;
        let tx = self.begin_settled(COST_CREATE)?;
        tx.pool().note_use(Feature::Snapshots);
        let _tree = self.tree.lock();
        let mut parent = self.node(above)?;
        let children = parent.zap_of(CHILDREN)?;
        if children.map(|children| children.lookup_u64(name.as_bytes())).transpose()?.flatten().is_some() {
            return Err(DatasetError::Exists { name: path });
        }
        let checked = check(&tx)?;
        self.check_retirable()?;
        self.tree_changes();
        let (node, dataset) = self.change(|| make(&tx, checked))?;
        if let Err(error) = init(&dataset, &tx) {
            let set = Arc::clone(dataset.object_set());
            drop(dataset);
            self.cut_branch(above, name);
            self.change(|| {
                self.destroy_all(&tx, node.objects()?)?;
                self.retire(&tx, &set, None, Txg(0))
            })?;
            return Err(error);
        }
        let id = node.id().expect("every node but the root's has a ZAP");
        self.change(|| Ok(parent.zap_of_mut(&tx, CHILDREN)?.add_u64(&tx, name.as_bytes(), id.0)?))?;
        Ok(dataset)
    }

    /// Enables the feature of data sets below the root, snapshots and clones.
    fn enable(&self) -> Result<(), DatasetError> {
        let pool = self.objects.pool();
        if !pool.has(Feature::Datasets) {
            return Err(DatasetError::NeedsFeature { feature: Feature::Datasets });
        }
        if !pool.has(Feature::Snapshots) {
            pool.enable(&[Feature::Snapshots]).map_err(ObjectError::from)?;
        }
        // The pool may have been upgraded since it was opened.
        Ok(self.objects.identify_older(Node::root(self.objects.mos())?.set)?)
    }

    /// Gives a data set another path. It must not be the root.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        let ((old_parent, old_name), (new_parent, new_name)) = (split(from)?, split(to)?);
        if to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
            return Err(DatasetError::InUse {
                name: from.to_string(),
                by: format!("{to} would be below it"),
            });
        }
        let tx = self.objects.mos().begin(COST)?;
        let _tree = self.tree.lock();
        let node = self.node(from)?;
        let (mut old_above, mut new_above) = (self.node(old_parent)?, self.node(new_parent)?);
        let names = new_above.zap_of(CHILDREN)?;
        if names.map(|names| names.lookup_u64(new_name.as_bytes())).transpose()?.flatten().is_some() {
            return Err(DatasetError::Exists { name: to.to_string() });
        }
        let id = node.id().expect("every node but the root's has a ZAP");
        let (branch, above) = (self.branch(from)?, self.branch(new_parent)?);
        branch.check_move(&above, space_of_pool(self.objects.pool()))?;
        self.tree_changes();
        self.change(|| {
            old_above.zap_of_mut(&tx, CHILDREN)?.remove(&tx, old_name.as_bytes())?;
            // Opened after the removal: both parents may be the same, and a handle does not see the changes of another.
            Ok(new_above.zap_of_mut(&tx, CHILDREN)?.add_u64(&tx, new_name.as_bytes(), id.0)?)
        })?;
        branch.move_to(&above, new_name);
        Ok(())
    }

    /// Refuses what [`destroy`](Self::destroy) would refuse.
    pub fn check_destroy(&self, path: &str) -> Result<(), DatasetError> {
        split(path)?;
        let _tree = self.tree.lock();
        self.check_bare(path, &self.node(path)?)
    }

    fn check_not_open(&self, path: &str, node: &Node) -> Result<(), DatasetError> {
        if self.is_open(node) {
            let by = "it is open: unmount it first".to_string();
            return Err(DatasetError::InUse { name: path.to_string(), by });
        }
        Ok(())
    }

    /// Refuses a data set that is open, or has children or snapshots.
    fn check_bare(&self, path: &str, node: &Node) -> Result<(), DatasetError> {
        self.check_not_open(path, node)?;
        let in_use = |by: String| DatasetError::InUse { name: path.to_string(), by };
        let children = node.zap_of(CHILDREN)?.map(|zap| names_in(&zap)).transpose()?.unwrap_or_default();
        if let Some(child) = children.first() {
            let found = children.len();
            return Err(in_use(format!("{found} data set(s) are below it, like {}", join(path, child))));
        }
        let snapshots = snapshots_of(self.objects.mos(), node)?;
        if let Some((name, _)) = snapshots.first() {
            let (found, name) = (snapshots.len(), String::from_utf8_lossy(name));
            return Err(in_use(format!(
                "it has {found} snapshot(s), like {path}@{name}: destroy them too with -r"
            )));
        }
        Ok(())
    }

    /// Destroys a data set without children and snapshots. Its blocks are freed in the background.
    pub fn destroy(&self, path: &str) -> Result<(), DatasetError> {
        let (parent, name) = split(path)?;
        let mos = self.objects.mos();
        let tx = self.begin_settled(COST_FREEING)?;
        let _tree = self.tree.lock();
        let node = self.node(path)?;
        self.check_bare(path, &node)?;
        let origin = node.get(ORIGIN)?;
        let prune_below = match origin {
            Some(origin) => read_snapshot(mos, origin)?.created.next(),
            None => Txg(0),
        };
        let set = self.open_head_to_change(path, &node)?;
        let mut above = self.node(parent)?;
        let dead_list = node.get(DEAD_LIST)?;
        let origin_node = node.get(ORIGIN_NODE)?;
        let objects = node.objects()?;
        if let Some(origin) = origin {
            self.check_clone_count(origin_node, origin)?;
        }
        self.check_retirable()?;
        self.tree_changes();
        self.change(|| {
            above.zap_of_mut(&tx, CHILDREN)?.remove(&tx, name.as_bytes())?;
            if let Some(origin) = origin {
                self.count_clone(&tx, origin_node, origin, -1)?;
            }
            self.destroy_all(&tx, objects)?;
            self.retire(&tx, &set, dead_list, prune_below)
        })?;
        self.cut_branch(parent, name);
        Ok(())
    }

    fn destroy_all(&self, tx: &Tx, objects: Vec<Arc<Object>>) -> Result<(), DatasetError> {
        objects.iter().try_for_each(|object| Ok(self.objects.mos().destroy(tx, object)?))
    }

    /// Fails if [`retire`](Self::retire) would.
    fn check_retirable(&self) -> Result<(), DatasetError> {
        let mos = self.objects.mos();
        let list = find_in_directory(mos, RETIRED)?.map(|id| zap(mos, id)).transpose()?;
        list.map(|list| list.lookup_u64(PRUNE_BELOW.as_bytes())).transpose()?;
        Ok(())
    }

    /// Begins to free an object set. Blocks that were born before `prune_below` belong to a snapshot. The set is changed last, because
    /// nothing can undo that.
    fn retire(
        &self,
        tx: &Tx,
        set: &Arc<ObjectSet>,
        dead_list: Option<ObjectId>,
        prune_below: Txg,
    ) -> Result<(), DatasetError> {
        let mos = self.objects.mos();
        let (id, dead_list) = (ObjectId(set.id().0), dead_list.unwrap_or(ObjectId(0)));
        let mut retired = change_directory(mos, |directory| match directory.lookup_u64(RETIRED)? {
            Some(id) => zap(mos, ObjectId(id)),
            None => {
                let made = ObjectZap::create(mos, &ZapPolicy::of(mos), tx, ObjectKind::Zap)?;
                directory.add_u64(tx, RETIRED, made.object().id().0)?;
                Ok(made)
            }
        })?;
        retired.update_u64(tx, format!("{id}{DEAD_LIST_OF}").as_bytes(), dead_list.0)?;
        retired.update_u64(tx, format!("{id}{PRUNE_BELOW}").as_bytes(), prune_below.0)?;
        // The blocks of its tiny ZAPs are freed without a look at their content.
        self.objects.pool().lose_uses(Feature::TinyZap, "an object set is freed as a whole");
        if let Some(chain) = Chain::of(set) {
            chain.change(tx, ChainChange::Detach { origin: Txg(prune_below.0.saturating_sub(1)) });
        }
        set.retire(tx, prune_below);
        self.open.lock().remove(&id);
        self.retired.lock().push(Retired { set: Arc::clone(set), dead_list, failed: None });
        Ok(())
    }

    /// Whether destroyed data sets are still being freed.
    pub fn is_freeing(&self) -> bool {
        !self.retired.lock().is_empty()
    }

    /// Destroys retired sets that have been freed wholly.
    fn reap(&self, last_tx: &Tx) {
        let mut retired = self.retired.lock();
        retired.retain_mut(|retired| {
            let is_at_rest = Chain::of(&retired.set).is_none_or(|chain| chain.is_at_rest());
            let is_early =
                retired.failed.is_some_and(|failed| last_tx.txg().0 < failed.0.saturating_add(REAP_AGAIN));
            if !retired.set.is_drained() || !is_at_rest || is_early {
                return true;
            }
            let objects = match self.read_retired(retired) {
                Ok(objects) => objects,
                Err(error) => {
                    let stays = error.is_transient();
                    let next = if stays { "some txgs later" } else { "after the next import" };
                    log::warn!(
                        "object set {} is freed, but not its own objects: {error}; again {next}",
                        retired.set.id()
                    );
                    retired.failed = Some(last_tx.txg());
                    return stays;
                }
            };
            last_tx.reserve_more(REAP_BLOCKS);
            // An error has stopped the pool.
            let _ = self.change(|| self.end_retired(last_tx, objects));
            false
        });
    }

    /// Reads what [`end_retired`](Self::end_retired) destroys.
    fn read_retired(&self, retired: &Retired) -> Result<RetiredObjects, DatasetError> {
        let _patience = ReadRetry::none();
        let mos = self.objects.mos();
        let set = ObjectId(retired.set.id().0);
        let parts = crate::chain::list_parts(mos, retired.dead_list)?;
        let mut ids: Vec<ObjectId> = parts.into_iter().map(|(part, _)| part).collect();
        ids.extend(self.objects.identity(set)?.map(|identity| identity.free_queue));
        ids.push(set);
        let objects = ids.into_iter().map(|id| mos.hold(id)).collect::<Result<_, _>>()?;
        let list = find_in_directory(mos, RETIRED)?.map(|id| zap(mos, id)).transpose()?;
        if let Some(list) = &list {
            list.lookup_u64(format!("{set}{DEAD_LIST_OF}").as_bytes())?;
            list.lookup_u64(format!("{set}{PRUNE_BELOW}").as_bytes())?;
        }
        Ok(RetiredObjects { set, objects, list })
    }

    fn end_retired(&self, tx: &Tx, retired: RetiredObjects) -> Result<(), DatasetError> {
        let RetiredObjects { set, objects, list } = retired;
        if let Some(mut list) = list {
            list.remove(tx, format!("{set}{DEAD_LIST_OF}").as_bytes())?;
            list.remove(tx, format!("{set}{PRUNE_BELOW}").as_bytes())?;
        }
        self.objects.forget_retired(tx, set);
        for object in objects {
            self.objects.mos().destroy(tx, &object)?;
        }
        Ok(())
    }

    /// Begins a transaction while no txg syncs. All earlier changes are durable. So only snapshots of this txg may lack a root, and no
    /// sync changes an object that the transaction destroys.
    fn begin_settled(&self, cost: Cost) -> Result<Tx, DatasetError> {
        let mos = self.objects.mos();
        mos.commit()?;
        let tx = mos.begin(cost)?;
        tx.pool().wait_for_sync().map_err(ObjectError::from)?;
        Ok(tx)
    }
}

/// Opens an object set of a pool: that of a data set, a retired one, or one that no node names.
pub fn open_any_set(objects: &Arc<ObjectSets>, id: ObjectId) -> Result<Arc<ObjectSet>, DatasetError> {
    if let Some((_, node)) = nodes(objects.mos())?.into_iter().find(|(_, node)| node.set == id) {
        return open_set(objects, &node);
    }
    if retired_sets(objects)?.iter().any(|retired| retired.set == id) {
        return open_retired(objects, id);
    }
    // No node and no entry of `retired` names it.
    let chain = Chain::new(objects.mos(), Txg(0), Vec::new(), ObjectId(0), BTreeSet::new());
    let set = objects.open_objset(id, chain)?;
    set.set_owner_policy(Arc::new(CountOwners));
    Ok(set)
}

/// Opens a set that is being freed.
fn open_retired(objects: &Arc<ObjectSets>, id: ObjectId) -> Result<Arc<ObjectSet>, DatasetError> {
    let Some(found) = retired_sets(objects)?.into_iter().find(|found| found.set == id) else {
        return Err(DatasetError::Unknown { name: format!("object set {id}"), nearest: None });
    };
    let due = due_lists(objects.mos(), [found.dead_list].into_iter())?;
    let chain = Chain::new(objects.mos(), found.origin(), Vec::new(), found.dead_list, due);
    let set = objects.open_retired(id, chain)?;
    set.set_owner_policy(Arc::new(CountOwners));
    Ok(set)
}

/// A retired set, as stored.
pub(crate) struct StoredRetired {
    pub set: ObjectId,
    /// First part of its dead list, or 0.
    pub dead_list: ObjectId,
    prune_below: Txg,
}

impl StoredRetired {
    /// Blocks that were born in this txg or before belong to a snapshot.
    pub fn origin(&self) -> Txg {
        Txg(self.prune_below.0.saturating_sub(1))
    }
}

/// The retired set in the name of the entry that says which of its blocks are freed.
pub fn retired_in_key(key: &[u8]) -> Option<ObjectId> {
    std::str::from_utf8(key).ok()?.strip_suffix(PRUNE_BELOW).and_then(object_in)
}

/// Retired sets that are stored.
pub(crate) fn retired_sets(objects: &Arc<ObjectSets>) -> Result<Vec<StoredRetired>, DatasetError> {
    let mos = objects.mos();
    let Some(list) = find_in_directory(mos, RETIRED)? else { return Ok(Vec::new()) };
    let list = zap(mos, list)?;
    let mut found = Vec::new();
    for entry in list.entries()? {
        if let (Some(set), Value::U64(prune_below)) =
            (entry.key.name().and_then(retired_in_key), &entry.value)
        {
            let dead_list = list.lookup_u64(format!("{set}{DEAD_LIST_OF}").as_bytes())?.unwrap_or(0);
            found.push(StoredRetired { set, dead_list: ObjectId(dead_list), prune_below: Txg(*prune_below) });
        }
    }
    Ok(found)
}

/// All nodes with their paths, each after the one above it.
pub(crate) fn nodes(mos: &Arc<ObjectSet>) -> Result<Vec<(String, Node)>, DatasetError> {
    walk_nodes(mos, &mut |_, error| Err(error))
}

/// The same without those that are damaged, and those below them.
pub(crate) fn readable_nodes(mos: &Arc<ObjectSet>) -> Vec<(String, Node)> {
    let mut warn = |path: &str, error| {
        log::warn!("data set /{path} or data sets below it not found: {error}");
        Ok(())
    };
    walk_nodes(mos, &mut warn).unwrap_or_else(|error| {
        log::warn!("data sets not found: {error}");
        Vec::new()
    })
}

/// Takes the error of the node with this path, or of the nodes below it. `Ok`: the walk goes on without them.
type OnError<'a> = &'a mut dyn FnMut(&str, DatasetError) -> Result<(), DatasetError>;

fn walk_nodes(mos: &Arc<ObjectSet>, on_error: OnError<'_>) -> Result<Vec<(String, Node)>, DatasetError> {
    let mut found = Vec::new();
    let mut waiting = vec![(String::new(), Node::root(mos)?)];
    let mut seen = BTreeSet::new();
    while let Some((path, node)) = waiting.pop() {
        match children_of(&node) {
            Ok(children) => {
                let mut below = Vec::new();
                for (name, id) in children {
                    let path = join(&path, &name);
                    match open_child(mos, &path, id, &mut seen) {
                        Ok(child) => below.push((path, child)),
                        Err(error) => on_error(&path, error)?,
                    }
                }
                below.sort_by(|(a, _), (b, _)| b.cmp(a));
                waiting.extend(below);
            }
            Err(error) => on_error(&path, error)?,
        }
        found.push((path, node));
    }
    Ok(found)
}

/// The names and numbers of the nodes directly below.
fn children_of(node: &Node) -> Result<Vec<(String, ObjectId)>, DatasetError> {
    let Some(children) = node.zap_of(CHILDREN)? else { return Ok(Vec::new()) };
    let named = |entry: &Entry| match (entry.key.name(), &entry.value) {
        (Some(name), Value::U64(id)) => Some((String::from_utf8_lossy(name).into_owned(), ObjectId(*id))),
        _ => None,
    };
    Ok(children.entries()?.iter().filter_map(named).collect())
}

fn open_child(
    mos: &Arc<ObjectSet>,
    path: &str,
    id: ObjectId,
    seen: &mut BTreeSet<ObjectId>,
) -> Result<Node, DatasetError> {
    // A damaged tree may lead in circles.
    if !seen.insert(id) {
        return Err(DatasetError::Damaged {
            at: "tree of data sets",
            expected: format!("object {id} of the meta object set in one place"),
            found: format!("it is also {path}"),
        });
    }
    Node::open(mos, id)
}

fn names_in(zap: &ObjectZap) -> Result<Vec<String>, DatasetError> {
    let entries = zap.entries()?;
    let names = entries.iter().filter_map(|entry| entry.key.name());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_string() } else { format!("{parent}/{name}") }
}

/// The path of the data set above, and the last name.
fn split(path: &str) -> Result<(&str, &str), DatasetError> {
    path.split('/').try_for_each(|name| check_name(name, path))?;
    Ok(path.rsplit_once('/').unwrap_or(("", path)))
}

/// Refuses an invalid name of a data set or snapshot.
fn check_name(name: &str, whole: &str) -> Result<(), DatasetError> {
    if !is_valid_name(name) || whole.len() > PATH_MAX {
        return Err(DatasetError::InvalidName { name: whole.to_string() });
    }
    Ok(())
}

/// Whether a data set or snapshot may have this name.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let is_valid = |char: char| char.is_alphanumeric() || "-_.: ".contains(char);
    let is_dots = name == "." || name == "..";
    !name.is_empty() && !is_dots && name.chars().all(is_valid)
}
