//! What only the thread touches that syncs a group.

use crate::state::collector::Collector;
use crate::state::commit::ResetZone;
use std::collections::VecDeque;
use terrane_format::block_ptr::BlockPtr;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::record::SectionPtr;
use terrane_space::alloc::Allocator;
use terrane_space::policy::Looks;
use terrane_space::turns::Turns;
use terrane_store::append::{Shared, Streams};
use terrane_store::commit_point::CommitPoint;
use terrane_wire::{Txg, ZoneSeq};

/// A record that replay would still need, or would after a rewind.
pub(crate) struct Chained {
    pub txg: Txg,
    pub ptr: BootPtr,
    pub dead_log: Vec<BootPtr>,
}

/// What only the syncing thread touches.
pub(crate) struct SyncState {
    pub streams: Streams,
    pub alloc: Allocator,
    pub lease_txg: u64,
    pub incarnation: u64,
    pub commit_point: Box<dyn CommitPoint>,
    /// The newest durable group, and its record: whether a replay needs that or not.
    pub newest: Option<(Txg, BootPtr)>,
    pub chain: VecDeque<Chained>,
    pub sections: Vec<SectionPtr>,
    pub turns: Turns,
    pub root: BlockPtr,
    /// Committed groups that can be rolled back to, with their records, oldest first.
    pub recent: VecDeque<(Txg, BootPtr)>,
    /// The group that was imported.
    pub imported: Txg,
    /// What the newest uberblock names as oldest whole group.
    pub oldest: Txg,
    /// Zones that were reset since the last record, with the copies of their directory parts.
    pub resets_done: Vec<ResetZone>,
    pub suspects: Vec<ZoneSeq>,
    /// Copies that lie where another copy does.
    pub shared: VecDeque<Shared>,
    pub collector: Collector,
    pub looks: Looks,
}
