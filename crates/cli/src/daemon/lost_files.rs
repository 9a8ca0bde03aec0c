//! The files of a mount that lost changes, in memory that outlives a server.
//!
//! The ledger records changes as they are made. After a crash, files that lost changes go into a list. The list stays
//! for all later servers. Each mount has its own ledger and list, because an inode number needs a data set.

use crate::failure::Outcome;
use crate::fd_store::InheritedMount;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use terrane_format::Feature;
use terrane_fuse::handover::{self, ChangeRing, Ledger};
use terrane_posix::{Fs, Ino, Loss};
use terrane_wire::Txg;

/// The ledger, as the file system sees it.
struct LossLedger {
    ledger: Arc<Ledger>,
    lost: Option<LostFiles>,
}

/// The ring of the ledger, in which changes are kept for a successor.
struct KeptInRing(Arc<Ledger>);

impl KeptInRing {
    fn ring(&self) -> &ChangeRing {
        self.0.ring().expect("made of a ledger with a ring")
    }
}

impl terrane_posix::ChangeKeeper for KeptInRing {
    fn reserve(&self, bytes: usize) -> bool {
        self.ring().reserve(bytes)
    }

    fn is_half_taken(&self) -> bool {
        self.ring().is_half_taken()
    }

    fn unreserve(&self, bytes: usize) {
        self.ring().unreserve(bytes);
    }

    fn keep(&self, txg: Txg, change: u64, pieces: &[&[u8]]) {
        self.ring().keep((txg.0, change), pieces);
    }

    fn release(&self, durable: Txg) {
        self.ring().release(durable.0);
    }
}

impl terrane_posix::Ledger for LossLedger {
    fn note_change(&self, txg: u64, ino: Ino) {
        self.ledger.record(txg, ino);
    }

    fn note_reported(&self, ino: Ino, loss: Option<Loss>) {
        if let Some(lost) = &self.lost {
            lost.update(ino, loss);
        }
    }
}

/// Gives the file system a ledger, and its ring if it has one. Returns the file of the ledger for a holder. The file system must have
/// none yet.
pub fn attach_ledger(fs: &Fs, ledger: Ledger, lost: Option<LostFiles>) -> Outcome<File> {
    let file = ledger.file().try_clone()?;
    let ledger = Arc::new(ledger);
    let set = fs.dataset().object_set();
    let pool = set.pool();
    if let Some(ring) = ledger.ring().filter(|_| pool.has(Feature::Log)) {
        ring.begin(pool.status().incarnation, set.id().0);
        fs.set_keeper(Box::new(KeptInRing(Arc::clone(&ledger))));
    }
    fs.set_ledger(Box::new(LossLedger { ledger, lost }));
    Ok(file)
}

/// What a mount has lost with its servers so far.
pub struct Losses {
    /// The ledger of the last server, if the mount was writable.
    pub ledger: Option<Ledger>,
    pub lost: BTreeMap<Ino, Loss>,
    /// The list of these files, to be stored with the holder. `None`: nothing is lost.
    pub list: Option<LostFiles>,
}

impl Losses {
    /// `committed`: the last txg that the predecessor committed. After an orderly handover, or if all changes were replayed, nothing
    /// more is lost, except in the files of which a change was left out.
    pub fn of(mount: &InheritedMount, orderly: bool, committed: u64) -> Outcome<Losses> {
        let ledger = mount.ledger.as_ref().map(|file| Ledger::map(file.try_clone()?)).transpose()?;
        let changed = match &ledger {
            Some(ledger) if !orderly && mount.left_out.is_none() => ledger.inodes_changed_after(committed),
            _ => mount.left_out.clone().unwrap_or_default(),
        };
        let mut lost: BTreeMap<Ino, Loss> = changed.into_iter().map(|ino| (ino, Loss::default())).collect();
        if let Some(file) = &mount.lost {
            // Changes that were lost again have to be reported again.
            for (ino, loss) in LostFiles::read(file)? {
                lost.entry(ino).or_insert(loss);
            }
        }
        let list = if lost.is_empty() { None } else { Some(LostFiles::new(&lost)?) };
        Ok(Losses { ledger, lost, list })
    }
}

/// Inodes that lost changes, and whether the loss was reported to kernel, programs and administrator. The ledger drops
/// them with the next commit. This list stays for all later servers.
pub struct LostFiles {
    pub file: File,
    /// In ascending order, as in the file, which has 8 bytes for each. The highest bits say to whom the loss was
    /// reported; object numbers have fewer bits.
    numbers: Vec<Ino>,
}

const CHANGE_REPORTED: u64 = 1 << 63;
const SYNC_REPORTED: u64 = 1 << 62;
const LOSS_READ: u64 = 1 << 61;
const ROLLED_BACK: u64 = 1 << 60;
const REPLACED: u64 = 1 << 59;
const NAMED: u64 = 1 << 58;
const FLAGS: u64 = CHANGE_REPORTED | SYNC_REPORTED | LOSS_READ | ROLLED_BACK | REPLACED | NAMED;

fn encode_entry(ino: Ino, loss: Loss) -> u64 {
    let flag = |is_told, bit| if is_told { bit } else { 0 };
    ino | flag(loss.change_reported, CHANGE_REPORTED)
        | flag(loss.sync_reported, SYNC_REPORTED)
        | flag(loss.is_read, LOSS_READ)
        | flag(loss.is_rolled_back, ROLLED_BACK)
        | flag(loss.is_replaced, REPLACED)
        | flag(loss.is_named, NAMED)
}

fn decode_entry(word: u64) -> (Ino, Loss) {
    let is_set = |bit| word & bit != 0;
    let loss = Loss {
        change_reported: is_set(CHANGE_REPORTED),
        sync_reported: is_set(SYNC_REPORTED),
        is_read: is_set(LOSS_READ),
        is_rolled_back: is_set(ROLLED_BACK),
        is_replaced: is_set(REPLACED),
        is_named: is_set(NAMED),
    };
    (word & !FLAGS, loss)
}

impl LostFiles {
    pub fn new(losses: &BTreeMap<Ino, Loss>) -> Outcome<LostFiles> {
        let numbers: Vec<Ino> = losses.keys().copied().collect();
        let file = handover::memory_file("terrane-lost")?;
        let raw: Vec<u8> =
            losses.iter().flat_map(|(ino, loss)| encode_entry(*ino, *loss).to_le_bytes()).collect();
        file.write_all_at(&raw, 0)?;
        Ok(LostFiles { file, numbers })
    }

    /// Reads the list of a predecessor. Entries that are no longer valid are 0.
    pub fn read(file: &File) -> Outcome<BTreeMap<Ino, Loss>> {
        let mut raw = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
        file.read_exact_at(&mut raw, 0)?;
        let (words, _) = raw.as_chunks();
        Ok(words
            .iter()
            .map(|word| decode_entry(u64::from_le_bytes(*word)))
            .filter(|(ino, _)| *ino != 0)
            .collect())
    }

    fn update(&self, ino: Ino, loss: Option<Loss>) {
        let word = loss.map_or(0, |loss| encode_entry(ino, loss));
        if let Ok(at) = self.numbers.binary_search(&ino)
            && let Err(error) = self.file.write_all_at(&word.to_le_bytes(), 8 * at as u64)
        {
            log::warn!("list of lost files not updated, inode {ino} may be reported once more: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_files_are_listed_until_they_are_reported() {
        let (none, change) = (Loss::default(), Loss { change_reported: true, ..Loss::default() });
        let both = Loss { is_replaced: true, is_named: true, ..Loss::ROLLED_BACK };
        let largest = (1 << 48) - 1;
        let lost = LostFiles::new(&[(7, none), (largest, change), (300, both), (301, none)].into()).unwrap();
        let read = |lost: &LostFiles| LostFiles::read(&lost.file).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(read(&lost), [(7, none), (300, both), (301, none), (largest, change)]);
        lost.update(7, Some(Loss { sync_reported: true, ..none }));
        lost.update(300, None);
        lost.update(8, None);
        let again = LostFiles::new(&LostFiles::read(&lost.file).unwrap()).unwrap();
        assert_eq!(read(&again), [(7, Loss { sync_reported: true, ..none }), (301, none), (largest, change)]);
    }
}
