//! The stored error log of a pool.
//!
//! The pool directory's entry `errors` names a ZAP in the MOS, which is created with the first error. Its
//! entries are those of [`Errors`]: one for each finding, block, file and device, with names that identify
//! them. Invalid entries are skipped, so that a later version may add kinds. Nothing depends on the log. If it
//! is damaged, a new one is begun. A pool whose log is temporarily unreadable opens without it.
//!
//! A server calls [`Dataset::record_new_errors`](crate::Dataset::record_new_errors) every few seconds, and
//! [`Dataset::record_errors`](crate::Dataset::record_errors) before it exports the pool.

use crate::directory::ERRORS;
use crate::error::DatasetError;
use crate::mos_zap::{change_directory, find_in_directory};
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_format::Owner;
use terrane_object::{ObjectKind, ObjectSet};
use terrane_pool::Tx;
use terrane_store::errors::{
    BLOCKS_MAX, DamagedBlock, DeviceErrors, Errors, FILES_MAX, FINDINGS_MAX, LossCause, LostFile,
    TEXT_BYTES_MAX,
};
use terrane_txg::cost::Cost;
use terrane_wire::DeviceIdx;
use terrane_zap::{Value, ValueRef};

/// Maximum of entries that are read: more than all known kinds can have together.
const ENTRIES_MAX: usize = 2 * (FINDINGS_MAX + BLOCKS_MAX + FILES_MAX);
/// Longer than any text of ours, in bytes; `NUMBERS_MAX` likewise for lists.
const VALUE_BYTES_MAX: usize = 2 * TEXT_BYTES_MAX;
const NUMBERS_MAX: usize = 16;
/// Entries that change in one transaction.
const ENTRIES_PER_TX: usize = 16;
/// Longest name in bytes: `block.` and four numbers in hexadecimal.
const NAME_BYTES_MAX: usize = 6 + 4 * 17;
/// Cost of creating the ZAP and its entry in the pool directory.
const COST_NEW: Cost = Cost { meta_blocks: 20, objects: 2, ..Cost::NOTHING };

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EntryValue {
    Text(String),
    Numbers(Vec<u64>),
}

impl EntryValue {
    fn value(&self) -> ValueRef<'_> {
        match self {
            EntryValue::Text(text) => ValueRef::U8s(text.as_bytes()),
            EntryValue::Numbers(numbers) => ValueRef::U64s(numbers),
        }
    }

    /// `None`: it is empty, or far larger than any of ours.
    fn from_value(value: &Value) -> Option<EntryValue> {
        match (value.int_size(), value.bytes()) {
            (_, Some(bytes)) if bytes.len() <= VALUE_BYTES_MAX => {
                Some(EntryValue::Text(String::from_utf8_lossy(bytes).into_owned()))
            }
            (8, None) => {
                Some(value.ints()).filter(|numbers| numbers.len() <= NUMBERS_MAX).map(EntryValue::Numbers)
            }
            _ => None,
        }
    }
}

type Entries = BTreeMap<String, EntryValue>;

/// Encodes a log as entries.
fn encode_entries(errors: &Errors) -> Entries {
    let mut entries = Entries::new();
    for (number, text) in errors.findings.iter().enumerate() {
        entries.insert(format!("finding.{number:x}"), EntryValue::Text(text.clone()));
    }
    for block in &errors.blocks {
        let name = match block.owner {
            Owner::Block { objset, object, level, block } => {
                format!("block.{objset:x}.{object:x}.{level:x}.{block:x}")
            }
            Owner::Pool { structure: what } => format!("pool.{what:x}"),
        };
        entries.insert(name, EntryValue::Text(block.reason.clone()));
    }
    for ((objset, object), file) in &errors.files {
        let value = vec![file.cause as u64, file.generation];
        entries.insert(format!("file.{objset:x}.{object:x}"), EntryValue::Numbers(value));
    }
    for (device, errors) in &errors.devices {
        let value = vec![errors.read, errors.write, errors.checksum];
        entries.insert(format!("device.{:x}", device.0), EntryValue::Numbers(value));
    }
    entries
}

/// The numbers in the name of an entry, behind its first word.
fn parse_numbers(rest: &str) -> Option<Vec<u64>> {
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
    rest.split('.').map(number).collect()
}

/// Decodes a log from entries, and skips unknown ones.
fn decode_entries(entries: &Entries) -> Errors {
    let mut errors = Errors::default();
    let mut findings = BTreeMap::new();
    for (name, value) in entries {
        let Some((kind, rest)) = name.split_once('.') else { continue };
        let Some(numbers) = parse_numbers(rest) else { continue };
        match (kind, numbers.as_slice(), value) {
            ("finding", [number], EntryValue::Text(text)) => {
                findings.insert(*number, text.clone());
            }
            ("block", [objset, object, level, block], EntryValue::Text(reason)) => {
                let Ok(level) = u8::try_from(*level) else { continue };
                let owner = Owner::Block { objset: *objset, object: *object, level, block: *block };
                errors.blocks.push(DamagedBlock { owner, reason: reason.clone() });
            }
            ("pool", [structure], EntryValue::Text(reason)) => {
                let Ok(structure) = u8::try_from(*structure) else { continue };
                errors.blocks.push(DamagedBlock { owner: Owner::Pool { structure }, reason: reason.clone() });
            }
            ("file", [objset, object], EntryValue::Numbers(value)) => {
                let [cause, generation] = value.as_slice() else { continue };
                let Some(cause) = LossCause::from_id(*cause) else { continue };
                errors.files.insert((*objset, *object), LostFile { generation: *generation, cause });
            }
            ("device", [device], EntryValue::Numbers(value)) => {
                let (Ok(device), [read, write, checksum]) = (u16::try_from(*device), value.as_slice()) else {
                    continue;
                };
                let value = DeviceErrors { read: *read, write: *write, checksum: *checksum };
                errors.devices.insert(DeviceIdx(device), value);
            }
            _ => {}
        }
    }
    errors.findings = findings.into_values().take(FINDINGS_MAX).collect();
    errors.blocks.truncate(BLOCKS_MAX);
    while errors.files.len() > FILES_MAX {
        errors.files.pop_last();
    }
    errors
}

/// The log as stored.
struct StoredLog {
    zap: ObjectZap,
    entries: Entries,
}

/// State of a recorder.
#[derive(Default)]
struct RecorderState {
    /// `None`: there is no log yet, or it is unreadable.
    stored: Option<StoredLog>,
    /// The pool has received the stored log.
    is_passed_to_pool: bool,
    /// The stored log; `None`: unknown.
    last_stored: Option<Errors>,
}

/// Which changes of a log are to be stored.
#[derive(Clone, Copy)]
pub(crate) enum RecordScope {
    All,
    New,
}

/// Whether the logs are equal, except for counts that have not doubled. Otherwise a device that fails in each
/// commit would cause a write each time, even in an idle pool.
fn is_nearly_equal(stored: &Errors, found: &Errors) -> bool {
    let is_near = |stored: u64, found: u64| stored == found || stored < found && found / 2 < stored;
    let are_near = |(stored, found): (&DeviceErrors, &DeviceErrors)| {
        is_near(stored.read, found.read)
            && is_near(stored.write, found.write)
            && is_near(stored.checksum, found.checksum)
    };
    stored.devices.keys().eq(found.devices.keys())
        && stored.devices.values().zip(found.devices.values()).all(are_near)
        && (&stored.findings, &stored.blocks, &stored.files) == (&found.findings, &found.blocks, &found.files)
}

/// Stores a pool's error log.
pub(crate) struct ErrorRecorder {
    mos: Arc<ObjectSet>,
    state: Mutex<RecorderState>,
}

impl ErrorRecorder {
    /// Passes the stored log to the pool. If it is unreadable now, the pool goes without, and loading is
    /// retried before anything is stored.
    pub fn open(mos: &Arc<ObjectSet>) -> ErrorRecorder {
        let recorder = ErrorRecorder { mos: Arc::clone(mos), state: Mutex::default() };
        let loaded = recorder.load(&mut recorder.state.lock());
        if let Err(error) = loaded {
            log::warn!("pool {}: error log unreadable, continuing without it: {error}", mos.pool().name());
        }
        recorder
    }

    fn load(&self, state: &mut RecorderState) -> Result<(), DatasetError> {
        let Some(id) = find_in_directory(&self.mos, ERRORS)? else {
            state.last_stored = Some(Errors::default());
            return Ok(());
        };
        let zap = ObjectZap::new(&ZapPolicy::of(&self.mos), self.mos.hold(id)?);
        let mut entries = Entries::new();
        zap.each(ENTRIES_MAX, &mut |entry| {
            let name = entry.key.name().and_then(|name| std::str::from_utf8(name).ok());
            if let (Some(name), Some(value)) = (name, EntryValue::from_value(&entry.value)) {
                entries.insert(name.to_owned(), value);
            }
        })?;
        if !std::mem::replace(&mut state.is_passed_to_pool, true) {
            let errors = decode_entries(&entries);
            state.last_stored = Some(errors.clone());
            self.mos.pool().load_stored_errors(errors);
        }
        state.stored = Some(StoredLog { zap, entries });
        Ok(())
    }

    /// Stores the pool's current log, if it differs enough from the stored one.
    pub fn record(&self, scope: RecordScope) -> Result<(), DatasetError> {
        let pool = self.mos.pool();
        let mut state = self.state.lock();
        let found = pool.errors();
        let is_enough = |last: &Errors| match scope {
            RecordScope::All => *last == found,
            RecordScope::New => is_nearly_equal(last, &found),
        };
        if pool.is_read_only() || state.last_stored.as_ref().is_some_and(is_enough) {
            return Ok(());
        }
        if state.stored.is_none() {
            match self.load(&mut state) {
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    log::warn!("pool {}: error log damaged, starting a new one: {error}", pool.name())
                }
                Ok(()) => {}
            }
        }
        let found = pool.errors();
        let mut stored = match state.stored.take() {
            Some(stored) => stored,
            None => StoredLog { zap: self.create_log()?, entries: Entries::new() },
        };
        // If storing fails, the next call compares again.
        state.last_stored = None;
        self.store(&mut stored, encode_entries(&found))?;
        (state.stored, state.last_stored) = (Some(stored), Some(found));
        Ok(())
    }

    /// Creates an empty log, and destroys the previous one.
    fn create_log(&self) -> Result<ObjectZap, DatasetError> {
        // Reads come first: if they failed later, an object without a reference would stay.
        let before = find_in_directory(&self.mos, ERRORS)?;
        let tx = self.mos.begin(Cost { frees: true, ..COST_NEW })?;
        let zap = ObjectZap::create(&self.mos, &ZapPolicy::of(&self.mos), &tx, ObjectKind::Zap)?;
        let named = change_directory(&self.mos, |directory| {
            Ok(directory.update_u64(&tx, ERRORS, zap.object().id().0)?)
        });
        if let Err(error) = named {
            self.mos.destroy(&tx, zap.object())?;
            return Err(error);
        }
        if let Some(before) = before
            && let Err(error) = self.mos.hold(before).and_then(|it| self.mos.destroy(&tx, &it))
        {
            log::warn!(
                "pool {}: space of the old error log lost, object {before}: {error}",
                self.mos.pool().name()
            );
        }
        Ok(zap)
    }

    fn store(&self, stored: &mut StoredLog, mut wanted: Entries) -> Result<(), DatasetError> {
        // An entry of an unknown kind belongs to another version.
        let is_ours = |name: &str| {
            let kind = name.split_once('.').map(|(kind, _)| kind);
            matches!(kind, Some("finding" | "block" | "pool" | "file" | "device"))
        };
        let removed = stored.entries.keys().filter(|name| is_ours(name) && !wanted.contains_key(*name));
        let mut changes: Vec<(String, Option<EntryValue>)> =
            removed.map(|name| (name.clone(), None)).collect();
        wanted.retain(|name, value| stored.entries.get(name) != Some(value));
        changes.extend(wanted.into_iter().map(|(name, value)| (name, Some(value))));
        for step in changes.chunks(ENTRIES_PER_TX) {
            let longest = [0; TEXT_BYTES_MAX];
            let cost = stored.zap.put_cost(NAME_BYTES_MAX, ValueRef::U8s(&longest));
            let bytes = cost.of_many(step.len() as u64);
            let tx = self.mos.begin(Cost { meta_bytes: bytes, frees: true, ..COST_NEW })?;
            step.iter().try_for_each(|change| put(stored, &tx, change))?;
        }
        Ok(())
    }
}

fn put(
    stored: &mut StoredLog,
    tx: &Tx,
    (name, value): &(String, Option<EntryValue>),
) -> Result<(), DatasetError> {
    match value {
        Some(value) => {
            stored.zap.update(tx, name.as_bytes(), value.value())?;
            stored.entries.insert(name.clone(), value.clone());
        }
        None => {
            stored.zap.remove(tx, name.as_bytes())?;
            stored.entries.remove(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_log_round_trips_through_entries() {
        let mut log = Errors::default();
        for n in 0..200_u64 {
            let far = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let owner = Owner::Block { objset: n % 3, object: far, level: (n % 7) as u8, block: !far };
            log.blocks.push(DamagedBlock { owner, reason: format!("reason {n}") });
            let cause = if n % 2 == 0 { LossCause::ServerKilled } else { LossCause::NotWrittenBack };
            log.files.insert((n, far), LostFile { generation: far, cause });
        }
        log.blocks.push(DamagedBlock { owner: Owner::Pool { structure: 255 }, reason: "?".into() });
        log.findings = (0..FINDINGS_MAX).map(|n| format!("finding {n}")).collect();
        for device in [0, 9, u16::MAX] {
            let errors = DeviceErrors { read: u64::MAX, write: 1, checksum: 0 };
            log.devices.insert(DeviceIdx(device), errors);
        }
        let stored = encode_entries(&log);
        assert!(stored.keys().all(|name| name.len() <= NAME_BYTES_MAX));
        let mut read = decode_entries(&stored);
        let order = |block: &DamagedBlock| format!("{:?}", block.owner);
        read.blocks.sort_by_key(order);
        log.blocks.sort_by_key(order);
        assert_eq!(read, log);
    }

    #[test]
    fn unknown_entries_are_skipped() {
        let text = || EntryValue::Text("text".into());
        let strange = [
            ("", text()),
            ("block", text()),
            ("block.", text()),
            ("block.1.2.3", text()),
            ("block.1.2.100.4", text()),
            ("block.1.2.3.4.5", text()),
            ("block.1.2.3.4", EntryValue::Numbers(vec![1])),
            ("block.+1.2.3.4", text()),
            ("block.10000000000000000.2.3.4", text()),
            ("pool.100", text()),
            ("file.1.2", EntryValue::Numbers(vec![3, 1])),
            ("file.1.2", EntryValue::Numbers(vec![1])),
            ("file.1.2", text()),
            ("device.10000", EntryValue::Numbers(vec![1, 2, 3])),
            ("device.1", EntryValue::Numbers(vec![1, 2])),
            ("finding.x", text()),
            ("later.1", text()),
        ];
        for (name, value) in strange {
            let stored = Entries::from([(name.to_owned(), value)]);
            assert_eq!(decode_entries(&stored), Errors::default(), "{name}");
        }
        let many = (0..2 * FILES_MAX).map(|n| (format!("file.2.{n:x}"), EntryValue::Numbers(vec![1, 1])));
        assert_eq!(decode_entries(&many.collect()).files.len(), FILES_MAX);
    }
}
