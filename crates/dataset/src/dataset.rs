//! An open data set and its properties. Creates and opens the root data set.

use crate::attributes::{self, AclType, DnodeSize, XattrPlacement};
use crate::branch::{Branch, BranchBound, Follower, space_of_pool};
use crate::directory::{POOL_DIRECTORY, ROOT_DATASET, ROOT_PROPS};
use crate::error::DatasetError;
use crate::error_log::{ErrorRecorder, RecordScope};
use crate::feature_counts;
use crate::free_policy::open_set;
use crate::mos_zap;
use crate::naming::Naming;
use crate::node::Node;
use crate::obeyed::Obeyed;
use crate::owner_walk::OwnerWalk;
use crate::props::{
    self, AccessTime, Effective, Key, PROPERTIES, Property, PropertyValue, REF_RESERVATION, RESERVATION,
    Scope, SnapDir, Stored, SyncMode,
};
use crate::quota::Quotas;
use crate::zap_handle::OpenZaps;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use terrane_format::{BlockPtr, Feature};
use terrane_object::{ObjectError, ObjectKind, ObjectSet, ObjectSets};
use terrane_pool::Tx;
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, ObjsetId};

/// The master ZAP in a data set.
pub const MASTER: ObjectId = ObjectId(1);

/// Cost of creating a data set, or of setting a property.
const COST: Cost = Cost { write_bytes: 64 << 10, meta_blocks: 16, ..Cost::NOTHING };
/// As [`COST`], using the GC reserve: a property that frees space must be settable when the pool is full.
const COST_SET: Cost = Cost { frees: true, ..COST };

/// An open data set.
pub struct Dataset {
    object_set: Arc<ObjectSet>,
    mos: Arc<ObjectSet>,
    branch: Arc<Branch>,
    /// The properties that it stores. Its lock also orders their changes.
    props_zap: Mutex<ObjectZap>,
    obeyed: Arc<Obeyed>,
    zap_policy: Arc<ZapPolicy>,
    naming: Naming,
    recorder: Arc<ErrorRecorder>,
    /// ZAPs for which programs have handles.
    pub(crate) open_zaps: Mutex<Weak<OpenZaps>>,
    /// The master ZAP, for all who change it.
    master: Arc<Mutex<ObjectZap>>,
    quotas: Quotas,
    pub(crate) owner_walk: Mutex<OwnerWalk>,
}

/// Checks that the pool supports a value, and enables the feature that it needs. So older versions refuse the
/// pool before anything is written that they cannot read.
pub(crate) fn ensure_supported(set: &ObjectSet, key: &Key, value: &Stored) -> Result<(), DatasetError> {
    let (Key::Known(property), Stored::Number(number)) = (key, value) else { return Ok(()) };
    let (property, number) = (*property, *number);
    let max_block = u64::from(set.pool().max_block());
    if property.name == props::RECORD_SIZE && number > max_block {
        let expected = format!("at most {} in this pool, a quarter of a zone", props::print_size(max_block));
        return Err(DatasetError::BadValue {
            name: property.name,
            found: props::print_size(number),
            expected,
        });
    }
    let missing = |feature: &Feature| !set.pool().has(*feature) && !set.pool().is_read_only();
    let Some(feature) = props::feature_of(property, number).filter(missing) else { return Ok(()) };
    set.pool().enable(&[feature]).map_err(ObjectError::from)?;
    Ok(())
}

/// The name of the reservation that a key names.
fn reservation_in(key: &Key) -> Option<&'static str> {
    [RESERVATION, REF_RESERVATION].into_iter().find(|name| *name == key.name())
}

/// Refuses a reservation that a quota or the pool has no space for.
fn check_reservation(name: &'static str, bytes: u64, most: u64) -> Result<(), DatasetError> {
    if bytes <= most {
        return Ok(());
    }
    let expected = format!("at most {most} bytes here, which the pool and the quotas still have");
    Err(DatasetError::BadValue { name, found: bytes.to_string(), expected })
}

/// Values for a new data set.
pub(crate) struct NewProps {
    /// Stored in the master ZAP. They never change.
    fixed: Vec<(&'static Property, u64)>,
    set: Vec<(Key, Stored)>,
    /// Whether the time of creation is stored. The root data set has none.
    is_dated: bool,
}

impl NewProps {
    /// Parses the values, and enables the features that they need.
    ///
    /// Properties that are fixed at creation and not in `values` are copied from the parent.
    pub fn parse(
        mos: &ObjectSet,
        parent: Option<&Dataset>,
        values: &[(&str, &str)],
    ) -> Result<NewProps, DatasetError> {
        let (mut fixed, mut set) = (Vec::new(), Vec::new());
        let is_root = parent.is_none();
        for (name, word) in values {
            let key = Key::find(name)?;
            let value = key.parse(word)?;
            match (&key, &value) {
                (Key::Known(property), _) if property.scope == Scope::Pool && !is_root => {
                    return Err(DatasetError::PoolWide { name: property.name });
                }
                (Key::Known(property), Stored::Number(number)) if property.is_fixed() => {
                    fixed.push((*property, *number))
                }
                _ => set.push((key, value)),
            }
        }
        for property in PROPERTIES.iter().filter(|property| property.is_fixed()) {
            let is_given = fixed.iter().any(|(given, _)| given.name == property.name);
            if let Some(parent) = parent.filter(|_| !is_given) {
                fixed.push((property, parent.obeyed.number(property.name)?));
            }
        }
        props::complete_naming(&mut fixed)?;
        for (key, value) in &set {
            ensure_supported(mos, key, value)?;
            if let (Some(name), Stored::Number(bytes)) = (reservation_in(key), value) {
                if parent.is_some() {
                    // What is in memory takes space too.
                    mos.commit()?;
                }
                let pool = space_of_pool(mos.pool());
                let most = parent.map_or(pool.0, |parent| parent.branch.reservable_bytes(pool));
                check_reservation(name, *bytes, most)?;
            }
        }
        fixed.retain(|(property, number)| *number != property.default);
        if !fixed.is_empty() {
            mos.pool().enable(&[Feature::Naming]).map_err(ObjectError::from)?;
        }
        Ok(NewProps { fixed, set, is_dated: !is_root })
    }

    /// Creates the properties ZAP in the meta object set.
    pub fn store(
        &self,
        mos: &Arc<ObjectSet>,
        meta: &Arc<ZapPolicy>,
        tx: &Tx,
    ) -> Result<ObjectId, DatasetError> {
        let mut props = ObjectZap::create(mos, meta, tx, ObjectKind::Zap)?;
        for (key, value) in &self.set {
            props::store(&mut props, tx, key.name(), value, false)?;
        }
        if self.is_dated {
            props::store_creation(&mut props, tx)?;
        }
        Ok(props.object().id())
    }

    /// Creates the master ZAP in the new object set.
    pub fn store_fixed(&self, set: &Arc<ObjectSet>, tx: &Tx) -> Result<(), DatasetError> {
        let mut master = ObjectZap::create(set, &ZapPolicy::of(set), tx, ObjectKind::Master)?;
        for (property, number) in &self.fixed {
            master.update_u64(tx, property.name.as_bytes(), *number)?;
        }
        match master.object().id() {
            MASTER => Ok(()),
            other => Err(DatasetError::first_object("master ZAP", other)),
        }
    }
}

/// The properties that were fixed when a data set was created, from its master ZAP.
fn fixed_properties(master: &ObjectZap) -> Result<BTreeMap<&'static str, u64>, DatasetError> {
    let mut fixed = BTreeMap::new();
    for property in PROPERTIES.iter().filter(|property| property.is_fixed()) {
        if let Some(number) = master.lookup_u64(property.name.as_bytes())? {
            // A default must not replace an unknown value of a newer version: lookups would not find names.
            property.print(number)?;
            fixed.insert(property.name, number);
        }
    }
    Ok(fixed)
}

impl Dataset {
    /// Creates the root data set of a new pool, with these properties. Nothing is durable before the next
    /// commit.
    pub fn create_root(objects: &Arc<ObjectSets>, props: &[(&str, &str)]) -> Result<Dataset, DatasetError> {
        let new = NewProps::parse(objects.mos(), None, props)?;
        let mos = Arc::clone(objects.mos());
        let meta = ZapPolicy::of(&mos);
        {
            let tx = mos.begin(COST)?;
            let directory = ObjectZap::create(&mos, &meta, &tx, ObjectKind::Zap)?;
            if directory.object().id() != POOL_DIRECTORY {
                return Err(DatasetError::first_object("pool directory", directory.object().id()));
            }
            let id = objects.create_objset(&tx)?;
            let props = new.store(&mos, &meta, &tx)?;
            let mut directory = directory;
            directory.add_u64(&tx, ROOT_DATASET, id.0)?;
            directory.add_u64(&tx, ROOT_PROPS, props.0)?;
            new.store_fixed(&open_set(objects, &Node::root(&mos)?)?, &tx)?;
        }
        Dataset::open_root(objects)
    }

    /// Opens the root data set through the pool directory, without the tree of a [`Datasets`](crate::Datasets).
    pub fn open_root(objects: &Arc<ObjectSets>) -> Result<Dataset, DatasetError> {
        let node = Node::root(objects.mos())?;
        let branch = Branch::root(node.load_props()?);
        Dataset::open(objects, &node, &branch)
    }

    /// Opens the data set of a node. `branch` is its branch.
    pub(crate) fn open(
        objects: &Arc<ObjectSets>,
        node: &Node,
        branch: &Arc<Branch>,
    ) -> Result<Dataset, DatasetError> {
        let dataset = Dataset::open_with(objects, node, branch)?;
        let set = &dataset.object_set;
        dataset.obeyed.apply_first()?;
        branch.open_head(set);
        let follower: Weak<Obeyed> = Arc::downgrade(&dataset.obeyed);
        branch.set_follower(follower as Weak<dyn Follower>);
        set.set_space_bound(Arc::new(BranchBound {
            branch: Arc::clone(branch),
            pool: Arc::clone(set.pool()),
        }));
        feature_counts::open(objects.mos());
        Ok(dataset)
    }

    /// Opens a snapshot of this data set: the root that object set `set` had after an earlier txg, read-only. It shows the
    /// properties that the data set has now, and changes no settings of the pool. The caller keeps the blocks of the root
    /// until [`close`](Dataset::close).
    pub fn open_at(&self, set: ObjectId, root: &BlockPtr) -> Result<Dataset, DatasetError> {
        let set = self.object_set.open_at(ObjsetId(set.0), root)?;
        let zap_policy = ZapPolicy::of(&set);
        let master = ObjectZap::new(&zap_policy, set.hold(MASTER)?);
        let fixed = fixed_properties(&master)?;
        let master = Arc::new(Mutex::new(master));
        let quotas = Quotas::none(&set, &master, &zap_policy);
        let (own_set, own_branch) = (Arc::clone(&set), Arc::clone(&self.branch));
        let obeyed = Obeyed::new(own_set, own_branch, Arc::clone(&zap_policy), fixed);
        obeyed.follow_kernel_cached(&self.obeyed);
        let naming = obeyed.naming()?;
        let props_zap = ObjectZap::new(&ZapPolicy::of(&self.mos), Arc::clone(self.props_zap.lock().object()));
        Ok(Dataset {
            zap_policy,
            object_set: set,
            mos: Arc::clone(&self.mos),
            branch: Arc::clone(&self.branch),
            props_zap: Mutex::new(props_zap),
            obeyed: Arc::new(obeyed),
            naming,
            recorder: Arc::clone(&self.recorder),
            open_zaps: Mutex::default(),
            master,
            quotas,
            owner_walk: Mutex::default(),
        })
    }

    /// Whether this is a snapshot, which is read-only.
    pub fn is_snapshot(&self) -> bool {
        self.object_set.is_read_only()
    }

    /// The blocks of this snapshot are about to be freed: every later use of it fails.
    pub fn close(&self) {
        self.object_set.close();
    }

    fn check_not_snapshot(&self) -> Result<(), DatasetError> {
        if self.is_snapshot() { Err(ObjectError::from(PoolError::ReadOnly).into()) } else { Ok(()) }
    }

    /// Opens a data set for reading, outside of the tree. Its properties are not applied, because another handle may be in
    /// use.
    pub(crate) fn open_to_check(objects: &Arc<ObjectSets>, node: &Node) -> Result<Dataset, DatasetError> {
        let dataset = Dataset::open_with(objects, node, &Branch::root(node.load_props()?))?;
        dataset.obeyed.apply_kernel_cached()?;
        Ok(dataset)
    }

    fn open_with(
        objects: &Arc<ObjectSets>,
        node: &Node,
        branch: &Arc<Branch>,
    ) -> Result<Dataset, DatasetError> {
        let set = open_set(objects, node)?;
        let props_zap = mos_zap::zap(objects.mos(), node.props)?;
        let zap_policy = ZapPolicy::of(&set);
        let master = ObjectZap::new(&zap_policy, set.hold(MASTER)?);
        let fixed = fixed_properties(&master)?;
        let master = Arc::new(Mutex::new(master));
        let quotas = Quotas::load(&set, &master, &zap_policy)?;
        let (own_set, own_branch) = (Arc::clone(&set), Arc::clone(branch));
        let obeyed = Arc::new(Obeyed::new(own_set, own_branch, Arc::clone(&zap_policy), fixed));
        let naming = obeyed.naming()?;
        Ok(Dataset {
            zap_policy,
            object_set: set,
            mos: Arc::clone(objects.mos()),
            branch: Arc::clone(branch),
            props_zap: Mutex::new(props_zap),
            obeyed,
            naming,
            recorder: Arc::new(ErrorRecorder::open(objects.mos())),
            open_zaps: Mutex::default(),
            master,
            quotas,
            owner_walk: Mutex::default(),
        })
    }

    /// The object set of this data set.
    pub fn object_set(&self) -> &Arc<ObjectSet> {
        &self.object_set
    }

    /// The ZAP through which the layer above finds its objects, for readers.
    pub fn master(&self) -> Result<ObjectZap, DatasetError> {
        self.open_zap(MASTER)
    }

    /// The same, shared by all who change it while the data set is open. Its lock is taken last.
    pub fn shared_master(&self) -> &Arc<Mutex<ObjectZap>> {
        &self.master
    }

    /// Limits of users, groups and projects.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// The ZAP in an object. All changes of a ZAP must go through the same `ObjectZap`.
    pub fn open_zap(&self, id: ObjectId) -> Result<ObjectZap, DatasetError> {
        Ok(ObjectZap::new(&self.zap_policy, self.object_set.hold(id)?))
    }

    /// Growth limits of its ZAPs.
    pub fn zap_policy(&self) -> &Arc<ZapPolicy> {
        &self.zap_policy
    }

    /// Creates an object that will be a ZAP; it has no block before its first entry.
    pub fn new_zap(&self, tx: &Tx, kind: ObjectKind) -> Result<ObjectZap, DatasetError> {
        Ok(ObjectZap::create(&self.object_set, &self.zap_policy, tx, kind)?)
    }

    /// Its place in the tree of data sets.
    pub fn branch(&self) -> &Arc<Branch> {
        &self.branch
    }

    /// When reads update access times.
    pub fn access_time(&self) -> AccessTime {
        self.obeyed.access_time()
    }

    /// Place of new extended attributes.
    pub fn xattr_placement(&self) -> XattrPlacement {
        self.obeyed.xattr_placement()
    }

    /// Whether ACLs are obeyed and can be set.
    pub fn acl_type(&self) -> AclType {
        self.obeyed.acl_type()
    }

    /// Size of the dnodes of new files and directories.
    pub fn dnode_size(&self) -> DnodeSize {
        self.obeyed.dnode_size()
    }

    /// How a mount shows snapshots.
    pub fn snapdir(&self) -> SnapDir {
        self.obeyed.snapdir()
    }

    /// When changes become durable.
    pub fn sync_mode(&self) -> SyncMode {
        self.obeyed.sync_mode()
    }

    /// Days without a change after which idle time recompresses a file; `None`: off.
    pub fn recompress_days(&self) -> Option<u32> {
        self.obeyed.recompress_days()
    }

    /// Whether programs cannot change the data set: it is a snapshot, or its property `readonly` is on.
    pub fn is_read_only(&self) -> bool {
        self.is_snapshot() || self.obeyed.is_read_only()
    }

    /// Whether a change is admitted now. `writes_back`: the kernel writes back stores through a mapping. That is admitted
    /// for a minute after the data set became read-only.
    pub fn admits_change(&self, writes_back: bool) -> bool {
        !self.is_snapshot() && self.obeyed.admits_change(writes_back)
    }

    /// Admits write-backs for a while even if the data set is read-only. The kernel may still hold stores through mappings
    /// that a predecessor of this server admitted.
    pub fn expect_write_backs(&self) {
        self.obeyed.expect_write_backs();
    }

    pub(crate) fn check_writable(&self) -> Result<(), ObjectError> {
        if self.admits_change(false) { Ok(()) } else { Err(ObjectError::ReadOnly) }
    }

    /// Which names are valid, and which of them are equal.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// The value of a property, which may be a user property. `UnknownProperty`: there is none with this name.
    /// `PoolWide`: only the root data set has it. `NotSet`: a user property that is not set.
    pub fn get(&self, name: &str) -> Result<PropertyValue, DatasetError> {
        let key = Key::find(name)?;
        self.check_own(&key)?;
        let found = self.obeyed.effective(&key);
        let Effective { value, source } =
            found.ok_or_else(|| DatasetError::NotSet { name: name.to_string() })?;
        Ok(PropertyValue { name: key.name().to_string(), value: key.print(&value)?, source })
    }

    /// Refuses a property of the whole pool on a data set below the root.
    fn check_own(&self, key: &Key) -> Result<(), DatasetError> {
        match key.property() {
            Some(property) if property.scope == Scope::Pool && !self.branch.is_root() => {
                Err(DatasetError::PoolWide { name: property.name })
            }
            _ => Ok(()),
        }
    }

    /// Whether the current value takes effect only when the data set is opened again; see [`Dataset::set`].
    pub fn is_pending(&self, name: &str) -> bool {
        self.obeyed.is_pending(name)
    }

    /// All properties of the data set with their values. User properties come last.
    pub fn list(&self) -> Result<Vec<PropertyValue>, DatasetError> {
        let is_own = |property: &&Property| property.scope != Scope::Pool || self.branch.is_root();
        let known = PROPERTIES.iter().filter(is_own).map(|property| property.name.to_string());
        known.chain(self.branch.user_names()).map(|name| self.get(&name)).collect()
    }

    /// Stores a value, and applies it here and to all open data sets below that inherit it. Existing data stays as it is.
    /// A change of whether extended attributes and ACLs exist at all (`xattr=off`, `acltype`) takes effect when the data set
    /// is opened again, because the kernel caches it.
    pub fn set(&self, name: &str, value: &str) -> Result<(), DatasetError> {
        let (key, value) = self.parse_change(name, value)?;
        self.change(&key, Some((value, false)), false)
    }

    /// The same for a value that was received with the data set. It applies while none is set.
    pub fn set_received(&self, name: &str, value: &str) -> Result<(), DatasetError> {
        let (key, value) = self.parse_change(name, value)?;
        self.change(&key, Some((value, true)), false)
    }

    /// Applies a value until the property is set or this process closes the data set. The value is not stored, and no data
    /// set inherits it. Call this before the kernel learns of the data set.
    ///
    /// Of a snapshot, only properties that the kernel caches can be overridden. The others say how data is written.
    pub fn set_temporary(&self, name: &str, value: &str) -> Result<(), DatasetError> {
        let property = Property::find(name)?;
        if ![attributes::ACL_TYPE, attributes::XATTR].contains(&property.name) {
            self.check_not_snapshot()?;
        }
        let (_, value) = self.parse_change(name, value)?;
        self.obeyed.set_temporary(property, Some(value));
        if self.is_snapshot() { self.obeyed.apply_kernel_cached() } else { self.obeyed.apply_first() }
    }

    /// Removes the value that is set here, and the one that was received. Then the inherited value or the default applies.
    pub fn reset(&self, name: &str) -> Result<(), DatasetError> {
        self.remove(name, true)
    }

    /// Removes the value that is set here. One that was received applies again.
    pub fn reset_to_received(&self, name: &str) -> Result<(), DatasetError> {
        self.remove(name, false)
    }

    fn remove(&self, name: &str, received: bool) -> Result<(), DatasetError> {
        let key = Key::find(name)?;
        self.check_changeable(&key)?;
        self.change(&key, None, received)
    }

    fn parse_change(&self, name: &str, value: &str) -> Result<(Key, Stored), DatasetError> {
        let key = Key::find(name)?;
        self.check_changeable(&key)?;
        let value = key.parse(value)?;
        ensure_supported(&self.mos, &key, &value)?;
        Ok((key, value))
    }

    fn check_changeable(&self, key: &Key) -> Result<(), DatasetError> {
        self.check_own(key)?;
        key.property().map_or(Ok(()), Property::check_changeable)
    }

    /// Stores a value and whether it was received. `None`: removes the stored value, and with `received` the received one too.
    fn change(&self, key: &Key, value: Option<(Stored, bool)>, received: bool) -> Result<(), DatasetError> {
        self.check_not_snapshot()?;
        let reservation = reservation_in(key);
        let _reserving = reservation.map(|_| self.branch.reserving());
        if let Some(name) = reservation {
            // What is in memory takes space too.
            self.mos.commit()?;
            let props = self.branch.props();
            let then = match &value {
                Some((value, _)) => value.number(),
                None if received => None,
                None => props.received_number(name),
            };
            let now = Property::find(name).map_or(0, |property| props.own_number(property));
            let most = self.branch.reservation_max(name == REF_RESERVATION, space_of_pool(self.mos.pool()));
            check_reservation(name, then.unwrap_or(0), most.max(now))?;
        }
        {
            let is_text = matches!(value, Some((Stored::Text(_), _)));
            let tx = self.mos.begin(if is_text { COST } else { COST_SET })?;
            let mut zap = self.props_zap.lock();
            match &value {
                Some((value, is_received)) => props::store(&mut zap, &tx, key.name(), value, *is_received)?,
                None => props::unstore(&mut zap, &tx, key.name(), received)?,
            }
            self.branch.update(|props| match value {
                Some((value, true)) => props.set_received(key.name(), value),
                Some((value, false)) => props.set_local(key.name(), value),
                None => props.remove(key.name(), received),
            });
        }
        if key.name() == attributes::ACL_TYPE {
            // A replay of later changes must find it.
            self.mos.commit()?;
        }
        if let Some(property) = key.property() {
            self.obeyed.set_temporary(property, None);
        }
        self.branch.follow();
        if reservation.is_some() {
            // Operations of other data sets, which have not been counted before, become part of what is used.
            self.mos.commit()?;
        }
        self.obeyed.apply()
    }

    /// Stores what is new in the pool's error log in the open txg, durable with the next commit. Does nothing
    /// if nothing is new, or if the pool is read-only.
    pub fn record_errors(&self) -> Result<(), DatasetError> {
        self.recorder.record(RecordScope::All)
    }

    /// The same, to be called every few seconds. If only error counts changed, nothing is stored until one has
    /// doubled.
    pub fn record_new_errors(&self) -> Result<(), DatasetError> {
        self.recorder.record(RecordScope::New)
    }
}
