//! Whole contents of records of which a txg has a part.

use crate::part::Part;
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_pool::Pool;
use terrane_store::PoolError;
use terrane_store::workers::Pending;
use terrane_wire::Corrupt;

/// Most records that workers decompress ahead of the one that is taken, and most bytes of all but the last.
const AHEAD: usize = 16;
const AHEAD_BYTES: usize = 4 << 20;

/// The content of a record, before its new bytes are in place.
type Unpacked = Pending<Result<Vec<u8>, Corrupt>>;

/// Contents of parts, in their order.
pub(super) struct PartContents<'a, I> {
    pool: &'a Pool,
    parts: I,
    under_way: VecDeque<(&'a Part, Unpacked)>,
    under_way_bytes: usize,
    /// Bytes that were taken.
    pub taken_bytes: usize,
}

impl<'a, I: Iterator<Item = &'a Arc<Part>>> PartContents<'a, I> {
    pub fn new(pool: &'a Pool, parts: I) -> Self {
        PartContents { pool, parts, under_way: VecDeque::new(), under_way_bytes: 0, taken_bytes: 0 }
    }

    /// The content of the next part.
    pub fn take_next(&mut self) -> Result<Arc<Vec<u8>>, PoolError> {
        while self.under_way.len() < AHEAD
            && self.under_way_bytes < AHEAD_BYTES
            && let Some(part) = self.parts.next()
        {
            self.under_way_bytes += part.base.content_bytes();
            self.under_way.push_back((part, self.pool.unpack_on_worker(&part.base)));
        }
        let (part, content) = self.under_way.pop_front().expect("a part is taken once");
        self.under_way_bytes -= part.base.content_bytes();
        self.taken_bytes += part.base.content_bytes();
        let mut content = content.wait()??;
        part.pieces.apply(&mut content);
        Ok(Arc::new(content))
    }
}
