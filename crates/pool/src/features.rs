//! The features that are in force in a pool, and how one is added.
//!
//! Invariant: a feature is in force only once every label from which the pool could be imported names it, durably. Otherwise an older
//! version could be led by the other anchor into a pool that holds what it cannot read.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_format::Feature;
use terrane_format::record::RowForm;
use terrane_store::PoolError;

impl Pool {
    /// Whether what the feature stands for may be written into this pool. Cheap enough to be asked by every operation.
    pub fn has(&self, feature: Feature) -> bool {
        self.membership.has(feature)
    }

    /// How zones are told of in records and sections.
    pub(crate) fn row_form(&self) -> RowForm {
        if self.has(Feature::Rows) { RowForm::Tailed } else { RowForm::Plain }
    }

    /// Adds features to the pool, in force when it returns; says which are new. All anchors are written anew, so groups from before
    /// can no longer be rolled back to. There is no way back.
    ///
    /// # Errors
    /// `ReadOnly`; `Failed`, also if a label could not be written: then nobody knows what the label says, and the pool takes no
    /// more changes until it is imported again. Nothing has used the feature by then.
    pub fn enable(self: &Arc<Self>, wanted: &[Feature]) -> Result<Vec<Feature>, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let mut st = self.sync.lock();
        self.reports.alive()?;
        let new: Vec<Feature> = {
            let mut label = self.membership.label_mut();
            let new: Vec<Feature> =
                wanted.iter().copied().filter(|feature| label.features.add(*feature)).collect();
            // Uberblocks repeat it, so it says what labels say: unless they are written anew, it stays.
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
        self.membership.put_in_force(new.iter().copied());
        log::info!("pool {}: new features: {:?}", self.name(), new);
        Ok(new)
    }
}
