//! Opens the object sets of data sets, each with the policy that decides about its frees.
//!
//! Invariant: only this module opens object sets of data sets, so their [`Chain`] decides about all their frees.

use crate::chain::{Chain, Link, hold_part, report};
use crate::error::DatasetError;
use crate::node::{DEAD_LIST, Node, ORIGIN, SNAPSHOTS};
use crate::owners::CountOwners;
use crate::snapshot_info::SnapshotInfo;
use crate::zap_store::ObjectZap;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrane_object::{ObjectError, ObjectKind, ObjectSet, ObjectSets};
use terrane_store::PoolError;
use terrane_wire::{Corrupt, ObjectId, Txg};

/// Snapshots of a data set are read after it was opened if the ZAP of their names is larger: some 250 names.
const NAMES_BYTES_MAX: u64 = 16 << 10;

/// Opens the object set of a data set, if it is not open.
///
/// # Errors
/// The object is unreadable, or an object that the node refers to.
pub(crate) fn open_set(objects: &ObjectSets, node: &Node) -> Result<Arc<ObjectSet>, DatasetError> {
    if let Some(set) = objects.find_open(node.set) {
        return Ok(set);
    }
    let mos = objects.mos();
    let origin = match node.get(ORIGIN)? {
        Some(id) => read_snapshot(mos, id)?.created,
        None => Txg(0),
    };
    let head_list = node.get(DEAD_LIST)?.unwrap_or(ObjectId(0));
    let chain = match many_snapshots(objects, node)? {
        Some(names) if head_list != ObjectId(0) => Chain::unread(mos, origin, names, head_list),
        _ => {
            let snapshots = snapshots_of(mos, node)?;
            let links: Vec<Link> = snapshots.iter().map(|(_, info)| Link::of(info)).collect();
            let due = due_lists(mos, links.iter().map(|link| link.dead_list).chain([head_list]))?;
            Chain::new(mos, origin, links, head_list, due)
        }
    };
    let set = objects.open_objset(node.set, chain)?;
    set.set_owner_policy(Arc::new(CountOwners));
    Ok(set)
}

/// The ZAP with the names of the snapshots of a data set, if there are so many that they should be read later. `None` as well if they
/// cannot, because some blocks wait to be freed.
pub(crate) fn many_snapshots(objects: &ObjectSets, node: &Node) -> Result<Option<ObjectId>, DatasetError> {
    let mos = objects.mos();
    let Some(names) = node.get(SNAPSHOTS)? else { return Ok(None) };
    let object = mos.hold(names)?;
    let bytes = object.block_count().saturating_mul(u64::from(object.block_size()));
    let is_drained = match objects.identity(node.set)? {
        Some(identity) => mos.hold(identity.free_queue)?.block_count() == 0,
        None => false,
    };
    Ok(Some(names).filter(|_| bytes > NAMES_BYTES_MAX && is_drained))
}

/// Of these lists, those that are due for a scan. A damaged one is reported. Nothing is freed in a pool that is open read-only.
pub(crate) fn due_lists(
    mos: &Arc<ObjectSet>,
    lists: impl Iterator<Item = ObjectId>,
) -> Result<BTreeSet<ObjectId>, ObjectError> {
    let mut due = BTreeSet::new();
    if mos.pool().is_read_only() {
        return Ok(due);
    }
    for list in lists.filter(|list| *list != ObjectId(0)) {
        match hold_part(mos, list) {
            Ok((_, info)) if info.is_scan_due => drop(due.insert(list)),
            Ok(_) => {}
            Err(error) => report(mos, error)?,
        }
    }
    Ok(due)
}

/// The snapshots of a data set with their names, oldest first.
pub(crate) fn snapshots_of(
    mos: &Arc<ObjectSet>,
    node: &Node,
) -> Result<Vec<(Vec<u8>, SnapshotInfo)>, DatasetError> {
    match node.zap_of(SNAPSHOTS)? {
        Some(names) => snapshots_in(mos, &names),
        None => Ok(Vec::new()),
    }
}

/// The snapshots in a ZAP of names, oldest first.
pub(crate) fn snapshots_in(
    mos: &Arc<ObjectSet>,
    names: &ObjectZap,
) -> Result<Vec<(Vec<u8>, SnapshotInfo)>, DatasetError> {
    let mut found = Vec::new();
    for entry in names.entries()? {
        let (Some(name), terrane_zap::Value::U64(number)) = (entry.key.name(), &entry.value) else {
            return Err(DatasetError::Damaged {
                at: "snapshots of a data set",
                expected: "names, with a number each".to_string(),
                found: format!("{:?}", entry.key),
            });
        };
        found.push((name.to_vec(), read_snapshot(mos, ObjectId(*number))?));
    }
    found.sort_by_key(|(_, info)| info.created);
    Ok(found)
}

/// What is stored of a snapshot.
pub(crate) fn read_snapshot(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<SnapshotInfo, ObjectError> {
    let object = mos.hold(id)?;
    if object.kind() != ObjectKind::Snapshot {
        let at = format!("snapshot, object {id} of the meta object set");
        return Err(PoolError::from(Corrupt::new(
            at,
            "kind",
            "Snapshot",
            format_args!("{:?}", object.kind()),
        ))
        .into());
    }
    Ok(SnapshotInfo::parse(&object.bonus(), id, mos.pool().open_txg()).map_err(PoolError::from)?)
}
