//! Opens the object sets of data sets, each with the policy that decides about its frees.
//!
//! Invariant: only this module opens object sets of data sets, so their [`Chain`] decides about all their frees.

use crate::chain::{Chain, Link, hold_part, report};
use crate::error::DatasetError;
use crate::node::{DEAD_LIST, Node, ORIGIN, SNAPSHOTS};
use crate::owners::CountOwners;
use crate::snapshot_info::SnapshotInfo;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrane_object::{ObjectError, ObjectKind, ObjectSet, ObjectSets};
use terrane_store::PoolError;
use terrane_wire::{Corrupt, ObjectId, Txg};

/// Opens the object set of a data set.
///
/// # Errors
/// The object is unreadable, or an object that the node refers to.
pub(crate) fn open_set(objects: &ObjectSets, node: &Node) -> Result<Arc<ObjectSet>, DatasetError> {
    let mos = objects.mos();
    let origin = match node.get(ORIGIN)? {
        Some(id) => read_snapshot(mos, id)?.created,
        None => Txg(0),
    };
    let snapshots = snapshots_of(mos, node)?;
    let links: Vec<Link> = snapshots.iter().map(|(_, info)| Link::of(info)).collect();
    let head_list = node.get(DEAD_LIST)?.unwrap_or(ObjectId(0));
    let due = due_lists(mos, links.iter().map(|link| link.dead_list).chain([head_list]))?;
    let set = objects.open_objset(node.set, Chain::new(mos, origin, links, head_list, due))?;
    set.set_owner_policy(Arc::new(CountOwners));
    Ok(set)
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
    let mut found = Vec::new();
    let Some(zap) = node.zap_of(SNAPSHOTS)? else { return Ok(found) };
    for entry in zap.entries()? {
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
