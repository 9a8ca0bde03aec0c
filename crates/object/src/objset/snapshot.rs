//! An object set as of an old root: a snapshot.
//!
//! It takes no transactions and is part of no sync, so it never changes. Its objects in memory are its own. It shares
//! the block caches with the live set, because they know blocks by birth. In messages and zone directories, the owner of
//! a block is the set that wrote it.
//!
//! The free queue of an old root is not loaded, because the live set frees its subtrees.
//!
//! Invariant: the blocks of the root are kept while the set is open. The caller that frees them closes the set
//! first.

use super::{ObjectSet, Parts};
use crate::error::ObjectError;
use crate::object::ObjectTable;
use crate::objset::policy::ActivePolicy;
use std::sync::Arc;
use terrane_format::BlockPtr;
use terrane_store::PoolError;
use terrane_wire::ObjsetId;

impl ObjectSet {
    /// This set as of an old root, read-only. `id` is the set that had the root: this one, or one that was
    /// replaced by a rollback.
    ///
    /// # Errors
    /// The header behind the root is unreadable or damaged.
    pub fn open_at(&self, id: ObjsetId, root: &BlockPtr) -> Result<Arc<ObjectSet>, ObjectError> {
        let header = super::read_header(&self.pool, id, root)?;
        let parts = Parts {
            table: ObjectTable::new(self.pool.clone(), id, true),
            root: root.clone(),
            policy: ActivePolicy::copy_of(&self.policy),
            free_policy: None,
            queue_in_mos: None,
        };
        Ok(Self::from_parts(self.pool.clone(), id, header, parts))
    }

    /// Whether this is an old root, which takes no changes. Whether the pool is read-only is another question
    /// ([`Pool::is_read_only`](terrane_pool::Pool::is_read_only)).
    pub fn is_read_only(&self) -> bool {
        self.table.is_read_only()
    }

    pub(super) fn check_writable(&self) -> Result<(), ObjectError> {
        if self.is_read_only() { Err(PoolError::ReadOnly.into()) } else { Ok(()) }
    }

    /// Closes this old root, whose blocks are about to be freed. Every later read fails with `NotFound`. Reads that
    /// have begun finish.
    ///
    /// # Panics
    /// If the set is a live one, whose blocks a sync frees.
    pub fn close(&self) {
        assert!(self.is_read_only(), "only old roots are closed");
        self.table.close();
    }

    /// Whether [`close`](ObjectSet::close) was called.
    pub fn is_closed(&self) -> bool {
        self.table.is_closed()
    }
}
