//! Inputs of the targets that read a pool's own structures.
//!
//! * `labels`: a label without its seal. The seal and the identifying fields are made valid, because a seal is no secret.
//! * `records`: a commit record before compression.
//! * `batches`: an offset in a zone, in write units (`u16`), and the head of a batch on a cache device. Its seal is made valid.
//! * `tables`: a length (`u16`), a section of the zone tables of that length, and a commit record that is applied to it.

use terrane_format::block_ptr::Key;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::cache_device::{
    BATCH_MAGIC, BatchEntry, BatchHead, CacheGeometry, encode_head, parse_batch,
};
use terrane_format::features::Features;
use terrane_format::label::{
    CacheRow, DeviceRow, DeviceState, FORMAT_VERSION, LABEL_BYTES, LABEL_MAGIC, Label, LogDeviceRow, Role,
};
use terrane_format::log::{LogHead, LogHome, LogZone};
use terrane_format::record::RowForm;
use terrane_format::record::{
    Free, Home, Move, OpenedZone, RECORD_MAGIC, Record, Run, WrittenZone, ZoneClass,
};
use terrane_format::seal::{Seed, seal};
use terrane_format::{Addr, BlockPtr, Totals};
use terrane_space::reclaimed::ReclaimedZone;
use terrane_space::zones::{Tables, Zone};
use terrane_wire::{DeviceIdx, Txg, ZoneIdx, ZoneSeq};

/// Offsets of a label's head: FORMAT.md, 4.1.
const HEAD_BYTES: usize = 96;
const SEAL_AT: usize = 80;

fn word(raw: &[u8], at: usize) -> u64 {
    raw.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

/// A label with a valid seal, whatever else it says.
fn sealed(data: &[u8], anchor: u32) -> Option<Vec<u8>> {
    let mut raw = data.get(..data.len().min(LABEL_BYTES as usize))?.to_vec();
    let body_bytes = u32::try_from(raw.len().checked_sub(HEAD_BYTES)?).ok()?;
    raw[..8].copy_from_slice(&LABEL_MAGIC.to_le_bytes());
    raw[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    raw[12..16].copy_from_slice(&body_bytes.to_le_bytes());
    let (pool, scope, incarnation) = (word(&raw, 16), word(&raw, 24), word(&raw, 40));
    let seed = Seed { pool, scope, offset: u64::from(anchor), incarnation };
    let made = seal(seed, &[&raw[..SEAL_AT], &raw[HEAD_BYTES..]]);
    raw[SEAL_AT..HEAD_BYTES].copy_from_slice(&made);
    raw.resize(LABEL_BYTES as usize, 0);
    Some(raw)
}

/// A label is refused by name, or can be written again, under the name of any of its devices.
pub fn run_label(data: &[u8]) {
    let Some(raw) = sealed(data, 1) else { return };
    let Ok(label) = Label::parse(&raw, 1, "fuzz") else { return };
    assert!(Label::parse(&raw, 0, "fuzz").is_err(), "it was written for the other anchor");
    assert!(label.members().any(|(_, row)| row.device == label.device), "{label:?}");
    for (index, row) in label.members() {
        assert_eq!(label.member(index), Some(row));
        assert!(row.zone_count >= 2 && row.zone_size >= u64::from(row.write_unit), "{row:?}");
    }
    assert_eq!(label.member(DeviceIdx(u16::MAX)), None);
    assert_eq!(Label::parse(&label.encode(0), 0, "fuzz").as_ref(), Ok(&label));
}

/// A record is refused by name, or means the same when it is written again.
pub fn run_record(data: &[u8]) {
    let Some(record) = record(data) else { return };
    let again = Record::parse(&record.encode(), "fuzz").expect("what was read can be written");
    assert_eq!(again, record);
    let twice = record.totals.plus(&record.totals);
    assert_eq!(twice.since(&record.totals), record.totals, "sums of what was read do not overflow");
    assert!(twice.device_bytes() >= record.totals.device_bytes());
}

fn record(data: &[u8]) -> Option<Record> {
    let mut raw = data.to_vec();
    raw.get_mut(..8)?.copy_from_slice(&RECORD_MAGIC.to_le_bytes());
    Record::parse(&raw, "fuzz").ok()
}

/// A section is refused by name, or means the same when it is written again. A record applied to it leaves tables that report what is
/// wrong with them and can be stored.
pub fn run_tables(data: &[u8]) {
    let Some((len, rest)) = data.split_first_chunk() else { return };
    let (section, rest) = rest.split_at(usize::from(u16::from_le_bytes(*len) & 0x7fff).min(rest.len()));
    // Both forms are tested. One bit of the length selects the form.
    let form = if len[1] & 0x80 == 0 { RowForm::Plain } else { RowForm::Tailed };
    let Ok(mut tables) = Tables::decode(1, |_| Ok(Some((section.to_vec(), form)))) else { return };
    stored(&tables);
    let _ = tables.check();
    // Import refuses inconsistent tables before anything is applied to them.
    let Some(record) = record(rest).filter(|_| tables.check().is_empty()) else { return };
    let mut frees = record.frees.clone();
    frees.sort_unstable();
    let own = record.previous;
    let findings = tables.apply(&record, &own, &frees, &|_| true);
    if findings.is_empty() && tables.check().is_empty() {
        stored(&tables);
        let rows = tables.encode_section(0, 1, RowForm::Tailed);
        tables.replace_reclaimed(tables.reclaimed_in_form(true));
        assert!(tables.check().is_empty(), "packed: {:?}", tables.check());
        assert_eq!(tables.encode_section(0, 1, RowForm::Tailed), rows, "what is packed is what it was");
    }
}

fn stored(tables: &Tables) {
    for form in [RowForm::Plain, RowForm::Tailed] {
        let raw = tables.encode_section(0, 1, form);
        let stored = |_| Ok(Some((raw.clone(), form)));
        let again = Tables::decode(1, stored).expect("what is in the tables can be stored");
        assert_eq!(again.encode_section(0, 1, form), raw);
    }
}

/// Pool id and cache device id of every batch, and its zone.
const CACHE: (u64, u64) = (7, 9);
const BATCH_ZONE: ZoneIdx = ZoneIdx(2);

const GEOMETRY: CacheGeometry = CacheGeometry { write_unit: 4096, zone_size: 1 << 20, zone_count: 8 };

/// A batch is refused, or lies in its zone with consecutive blocks, and means the same when it is written again.
pub fn run_batch(data: &[u8]) {
    let Some((units, raw)) = data.split_first_chunk() else { return };
    let at = u64::from(u16::from_le_bytes(*units)) * 4096;
    let mut raw = raw.to_vec();
    let Some(room) = raw.len().checked_sub(BatchHead::SIZE) else { return };
    raw[..8].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
    raw[8..16].copy_from_slice(&CACHE.0.to_le_bytes());
    raw[16..24].copy_from_slice(&CACHE.1.to_le_bytes());
    // Entry counts beyond the bytes are tried, but not always.
    let count = u32::from_le_bytes([raw[32], raw[33], raw[34], raw[35]]);
    let fits = (room / BatchEntry::SIZE) as u32;
    let count = if count == u32::MAX { count } else { count.min(fits) };
    raw[32..36].copy_from_slice(&count.to_le_bytes());
    let entries = BatchHead::SIZE..BatchHead::SIZE + (count.min(fits) as usize) * BatchEntry::SIZE;
    let offset = u64::from(BATCH_ZONE.0) << 32 | at;
    let seed = Seed { pool: CACHE.0, scope: CACHE.1, offset, incarnation: word(&raw, 24) };
    let made = seal(seed, &[&raw[..BatchHead::SIZE - 16], &raw[entries]]);
    raw[BatchHead::SIZE - 16..BatchHead::SIZE].copy_from_slice(&made);
    let Some(batch) = parse_batch(&raw, CACHE, (BATCH_ZONE, at), &GEOMETRY) else { return };
    assert!(at + batch.bytes <= GEOMETRY.zone_size && batch.bytes > 0);
    let mut end = at;
    for (_, spot) in &batch.blocks {
        assert!(spot.zone == BATCH_ZONE && spot.offset >= end && spot.psize > 0, "{spot:?}");
        end = spot.offset + u64::from(spot.psize);
    }
    assert!(end <= at + batch.bytes);
    let Some((_, first)) = batch.blocks.first() else { return };
    let sizes: Vec<(Key, u32)> = batch.blocks.iter().map(|(key, spot)| (*key, spot.psize)).collect();
    let of = (CACHE.0, CACHE.1, batch.lap);
    let (again, spots) = encode_head(of, (BATCH_ZONE, at), &sizes, (first.offset - at, batch.bytes));
    assert!(spots.iter().eq(batch.blocks.iter().map(|(_, spot)| spot)));
    let again =
        parse_batch(&again, CACHE, (BATCH_ZONE, at), &GEOMETRY).expect("what was read can be written");
    assert_eq!((again.lap, again.bytes, again.blocks), (batch.lap, batch.bytes, batch.blocks));
}

/// The seeds: target, name, input.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for devices in [1u64, 2, 5] {
        seeds.push(("labels", format!("{devices} devices"), label(devices).encode(1)));
    }
    for seed in &mut seeds {
        // Bytes behind the body are ignored.
        let end = seed.2.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 3);
        seed.2.truncate(end);
    }
    for (name, record) in [("little", own_record(1)), ("much", own_record(20))] {
        seeds.push(("records", name.into(), record.encode()));
        for zones in [1, 9] {
            for (form, bit) in [(RowForm::Plain, 0), (RowForm::Tailed, 0x8000)] {
                let section = own_tables(zones).encode_section(0, 1, form);
                let len = u16::try_from(section.len()).expect("a small seed") | bit;
                let input = [&len.to_le_bytes()[..], &section, &record.encode()].concat();
                seeds.push(("tables", format!("{zones} zones, {name}, {form:?}"), input));
            }
        }
    }
    for count in [0u64, 1, 40] {
        let key = |n| Key { addr: Addr::new(ZoneSeq(1 + n), 16 * n), birth: Txg(n) };
        let sizes: Vec<(Key, u32)> = (0..count).map(|n| (key(n), 100 + n as u32)).collect();
        let head_bytes = (BatchHead::SIZE as u64 + count * BatchEntry::SIZE as u64).next_multiple_of(16);
        let (head, _) = encode_head((7, 9, 3), (BATCH_ZONE, 8192), &sizes, (head_bytes, 16384));
        seeds.push(("batches", format!("{count} blocks"), [&2u16.to_le_bytes()[..], &head].concat()));
    }
    seeds
}

fn label(devices: u64) -> Label {
    let row = |index: u64| {
        let (role, state) = [(Role::Data, DeviceState::Normal), (Role::Special, DeviceState::Leaving)]
            [usize::from(index % 3 == 1)];
        // The second device was removed.
        (index != 1).then(|| DeviceRow {
            device: index + 7,
            zone_size: 1 << 20,
            zone_count: 64,
            write_unit: 4096,
            role,
            state,
            name: if devices > 1 { format!("disk {index}") } else { String::new() },
        })
    };
    let mut features = Features::default();
    if devices > 1 {
        features.incompatible.push("org.terrane:devices".into());
    }
    features.compatible.push("org.example:unknown".into());
    let mut caches = Vec::new();
    if devices > 2 {
        features.compatible.push("org.terrane:caches".into());
        caches.push(CacheRow { cache: 3, zone_size: 1 << 26, name: "fast".into() });
    }
    let mut log_devices = Vec::new();
    if devices > 3 {
        features.incompatible.push("org.terrane:log_devices".into());
        log_devices.push(LogDeviceRow { device: 1 << 63 | 9, zone_size: 1 << 24, name: "log".into() });
    }
    Label {
        pool: 5,
        identity: None,
        name: "tank".into(),
        device: 7,
        generation: 3,
        anchor_generation: 2,
        zone_size: 1 << 20,
        zone_count: 64,
        write_unit: 4096,
        max_block: 256 << 10,
        sections: 4,
        features,
        devices: (0..devices).map(row).collect(),
        caches,
        log_devices,
    }
}

fn home(seq: u64) -> Home {
    Home { device: DeviceIdx(0), zone: ZoneIdx(seq as u32 + 1) }
}

fn own_tables(zones: u64) -> Tables {
    let mut tables = Tables::default();
    for seq in 1..=zones {
        let mut zone = Zone::new(ZoneClass::Data, home(seq), 1 << 20, Txg(seq));
        (zone.claimed, zone.live) = (512 << 10, 64 << 10);
        zone.born.dead.add_sorted(&[(300, 16), (900, 400)]);
        if seq % 3 == 2 {
            // Its survivors are in the first zone.
            let mut run = Run::of(256, 16, ZoneSeq(1), 64 << 10);
            run.add_block(288, 8);
            zone.born.runs.push(run);
            let Zone { class, opened, last_write, born, .. } = zone;
            tables.insert_reclaimed([(ZoneSeq(seq), ReclaimedZone { class, opened, last_write, born })]);
        } else {
            tables.insert(ZoneSeq(seq), zone);
        }
    }
    tables
}

fn own_record(count: u64) -> Record {
    let free = |seq: u64| Free { addr: Addr::new(ZoneSeq(seq), 256 * 16), granules: 16 };
    Record {
        txg: Txg(40),
        incarnation: 2,
        time_ns: 1,
        previous: BootPtr::NONE,
        previous_txg: Txg(39),
        replay_after: Txg(30),
        root: BlockPtr::default(),
        opened: (0..count)
            .map(|at| OpenedZone {
                seq: ZoneSeq(30 + at),
                class: ZoneClass::MetaA,
                home: home(30 + at),
                capacity: 1 << 20,
            })
            .collect(),
        form: if count > 1 { RowForm::Tailed } else { RowForm::Plain },
        written: (0..count)
            .map(|at| WrittenZone { seq: ZoneSeq(30 + at), claimed: 65536, born_bytes: 4096 })
            .collect(),
        filled: vec![ZoneSeq(1)],
        reset: (0..count / 10).map(|at| ZoneSeq(4 + at)).collect(),
        suspect: vec![ZoneSeq(3)],
        moves: (1..count.min(9))
            .map(|seq| Move { birth: ZoneSeq(seq), run: Run::of(256, 16, ZoneSeq(30), 65536) })
            .collect(),
        deltas: vec![(ZoneSeq(1), -4096), (ZoneSeq(30), 4096)],
        frees: (1..count.min(9)).map(free).collect(),
        dead_log: Vec::new(),
        sections: Vec::new(),
        part_copies: Vec::new(),
        may_open: (0..count).map(|at| home(60 + at)).collect(),
        log: (count > 1).then(|| LogHead {
            incarnation: 2,
            number: 9,
            offset: 1 << 13,
            unit: 4096,
            chain: [3; 16],
            after: Txg(40),
            replayed: 70,
            zones: vec![
                LogZone { homes: vec![LogHome::Lent(home(80)), LogHome::Lent(home(81))] },
                LogZone {
                    homes: vec![
                        LogHome::Own { device: 9, zone: ZoneIdx(82), filling: 7 },
                        LogHome::Lent(home(83)),
                    ],
                },
            ],
        }),
        totals: Totals {
            user_bytes: 9,
            reset_zones: count,
            by_purpose: [1, 2, 3, 4, 5, 6, 7],
            ..Totals::default()
        },
    }
}
