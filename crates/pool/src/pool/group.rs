//! A group that syncs, and what it is asked to write.

use super::{Pool, SyncState};
use std::sync::Arc;
use terrane_codec::ChecksumKind;
use terrane_format::block_ptr::{BlockPtr, Key};
use terrane_format::directory::Owner;
use terrane_space::policy::Placement;
use terrane_txg::commit::CommitBuilder;
use terrane_txg::levels::Method;
use terrane_wire::Txg;

/// Where a block should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Two copies in different zones.
    Metadata,
    /// One copy, in one of the data zones.
    Data(Placement),
}

/// A block to be written.
pub struct WriteRequest {
    /// The logical bytes. Trailing zeros may be left out by the caller who can tell.
    pub data: Arc<Vec<u8>>,
    pub kind: u8,
    pub compression: Method,
    pub checksum: ChecksumKind,
    pub owner: Owner,
    pub fill: u64,
    /// The group that the content is from, if the block is only stored anew. `None`: the one that syncs.
    pub content_birth: Option<Txg>,
    pub stream: Stream,
    /// May be embedded in its pointer.
    pub may_embed: bool,
    /// The pointer that the new one takes the place of, if its block may stay where nothing changed: then it comes back as it is, and must
    /// not be released. Its group tells: that of a new pointer is the group that syncs.
    pub replaces: Option<BlockPtr>,
}

/// One group while it syncs.
pub struct Group<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) st: &'a mut SyncState,
    pub(crate) txg: Txg,
    pub(crate) commit: CommitBuilder,
    /// Something that was written before is free now.
    pub(crate) released: bool,
    /// Blocks that were released and may still be cached.
    pub(crate) uncached: Vec<Key>,
    pub(crate) started_ns: u64,
    /// Bytes that were written to it, before compression.
    pub(crate) logical_bytes: u64,
}
