//! The root data set: creating and opening it, and its properties.

use crate::attributes::{self, AclType, DnodeSize, XattrPlacement};
use crate::directory::{POOL_DIRECTORY, ROOT_DATASET, ROOT_PROPS};
use crate::error::DatasetError;
use crate::error_log::{ErrorRecorder, RecordScope};
use crate::feature_counts;
use crate::free_policy::open_set;
use crate::naming::{self, Naming};
use crate::node::{self, Node};
use crate::owner_walk::OwnerWalk;
use crate::props::{self, AccessTime, PROPERTIES, Property, PropertyValue, Source};
use crate::quota::Quotas;
use crate::zap_handle::OpenZaps;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_codec::{ChecksumKind, CompressionPolicy};
use terrane_format::Feature;
use terrane_object::{DataPolicy, ObjectError, ObjectKind, ObjectSet, ObjectSets};
use terrane_pool::Tx;
use terrane_space::policy::{CollectionOptions, Hint};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

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
    props: Mutex<Props>,
    zap_policy: Arc<ZapPolicy>,
    cached: CachedProps,
    naming: Naming,
    recorder: ErrorRecorder,
    /// ZAPs for which programs have handles.
    pub(crate) open_zaps: Mutex<Weak<OpenZaps>>,
    /// The master ZAP, for all who change it.
    master: Arc<Mutex<ObjectZap>>,
    quotas: Quotas,
    pub(crate) owner_walk: Mutex<OwnerWalk>,
}

/// Properties read with every request, as stored numbers; reading them takes no lock.
#[derive(Default)]
struct CachedProps {
    access_time: AtomicU64,
    xattr_placement: AtomicU64,
    acl_type: AtomicU64,
    dnode_size: AtomicU64,
    recompress: AtomicU64,
}

struct Props {
    zap: ObjectZap,
    local: BTreeMap<&'static str, u64>,
    /// Override the stored values; never stored.
    temporary: BTreeMap<&'static str, u64>,
}

impl Props {
    fn number(&self, property: &Property) -> u64 {
        let set = self.temporary.get(property.name).or_else(|| self.local.get(property.name));
        set.copied().unwrap_or(property.default)
    }

    fn number_of(&self, name: &str) -> Result<(u64, &'static Property), DatasetError> {
        let property = Property::find(name)?;
        Ok((self.number(property), property))
    }

    fn show(&self, property: &'static Property) -> Result<PropertyValue, DatasetError> {
        let source = match property.name {
            name if self.temporary.contains_key(name) => Source::Temporary,
            name if self.local.contains_key(name) && property.fixed => Source::Creation,
            name if self.local.contains_key(name) => Source::Local,
            _ => Source::Default,
        };
        Ok(PropertyValue { name: property.name, value: property.print(self.number(property))?, source })
    }

    fn naming(&self) -> Result<Naming, DatasetError> {
        let number = |name| self.number_of(name).map(|(number, _)| number);
        let (form, row) = self.number_of(naming::NORMALIZATION)?;
        Naming::from_numbers(number(naming::UTF8_ONLY)?, form, number(naming::CASE)?)
            .ok_or_else(|| row.invalid_value(form))
    }

    fn collection(&self) -> Result<CollectionOptions, DatasetError> {
        let (number, row) = self.number_of(props::GC_POLICY)?;
        let victims = props::victim_policy(number).ok_or_else(|| row.invalid_value(number))?;
        Ok(CollectionOptions {
            victims,
            idle: props::idle_window(self.number_of(props::GC_IDLE)?.0),
            open_zones_max: props::open_zones(self.number_of(props::OPEN_ZONES_MAX)?.0),
        })
    }

    fn policy(&self) -> Result<DataPolicy, DatasetError> {
        let (compression, row) = self.number_of(props::COMPRESSION)?;
        let compression =
            CompressionPolicy::from_property(compression).map_err(|_| row.invalid_value(compression))?;
        let (checksum, row) = self.number_of("checksum")?;
        let checksum = u8::try_from(checksum)
            .ok()
            .and_then(ChecksumKind::from_id)
            .ok_or_else(|| row.invalid_value(checksum))?;
        let (record_size, row) = self.number_of(props::RECORD_SIZE)?;
        row.print(record_size)?;
        let record_size = u32::try_from(record_size).map_err(|_| row.invalid_value(record_size))?;
        let (hint, row) = self.number_of(props::WRITE_HINT)?;
        let write_hint = Hint::from_id(hint).ok_or_else(|| row.invalid_value(hint))?;
        Ok(DataPolicy { compression, checksum, record_size, write_hint })
    }
}

/// Checks that the pool supports a value, and enables the feature that it needs. So older versions refuse the
/// pool before anything is written that they cannot read.
pub(crate) fn ensure_supported(
    set: &ObjectSet,
    property: &Property,
    number: u64,
) -> Result<(), DatasetError> {
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

/// Creates object 1 of a new data set, with the properties that never change.
pub(crate) fn create_master(
    set: &Arc<ObjectSet>,
    tx: &Tx,
    fixed: &[(&'static Property, u64)],
) -> Result<(), DatasetError> {
    let mut master = ObjectZap::create(set, &ZapPolicy::of(set), tx, ObjectKind::Master)?;
    for (property, number) in fixed {
        master.update_u64(tx, property.name.as_bytes(), *number)?;
    }
    match master.object().id() {
        MASTER => Ok(()),
        other => Err(DatasetError::first_object("master ZAP", other)),
    }
}

impl Dataset {
    /// Creates the root data set of a new pool, with these properties. Nothing is durable before the next
    /// commit.
    pub fn create_root(objects: &Arc<ObjectSets>, props: &[(&str, &str)]) -> Result<Dataset, DatasetError> {
        let mut wanted = Vec::with_capacity(props.len());
        for (name, value) in props {
            let property = Property::find(name)?;
            wanted.push((property, property.parse(value)?));
        }
        props::complete_naming(&mut wanted)?;
        for (property, number) in &wanted {
            ensure_supported(objects.mos(), property, *number)?;
        }
        let (fixed, wanted): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(property, _)| property.fixed);
        let fixed: Vec<_> =
            fixed.into_iter().filter(|(property, number)| *number != property.default).collect();
        if !fixed.is_empty() {
            objects.pool().enable(&[Feature::Naming]).map_err(ObjectError::from)?;
        }
        let mos = Arc::clone(objects.mos());
        let meta = ZapPolicy::of(&mos);
        {
            let tx = mos.begin(COST)?;
            let directory = ObjectZap::create(&mos, &meta, &tx, ObjectKind::Zap)?;
            if directory.object().id() != POOL_DIRECTORY {
                return Err(DatasetError::first_object("pool directory", directory.object().id()));
            }
            let id = objects.create_objset(&tx)?;
            let mut props = ObjectZap::create(&mos, &meta, &tx, ObjectKind::Zap)?;
            for (property, number) in wanted {
                props.update_u64(&tx, property.name.as_bytes(), number)?;
            }
            let mut directory = directory;
            directory.add_u64(&tx, ROOT_DATASET, id.0)?;
            directory.add_u64(&tx, ROOT_PROPS, props.object().id().0)?;
            let set = open_set(objects, &Node::root(&mos)?)?;
            create_master(&set, &tx, &fixed)?;
        }
        Dataset::open_root(objects)
    }

    /// Opens the root data set through the pool directory.
    pub fn open_root(objects: &Arc<ObjectSets>) -> Result<Dataset, DatasetError> {
        Dataset::open(objects, &Node::root(objects.mos())?)
    }

    /// Opens the data set of a node.
    pub(crate) fn open(objects: &Arc<ObjectSets>, node: &Node) -> Result<Dataset, DatasetError> {
        let mos = Arc::clone(objects.mos());
        let set = open_set(objects, node)?;
        let zap = node::zap(&mos, node.props)?;
        let mut local = BTreeMap::new();
        for property in PROPERTIES.iter().filter(|property| !property.fixed) {
            let Some(number) = zap.lookup_u64(property.name.as_bytes())? else { continue };
            match property.print(number) {
                Ok(_) => drop(local.insert(property.name, number)),
                // A newer version wrote it. Data stays readable: block pointers describe their own form.
                Err(error) => log::warn!("property ignored, using its default: {error}"),
            }
        }
        let zap_policy = ZapPolicy::of(&set);
        let master = ObjectZap::new(&zap_policy, set.hold(MASTER)?);
        for property in PROPERTIES.iter().filter(|property| property.fixed) {
            if let Some(number) = master.lookup_u64(property.name.as_bytes())? {
                // Here a default cannot replace the value of a newer version: no name would be found.
                property.print(number)?;
                local.insert(property.name, number);
            }
        }
        let master = Arc::new(Mutex::new(master));
        let quotas = Quotas::load(&set, &master, &zap_policy)?;
        let props = Props { zap, local, temporary: BTreeMap::new() };
        let naming = props.naming()?;
        let dataset = Dataset {
            zap_policy,
            object_set: set,
            mos,
            props: Mutex::new(props),
            cached: CachedProps::default(),
            naming,
            recorder: ErrorRecorder::open(objects.mos()),
            open_zaps: Mutex::default(),
            master,
            quotas,
            owner_walk: Mutex::default(),
        };
        feature_counts::open(objects.mos());
        dataset.apply(&dataset.props.lock())?;
        dataset.apply_kernel_cached(&dataset.props.lock())?;
        Ok(dataset)
    }

    /// Applies the properties that hold from the moment the kernel learns of them, for as long as it may cache
    /// them.
    fn apply_kernel_cached(&self, props: &Props) -> Result<(), DatasetError> {
        self.cached.acl_type.store(props.number_of(attributes::ACL_TYPE)?.0, Ordering::Relaxed);
        self.cached.xattr_placement.store(props.number_of(attributes::XATTR)?.0, Ordering::Relaxed);
        Ok(())
    }

    fn apply(&self, props: &Props) -> Result<(), DatasetError> {
        self.object_set.set_policy(props.policy()?);
        self.object_set.pool().set_collection(props.collection()?);
        let (mode, row) = props.number_of(props::FAIL_MODE)?;
        self.object_set.pool().set_fail_mode(props::fail_mode(mode).ok_or_else(|| row.invalid_value(mode))?);
        let (bytes, row) = props.number_of("zapsize")?;
        self.zap_policy.set_slots_bytes_max(u32::try_from(bytes).map_err(|_| row.invalid_value(bytes))?);
        let number = |name| props.number_of(name).map(|(number, _)| number);
        self.cached.access_time.store(number("atime")?, Ordering::Relaxed);
        self.cached.dnode_size.store(number(attributes::DNODE_SIZE)?, Ordering::Relaxed);
        self.cached.recompress.store(number(props::RECOMPRESS)?, Ordering::Relaxed);
        let placement = number(attributes::XATTR)?;
        // Changes the place only, not whether they are enabled.
        if [placement, self.cached.xattr_placement.load(Ordering::Relaxed)].iter().all(|number| *number != 0)
        {
            self.cached.xattr_placement.store(placement, Ordering::Relaxed);
        }
        Ok(())
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

    /// When reads update access times.
    pub fn access_time(&self) -> AccessTime {
        AccessTime::from_stored(self.cached.access_time.load(Ordering::Relaxed))
    }

    /// Place of new extended attributes.
    pub fn xattr_placement(&self) -> XattrPlacement {
        XattrPlacement::from_stored(self.cached.xattr_placement.load(Ordering::Relaxed))
    }

    /// Whether ACLs are obeyed and can be set.
    pub fn acl_type(&self) -> AclType {
        AclType::from_stored(self.cached.acl_type.load(Ordering::Relaxed))
    }

    /// Size of the dnodes of new files and directories.
    pub fn dnode_size(&self) -> DnodeSize {
        DnodeSize::from_stored(self.cached.dnode_size.load(Ordering::Relaxed))
    }

    /// Days without a change after which idle time recompresses a file; `None`: off.
    pub fn recompress_days(&self) -> Option<u32> {
        let days = self.cached.recompress.load(Ordering::Relaxed).checked_sub(1)?;
        u32::try_from(days).ok()
    }

    /// Which names are valid, and which of them are equal.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// The value of a property. `UnknownProperty`: there is none with this name.
    pub fn get(&self, name: &str) -> Result<PropertyValue, DatasetError> {
        self.props.lock().show(Property::find(name)?)
    }

    /// Whether its value takes effect at the next [`Dataset::open_root`]; see [`Dataset::set`].
    pub fn is_pending(&self, name: &str) -> bool {
        let applied = match name {
            attributes::ACL_TYPE => &self.cached.acl_type,
            attributes::XATTR => &self.cached.xattr_placement,
            _ => return false,
        };
        let number = self.props.lock().number_of(name);
        number.is_ok_and(|(number, _)| number != applied.load(Ordering::Relaxed))
    }

    /// Every property with its value.
    pub fn list(&self) -> Result<Vec<PropertyValue>, DatasetError> {
        let props = self.props.lock();
        PROPERTIES.iter().map(|property| props.show(property)).collect()
    }

    /// Stores a value and obeys it from now on; existing data stays as it is. Whether extended attributes and
    /// ACLs exist at all (`xattr=off`, `acltype`) waits for the next [`Dataset::open_root`], since the kernel
    /// caches it.
    pub fn set(&self, name: &str, value: &str) -> Result<(), DatasetError> {
        let property = Property::find(name)?;
        property.check_changeable()?;
        let number = property.parse(value)?;
        ensure_supported(&self.mos, property, number)?;
        let tx = self.mos.begin(COST_SET)?;
        let mut props = self.props.lock();
        props.zap.update_u64(&tx, property.name.as_bytes(), number)?;
        props.local.insert(property.name, number);
        props.temporary.remove(property.name);
        self.apply(&props)
    }

    /// Obeys a value from now on, until it is set or this process closes the data set. Nothing is stored. To be
    /// called before the kernel learns of the data set.
    pub fn set_temporary(&self, name: &str, value: &str) -> Result<(), DatasetError> {
        let property = Property::find(name)?;
        property.check_changeable()?;
        let number = property.parse(value)?;
        ensure_supported(&self.mos, property, number)?;
        let mut props = self.props.lock();
        props.temporary.insert(property.name, number);
        self.apply_kernel_cached(&props)?;
        self.apply(&props)
    }

    /// Resets a property to its default.
    pub fn reset(&self, name: &str) -> Result<(), DatasetError> {
        let property = Property::find(name)?;
        property.check_changeable()?;
        let tx = self.mos.begin(COST_SET)?;
        let mut props = self.props.lock();
        props.zap.remove(&tx, property.name.as_bytes())?;
        props.local.remove(property.name);
        props.temporary.remove(property.name);
        self.apply(&props)
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
