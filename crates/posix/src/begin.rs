//! How an operation joins a txg, and reserves what its inodes have not claimed there yet.

use crate::claims::{Claims, DNODE_META_BLOCKS, Need, sum};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use terrane_pool::Tx;
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

impl Fs {
    fn missing(&self, group: u64, claims: &Claims, need: &Need, ino: Ino) -> Cost {
        let mut missing = claims.missing(group, need);
        if missing.objects > 0 && !self.dnode_blocks.is_claimed(group, ObjectId(ino)) {
            missing.meta_blocks = missing.meta_blocks.saturating_add(DNODE_META_BLOCKS);
        }
        for (level, numbers) in need.pointer_blocks() {
            let new = numbers.filter(|number| !self.pointer_blocks.is_claimed(group, (ino, level, *number)));
            let new = (new.count() as u64).saturating_mul(need.pointer_block_bytes);
            missing.meta_bytes = missing.meta_bytes.saturating_add(new);
        }
        missing
    }

    /// Begins a transaction with space for `extra` and for the needs of these inodes. It may wait, so the
    /// caller holds no lock and no other transaction.
    pub(crate) fn begin(&self, extra: Cost, needs: &[(&Claims, Need)]) -> Result<Tx, Errno> {
        let makes = needs.iter().any(|(claims, _)| claims.ino.is_none());
        let guess = if makes { self.set.likely_number(1).0 } else { 0 };
        let missing = |group| {
            let needs = needs.iter();
            let costs =
                needs.map(|(claims, need)| self.missing(group, claims, need, claims.ino.unwrap_or(guess)));
            sum(costs.chain([extra]))
        };
        let mut group = self.set.open_txg().0;
        loop {
            let asked = missing(group);
            let tx = self.set.begin(asked)?;
            if tx.txg().0 != group {
                // The txg changed in between: claims of the old one do not count in the new one.
                group = tx.txg().0;
                let now = missing(group);
                if now.write_bytes > asked.write_bytes
                    || now.meta_blocks > asked.meta_blocks
                    || now.meta_bytes > asked.meta_bytes
                {
                    tx.pool().end_promise(asked.promises);
                    continue;
                }
            }
            for (claims, need) in needs {
                claims.add(group, need);
                let ino = claims.ino.unwrap_or(guess);
                self.dnode_blocks.claim(group, ObjectId(ino));
                for (level, numbers) in need.pointer_blocks() {
                    numbers.for_each(|number| _ = self.pointer_blocks.claim(group, (ino, level, number)));
                }
            }
            return Ok(tx);
        }
    }

    /// Claims the dnode block of a new object. It is already reserved if the guessed number was right.
    pub(crate) fn claim_new(&self, tx: &Tx, ino: Ino) {
        if self.dnode_blocks.claim(tx.txg().0, ObjectId(ino)) {
            tx.reserve_more(DNODE_META_BLOCKS);
        }
    }
}
