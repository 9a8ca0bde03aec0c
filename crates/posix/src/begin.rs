//! How an operation joins a txg, and reserves what its inodes have not claimed there yet.

use crate::claims::{Claims, DNODE_META_BLOCKS, Need, sum};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use terrane_object::ObjectError;
use terrane_pool::Tx;
use terrane_txg::cost::{Cost, META_DIRTY_BYTES};
use terrane_wire::ObjectId;

impl Fs {
    fn missing(&self, txg: u64, claims: &Claims, need: &Need, ino: Ino) -> Cost {
        let mut missing = claims.missing(txg, need);
        if missing.objects > 0 && !self.dnode_blocks.is_claimed(txg, ObjectId(ino)) {
            missing.meta_blocks = missing.meta_blocks.saturating_add(DNODE_META_BLOCKS);
            // The indirect block is that of 128 dnode blocks.
            missing.rare_meta_bytes = missing.rare_meta_bytes.saturating_add(META_DIRTY_BYTES);
        }
        for (level, indices) in need.pointer_blocks() {
            let new = indices.filter(|index| !self.pointer_blocks.is_claimed(txg, (ino, level, *index)));
            let new = (new.count() as u64).saturating_mul(need.pointer_block_bytes);
            missing.meta_bytes = missing.meta_bytes.saturating_add(new);
        }
        missing
    }

    /// Begins a transaction with space for `extra` and for the needs of these inodes. It may wait, so the
    /// caller holds no lock and no other transaction.
    pub(crate) fn begin(&self, extra: Cost, needs: &[(&Claims, Need)]) -> Result<Tx, Errno> {
        self.check_changeable()?;
        let makes = needs.iter().any(|(claims, _)| claims.ino.is_none());
        let guess = if makes { self.set.likely_number(1).0 } else { 0 };
        let missing = |txg| {
            let needs = needs.iter();
            let costs =
                needs.map(|(claims, need)| self.missing(txg, claims, need, claims.ino.unwrap_or(guess)));
            sum(costs.chain([extra]))
        };
        let mut txg = self.set.open_txg().0;
        let mut waits = 0;
        loop {
            let reserved = missing(txg);
            let begun = match self.is_replaying {
                // Its space was granted before, and others have not taken it since.
                true => self.set.begin_unbounded(Cost { frees: true, ..reserved }),
                false => self.set.begin(reserved),
            };
            let tx = match begun {
                Err(ObjectError::Quota { .. }) if self.wait_for_unlinked(&mut waits) => continue,
                begun => begun?,
            };
            if tx.txg().0 != txg {
                // The txg changed in between: claims of the old one do not count in the new one.
                txg = tx.txg().0;
                let now = missing(txg);
                if now.write_bytes > reserved.write_bytes
                    || now.meta_blocks > reserved.meta_blocks
                    || now.meta_bytes > reserved.meta_bytes
                {
                    tx.pool().end_file_reservation(reserved.file_reservation);
                    continue;
                }
            }
            for (claims, need) in needs {
                claims.add(txg, need);
                let ino = claims.ino.unwrap_or(guess);
                self.dnode_blocks.claim(txg, ObjectId(ino));
                for (level, indices) in need.pointer_blocks() {
                    indices.for_each(|index| _ = self.pointer_blocks.claim(txg, (ino, level, index)));
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

#[cfg(test)]
mod tests {
    use crate::support::{Machine, Short};

    /// Bytes that the pool counts as dirty.
    fn dirty(m: &Machine) -> u64 {
        m.pool().load().0
    }

    #[test]
    fn what_changes_of_names_dirty_is_counted() {
        const NAMES: usize = 20_000;
        const LEAF_BYTES: u64 = 16 << 10;
        let m = Machine::sized(1, &[], 64, 4 << 20);
        let fs = m.fs();
        let dir = fs.dir(fs.root(), "dir").ino;
        let file = fs.file(fs.root(), "file").ino;
        let name = |nth: usize| format!("another name of the file, {nth}").into_bytes();
        for nth in 0..NAMES {
            fs.link(file, dir, &name(nth)).unwrap();
            if nth % 1000 == 0 {
                fs.sync().unwrap();
            }
        }
        fs.sync().unwrap();
        assert_eq!(dirty(&m), 0);
        // In the order of a listing they lie side by side.
        let mut listed = Vec::new();
        let list = fs.readdir(dir, 2, &mut |entry| {
            listed.push(entry.name.to_vec());
            listed.len() < 400
        });
        list.unwrap();
        listed.iter().for_each(|name| fs.unlink(dir, name).unwrap());
        let few = dirty(&m);
        assert!((LEAF_BYTES..12 * LEAF_BYTES).contains(&few), "{few} bytes are dirty");
        fs.sync().unwrap();
        // These are in as many leaves as there are.
        (0..NAMES).step_by(50).for_each(|nth| _ = fs.unlink(dir, &name(nth)));
        let many = dirty(&m);
        assert!(many > 60 * LEAF_BYTES && many < 400 * LEAF_BYTES, "{many} bytes are dirty");
        fs.sync().unwrap();
        assert_eq!(dirty(&m), 0);
    }
}
