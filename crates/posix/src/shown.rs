//! The inodes that the kernel knows of a data set that another process changes.
//!
//! A file that is removed there may leave its number to another one. Programs here may have the old one open, and the kernel names it by
//! its number. So it is noted which generation the kernel was told with each number. All states of the data set share the notes.

use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;

#[derive(Default)]
struct Told {
    generation: u64,
    /// Lookups that the kernel has counted and not forgotten, of all inodes that had the number: it does not say of which one it forgets
    /// them.
    lookups: u64,
}

/// Generations that the kernel was told, by the number of the inode.
#[derive(Default)]
pub struct ShownInodes(Mutex<HashMap<Ino, Told>>);

impl ShownInodes {
    /// An answer names this inode.
    pub fn note(&self, ino: Ino, generation: u64) {
        let mut told = self.0.lock();
        let told = told.entry(ino).or_default();
        told.generation = generation;
        told.lookups += 1;
    }

    /// The kernel has forgotten so many lookups.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut all = self.0.lock();
        if let Some(told) = all.get_mut(&ino) {
            told.lookups = told.lookups.saturating_sub(count);
            if told.lookups == 0 {
                all.remove(&ino);
            }
        }
    }

    /// Whether the kernel means another inode by this number than the one of this generation.
    pub fn is_another(&self, ino: Ino, generation: u64) -> bool {
        self.0.lock().get(&ino).is_some_and(|told| told.generation != generation)
    }
}
