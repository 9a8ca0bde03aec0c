//! Features in force in a pool, and how one is added.
//!
//! Invariant: a feature is in force only after every label from which the pool could be imported names it
//! durably. Otherwise an older version could import by the other anchor, and meet structures that it cannot
//! read.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_format::Feature;
use terrane_format::record::RowForm;
use terrane_store::PoolError;

impl Pool {
    /// Whether structures of this feature may be written into the pool. It is cheap enough for a call in
    /// every operation.
    pub fn has(&self, feature: Feature) -> bool {
        self.membership.has(feature)
    }

    /// Format of zone rows in records and sections.
    pub(crate) fn row_form(&self) -> RowForm {
        if self.has(Feature::Rows) { RowForm::Tailed } else { RowForm::Plain }
    }

    /// Adds features to the pool. They are in force on return, and stay forever. Returns those that are new.
    /// All anchors are rewritten, so earlier txgs can no longer be rolled back to.
    ///
    /// # Errors
    /// `ReadOnly`; `Failed`, also if a label could not be written. Then the state of the labels is unknown,
    /// and the pool takes no changes until the next import. No structure of the feature was written before.
    pub fn enable(self: &Arc<Self>, wanted: &[Feature]) -> Result<Vec<Feature>, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let mut st = self.sync.lock();
        self.reports.check_running()?;
        let new: Vec<Feature> = {
            let mut label = self.membership.label_mut();
            let new: Vec<Feature> =
                wanted.iter().copied().filter(|feature| label.features.add(*feature)).collect();
            // Uberblocks repeat the generation, so it must match the labels: it changes only if they are
            // rewritten.
            label.generation += u64::from(!new.is_empty());
            new
        };
        if new.is_empty() {
            return Ok(new);
        }
        if let Err(error) = self.relabel(&mut st) {
            self.fail(&error);
            return Err(error);
        }
        self.membership.activate(new.iter().copied());
        log::info!("pool {}: features enabled: {:?}", self.name(), new);
        Ok(new)
    }
}
