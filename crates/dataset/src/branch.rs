//! The data sets of a pool as a tree in memory: the properties that each stores, the space that it uses, and its quotas.
//!
//! A data set that is not open still matters: data sets below inherit its properties, and its quota limits them. So
//! each data set has a branch, open or not. `Datasets` keeps the tree.
//!
//! Invariants:
//! * An open data set obeys its properties, own and inherited. After each change of a branch, the caller calls
//!   [`Branch::follow`] on it, which applies the properties of all open data sets there and below.
//! * No lock of a branch is held while one of another is taken.

use crate::chain::Chain;
use crate::limits::{self, Bound, Limits, Promises};
use crate::props::{Ancestor, Effective, Key, Props};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_object::{Join, ObjectError, ObjectSet, SpaceBound, Usage};
use terrane_pool::{Pool, Tx};
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

/// An open data set, which applies the properties of its branch.
pub(crate) trait Follower: Send + Sync {
    /// Applies the properties as they are now.
    fn follow(&self);
}

/// The space that a data set uses, without the data sets below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnUsage {
    /// Bytes of the head.
    pub head_bytes: u64,
    /// Bytes that only snapshots refer to.
    pub snapshot_bytes: u64,
}

impl OwnUsage {
    fn sum(&self) -> u64 {
        self.head_bytes.saturating_add(self.snapshot_bytes)
    }
}

enum OwnSource {
    /// The object set, which holds this branch.
    Open(Weak<ObjectSet>),
    /// The space as stored when the branch was made. It cannot change before the data set is opened.
    Closed(OwnUsage),
}

/// One data set of the tree.
pub struct Branch {
    /// The last name of its path; empty: the root data set.
    name: Mutex<String>,
    parent: Mutex<Option<Arc<Branch>>>,
    children: Mutex<BTreeMap<String, Arc<Branch>>>,
    props: Mutex<Arc<Props>>,
    follower: Mutex<Option<Weak<dyn Follower>>>,
    own: Mutex<OwnSource>,
    /// Bytes that the origin of a clone refers to. The head and the dead lists of the clone count them too, so they are
    /// subtracted.
    shared_bytes: AtomicU64,
    limits: Limits,
    /// Bytes that it uses with all data sets below, as of a txg.
    tree_used: Mutex<Option<(Txg, u64)>>,
    promises: Arc<Promises>,
}

impl Branch {
    /// The root data set.
    pub(crate) fn root(props: Props) -> Arc<Branch> {
        Branch::make("", None, props, Arc::default())
    }

    /// A new branch below this one, in place of one with the same name.
    pub(crate) fn grow(self: &Arc<Self>, name: &str, props: Props) -> Arc<Branch> {
        let child = Branch::make(name, Some(Arc::clone(self)), props, Arc::clone(&self.promises));
        self.children.lock().insert(name.to_string(), Arc::clone(&child));
        child
    }

    fn make(name: &str, parent: Option<Arc<Branch>>, props: Props, promises: Arc<Promises>) -> Arc<Branch> {
        let limits = Limits::default();
        limits.set(&props);
        Arc::new(Branch {
            name: Mutex::new(name.to_string()),
            parent: Mutex::new(parent),
            children: Mutex::default(),
            props: Mutex::new(Arc::new(props)),
            follower: Mutex::default(),
            own: Mutex::new(OwnSource::Closed(OwnUsage::default())),
            shared_bytes: AtomicU64::new(0),
            limits,
            tree_used: Mutex::default(),
            promises,
        })
    }

    /// The branch with this path below this one.
    pub(crate) fn find(self: &Arc<Self>, path: &str) -> Option<Arc<Branch>> {
        let mut names = path.split('/').filter(|_| !path.is_empty());
        names.try_fold(Arc::clone(self), |found, name| found.children.lock().get(name).cloned())
    }

    /// Removes the child of this name.
    pub(crate) fn cut(&self, name: &str) {
        self.children.lock().remove(name);
    }

    /// Removes all branches below. Branches refer to each other, so the tree would never be freed otherwise.
    pub(crate) fn fell(&self) {
        let children = std::mem::take(&mut *self.children.lock());
        children.values().for_each(|child| child.fell());
    }

    /// Moves it below another branch, under a new name. Open data sets apply at once what they inherit there.
    pub(crate) fn move_to(self: &Arc<Self>, parent: &Arc<Branch>, name: &str) {
        let before = self.name.lock().clone();
        if let Some(above) = self.parent() {
            above.cut(&before);
        }
        *self.parent.lock() = Some(Arc::clone(parent));
        *self.name.lock() = name.to_string();
        parent.children.lock().insert(name.to_string(), Arc::clone(self));
        self.follow();
    }

    /// Its parent; `None`: the root data set.
    pub fn parent(&self) -> Option<Arc<Branch>> {
        self.parent.lock().clone()
    }

    /// Its children, in the order of their names.
    pub fn children(&self) -> Vec<Arc<Branch>> {
        self.children.lock().values().cloned().collect()
    }

    /// Its path below the pool; empty: the root data set.
    pub fn path(&self) -> String {
        let own = self.name.lock().clone();
        match self.parent().map(|parent| parent.path()) {
            Some(above) if !above.is_empty() => format!("{above}/{own}"),
            _ => own,
        }
    }

    /// Whether this is the root data set.
    pub fn is_root(&self) -> bool {
        self.parent.lock().is_none()
    }

    /// The properties that it stores.
    pub fn props(&self) -> Arc<Props> {
        Arc::clone(&self.props.lock())
    }

    /// Changes the stored properties. The caller then calls [`Branch::follow`].
    pub(crate) fn update(&self, change: impl FnOnce(&mut Props)) {
        change(Arc::make_mut(&mut *self.props.lock()));
        self.limits.set(&self.props());
    }

    /// The value of a property that applies here. `None`: a user property that is not set.
    pub fn effective(&self, key: &Key) -> Option<Effective> {
        let own = self.props();
        let (mut above, mut at) = (Vec::new(), self.parent());
        while let Some(parent) = at {
            above.push((parent.path(), parent.props()));
            at = parent.parent();
        }
        let above: Vec<_> = above.iter().map(|(path, props)| Ancestor { path, props }).collect();
        own.effective(key, &self.path(), &above)
    }

    /// Names of the user properties that apply here, each once and in order.
    pub fn user_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.props().user_names().map(str::to_string).collect();
        names.extend(self.parent().into_iter().flat_map(|parent| parent.user_names()));
        names.sort_unstable();
        names.dedup();
        names
    }

    pub(crate) fn set_follower(&self, follower: Weak<dyn Follower>) {
        *self.follower.lock() = Some(follower);
    }

    /// Applies the properties that are stored now to all open data sets, here and below.
    pub fn follow(&self) {
        let follower = self.follower.lock().as_ref().and_then(Weak::upgrade);
        if let Some(follower) = follower {
            follower.follow();
        }
        self.children().iter().for_each(|child| child.follow());
    }

    /// Its object set is open from now on.
    pub(crate) fn open_head(&self, set: &Arc<ObjectSet>) {
        *self.own.lock() = OwnSource::Open(Arc::downgrade(set));
    }

    /// Whether its object set is open.
    pub(crate) fn is_open(&self) -> bool {
        matches!(&*self.own.lock(), OwnSource::Open(set) if set.strong_count() > 0)
    }

    /// Sets the bytes that the origin of a clone refers to; 0: it is no clone.
    pub(crate) fn set_shared(&self, bytes: u64) {
        self.shared_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sets the space that it uses while it is not open.
    pub(crate) fn set_closed(&self, usage: OwnUsage) {
        *self.own.lock() = OwnSource::Closed(usage);
    }

    /// Its object set, or the space that it uses while that is not open.
    fn own_source(&self) -> Result<Option<Arc<ObjectSet>>, OwnUsage> {
        match &*self.own.lock() {
            OwnSource::Open(set) => Ok(set.upgrade()),
            OwnSource::Closed(usage) => Err(*usage),
        }
    }

    /// Bytes that its head refers to, as of the last commit.
    pub fn head_bytes(&self) -> u64 {
        match self.own_source() {
            Ok(set) => set.and_then(|set| set.account()).map_or(0, |account| account.used_bytes),
            Err(usage) => usage.head_bytes,
        }
    }

    /// The space that it uses without the data sets below it, as of the last commit.
    pub fn own_usage(&self) -> OwnUsage {
        match self.own_source() {
            Ok(set) => OwnUsage {
                head_bytes: self.head_bytes(),
                snapshot_bytes: set.map_or(0, |set| kept_bytes(&set)),
            },
            Err(usage) => usage,
        }
    }

    /// Bytes that it uses with its snapshots and all data sets below, as of the last commit.
    pub fn used_bytes(&self) -> u64 {
        let below = self.children().iter().map(|child| child.used_bytes()).fold(0, u64::saturating_add);
        let shared = self.shared_bytes.load(Ordering::Relaxed);
        self.own_usage().sum().saturating_sub(shared).saturating_add(below)
    }

    /// The same, computed at most once for each txg.
    fn used_bytes_as_of(&self, synced: Txg) -> u64 {
        let known = self.tree_used.lock().filter(|(txg, _)| *txg == synced);
        if let Some((_, bytes)) = known {
            return bytes;
        }
        let bytes = self.used_bytes();
        *self.tree_used.lock() = Some((synced, bytes));
        bytes
    }

    /// The space of the pool that this data set can use.
    pub fn limit_usage(self: &Arc<Self>, usage: Usage) -> Usage {
        limits::tightest(usage, &self.bounds(None))
    }

    /// The quotas that apply, each with the bytes that it counts now. `synced`: counts as of this txg are new enough.
    fn bounds(self: &Arc<Self>, synced: Option<Txg>) -> Vec<Bound> {
        let mut bounds = Vec::new();
        for (distance, branch) in self.chain().enumerate() {
            let id = Arc::as_ptr(&branch) as usize;
            if let Some(limit) = branch.limits.ref_quota().filter(|_| distance == 0) {
                bounds.push(Bound::of_head(id, limit, branch.head_bytes()));
            }
            if let Some(limit) = branch.limits.quota() {
                let used = match synced {
                    Some(synced) => branch.used_bytes_as_of(synced),
                    None => branch.used_bytes(),
                };
                bounds.push(Bound::of_tree(id, limit, used));
            }
        }
        bounds
    }

    /// It and its parents, the root data set last.
    fn chain(self: &Arc<Self>) -> impl Iterator<Item = Arc<Branch>> {
        std::iter::successors(Some(Arc::clone(self)), |branch| branch.parent())
    }
}

/// Bytes that only snapshots of an open set refer to.
fn kept_bytes(set: &Arc<ObjectSet>) -> u64 {
    let Some(chain) = Chain::of(set) else { return 0 };
    chain.usage().map_or_else(
        |error| {
            log::warn!("object set {}: space of snapshots not counted: {error}", set.id());
            0
        },
        |usage| usage.kept_bytes,
    )
}

/// Limits an object set by the quotas of its data set and of all parents.
pub(crate) struct BranchBound {
    pub branch: Arc<Branch>,
    pub pool: Arc<Pool>,
}

impl BranchBound {
    fn is_limited(&self) -> bool {
        self.branch.limits.ref_quota().is_some()
            || self.branch.chain().any(|branch| branch.limits.quota().is_some())
    }
}

impl SpaceBound for BranchBound {
    fn admit(&self, cost: &Cost, join: Join<'_>) -> Result<Tx, ObjectError> {
        if !self.is_limited() {
            return join();
        }
        self.branch.promises.admit(&self.pool, cost, &|synced| self.branch.bounds(Some(synced)), join)
    }

    fn bound(&self, usage: Usage) -> Usage {
        if !self.is_limited() {
            return usage;
        }
        limits::tightest(usage, &self.branch.bounds(Some(self.pool.synced_txg())))
    }
}
