//! How blocks leave an object set.
//!
//! A group rewrites trees, and the blocks that stood in the old ones leave the set. Whether such a block is freed depends on what else
//! refers to it, which only the data set knows: it answers through [`FreePolicy`]. A block that is kept stays allocated and readable at its
//! address, but belongs to the set no more.
//!
//! Invariant: every stored block that leaves the live trees of a set is judged exactly once, by the sync of the group that removes it.

use crate::account::Account;
use crate::waiting::Waiting;
use terrane_format::BlockPtr;
use terrane_pool::Group;
use terrane_wire::Txg;

/// What becomes of a block that leaves the live trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing refers to it any more.
    Free,
    /// A snapshot refers to it: the policy frees it when no snapshot does.
    Keep,
}

/// Which blocks of an object set are freed when they leave its live trees.
pub trait FreePolicy: Send + Sync {
    /// Judges a stored block that group `txg` removed from the live trees: the one that syncs, or an earlier one if the block waited (0:
    /// one before there were snapshots). A snapshot refers to the block only if it was made after its
    /// [`latest_birth`](BlockPtr::latest_birth) and before `txg`. The sync waits for the answer, so this must not wait for a group. If the
    /// group fails after that, the pool writes nothing more.
    fn verdict(&self, block: &BlockPtr, txg: Txg) -> Verdict;
}

/// What a group does to a set beside its trees, and the one way by which blocks leave them.
pub(crate) struct Ledger<'a> {
    /// `None`: every block is freed. No snapshot refers to the meta object set.
    policy: Option<&'a dyn FreePolicy>,
    /// Subtrees that wait to be freed.
    pub queue: Vec<Waiting>,
    /// Blocks that came, and blocks that went.
    pub born: Account,
    died: Account,
}

impl<'a> Ledger<'a> {
    pub fn new(policy: Option<&'a dyn FreePolicy>, queue: Vec<Waiting>) -> Self {
        Ledger { policy, queue, born: Account::default(), died: Account::default() }
    }

    /// What the set takes after the group, by what it took before.
    pub fn settle(&self, before: Account) -> Account {
        let mut after = before;
        after += self.born;
        after.minus(&self.died)
    }

    /// A block of a tree leaves the set.
    pub fn kill(&mut self, group: &mut Group<'_>, ptr: &BlockPtr) {
        self.died.add_of_tree(ptr);
        self.judge(group, ptr, group.txg());
    }

    /// A block of a tree, with all that is below it, leaves the live trees with this group, and the set later.
    pub fn detach(&mut self, txg: Txg, root: BlockPtr) {
        self.queue.push(Waiting { root, detached: txg, prune_below: Txg(0) });
    }

    /// The root of a subtree that has waited leaves the set.
    pub fn kill_waiting(&mut self, group: &mut Group<'_>, waiting: &Waiting) {
        self.died.add_of_tree(&waiting.root);
        self.judge(group, &waiting.root, waiting.detached);
    }

    /// The same for a spill.
    pub fn kill_spill(&mut self, group: &mut Group<'_>, ptr: &BlockPtr) {
        self.died.add(ptr, false);
        self.judge(group, ptr, group.txg());
    }

    /// The same for the set's header, which no account counts.
    pub fn kill_header(&self, group: &mut Group<'_>, ptr: &BlockPtr) {
        self.judge(group, ptr, group.txg());
    }

    /// A block that this group wrote, and no tree took.
    pub fn discard(&self, group: &mut Group<'_>, ptr: &BlockPtr) {
        group.release(ptr);
    }

    /// `left` is the group that removed the block from the live trees.
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
