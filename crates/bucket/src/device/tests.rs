use super::*;
use crate::memory::{Fate, Fates, MemoryStore, Request};
use terrane_wire::Prng;

const UNIT: usize = 4096;
const GEOMETRY: Geometry = Geometry { write_unit: UNIT as u32, zone_size: 1 << 20, zone_count: 40 };

fn options() -> Options {
    Options {
        part_bytes: 16 * UNIT,
        threads: 0,
        parts_max: 4,
        pause: Duration::from_micros(1),
        write_patience: Duration::ZERO,
        read_patience: Duration::ZERO,
        retention: Duration::ZERO,
        request_budget: Some(0),
    }
}

fn create(store: &MemoryStore) -> BucketDevice {
    BucketDevice::create(Arc::new(store.client(None)), GEOMETRY, &options()).unwrap()
}

fn open(store: &MemoryStore) -> BucketDevice {
    BucketDevice::open(Arc::new(store.client(None)), OpenMode::ReadWrite, &options()).unwrap()
}

fn filled(units: usize, byte: u8) -> Vec<u8> {
    vec![byte; units * UNIT]
}

fn content(device: &BucketDevice, zone: u32, offset: usize, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    device.read(ZoneIdx(zone), offset as u64, &mut buf).unwrap();
    buf
}

/// A commit, as a pool makes one: data, a barrier, an anchor, a barrier.
fn commit(device: &BucketDevice, byte: u8) -> Result<(), DeviceError> {
    device.flush()?;
    let anchor = ZoneIdx(0);
    device.write(anchor, device.report(anchor)?.pointer, &filled(1, byte))?;
    device.flush()
}

#[test]
fn what_is_flushed_is_there_after_a_crash() {
    let store = MemoryStore::default();
    let device = create(&store);
    // More than a part, and less than one; with and without an anchor.
    device.write(ZoneIdx(2), 0, &filled(40, 1)).unwrap();
    device.write(ZoneIdx(3), 0, &filled(1, 2)).unwrap();
    device.flush().unwrap();
    device.write(ZoneIdx(3), UNIT as u64, &filled(2, 3)).unwrap();
    assert!(
        content(&device, 3, 0, 3 * UNIT) == [filled(1, 2), filled(2, 3)].concat(),
        "from memory and the store"
    );
    commit(&device, 9).unwrap();
    device.write(ZoneIdx(3), 3 * UNIT as u64, &filled(1, 4)).unwrap();
    device.flush().unwrap();
    device.write(ZoneIdx(3), 4 * UNIT as u64, &filled(1, 5)).unwrap();
    drop(device);
    let device = open(&store);
    assert!(content(&device, 2, 0, 40 * UNIT) == filled(40, 1));
    assert!(content(&device, 2, 40 * UNIT, UNIT) == filled(1, 0), "never written");
    assert!(content(&device, 3, 0, 4 * UNIT) == [filled(1, 2), filled(2, 3), filled(1, 4)].concat());
    assert!(content(&device, 0, 0, UNIT) == filled(1, 9));
    assert!(content(&device, 3, 4 * UNIT, UNIT) == filled(1, 0), "it was not flushed");
}

#[test]
fn a_reset_zone_is_a_new_filling_and_the_old_objects_go() {
    let store = MemoryStore::default();
    let device = create(&store);
    device.write(ZoneIdx(2), 0, &filled(3, 1)).unwrap();
    commit(&device, 1).unwrap();
    let before = store.list("z/", "").unwrap();
    device.reset(ZoneIdx(2)).unwrap();
    device.write(ZoneIdx(2), 0, &filled(1, 2)).unwrap();
    assert_eq!(store.list("z/", "").unwrap(), before, "the root names the old filling");
    commit(&device, 2).unwrap();
    let after = store.list("z/", "").unwrap();
    assert_eq!(after.len(), 1);
    assert!(!before.contains(&after[0]));
    // One that no root has named goes too.
    device.write(ZoneIdx(3), 0, &filled(16, 3)).unwrap();
    device.reset(ZoneIdx(3)).unwrap();
    assert_eq!(store.list("z/", "").unwrap().len(), 2);
    commit(&device, 3).unwrap();
    assert_eq!(store.list("z/", "").unwrap(), after);
}

#[test]
fn objects_of_a_crash_are_found_and_deleted() {
    let store = MemoryStore::default();
    let device = create(&store);
    device.write(ZoneIdx(2), 0, &filled(16, 1)).unwrap();
    commit(&device, 1).unwrap();
    let named = store.list("z/", "").unwrap();
    // Puts a part, and no root.
    device.write(ZoneIdx(3), 0, &filled(16, 2)).unwrap();
    assert_eq!(store.list("z/", "").unwrap().len(), 2);
    drop(device);
    // Requests of processes before it that came late, and what is not ours.
    let late = ["z/00000000000000ab/0000000001/0000000000", "table/00000000000000ab/0000000002"];
    let foreign = ["table/notes", "z/0/readme"];
    for key in late.iter().chain(&foreign) {
        store.create(key, &Bytes::from_static(b"late")).unwrap();
    }
    let device = open(&store);
    commit(&device, 2).unwrap();
    // Nothing waits for the search. The next commit makes garbage of what it found.
    commit(&device, 3).unwrap();
    foreign.iter().for_each(|key| store.tamper(key, |content| assert!(content.take().is_some(), "{key}")));
    assert_eq!(store.list("z/", "").unwrap(), named);
    assert_eq!(store.list("table/", "").unwrap(), []);
}

#[test]
fn deletions_wait_for_the_budget() {
    for threads in [0, 2] {
        let store = MemoryStore::default();
        let device =
            BucketDevice::create(Arc::new(store.client(None)), GEOMETRY, &Options { threads, ..options() })
                .unwrap();
        commit(&device, 1).unwrap();
        for zone in 2..6 {
            device.write(ZoneIdx(zone), 0, &filled(16, 1)).unwrap();
        }
        commit(&device, 1).unwrap();
        // One filling takes all, and what one earns in the meantime is nothing.
        device.set_request_budget(1);
        (2..6).for_each(|zone| device.reset(ZoneIdx(zone)).unwrap());
        commit(&device, 2).unwrap();
        commit(&device, 3).unwrap();
        let left = || store.list("z/", "").unwrap().len();
        for _ in 0..1000 {
            if left() == 3 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(left(), 3, "{threads} threads");
        if threads == 0 {
            device.set_request_budget(0);
            commit(&device, 4).unwrap();
            assert_eq!(left(), 0);
        }
    }
}

/// What a sweep finds may be what a process has put that is about to replace the root. It is deleted only when that process cannot succeed
/// any more.
#[test]
fn objects_that_another_process_is_about_to_name_are_not_deleted() {
    for other_is_first in [false, true] {
        let store = MemoryStore::default();
        drop(create(&store));
        let other: Arc<Mutex<Option<BucketDevice>>> = Arc::default();
        let fates: Fates = Box::new({
            let (store, other) = (store.client(None), Arc::clone(&other));
            move |_, kind, _| {
                if kind == Request::List {
                    let other = &mut *other.lock();
                    let device = other.get_or_insert_with(|| open(&store));
                    device
                        .write(ZoneIdx(3), device.report(ZoneIdx(3)).unwrap().pointer, &filled(16, 2))
                        .unwrap();
                }
                Fate::Succeeds
            }
        });
        let device =
            BucketDevice::open(Arc::new(store.client(Some(fates))), OpenMode::ReadWrite, &options()).unwrap();
        commit(&device, 1).unwrap();
        let other = other.lock().take().unwrap();
        assert_eq!(device.remains.lock().len(), 1, "the sweep found it");
        if other_is_first {
            commit(&other, 2).unwrap();
            assert!(commit(&device, 3).is_err());
            drop(other);
            assert!(content(&open(&store), 3, 0, UNIT) == filled(1, 2));
        } else {
            commit(&device, 3).unwrap();
            assert!(commit(&other, 2).is_err());
            assert_eq!(store.list(&format!("z/{:016x}/", other.holder.opener), "").unwrap(), []);
        }
    }
}

#[test]
fn a_process_that_lost_the_pool_acknowledges_nothing() {
    let store = MemoryStore::default();
    let old = create(&store);
    old.write(ZoneIdx(2), 0, &filled(1, 1)).unwrap();
    commit(&old, 1).unwrap();
    // Opening alone takes nothing away.
    let new = open(&store);
    old.write(ZoneIdx(2), UNIT as u64, &filled(1, 2)).unwrap();
    old.flush().unwrap();
    // The new one looks for the end of the zone. From then on the old one cannot add to it.
    assert!(content(&new, 2, UNIT, 2 * UNIT) == [filled(1, 2), filled(1, 0)].concat());
    old.write(ZoneIdx(2), 2 * UNIT as u64, &filled(1, 3)).unwrap();
    let error = old.flush().unwrap_err().to_string();
    assert!(error.contains("fenced"), "{error}");
    assert!(content(&new, 2, 2 * UNIT, UNIT) == filled(1, 0));
    commit(&new, 2).unwrap();
    assert!(old.flush().is_err(), "a failed flush is final");
}

#[test]
fn only_one_of_two_commits() {
    let store = MemoryStore::default();
    commit(&create(&store), 1).unwrap();
    let (one, other) = (open(&store), open(&store));
    commit(&one, 2).unwrap();
    let error = commit(&other, 3).unwrap_err().to_string();
    assert!(error.contains("fenced: process") && error.contains("has taken the pool over"), "{error}");
    commit(&one, 4).unwrap();
    assert!(content(&open(&store), 0, 0, 3 * UNIT) == [filled(1, 1), filled(1, 2), filled(1, 4)].concat());
}

#[test]
fn a_zone_of_another_opener_takes_no_more() {
    let store = MemoryStore::default();
    let device = create(&store);
    device.write(ZoneIdx(2), 0, &filled(2, 1)).unwrap();
    commit(&device, 1).unwrap();
    drop(device);
    let device = open(&store);
    assert_eq!(device.report(ZoneIdx(2)).unwrap().state, ZoneState::Unknown);
    assert_eq!(device.report(ZoneIdx(3)).unwrap().state, ZoneState::Empty);
    assert_eq!(device.resume(ZoneIdx(2), 2 * UNIT as u64).unwrap(), GEOMETRY.zone_size);
    assert!(device.write(ZoneIdx(2), 2 * UNIT as u64, &filled(1, 2)).is_err());
    // The end is remembered, so no other opener looks for it.
    commit(&device, 2).unwrap();
    drop(device);
    let device = open(&store);
    assert!(content(&device, 2, 0, 4 * UNIT) == [filled(2, 1), filled(2, 0)].concat());
    // More was claimed than there is.
    assert_eq!(device.resume(ZoneIdx(2), 3 * UNIT as u64).unwrap(), 2 * UNIT as u64);
    assert_eq!(device.resume(ZoneIdx(3), UNIT as u64).unwrap(), 0, "an empty zone");
}

#[test]
fn anchors_report_themselves_full_before_they_are_large() {
    let store = MemoryStore::default();
    let device = create(&store);
    let mut count = 0;
    while device.report(ZoneIdx(0)).unwrap().capacity == GEOMETRY.zone_size {
        commit(&device, 1).unwrap();
        count += 1;
    }
    assert_eq!(count, ANCHOR_BYTES_FULL as usize / UNIT);
    device.reset(ZoneIdx(0)).unwrap();
    commit(&device, 2).unwrap();
    assert!(content(&open(&store), 0, 0, 2 * UNIT) == [filled(1, 2), filled(1, 0)].concat());
}

#[test]
fn many_changed_zones_are_written_to_a_table() {
    let store = MemoryStore::default();
    let geometry = Geometry { zone_count: 2000, ..GEOMETRY };
    let device = BucketDevice::create(Arc::new(store.client(None)), geometry, &options()).unwrap();
    for round in 1..=3 {
        for zone in 2..1000 {
            device.reset(ZoneIdx(zone)).unwrap();
            device.write(ZoneIdx(zone), 0, &filled(1, round)).unwrap();
            if zone % 100 == 0 {
                commit(&device, round).unwrap();
            }
        }
        device.reset(ZoneIdx(0)).unwrap();
        commit(&device, round).unwrap();
        commit(&device, round).unwrap();
        assert_eq!(store.list("table/", "").unwrap().len(), 1, "the old one goes");
    }
    assert_eq!(store.list("z/", "").unwrap().len(), 998);
    drop(device);
    let device = open(&store);
    for zone in 2..1000 {
        assert!(content(&device, zone, 0, UNIT) == filled(1, 3), "zone {zone}");
    }
}

#[test]
fn a_lost_object_is_an_error_and_not_zeros() {
    let store = MemoryStore::default();
    let device = create(&store);
    device.write(ZoneIdx(2), 0, &filled(16, 1)).unwrap();
    commit(&device, 1).unwrap();
    let key = store.list("z/", "").unwrap()[0].key.clone();
    store.tamper(&key, |content| *content = None);
    let error = open(&store).read(ZoneIdx(2), 0, &mut [0; UNIT]).unwrap_err().to_string();
    assert!(error.contains("zone 2") && error.contains("no such object"), "{error}");
    store.tamper(&key, |content| *content = Some(filled(1, 1)));
    assert!(open(&store).read(ZoneIdx(2), UNIT as u64, &mut [0; UNIT]).is_err(), "it was cut");
    store.tamper("root", |content| content.as_mut().unwrap()[20] ^= 1);
    let error =
        BucketDevice::open(Arc::new(store.client(None)), OpenMode::ReadOnly, &options()).err().unwrap();
    assert!(error.to_string().contains("hash"), "{error}");
}

#[test]
fn an_object_that_is_no_part_is_named() {
    for bytes in [1, 5000, 2 << 20] {
        let store = MemoryStore::default();
        let device = create(&store);
        device.write(ZoneIdx(2), 0, &filled(1, 1)).unwrap();
        commit(&device, 1).unwrap();
        let part = store.list("z/", "").unwrap()[0].key.clone();
        let next = part.replace("/0000000000", "/0000001000");
        store.tamper(&next, |content| *content = Some(vec![1; bytes]));
        drop(device);
        let device = open(&store);
        let error = device.resume(ZoneIdx(2), UNIT as u64).unwrap_err().to_string();
        assert!(error.contains(&next) && error.contains("remove it"), "{error}");
        assert!(content(&device, 2, 0, UNIT) == filled(1, 1), "what the root names is there");
    }
}

#[test]
fn a_read_only_device_changes_nothing() {
    let store = MemoryStore::default();
    let device = create(&store);
    device.write(ZoneIdx(2), 0, &filled(1, 1)).unwrap();
    commit(&device, 1).unwrap();
    let before = store.list("", "").unwrap();
    let reader = BucketDevice::open(Arc::new(store.client(None)), OpenMode::ReadOnly, &options()).unwrap();
    assert!(content(&reader, 2, 0, 2 * UNIT) == [filled(1, 1), filled(1, 0)].concat());
    assert!(reader.write(ZoneIdx(3), 0, &filled(1, 1)).is_err() && reader.reset(ZoneIdx(2)).is_err());
    reader.flush().unwrap();
    assert_eq!(store.list("", "").unwrap(), before);
    device.write(ZoneIdx(2), UNIT as u64, &filled(1, 2)).unwrap();
    commit(&device, 2).unwrap();
}

/// Fails from the request of this number on, which may be carried out all the same.
fn cut_at(cut: u64, seems: bool) -> Fates {
    Box::new(move |number, _, _| match number.cmp(&cut) {
        std::cmp::Ordering::Less => Fate::Succeeds,
        std::cmp::Ordering::Equal if seems => Fate::SeemsToFail,
        _ => Fate::Fails,
    })
}

/// States that were acknowledged, by the number of the commit: what each zone holds.
type States = BTreeMap<u8, BTreeMap<u32, Vec<u8>>>;

/// A life of a pool on the device. As a pool does, it resets a zone only if the last commit does not need it.
fn live(store: MemoryStore, options: &Options, seed: u64, steps: u8) -> States {
    let mut acknowledged = States::new();
    let Ok(device) = BucketDevice::open(Arc::new(store), OpenMode::ReadWrite, options) else {
        return acknowledged;
    };
    let mut rng = Prng::new(seed);
    let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for step in 1..=steps {
        let needed: Vec<u32> = model.keys().copied().collect();
        for _ in 0..rng.below(4) + 1 {
            let zone = 2 + rng.below(5) as u32;
            if needed.contains(&zone) && rng.below(4) == 0 {
                model.remove(&zone);
                continue;
            }
            if !model.contains_key(&zone) && (needed.contains(&zone) || device.reset(ZoneIdx(zone)).is_err())
            {
                continue;
            }
            let at = device.report(ZoneIdx(zone)).unwrap().pointer;
            let data = filled(1 + rng.below(40) as usize, step);
            if at + data.len() as u64 > GEOMETRY.zone_size {
                continue;
            }
            device.write(ZoneIdx(zone), at, &data).unwrap();
            model.entry(zone).or_default().extend_from_slice(&data);
        }
        if commit(&device, step).is_err() {
            return acknowledged;
        }
        acknowledged.insert(step, model.clone());
    }
    acknowledged
}

fn holds(device: &BucketDevice, zones: &BTreeMap<u32, Vec<u8>>) -> bool {
    zones.iter().all(|(zone, data)| content(device, *zone, 0, data.len()) == *data)
}

/// No crash at any request, whether it was carried out or not, loses what was acknowledged. The next opener sees that
/// state, or the one that was being committed.
#[test]
fn no_crash_at_any_request_loses_a_commit() {
    let empty = MemoryStore::default();
    drop(create(&empty));
    for seed in 0..6 {
        let whole = live(empty.copy(), &options(), seed, 8);
        let mut reached_end = false;
        for (cut, seems) in (0..600).flat_map(|cut| [(cut, false), (cut, true)]) {
            let store = empty.copy();
            let acknowledged = live(store.client(Some(cut_at(cut, seems))), &options(), seed, 8);
            let device = open(&store);
            let last = acknowledged.keys().next_back().map_or(0, |step| usize::from(*step));
            let found = device.report(ZoneIdx(0)).unwrap().pointer as usize / UNIT;
            assert!((last..=last + 1).contains(&found), "seed {seed} cut {cut}: {found} of {last}");
            if let Some(expected) = whole.get(&(found as u8)) {
                assert!(holds(&device, expected), "seed {seed} cut {cut} state {found}");
            }
            // And it goes on.
            commit(&device, 99).unwrap();
            reached_end = acknowledged.len() == whole.len();
            if reached_end && !seems {
                break;
            }
        }
        assert!(reached_end, "all requests were cut");
    }
}

/// Requests fail at random, or seem to, and are repeated: nothing is lost, and no fence is seen.
#[test]
fn failures_are_waited_for() {
    let patience = Duration::from_secs(600);
    for threads in [0, 3] {
        let flaky = Options { write_patience: patience, read_patience: patience, threads, ..options() };
        let store = MemoryStore::default();
        drop(create(&store));
        let whole = live(store.copy(), &options(), 1, 4);
        let mut rng = Prng::new(7);
        let fates: Fates = Box::new(move |number, request, _| match (rng.below(6), request) {
            // Opening is not repeated by itself.
            _ if number == 0 => Fate::Succeeds,
            (0, _) => Fate::Fails,
            (1, Request::Create | Request::Swap | Request::Delete) => Fate::SeemsToFail,
            _ => Fate::Succeeds,
        });
        let client = store.client(Some(fates));
        assert!(live(client, &flaky, 1, 4) == whole);
        assert!(holds(&open(&store), &whole[&4]));
    }
}

/// Any number of openers that fight, each of which commits as often as it can: every acknowledged commit is in the
/// next state that any of them sees.
#[test]
fn openers_that_fight_lose_no_commit() {
    let store = MemoryStore::default();
    drop(create(&store));
    let mut rng = Prng::new(3);
    let mut acknowledged = Vec::new();
    let mut openers: Vec<BucketDevice> = Vec::new();
    let (mut won, mut fenced) = (0, 0);
    for round in 0..2000u32 {
        if openers.len() < 3 {
            openers.push(open(&store));
        }
        let at = rng.below(openers.len() as u64) as usize;
        let device = &openers[at];
        let seen = content(device, 0, 0, device.report(ZoneIdx(0)).unwrap().pointer as usize);
        let mut record = filled(1, 0);
        record[..4].copy_from_slice(&round.to_le_bytes());
        let anchor = ZoneIdx(0);
        if device.report(anchor).unwrap().pointer >= ANCHOR_BYTES_FULL {
            device.reset(anchor).unwrap();
            let forgets = |device: &BucketDevice| device.flush();
            if forgets(device).is_ok() {
                acknowledged.clear();
            } else {
                openers.remove(at);
            }
            continue;
        }
        let zone = ZoneIdx(2 + round % 30);
        let outcome = device
            .reset(zone)
            .and_then(|()| device.write(zone, 0, &record))
            .and_then(|()| device.flush())
            .and_then(|()| device.write(anchor, seen.len() as u64, &record))
            .and_then(|()| device.flush());
        match outcome {
            Ok(()) => {
                let records: Vec<u32> =
                    seen.chunks(UNIT).map(|raw| u32::from_le_bytes(raw[..4].try_into().unwrap())).collect();
                assert_eq!(records, acknowledged, "a process that commits has seen all commits");
                acknowledged.push(round);
                won += 1;
            }
            Err(_) => {
                drop(openers.remove(at));
                fenced += 1;
            }
        }
    }
    assert!(won > 300 && fenced > 300, "{won} {fenced}");
}

/// Threads write zones of their own and flush at the same time, while one resets and one commits, until the store fails.
/// Each flush that succeeded is kept, whichever of them put the parts and the root.
#[test]
fn flushes_of_many_threads_lose_nothing() {
    let threaded = Options { threads: 3, ..options() };
    for seed in 0..30 {
        let store = MemoryStore::default();
        drop(create(&store));
        let client = store.client(Some(cut_at(40 + seed * 17, seed.is_multiple_of(2))));
        let device = BucketDevice::open(Arc::new(client), OpenMode::ReadWrite, &threaded).unwrap();
        // A zone, and what of it was acknowledged: units, all of one byte.
        let write = |zone: u32, byte: u8| {
            let zone = ZoneIdx(zone);
            let mut acknowledged = 0;
            loop {
                let at = device.report(zone).unwrap().pointer;
                let is_written = at < GEOMETRY.zone_size && device.write(zone, at, &filled(1, byte)).is_ok();
                if !is_written || device.flush().is_err() {
                    return acknowledged;
                }
                acknowledged = at as usize + UNIT;
            }
        };
        let reset = |zone: u32| {
            // It holds the round that was acknowledged last, or a later one.
            let mut last = 0;
            for round in 1..=u8::MAX {
                let is_kept = device.reset(ZoneIdx(zone)).is_ok()
                    && device.write(ZoneIdx(zone), 0, &filled(2, round)).is_ok()
                    && device.flush().is_ok();
                if !is_kept {
                    break;
                }
                last = round;
            }
            last
        };
        let commits = || (1..=20).take_while(|byte| commit(&device, *byte).is_ok()).count();
        let (one, other, last, committed) = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(|| write(2, 1)), scope.spawn(|| write(3, 2)));
            let (last, committed) = (scope.spawn(|| reset(4)), scope.spawn(commits));
            (one.join().unwrap(), other.join().unwrap(), last.join().unwrap(), committed.join().unwrap())
        });
        drop(device);
        let device = open(&store);
        assert!(content(&device, 2, 0, one) == vec![1; one], "seed {seed}: {one} bytes were flushed");
        assert!(content(&device, 3, 0, other) == vec![2; other], "seed {seed}: {other} bytes were flushed");
        let found = content(&device, 4, 0, 2 * UNIT);
        // A reset that was not flushed may have reached the store. Then the zone is empty, or has the next round in part.
        let is_sound = found.iter().all(|byte| *byte == 0 || *byte >= last);
        assert!(is_sound, "seed {seed}: round {last} was flushed");
        let anchor = device.report(ZoneIdx(0)).unwrap().pointer as usize / UNIT;
        assert!(anchor >= committed, "seed {seed}: {committed} commits, {anchor} found");
        commit(&device, 99).unwrap();
    }
}

#[test]
fn a_root_that_deletes_what_it_names_is_refused() {
    let store = MemoryStore::default();
    let device = create(&store);
    device.write(ZoneIdx(2), 0, &filled(1, 1)).unwrap();
    commit(&device, 1).unwrap();
    drop(device);
    let (raw, _) = store.get("root", 1 << 20).unwrap().unwrap();
    let sound = Root::parse(&raw, "root").unwrap();
    let entry = sound.changed[&ZoneIdx(2)].clone().unwrap();
    let as_garbage = Root { garbage: [(entry.id, 0)].into(), ..sound.clone() };
    let twice = Root { changed: [2, 3].map(|zone| (ZoneIdx(zone), Some(entry.clone()))).into(), ..sound };
    for lie in [as_garbage, twice] {
        store.tamper("root", |content| *content = Some(lie.encode()));
        let opened = BucketDevice::open(Arc::new(store.client(None)), OpenMode::ReadWrite, &options());
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("each object once"), "{error}");
    }
}

/// What a reader of an older root needs stays for a while, also when the pool was opened again. Then the reader is told that it is too far
/// behind.
#[test]
fn what_readers_may_need_is_deleted_later() {
    for threads in [0, 2] {
        let store = MemoryStore::default();
        let patient = Options { retention: Duration::from_secs(3600), threads, ..options() };
        let open = |mode| BucketDevice::open(Arc::new(store.client(None)), mode, &patient).unwrap();
        let device = BucketDevice::create(Arc::new(store.client(None)), GEOMETRY, &patient).unwrap();
        device.write(ZoneIdx(5), 0, &filled(4, 1)).unwrap();
        commit(&device, 1).unwrap();
        let reader = open(OpenMode::ReadOnly);
        device.reset(ZoneIdx(5)).unwrap();
        device.write(ZoneIdx(5), 0, &filled(4, 2)).unwrap();
        commit(&device, 2).unwrap();
        drop(device);
        let device = open(OpenMode::ReadWrite);
        commit(&device, 3).unwrap();
        assert_eq!(content(&reader, 5, 0, UNIT), filled(1, 1), "{threads} threads");
        assert_eq!(content(&device, 5, 0, UNIT), filled(1, 2));

        device.set_retention(Duration::ZERO);
        let mut buf = [0; UNIT];
        let error = loop {
            reader.drop_page_cache();
            match reader.read(ZoneIdx(5), 0, &mut buf) {
                Ok(()) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        let DeviceError::Io { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::StaleNetworkFileHandle, "{error}");
        // The root stops naming it, and another reader finds all it needs.
        commit(&device, 4).unwrap();
        assert!(device.committed.lock().garbage.is_empty());
        assert_eq!(content(&open(OpenMode::ReadOnly), 5, 0, UNIT), filled(1, 2));
    }
}

/// The root that stays in place names what a failed commit has taken for garbage.
#[test]
fn a_commit_that_failed_deletes_nothing_later() {
    let (store, fails) = (MemoryStore::default(), Arc::new(AtomicBool::new(false)));
    let fates: Fates = Box::new({
        let fails = Arc::clone(&fails);
        move |_, request, _| match request {
            Request::Swap if fails.load(Ordering::Relaxed) => Fate::Fails,
            _ => Fate::Succeeds,
        }
    });
    drop(create(&store));
    let device =
        BucketDevice::open(Arc::new(store.client(Some(fates))), OpenMode::ReadWrite, &options()).unwrap();
    device.write(ZoneIdx(5), 0, &filled(4, 1)).unwrap();
    commit(&device, 1).unwrap();
    device.reset(ZoneIdx(5)).unwrap();
    fails.store(true, Ordering::Relaxed);
    commit(&device, 2).unwrap_err();
    device.set_retention(Duration::ZERO);
    assert_eq!(content(&open(&store), 5, 0, UNIT), filled(1, 1));
}

/// An import commits before it has read how long things are to be kept.
#[test]
fn nothing_is_deleted_before_the_time_to_keep_is_known() {
    let store = MemoryStore::default();
    let unknown = Options { retention: Options::default().retention, ..options() };
    let device = BucketDevice::create(Arc::new(store.client(None)), GEOMETRY, &unknown).unwrap();
    device.write(ZoneIdx(5), 0, &filled(4, 1)).unwrap();
    commit(&device, 1).unwrap();
    device.reset(ZoneIdx(5)).unwrap();
    commit(&device, 2).unwrap();
    commit(&device, 3).unwrap();
    assert_eq!(store.list("z/", "").unwrap().len(), 1);
    device.set_retention(Duration::ZERO);
    assert_eq!(store.list("z/", "").unwrap().len(), 0);
}
