//! Quotas and reservations: how much space data sets may use.
//!
//! A data set is *charged* for what it uses, and at least for what is reserved for it. Quotas limit the charges, and so does the pool as
//! soon as something is reserved: what is reserved for others is not there. The *slack* of a data set is by how much its head can grow
//! until its own charge grows, or that of a data set above it.
//!
//! Each limit has two sums. *Used* is exact, as of the last commit. *Promised* is the worst case of all operations that
//! have joined a txg which is not committed. An operation joins if both sums and its own need stay within all limits.
//! Near a limit it waits for a commit, which replaces promises by exact numbers, and tries again. So data never exceeds
//! a limit, and an operation is refused only if its worst case does not fit. While something is being freed, it waits for that too.
//!
//! Two kinds of operations may exceed a limit. One that frees space always joins. A write-back of a mapping joins up to
//! a margin, because no program would get the error.
//!
//! Invariant: every operation that has joined an uncommitted txg under a limit is in the promises of this limit.

use crate::props::{Property, Props, QUOTA, REF_QUOTA, REF_RESERVATION, RESERVATION};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_object::{Join, ObjectError, Usage};
use terrane_pool::{Pool, Tx};
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

/// Most commits for which an operation waits while other operations take the space each time. Then it is refused,
/// although its own need would fit.
const COMMITS_MAX: u32 = 64;
/// Write-backs of mappings may exceed a limit by this share of it, within these bounds in bytes.
const MARGIN_DIVISOR: u64 = 32;
const MARGIN_MIN: u64 = 1 << 20;
const MARGIN_MAX: u64 = 64 << 20;

/// The limits and reservations of one data set; 0 means none.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    quota: AtomicU64,
    ref_quota: AtomicU64,
    reservation: AtomicU64,
    ref_reservation: AtomicU64,
}

impl Limits {
    /// Takes the limits from properties.
    pub fn set(&self, props: &Props) {
        let limits = [
            (&self.quota, QUOTA),
            (&self.ref_quota, REF_QUOTA),
            (&self.reservation, RESERVATION),
            (&self.ref_reservation, REF_RESERVATION),
        ];
        for (limit, name) in limits {
            let number = Property::find(name).map_or(0, |property| props.own_number(property));
            limit.store(number, Ordering::Relaxed);
        }
    }

    /// Limit of the data set with all below it.
    pub fn quota(&self) -> Option<u64> {
        Some(self.quota.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// What is reserved for the data set with all below it, or 0.
    pub fn reservation(&self) -> u64 {
        self.reservation.load(Ordering::Relaxed)
    }

    /// What is reserved for the head alone, or 0.
    pub fn ref_reservation(&self) -> u64 {
        self.ref_reservation.load(Ordering::Relaxed)
    }

    /// Limit of the head alone.
    pub fn ref_quota(&self) -> Option<u64> {
        Some(self.ref_quota.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }
}

/// What a data set is charged, and how far it can grow without a larger charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// Bytes with all data sets below.
    pub bytes: u64,
    /// Of these, bytes that are used and not only reserved.
    pub used: u64,
    /// Bytes of the head that are its own, and at least its `refreservation`.
    pub head: u64,
    /// Bytes by which the head can grow before it exceeds its `refreservation`.
    pub head_slack: u64,
    /// Bytes by which the tree can grow before it exceeds its `reservation`.
    pub tree_slack: u64,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The head of a data set.
    Head,
    /// A data set with all below it.
    Tree,
    /// All of the pool, with what is reserved for others.
    Pool,
}

/// One limit, and the bytes that it counts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The data set whose limit it is, and what it counts.
    key: (usize, Kind),
    limit: u64,
    used: u64,
}

impl Bound {
    pub fn of_head(node: usize, limit: u64, used: u64) -> Bound {
        Bound { key: (node, Kind::Head), limit, used }
    }

    pub fn of_tree(node: usize, limit: u64, used: u64) -> Bound {
        Bound { key: (node, Kind::Tree), limit, used }
    }

    /// `root`: the root data set. `used`: with what is reserved for others.
    pub fn of_pool(root: usize, limit: u64, used: u64) -> Bound {
        Bound { key: (root, Kind::Pool), limit, used }
    }

    /// The data set whose limit it is.
    pub fn node(&self) -> usize {
        self.key.0
    }

    /// Whether it counts all of the pool.
    pub fn is_of_pool(&self) -> bool {
        self.key.1 == Kind::Pool
    }

    /// The limit, and the bytes that it counts now.
    pub fn limit_and_used(&self) -> (u64, u64) {
        (self.limit, self.used)
    }

    /// The limit for an operation of this kind.
    fn limit_for(&self, cost: &Cost) -> u64 {
        let margin = (self.limit / MARGIN_DIVISOR).clamp(MARGIN_MIN, MARGIN_MAX);
        let may_exceed = cost.writes_back && self.key.1 != Kind::Pool;
        if may_exceed { self.limit.saturating_add(margin) } else { self.limit }
    }

    /// What the operation adds to the bytes that it counts, in the worst case and without a file's reservation.
    fn need_of(&self, cost: &Cost) -> u64 {
        let shared = if self.key.1 == Kind::Pool { 0 } else { cost.shared_bytes };
        cost.reserve_bytes().saturating_add(shared)
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// The error for an operation that needs so many bytes.
    fn refusal(&self, need: u64) -> ObjectError {
        let quota = |property| ObjectError::Quota { property, limit: self.limit, used: self.used, need };
        match self.key.1 {
            Kind::Head => quota(REF_QUOTA),
            Kind::Tree => quota(QUOTA),
            Kind::Pool => PoolError::NoSpace { need, free: self.left() }.into(),
        }
    }
}

/// The usage under the tightest of these limits, if one is tighter than the pool.
pub(crate) fn tightest(usage: Usage, bounds: &[Bound]) -> Usage {
    match bounds.iter().min_by_key(|bound| bound.left()) {
        Some(bound) if bound.left() < usage.available_bytes => {
            Usage { size_bytes: bound.limit, used_bytes: bound.used, available_bytes: bound.left(), ..usage }
        }
        _ => usage,
    }
}

/// Promised bytes by limit and txg.
#[derive(Default)]
struct ByLimit(BTreeMap<(usize, Kind), Vec<(Txg, u64)>>);

impl ByLimit {
    /// Drops the promises of txgs that have synced.
    fn drop_synced(&mut self, synced: Txg) {
        self.0.retain(|_, promises| {
            promises.retain(|(txg, _)| *txg > synced);
            !promises.is_empty()
        });
    }

    /// Bytes that the limit counts, with all promises.
    fn used(&self, bound: &Bound) -> u64 {
        let promises = self.0.get(&bound.key).into_iter().flatten();
        promises.map(|(_, bytes)| *bytes).fold(bound.used, u64::saturating_add)
    }

    fn add(&mut self, bound: &Bound, of: Txg, bytes: u64) {
        let promises = self.0.entry(bound.key).or_default();
        match promises.iter_mut().find(|(txg, _)| *txg == of) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => promises.push((of, bytes)),
        }
    }
}

/// The worst case of operations in uncommitted txgs, by limit and txg.
#[derive(Default)]
pub(crate) struct Promises {
    by_limit: Mutex<ByLimit>,
    /// A data set has a reservation, or has had one.
    has_reservations: AtomicBool,
    /// Held from the check of a reservation until it is in force, so that no two get the same space.
    reserving: Mutex<()>,
}

impl Promises {
    /// A data set has a reservation from now on.
    pub fn note_reservation(&self) {
        self.has_reservations.store(true, Ordering::Relaxed);
    }

    /// For a change of reservations. Take it before joining a txg.
    pub fn reserving(&self) -> MutexGuard<'_, ()> {
        self.reserving.lock()
    }

    /// Whether a data set may have a reservation.
    pub fn has_reservations(&self) -> bool {
        self.has_reservations.load(Ordering::Relaxed)
    }

    /// Joins an operation to the open txg when the bounds allow it. `bounds` reads them. Their sums are as of the txg
    /// that it is given, or newer, without the bytes that they are given: files have reserved them for this operation. `is_freeing`:
    /// whether what a bound counts is being freed.
    pub fn admit(
        &self,
        pool: &Arc<Pool>,
        cost: &Cost,
        bounds: &dyn Fn(Txg, u64) -> Vec<Bound>,
        is_freeing: &dyn Fn(&Bound) -> bool,
        join: Join<'_>,
    ) -> Result<Tx, ObjectError> {
        let need = |bound: &Bound| bound.need_of(cost).saturating_add(cost.file_reservation);
        let own = cost.reserve_bytes().saturating_add(cost.file_reservation);
        let reserved = cost.from_file_reservation.unwrap_or(0).min(own);
        for _ in 0..COMMITS_MAX {
            let bounds_now = bounds(pool.synced_txg(), reserved);
            if let Some(over) =
                bounds_now.iter().find(|bound| !cost.frees && is_over(bound, cost, need(bound)))
            {
                if !is_freeing(over) {
                    return Err(over.refusal(need(over)));
                }
                // What was removed counts until txgs have freed it.
                pool.want_another_txg();
                pool.commit_txg(pool.open_txg())?;
                continue;
            }
            let tx = join()?;
            // The pool counts the reservation of the operation from here on.
            let reserved = reserved.saturating_add(cost.file_reservation);
            if self.try_promise(&tx, cost, &need, &|synced| bounds(synced, reserved)) {
                return Ok(tx);
            }
            tx.pool().end_file_reservation(cost.file_reservation);
            let (pool, txg) = (tx.pool().clone(), tx.txg());
            drop(tx);
            pool.commit_txg(txg)?;
        }
        match bounds(pool.synced_txg(), reserved).iter().min_by_key(|bound| bound.left()) {
            Some(bound) if !cost.frees => Err(bound.refusal(need(bound))),
            _ => join(),
        }
    }

    /// Adds the operation to the promises of all bounds. False: a bound does not allow it now.
    fn try_promise(
        &self,
        tx: &Tx,
        cost: &Cost,
        need: &dyn Fn(&Bound) -> u64,
        bounds: &dyn Fn(Txg) -> Vec<Bound>,
    ) -> bool {
        // In this order: promises of a txg are dropped only when the bounds count its blocks.
        let synced = tx.pool().synced_txg();
        let bounds = bounds(synced);
        let mut by_limit = self.by_limit.lock();
        by_limit.drop_synced(synced);
        let fits = |bound: &Bound| by_limit.used(bound).saturating_add(need(bound)) <= bound.limit_for(cost);
        if !cost.frees && !bounds.iter().all(fits) {
            return false;
        }
        bounds.iter().for_each(|bound| by_limit.add(bound, tx.txg(), bound.need_of(cost)));
        true
    }

    /// Promises so many bytes more of each limit until the txg has synced. False: a limit does not allow it beside the promises to
    /// others.
    pub fn promise_growths(&self, synced: Txg, until: Txg, growths: &[(Bound, u64)]) -> bool {
        let mut by_limit = self.by_limit.lock();
        by_limit.drop_synced(synced);
        let fits =
            |(bound, growth): &(Bound, u64)| by_limit.used(bound).saturating_add(*growth) <= bound.limit;
        if !growths.iter().all(fits) {
            return false;
        }
        growths.iter().for_each(|(bound, growth)| by_limit.add(bound, until, *growth));
        true
    }
}

/// Whether an operation would not fit even without promises to others.
fn is_over(bound: &Bound, cost: &Cost, need: u64) -> bool {
    bound.used.saturating_add(need) > bound.limit_for(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growth_is_promised_until_its_txg_has_synced() {
        let promises = Promises::default();
        let (quota, pool) = (Bound::of_tree(1, 10, 2), Bound::of_pool(1, 20, 2));
        assert!(promises.promise_growths(Txg(4), Txg(6), &[(quota, 5), (pool, 5)]));
        assert!(!promises.promise_growths(Txg(5), Txg(7), &[(pool, 1), (quota, 4)]), "beside a promise");
        assert!(promises.promise_growths(Txg(5), Txg(7), &[(pool, 13)]), "a refusal promises nothing");
        assert!(promises.promise_growths(Txg(6), Txg(8), &[(quota, 8)]));
    }
}
