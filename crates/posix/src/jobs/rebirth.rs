//! Blocks that the pool wants written anew.

use std::collections::VecDeque;
use terrane_pool::{RebirthCursor, Relic};

/// What is to be written anew. Nothing of it is stored: after a crash the pool names it again.
#[derive(Default)]
pub(crate) struct Named {
    pub cursor: RebirthCursor,
    pub relics: VecDeque<Relic>,
}
