//! Blocks that the pool wants written anew.

use parking_lot::Mutex;
use std::collections::VecDeque;
use terrane_pool::{RebirthCursor, Relic};

/// What is to be written anew.
#[derive(Default)]
pub(crate) struct Rebirth(pub Mutex<Named>);

#[derive(Default)]
pub(crate) struct Named {
    pub cursor: RebirthCursor,
    pub relics: VecDeque<Relic>,
}
