//! Whole contents of records of which a txg has a part.

use crate::part::Part;
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_pool::Pool;
use terrane_store::PoolError;
use terrane_store::workers::Pending;
use terrane_wire::Corrupt;

/// Records that workers decompress ahead of the one that is taken.
const AHEAD: usize = 16;

/// Contents of parts, in their order.
pub(super) struct PartContents<'a, I> {
    pool: &'a Pool,
    parts: I,
    under_way: VecDeque<(&'a Part, Pending<Result<Vec<u8>, Corrupt>>)>,
}

impl<'a, I: Iterator<Item = &'a Arc<Part>>> PartContents<'a, I> {
    pub fn new(pool: &'a Pool, parts: I) -> Self {
        PartContents { pool, parts, under_way: VecDeque::new() }
    }

    /// The content of the next part.
    pub fn take_next(&mut self) -> Result<Arc<Vec<u8>>, PoolError> {
        let more = self.parts.by_ref().take(AHEAD.saturating_sub(self.under_way.len()));
        self.under_way.extend(more.map(|part| (&**part, self.pool.unpack_on_worker(&part.base))));
        let (part, content) = self.under_way.pop_front().expect("a part is taken once");
        let mut content = content.wait()??;
        part.pieces.apply(&mut content);
        Ok(Arc::new(content))
    }
}
