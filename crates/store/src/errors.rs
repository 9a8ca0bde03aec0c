//! The error log: what was found wrong with a pool, until an administrator clears it.
//!
//! It holds damage, files that lost changes, and failure counts per device. The pool keeps it in memory, and any thread may add to it.
//! The layer above stores it in the pool, and loads it back when the pool is opened. Every list is bounded. What exceeds a bound
//! appears only in the process log.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use terrane_device::IoCounts;
use terrane_format::directory::Owner;
use terrane_wire::DeviceIdx;

/// Most findings that are kept.
pub const FINDINGS_MAX: usize = 64;
/// Most blocks that are kept: enough to see which files are affected.
pub const BLOCKS_MAX: usize = 1000;
/// Most files that are kept.
pub const FILES_MAX: usize = 10_000;
/// Most bytes of a finding or a reason.
pub const TEXT_BYTES_MAX: usize = 400;

/// A snapshot of the error log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Damage that belongs to no single block, in the order found.
    pub findings: Vec<String>,
    /// Blocks of which no copy could be read, in the order found.
    pub blocks: Vec<DamagedBlock>,
    /// By object set and object.
    pub files: BTreeMap<(u64, u64), LostFile>,
    /// Devices that failed at least once.
    pub devices: BTreeMap<DeviceIdx, DeviceErrors>,
}

/// A block of which a read found no good copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedBlock {
    /// The owner of the block.
    pub owner: Owner,
    /// The damage, in at most [`TEXT_BYTES_MAX`] bytes.
    pub reason: String,
}

/// A file that lost changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// Of the inode: a later file may reuse the number.
    pub generation: u64,
    /// Why they were lost.
    pub cause: LossCause,
}

/// Why a file lost changes. The number is what the pool stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LossCause {
    /// The server was killed before the changes were committed.
    ServerKilled = 1,
    /// Data stored through a mapping could not be written back.
    NotWrittenBack = 2,
}

impl LossCause {
    /// The cause with this stored number. `None`: written by a later version, or damaged.
    pub fn from_id(id: u64) -> Option<LossCause> {
        [LossCause::ServerKilled, LossCause::NotWrittenBack].into_iter().find(|cause| *cause as u64 == id)
    }
}

/// Failure counts of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceErrors {
    /// Failed reads, each retry counted.
    pub read: u64,
    /// Writes, resets and flushes that failed.
    pub write: u64,
    /// Copies that were read but did not match their checksum.
    pub checksum: u64,
}

impl DeviceErrors {
    /// Whether all counts are 0.
    pub fn is_none(&self) -> bool {
        *self == DeviceErrors::default()
    }

    /// The read and write errors that a device has counted. It cannot count checksum errors.
    pub fn of(counts: &IoCounts) -> DeviceErrors {
        DeviceErrors { read: counts.read_errors, write: counts.write_errors, checksum: 0 }
    }

    fn plus(self, other: DeviceErrors) -> DeviceErrors {
        DeviceErrors {
            read: self.read.saturating_add(other.read),
            write: self.write.saturating_add(other.write),
            checksum: self.checksum.saturating_add(other.checksum),
        }
    }

    fn minus(self, other: DeviceErrors) -> DeviceErrors {
        DeviceErrors {
            read: self.read.saturating_sub(other.read),
            write: self.write.saturating_sub(other.write),
            checksum: self.checksum.saturating_sub(other.checksum),
        }
    }
}

#[derive(Default)]
struct LogState {
    /// `devices` holds the counts stored before this import, and the checksum errors since.
    errors: Errors,
    /// The devices' own counts when the log was cleared.
    counted: BTreeMap<DeviceIdx, DeviceErrors>,
    /// The stored log was loaded.
    is_loaded: bool,
}

impl LogState {
    /// The log's content, with the devices' current counts.
    fn errors(&self, counted: &BTreeMap<DeviceIdx, DeviceErrors>) -> Errors {
        let mut errors = self.errors.clone();
        for (device, counted) in counted {
            let before = self.counted.get(device).copied().unwrap_or_default();
            let known = errors.devices.get(device).copied().unwrap_or_default();
            errors.devices.insert(*device, known.plus(counted.minus(before)));
        }
        errors.devices.retain(|_, errors| !errors.is_none());
        errors
    }
}

/// The error log of an imported pool.
#[derive(Default)]
pub struct ErrorLog {
    state: Mutex<LogState>,
    /// Whether the log ever named a block or a file. Mostly it did not, and then destroying a file takes no lock.
    has_objects: AtomicBool,
}

/// Cuts a text to [`TEXT_BYTES_MAX`]. An empty text becomes `?`.
fn shorten(text: impl ToString) -> String {
    let mut text = text.to_string();
    if text.is_empty() {
        text.push('?');
    }
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

impl ErrorLog {
    /// The log's content now. `counted` are the devices' own counts since import.
    pub fn errors(&self, counted: &BTreeMap<DeviceIdx, DeviceErrors>) -> Errors {
        self.state.lock().errors(counted)
    }

    /// Adds what an earlier import stored. Only the first call counts, because several data sets of one pool may be opened.
    pub fn load_stored(&self, stored: Errors) {
        if !std::mem::replace(&mut self.state.lock().is_loaded, true) {
            self.merge_stored(stored);
        }
    }

    /// Empties the log and returns its content.
    pub fn clear(&self, counted: BTreeMap<DeviceIdx, DeviceErrors>) -> Errors {
        let mut state = self.state.lock();
        let errors = state.errors(&counted);
        (state.errors, state.counted) = (Errors::default(), counted);
        errors
    }

    /// Notes damage that belongs to no single block.
    pub fn note_finding(&self, text: impl ToString) {
        let (text, mut state) = (shorten(text), self.state.lock());
        let findings = &mut state.errors.findings;
        if findings.len() < FINDINGS_MAX && !findings.contains(&text) {
            findings.push(text);
        }
    }

    /// Notes a block of which no copy could be read.
    pub fn note_block(&self, owner: Owner, reason: impl ToString) {
        let mut state = self.state.lock();
        let blocks = &mut state.errors.blocks;
        if blocks.len() < BLOCKS_MAX && !blocks.iter().any(|block| block.owner == owner) {
            blocks.push(DamagedBlock { owner, reason: shorten(reason) });
            self.has_objects.store(true, Ordering::Release);
        }
    }

    /// Notes a file that lost changes. Returns false if it is listed already, or if the list is full.
    pub fn note_file(&self, id: (u64, u64), file: LostFile) -> bool {
        let mut state = self.state.lock();
        let files = &mut state.errors.files;
        let is_known = files.get(&id).is_some_and(|known| known.generation == file.generation);
        if is_known || (files.len() >= FILES_MAX && !files.contains_key(&id)) {
            return false;
        }
        files.insert(id, file);
        self.has_objects.store(true, Ordering::Release);
        true
    }

    /// Counts a copy on this device that did not match its checksum.
    pub fn note_checksum(&self, device: DeviceIdx) {
        let mut state = self.state.lock();
        let errors = state.errors.devices.entry(device).or_default();
        errors.checksum = errors.checksum.saturating_add(1);
    }

    /// Whether the block was found damaged. Also true for any block if the list of blocks is full.
    pub fn may_be_damaged(&self, owner: Owner) -> bool {
        if !self.has_objects.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.lock();
        let blocks = &state.errors.blocks;
        blocks.len() >= BLOCKS_MAX || blocks.iter().any(|block| block.owner == owner)
    }

    /// Drops an object's entries: it was truncated to 0 or destroyed.
    pub fn forget_object(&self, objset: u64, object: u64) {
        if !self.has_objects.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        state.errors.files.remove(&(objset, object));
        state.errors.blocks.retain(|block| match block.owner {
            Owner::Block { objset: set, object: id, .. } => (set, id) != (objset, object),
            Owner::Pool { .. } => true,
        });
    }

    /// Puts the entries of an earlier import before those of this one.
    fn merge_stored(&self, stored: Errors) {
        let found = std::mem::take(&mut self.state.lock().errors);
        for errors in [stored, found] {
            errors.findings.into_iter().for_each(|text| self.note_finding(text));
            errors.blocks.into_iter().for_each(|block| self.note_block(block.owner, block.reason));
            for (id, file) in errors.files {
                self.note_file(id, file);
            }
            let mut state = self.state.lock();
            for (device, errors) in errors.devices {
                let before = state.errors.devices.entry(device).or_default();
                *before = before.plus(errors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(block: u64) -> Owner {
        Owner::Block { objset: 2, object: 7, level: 0, block }
    }

    #[test]
    fn every_list_is_bounded() {
        let log = ErrorLog::default();
        for n in 0..20_000 {
            log.note_finding(format!("{n} {}", "\u{e9}".repeat(300)));
            log.note_block(block(n), "x".repeat(1000));
            log.note_file((2, n), LostFile { generation: 1, cause: LossCause::ServerKilled });
        }
        let state = log.state.lock();
        assert_eq!(state.errors.findings.len(), FINDINGS_MAX);
        assert!(state.errors.findings.iter().all(|text| text.len() <= TEXT_BYTES_MAX));
        assert_eq!(state.errors.blocks.len(), BLOCKS_MAX);
        assert!(state.errors.blocks.iter().all(|block| block.reason.len() == TEXT_BYTES_MAX));
        assert_eq!(state.errors.files.len(), FILES_MAX);
        drop(state);
        assert!(log.may_be_damaged(block(50_000)), "not all are known");
    }

    #[test]
    fn what_was_stored_comes_first() {
        let log = ErrorLog::default();
        log.note_finding("new");
        log.note_finding("both");
        log.note_block(block(3), "new");
        log.note_checksum(DeviceIdx(1));
        let lost = |generation, cause| LostFile { generation, cause };
        log.note_file((2, 8), lost(5, LossCause::NotWrittenBack));
        log.merge_stored(Errors {
            findings: vec!["old".into(), "both".into()],
            blocks: vec![DamagedBlock { owner: block(3), reason: "old".into() }],
            files: [((2, 8), lost(4, LossCause::ServerKilled)), ((2, 9), lost(1, LossCause::ServerKilled))]
                .into(),
            devices: [(DeviceIdx(1), DeviceErrors { read: 1, write: 2, checksum: 3 })].into(),
        });
        let errors = log.state.lock().errors.clone();
        assert_eq!(errors.findings, ["old", "both", "new"]);
        assert_eq!(errors.blocks, [DamagedBlock { owner: block(3), reason: "old".into() }]);
        assert_eq!(errors.files[&(2, 8)].generation, 5, "the number has another file now");
        assert_eq!(errors.devices[&DeviceIdx(1)], DeviceErrors { read: 1, write: 2, checksum: 4 });
        log.forget_object(2, 7);
        log.forget_object(2, 8);
        assert_eq!(log.state.lock().errors.blocks, []);
        assert_eq!(log.state.lock().errors.files.keys().collect::<Vec<_>>(), [&(2, 9)]);
    }
}
