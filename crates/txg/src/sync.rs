//! State of the sync thread.

use crate::collector::Collector;
use crate::commit::ResetZone;
use crate::history::History;
use std::collections::VecDeque;
use terrane_format::block_ptr::BlockPtr;
use terrane_format::record::SectionPtr;
use terrane_space::alloc::Allocator;
use terrane_space::policy::NopwriteSampling;
use terrane_space::section_rotation::SectionRotation;
use terrane_store::append::{ColocatedCopy, Streams};
use terrane_store::commit_point::CommitPoint;
use terrane_wire::ZoneSeq;

/// State that only the sync thread touches.
pub struct SyncState {
    /// The open zones.
    pub streams: Streams,
    /// The empty zones.
    pub alloc: Allocator,
    /// Txg numbers below this one may be in use, as the uberblocks say.
    pub lease_txg: u64,
    /// The incarnation, which each writable import increments.
    pub incarnation: u64,
    /// Takes the uberblocks.
    pub commit_point: Box<dyn CommitPoint>,
    /// Committed txgs, as far as an import would need them.
    pub history: History,
    /// The table sections as last written, by number.
    pub sections: Vec<SectionPtr>,
    /// The order in which sections are rewritten.
    pub section_rotation: SectionRotation,
    /// The meta object set of the newest committed txg.
    pub root: BlockPtr,
    /// Zones that were reset since the last record, with the copies of their directory parts.
    pub resets_done: Vec<ResetZone>,
    /// Zones that became suspect since the last record. The next record names them.
    pub suspects: Vec<ZoneSeq>,
    /// Copies that lie in the same zone as the other copy of their block.
    pub colocated: VecDeque<ColocatedCopy>,
    /// State of GC.
    pub collector: Collector,
    /// Which overwrites are worth a comparison with the old block.
    pub nopwrite_sampling: NopwriteSampling,
}
