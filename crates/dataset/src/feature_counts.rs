//! Counts of what uses a feature: tiny ZAPs.
//!
//! A version that does not know tiny ZAPs may open a pool without one. So each change of a ZAP, and each
//! destruction of an object, tells the pool if there is one more or one less (`zap_form`). When a txg has
//! quiesced, the sum is stored in the MOS. The pool directory's entry `feature_uses` names a ZAP there:
//!
//! | name | number |
//! |---|---|
//! | a feature's | of its uses |
//! | `incarnation` | of the pool, whose commits these numbers belong to |
//!
//! A version that does not count leaves the ZAP as it is, and raises the incarnation in its commit records. That
//! is how a later import notices that the numbers may be false.
//!
//! Invariant: in the commits of an incarnation that is stored here, the numbers are right.

use crate::directory::{FEATURE_USES, POOL_DIRECTORY};
use crate::error::DatasetError;
use crate::mos_zap::{change_directory, find_in_directory};
use crate::zap_form::COUNTED;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use std::sync::Arc;
use terrane_format::features::FeatureState;
use terrane_object::{ObjectKind, ObjectSet};
use terrane_pool::Tx;
use terrane_store::read_retry::ReadRetry;
use terrane_txg::feature_uses::StoredCount;
use terrane_zap::Value;

/// The entry for the incarnation.
const INCARNATION: &[u8] = b"incarnation";
/// Metadata blocks that a change of the count dirties: the ZAP, the pool directory, and their dnodes.
const BLOCKS: u32 = 8;

/// Passes the stored count to the pool, and stores it with each txg from now on. Does nothing if that was done
/// before.
pub(crate) fn open(mos: &Arc<ObjectSet>) {
    let pool = mos.pool();
    let stored = load(mos).unwrap_or_else(|error| {
        log::warn!("pool {}: uses of features unknown: {error}", pool.name());
        None
    });
    if !pool.load_uses(COUNTED, stored) || pool.is_read_only() {
        return;
    }
    let (set, mut last) = (Arc::downgrade(mos), None);
    mos.on_txg_end(move |tx| {
        let Some(mos) = set.upgrade() else { return false };
        let found = tx.pool().uses_to_store(tx, COUNTED);
        let is_used = tx.pool().feature_state(COUNTED) != FeatureState::Disabled
            || found.is_none_or(|found| found.uses > 0);
        // A count of an earlier incarnation is invalid anyway.
        if found == last || !is_used && last.is_none() {
            return true;
        }
        tx.reserve_more(BLOCKS);
        let _waits = ReadRetry::unlimited();
        match store(&mos, tx, found.unwrap_or(StoredCount { uses: 0, incarnation: 0 })) {
            Ok(()) => last = found,
            Err(error) => tx.pool().fail_uses(&error),
        }
        true
    });
}

/// The ZAP of the counts, if there is a usable one.
fn find(mos: &Arc<ObjectSet>) -> Result<Option<ObjectZap>, DatasetError> {
    let Some(id) = find_in_directory(mos, FEATURE_USES)? else { return Ok(None) };
    let object = mos.hold(id)?;
    let is_zap = object.kind() == ObjectKind::Zap && object.id() != POOL_DIRECTORY;
    Ok(is_zap.then(|| ObjectZap::new(&ZapPolicy::of(mos), object)))
}

fn load(mos: &Arc<ObjectSet>) -> Result<Option<StoredCount>, DatasetError> {
    let Some(zap) = find(mos)? else { return Ok(None) };
    // A value of any other form is none of ours.
    let number = |name: &[u8]| -> Result<Option<u64>, DatasetError> {
        Ok(match zap.lookup(name)? {
            Some(Value::U64(number)) => Some(number),
            _ => None,
        })
    };
    let (uses, incarnation) = (number(COUNTED.row().name.as_bytes())?, number(INCARNATION)?);
    Ok(uses.zip(incarnation).map(|(uses, incarnation)| StoredCount { uses, incarnation }))
}

fn store(mos: &Arc<ObjectSet>, tx: &Tx, count: StoredCount) -> Result<(), DatasetError> {
    let known = find(mos).or_else(|error| if error.is_transient() { Err(error) } else { Ok(None) })?;
    if let Some(mut zap) = known {
        match put(&mut zap, tx, count) {
            Err(error) if !error.is_transient() => {}
            outcome => return outcome,
        }
    }
    // There is none yet, or it is damaged.
    let mut zap = ObjectZap::create(mos, &ZapPolicy::of(mos), tx, ObjectKind::Zap)?;
    put(&mut zap, tx, count)?;
    change_directory(mos, |directory| Ok(directory.update_u64(tx, FEATURE_USES, zap.object().id().0)?))
}

fn put(zap: &mut ObjectZap, tx: &Tx, count: StoredCount) -> Result<(), DatasetError> {
    zap.update_u64(tx, COUNTED.row().name.as_bytes(), count.uses)?;
    zap.update_u64(tx, INCARNATION, count.incarnation)?;
    Ok(())
}
