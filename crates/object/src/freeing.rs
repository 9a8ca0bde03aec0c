//! How blocks leave an object set.
//!
//! A sync rewrites trees, and the blocks of the old trees leave the set. Whether such a block is freed depends
//! on its other references, which only the data set knows. It answers through [`FreePolicy`]. A block that is
//! kept stays allocated and readable at its address, but no longer belongs to the set.
//!
//! Invariant: every stored block that leaves the live trees is judged exactly once, by the sync of the txg
//! (group) that removes it.

use crate::account::Account;
use crate::waiting::Waiting;
use terrane_format::BlockPtr;
use terrane_pool::Group;
use terrane_wire::Txg;

/// What happens to a block that leaves the live trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No reference is left.
    Free,
    /// A snapshot refers to the block. The policy frees it with the last snapshot that does.
    Keep,
}

/// Decides which blocks of an object set are freed when they leave its live trees.
pub trait FreePolicy: Send + Sync {
    /// Judges a stored block that left the live trees in `txg`. That is the syncing txg, or an earlier one if
    /// the block waited in the free queue. 0: a txg before snapshots existed. A snapshot refers to the block
    /// only if it was created after the block's [`latest_birth`](BlockPtr::latest_birth) and before `txg`. The
    /// sync waits for the answer, so this must not wait for a txg. If the txg fails afterwards, the pool writes
    /// nothing more.
    fn verdict(&self, block: &BlockPtr, txg: Txg) -> Verdict;
}

/// What a sync does to a set beside its trees, and the only way by which blocks leave them.
pub(crate) struct Ledger<'a> {
    /// `None`: every block is freed. Snapshots never refer to the meta object set.
    policy: Option<&'a dyn FreePolicy>,
    /// Subtrees that wait to be freed.
    pub queue: Vec<Waiting>,
    /// Sums of blocks that entered and of blocks that left.
    pub born: Account,
    died: Account,
}

impl<'a> Ledger<'a> {
    pub fn new(policy: Option<&'a dyn FreePolicy>, queue: Vec<Waiting>) -> Self {
        Ledger { policy, queue, born: Account::default(), died: Account::default() }
    }

    /// The set's account after the sync, from the one before.
    pub fn settle(&self, before: Account) -> Account {
        let mut after = before;
        after += self.born;
        after.minus(&self.died)
    }

    /// Removes a block of a tree from the set.
    pub fn kill(&mut self, group: &mut Group<'_>, ptr: &BlockPtr) {
        self.died.add_of_tree(ptr);
        self.judge(group, ptr, group.txg());
    }

    /// Moves a subtree from the live trees to the free queue. It leaves the set later.
    pub fn detach(&mut self, txg: Txg, root: BlockPtr) {
        self.queue.push(Waiting { root, detached: txg, prune_below: Txg(0) });
    }

    /// Removes the root of a subtree that has waited from the set.
    pub fn kill_waiting(&mut self, group: &mut Group<'_>, waiting: &Waiting) {
        self.died.add_of_tree(&waiting.root);
        self.judge(group, &waiting.root, waiting.detached);
    }

    /// Removes a spill block from the set.
    pub fn kill_spill(&mut self, group: &mut Group<'_>, ptr: &BlockPtr) {
        self.died.add(ptr, false);
        self.judge(group, ptr, group.txg());
    }

    /// Removes the set's header, which accounts do not include.
    pub fn kill_header(&self, group: &mut Group<'_>, ptr: &BlockPtr) {
        self.judge(group, ptr, group.txg());
    }

    /// Frees a block that this sync wrote, and that no tree refers to.
    pub fn discard(&self, group: &mut Group<'_>, ptr: &BlockPtr) {
        group.release(ptr);
    }

    /// Judges a block; `left` is the txg that removed it from the live trees.
    fn judge(&self, group: &mut Group<'_>, ptr: &BlockPtr, left: Txg) {
        let verdict = match (self.policy, ptr) {
            (Some(policy), BlockPtr::Normal(_)) => policy.verdict(ptr, left),
            _ => Verdict::Free,
        };
        match verdict {
            Verdict::Free => group.release(ptr),
            Verdict::Keep => {}
        }
    }
}

/// A policy for tests: no snapshot refers to anything.
#[cfg(test)]
pub(crate) struct FreeAll;

#[cfg(test)]
impl FreePolicy for FreeAll {
    fn verdict(&self, _: &BlockPtr, _: Txg) -> Verdict {
        Verdict::Free
    }
}
