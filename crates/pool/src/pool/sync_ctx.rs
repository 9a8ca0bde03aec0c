//! A syncing txg, and the requests to write blocks in it.

use super::{Pool, SyncState};
use crate::references::References;
use std::sync::Arc;
use terrane_codec::ChecksumKind;
use terrane_format::block_ptr::{BlockPtr, Key};
use terrane_format::directory::Owner;
use terrane_space::policy::Placement;
use terrane_store::workers::Pending;
use terrane_txg::commit::CommitBuilder;
use terrane_txg::levels::Method;
use terrane_wire::Txg;

/// Where to place a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Two copies in different zones.
    Metadata,
    /// One copy, in one of the data zones.
    Data(Placement),
}

/// A block to write.
pub struct WriteRequest {
    /// The logical bytes. A caller that knows the logical size may omit trailing zeros.
    pub data: Arc<Vec<u8>>,
    /// Id of the object's kind, for the pointer.
    pub kind: u8,
    /// How to compress it.
    pub compression: Method,
    /// The checksum that its pointer will hold.
    pub checksum: ChecksumKind,
    /// The owner, for the directory entry. It also gives the level in the tree.
    pub owner: Owner,
    /// `fill` of the pointer: 1 for a leaf; above, the sum over the pointers; for blocks of dnodes, their dnodes.
    pub fill: u64,
    /// The txg of the content, if the block is only stored anew. `None`: the syncing txg.
    pub content_birth: Option<Txg>,
    /// Where to place it, and in how many copies.
    pub stream: Stream,
    /// May be embedded in its pointer.
    pub may_embed: bool,
    /// The old pointer, if nopwrite is allowed. If nothing changed it is returned as is, and must not be
    /// released. Its birth tells: that of a new pointer is the syncing txg.
    pub replaces: Option<BlockPtr>,
}

/// One txg while it syncs.
pub struct TxgSync<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) st: &'a mut SyncState,
    pub(crate) txg: Txg,
    pub(crate) commit: CommitBuilder,
    /// A block of an earlier txg was freed.
    pub(crate) released: bool,
    /// Released blocks that may still be cached.
    pub(crate) uncached: Vec<Key>,
    pub(crate) started_ns: u64,
    /// Bytes that were written in this txg, before compression.
    pub(crate) logical_bytes: u64,
    /// References to shared blocks that it adds and frees.
    pub(crate) references: References,
    /// What workers drop meanwhile.
    pub(crate) dropping: Dropping,
}

/// Values that workers drop. Its own drop waits for them: no job outlives its txg, as the values may refer to the pool.
#[derive(Default)]
pub(crate) struct Dropping(Vec<Pending<()>>);

impl Drop for Dropping {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|pending| drop(pending.wait()));
    }
}

impl TxgSync<'_> {
    /// Drops `value` on a worker while the commit goes on: many objects take long. It is gone when the txg has ended.
    pub fn drop_on_worker(&mut self, value: impl Send + 'static) {
        let pending = self.pool.reader.pipeline.workers().submit(move |_| drop(value));
        self.dropping.0.push(pending);
    }
}
