//! Quotas: how much space data sets may use.
//!
//! Each limit has two sums. *Used* is exact, as of the last commit. *Promised* is the worst case of all operations that
//! have joined a txg which is not committed. An operation joins if both sums and its own need stay within all limits.
//! Near a limit it waits for a commit, which replaces promises by exact numbers, and tries again. So data never exceeds
//! a limit, and an operation is refused only if its worst case does not fit.
//!
//! Two kinds of operations may exceed a limit. One that frees space always joins. A write-back of a mapping joins up to
//! a margin, because no program would get the error.
//!
//! Invariant: every operation that has joined an uncommitted txg under a limit is in the promises of this limit.

use crate::props::{Property, Props, QUOTA, REF_QUOTA};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_object::{Join, ObjectError, Usage};
use terrane_pool::{Pool, Tx};
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

/// Most commits for which an operation waits while other operations take the space each time. Then it is refused,
/// although its own need would fit.
const COMMITS_MAX: u32 = 64;
/// Write-backs of mappings may exceed a limit by this share of it, within these bounds in bytes.
const MARGIN_DIVISOR: u64 = 32;
const MARGIN_MIN: u64 = 1 << 20;
const MARGIN_MAX: u64 = 64 << 20;

/// The limits of one data set; 0 means none.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    quota: AtomicU64,
    ref_quota: AtomicU64,
}

impl Limits {
    /// Takes the limits from properties.
    pub fn set(&self, props: &Props) {
        for (limit, name) in [(&self.quota, QUOTA), (&self.ref_quota, REF_QUOTA)] {
            let number = Property::find(name).map_or(0, |property| props.own_number(property));
            limit.store(number, Ordering::Relaxed);
        }
    }

    /// Limit of the data set with all below it.
    pub fn quota(&self) -> Option<u64> {
        Some(self.quota.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Limit of the head alone.
    pub fn ref_quota(&self) -> Option<u64> {
        Some(self.ref_quota.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }
}

/// One limit, and the bytes that it counts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The data set whose limit it is, and whether it counts the head alone.
    key: (usize, bool),
    limit: u64,
    used: u64,
}

impl Bound {
    pub fn of_head(node: usize, limit: u64, used: u64) -> Bound {
        Bound { key: (node, true), limit, used }
    }

    pub fn of_tree(node: usize, limit: u64, used: u64) -> Bound {
        Bound { key: (node, false), limit, used }
    }

    fn property(&self) -> &'static str {
        if self.key.1 { REF_QUOTA } else { QUOTA }
    }

    /// The limit for an operation of this kind.
    fn limit_for(&self, cost: &Cost) -> u64 {
        let margin = (self.limit / MARGIN_DIVISOR).clamp(MARGIN_MIN, MARGIN_MAX);
        if cost.writes_back { self.limit.saturating_add(margin) } else { self.limit }
    }
}

/// The usage under the tightest of these limits, if one is tighter than the pool.
pub(crate) fn tightest(usage: Usage, bounds: &[Bound]) -> Usage {
    let left = |bound: &Bound| bound.limit.saturating_sub(bound.used);
    match bounds.iter().min_by_key(|bound| left(bound)) {
        Some(bound) if left(bound) < usage.available_bytes => {
            Usage { size_bytes: bound.limit, used_bytes: bound.used, available_bytes: left(bound), ..usage }
        }
        _ => usage,
    }
}

/// Promised bytes by txg.
type ByTxg = Vec<(Txg, u64)>;

/// The worst case of operations in uncommitted txgs, by limit and txg.
#[derive(Default)]
pub(crate) struct Promises {
    by_limit: Mutex<BTreeMap<(usize, bool), ByTxg>>,
}

impl Promises {
    /// Joins an operation to the open txg when the bounds allow it. `bounds` reads them. Their sums are as of the txg
    /// that it is given, or newer.
    pub fn admit(
        &self,
        pool: &Pool,
        cost: &Cost,
        bounds: &dyn Fn(Txg) -> Vec<Bound>,
        join: Join<'_>,
    ) -> Result<Tx, ObjectError> {
        let need = cost.reserve_bytes().saturating_add(cost.file_reservation);
        for _ in 0..COMMITS_MAX {
            if !cost.frees {
                refuse(&bounds(pool.synced_txg()), cost, need)?;
            }
            let tx = join()?;
            if self.try_promise(&tx, cost, need, bounds) {
                return Ok(tx);
            }
            tx.pool().end_file_reservation(cost.file_reservation);
            let (pool, txg) = (tx.pool().clone(), tx.txg());
            drop(tx);
            pool.commit_txg(txg)?;
        }
        refuse(&bounds(pool.synced_txg()), cost, u64::MAX)?;
        join()
    }

    /// Adds the operation to the promises of all bounds. False: a bound does not allow it now.
    fn try_promise(&self, tx: &Tx, cost: &Cost, need: u64, bounds: &dyn Fn(Txg) -> Vec<Bound>) -> bool {
        // In this order: promises of a txg are dropped only when the bounds count its blocks.
        let synced = tx.pool().synced_txg();
        let bounds = bounds(synced);
        let mut by_limit = self.by_limit.lock();
        by_limit.retain(|_, promises| {
            promises.retain(|(txg, _)| *txg > synced);
            !promises.is_empty()
        });
        let promised = |bound: &Bound| -> u64 {
            by_limit
                .get(&bound.key)
                .into_iter()
                .flatten()
                .map(|(_, bytes)| *bytes)
                .fold(0, u64::saturating_add)
        };
        let fits = |bound: &Bound| {
            let sum = bound.used.saturating_add(promised(bound)).saturating_add(need);
            sum <= bound.limit_for(cost)
        };
        if !cost.frees && !bounds.iter().all(fits) {
            return false;
        }
        let bytes = cost.reserve_bytes();
        for bound in &bounds {
            let promises = by_limit.entry(bound.key).or_default();
            match promises.iter_mut().find(|(txg, _)| *txg == tx.txg()) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => promises.push((tx.txg(), bytes)),
            }
        }
        true
    }
}

/// Refuses an operation that would not fit even without promises to others.
fn refuse(bounds: &[Bound], cost: &Cost, need: u64) -> Result<(), ObjectError> {
    let is_over = |bound: &&Bound| bound.used.saturating_add(need) > bound.limit_for(cost);
    match bounds.iter().find(is_over) {
        Some(bound) => {
            Err(ObjectError::Quota { property: bound.property(), limit: bound.limit, used: bound.used, need })
        }
        None => Ok(()),
    }
}
