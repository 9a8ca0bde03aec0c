//! Nodes of the tree of data sets, as stored in the meta object set.
//!
//! The node of a data set names its object set, its properties, the data sets below it, its snapshots, and the dead list of its head.
//! The root's object set and properties are entries of the pool directory. Its node is created when it is first needed.

use crate::directory::{ROOT_DATASET, ROOT_NODE, ROOT_PROPS};
use crate::error::DatasetError;
use crate::mos_zap::{change_directory, find_in_directory, zap};
use crate::props::Props;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use std::sync::Arc;
use terrane_object::{Object, ObjectKind, ObjectSet};
use terrane_pool::Tx;
use terrane_wire::ObjectId;

/// The object set of a data set.
pub(crate) const SET: &[u8] = b"set";
/// The ZAP of its properties.
pub(crate) const PROPS: &[u8] = b"props";
/// A ZAP: names of the data sets below it, to their nodes.
pub(crate) const CHILDREN: &[u8] = b"children";
/// A ZAP: names of snapshots, to the objects that stand for them.
pub(crate) const SNAPSHOTS: &[u8] = b"snapshots";
/// The dead list of the head.
pub(crate) const DEAD_LIST: &[u8] = b"dead_list";
/// The snapshot from which the data set was cloned.
pub(crate) const ORIGIN: &[u8] = b"origin";
/// The node of the data set that has this snapshot.
pub(crate) const ORIGIN_NODE: &[u8] = b"origin_node";
/// A ZAP: the number of clones of each snapshot that has clones.
pub(crate) const CLONES: &[u8] = b"clones";
/// A ZAP: holds on snapshots, with their times.
pub(crate) const HOLDS: &[u8] = b"holds";
/// A ZAP: names of bookmarks, to guid, txg and time of the snapshot.
pub(crate) const BOOKMARKS: &[u8] = b"bookmarks";
/// All entries of a node that name a ZAP.
pub(crate) const ZAPS: [&[u8]; 5] = [CHILDREN, SNAPSHOTS, CLONES, HOLDS, BOOKMARKS];

/// Where a data set is stored.
#[derive(Clone)]
pub(crate) struct Node {
    mos: Arc<ObjectSet>,
    /// The object of the MOS that stands for its object set.
    pub set: ObjectId,
    /// The ZAP of its properties.
    pub props: ObjectId,
    /// The ZAP of its other entries. The root may lack one.
    zap: Option<ObjectId>,
    is_root: bool,
}

impl Node {
    /// The node of the root data set.
    pub fn root(mos: &Arc<ObjectSet>) -> Result<Node, DatasetError> {
        let find = |name: &[u8]| find_in_directory(mos, name);
        let missing = |name: &[u8]| DatasetError::Damaged {
            at: "pool directory",
            expected: format!("an entry '{}'", String::from_utf8_lossy(name)),
            found: "none".to_string(),
        };
        Ok(Node {
            mos: Arc::clone(mos),
            set: find(ROOT_DATASET)?.ok_or_else(|| missing(ROOT_DATASET))?,
            props: find(ROOT_PROPS)?.ok_or_else(|| missing(ROOT_PROPS))?,
            zap: find(ROOT_NODE)?,
            is_root: true,
        })
    }

    /// The node in a ZAP of the MOS.
    pub fn open(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<Node, DatasetError> {
        let entries = zap(mos, id)?;
        let find = |name: &[u8]| -> Result<ObjectId, DatasetError> {
            let found = entries.lookup_u64(name)?.filter(|number| *number != 0);
            found.map(ObjectId).ok_or_else(|| DatasetError::Damaged {
                at: "node of a data set",
                expected: format!("an entry '{}'", String::from_utf8_lossy(name)),
                found: format!("none in object {id} of the meta object set"),
            })
        };
        Ok(Node { mos: Arc::clone(mos), set: find(SET)?, props: find(PROPS)?, zap: Some(id), is_root: false })
    }

    /// Creates a node.
    pub fn create(
        mos: &Arc<ObjectSet>,
        tx: &Tx,
        set: ObjectId,
        props: ObjectId,
    ) -> Result<Node, DatasetError> {
        let mut entries = ObjectZap::create(mos, &ZapPolicy::of(mos), tx, ObjectKind::Zap)?;
        entries.add_u64(tx, SET, set.0)?;
        entries.add_u64(tx, PROPS, props.0)?;
        Ok(Node { mos: Arc::clone(mos), set, props, zap: Some(entries.object().id()), is_root: false })
    }

    /// The properties that it stores.
    pub fn load_props(&self) -> Result<Props, DatasetError> {
        Props::load(&zap(&self.mos, self.props)?)
    }

    /// The ZAP of its entries; `None`: the root has none yet.
    pub fn id(&self) -> Option<ObjectId> {
        self.zap
    }

    /// An entry.
    pub fn get(&self, name: &[u8]) -> Result<Option<ObjectId>, DatasetError> {
        let Some(id) = self.zap else { return Ok(None) };
        Ok(zap(&self.mos, id)?.lookup_u64(name)?.filter(|number| *number != 0).map(ObjectId))
    }

    /// The ZAP of its entries, which is created if there is none.
    pub fn id_mut(&mut self, tx: &Tx) -> Result<ObjectId, DatasetError> {
        if let Some(id) = self.zap {
            return Ok(id);
        }
        let entries = ObjectZap::create(&self.mos, &ZapPolicy::of(&self.mos), tx, ObjectKind::Zap)?;
        let id = entries.object().id();
        change_directory(&self.mos, |directory| Ok(directory.update_u64(tx, ROOT_NODE, id.0)?))?;
        self.zap = Some(id);
        Ok(id)
    }

    /// Sets an entry. The object set of the root is an entry of the pool directory.
    pub fn set(&mut self, tx: &Tx, name: &[u8], value: ObjectId) -> Result<(), DatasetError> {
        if name == SET {
            self.set = value;
            if self.is_root {
                return change_directory(&self.mos, |directory| {
                    Ok(directory.update_u64(tx, ROOT_DATASET, value.0)?)
                });
            }
        }
        let id = self.id_mut(tx)?;
        Ok(zap(&self.mos, id)?.update_u64(tx, name, value.0)?)
    }

    /// A ZAP that an entry names.
    pub fn zap_of(&self, name: &[u8]) -> Result<Option<ObjectZap>, DatasetError> {
        self.get(name)?.map(|id| zap(&self.mos, id)).transpose()
    }

    /// The same. The ZAP is created if there is none.
    pub fn zap_of_mut(&mut self, tx: &Tx, name: &[u8]) -> Result<ObjectZap, DatasetError> {
        let id = self.id_mut(tx)?;
        zap_of_mut(&self.mos, tx, id, name)
    }

    /// Its objects: the node, its properties and its ZAPs.
    pub fn objects(&self) -> Result<Vec<Arc<Object>>, DatasetError> {
        let mut ids = vec![self.props];
        for name in ZAPS {
            ids.extend(self.get(name)?);
        }
        Ok(ids.into_iter().chain(self.zap).map(|id| self.mos.hold(id)).collect::<Result<_, _>>()?)
    }
}

/// The object in a name. Other spellings of its number would name it twice.
pub(crate) fn object_in(text: &str) -> Option<ObjectId> {
    let id = ObjectId(text.parse().ok()?);
    (id.to_string() == text).then_some(id)
}

/// The ZAP that an entry of a node names. It is created if there is none.
pub(crate) fn zap_of_mut(
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    node: ObjectId,
    name: &[u8],
) -> Result<ObjectZap, DatasetError> {
    let mut entries = zap(mos, node)?;
    if let Some(id) = entries.lookup_u64(name)?.filter(|id| *id != 0) {
        return zap(mos, ObjectId(id));
    }
    let made = ObjectZap::create(mos, &ZapPolicy::of(mos), tx, ObjectKind::Zap)?;
    entries.update_u64(tx, name, made.object().id().0)?;
    Ok(made)
}
