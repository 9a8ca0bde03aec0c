//! Blocks that the pool wants rewritten.

use std::collections::VecDeque;
use terrane_pool::{RebirthCursor, Relic};

/// Blocks to rewrite. Nothing of this is stored: after a crash the pool names them again.
#[derive(Default)]
pub(crate) struct Named {
    pub cursor: RebirthCursor,
    pub relics: VecDeque<Relic>,
}
