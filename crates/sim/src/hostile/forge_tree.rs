//! Forged trees, written by the pool itself.
//!
//! This client of the pool descends from the root to a random block, and damages its contents. On the way up
//! it hands everything to the pool as an honest client would. So every checksum, directory entry and count of
//! live bytes is correct, and only the meaning is wrong.

use super::{Image, mutate};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrane_codec::{ChecksumKind, Compression};
use terrane_device::sim::Survival;
use terrane_device::{Device, SimDevice};
use terrane_format::directory::SPILL;
use terrane_format::{BlockPtr, Owner};
use terrane_object::dnode::{DNODE_BLOCK_BYTES, DnodeHead, SLOT_BYTES, dnodes_in};
use terrane_object::objset::HEADER;
use terrane_object::{ObjectKind, OwnerKind};
use terrane_oracle::{Failure, failed};
use terrane_pool::{Client, ImportOptions, Pool, Stream, Tx, TxgSync, WriteRequest};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};
use terrane_wire::Prng;
use terrane_wire::Txg;

/// Offset of the root pointer in a dnode, and of its bonus.
const ROOT_AT: usize = DnodeHead::SIZE;
const BONUS_AT: usize = ROOT_AT + BlockPtr::SIZE;

/// First slot of the tables of owners in the header of an object set, and the bytes of their state in its bonus.
const OWNERS_SLOT: usize = 3;
const OWNERS_STATE_BYTES: usize = 16;
/// Offset of the number of the object set in the bonus of a snapshot.
const SET_AT: usize = BlockPtr::SIZE + 40;

/// The client is shared, but only the sync thread uses its content.
struct TreeForger(Mutex<ForgeryPlan>);

struct ForgeryPlan {
    rng: Prng,
    /// The forgery to apply; `None`: any.
    fixed: Option<FixedForgery>,
    /// The meta object set: the pool holds its own lock while it syncs, and cannot be asked.
    root: BlockPtr,
    forged: bool,
    /// What was changed, and where.
    description: String,
}

impl TreeForger {
    fn plan(&self) -> MutexGuard<'_, ForgeryPlan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A given value for a number: in the header of the file system's objects, or in one of their dnodes.
#[derive(Clone, Copy, Debug)]
pub enum FixedForgery {
    /// The number of objects in the header.
    Objects(u64),
    /// The used bytes in a dnode.
    Used(u64),
    /// The txg of birth in a dnode.
    Birth(u64),
}

impl FixedForgery {
    fn in_header(self) -> bool {
        matches!(self, FixedForgery::Objects(_))
    }

    /// `at` is where header or dnode begin.
    fn apply(self, raw: &mut [u8], at: usize) {
        let (offset, value) = match self {
            FixedForgery::Objects(value) => (8, value),
            FixedForgery::Used(value) => (24, value),
            FixedForgery::Birth(value) => (32, value),
        };
        if let Some(field) = raw.get_mut(at + offset..at + offset + 8) {
            field.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// The part of the plan that the descent needs.
struct Descent<'a> {
    rng: &'a mut Prng,
    fixed: Option<FixedForgery>,
    description: &'a mut String,
}

/// What a pointer leads to.
#[derive(Clone, Copy, Debug)]
enum Target {
    Header { objset: u64 },
    Tree { objset: u64, object: u64, dnodes: bool, block: u64 },
}

impl Client for TreeForger {
    fn quiesced(&self, _last: &Tx) {}

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let plan = &mut *self.plan();
        if !plan.forged {
            let old = plan.root.clone();
            plan.description.clear();
            let mut descent =
                Descent { rng: &mut plan.rng, fixed: plan.fixed, description: &mut plan.description };
            plan.root = descend(txg_sync, &old, Target::Header { objset: 0 }, &mut descent)?;
            plan.forged = plan.root != old;
        }
        Ok(plan.root.clone())
    }

    fn synced(&self, _txg: Txg) {}
}

fn descend(
    txg_sync: &mut TxgSync<'_>,
    ptr: &BlockPtr,
    what: Target,
    descent: &mut Descent<'_>,
) -> Result<BlockPtr, PoolError> {
    if ptr.is_hole() {
        return Ok(ptr.clone());
    }
    let level = ptr.level();
    let owner = match what {
        Target::Header { objset } => Owner::Block { objset, object: HEADER, level: 0, block: 0 },
        Target::Tree { objset, object, block, .. } => Owner::Block { objset, object, level, block },
    };
    let mut raw = txg_sync.pool().read(ptr, owner)?.to_vec();
    let before = raw.clone();
    match what {
        Target::Header { objset } => {
            let fixed = descent.fixed.filter(|fixed| objset != 0 && fixed.in_header());
            if let Some(fixed) = fixed {
                fixed.apply(&mut raw, 0);
            } else if descent.fixed.is_none() && descent.rng.one_in(10) {
                // The head, one of the two dnodes, or one of the tables of owners: bytes between them have no meaning.
                let slot = descent.rng.below(3 + OwnerKind::ALL.len() as u64) as usize;
                let from = slot * SLOT_BYTES;
                let end = match slot {
                    0 => DnodeHead::SIZE,
                    OWNERS_SLOT => from + BONUS_AT + OWNERS_STATE_BYTES,
                    _ => from + BONUS_AT,
                };
                mutate(&mut raw, from..end, descent.rng);
            } else if descent.fixed.is_none() && descent.rng.one_in(6) {
                let kind = *descent.rng.one_of(&OwnerKind::ALL);
                let object = kind.table_id().0;
                let tree = Target::Tree { objset, object, dnodes: false, block: 0 };
                let at = (OWNERS_SLOT + kind as usize) * SLOT_BYTES + ROOT_AT;
                replace_pointer(txg_sync, &mut raw, at, tree, descent)?;
            } else {
                let tree = Target::Tree { objset, object: 0, dnodes: true, block: 0 };
                replace_pointer(txg_sync, &mut raw, SLOT_BYTES + ROOT_AT, tree, descent)?;
            }
        }
        Target::Tree { .. } if level > 0 => {
            let children = (raw.len() / BlockPtr::SIZE) as u64;
            let child = descent.rng.below(children);
            if descent.fixed.is_none() && descent.rng.one_in(8) {
                mutate(&mut raw, 0..before.len(), descent.rng);
            } else {
                let Target::Tree { objset, object, dnodes, block } = what else { return Ok(ptr.clone()) };
                let below = Target::Tree { objset, object, dnodes, block: block * 128 + child };
                replace_pointer(txg_sync, &mut raw, child as usize * BlockPtr::SIZE, below, descent)?;
            }
        }
        Target::Tree { objset, dnodes: true, block, .. } => {
            let found = dnodes_in(&raw, &"dnodes")?;
            let which = descent.rng.below(found.len() as u64) as usize;
            if let Some((offset, dnode)) = found.get(which) {
                let object =
                    block * u64::from(DNODE_BLOCK_BYTES) / SLOT_BYTES as u64 + (offset / SLOT_BYTES) as u64;
                let end = offset + dnode.stored_bytes();
                let has_spill = !dnode.spill.is_hole();
                let slot = *offset..if has_spill { end } else { offset + BONUS_AT + dnode.bonus.len() };
                if let Some(fixed) = descent.fixed.filter(|_| objset != 0) {
                    if matches!(dnode.kind, ObjectKind::File | ObjectKind::Directory) {
                        fixed.apply(&mut raw, *offset);
                    }
                } else if descent.fixed.is_none() && has_spill && descent.rng.one_in(4) {
                    let spill = Target::Tree { objset, object, dnodes: false, block: SPILL };
                    replace_pointer(txg_sync, &mut raw, end - BlockPtr::SIZE, spill, descent)?;
                } else if descent.fixed.is_none() && descent.rng.one_in(3) {
                    mutate(&mut raw, slot, descent.rng);
                } else if dnode.kind == ObjectKind::Snapshot && descent.fixed.is_none() {
                    let set = dnode.bonus.get(SET_AT..SET_AT + 8).and_then(|raw| raw.try_into().ok());
                    let objset = set.map_or(0, u64::from_le_bytes);
                    let header = Target::Header { objset };
                    replace_pointer(txg_sync, &mut raw, offset + BONUS_AT, header, descent)?;
                } else if dnode.kind == ObjectKind::Objset {
                    replace_pointer(
                        txg_sync,
                        &mut raw,
                        offset + BONUS_AT,
                        Target::Header { objset: object },
                        descent,
                    )?;
                } else if descent.fixed.is_some() {
                    // From the meta object set the descent continues in another dnode.
                } else if dnode.root.is_hole() {
                    mutate(&mut raw, slot, descent.rng);
                } else {
                    let tree = Target::Tree { objset, object, dnodes: false, block: 0 };
                    replace_pointer(txg_sync, &mut raw, offset + ROOT_AT, tree, descent)?;
                }
            }
        }
        Target::Tree { .. } if descent.fixed.is_some() => {}
        Target::Tree { .. } => {
            // Structures begin with their most important fields.
            let end = if descent.rng.one_in(2) { raw.len().min(256) } else { raw.len() };
            mutate(&mut raw, 0..end, descent.rng);
        }
    }
    if raw == before {
        return Ok(ptr.clone());
    }
    if descent.description.is_empty() {
        let differs = |at: &usize| raw.get(*at) != before.get(*at);
        let first = (0..raw.len()).find(differs).unwrap_or(0);
        let last = (0..raw.len()).rev().find(differs).unwrap_or(0);
        let (old, new) = (before.get(first..=last), raw.get(first..=last));
        *descent.description = format!(
            "{what:?} level {level}, bytes {first} to {last} of {}: {old:x?} became {new:x?}",
            raw.len()
        );
    }
    if descent.fixed.is_none() && matches!(what, Target::Tree { .. }) && level == 0 && descent.rng.one_in(20)
    {
        raw.truncate(1 + descent.rng.below(before.len() as u64) as usize);
    }
    let request = WriteRequest {
        data: Arc::new(raw),
        kind: ptr.kind(),
        compression: Compression::Lz4.into(),
        checksum: ChecksumKind::Blake3,
        owner,
        fill: ptr.fill(),
        content_birth: None,
        stream: Stream::Metadata,
        may_embed: false,
        replaces: None,
    };
    let mut written = txg_sync.write(vec![request])?;
    txg_sync.release(ptr);
    Ok(written.remove(0))
}

/// Descends one pointer of a block, and replaces it by the new one.
fn replace_pointer(
    txg_sync: &mut TxgSync<'_>,
    raw: &mut [u8],
    at: usize,
    what: Target,
    descent: &mut Descent<'_>,
) -> Result<(), PoolError> {
    let Some(place) = raw.get_mut(at..at + BlockPtr::SIZE) else { return Ok(()) };
    let ptr = BlockPtr::parse(place, &"pointer")?;
    let new = descend(txg_sync, &ptr, what, descent)?;
    if new != ptr {
        place.copy_from_slice(&new.encode());
    }
    Ok(())
}

/// A pool without object sets, for a client of its own.
pub(super) fn import_pool(device: &SimDevice, seed: u64) -> Result<Arc<Pool>, Failure> {
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let options = ImportOptions { cache_bytes: 2 << 20, ..ImportOptions::default() };
    Pool::import(devices, env, &options).map_err(failed("import"))
}

/// One forgery somewhere in the trees of a copy of the image. `None`: the descent ended in a hole.
pub(super) fn forge_in_tree(
    image: &Image,
    rng: &mut Prng,
    fixed: Option<FixedForgery>,
) -> Result<Option<(SimDevice, String)>, Failure> {
    let device = image.copy();
    let pool = import_pool(&device, rng.next_u64())?;
    let plan = ForgeryPlan {
        rng: Prng::new(rng.next_u64()),
        fixed,
        root: pool.root(),
        forged: false,
        description: String::new(),
    };
    let forger = Arc::new(TreeForger(Mutex::new(plan)));
    pool.set_client(forger.clone());
    for _ in 0..if fixed.is_some() { 200 } else { 8 } {
        pool.commit_txg(pool.open_txg()).map_err(failed("commit"))?;
        if forger.plan().forged {
            break;
        }
    }
    pool.abandon();
    let plan = forger.plan();
    Ok(plan.forged.then(|| (device.restarted(Survival::Everything), plan.description.clone())))
}
