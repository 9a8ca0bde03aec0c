//! Features: which may be written, which are active, and how that changes.
//!
//! A feature is enabled before it is used, and becomes active by its first use. The commit of a txg that uses
//! a feature makes it active in all labels, before the uberblock of the txg. So no crash leaves a use that the
//! labels do not tell. A counted feature without a use becomes merely enabled again, once no txg that can be
//! rolled back to has a use. Features whose uses are not counted need a walk over the pool for that.
//!
//! Invariants:
//! * A feature is in force only after every label from which the pool could be imported names it durably.
//!   Otherwise an older version could import by the other anchor, and lose what it does not know.
//! * What the uberblocks reach uses only features that are active in the label of each uberblock.

use crate::pool::{Pool, SyncState, Tx, TxgSync};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_format::features::{FEATURES, Feature, FeatureState, UseTracking};
use terrane_format::record::RowForm;
use terrane_store::PoolError;
use terrane_txg::feature_uses::{StoredCount, WalkStart};
use terrane_txg::history::ROLLBACK_TXGS;
use terrane_wire::Txg;

/// A counted feature stays active for so many txgs without a use, because each change rewrites all anchors.
const UNUSED_TXGS: u64 = 64;

impl Pool {
    /// Whether structures of this feature may be written into the pool. It is cheap enough for a call in
    /// every operation. The writer of the first one calls [`note_use`](Pool::note_use).
    pub fn has(&self, feature: Feature) -> bool {
        self.membership.has(feature)
    }

    /// Format of zone rows in records and sections.
    pub(crate) fn row_form(&self) -> RowForm {
        if self.has(Feature::Rows) { RowForm::Tailed } else { RowForm::Plain }
    }

    /// The state of a feature by the label in memory.
    pub fn feature_state(&self, feature: Feature) -> FeatureState {
        self.membership.state(feature)
    }

    /// Something in a txg uses the feature. To be called before that txg quiesces, or while it syncs. It is
    /// cheap.
    pub fn note_use(&self, feature: Feature) {
        self.membership.uses.mark(feature);
    }

    /// Adds uses of a counted feature to the txg of `tx`, or ends some of them.
    pub fn change_uses(&self, _tx: &Tx, feature: Feature, by: i64) {
        self.membership.uses.change(feature, by);
    }

    /// The uses of a counted feature are unknown from now on. `why`: for the log.
    pub fn lose_uses(&self, feature: Feature, why: &str) {
        // A feature that is not in force has no use.
        if !self.has(feature) && self.uses(feature) == Some(0) {
            return;
        }
        if self.uses(feature).is_some() {
            log::warn!("pool {}: uses of feature {} unknown: {why}", self.name(), feature.row().name);
        }
        self.membership.uses.lose(feature);
    }

    /// Takes over the count of uses that is stored with the imported txg, once. False: that was done before.
    pub fn load_uses(&self, feature: Feature, stored: Option<StoredCount>) -> bool {
        self.membership.uses.load(feature, stored)
    }

    /// Uses of a counted feature in the last quiesced txg. `None`: unknown, or not counted.
    pub fn uses(&self, feature: Feature) -> Option<u64> {
        self.membership.uses.count(feature)
    }

    /// The count to store in the txg of `last`, which has quiesced. `None`: it is unknown.
    pub fn uses_to_store(&self, last: &Tx, feature: Feature) -> Option<StoredCount> {
        let uses = &self.membership.uses;
        uses.fold(last.txg());
        uses.begin_storing();
        uses.count(feature).map(|count| StoredCount { uses: count, incarnation: uses.record_incarnation() })
    }

    /// A count that a txg needs cannot be stored in it. Stops the pool: with the count before, a later import
    /// would take features for unused.
    pub fn fail_uses(&self, error: &dyn std::fmt::Display) {
        let reason = format!("uses of features cannot be stored: {error}");
        self.fail(&PoolError::Failed { reason: reason.into() });
    }

    /// Enables features. They are in force on return. Returns those that were disabled. All anchors are
    /// rewritten.
    ///
    /// # Errors
    /// `ReadOnly`; `Failed`, also if a label could not be written. Then the state of the labels is unknown,
    /// and the pool takes no changes until the next import. No structure of the feature was written before.
    pub fn enable(self: &Arc<Self>, wanted: &[Feature]) -> Result<Vec<Feature>, PoolError> {
        let mut st = self.begin_feature_change()?;
        let new: Vec<Feature> = {
            let mut label = self.membership.label_mut();
            let new: Vec<Feature> =
                wanted.iter().copied().filter(|feature| label.features.enable(*feature)).collect();
            // Uberblocks repeat the generation, so it must match the labels: it changes only if they are
            // rewritten.
            label.generation += u64::from(!new.is_empty());
            new
        };
        if new.is_empty() {
            return Ok(new);
        }
        self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
        self.membership.put_in_force(new.iter().copied());
        log::info!("pool {}: features enabled: {}", self.name(), names(&new));
        Ok(new)
    }

    /// Disables features that are not active. Returns those that were enabled. All anchors are rewritten.
    ///
    /// # Errors
    /// `Refused` if one is active; then none is disabled. The message has the number of uses, which may come from
    /// a walk (`found`). `ReadOnly`; `Failed` as for [`enable`](Pool::enable).
    pub fn disable(
        self: &Arc<Self>,
        unwanted: &[Feature],
        found: &BTreeMap<Feature, u64>,
    ) -> Result<Vec<Feature>, PoolError> {
        let mut st = self.begin_feature_change()?;
        if let Some(feature) =
            unwanted.iter().find(|feature| self.feature_state(**feature) == FeatureState::Active)
        {
            return Err(self.refuse_active(*feature, found.get(feature).copied()));
        }
        if unwanted.contains(&Feature::LogDevices) && !self.label().log_devices.is_empty() {
            // The label would not name them any more.
            let at = format_args!("pool {}, feature {}", self.name(), Feature::LogDevices.row().name);
            let remedy = "remove them first: terrane pool remove";
            return Err(PoolError::refused(at, "a pool without log devices", "some", remedy));
        }
        let is_enabled = |feature: &Feature| self.feature_state(*feature) == FeatureState::Enabled;
        let mut gone: Vec<Feature> = unwanted.iter().copied().filter(is_enabled).collect();
        gone.sort_unstable();
        gone.dedup();
        // An operation that still uses it makes it active with its txg.
        gone.iter().for_each(|feature| self.membership.end_force(*feature));
        self.set_states(&mut st, &gone, FeatureState::Disabled)?;
        Ok(gone)
    }

    fn refuse_active(&self, feature: Feature, found: Option<u64>) -> PoolError {
        let (row, uses) = (feature.row(), self.uses(feature).or(found));
        let found = match (row.tracking, uses) {
            (UseTracking::WhenEnabled, _) => "active: in use from the moment it is enabled".to_owned(),
            (_, Some(uses)) => format!("active: {uses} x {}", row.use_noun),
            (_, None) => format!("active: an unknown number of uses ({})", row.use_noun),
        };
        let remedy = match row.tracking {
            UseTracking::WhenEnabled => "make a new pool with --no-features to have one without it",
            _ => "remove what uses it, then try again; `terrane pool features --count` counts the uses",
        };
        let at = format_args!("pool {}, feature {}", self.name(), row.name);
        PoolError::refused(at, "a feature that is not active", found, remedy)
    }

    fn begin_feature_change(&self) -> Result<parking_lot::MutexGuard<'_, SyncState>, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let st = self.sync.lock();
        self.reports.check_running()?;
        Ok(st)
    }

    /// Changes the state of features in memory, then in all labels.
    fn set_states(
        &self,
        st: &mut SyncState,
        features: &[Feature],
        state: FeatureState,
    ) -> Result<(), PoolError> {
        {
            let mut label = self.membership.label_mut();
            let changed =
                features.iter().filter(|feature| label.features.set_state(**feature, state)).count();
            if changed == 0 {
                return Ok(());
            }
            // The first commit of a new pool writes its first labels anyway.
            if st.history.newest.is_none() {
                return Ok(());
            }
            label.generation += 1;
        }
        self.relabel(st).inspect_err(|error| self.fail(error))?;
        log::info!("pool {}: features {}: {}", self.name(), state.name(), names(features));
        Ok(())
    }

    /// Features of the pool that are active, but have no use in any txg that can be rolled back to.
    fn unused(&self, since: Txg) -> Vec<Feature> {
        let mut unused = self.membership.uses.unused_since(since);
        unused.retain(|feature| self.feature_state(*feature) == FeatureState::Active);
        unused
    }

    /// Before an export: makes counted features without a use merely enabled, so that a version that does not
    /// know them can take the pool.
    pub(crate) fn end_unused_features(self: &Arc<Self>) -> Result<(), PoolError> {
        for _ in 0..=ROLLBACK_TXGS + 1 {
            if self.unused(Txg(u64::MAX)).is_empty() {
                return Ok(());
            }
            {
                let mut st = self.sync.lock();
                let unused = self.unused(st.history.oldest);
                self.set_states(&mut st, &unused, FeatureState::Enabled)?;
            }
            // Txgs with a use can still be rolled back to.
            if !self.unused(Txg(u64::MAX)).is_empty() {
                self.commit_txg(self.admission.open())?;
            }
        }
        Ok(())
    }

    /// Begins a walk that counts the uses of features. The walk must see the state of a commit after this
    /// call.
    pub fn begin_use_walk(&self) -> WalkStart {
        self.membership.uses.begin_walk(self.membership.active())
    }

    /// Takes over what a walk over the whole pool has found. Features without a use become merely enabled, and
    /// earlier txgs can no longer be rolled back to. Returns the features that were used meanwhile, of which
    /// the walk proves nothing.
    ///
    /// # Errors
    /// `ReadOnly`; `Failed` as for [`enable`](Pool::enable).
    pub fn end_use_walk(
        self: &Arc<Self>,
        start: &WalkStart,
        found: &BTreeMap<Feature, u64>,
    ) -> Result<Vec<Feature>, PoolError> {
        let mut st = self.begin_feature_change()?;
        let (mut busy, mut unused) = (Vec::new(), Vec::new());
        for (feature, uses) in found {
            let tracking = feature.row().tracking;
            if tracking == UseTracking::WhenEnabled {
                continue;
            }
            if !self.membership.uses.end_walk(start, *feature, *uses) {
                busy.push(*feature);
            } else if *uses == 0 && self.feature_state(*feature) == FeatureState::Active {
                unused.push(*feature);
            }
        }
        if !unused.is_empty() {
            st.history.drop_rollback_txgs();
            self.set_states(&mut st, &unused, FeatureState::Enabled)?;
        }
        Ok(busy)
    }
}

impl TxgSync<'_> {
    /// Makes the features active that the quiesced txg uses. Called before its uberblock is written.
    pub(crate) fn update_features(&mut self) -> Result<(), PoolError> {
        let missing = self.pool.membership.uses.needed() & !self.pool.membership.active();
        if missing != 0 {
            let used = FEATURES.iter().map(|row| row.feature).filter(|feature| missing & feature.bit() != 0);
            return self.pool.set_states(self.st, &used.collect::<Vec<_>>(), FeatureState::Active);
        }
        let since = Txg(self.txg.0.saturating_sub(UNUSED_TXGS)).min(self.st.history.oldest);
        let unused = self.pool.unused(since);
        self.pool.set_states(self.st, &unused, FeatureState::Enabled)
    }
}

fn names(features: &[Feature]) -> String {
    features.iter().map(|feature| feature.row().name).collect::<Vec<_>>().join(", ")
}
