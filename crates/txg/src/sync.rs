//! State of the sync thread.

use crate::collector::Collector;
use crate::commit::ResetZone;
use crate::history::History;
use std::collections::VecDeque;
use terrane_format::block_ptr::BlockPtr;
use terrane_format::record::SectionPtr;
use terrane_space::alloc::Allocator;
use terrane_space::policy::Looks;
use terrane_space::turns::Turns;
use terrane_store::append::{Shared, Streams};
use terrane_store::commit_point::CommitPoint;
use terrane_wire::ZoneSeq;

/// State that only the sync thread touches.
pub struct SyncState {
    pub streams: Streams,
    pub alloc: Allocator,
    pub lease_txg: u64,
    pub incarnation: u64,
    pub commit_point: Box<dyn CommitPoint>,
    pub history: History,
    pub sections: Vec<SectionPtr>,
    pub turns: Turns,
    pub root: BlockPtr,
    /// Zones that were reset since the last record, with the copies of their directory parts.
    pub resets_done: Vec<ResetZone>,
    pub suspects: Vec<ZoneSeq>,
    /// Copies that lie in the same zone as the other copy of their block.
    pub shared: VecDeque<Shared>,
    pub collector: Collector,
    pub looks: Looks,
}
