//! Lifetimes of files. The client reports creates, renames and deletes, and asks how long a new file may
//! live.
//!
//! Lifetimes are measured in bytes that users write meanwhile, which only the sync knows. So deaths wait here
//! until a txg has synced, and an unlink waits for nothing.
//!
//! Lock: a leaf; no other lock is taken under it.

use crate::pool::Pool;
use terrane_space::policy::{Prediction, SimilarityKey};
use terrane_txg::lifetimes::DEATHS_MAX;
use terrane_wire::Txg;

impl Pool {
    /// Records a new file. Returns how many bytes users will write to the pool until it dies, if similar
    /// files allow an estimate.
    pub fn note_file_created(&self, key: SimilarityKey) -> Option<u64> {
        let predictor = &mut self.lifetimes.0.lock().predictor;
        predictor.note_created(key);
        predictor.predict(key)
    }

    /// Records a rename: the file now counts with files that are similar to the new name. Returns their
    /// expected lifetime, as for a new file.
    pub fn note_file_renamed(&self, from: SimilarityKey, to: SimilarityKey) -> Option<u64> {
        let predictor = &mut self.lifetimes.0.lock().predictor;
        predictor.note_moved_away(from);
        predictor.note_created(to);
        predictor.predict(to)
    }

    /// What similar files tell about a file's life, for explanations. Nothing is recorded.
    pub fn explain_life(&self, key: SimilarityKey) -> Prediction {
        self.lifetimes.0.lock().predictor.explain(key)
    }

    /// Records that a file lost its last name; `birth` is the txg that created it.
    pub fn note_file_deleted(&self, key: SimilarityKey, birth: Txg) {
        let deaths = &mut self.lifetimes.0.lock().deaths;
        if deaths.len() < DEATHS_MAX {
            deaths.push((key, birth));
        }
    }
}
