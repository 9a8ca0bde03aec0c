//! The tree of branches in memory, loaded from the stored tree.

use super::{Datasets, readable_nodes, split};
use crate::branch::{Branch, OwnUsage};
use crate::chain::kept_bytes;
use crate::error::DatasetError;
use crate::free_policy::{read_snapshot, snapshots_of};
use crate::node::{DEAD_LIST, Node, ORIGIN};
use std::sync::Arc;
use terrane_object::ObjectSets;
use terrane_wire::ObjectId;

impl Datasets {
    /// The branch of a data set.
    pub fn branch(&self, path: &str) -> Result<Arc<Branch>, DatasetError> {
        match self.root.find(path) {
            Some(found) => Ok(found),
            None => self.node(path).and_then(|node| self.branch_of(path, &node)),
        }
    }

    /// The same for a data set that is new.
    pub(super) fn branch_of(&self, path: &str, node: &Node) -> Result<Arc<Branch>, DatasetError> {
        if let Some(found) = self.root.find(path) {
            return Ok(found);
        }
        let (parent, name) = split(path)?;
        let branch = self.branch(parent)?.grow(name, node.load_props()?);
        set_usage(&self.objects, node, &branch)?;
        Ok(branch)
    }

    /// Removes the branch of a data set.
    pub(super) fn cut_branch(&self, parent: &str, name: &str) {
        if let Some(above) = self.root.find(parent) {
            above.cut(name);
        }
    }

    /// Counts the space of a data set again after its object set or origin was replaced. The data set is not open, or only
    /// its origin has changed.
    pub(super) fn recount_branch(&self, path: &str) -> Result<(), DatasetError> {
        let (branch, node) = (self.branch(path)?, self.node(path)?);
        branch.set_shared(shared_bytes(&self.objects, &node)?);
        if !branch.is_open() {
            set_usage(&self.objects, &node, &branch)?;
        }
        Ok(())
    }
}

impl Drop for Datasets {
    fn drop(&mut self) {
        self.root.fell();
    }
}

/// The branches of all stored data sets.
pub(super) fn load(objects: &Arc<ObjectSets>) -> Result<Arc<Branch>, DatasetError> {
    let mos = objects.mos();
    let node = Node::root(mos)?;
    let root = Branch::root(node.load_props()?);
    if let Err(error) = set_usage(objects, &node, &root) {
        log::warn!("root data set not loaded wholly: {error}");
    }
    for (path, node) in readable_nodes(mos).iter().filter(|(path, _)| !path.is_empty()) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(parent) = root.find(parent) else { continue };
        let loaded = node.load_props().map(|props| parent.grow(name, props));
        if let Err(error) = loaded.and_then(|branch| set_usage(objects, node, &branch)) {
            log::warn!("data set {path} not loaded wholly: {error}");
        }
    }
    Ok(root)
}

/// Bytes that the origin of a clone refers to. They do not count as used by the clone.
fn shared_bytes(objects: &Arc<ObjectSets>, node: &Node) -> Result<u64, DatasetError> {
    let origin = node.get(ORIGIN)?.map(|id| read_snapshot(objects.mos(), id)).transpose()?;
    Ok(origin.map_or(0, |info| info.referenced.used_bytes))
}

/// Sets the space that a data set uses while it is not open.
fn set_usage(objects: &Arc<ObjectSets>, node: &Node, branch: &Branch) -> Result<(), DatasetError> {
    branch.set_shared(shared_bytes(objects, node)?);
    let (of, node) = (Arc::downgrade(objects), node.clone());
    branch.set_closed(move || {
        // The pool is being closed if there is none.
        let usage = stored_usage(&of.upgrade()?, &node);
        usage
            .inspect_err(|error| {
                log::warn!("object set {}: space of the data set not counted: {error}", node.set)
            })
            .ok()
    });
    Ok(())
}

/// The space that a data set uses, as stored.
fn stored_usage(objects: &Arc<ObjectSets>, node: &Node) -> Result<OwnUsage, DatasetError> {
    let mos = objects.mos();
    let head_bytes = objects.account(node.set)?.map_or(0, |account| account.used_bytes);
    let snapshots = snapshots_of(mos, node)?;
    let lists = snapshots.iter().map(|(_, info)| info.dead_list);
    let (mut snapshot_bytes, mut head_list_bytes) = (0u64, 0);
    for list in lists.chain([node.get(DEAD_LIST)?.unwrap_or(ObjectId(0))]) {
        head_list_bytes = if list == ObjectId(0) { 0 } else { kept_bytes(mos, list)? };
        snapshot_bytes = snapshot_bytes.saturating_add(head_list_bytes);
    }
    let of_origin = shared_bytes(objects, node)?;
    let newest_bytes = snapshots.last().map_or(of_origin, |(_, info)| info.referenced.used_bytes);
    let shared_bytes = newest_bytes.saturating_sub(head_list_bytes);
    Ok(OwnUsage { head_bytes, shared_bytes, snapshot_bytes })
}
