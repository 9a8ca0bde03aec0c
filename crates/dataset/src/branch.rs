//! The data sets of a pool as a tree in memory: the properties that each stores, the space that it uses, and its quotas.
//!
//! A data set that is not open still matters: data sets below inherit its properties, and its quota limits them. So
//! each data set has a branch, open or not. `Datasets` keeps the tree.
//!
//! Invariants:
//! * An open data set obeys its properties, own and inherited. After each change of a branch, the caller calls
//!   [`Branch::follow`] on it, which applies the properties of all open data sets there and below.
//! * No lock of a branch is held while one of another is taken.

use crate::chain::{Chain, ChainUsage};
use crate::error::DatasetError;
use crate::limits::{self, Bound, Charge, Limits, Promises};
use crate::props::{Ancestor, Effective, Key, Props};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_object::{Join, ObjectError, ObjectSet, SpaceBound, Usage};
use terrane_pool::{Pool, Tx};
use terrane_store::PoolError;
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
    /// Of these, bytes that the newest snapshot refers to as well, or the origin of a clone without snapshots.
    pub shared_bytes: u64,
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
    /// The space as stored. It cannot change before the data set is opened.
    Closed(OwnUsage),
    /// The same. It is computed when it is first needed, because that takes time in proportion to the number of snapshots.
    Stored(Arc<dyn Fn() -> Option<OwnUsage> + Send + Sync>),
}

/// So many txgs that free nothing end the wait for blocks on dead lists.
const LIST_TXGS_MAX: u32 = 8;
/// So many txgs end it in any case.
const LIST_WAIT_TXGS_MAX: u32 = 512;

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
    /// What it is charged, as of a txg.
    charge: Mutex<Option<(Txg, Charge)>>,
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
        if limits.reservation() > 0 || limits.ref_reservation() > 0 {
            promises.note_reservation();
        }
        Arc::new(Branch {
            name: Mutex::new(name.to_string()),
            parent: Mutex::new(parent),
            children: Mutex::default(),
            props: Mutex::new(Arc::new(props)),
            follower: Mutex::default(),
            own: Mutex::new(OwnSource::Closed(OwnUsage::default())),
            shared_bytes: AtomicU64::new(0),
            limits,
            charge: Mutex::default(),
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
        self.forget_charges();
        if let Some(above) = self.parent() {
            above.cut(&before);
        }
        *self.parent.lock() = Some(Arc::clone(parent));
        *self.name.lock() = name.to_string();
        parent.children.lock().insert(name.to_string(), Arc::clone(self));
        self.forget_charges();
        self.follow();
    }

    /// Fails if a quota or the pool has no space for what this data set is charged below `parent`. The caller holds the tree.
    pub(crate) fn check_move(
        self: &Arc<Self>,
        parent: &Arc<Branch>,
        pool: (u64, u64),
    ) -> Result<(), DatasetError> {
        let growths = parent.growths(pool, &|above| above.charge_after_move(self, parent));
        self.check_growths(&parent.chain().collect::<Vec<_>>(), &growths)
    }

    /// Fails if a quota or the pool has no space for so many bytes that this data set takes over from `source`. Otherwise they are
    /// promised until the txg after that of the transaction has synced: the sums count them some time after the sync of the
    /// transaction's own txg. The caller holds the tree.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        tx: &Tx,
        source: &Arc<Branch>,
        bytes: u64,
    ) -> Result<(), DatasetError> {
        let pool = space_of_pool(tx.pool());
        let growths = self.growths(pool, &|above| above.charge_after_take_over(self, source, bytes));
        self.check_growths(&self.chain().collect::<Vec<_>>(), &growths)?;
        if !self.promises.promise_growths(tx.pool().synced_txg(), tx.txg().next(), &growths) {
            let by = "others are just taking the space below its quotas: try again".to_string();
            return Err(DatasetError::InUse { name: self.path(), by });
        }
        Ok(())
    }

    /// The limits here and above that would count more, and how many bytes more. `after`: the charge of a branch then.
    fn growths(
        self: &Arc<Self>,
        pool: (u64, u64),
        after: &dyn Fn(&Arc<Branch>) -> Charge,
    ) -> Vec<(Bound, u64)> {
        let mut growths = Vec::new();
        for branch in self.chain() {
            let quota = branch.limits.quota();
            let is_reserved = branch.is_root() && self.promises.has_reservations();
            // A charge sums up all dead lists.
            if quota.is_none() && !is_reserved {
                continue;
            }
            let (before, after) = (branch.charge(None), after(&branch));
            if let Some(limit) = quota {
                let bound = Bound::of_tree(branch.id(), limit, before.bytes);
                growths.push((bound, after.bytes.saturating_sub(before.bytes)));
            }
            if is_reserved {
                let reserved = |charge: &Charge| charge.bytes.saturating_sub(charge.used);
                let used = pool.1.saturating_add(reserved(&before));
                let bound = Bound::of_pool(branch.id(), pool.0, used);
                growths.push((bound, reserved(&after).saturating_sub(reserved(&before))));
            }
        }
        growths.retain(|(_, growth)| *growth > 0);
        growths
    }

    /// Fails if one of these limits has no space for its growth. `limited`: the data sets whose limits they are.
    fn check_growths(
        self: &Arc<Self>,
        limited: &[Arc<Branch>],
        growths: &[(Bound, u64)],
    ) -> Result<(), DatasetError> {
        let Some((bound, need)) = growths.iter().find(|(bound, growth)| *growth > bound.left()) else {
            return Ok(());
        };
        let of = limited.iter().find(|branch| branch.id() == bound.node());
        let quota_of = of.filter(|_| !bound.is_of_pool()).map(|branch| branch.path());
        let (limit, used) = bound.limit_and_used();
        Err(DatasetError::OverLimit { name: self.path(), quota_of, limit, used, need: *need })
    }

    /// Its charge if `moved` lay below `to`.
    fn charge_after_move(self: &Arc<Self>, moved: &Arc<Branch>, to: &Arc<Branch>) -> Charge {
        let children = self.children();
        let others = children.iter().filter(|child| !Arc::ptr_eq(child, moved));
        let added = Arc::ptr_eq(self, to).then(|| moved.charge(None));
        let below = others.map(|child| child.charge_after_move(moved, to)).chain(added);
        self.charge_over(self.used_alone(), below)
    }

    /// Its charge if `to` had taken so many bytes over from `from`.
    fn charge_after_take_over(self: &Arc<Self>, to: &Arc<Branch>, from: &Arc<Branch>, bytes: u64) -> Charge {
        let (gain, loss) = (Arc::ptr_eq(self, to), Arc::ptr_eq(self, from));
        let used = self.used_alone().saturating_add(if gain { bytes } else { 0 });
        let used = used.saturating_sub(if loss { bytes } else { 0 });
        let children = self.children();
        self.charge_over(used, children.iter().map(|child| child.charge_after_take_over(to, from, bytes)))
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
        if self.limits.reservation() > 0 || self.limits.ref_reservation() > 0 {
            self.promises.note_reservation();
        }
        self.forget_charges();
    }

    /// Its charge has changed, and so have those of all parents.
    fn forget_charges(&self) {
        *self.charge.lock() = None;
        let mut above = self.parent();
        while let Some(branch) = above {
            *branch.charge.lock() = None;
            above = branch.parent();
        }
    }

    /// For a change of reservations. Take it before joining a txg.
    pub(crate) fn reserving(&self) -> MutexGuard<'_, ()> {
        self.promises.reserving()
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
        self.forget_charges();
    }

    /// Sets how to find the space that it uses while it is not open.
    /// `None`: unknown now.
    pub(crate) fn set_closed(&self, usage: impl Fn() -> Option<OwnUsage> + Send + Sync + 'static) {
        *self.own.lock() = OwnSource::Stored(Arc::new(usage));
    }

    /// Its object set, or the space that it uses while that is not open.
    fn own_source(&self) -> Result<Option<Arc<ObjectSet>>, OwnUsage> {
        loop {
            let stored = match &*self.own.lock() {
                OwnSource::Open(set) => return Ok(set.upgrade()),
                OwnSource::Closed(usage) => return Err(*usage),
                OwnSource::Stored(stored) => Arc::clone(stored),
            };
            let usage = stored();
            let mut own = self.own.lock();
            // Opened or changed meanwhile: what was read may be a part of the change.
            if !matches!(&*own, OwnSource::Stored(now) if Arc::ptr_eq(now, &stored)) {
                continue;
            }
            let Some(usage) = usage else { return Err(OwnUsage::default()) };
            *own = OwnSource::Closed(usage);
            return Err(usage);
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
            Ok(set) => {
                let lists = set.map(|set| usage_of_lists(&set)).unwrap_or_default();
                let newest = lists.newest_bytes.unwrap_or_else(|| self.shared_bytes.load(Ordering::Relaxed));
                OwnUsage {
                    head_bytes: self.head_bytes(),
                    shared_bytes: newest.saturating_sub(lists.head_list_bytes),
                    snapshot_bytes: lists.kept_bytes,
                }
            }
            Err(usage) => usage,
        }
    }

    /// Whether space is reserved for it: for its current data, or for it with all data sets below a parent.
    pub fn has_reserved_space(self: &Arc<Self>) -> bool {
        self.limits.ref_reservation() > 0 || self.chain().any(|branch| branch.limits.reservation() > 0)
    }

    /// Bytes that it uses with its snapshots and all data sets below, as of the last commit.
    pub fn used_bytes(&self) -> u64 {
        self.charge(None).used
    }

    /// What it is charged: what it uses with its snapshots and all data sets below, and at least what is reserved for them. `synced`: a
    /// charge as of this txg is new enough, and is computed at most once.
    pub(crate) fn charge(&self, synced: Option<Txg>) -> Charge {
        let known = synced.and_then(|synced| self.charge.lock().filter(|(txg, _)| *txg == synced));
        if let Some((_, charge)) = known {
            return charge;
        }
        let children = self.children();
        let below = children.iter().map(|child| child.charge(synced));
        let charge = self.charge_over(self.used_alone(), below);
        if let Some(synced) = synced {
            *self.charge.lock() = Some((synced, charge));
        }
        charge
    }

    /// Bytes that it uses without the data sets below it. What the origin of a clone refers to belongs to another data set.
    fn used_alone(&self) -> u64 {
        self.own_usage().sum().saturating_sub(self.shared_bytes.load(Ordering::Relaxed))
    }

    /// Its charge if it used so many bytes without the data sets below it, and had these below it. Its head is as it is now.
    fn charge_over(&self, used: u64, children: impl Iterator<Item = Charge>) -> Charge {
        let (mut below, mut used_below) = (0u64, 0u64);
        for child in children {
            below = below.saturating_add(child.bytes);
            used_below = used_below.saturating_add(child.used);
        }
        let own = self.own_usage();
        // A snapshot keeps what it shares with the head, so each overwrite takes new space.
        let own_of_head = own.head_bytes.saturating_sub(own.shared_bytes);
        let head_slack = self.limits.ref_reservation().saturating_sub(own_of_head);
        let bytes = used.saturating_add(head_slack).saturating_add(below);
        let tree_slack = self.limits.reservation().saturating_sub(bytes);
        let (bytes, used) = (bytes.saturating_add(tree_slack), used.saturating_add(used_below));
        let head = own_of_head.saturating_add(head_slack);
        Charge { bytes, used, head, head_slack, tree_slack }
    }

    /// Bytes by which the charges of data sets below can grow together. `pool`: as in `bounds`.
    pub(crate) fn reservable_bytes(self: &Arc<Self>, pool: (u64, u64)) -> u64 {
        let bounds = self.bounds_of_tree(None, pool, 0);
        bounds.iter().map(Bound::left).fold(pool.0.saturating_sub(pool.1), u64::min)
    }

    /// Bytes by which a snapshot raises the charge of the data set, because its head shares everything from then on, and bytes by which
    /// the charge can grow.
    pub(crate) fn charge_of_snapshot(self: &Arc<Self>, pool: (u64, u64)) -> (u64, u64) {
        // A charge sums up all dead lists.
        if self.limits.ref_reservation() == 0 {
            return (0, 0);
        }
        let charge = self.charge(None);
        let growth = self.limits.ref_reservation().saturating_sub(charge.head_slack);
        (growth.saturating_sub(charge.tree_slack), self.room(&charge, pool))
    }

    /// The largest value that the `reservation` of the data set can have, or with `of_head` its `refreservation`.
    pub(crate) fn reservation_max(self: &Arc<Self>, of_head: bool, pool: (u64, u64)) -> u64 {
        let charge = self.charge(None);
        let room = self.room(&charge, pool);
        let (now, limits) = match of_head {
            true => (
                charge.head.saturating_add(charge.tree_slack),
                [self.limits.ref_quota(), self.limits.quota()],
            ),
            false => (charge.bytes, [None, self.limits.quota()]),
        };
        limits.into_iter().flatten().fold(now.saturating_add(room), u64::min)
    }

    /// Bytes by which its charge can grow.
    fn room(self: &Arc<Self>, charge: &Charge, pool: (u64, u64)) -> u64 {
        match self.parent() {
            Some(parent) => parent.reservable_bytes(pool),
            None => {
                let reserved = charge.bytes.saturating_sub(charge.used);
                pool.0.saturating_sub(pool.1).saturating_sub(reserved)
            }
        }
    }

    /// Whether something that it uses, with all data sets below, is being freed.
    fn is_freeing(&self) -> bool {
        let set = self.own_source().ok().flatten();
        let is_own = set.is_some_and(|set| {
            let waits_for_txg = set.freeing_bytes() > 0 || set.is_freeing() == Some(true);
            waits_for_txg || Chain::of(&set).is_some_and(|chain| !chain.is_at_rest())
        });
        is_own || self.children().iter().any(|child| child.is_freeing())
    }

    /// The space of the pool that this data set can use.
    pub fn limit_usage(self: &Arc<Self>, usage: Usage) -> Usage {
        limits::tightest(usage, &self.bounds(None, space_of(&usage)))
    }

    /// The limits that apply, each with the bytes that it counts now. `synced`: counts as of this txg are new enough. `pool`: bytes that
    /// can be used in the pool, and bytes that are used.
    fn bounds(self: &Arc<Self>, synced: Option<Txg>, pool: (u64, u64)) -> Vec<Bound> {
        let has_reservations = self.promises.has_reservations();
        let head_slack = if has_reservations { self.charge(synced).head_slack } else { 0 };
        let mut bounds = self.bounds_of_tree(synced, pool, head_slack);
        if let Some(limit) = self.limits.ref_quota() {
            bounds.push(Bound::of_head(self.id(), limit, self.head_bytes()));
        }
        bounds
    }

    /// The limits that count more than a head. `slack`: bytes that are reserved for what is to grow, and counted already.
    fn bounds_of_tree(self: &Arc<Self>, synced: Option<Txg>, pool: (u64, u64), mut slack: u64) -> Vec<Bound> {
        let mut bounds = Vec::new();
        for branch in self.chain() {
            let is_charged = branch.limits.quota().is_some() || self.promises.has_reservations();
            let charge = if is_charged { branch.charge(synced) } else { Charge::default() };
            slack = slack.saturating_add(charge.tree_slack);
            let used = charge.bytes.saturating_sub(slack);
            if let Some(limit) = branch.limits.quota() {
                bounds.push(Bound::of_tree(branch.id(), limit, used));
            }
            if branch.is_root() && self.promises.has_reservations() {
                let of_others = used.saturating_sub(charge.used);
                if of_others > 0 {
                    bounds.push(Bound::of_pool(branch.id(), pool.0, pool.1.saturating_add(of_others)));
                }
            }
        }
        bounds
    }

    fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// It and its parents, the root data set last.
    fn chain(self: &Arc<Self>) -> impl Iterator<Item = Arc<Branch>> {
        std::iter::successors(Some(Arc::clone(self)), |branch| branch.parent())
    }
}

/// Bytes that can be used, and bytes that are used.
fn space_of(usage: &Usage) -> (u64, u64) {
    (usage.used_bytes.saturating_add(usage.available_bytes), usage.used_bytes)
}

/// The same of a pool, as far as reservations are concerned.
pub(crate) fn space_of_pool(pool: &Pool) -> (u64, u64) {
    let (_, used, available) = pool.space();
    (used.saturating_add(available), used)
}

/// The space on the lists of an open set.
fn usage_of_lists(set: &Arc<ObjectSet>) -> ChainUsage {
    let Some(chain) = Chain::of(set) else { return ChainUsage::default() };
    chain.usage().unwrap_or_else(|error| {
        log::warn!("object set {}: space of snapshots not counted: {error}", set.id());
        ChainUsage::default()
    })
}

/// Limits an object set by the quotas of its data set and of all parents, and by what is reserved for others.
pub(crate) struct BranchBound {
    pub branch: Arc<Branch>,
    pub pool: Arc<Pool>,
}

impl BranchBound {
    fn is_limited(&self) -> bool {
        self.branch.limits.ref_quota().is_some()
            || self.branch.promises.has_reservations()
            || self.branch.chain().any(|branch| branch.limits.quota().is_some())
    }

    fn admit_now(&self, cost: &Cost, join: Join<'_>) -> Result<Tx, ObjectError> {
        if !self.is_limited() {
            return join();
        }
        // Operations in txgs that are not committed are promises. What files have reserved is used, except by this operation.
        let bounds = |synced, reserved| {
            let (limit, used, _) = self.pool.space();
            let of_files = self.pool.file_reserved_bytes().saturating_sub(reserved);
            self.branch.bounds(Some(synced), (limit, used.saturating_add(of_files)))
        };
        self.branch.promises.admit(&self.pool, cost, &bounds, &|bound| self.is_freeing(bound), join)
    }

    /// Whether the next txgs may free blocks on dead lists of the data set. Reads its snapshots if they decide about that.
    fn frees_from_lists(&self) -> bool {
        let set = self.branch.own_source().ok().flatten();
        let Some(chain) = set.and_then(|set| Chain::of(&set)) else { return false };
        chain.is_unread() && chain.read().is_ok() || !chain.is_at_rest()
    }

    fn is_freeing(&self, bound: &Bound) -> bool {
        self.branch
            .chain()
            .find(|branch| branch.id() == bound.node())
            .is_some_and(|branch| branch.is_freeing())
    }
}

impl SpaceBound for BranchBound {
    fn admit(&self, cost: &Cost, join: Join<'_>) -> Result<Tx, ObjectError> {
        let mut outcome = self.admit_now(cost, join);
        let (mut used, mut patience) = (u64::MAX, LIST_TXGS_MAX);
        for _ in 0..LIST_WAIT_TXGS_MAX {
            let can_fit = |need: u64| need <= space_of_pool(&self.pool).0;
            let may_fit =
                matches!(outcome, Err(ObjectError::Pool(PoolError::NoSpace { need, .. })) if can_fit(need));
            if !may_fit || patience == 0 || !self.frees_from_lists() {
                break;
            }
            self.pool.commit_txg(self.pool.open_txg())?;
            let now = space_of_pool(&self.pool).1;
            patience = if now < used { LIST_TXGS_MAX } else { patience - 1 };
            used = used.min(now);
            outcome = self.admit_now(cost, join);
        }
        outcome
    }

    fn bound(&self, usage: Usage) -> Usage {
        if !self.is_limited() {
            return usage;
        }
        limits::tightest(usage, &self.branch.bounds(Some(self.pool.synced_txg()), space_of(&usage)))
    }
}
