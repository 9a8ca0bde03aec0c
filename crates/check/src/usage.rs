//! Space usage: every stored byte of a pool by purpose.
//!
//! The source is the zones' own directories, not the trees. They list every block ever written, with its
//! owner and size, in device order. So one pass finds live blocks, garbage and the rest (padding,
//! directories, headers), and the sum is what was written to the device, to the byte.
//!
//! Invariant: live bytes, garbage and the rest add up to the claimed bytes of all zones.

use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_dataset::{DatasetError, open_any_set};
use terrane_format::Owner;
use terrane_format::directory::{POOL_DEAD_LOG, POOL_RECORD, SPILL};
use terrane_format::granule_bytes;
use terrane_format::rows::Phase;
use terrane_object::objset::{FREE_QUEUE, HEADER};
use terrane_object::{ObjectError, ObjectKind, ObjectSets};
use terrane_store::explain::EntryState;
use terrane_wire::ObjectId;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Contents of files and long targets of symbolic links.
    Contents,
    /// Names of directories.
    Names,
    /// Other ZAPs: tables of attributes, the delete queue, objects of the library.
    Zaps,
    /// Blocks of dnodes.
    Dnodes,
    /// Attributes that did not fit their dnode.
    Spills,
    /// Indirect blocks of the above.
    Indirect,
    /// Headers of object sets.
    Headers,
    /// Subtrees that wait to be freed.
    FreeQueue,
    /// Everything in the meta object set.
    Meta,
    /// Commit records and dead-log blocks.
    Records,
    /// Tables of zones.
    Tables,
}

impl Purpose {
    /// All purposes.
    pub const ALL: [Purpose; 11] = [
        Purpose::Contents,
        Purpose::Names,
        Purpose::Zaps,
        Purpose::Dnodes,
        Purpose::Spills,
        Purpose::Indirect,
        Purpose::Headers,
        Purpose::FreeQueue,
        Purpose::Meta,
        Purpose::Records,
        Purpose::Tables,
    ];

    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Contents => "file contents",
            Purpose::Names => "directories",
            Purpose::Zaps => "other ZAPs",
            Purpose::Dnodes => "dnodes",
            Purpose::Spills => "spilled attributes",
            Purpose::Indirect => "indirect blocks",
            Purpose::Headers => "object set headers",
            Purpose::FreeQueue => "free queue",
            Purpose::Meta => "meta object set",
            Purpose::Records => "commit records",
            Purpose::Tables => "zone tables",
        }
    }
}

/// The live blocks of one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurposeUsage {
    /// Stored copies.
    pub copies: u64,
    /// Their stored bytes.
    pub stored: u64,
    /// The space they take: each copy rounded up to a granule.
    pub live: u64,
}

/// Every claimed byte of a pool's zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live blocks. A purpose without blocks has no entry.
    pub shares: BTreeMap<Purpose, PurposeUsage>,
    /// Garbage: bytes of freed blocks, in zones that were not reset yet.
    pub dead: u64,
    /// Zone headers, directory parts, and padding to write units.
    pub overhead: u64,
    /// The sum: what was written to the device and not reclaimed.
    pub claimed: u64,
}

impl Usage {
    /// Bytes of all live blocks.
    pub fn live(&self) -> u64 {
        self.shares.values().map(|share| share.live).fold(0, u64::saturating_add)
    }
}

/// Reads the directories of all zones. Nothing may change the pool meanwhile.
///
/// # Errors
/// If a directory or a table of dnodes cannot be read.
pub fn usage(objects: &Arc<ObjectSets>) -> Result<Usage, DatasetError> {
    let mut kinds: BTreeMap<u64, BTreeMap<u64, ObjectKind>> = BTreeMap::new();
    let mut sets = Vec::new();
    // If a dnode cannot be read only its kind is missing: its blocks are listed anyway.
    objects.mos().for_each_dnode(&mut |id, dnode| {
        if dnode.kind == ObjectKind::Objset {
            sets.push(id);
        }
    });
    for id in sets {
        let set = open_any_set(objects, id)?;
        let of_set = kinds.entry(set.id().0).or_default();
        set.for_each_dnode(&mut |id, dnode| {
            of_set.insert(id.0, dnode.kind);
        });
    }
    let kind_of =
        |objset: u64, object: u64| kinds.get(&objset).and_then(|of_set| of_set.get(&object)).copied();
    let purpose = |owner: Owner| match owner {
        Owner::Pool { structure: POOL_RECORD | POOL_DEAD_LOG } => Purpose::Records,
        Owner::Pool { .. } => Purpose::Tables,
        Owner::Block { objset: 0, .. } => Purpose::Meta,
        Owner::Block { object: HEADER, .. } => Purpose::Headers,
        Owner::Block { object, .. } if ObjectId(object) == FREE_QUEUE => Purpose::FreeQueue,
        Owner::Block { level, .. } if level > 0 => Purpose::Indirect,
        Owner::Block { object: 0, .. } => Purpose::Dnodes,
        Owner::Block { block: SPILL, .. } => Purpose::Spills,
        Owner::Block { objset, object, .. } => match kind_of(objset, object) {
            Some(ObjectKind::Directory) => Purpose::Names,
            Some(ObjectKind::File | ObjectKind::Symlink) => Purpose::Contents,
            _ => Purpose::Zaps,
        },
    };
    let mut usage = Usage::default();
    let pool = objects.pool();
    for zone in pool.zones().iter().filter(|zone| !matches!(zone.phase, Phase::Reclaimed)) {
        usage.claimed = usage.claimed.saturating_add(zone.claimed);
        usage.overhead = usage.overhead.saturating_add(zone.claimed);
        for (entry, standing) in pool.zone_directory(zone.seq).map_err(ObjectError::from)? {
            let bytes = granule_bytes(u64::from(entry.psize));
            usage.overhead = usage.overhead.saturating_sub(bytes);
            if standing != EntryState::Live {
                usage.dead += bytes;
                continue;
            }
            let share = usage.shares.entry(purpose(entry.owner)).or_default();
            share.copies += 1;
            share.stored += u64::from(entry.psize);
            share.live += bytes;
        }
    }
    Ok(usage)
}
