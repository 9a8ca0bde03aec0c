//! Blocks that the pool wants rewritten.

use std::collections::VecDeque;
use terrane_pool::{RelocatedBlock, RewriteCursor};

/// Blocks to rewrite. Nothing of this is stored: after a crash the pool names them again.
#[derive(Default)]
pub(crate) struct RelocatedQueue {
    /// How far the pool has named blocks.
    pub cursor: RewriteCursor,
    /// Blocks that are named and not checked yet.
    pub blocks: VecDeque<RelocatedBlock>,
}
