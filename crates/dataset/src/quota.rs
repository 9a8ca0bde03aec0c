//! Limits of users, groups and projects, and the check before an operation joins a txg.
//!
//! Counts are exact as of the last sync. An operation adds what it may take at most as a *promise*, which ends when
//! its txg has synced. It is admitted while count and promises stay below the limit. A promise is usually more
//! than what is stored, so near a limit the open txg is committed first, and the operation then checked again.
//!
//! A count so exceeds its limit by no more than 1 MiB, and by the metadata that is written with that.
//!
//! Limits are in ZAPs that the master ZAP names, as in OpenZFS: from id in hexadecimal to a number.

use crate::error::{DatasetError, ZapError};
use crate::owners;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::{ObjectStore, ObjectZap};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use terrane_format::Feature;
use terrane_object::owners::{CountedOwner, OwnerCount};
use terrane_object::{ObjectError, ObjectKind, ObjectSet, OwnerKind, Owners};
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};

/// Promises that are admitted together near a limit, in bytes.
const SLACK_BYTES: u64 = 1 << 20;
/// Time between commits for checks that find nothing promised and nothing freed.
const RETRY_NS: u64 = 1_000_000_000;
/// Commits for one operation, while others promise what it waits for.
const TRIES: u32 = 16;
/// Most commits for which an operation above a limit waits while something is being freed, by any owner.
const FREEING_COMMITS: u32 = 3;
/// Cost of setting a limit. Works in a full pool.
const COST_SET: Cost = Cost { write_bytes: 64 << 10, meta_blocks: 24, frees: true, ..Cost::NOTHING };

/// What a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaUnit {
    /// Stored bytes.
    Bytes,
    /// Objects.
    Objects,
}

/// A limit: whose, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaName {
    /// Whom the id belongs to.
    pub kind: OwnerKind,
    /// What is bounded.
    pub unit: QuotaUnit,
    /// The id.
    pub id: u32,
}

/// Prefixes of property names. Those of limits also name ZAPs in the master ZAP.
const PREFIXES: [(&str, OwnerKind, QuotaUnit); 6] = [
    ("userquota@", OwnerKind::User, QuotaUnit::Bytes),
    ("userobjquota@", OwnerKind::User, QuotaUnit::Objects),
    ("groupquota@", OwnerKind::Group, QuotaUnit::Bytes),
    ("groupobjquota@", OwnerKind::Group, QuotaUnit::Objects),
    ("projectquota@", OwnerKind::Project, QuotaUnit::Bytes),
    ("projectobjquota@", OwnerKind::Project, QuotaUnit::Objects),
];

impl QuotaName {
    /// Splits a property's name behind its prefix. `None`: it is not the name of a limit.
    pub fn split(name: &str) -> Option<(&str, OwnerKind, QuotaUnit, &str)> {
        PREFIXES.into_iter().find_map(|(prefix, kind, unit)| {
            let id = name.strip_prefix(prefix)?;
            Some((prefix, kind, unit, id))
        })
    }

    /// Parses `userquota@1000` and the like. `None`: it is not the name of a limit with a number.
    pub fn parse(name: &str) -> Option<QuotaName> {
        let (_, kind, unit, id) = QuotaName::split(name)?;
        Some(QuotaName { kind, unit, id: id.parse().ok()? })
    }

    /// Names of the ZAPs of limits in the master ZAP.
    pub fn prefixes() -> impl Iterator<Item = &'static str> {
        PREFIXES.into_iter().map(|(prefix, ..)| prefix)
    }

    fn prefix(&self) -> &'static str {
        let same = |(_, kind, unit): &&(&str, OwnerKind, QuotaUnit)| (*kind, *unit) == (self.kind, self.unit);
        PREFIXES.iter().find(same).map_or("", |(prefix, ..)| prefix)
    }
}

impl fmt::Display for QuotaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.prefix(), self.id)
    }
}

/// Limits of one id; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most stored bytes.
    pub bytes: u64,
    /// Most objects.
    pub objects: u64,
}

/// One row of a listing of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerUsage {
    /// The id.
    pub id: u32,
    /// What it has, as of the last sync.
    pub count: OwnerCount,
    /// Its limits.
    pub limits: Limits,
}

/// What an operation may take for some owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Ids of user, group and project that it counts for.
    ids: [Option<u32>; 3],
    /// More stored bytes.
    pub bytes: u64,
    /// More objects.
    pub objects: u64,
}

impl Charge {
    /// An object of these owners takes more.
    pub fn of(owners: Owners, bytes: u64, objects: u64) -> Charge {
        Charge { ids: owners.ids().map(|(_, id)| Some(id)), bytes, objects }
    }

    /// An object of so many bytes gets other owners.
    pub fn moved(before: Owners, after: Owners, bytes: u64) -> Charge {
        let mut ids = [None; 3];
        for ((id, (_, old)), (_, new)) in ids.iter_mut().zip(before.ids()).zip(after.ids()) {
            *id = (old != new).then_some(new);
        }
        Charge { ids, bytes, objects: 1 }
    }

    fn keys(&self) -> impl Iterator<Item = (OwnerKind, u32)> + use<> {
        OwnerKind::ALL.into_iter().zip(self.ids).filter_map(|(kind, id)| Some((kind, id?)))
    }
}

/// An id with a limit.
#[derive(Clone, Debug, Default)]
struct Limited {
    limits: Limits,
    count: OwnerCount,
    /// Promised by operations whose txgs have not synced, by txg; 0: they have not joined one.
    promised: BTreeMap<Txg, OwnerCount>,
    /// Time of the last commit for a check that found nothing promised.
    committed_ns: u64,
}

/// The answer to an operation.
enum Verdict {
    Fits,
    /// It may fit after a commit.
    Unsure,
    Over,
}

impl Limited {
    fn promised(&self) -> OwnerCount {
        let sum = |sum: OwnerCount, one: &OwnerCount| OwnerCount {
            bytes: sum.bytes.saturating_add(one.bytes),
            objects: sum.objects.saturating_add(one.objects),
        };
        self.promised.values().fold(OwnerCount::default(), sum)
    }

    fn judge(&self, charge: &Charge) -> Verdict {
        let (limits, promised) = (self.limits, self.promised());
        let left = limits.bytes.saturating_sub(self.count.bytes);
        let fits_bytes = limits.bytes == 0
            || left > 0 && promised.bytes.saturating_add(charge.bytes) <= left.max(SLACK_BYTES);
        let wanted = self.count.objects.saturating_add(promised.objects).saturating_add(charge.objects);
        let fits_objects = limits.objects == 0 || charge.objects == 0 || wanted <= limits.objects;
        match (fits_bytes && fits_objects, promised == OwnerCount::default()) {
            (true, _) => Verdict::Fits,
            (false, false) => Verdict::Unsure,
            (false, true) => Verdict::Over,
        }
    }

    fn promise(&mut self, txg: Txg, charge: &Charge) {
        let promised = self.promised.entry(txg).or_default();
        promised.bytes = promised.bytes.saturating_add(charge.bytes);
        promised.objects = promised.objects.saturating_add(charge.objects);
    }

    fn end_promise(&mut self, txg: Txg, charge: &Charge) {
        let Some(promised) = self.promised.get_mut(&txg) else { return };
        promised.bytes = promised.bytes.saturating_sub(charge.bytes);
        promised.objects = promised.objects.saturating_sub(charge.objects);
        if *promised == OwnerCount::default() {
            self.promised.remove(&txg);
        }
    }
}

type ByOwner = BTreeMap<(OwnerKind, u32), Limited>;

/// The limits of a data set.
pub struct Quotas {
    set: Arc<ObjectSet>,
    master: Arc<Mutex<ObjectZap>>,
    zap_policy: Arc<ZapPolicy>,
    /// Whether there is any limit.
    has_limits: AtomicBool,
    limited: Arc<Mutex<ByOwner>>,
    /// Held while limits are stored.
    storing: Mutex<()>,
}

/// An operation that was admitted. Its promise ends with the sync of its txg, or if it never joined one.
pub struct Promise {
    limited: Weak<Mutex<ByOwner>>,
    charges: Vec<Charge>,
    is_joined: bool,
}

impl Promise {
    /// The operation has joined this txg.
    pub fn join(mut self, txg: Txg) {
        self.is_joined = true;
        let Some(limited) = self.limited.upgrade() else { return };
        let mut limited = limited.lock();
        for_each(&mut limited, &self.charges, &mut |one, charge| {
            one.end_promise(Txg(0), charge);
            one.promise(txg, charge);
        });
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let (false, Some(limited)) = (self.is_joined, self.limited.upgrade()) {
            for_each(&mut limited.lock(), &self.charges, &mut |one, charge| one.end_promise(Txg(0), charge));
        }
    }
}

fn for_each(limited: &mut ByOwner, charges: &[Charge], each: &mut dyn FnMut(&mut Limited, &Charge)) {
    for charge in charges {
        for key in charge.keys() {
            if let Some(one) = limited.get_mut(&key) {
                each(one, charge);
            }
        }
    }
}

/// The operation would exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverQuota;

impl Quotas {
    /// Of a snapshot, which no operation changes: no limit is obeyed.
    pub(crate) fn none(
        set: &Arc<ObjectSet>,
        master: &Arc<Mutex<ObjectZap>>,
        zap_policy: &Arc<ZapPolicy>,
    ) -> Quotas {
        Quotas {
            set: Arc::clone(set),
            master: Arc::clone(master),
            zap_policy: Arc::clone(zap_policy),
            has_limits: AtomicBool::new(false),
            limited: Arc::default(),
            storing: Mutex::default(),
        }
    }

    /// Loads the limits of a data set, and follows its counts. Damaged limits do not apply, and damaged counts are 0: a data set that
    /// cannot be opened would be worse.
    pub(crate) fn load(
        set: &Arc<ObjectSet>,
        master: &Arc<Mutex<ObjectZap>>,
        zap_policy: &Arc<ZapPolicy>,
    ) -> Result<Quotas, DatasetError> {
        let quotas = Quotas::none(set, master, zap_policy);
        let limited = Arc::clone(&quotas.limited);
        for (key, limits) in quotas.stored()? {
            limited.lock().insert(key, Limited { limits, ..Limited::default() });
        }
        let follower = Arc::downgrade(&limited);
        set.on_owners_counted(move |txg, counted| {
            let Some(limited) = follower.upgrade() else { return false };
            follow(&mut limited.lock(), txg, counted);
            true
        });
        let keys: Vec<(OwnerKind, u32)> = limited.lock().keys().copied().collect();
        quotas.has_limits.store(!keys.is_empty(), Ordering::Release);
        for key in keys {
            tolerate_damage(quotas.refresh(key), &format_args!("what {:?} {} has", key.0, key.1))?;
        }
        Ok(quotas)
    }

    /// The limits as stored, without damaged ones.
    fn stored(&self) -> Result<BTreeMap<(OwnerKind, u32), Limits>, DatasetError> {
        let mut stored: BTreeMap<(OwnerKind, u32), Limits> = BTreeMap::new();
        for (prefix, kind, unit) in PREFIXES {
            let found = self.find_zap(prefix).and_then(|zap| {
                let Some(zap) = zap else { return Ok(()) };
                Ok(zap.each(usize::MAX, &mut |entry| {
                    let name = entry.key.name().map(String::from_utf8_lossy).unwrap_or_default();
                    let (Ok(id), Some(limit)) = (u32::from_str_radix(&name, 16), entry.value.first_integer())
                    else {
                        log::warn!("limit '{prefix}{name}' ignored: expected an id and a number");
                        return;
                    };
                    let limits = stored.entry((kind, id)).or_default();
                    *(if unit == QuotaUnit::Bytes { &mut limits.bytes } else { &mut limits.objects }) = limit;
                })?)
            });
            tolerate_damage(found, &format_args!("limits '{prefix}'"))?;
        }
        Ok(stored)
    }

    /// Takes an id's count from the table.
    fn refresh(&self, (kind, id): (OwnerKind, u32)) -> Result<(), DatasetError> {
        // No sync passes on newer counts in between.
        self.set.read_owner_table(kind, |table| {
            let count = owners::count_of(&ObjectStore::reader(table), id)?;
            if let Some(one) = self.limited.lock().get_mut(&(kind, id)) {
                one.count = count;
            }
            Ok(())
        })
    }

    fn find_zap(&self, prefix: &str) -> Result<Option<ObjectZap>, DatasetError> {
        let Some(number) = self.master.lock().lookup_u64(prefix.as_bytes())? else { return Ok(None) };
        Ok(Some(ObjectZap::new(&self.zap_policy, self.set.hold(ObjectId(number))?)))
    }

    /// A limit; 0: none.
    pub fn get(&self, name: QuotaName) -> u64 {
        let limits = self.limits(name.kind, name.id);
        if name.unit == QuotaUnit::Bytes { limits.bytes } else { limits.objects }
    }

    /// The limits of an id.
    pub fn limits(&self, kind: OwnerKind, id: u32) -> Limits {
        self.limited.lock().get(&(kind, id)).map(|one| one.limits).unwrap_or_default()
    }

    /// All limits that are set.
    pub fn list(&self) -> Vec<(QuotaName, u64)> {
        let limited = self.limited.lock();
        let each = limited.iter().flat_map(|((kind, id), one)| {
            let name = |unit| QuotaName { kind: *kind, unit, id: *id };
            [(name(QuotaUnit::Bytes), one.limits.bytes), (name(QuotaUnit::Objects), one.limits.objects)]
        });
        each.filter(|(_, limit)| *limit > 0).collect()
    }

    /// Stores a limit, and obeys it from now on; 0 removes it. What an id has beyond its limit stays.
    pub fn set(&self, name: QuotaName, limit: u64) -> Result<(), DatasetError> {
        let _storing = self.storing.lock();
        if !self.set.pool().has(Feature::Owners) && !self.set.pool().is_read_only() {
            self.set.pool().enable(&[Feature::Owners]).map_err(ObjectError::from)?;
        }
        let (prefix, id) = (name.prefix(), format!("{:x}", name.id));
        let tx = self.set.begin(COST_SET)?;
        let zap = self.find_zap(prefix)?;
        match (zap, limit) {
            (None, 0) => {}
            (Some(mut zap), 0) => drop(zap.remove(&tx, id.as_bytes())?),
            (Some(mut zap), limit) => zap.update_u64(&tx, id.as_bytes(), limit)?,
            (None, limit) => {
                let mut zap = ObjectZap::create(&self.set, &self.zap_policy, &tx, ObjectKind::Zap)?;
                zap.update_u64(&tx, id.as_bytes(), limit)?;
                let added = self.master.lock().add_u64(&tx, prefix.as_bytes(), zap.object().id().0);
                if let Err(error) = added {
                    self.set.destroy(&tx, zap.object())?;
                    return Err(error.into());
                }
            }
        }
        drop(tx);
        let key = (name.kind, name.id);
        let is_limited = {
            let mut limited = self.limited.lock();
            let one = limited.entry(key).or_default();
            *(if name.unit == QuotaUnit::Bytes { &mut one.limits.bytes } else { &mut one.limits.objects }) =
                limit;
            let is_limited = one.limits != Limits::default();
            if !is_limited {
                limited.remove(&key);
            }
            self.has_limits.store(!limited.is_empty(), Ordering::Release);
            is_limited
        };
        if is_limited { self.refresh(key) } else { Ok(()) }
    }

    /// What all owners of a kind have as of the last sync, and their limits, by id. Of a snapshot both are as it shows them.
    pub fn usage(&self, kind: OwnerKind) -> Result<Vec<OwnerUsage>, DatasetError> {
        let counts =
            self.set.read_owner_table(kind, |table| owners::all_counts(&ObjectStore::reader(table)))?;
        let mut rows: BTreeMap<u32, OwnerUsage> = counts
            .into_iter()
            .map(|(id, count)| (id, OwnerUsage { id, count, limits: Limits::default() }))
            .collect();
        let all_limits = match self.set.is_read_only() {
            true => self.stored()?,
            false => self.limited.lock().iter().map(|(key, one)| (*key, one.limits)).collect(),
        };
        for ((_, id), limits) in all_limits.into_iter().filter(|((of, _), _)| *of == kind) {
            let count = OwnerCount::default();
            rows.entry(id).or_insert(OwnerUsage { id, count, limits }).limits = limits;
        }
        Ok(rows.into_values().collect())
    }

    /// What an id with a limit has as of the last sync, and its limits. `None`: it has no limit.
    pub fn limited_usage(&self, kind: OwnerKind, id: u32) -> Option<OwnerUsage> {
        if !self.has_limits.load(Ordering::Acquire) {
            return None;
        }
        self.limited.lock().get(&(kind, id)).map(|one| OwnerUsage {
            id,
            count: one.count,
            limits: one.limits,
        })
    }

    /// Whether any owner has a limit.
    pub fn has_limits(&self) -> bool {
        self.has_limits.load(Ordering::Acquire)
    }

    /// Admits an operation, which may need a commit: the caller has joined no txg and holds no lock of objects.
    /// `None`: nothing to promise. `writes_back`: the kernel writes back what a program stored through a mapping. That may exceed limits,
    /// because no program would get the error.
    ///
    /// # Errors
    /// The commit failed. `Ok(Err(OverQuota))`: a limit would be exceeded.
    pub fn admit(
        &self,
        charges: &[Charge],
        writes_back: bool,
    ) -> Result<Result<Option<Promise>, OverQuota>, ObjectError> {
        if charges.is_empty() || !self.has_limits() {
            return Ok(Ok(None));
        }
        let mut tries_left = TRIES;
        loop {
            let now_ns = self.set.pool().env().monotonic_ns();
            let mut may_retry = tries_left > 0;
            let is_freeing = self.set.has_unsynced_frees();
            {
                let mut limited = self.limited.lock();
                let mut verdict = Verdict::Fits;
                for_each(&mut limited, charges, &mut |one, charge| match one.judge(charge) {
                    Verdict::Fits => {}
                    Verdict::Unsure if !matches!(verdict, Verdict::Over) => verdict = Verdict::Unsure,
                    Verdict::Unsure => {}
                    Verdict::Over => {
                        // Others may have freed space since the last sync. One commit counts everything that was
                        // freed before this operation. A file that was just removed may be freed after that.
                        let is_due = is_freeing
                            || one.committed_ns == 0
                            || now_ns.saturating_sub(one.committed_ns) >= RETRY_NS;
                        let commits = TRIES - tries_left;
                        may_retry &= is_due && (commits == 0 || is_freeing && commits < FREEING_COMMITS);
                        if may_retry {
                            one.committed_ns = now_ns.max(1);
                        }
                        verdict = Verdict::Over;
                    }
                });
                if writes_back || matches!(verdict, Verdict::Fits) {
                    for_each(&mut limited, charges, &mut |one, charge| one.promise(Txg(0), charge));
                    let limited = Arc::downgrade(&self.limited);
                    return Ok(Ok(Some(Promise { limited, charges: charges.to_vec(), is_joined: false })));
                }
            }
            if !may_retry {
                return Ok(Err(OverQuota));
            }
            tries_left -= 1;
            self.set.wait_synced(self.set.open_txg())?;
        }
    }
}

/// Logs damage. An error that may pass stays one.
fn tolerate_damage(
    found: Result<(), DatasetError>,
    what: &dyn std::fmt::Display,
) -> Result<(), DatasetError> {
    match found {
        Err(error) if !error.is_transient() => {
            log::error!("{what}: unknown: {error}");
            Ok(())
        }
        found => found,
    }
}

/// Takes over what a sync has counted, and ends the promises of its txg.
fn follow(limited: &mut ByOwner, txg: Txg, counted: &[CountedOwner]) {
    for CountedOwner { kind, id, count } in counted {
        if let Some(one) = limited.get_mut(&(*kind, *id)) {
            one.count = *count;
        }
    }
    for one in limited.values_mut().filter(|one| !one.promised.is_empty()) {
        one.promised.retain(|joined, _| *joined == Txg(0) || *joined > txg);
    }
}

/// For `check`: what a table says.
pub fn table_counts(set: &ObjectSet, kind: OwnerKind) -> Result<BTreeMap<u32, OwnerCount>, ZapError> {
    set.read_owner_table(kind, |table| owners::all_counts(&ObjectStore::reader(table)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_limits_are_those_of_openzfs() {
        for (name, kind, unit) in [
            ("userquota@0", OwnerKind::User, QuotaUnit::Bytes),
            ("groupobjquota@0", OwnerKind::Group, QuotaUnit::Objects),
            ("projectquota@0", OwnerKind::Project, QuotaUnit::Bytes),
        ] {
            let found = QuotaName::parse(name).unwrap();
            assert_eq!(found, QuotaName { kind, unit, id: 0 });
            assert_eq!(found.to_string(), name);
        }
        for name in
            ["userquota@", "userquota@-1", "userquota@4294967296", "quota@1", "userused@1", "compression"]
        {
            assert_eq!(QuotaName::parse(name), None, "{name}");
        }
        assert_eq!(QuotaName::split("userobjquota@ann").map(|(.., id)| id), Some("ann"));
    }

    fn limited(bytes: u64, objects: u64) -> Limited {
        Limited { limits: Limits { bytes, objects }, ..Limited::default() }
    }

    fn verdict(one: &Limited, bytes: u64, objects: u64) -> char {
        match one.judge(&Charge { bytes, objects, ..Charge::default() }) {
            Verdict::Fits => 'f',
            Verdict::Unsure => 'u',
            Verdict::Over => 'o',
        }
    }

    #[test]
    fn what_is_admitted_is_bounded_by_limit_and_slack() {
        let mut one = limited(10 << 20, 0);
        assert_eq!((verdict(&one, 10 << 20, 1), verdict(&one, (10 << 20) + 1, 1)), ('f', 'o'));
        one.promise(Txg(0), &Charge { bytes: 9 << 20, ..Charge::default() });
        assert_eq!((verdict(&one, 1 << 20, 1), verdict(&one, (1 << 20) + 1, 1)), ('f', 'u'));
        one.count.bytes = (10 << 20) - 1;
        assert_eq!(verdict(&one, 1, 0), 'u');
        one.end_promise(Txg(0), &Charge { bytes: 9 << 20, ..Charge::default() });
        assert_eq!(verdict(&one, 1, 0), 'f');
        one.count.bytes = 10 << 20;
        assert_eq!(verdict(&one, 0, 0), 'o');
    }

    #[test]
    fn objects_are_bounded_exactly_and_others_may_go_on() {
        let mut one = limited(0, 3);
        one.count.objects = 2;
        assert_eq!((verdict(&one, u64::MAX, 1), verdict(&one, 0, 2)), ('f', 'o'));
        one.promise(Txg(4), &Charge { objects: 1, ..Charge::default() });
        assert_eq!((verdict(&one, 0, 1), verdict(&one, 5, 0)), ('u', 'f'));
    }

    #[test]
    fn promises_end_with_their_txg() {
        let key = (OwnerKind::User, 7);
        let mut all = ByOwner::from([(key, limited(1, 1))]);
        let charge = Charge { bytes: 5, objects: 1, ..Charge::default() };
        for txg in [0, 4, 5, 6] {
            all.get_mut(&key).unwrap().promise(Txg(txg), &charge);
        }
        let count = OwnerCount { bytes: 77, objects: 2 };
        follow(&mut all, Txg(5), &[CountedOwner { kind: OwnerKind::User, id: 7, count }]);
        let one = all.get(&key).unwrap();
        assert_eq!((one.count, one.promised()), (count, OwnerCount { bytes: 10, objects: 2 }));
        assert_eq!(one.promised.keys().copied().collect::<Vec<_>>(), [Txg(0), Txg(6)]);
    }
}
