//! The properties that an open data set obeys.
//!
//! Values that requests need are kept as numbers, which are read without a lock. Whether extended attributes and
//! ACLs exist at all is negotiated with the kernel at mount. So such a change takes effect when the data set is opened
//! again.

use crate::attributes::{self, AclType, DnodeSize, XattrPlacement};
use crate::branch::{Branch, Follower};
use crate::error::DatasetError;
use crate::naming::{self, Naming};
use crate::props::{self, AccessTime, Effective, Key, Property, SnapDir, Source, Stored, SyncMode};
use crate::zap_policy::ZapPolicy;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use terrane_codec::{ChecksumKind, CompressionPolicy};
use terrane_object::{DataPolicy, ObjectSet};
use terrane_space::policy::{CollectionOptions, Hint};

/// For this long after a data set became read-only, write-backs are admitted. By then the kernel has written back all
/// that programs stored through mappings before.
const WRITE_BACK_NS: u64 = 60_000_000_000;
/// The data set is not read-only.
const WRITABLE: u64 = u64::MAX;

/// Properties read with every request, as stored numbers; reading them takes no lock.
struct Cached {
    access_time: AtomicU64,
    xattr_placement: AtomicU64,
    acl_type: AtomicU64,
    dnode_size: AtomicU64,
    recompress: AtomicU64,
    snapdir: AtomicU64,
    sync: AtomicU64,
    /// When write-backs are no longer admitted, on the clock of the pool; or [`WRITABLE`].
    read_only_from_ns: AtomicU64,
}

/// The properties of an open data set.
pub(crate) struct Obeyed {
    set: Arc<ObjectSet>,
    branch: Arc<Branch>,
    zap_policy: Arc<ZapPolicy>,
    /// Set when the data set was created.
    fixed: BTreeMap<&'static str, u64>,
    /// Override the stored values; never stored, and not inherited.
    temporary: Mutex<BTreeMap<&'static str, Stored>>,
    cached: Cached,
    /// Held while values are applied, so that the newest are applied last.
    applying: Mutex<()>,
}

impl Obeyed {
    pub fn new(
        set: Arc<ObjectSet>,
        branch: Arc<Branch>,
        zap_policy: Arc<ZapPolicy>,
        fixed: BTreeMap<&'static str, u64>,
    ) -> Obeyed {
        let cached = Cached {
            access_time: AtomicU64::default(),
            xattr_placement: AtomicU64::default(),
            acl_type: AtomicU64::default(),
            dnode_size: AtomicU64::default(),
            recompress: AtomicU64::default(),
            snapdir: AtomicU64::default(),
            sync: AtomicU64::default(),
            read_only_from_ns: AtomicU64::new(WRITABLE),
        };
        let (temporary, applying) = (Mutex::default(), Mutex::default());
        Obeyed { set, branch, zap_policy, fixed, temporary, cached, applying }
    }

    /// Takes over the values that the kernel caches from the live data set of this snapshot. Access times and recompression
    /// stay off.
    pub fn follow_kernel_cached(&self, live: &Obeyed) {
        for (to, from) in [
            (&self.cached.xattr_placement, &live.cached.xattr_placement),
            (&self.cached.acl_type, &live.cached.acl_type),
            (&self.cached.dnode_size, &live.cached.dnode_size),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The value that applies, and its source. `None`: a user property that is not set.
    pub fn effective(&self, key: &Key) -> Option<Effective> {
        let temporary = self.temporary.lock().get(key.name()).cloned();
        if let Some(value) = temporary {
            return Some(Effective { value, source: Source::Temporary });
        }
        match self.fixed.get(key.name()) {
            Some(number) => Some(Effective { value: Stored::Number(*number), source: Source::Creation }),
            None => self.branch.effective(key),
        }
    }

    fn number_of(&self, name: &str) -> Result<(u64, &'static Property), DatasetError> {
        let property = Property::find(name)?;
        let found = self.effective(&Key::Known(property)).and_then(|found| found.value.number());
        Ok((found.unwrap_or(property.default), property))
    }

    /// The number of a property of the table that applies.
    pub fn number(&self, name: &str) -> Result<u64, DatasetError> {
        self.number_of(name).map(|(number, _)| number)
    }

    pub fn naming(&self) -> Result<Naming, DatasetError> {
        let (form, row) = self.number_of(naming::NORMALIZATION)?;
        Naming::from_numbers(self.number(naming::UTF8_ONLY)?, form, self.number(naming::CASE)?)
            .ok_or_else(|| row.invalid_value(form))
    }

    fn collection(&self) -> Result<CollectionOptions, DatasetError> {
        let (number, row) = self.number_of(props::GC_POLICY)?;
        let victims = props::victim_policy(number).ok_or_else(|| row.invalid_value(number))?;
        Ok(CollectionOptions {
            victims,
            idle: props::idle_window(self.number(props::GC_IDLE)?),
            open_zones_max: props::open_zones(self.number(props::OPEN_ZONES_MAX)?),
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

    /// Applies the values as they are now, when the data set is opened.
    pub fn apply_first(&self) -> Result<(), DatasetError> {
        self.apply()?;
        self.apply_kernel_cached()?;
        if self.cached.read_only_from_ns.load(Ordering::Relaxed) != WRITABLE {
            self.cached.read_only_from_ns.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Applies the values as they are now.
    pub fn apply(&self) -> Result<(), DatasetError> {
        let _applying = self.applying.lock();
        self.set.set_policy(self.policy()?);
        if self.branch.is_root() {
            let pool = self.set.pool();
            pool.set_collection(self.collection()?);
            let (mode, row) = self.number_of(props::FAIL_MODE)?;
            pool.set_request_budget(self.number(props::REQUEST_BUDGET)?);
            pool.set_retention(Duration::from_secs(self.number(props::RETAIN)?));
            pool.set_fail_mode(props::fail_mode(mode).ok_or_else(|| row.invalid_value(mode))?);
        }
        let (bytes, row) = self.number_of("zapsize")?;
        self.zap_policy.set_slots_bytes_max(u32::try_from(bytes).map_err(|_| row.invalid_value(bytes))?);
        self.cached.access_time.store(self.number("atime")?, Ordering::Relaxed);
        self.cached.dnode_size.store(self.number(attributes::DNODE_SIZE)?, Ordering::Relaxed);
        self.cached.recompress.store(self.number(props::RECOMPRESS)?, Ordering::Relaxed);
        self.cached.snapdir.store(self.number(props::SNAPDIR)?, Ordering::Relaxed);
        self.cached.sync.store(self.number(props::SYNC)?, Ordering::Relaxed);
        self.apply_read_only(self.number(props::READ_ONLY)? != 0);
        let placement = self.number(attributes::XATTR)?;
        // Changes only where attributes are stored, not whether they are enabled.
        if [placement, self.cached.xattr_placement.load(Ordering::Relaxed)].iter().all(|number| *number != 0)
        {
            self.cached.xattr_placement.store(placement, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Admits write-backs again for a while, if the data set is read-only.
    pub fn expect_write_backs(&self) {
        let _applying = self.applying.lock();
        if self.is_read_only() {
            self.cached.read_only_from_ns.store(self.write_back_end_ns(), Ordering::Relaxed);
        }
    }

    fn write_back_end_ns(&self) -> u64 {
        self.set.pool().env().monotonic_ns().saturating_add(WRITE_BACK_NS).min(WRITABLE - 1)
    }

    fn apply_read_only(&self, read_only: bool) {
        let from = &self.cached.read_only_from_ns;
        match (read_only, from.load(Ordering::Relaxed)) {
            (false, _) => from.store(WRITABLE, Ordering::Relaxed),
            (true, WRITABLE) => from.store(self.write_back_end_ns(), Ordering::Relaxed),
            (true, _) => {}
        }
    }

    /// Applies the properties that hold from the moment the kernel learns of them, for as long as it may cache
    /// them.
    pub fn apply_kernel_cached(&self) -> Result<(), DatasetError> {
        self.cached.acl_type.store(self.number(attributes::ACL_TYPE)?, Ordering::Relaxed);
        self.cached.xattr_placement.store(self.number(attributes::XATTR)?, Ordering::Relaxed);
        Ok(())
    }

    /// Overrides a value from now on; `None` ends that.
    pub fn set_temporary(&self, property: &'static Property, value: Option<Stored>) {
        let mut temporary = self.temporary.lock();
        match value {
            Some(value) => temporary.insert(property.name, value),
            None => temporary.remove(property.name),
        };
    }

    /// Whether a value waits until the data set is opened again.
    pub fn is_pending(&self, name: &str) -> bool {
        let applied = match name {
            attributes::ACL_TYPE => &self.cached.acl_type,
            attributes::XATTR => &self.cached.xattr_placement,
            _ => return false,
        };
        self.number(name).is_ok_and(|number| number != applied.load(Ordering::Relaxed))
    }

    pub fn access_time(&self) -> AccessTime {
        AccessTime::from_stored(self.cached.access_time.load(Ordering::Relaxed))
    }

    pub fn xattr_placement(&self) -> XattrPlacement {
        XattrPlacement::from_stored(self.cached.xattr_placement.load(Ordering::Relaxed))
    }

    pub fn acl_type(&self) -> AclType {
        AclType::from_stored(self.cached.acl_type.load(Ordering::Relaxed))
    }

    pub fn dnode_size(&self) -> DnodeSize {
        DnodeSize::from_stored(self.cached.dnode_size.load(Ordering::Relaxed))
    }

    pub fn snapdir(&self) -> SnapDir {
        SnapDir::from_stored(self.cached.snapdir.load(Ordering::Relaxed))
    }

    pub fn sync_mode(&self) -> SyncMode {
        SyncMode::from_stored(self.cached.sync.load(Ordering::Relaxed))
    }

    pub fn recompress_days(&self) -> Option<u32> {
        let days = self.cached.recompress.load(Ordering::Relaxed).checked_sub(1)?;
        u32::try_from(days).ok()
    }

    pub fn is_read_only(&self) -> bool {
        self.cached.read_only_from_ns.load(Ordering::Relaxed) != WRITABLE
    }

    /// Whether a change is admitted now: by a program, or, with `writes_back`, by a write-back of the kernel.
    pub fn admits_change(&self, writes_back: bool) -> bool {
        match self.cached.read_only_from_ns.load(Ordering::Relaxed) {
            WRITABLE => true,
            from_ns => writes_back && self.set.pool().env().monotonic_ns() < from_ns,
        }
    }
}

impl Follower for Obeyed {
    fn follow(&self) {
        if let Err(error) = self.apply() {
            log::warn!("data set {:?}: properties not applied: {error}", self.branch.path());
        }
    }
}
