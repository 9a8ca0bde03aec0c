//! Committed txgs, as far as an import would need them.

use std::collections::VecDeque;
use terrane_format::boot_ptr::BootPtr;
use terrane_wire::Txg;

/// Txgs that can be rolled back to.
pub const ROLLBACK_TXGS: usize = 3;

/// A commit record that replay needs, or would need after a rewind.
pub struct ChainedRecord {
    /// The txg of the record.
    pub txg: Txg,
    /// The record.
    pub ptr: BootPtr,
    /// Its dead-log blocks, which are freed with it.
    pub dead_log: Vec<BootPtr>,
}

/// Commit records that must be kept, and the txgs that can be rolled back to.
pub struct History {
    /// Oldest first.
    pub chain: VecDeque<ChainedRecord>,
    /// The newest durable txg and its record, whether or not a replay needs it.
    pub newest: Option<(Txg, BootPtr)>,
    /// Committed txgs that can be rolled back to, with their records, oldest first.
    pub recent: VecDeque<(Txg, BootPtr)>,
    /// The txg that was imported.
    pub imported: Txg,
    /// The oldest whole txg, as the newest uberblock names it.
    pub oldest: Txg,
}

impl History {
    /// The newest txg whose record a replay needs, and that record.
    pub fn last(&self) -> Option<(Txg, BootPtr)> {
        self.chain.back().map(|last| (last.txg, last.ptr))
    }

    /// The number of that txg; 0: there is none.
    pub fn last_txg(&self) -> Txg {
        self.last().map_or(Txg(0), |(txg, _)| txg)
    }

    /// A txg is durable.
    pub fn add_committed(&mut self, txg: Txg, ptr: BootPtr, dead_log: Vec<BootPtr>) {
        self.newest = Some((txg, ptr));
        self.chain.push_back(ChainedRecord { txg, ptr, dead_log });
        self.recent.push_back((txg, ptr));
        while self.recent.len() > ROLLBACK_TXGS + 1 {
            self.recent.pop_front();
        }
    }

    /// Removes the next record that no replay needs, because all sections include every change up to this
    /// txg.
    pub fn pop_replayed(&mut self, needed_after: Txg) -> Option<ChainedRecord> {
        self.chain.pop_front_if(|old| old.txg <= needed_after)
    }

    /// Gives up every rollback txg but the newest. Returns the newest.
    pub fn drop_rollback_txgs(&mut self) -> Option<Txg> {
        let newest = self.recent.pop_back()?;
        self.recent = VecDeque::from([newest]);
        self.oldest = newest.0;
        Some(newest.0)
    }

    /// The oldest txg to keep whole when `txg` is committed: `depth` txgs back.
    pub fn rollback_to(&self, txg: Txg, depth: usize) -> Txg {
        let older = self.recent.iter().rev().map(|(recent, _)| *recent).filter(|recent| *recent < txg);
        let back = older.take(depth).nth(depth - 1);
        back.unwrap_or(self.oldest).max(self.oldest)
    }

    /// Txgs before `newest` that can be rolled back to, oldest first.
    pub fn older_than(&self, newest: Txg) -> Vec<(Txg, BootPtr)> {
        self.recent.iter().copied().filter(|(txg, _)| (self.oldest..newest).contains(txg)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn txgs_are_kept_while_they_can_be_rolled_back_to() {
        let mut history = History {
            chain: VecDeque::new(),
            newest: None,
            recent: VecDeque::new(),
            imported: Txg(0),
            oldest: Txg(1),
        };
        assert_eq!((history.rollback_to(Txg(1), 3), history.last_txg()), (Txg(1), Txg(0)));
        (1..=6).for_each(|txg| history.add_committed(Txg(txg), BootPtr::NONE, Vec::new()));
        assert_eq!((history.rollback_to(Txg(7), 3), history.rollback_to(Txg(7), 1)), (Txg(4), Txg(6)));
        history.oldest = Txg(5);
        assert_eq!(history.rollback_to(Txg(7), 3), Txg(5), "what was given up does not come back");
        assert_eq!(history.older_than(Txg(6)).iter().map(|(txg, _)| txg.0).collect::<Vec<_>>(), [5]);
        assert_eq!(history.pop_replayed(Txg(1)).map(|old| old.txg), Some(Txg(1)));
        assert!(history.pop_replayed(Txg(1)).is_none());
        assert_eq!((history.drop_rollback_txgs(), history.oldest), (Some(Txg(6)), Txg(6)));
        assert_eq!((history.older_than(Txg(6)), history.last_txg()), (vec![], Txg(6)));
    }
}
