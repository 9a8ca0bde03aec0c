//! How blocks leave an object set.
//!
//! A sync rewrites trees, and the blocks of the old trees leave the set. Whether such a block is freed depends
//! on its other references, which only the data set knows. It answers through [`FreePolicy`]. A block that is
//! kept stays allocated and readable at its address, but no longer belongs to the set.
//!
//! Invariant: for every stored block that leaves the live trees, the policy decides exactly once. The sync of
//! the txg that removes the block asks it.

use crate::account::Account;
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::mos_change::MosChange;
use crate::queued_subtree::QueuedSubtree;
use std::any::Any;
use terrane_format::{BlockPtr, Feature};
use terrane_pool::{Tx, TxgSync};
use terrane_wire::Txg;

/// What happens to a block that leaves the live trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeDecision {
    /// No reference is left.
    Free,
    /// A snapshot refers to the block. The policy frees it with the last snapshot that does.
    Keep,
}

/// Decides which blocks of an object set are freed when they leave its live trees.
///
/// Each txg calls it in this order: [`quiesced`](Self::quiesced), [`decide`](Self::decide) for each block, and
/// [`after_sync`](Self::after_sync).
pub trait FreePolicy: Any + Send + Sync {
    /// Decides about a stored block that left the live trees in `txg`. That is the syncing txg, or an earlier one if
    /// the block waited in the free queue. 0: a txg before snapshots existed. A snapshot refers to the block
    /// only if it was created after the block's [`latest_birth`](BlockPtr::latest_birth) and before `txg`. The
    /// sync waits for the answer, so this must not wait for a txg. If the txg fails afterwards, the pool writes
    /// nothing more.
    fn decide(&self, block: &BlockPtr, txg: Txg) -> FreeDecision;

    /// Whether a snapshot refers to this stored block of the live trees. Such a block is not rewritten, because both forms would take
    /// space.
    fn is_held(&self, _block: &BlockPtr) -> bool {
        false
    }

    /// Whether it may keep blocks. Then operations reserve space for dead lists.
    fn may_keep(&self) -> bool {
        false
    }

    /// All operations have left the txg, and its sync begins. `last_tx` may still change the meta object set.
    fn quiesced(&self, _last_tx: &Tx) {}

    /// The set has synced in this txg, also if it had no changes. Returns the changes of the meta object set that follow from the sync.
    /// `account`: the sums of the set after the sync. An error stops the pool.
    fn after_sync(
        &self,
        _txg_sync: &mut TxgSync<'_>,
        _root: &BlockPtr,
        _account: Option<Account>,
    ) -> Result<Vec<MosChange>, ObjectError> {
        Ok(Vec::new())
    }

    /// The feature that objects of this kind may use, if its uses are counted. Only objects of one block do.
    fn counted_feature(&self, _kind: ObjectKind) -> Option<Feature> {
        None
    }

    /// Whether such an object, which is about to be destroyed, is a use. `None`: its block is damaged.
    fn is_use(&self, _block: &[u8]) -> Option<bool> {
        Some(false)
    }
}

/// What a sync does to a set beside its trees, and the only way by which blocks leave them.
pub(crate) struct Ledger<'a> {
    /// `None`: every block is freed. Snapshots never refer to the meta object set.
    policy: Option<&'a dyn FreePolicy>,
    /// Subtrees that wait to be freed.
    pub queue: Vec<QueuedSubtree>,
    /// Sums of blocks that entered and of blocks that left.
    pub added: Account,
    removed: Account,
}

impl<'a> Ledger<'a> {
    pub fn new(policy: Option<&'a dyn FreePolicy>, queue: Vec<QueuedSubtree>) -> Self {
        Ledger { policy, queue, added: Account::default(), removed: Account::default() }
    }

    /// The set's account after the sync, from the one before.
    pub fn account_after(&self, before: Account) -> Account {
        let mut after = before;
        after += self.added;
        after.minus(&self.removed)
    }

    /// Removes a block of a tree from the set.
    pub fn remove_block(&mut self, txg_sync: &mut TxgSync<'_>, ptr: &BlockPtr) {
        self.removed.add_of_tree(ptr);
        self.apply_policy(txg_sync, ptr, txg_sync.txg());
    }

    /// Moves a subtree from the live trees to the free queue. It leaves the set later.
    pub fn detach(&mut self, txg: Txg, root: BlockPtr) {
        self.queue.push(QueuedSubtree { root, detached: txg, prune_below: Txg(0) });
    }

    /// Removes the root of a subtree that has waited from the set.
    pub fn remove_queued(&mut self, txg_sync: &mut TxgSync<'_>, queued: &QueuedSubtree) {
        self.removed.add_of_tree(&queued.root);
        self.apply_policy(txg_sync, &queued.root, queued.detached);
    }

    /// Removes a spill block from the set.
    pub fn remove_spill(&mut self, txg_sync: &mut TxgSync<'_>, ptr: &BlockPtr) {
        self.removed.add(ptr, false);
        self.apply_policy(txg_sync, ptr, txg_sync.txg());
    }

    /// Removes the set's header, which accounts do not include.
    pub fn remove_header(&self, txg_sync: &mut TxgSync<'_>, ptr: &BlockPtr) {
        self.apply_policy(txg_sync, ptr, txg_sync.txg());
    }

    /// Frees a block that this sync wrote, and that no tree refers to.
    pub fn discard(&self, txg_sync: &mut TxgSync<'_>, ptr: &BlockPtr) {
        txg_sync.release(ptr);
    }

    /// Frees or keeps a block; `detached` is the txg that removed it from the live trees.
    fn apply_policy(&self, txg_sync: &mut TxgSync<'_>, ptr: &BlockPtr, detached: Txg) {
        let decision = match (self.policy, ptr) {
            (Some(policy), BlockPtr::Normal(_)) => policy.decide(ptr, detached),
            _ => FreeDecision::Free,
        };
        match decision {
            FreeDecision::Free => txg_sync.release(ptr),
            FreeDecision::Keep => {}
        }
    }
}

/// A policy for tests: no snapshot refers to anything.
#[cfg(test)]
pub(crate) struct FreeAll;

#[cfg(test)]
impl FreePolicy for FreeAll {
    fn decide(&self, _: &BlockPtr, _: Txg) -> FreeDecision {
        FreeDecision::Free
    }
}
