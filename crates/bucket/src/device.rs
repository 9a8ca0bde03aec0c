//! The device: zones whose content lies in objects.
//!
//! A write is kept in memory until a part is full, or until a flush. A flush puts all that was written, and waits.
//! If an anchor zone was written, or data lies in a filling that the root does not name, it then replaces the root.
//! So a pool's commit ends with a compare-and-swap, and all rules of the pool hold as on any other device.
//!
//! Invariants:
//! * The root names only fillings, and of them only parts, that the store has.
//! * No object is overwritten but the root. None that a root names is deleted before another root is in its place.
//! * A process that finds another's root in place of its own never flushes again.

mod commit;
mod reading;

use crate::ahead::Ahead;
use crate::dir::random;
use crate::filling::{Buffers, End, Filling, FillingId};
use crate::requests::{Requests, Workers};
use crate::root::{
    ANCHOR_BYTES, ANCHORS, Garbage, Geometry, Holder, ROOT, ROOT_BYTES_MAX, Root, TABLE_BYTES_MAX, TableId,
    ZoneEntry, Zones, parse_table,
};
use crate::store::{Store, StoreError, Version};
use crate::tally::Tally;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use terrane_device::{
    Device, DeviceError, DeviceInfo, DeviceKind, GivenUp, Identity, OpenMode, RequestCounts, ZoneReport,
    ZoneRules, ZoneState, wall_ns,
};
use terrane_wire::ZoneIdx;

/// An anchor that has so many bytes takes no more uberblocks: all of it is put with each root.
const ANCHOR_BYTES_FULL: u64 = 96 << 10;
/// Zones that may differ from the table before a new one is made; or a quarter of all that have a filling.
const CHANGED_MAX: usize = 256;
/// Zones of which each may have a part in memory that is not full yet.
const OPEN_ZONES: usize = 16;
/// Least size of a full part, in bytes.
const PART_BYTES_MIN: usize = 1 << 20;
/// Parts that a reader in order may soon reach, beside its own.
const PARTS_AHEAD: usize = 8;
/// What a search for objects that nothing names takes from the budget, beside one for each process whose objects are there.
const SWEEP_REQUESTS: u64 = 2;
/// How often objects that nothing names are looked for, in seconds.
const SWEEP_SECONDS: u64 = 24 * 3600;
/// Threads that look for the ends of fillings.
const SETTLERS: usize = 16;

/// How a device treats its store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Largest object, in bytes.
    pub part_bytes: usize,
    /// Requests under way at a time. 0: the writing thread sends them.
    pub threads: usize,
    /// Objects that are under way, or wait for a thread.
    pub parts_max: usize,
    /// Before a request that failed is repeated for the first time. Later pauses are longer.
    pub pause: Duration,
    /// A write fails for good if the store did not take it for so long.
    pub write_patience: Duration,
    /// The same for a read, which can be repeated later.
    pub read_patience: Duration,
    /// Objects that no root names any more are kept for so long, until [`Device::set_retention`] sets another time.
    pub retention: Duration,
    /// What work in the background may send in an hour; 0: it is not bounded. `None`: until [`Device::set_request_budget`] says it,
    /// there is no such work.
    pub request_budget: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            part_bytes: 8 << 20,
            threads: 16,
            parts_max: 24,
            pause: Duration::from_millis(50),
            write_patience: Duration::from_secs(2 * 3600),
            read_patience: Duration::from_secs(120),
            retention: Duration::MAX,
            request_budget: None,
        }
    }
}

/// What the root in place says.
struct Committed {
    version: Version,
    number: u64,
    table: Option<TableId>,
    /// All zones with a filling.
    named: Zones,
    /// Those that differ from the table.
    differs: BTreeSet<ZoneIdx>,
    garbage: Garbage,
    /// When objects that nothing names were looked for, in seconds since 1970.
    swept: Option<u64>,
}

impl Committed {
    /// What the root names, also for deletion.
    fn known_ids(&self) -> BTreeSet<FillingId> {
        let named = self.named.values().map(|entry| entry.id).chain(self.table.map(|table| table.0));
        named.chain(self.garbage.keys().copied()).collect()
    }
}

struct AnchorZones {
    content: [Vec<u8>; ANCHORS as usize],
    is_changed: bool,
}

/// What is dropped when the device is given up. Later states of a device that is followed share it.
type Lock = Arc<Mutex<Option<Box<dyn Send>>>>;

/// Objects below a prefix of a store, used as zones.
pub struct BucketDevice {
    info: DeviceInfo,
    geometry: Geometry,
    mode: OpenMode,
    holder: Holder,
    options: Options,
    requests: Arc<Requests>,
    workers: Workers,
    ahead: Arc<Ahead>,
    rules: ZoneRules,
    /// Zones behind the anchors.
    fillings: Vec<RwLock<Option<Filling>>>,
    anchors: Mutex<AnchorZones>,
    /// Zones that were written or reset since the last flush.
    touched: Mutex<BTreeSet<ZoneIdx>>,
    /// Zones whose parts were handed over, and that the root does not name as they are.
    pending: Mutex<BTreeSet<ZoneIdx>>,
    /// Held while parts are handed over, so that a flush waits for those that another one has cut.
    cutting: RwLock<()>,
    /// Fillings of zones that were reset.
    dropped: Mutex<Vec<(ZoneIdx, FillingId)>>,
    next_number: AtomicU64,
    /// Objects that nothing named when they were found. The next commit makes them garbage.
    remains: Arc<Mutex<Vec<FillingId>>>,
    /// In seconds.
    retention: AtomicU64,
    /// Most bytes of a part.
    part_bytes: AtomicUsize,
    /// Memory of parts that were put, for the next ones.
    buffers: Arc<Buffers>,
    committed: Mutex<Committed>,
    /// Why no flush succeeds any more.
    failed: Mutex<Option<String>>,
    /// Held while ends of fillings are looked for.
    settling: Mutex<()>,
    is_unlocked: AtomicBool,
    /// What keeps other processes of this machine from opening it, and its identity here.
    lock: Lock,
    identity: Option<Identity>,
}

fn io_error(
    zone: Option<ZoneIdx>,
    offset: u64,
    op: &'static str,
    text: impl std::fmt::Display,
) -> DeviceError {
    DeviceError::Io { zone, offset, op, source: io::Error::other(text.to_string()) }
}

/// An error of a request.
fn request_error(zone: Option<ZoneIdx>, offset: u64, op: &'static str, error: &StoreError) -> DeviceError {
    match error {
        StoreError::GivenUp(text) => {
            let source = io::Error::other(GivenUp(text.clone()));
            DeviceError::Io { zone, offset, op, source }
        }
        error => io_error(zone, offset, op, error),
    }
}

fn refused(url: &str, expected: &str, found: impl std::fmt::Display, remedy: &'static str) -> DeviceError {
    DeviceError::Refused { name: url.to_owned(), expected: expected.into(), found: found.to_string(), remedy }
}

/// The time of day, in seconds since 1970.
fn seconds() -> u64 {
    wall_ns() / 1_000_000_000
}

fn this_process() -> Holder {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Holder { opener: random(), host, process: std::process::id() }
}

/// The root of the pool in a store; `None`: there is none.
///
/// # Errors
/// The store did not answer, or what it returned is no root.
fn read_root(store: &dyn Store) -> Result<Option<(Root, Version)>, DeviceError> {
    let found = store.get(ROOT, ROOT_BYTES_MAX).map_err(|error| io_error(None, 0, "opening", error))?;
    found
        .map(|(raw, version)| {
            let root = Root::parse(&raw, &format!("{}/{ROOT}", store.url())).map_err(|corrupt| {
                refused(store.url(), "a sound root", corrupt, "restore the object of that name from a copy")
            })?;
            Ok((root, version))
        })
        .transpose()
}

/// Refuses a root whose objects would be deleted while it names them. No such root is written.
fn refuse_shared(
    named: &Zones,
    garbage: &Garbage,
    table: Option<TableId>,
    url: &str,
) -> Result<(), DeviceError> {
    let mut seen: BTreeSet<FillingId> = garbage.keys().copied().collect();
    let all = named.values().map(|entry| entry.id).chain(table.map(|table| table.0));
    for id in all {
        if !seen.insert(id) {
            let remedy = "restore the object of that name from a copy";
            return Err(refused(
                url,
                "a root that names each object once",
                format_args!("{id} twice"),
                remedy,
            ));
        }
    }
    Ok(())
}

/// Deletes the objects of a pool that is not in use, its root last.
///
/// # Errors
/// The store failed; then some may be left.
pub fn erase(store: &dyn Store) -> Result<(), StoreError> {
    for prefix in ["z/", "table/"] {
        let found = store.list(prefix, "")?;
        store.delete(&found.into_iter().map(|found| found.key).collect::<Vec<_>>())?;
    }
    store.delete(&[ROOT.to_owned()])
}

impl BucketDevice {
    /// Makes a device in a store.
    ///
    /// # Errors
    /// `Refused` if there is a root; `Io` if the store does not answer.
    pub fn create(
        store: Arc<dyn Store>,
        geometry: Geometry,
        options: &Options,
    ) -> Result<BucketDevice, DeviceError> {
        let holder = this_process();
        let root = Root {
            geometry,
            holder: holder.clone(),
            number: 1,
            time_ns: wall_ns(),
            next_number: 1,
            table: None,
            changed: BTreeMap::new(),
            garbage: Garbage::new(),
            anchors: [Vec::new(), Vec::new()],
        };
        let version = match store.swap(ROOT, &root.encode(), None) {
            Ok(version) => version,
            Err(StoreError::Changed) => {
                let found = "objects of a pool";
                return Err(refused(store.url(), "no pool", found, "use another prefix"));
            }
            Err(error) => return Err(io_error(None, 0, "creating", error)),
        };
        let store = Arc::new(Tally::new(store));
        Self::with_root(store, (root, version), OpenMode::ReadWrite, holder, options)
    }

    /// Opens the device in a store. The first flush that replaces the root takes the pool over from its holder.
    ///
    /// # Errors
    /// `Refused` if there is none, or its root is damaged; `Io` if the store does not answer.
    pub fn open(
        store: Arc<dyn Store>,
        mode: OpenMode,
        options: &Options,
    ) -> Result<BucketDevice, DeviceError> {
        Self::open_counted(Arc::new(Tally::new(store)), mode, options)
    }

    fn open_counted(
        store: Arc<Tally>,
        mode: OpenMode,
        options: &Options,
    ) -> Result<BucketDevice, DeviceError> {
        let mut before = None;
        loop {
            let Some(root) = read_root(store.as_ref())? else {
                return Err(refused(store.url(), "a pool", "no root", "check the URL"));
            };
            let version = root.1.clone();
            match Self::with_root(Arc::clone(&store), root, mode, this_process(), options) {
                // Another machine may have replaced table and root meanwhile.
                Err(DeviceError::Refused { .. }) if before.as_ref() != Some(&version) => {
                    before = Some(version)
                }
                outcome => return outcome,
            }
        }
    }

    fn with_root(
        store: Arc<Tally>,
        (root, version): (Root, Version),
        mode: OpenMode,
        holder: Holder,
        options: &Options,
    ) -> Result<BucketDevice, DeviceError> {
        let requests =
            Arc::new(Requests::new(store, options.pause, (options.write_patience, options.read_patience)));
        options.request_budget.iter().for_each(|per_hour| requests.set_budget(*per_hour));
        let (geometry, url) = (root.geometry, requests.url().to_owned());
        let mut named = match root.table {
            Some(table) => {
                let key = table.key();
                let found = requests
                    .get(&key, TABLE_BYTES_MAX)
                    .map_err(|error| io_error(None, 0, "opening", error))?;
                let lost = || {
                    refused(&url, "the table that the root names", "none", "restore the object from a copy")
                };
                let (raw, _) = found.ok_or_else(lost)?;
                parse_table(&raw, &geometry, &format!("{url}/{key}")).map_err(|corrupt| {
                    refused(&url, "a sound table", corrupt, "restore the object from a copy")
                })?
            }
            None => Zones::new(),
        };
        let differs = root.changed.keys().copied().collect();
        for (zone, entry) in root.changed {
            match entry {
                Some(entry) => drop(named.insert(zone, entry)),
                None => drop(named.remove(&zone)),
            }
        }
        refuse_shared(&named, &root.garbage, root.table, &url)?;
        let capacities = (0..geometry.zone_count).map(|_| geometry.zone_size);
        let rules = ZoneRules::new(geometry.write_unit, 0, capacities, ZoneState::Empty);
        for (zone, content) in
            (0..).map(ZoneIdx).zip(&root.anchors).filter(|(_, content)| !content.is_empty())
        {
            rules.force(zone, ZoneState::Open, content.len() as u64);
        }
        let is_own = root.holder.opener == holder.opener;
        let fillings = (ANCHORS..geometry.zone_count).map(|zone| {
            let zone = ZoneIdx(zone);
            let filling = named.get(&zone).map(ZoneEntry::filling);
            if filling.is_some() {
                rules.force(zone, ZoneState::Unknown, 0);
            }
            RwLock::new(filling)
        });
        Ok(BucketDevice {
            info: DeviceInfo {
                name: url,
                kind: DeviceKind::Bucket,
                write_unit: geometry.write_unit,
                zone_count: geometry.zone_count,
                zone_size: geometry.zone_size,
                max_open: 0,
                max_active: 0,
                hardware_pointers: false,
            },
            geometry,
            mode,
            next_number: AtomicU64::new(if is_own { root.next_number } else { 1 }),
            holder,
            remains: Arc::default(),
            retention: AtomicU64::new(options.retention.as_secs()),
            part_bytes: AtomicUsize::new(options.part_bytes.next_multiple_of(geometry.write_unit as usize)),
            options: *options,
            workers: Workers::start(Arc::clone(&requests), options.threads, options.parts_max),
            requests,
            buffers: Arc::default(),
            ahead: Arc::default(),
            fillings: fillings.collect(),
            rules,
            anchors: Mutex::new(AnchorZones { content: root.anchors, is_changed: false }),
            touched: Mutex::default(),
            pending: Mutex::default(),
            cutting: RwLock::default(),
            dropped: Mutex::default(),
            committed: Mutex::new(Committed {
                version,
                number: root.number,
                table: root.table,
                named,
                differs,
                garbage: root.garbage,
                swept: None,
            }),
            failed: Mutex::default(),
            settling: Mutex::default(),
            is_unlocked: AtomicBool::new(false),
            lock: Lock::default(),
            identity: None,
        })
    }

    /// Gives it an identity on this machine, and a lock that is dropped when the device is given up.
    #[must_use]
    pub fn locked_by(mut self, identity: Identity, lock: impl Send + 'static) -> BucketDevice {
        self.identity = Some(identity);
        *self.lock.lock() = Some(Box::new(lock));
        self
    }

    fn filling(&self, zone: ZoneIdx) -> Option<&RwLock<Option<Filling>>> {
        self.fillings.get(usize::try_from(zone.0.checked_sub(ANCHORS)?).ok()?)
    }

    fn check_writable(&self, zone: ZoneIdx, op: &'static str) -> Result<(), DeviceError> {
        let found = match self.mode {
            OpenMode::ReadWrite if !self.is_unlocked.load(Ordering::Relaxed) => return Ok(()),
            OpenMode::ReadWrite => "a device that was given up",
            OpenMode::ReadOnly => "a device opened read-only",
        };
        Err(DeviceError::Rule {
            zone,
            op,
            expected: "a device opened for writing".into(),
            found: found.into(),
        })
    }

    fn next_id(&self) -> FillingId {
        FillingId { opener: self.holder.opener, number: self.next_number.fetch_add(1, Ordering::Relaxed) }
    }

    /// Latches a failure: no flush succeeds any more.
    fn fail(&self, text: String) -> DeviceError {
        log::error!("{}: {text}", self.info.name);
        let mut failed = self.failed.lock();
        io_error(None, 0, "flush", failed.get_or_insert(text))
    }

    /// Looks for the ends of all fillings that another process wrote. After that, no process adds to them.
    fn settle(&self) -> Result<(), DeviceError> {
        let _one = self.settling.lock();
        let is_unknown = |slot: &RwLock<Option<Filling>>| {
            slot.read().as_ref().is_some_and(|filling| filling.end == End::Unknown)
        };
        let zones = (ANCHORS..).map(ZoneIdx).zip(&self.fillings);
        let slots: Vec<_> = zones.filter(|(_, slot)| is_unknown(slot)).collect();
        let next = AtomicU64::new(0);
        let error = Mutex::new(None);
        let work = || {
            loop {
                let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap_or(usize::MAX);
                let Some(slot) = slots.get(at) else { break };
                if let Err(failed) = self.settle_one(*slot) {
                    error.lock().get_or_insert(failed);
                }
            }
        };
        std::thread::scope(|scope| {
            // The caller does the rest if there are no threads.
            for _ in 1..slots.len().min(SETTLERS) {
                let spawned = std::thread::Builder::new().name("bucket".into()).spawn_scoped(scope, work);
                if spawned.is_err() {
                    break;
                }
            }
            work();
        });
        let error = error.into_inner();
        error.map_or(Ok(()), |error| Err(request_error(None, 0, "listing", &error)))
    }

    fn settle_one(&self, (zone, slot): (ZoneIdx, &RwLock<Option<Filling>>)) -> Result<(), StoreError> {
        let Some(mut filling) = slot.read().clone() else { return Ok(()) };
        let id = filling.id;
        let mut is_taken = false;
        let has_room = |filling: &Filling| filling.parts_end() < self.geometry.zone_size;
        let seal = |filling: &Filling| self.requests.put(&id.key(filling.parts_end()), &Bytes::new());
        // Mostly the root names all parts: then nothing has to be listed.
        let mut is_sealed = false;
        if self.mode == OpenMode::ReadWrite && has_room(&filling) {
            match seal(&filling) {
                Ok(()) => is_sealed = true,
                Err(StoreError::Exists) => is_taken = true,
                Err(error) => return Err(error),
            }
        }
        while !is_sealed {
            let listed = self.requests.list(&id.prefix(), "")?;
            let parts = listed.iter().filter_map(|found| {
                let (of, start) = FillingId::parse(&found.key)?;
                (of == id).then_some((start, found.len))
            });
            let before = filling.parts_end();
            let unit = u64::from(self.geometry.write_unit);
            is_sealed = filling.add_listed(parts.collect(), self.geometry.zone_size, unit);
            if is_sealed || self.mode == OpenMode::ReadOnly || !has_room(&filling) {
                break;
            }
            if is_taken && filling.parts_end() == before {
                let key = id.key(before);
                return Err(StoreError::Failed(format!(
                    "{key} is no part of a zone, and in its place: remove it"
                )));
            }
            match seal(&filling) {
                Ok(()) => is_sealed = true,
                // A part came meanwhile, or another opener's seal.
                Err(StoreError::Exists) => is_taken = true,
                Err(error) => return Err(error),
            }
        }
        filling.end = End::Sealed;
        let mut slot = slot.write();
        if slot.as_ref().is_some_and(|present| present.id == id) {
            *slot = Some(filling);
            drop(slot);
            // So that no later opener has to look again.
            self.pending.lock().insert(zone);
        }
        Ok(())
    }

    /// What is said when an object of another opener is in the place of a part.
    fn fenced_text(&self) -> String {
        let found = self.requests.get(ROOT, ROOT_BYTES_MAX).ok().flatten();
        let root = found.and_then(|(raw, _)| Root::parse(&raw, self.requests.url()).ok());
        match root.map(|root| root.holder).filter(|holder| holder.opener != self.holder.opener) {
            Some(winner) => format!("fenced: {winner} has taken the pool over; unmount it here"),
            None => {
                "fenced: another process has opened the pool for writing, and not committed yet".to_owned()
            }
        }
    }

    /// Puts what was written, and waits.
    fn put_all(&self) -> Result<(), StoreError> {
        let cutting = self.cutting.write();
        let touched = std::mem::take(&mut *self.touched.lock());
        let part_bytes = self.part_bytes.load(Ordering::Relaxed);
        for zone in &touched {
            let Some(slot) = self.filling(*zone) else { continue };
            loop {
                let cut = slot.write().as_mut().and_then(|filling| filling.cut(part_bytes));
                let Some((key, body)) = cut else { break };
                self.workers.put(key, body);
            }
        }
        self.pending.lock().extend(touched);
        drop(cutting);
        self.workers.wait()
    }
}

impl Device for BucketDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        let report = self.rules.report(zone)?;
        // An anchor that is long enough is full: see `ANCHOR_BYTES_FULL`.
        let is_long = zone.0 < ANCHORS && report.pointer >= ANCHOR_BYTES_FULL;
        Ok(if is_long { ZoneReport { capacity: report.pointer, ..report } } else { report })
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.rules.check_read(zone, offset, buf.len())?;
        if zone.0 < ANCHORS {
            self.read_anchor(zone, offset, buf);
            return Ok(());
        }
        self.read_zone(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check_writable(zone, "write")?;
        let ticket = self.rules.begin_write(zone, offset, data.len())?;
        let Some(slot) = self.filling(zone) else {
            let mut anchors = self.anchors.lock();
            if offset.saturating_add(data.len() as u64) > ANCHOR_BYTES {
                let expected = format!("an end within {ANCHOR_BYTES} in an anchor zone");
                let found = format!("{} bytes at {offset}", data.len());
                return Err(DeviceError::Rule { zone, op: "write", expected, found });
            }
            anchors.is_changed = true;
            let content = anchors.content.get_mut(zone.0 as usize);
            content.into_iter().for_each(|content| content.extend_from_slice(data));
            ticket.wrote(data.len() as u64);
            return Ok(());
        };
        let (mut cuts, part_bytes) = (Vec::new(), self.part_bytes.load(Ordering::Relaxed));
        // A flush by another thread waits for what is cut here.
        let cutting = self.cutting.read();
        {
            let mut slot = slot.write();
            let filling = slot.get_or_insert_with(|| Filling::begin(self.next_id()));
            let mut rest = data;
            while !rest.is_empty() {
                rest = filling.append(rest, part_bytes, &self.buffers);
                if filling.tail.len() >= part_bytes {
                    cuts.extend(filling.cut(part_bytes));
                }
            }
        }
        self.touched.lock().insert(zone);
        cuts.into_iter().for_each(|(key, body)| self.workers.put(key, body));
        drop(cutting);
        ticket.wrote(data.len() as u64);
        Ok(())
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.check_writable(zone, "reset")?;
        let ticket = self.rules.begin_reset(zone)?;
        match self.filling(zone) {
            Some(slot) => {
                let before = slot.write().take();
                self.dropped.lock().extend(before.map(|filling| (zone, filling.id)));
                self.touched.lock().insert(zone);
            }
            None => {
                let mut anchors = self.anchors.lock();
                anchors.is_changed = true;
                anchors.content.get_mut(zone.0 as usize).into_iter().for_each(Vec::clear);
            }
        }
        ticket.done();
        Ok(())
    }

    fn keep_space(&self) {}

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.check_writable(zone, "finish")?;
        self.rules.finish(zone).map(drop)
    }

    /// A filling that another process wrote takes no more: its zone is full, or ends before `pointer`.
    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        let capacity = self.rules.report(zone)?.capacity;
        if self.rules.report(zone)?.state != ZoneState::Unknown {
            return self.rules.resume(zone, pointer);
        }
        if pointer < capacity {
            let slot = self.filling(zone);
            let is_unknown =
                slot.is_some_and(|slot| slot.read().as_ref().is_some_and(|f| f.end == End::Unknown));
            if is_unknown {
                self.settle()?;
            }
            let end = slot.map_or(0, |slot| slot.read().as_ref().map_or(0, Filling::parts_end));
            if end < pointer {
                return Ok(end);
            }
        }
        self.rules.resume(zone, capacity)
    }

    /// The root that the next flush puts names all that was put.
    fn order(&self) -> Result<(), DeviceError> {
        if let Some(text) = self.failed.lock().as_ref() {
            return Err(io_error(None, 0, "flush", text));
        }
        if self.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        self.put_all().map_err(|error| match error {
            StoreError::Exists => self.fail(self.fenced_text()),
            error => self.fail(format!("data not stored: {error}")),
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.order()?;
        if self.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        let mut committed = self.committed.lock();
        if let Some(text) = self.failed.lock().as_ref() {
            return Err(io_error(None, 0, "flush", text));
        }
        let is_needed = self.anchors.lock().is_changed || self.has_unnamed(&committed);
        if !is_needed {
            return Ok(());
        }
        self.commit(&mut committed).map_err(|text| self.fail(text))
    }

    fn set_retention(&self, time: Duration) {
        self.retention.store(time.as_secs(), Ordering::Relaxed);
        // A commit under way does the same at its end. One that failed may have made garbage of what another's root names.
        if let Some(committed) = self.committed.try_lock()
            && self.mode == OpenMode::ReadWrite
            && self.failed.lock().is_none()
        {
            self.delete_garbage(&committed.garbage);
        }
    }

    fn set_request_budget(&self, per_hour: u64) {
        self.requests.set_budget(per_hour);
    }

    fn may_spend(&self, requests: u64) -> bool {
        self.requests.may_spend(requests)
    }

    fn hurry(&self, patience: Duration) {
        self.requests.hurry(patience);
    }

    /// A half for parts under way, the rest for one part of each open zone.
    fn set_write_memory(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let most = self.options.part_bytes;
        let part = (bytes / OPEN_ZONES / 2).clamp(PART_BYTES_MIN.min(most), most);
        let part = part.next_multiple_of(self.geometry.write_unit as usize);
        self.part_bytes.store(part, Ordering::Relaxed);
        self.workers.set_parts_max((bytes / 2 / part).min(self.options.parts_max));
        self.ahead.set_memory(bytes as u64 / 2);
    }

    fn newer(&self) -> Result<Option<Arc<dyn Device>>, DeviceError> {
        let found =
            self.requests.find(ROOT).map_err(|error| io_error(None, 0, "looking for a newer root", error))?;
        if self.mode != OpenMode::ReadOnly || found.as_ref() == Some(&self.committed.lock().version) {
            return Ok(None);
        }
        let mut newer = Self::open_counted(Arc::clone(self.requests.store()), self.mode, &self.options)?;
        if newer.geometry != self.geometry {
            let found = "another geometry: it was made anew";
            return Err(refused(&self.info.name, "the pool that was opened", found, "mount it again"));
        }
        let (lock, identity) = (Arc::clone(&self.lock), self.identity);
        (newer.lock, newer.identity) = (lock, identity);
        Ok(Some(Arc::new(newer)))
    }

    fn requests(&self) -> Option<RequestCounts> {
        Some(self.requests.store().counts())
    }

    fn drop_page_cache(&self) {
        self.ahead.clear();
    }

    fn identity(&self) -> Option<Identity> {
        self.identity
    }

    fn problem_text(&self) -> Option<String> {
        self.failed.lock().clone().or_else(|| self.requests.trouble())
    }

    fn unlock(&self) {
        self.is_unlocked.store(true, Ordering::Relaxed);
        self.requests.close();
        self.lock.lock().take();
    }
}

impl Drop for BucketDevice {
    fn drop(&mut self) {
        // What was not flushed is not waited for.
        self.requests.close();
    }
}

#[cfg(test)]
mod tests;
