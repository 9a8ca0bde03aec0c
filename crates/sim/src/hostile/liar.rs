//! Forged trees, written by the pool itself.
//!
//! This client of the pool descends from the root to a random block, and damages its contents. On the way up
//! it hands everything to the pool as an honest client would. So every checksum, directory entry and count of
//! live bytes is correct, and only the meaning is wrong.

use super::{Image, lie};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrane_codec::{ChecksumKind, Compression};
use terrane_device::sim::Kept;
use terrane_device::{Device, SimDevice};
use terrane_format::directory::SPILL;
use terrane_format::{BlockPtr, Owner};
use terrane_object::ObjectKind;
use terrane_object::dnode::{DNODE_BLOCK_BYTES, DnodeHead, SLOT_BYTES, dnodes_in};
use terrane_object::objset::HEADER;
use terrane_oracle::{Failure, failed};
use terrane_pool::{Client, Group, ImportOptions, Pool, Stream, Tx, WriteRequest};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};
use terrane_wire::Dice;
use terrane_wire::Txg;

/// Offset of the root pointer in a dnode, and of its bonus.
const ROOT_AT: usize = DnodeHead::SIZE;
const BONUS_AT: usize = ROOT_AT + BlockPtr::SIZE;

/// The client is shared, but only the sync thread uses its content.
struct Liar(Mutex<Plan>);

struct Plan {
    dice: Dice,
    /// The forgery to apply; `None`: any.
    certain: Option<Certain>,
    /// The meta object set: the pool holds its own lock while it syncs, and cannot be asked.
    root: BlockPtr,
    lied: bool,
    /// What was changed, and where.
    told: String,
}

impl Liar {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A given value for a number: in the header of the file system's objects, or in one of their dnodes.
#[derive(Clone, Copy, Debug)]
pub enum Certain {
    Objects(u64),
    Used(u64),
    Birth(u64),
}

impl Certain {
    fn in_header(self) -> bool {
        matches!(self, Certain::Objects(_))
    }

    /// `at` is where header or dnode begin.
    fn tell(self, raw: &mut [u8], at: usize) {
        let (offset, value) = match self {
            Certain::Objects(value) => (8, value),
            Certain::Used(value) => (24, value),
            Certain::Birth(value) => (32, value),
        };
        if let Some(field) = raw.get_mut(at + offset..at + offset + 8) {
            field.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// The part of the plan that the descent needs.
struct Telling<'a> {
    dice: &'a mut Dice,
    certain: Option<Certain>,
    told: &'a mut String,
}

/// What a pointer leads to.
#[derive(Clone, Copy, Debug)]
enum What {
    Header { objset: u64 },
    Tree { objset: u64, object: u64, dnodes: bool, block: u64 },
}

impl Client for Liar {
    fn quiesced(&self, _last: &Tx) {}

    fn sync(&self, group: &mut Group<'_>) -> Result<BlockPtr, PoolError> {
        let plan = &mut *self.plan();
        if !plan.lied {
            let old = plan.root.clone();
            plan.told.clear();
            let mut telling = Telling { dice: &mut plan.dice, certain: plan.certain, told: &mut plan.told };
            plan.root = descend(group, &old, What::Header { objset: 0 }, &mut telling)?;
            plan.lied = plan.root != old;
        }
        Ok(plan.root.clone())
    }

    fn synced(&self, _txg: Txg) {}
}

fn descend(
    group: &mut Group<'_>,
    ptr: &BlockPtr,
    what: What,
    telling: &mut Telling<'_>,
) -> Result<BlockPtr, PoolError> {
    if ptr.is_hole() {
        return Ok(ptr.clone());
    }
    let level = ptr.level();
    let owner = match what {
        What::Header { objset } => Owner::Block { objset, object: HEADER, level: 0, block: 0 },
        What::Tree { objset, object, block, .. } => Owner::Block { objset, object, level, block },
    };
    let mut raw = group.pool().read(ptr, owner)?.to_vec();
    let before = raw.clone();
    match what {
        What::Header { objset } => {
            let certain = telling.certain.filter(|certain| objset != 0 && certain.in_header());
            if let Some(certain) = certain {
                certain.tell(&mut raw, 0);
            } else if telling.certain.is_none() && telling.dice.one_in(10) {
                // The head, or one of the two dnodes: bytes between them have no meaning.
                let from = telling.dice.below(3) as usize * SLOT_BYTES;
                let end = if from == 0 { DnodeHead::SIZE } else { from + BONUS_AT };
                lie(&mut raw, from..end, telling.dice);
            } else {
                let tree = What::Tree { objset, object: 0, dnodes: true, block: 0 };
                patch(group, &mut raw, SLOT_BYTES + ROOT_AT, tree, telling)?;
            }
        }
        What::Tree { .. } if level > 0 => {
            let children = (raw.len() / BlockPtr::SIZE) as u64;
            let child = telling.dice.below(children);
            if telling.certain.is_none() && telling.dice.one_in(8) {
                lie(&mut raw, 0..before.len(), telling.dice);
            } else {
                let What::Tree { objset, object, dnodes, block } = what else { return Ok(ptr.clone()) };
                let below = What::Tree { objset, object, dnodes, block: block * 128 + child };
                patch(group, &mut raw, child as usize * BlockPtr::SIZE, below, telling)?;
            }
        }
        What::Tree { objset, dnodes: true, block, .. } => {
            let found = dnodes_in(&raw, &"dnodes")?;
            let which = telling.dice.below(found.len() as u64) as usize;
            if let Some((offset, dnode)) = found.get(which) {
                let object =
                    block * u64::from(DNODE_BLOCK_BYTES) / SLOT_BYTES as u64 + (offset / SLOT_BYTES) as u64;
                let end = offset + dnode.stored_bytes();
                let has_spill = !dnode.spill.is_hole();
                let slot = *offset..if has_spill { end } else { offset + BONUS_AT + dnode.bonus.len() };
                if let Some(certain) = telling.certain.filter(|_| objset != 0) {
                    if matches!(dnode.kind, ObjectKind::File | ObjectKind::Directory) {
                        certain.tell(&mut raw, *offset);
                    }
                } else if telling.certain.is_none() && has_spill && telling.dice.one_in(4) {
                    let spill = What::Tree { objset, object, dnodes: false, block: SPILL };
                    patch(group, &mut raw, end - BlockPtr::SIZE, spill, telling)?;
                } else if telling.certain.is_none() && telling.dice.one_in(3) {
                    lie(&mut raw, slot, telling.dice);
                } else if dnode.kind == ObjectKind::Objset {
                    patch(group, &mut raw, offset + BONUS_AT, What::Header { objset: object }, telling)?;
                } else if telling.certain.is_some() {
                    // From the meta object set the descent continues in another dnode.
                } else if dnode.root.is_hole() {
                    lie(&mut raw, slot, telling.dice);
                } else {
                    let tree = What::Tree { objset, object, dnodes: false, block: 0 };
                    patch(group, &mut raw, offset + ROOT_AT, tree, telling)?;
                }
            }
        }
        What::Tree { .. } if telling.certain.is_some() => {}
        What::Tree { .. } => {
            // Structures begin with their most important fields.
            let end = if telling.dice.one_in(2) { raw.len().min(256) } else { raw.len() };
            lie(&mut raw, 0..end, telling.dice);
        }
    }
    if raw == before {
        return Ok(ptr.clone());
    }
    if telling.told.is_empty() {
        let differs = |at: &usize| raw.get(*at) != before.get(*at);
        let first = (0..raw.len()).find(differs).unwrap_or(0);
        let last = (0..raw.len()).rev().find(differs).unwrap_or(0);
        let (old, new) = (before.get(first..=last), raw.get(first..=last));
        *telling.told = format!(
            "{what:?} level {level}, bytes {first} to {last} of {}: {old:x?} became {new:x?}",
            raw.len()
        );
    }
    if telling.certain.is_none() && matches!(what, What::Tree { .. }) && level == 0 && telling.dice.one_in(20)
    {
        raw.truncate(1 + telling.dice.below(before.len() as u64) as usize);
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
    let mut written = group.write(vec![request])?;
    group.release(ptr);
    Ok(written.remove(0))
}

/// Descends one pointer of a block, and replaces it by the new one.
fn patch(
    group: &mut Group<'_>,
    raw: &mut [u8],
    at: usize,
    what: What,
    telling: &mut Telling<'_>,
) -> Result<(), PoolError> {
    let Some(place) = raw.get_mut(at..at + BlockPtr::SIZE) else { return Ok(()) };
    let ptr = BlockPtr::parse(place, &"pointer")?;
    let new = descend(group, &ptr, what, telling)?;
    if new != ptr {
        place.copy_from_slice(&new.encode());
    }
    Ok(())
}

/// One forgery somewhere in the trees of a copy of the image. `None`: the descent ended in a hole.
pub(super) fn lie_in_a_tree(
    image: &Image,
    dice: &mut Dice,
    certain: Option<Certain>,
) -> Result<Option<(SimDevice, String)>, Failure> {
    let device = image.copy();
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(dice.word()));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let options = ImportOptions { cache_bytes: 2 << 20, ..ImportOptions::default() };
    let pool = Pool::import(devices, env, &options).map_err(failed("import"))?;
    let plan =
        Plan { dice: Dice::new(dice.word()), certain, root: pool.root(), lied: false, told: String::new() };
    let liar = Arc::new(Liar(Mutex::new(plan)));
    pool.set_client(liar.clone());
    for _ in 0..if certain.is_some() { 200 } else { 8 } {
        pool.commit_txg(pool.open_txg()).map_err(failed("commit"))?;
        if liar.plan().lied {
            break;
        }
    }
    pool.abandon();
    let plan = liar.plan();
    Ok(plan.lied.then(|| (device.restarted(Kept::Everything), plan.told.clone())))
}
