//! Nodes of the tree of data sets, as stored in the meta object set.
//!
//! The node of a data set names its object set and its properties, and what depends on it: data sets below it, snapshots, and the
//! dead list of its head. The root's object set and properties are entries of the pool directory. Its node is made when it is first needed.

use crate::directory::{POOL_DIRECTORY, ROOT_DATASET, ROOT_NODE, ROOT_PROPS};
use crate::error::DatasetError;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use std::sync::Arc;
use terrane_object::{ObjectKind, ObjectSet};
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
        let directory = zap(mos, POOL_DIRECTORY)?;
        let find = |name: &[u8]| -> Result<Option<ObjectId>, DatasetError> {
            Ok(directory.lookup_u64(name)?.filter(|number| *number != 0).map(ObjectId))
        };
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

    /// Makes a node.
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

    /// The ZAP of its entries; `None`: the root has none yet.
    pub fn id(&self) -> Option<ObjectId> {
        self.zap
    }

    /// An entry.
    pub fn get(&self, name: &[u8]) -> Result<Option<ObjectId>, DatasetError> {
        let Some(id) = self.zap else { return Ok(None) };
        Ok(zap(&self.mos, id)?.lookup_u64(name)?.filter(|number| *number != 0).map(ObjectId))
    }

    /// Sets an entry. The object set of the root is an entry of the pool directory.
    pub fn set(&mut self, tx: &Tx, name: &[u8], value: ObjectId) -> Result<(), DatasetError> {
        if name == SET {
            self.set = value;
            if self.is_root {
                zap(&self.mos, POOL_DIRECTORY)?.update_u64(tx, ROOT_DATASET, value.0)?;
                return Ok(());
            }
        }
        let id = match self.zap {
            Some(id) => id,
            None => {
                let entries = ObjectZap::create(&self.mos, &ZapPolicy::of(&self.mos), tx, ObjectKind::Zap)?;
                let id = entries.object().id();
                zap(&self.mos, POOL_DIRECTORY)?.update_u64(tx, ROOT_NODE, id.0)?;
                self.zap = Some(id);
                id
            }
        };
        Ok(zap(&self.mos, id)?.update_u64(tx, name, value.0)?)
    }

    /// A ZAP that an entry names.
    pub fn zap_of(&self, name: &[u8]) -> Result<Option<ObjectZap>, DatasetError> {
        self.get(name)?.map(|id| zap(&self.mos, id)).transpose()
    }

    /// The same; it is made if there is none.
    pub fn zap_of_mut(&mut self, tx: &Tx, name: &[u8]) -> Result<ObjectZap, DatasetError> {
        if let Some(found) = self.zap_of(name)? {
            return Ok(found);
        }
        let made = ObjectZap::create(&self.mos, &ZapPolicy::of(&self.mos), tx, ObjectKind::Zap)?;
        self.set(tx, name, made.object().id())?;
        Ok(made)
    }

    /// Destroys the node, its properties and its empty ZAPs.
    pub fn destroy(&self, tx: &Tx) -> Result<(), DatasetError> {
        let ids = [self.get(CHILDREN)?, self.get(SNAPSHOTS)?, Some(self.props), self.zap];
        for id in ids.into_iter().flatten() {
            self.mos.destroy(tx, &self.mos.hold(id)?)?;
        }
        Ok(())
    }
}

/// The ZAP in an object of the MOS.
pub(crate) fn zap(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<ObjectZap, DatasetError> {
    let object = mos.hold(id)?;
    if object.kind() != ObjectKind::Zap {
        return Err(DatasetError::Damaged {
            at: "tree of data sets",
            expected: format!("a ZAP in object {id} of the meta object set"),
            found: format!("{:?}", object.kind()),
        });
    }
    Ok(ObjectZap::new(&ZapPolicy::of(mos), object))
}
