//! Copies that share blocks. Named bugs are those of block cloning in OpenZFS.

use crate::support;
use std::sync::Arc;
use support::{Machine, Short};
use terrane_dataset::QuotaName;
use terrane_format::Feature;
use terrane_object::shared::SharedTotals;
use terrane_posix::{
    Cloned, Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, Job, RewriteSpec, WriteFlags,
};
use terrane_wire::Prng;

const RECORD: u64 = 4096;

fn machine() -> Machine {
    Machine::new(1, &[("recordsize", "4K"), ("compression", "lz4")])
}

/// A synced file of that many records of noise.
fn source(m: &Machine, records: u64) -> (Ino, Vec<u8>) {
    let data = Prng::new(records).random_bytes((records * RECORD) as usize);
    let ino = m.fs().file(m.fs().root(), "source").ino;
    m.fs().put(ino, 0, &data);
    m.fs().sync().unwrap();
    (ino, data)
}

fn totals(m: &Machine) -> SharedTotals {
    m.objects().shared().totals()
}

/// Clones a whole file into a new one.
fn cloned(fs: &Fs, from: Ino, name: &str) -> (Ino, Cloned) {
    let to = fs.file(fs.root(), name).ino;
    let size = fs.getattr(from).unwrap().size;
    let done = fs.clone_range(from, 0, to, 0, size).unwrap();
    assert_eq!(done.bytes, size);
    (to, done)
}

/// Commits even if nothing was changed: a txg frees a bounded piece.
fn commit(m: &Machine) {
    m.pool().commit_txg(m.pool().open_txg()).unwrap();
}

fn assert_sound(m: &Machine) {
    assert_eq!(m.pool().check_tables(), vec![]);
    assert_eq!(m.pool().errors().findings, Vec::<String>::new());
}

#[test]
fn a_copy_of_whole_records_takes_no_space_and_outlives_its_source() {
    let mut m = machine();
    let (from, data) = source(&m, 300);
    let before = m.pool().status().live_bytes;
    let (to, done) = cloned(m.fs(), from, "copy");
    assert_eq!(done, Cloned { bytes: 300 * RECORD, shared_bytes: 300 * RECORD });
    assert_eq!(m.fs().bytes(to), data, "before it is stored");
    m.fs().sync().unwrap();
    let stored = m.fs().dataset().object_set().hold(terrane_wire::ObjectId(from)).unwrap();
    let ptr = stored.stored_pointer(0).unwrap().unwrap();
    let space = 300 * ptr.allocated_bytes();
    let expected = SharedTotals { blocks: 300, references: 300, block_bytes: space, saved_bytes: space };
    assert_eq!(totals(&m), expected);
    assert!(m.pool().status().live_bytes < before + 200_000, "only metadata was written");
    let blocks = |m: &Machine, ino| m.fs().getattr(ino).unwrap().blocks;
    // Indirect blocks compress to slightly other sizes.
    assert!(blocks(&m, from).abs_diff(blocks(&m, to)) < 16, "each file pays in full");
    m.pool().drop_cache();
    assert_eq!(m.fs().bytes(to), data);
    m.remount();
    assert_eq!(totals(&m), expected);
    let root = m.fs().root();
    m.fs().unlink(root, b"source").unwrap();
    m.fs().sync().unwrap();
    m.fs().sync().unwrap();
    assert_eq!(totals(&m), SharedTotals::default());
    m.pool().drop_cache();
    let to = m.fs().ino(root, "copy").unwrap();
    assert_eq!(m.fs().bytes(to), data);
    m.fs().unlink(root, b"copy").unwrap();
    (0..3).for_each(|_| commit(&m));
    assert!(m.pool().status().live_bytes + 299 * RECORD < before, "the last reference frees the blocks");
    assert_sound(&m);
}

/// The classic trap: the reference goes in the same txg in which another comes.
#[test]
fn a_source_that_is_freed_in_the_txg_of_its_clone_leaves_the_clone_whole() {
    for change in 0..4 {
        for clone_is_older in [false, true] {
            let m = machine();
            let (fs, root) = (m.fs(), m.fs().root());
            // The sync meets objects by number.
            let older = fs.file(root, "older").ino;
            let (from, data) = source(&m, 200);
            let to = if clone_is_older { older } else { fs.file(root, "younger").ino };
            assert_eq!(fs.clone_range(from, 0, to, 0, 1 << 30).unwrap().shared_bytes, 200 * RECORD);
            match change {
                0 => fs.put(from, 0, &vec![7; data.len()]),
                1 => drop(fs.size(from, 0).unwrap()),
                2 => fs.unlink(root, b"source").unwrap(),
                _ => fs.fallocate(from, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, RECORD, 100 * RECORD).unwrap(),
            }
            fs.forget(from, 1);
            for _ in 0..3 {
                fs.sync().unwrap();
                m.pool().drop_cache();
                assert_eq!(fs.bytes(to), data, "change {change}, clone is older: {clone_is_older}");
            }
            let left = if change == 3 { 100 } else { 0 };
            assert_eq!(totals(&m).references, left);
            assert_sound(&m);
        }
    }
}

/// OpenZFS 15526, 15728: a source with changes that are not stored yet.
#[test]
fn a_dirty_source_is_copied_as_it_is_now() {
    let m = machine();
    let fs = m.fs();
    let (from, mut data) = source(&m, 40);
    fs.put(from, 5 * RECORD + 7, b"dirty");
    data[5 * RECORD as usize + 7..][..5].copy_from_slice(b"dirty");
    let (to, done) = cloned(fs, from, "copy");
    assert_eq!(done.shared_bytes, 39 * RECORD);
    assert_eq!((fs.seek_data(to, 0), fs.seek_hole(to, 0)), (Ok(0), Ok(40 * RECORD)));
    assert_eq!(fs.bytes(to), data);
    // One changes, and the bytes in memory are no longer the same.
    fs.put(from, 5 * RECORD, b"later");
    let (again, _) = cloned(fs, to, "copy of the copy");
    fs.sync().unwrap();
    m.pool().drop_cache();
    assert_eq!((fs.bytes(to), fs.bytes(again)), (data.clone(), data));
    assert_sound(&m);
}

/// OpenZFS 16012, 18421.
#[test]
fn holes_and_cuts_that_are_not_stored_yet_are_cloned() {
    let m = machine();
    let fs = m.fs();
    for sync_between in [false, true] {
        let name = |what| format!("{what} {sync_between}");
        let (from, mut data) = source(&m, 64);
        fs.fallocate(from, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 8 * RECORD, 16 * RECORD).unwrap();
        fs.size(from, 40 * RECORD + 100).unwrap();
        fs.size(from, 50 * RECORD).unwrap();
        data.truncate(40 * RECORD as usize + 100);
        data.resize(50 * RECORD as usize, 0);
        data[8 * RECORD as usize..24 * RECORD as usize].fill(0);
        if sync_between {
            fs.sync().unwrap();
        }
        // Into a file that had something there.
        let to = fs.file(fs.root(), &name("copy")).ino;
        fs.put(to, 0, &Prng::new(3).random_bytes(60 * RECORD as usize));
        fs.sync().unwrap();
        assert_eq!(fs.copy_range(from, 0, to, 0, 50 * RECORD), Ok(50 * RECORD));
        assert!(fs.bytes(to).starts_with(&data));
        assert_eq!((fs.seek_hole(to, 0), fs.seek_data(to, 8 * RECORD)), (Ok(8 * RECORD), Ok(24 * RECORD)));
        fs.sync().unwrap();
        m.pool().drop_cache();
        assert!(fs.bytes(to).starts_with(&data));
        fs.unlink(fs.root(), b"source").unwrap();
        fs.forget(from, 1);
    }
    assert_sound(&m);
}

#[test]
fn a_clone_can_be_changed_before_it_is_stored() {
    let m = machine();
    let fs = m.fs();
    let (from, mut data) = source(&m, 20);
    let (to, _) = cloned(fs, from, "copy");
    fs.put(to, 3 * RECORD + 10, b"part");
    data[3 * RECORD as usize + 10..][..4].copy_from_slice(b"part");
    fs.put(to, 4 * RECORD, &[9; RECORD as usize]);
    data[4 * RECORD as usize..5 * RECORD as usize].fill(9);
    fs.fallocate(to, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 6 * RECORD + 5, 2 * RECORD).unwrap();
    data[6 * RECORD as usize + 5..8 * RECORD as usize + 5].fill(0);
    fs.size(to, 15 * RECORD + 1).unwrap();
    data.truncate(15 * RECORD as usize + 1);
    assert_eq!(fs.bytes(to), data);
    fs.sync().unwrap();
    m.pool().drop_cache();
    assert_eq!(fs.bytes(to), data);
    // Records 3, 4, 6, 7, 8 and 15 are its own.
    assert_eq!(totals(&m).references, 10);
    assert_sound(&m);
}

/// The header of the meta object set names the table from then on, so older versions must refuse the pool.
#[test]
fn a_clone_that_is_never_stored_makes_the_feature_active() {
    let m = machine();
    let fs = m.fs();
    let (from, data) = source(&m, 4);
    let (to, _) = cloned(fs, from, "copy");
    fs.put(to, 0, &data[1..]);
    fs.size(to, 0).unwrap();
    fs.sync().unwrap();
    assert_ne!(m.objects().shared().object(), None);
    assert!(m.pool().label().features.is_active(Feature::Shared));
    assert_eq!(totals(&m), SharedTotals::default());
}

#[test]
fn ranges_that_are_no_whole_records_are_copied() {
    let m = machine();
    let fs = m.fs();
    let data = Prng::new(8).random_bytes(10 * RECORD as usize + 1234);
    let from = fs.file(fs.root(), "source").ino;
    fs.put(from, 0, &data);
    fs.sync().unwrap();
    // The same place in the records: the inner ones are shared.
    let to = fs.file(fs.root(), "to").ino;
    fs.put(to, 0, &[1; 3 * RECORD as usize]);
    let (at, into, len) = (RECORD + 100, 5 * RECORD + 100, 6 * RECORD);
    assert_eq!(fs.clone_range(from, at, to, into, len), Ok(Cloned { bytes: len, shared_bytes: 5 * RECORD }));
    assert!(fs.bytes(to)[into as usize..] == data[at as usize..(at + len) as usize]);
    // Another place: none is.
    let other = fs.file(fs.root(), "other").ino;
    fs.put(other, 0, &[1; 3 * RECORD as usize]);
    assert_eq!(fs.clone_range(from, at, other, into + 1, len), Ok(Cloned { bytes: len, shared_bytes: 0 }));
    // The end of the source is also that of the target, or bytes follow.
    let (whole, done) = cloned(fs, from, "whole");
    assert_eq!(done.shared_bytes, data.len() as u64);
    let longer = fs.file(fs.root(), "longer").ino;
    fs.put(longer, 0, &[3; 12 * RECORD as usize]);
    let done = fs.clone_range(from, 0, longer, 0, 1 << 40).unwrap();
    assert_eq!(done, Cloned { bytes: data.len() as u64, shared_bytes: 10 * RECORD });
    assert!(fs.bytes(longer)[data.len()..] == [3; 12 * RECORD as usize][data.len()..]);
    fs.sync().unwrap();
    m.pool().drop_cache();
    assert_eq!(fs.bytes(whole), data);
    // A file within itself, behind its end; overlapping; and from behind the end.
    let (end, grown) = (16 * RECORD, 16 * RECORD + data.len() as u64);
    assert_eq!(
        fs.clone_range(whole, 0, whole, end, data.len() as u64).unwrap().shared_bytes,
        data.len() as u64
    );
    assert_eq!(fs.copy_range(whole, 0, whole, RECORD, 3 * RECORD), Err(Errno::EINVAL));
    assert_eq!(fs.copy_range(whole, grown, to, 0, 1), Ok(0));
    assert_eq!(fs.copy_range(whole, end, to, u64::MAX - 5, 10), Err(Errno::EFBIG));
    fs.sync().unwrap();
    let bytes = fs.bytes(whole);
    assert!(bytes.len() as u64 == grown && bytes[..data.len()] == data && bytes[end as usize..] == data);
    assert_sound(&m);
}

#[test]
fn files_of_one_record_are_shared_and_grow() {
    let m = Machine::new(2, &[("recordsize", "128K"), ("compression", "off")]);
    let fs = m.fs();
    let data = Prng::new(8).random_bytes(5000);
    let from = fs.file(fs.root(), "small").ino;
    fs.put(from, 0, &data);
    fs.sync().unwrap();
    let (to, done) = cloned(fs, from, "copy");
    assert_eq!(done.shared_bytes, 5000);
    let (other, _) = cloned(fs, from, "other");
    fs.put(to, 300_000, b"far");
    fs.sync().unwrap();
    fs.put(other, 5000, b"near");
    fs.sync().unwrap();
    m.pool().drop_cache();
    assert!(fs.bytes(to)[..5000] == data && fs.bytes(to)[5000..300_000].iter().all(|byte| *byte == 0));
    assert_eq!(fs.bytes(other), [&data[..], b"near"].concat());
    assert_eq!(fs.bytes(from), data);
    assert_eq!(totals(&m).references, 0);
    // Not at the place of a second record: the file would have short ones for ever.
    let behind = fs.file(fs.root(), "behind").ino;
    assert_eq!(fs.clone_range(from, 0, behind, 5120, 5000), Ok(Cloned { bytes: 5000, shared_bytes: 0 }));
    assert_sound(&m);
}

#[test]
fn other_forms_are_copied() {
    let m = machine();
    let (from, data) = source(&m, 8);
    let set = m.fs().dataset().object_set();
    let policy = set.policy();
    let checksum = terrane_codec::ChecksumKind::Sha256;
    set.set_policy(terrane_object::DataPolicy { checksum, ..policy });
    let (to, done) = cloned(m.fs(), from, "another checksum");
    assert_eq!((done.shared_bytes, m.fs().bytes(to)), (0, data.clone()));
    set.set_policy(policy);
    assert_eq!(cloned(m.fs(), from, "the same").1.shared_bytes, 8 * RECORD);
    let old = Machine::without_features(4);
    let (from, data) = source(&old, 100);
    let (to, done) = cloned(old.fs(), from, "copy");
    old.fs().sync().unwrap();
    assert_eq!((done.shared_bytes, old.fs().bytes(to)), (0, data));
    assert_eq!(old.objects().shared().object(), None);
}

/// OpenZFS 16680, 18520: many references go at once, each once.
#[test]
fn many_clones_can_be_deleted_at_once() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let (from, data) = source(&m, 500);
    let before = m.pool().status().live_bytes;
    for clone in 0..20 {
        let (to, _) = cloned(fs, from, &format!("clone {clone}"));
        fs.forget(to, 1);
    }
    fs.sync().unwrap();
    assert_eq!((totals(&m).blocks, totals(&m).references), (500, 10_000));
    let table = fs.dataset().object_set();
    assert_eq!(table.shared().leaf_count(), 1);
    for clone in 0..19 {
        fs.unlink(root, format!("clone {clone}").as_bytes()).unwrap();
    }
    (0..4).for_each(|_| commit(&m));
    assert_eq!((totals(&m).blocks, totals(&m).references), (500, 500));
    fs.unlink(root, b"source").unwrap();
    fs.forget(from, 1);
    (0..4).for_each(|_| commit(&m));
    m.pool().drop_cache();
    let last = fs.ino(root, "clone 19").unwrap();
    assert_eq!(fs.bytes(last), data);
    fs.unlink(root, b"clone 19").unwrap();
    (0..4).for_each(|_| commit(&m));
    assert_eq!(totals(&m), SharedTotals::default());
    assert!(m.pool().status().live_bytes + 499 * RECORD < before);
    assert_sound(&m);
}

/// Jobs that store blocks anew would store shared ones twice.
#[test]
fn rewrites_leave_shared_blocks_as_they_are() {
    let m = machine();
    let fs = m.fs();
    let text: Vec<u8> = (0..60 * RECORD).map(|at| (at / 7 % 50) as u8).collect();
    let from = fs.file(fs.root(), "source").ino;
    fs.put(from, 0, &text);
    fs.sync().unwrap();
    let (to, _) = cloned(fs, from, "copy");
    fs.put(to, 0, &text[1..=RECORD as usize]);
    fs.sync().unwrap();
    let shared = totals(&m);
    assert_eq!(shared.references, 59);
    for spec in [
        RewriteSpec {
            root: fs.root(),
            recursive: true,
            compression: "zstd-9".parse().ok(),
            record_size: None,
        },
        RewriteSpec { root: fs.root(), recursive: true, compression: None, record_size: Some(16 << 10) },
    ] {
        fs.rewrite().begin(&spec).unwrap();
        while fs.rewrite().is_running() {
            fs.rewrite().step(1 << 20).unwrap();
        }
        fs.sync().unwrap();
        assert_eq!(totals(&m), shared);
    }
    m.pool().drop_cache();
    assert_eq!(fs.bytes(from), text);
    assert!(fs.bytes(to)[RECORD as usize..] == text[RECORD as usize..]);
    // An overwrite with the same content keeps the block.
    fs.put(from, 5 * RECORD, &text[5 * RECORD as usize..9 * RECORD as usize]);
    fs.sync().unwrap();
    assert_eq!(totals(&m), shared);
    assert_sound(&m);
}

#[test]
fn a_large_hole_is_cloned_at_once() {
    let m = machine();
    let fs = m.fs();
    let from = fs.file(fs.root(), "sparse").ino;
    fs.put(from, 1 << 40, &Prng::new(1).random_bytes(2 * RECORD as usize));
    fs.sync().unwrap();
    let (to, done) = cloned(fs, from, "copy");
    assert_eq!(done.shared_bytes, 2 * RECORD);
    fs.sync().unwrap();
    assert_eq!((fs.seek_data(to, 0), fs.getattr(to).unwrap().size), (Ok(1 << 40), (1 << 40) + 2 * RECORD));
    assert_sound(&m);
}

#[test]
fn clones_on_a_full_pool_are_short_or_whole() {
    let m = Machine::sized(5, &[("recordsize", "4K"), ("compression", "off")], 48, 1 << 20);
    let (fs, root) = (m.fs(), m.fs().root());
    let (from, data) = source(&m, 100);
    let noise = Prng::new(2).random_bytes(1 << 18);
    let filler = fs.file(root, "filler").ino;
    let mut at = 0;
    while let Ok(written) = fs.write(filler, at, &noise, WriteFlags::default()) {
        at += u64::from(written);
    }
    let mut clones = Vec::new();
    for clone in 0..1000 {
        let Ok(attr) = fs.create(root, format!("clone {clone}").as_bytes(), 0o644, &support::USER) else {
            break;
        };
        clones.push(attr.ino);
        match fs.clone_range(from, 0, attr.ino, 0, data.len() as u64) {
            Ok(done) => assert!(fs.bytes(attr.ino)[..] == data[..done.bytes as usize]),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                break;
            }
        }
    }
    fs.sync().unwrap();
    m.pool().drop_cache();
    clones.iter().for_each(|ino| assert!(data.starts_with(&fs.bytes(*ino))));
    for clone in 0..clones.len() {
        fs.unlink(root, format!("clone {clone}").as_bytes()).unwrap();
    }
    clones.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.unlink(root, b"filler").unwrap();
    fs.forget(filler, 1);
    (0..6).for_each(|_| commit(&m));
    assert_eq!(totals(&m), SharedTotals::default());
    assert_eq!(fs.bytes(from), data);
    assert_sound(&m);
}

/// Writers, cloners and txgs at the same time. Each record holds one number throughout: a clone shows one state of
/// each.
#[test]
fn clones_beside_writers_show_whole_records() {
    let m = Machine::with_threads(6);
    let (fs, root) = (m.fs(), m.fs().root());
    let records = 24;
    let from = fs.file(root, "source").ino;
    fs.put(from, 0, &vec![0; records << 17]);
    std::thread::scope(|scope| {
        let writer = Arc::clone(fs);
        scope.spawn(move || {
            let mut rng = Prng::new(9);
            for round in 1..400u64 {
                let at = rng.below(records as u64) << 17;
                let noise = Prng::new(round % 250).random_bytes(1000);
                let record: Vec<u8> = noise.iter().copied().cycle().take(1 << 17).collect();
                writer.write(from, at, &record, WriteFlags::default()).unwrap();
            }
        });
        for thread in 0..2 {
            let fs = Arc::clone(fs);
            scope.spawn(move || {
                let to = fs.file(fs.root(), &format!("copy {thread}")).ino;
                for round in 0..60 {
                    assert_eq!(
                        fs.copy_range(from, 0, to, 0, (records as u64) << 17),
                        Ok((records as u64) << 17)
                    );
                    for record in fs.bytes(to).chunks(1 << 17) {
                        assert!(
                            record[..1 << 17].chunks(1000).all(|part| record.starts_with(part)),
                            "{round}"
                        );
                    }
                    if round % 5 == 0 {
                        fs.size(to, 0).unwrap();
                    }
                }
            });
        }
    });
    fs.sync().unwrap();
    m.pool().drop_cache();
    for name in ["copy 0", "copy 1"] {
        let to = fs.ino(root, name).unwrap();
        for record in fs.bytes(to).chunks(1 << 17) {
            assert!(record.chunks(1000).all(|part| record.starts_with(part)), "{name}");
        }
    }
    assert_sound(&m);
}

/// Each reference counts against limits, as if its bytes had been written, although the pool stores them once.
#[test]
fn clones_stay_within_quotas() {
    for limit in ["quota", "refquota", "userquota@1000", "groupquota@100"] {
        let m = machine();
        let fs = m.fs();
        fs.dataset().set("compression", "off").unwrap();
        let quota = QuotaName::parse(limit);
        match quota {
            Some(name) => fs.dataset().quotas().set(name, 8 << 20).unwrap(),
            None => fs.dataset().set(limit, "8M").unwrap(),
        }
        let (from, data) = source(&m, 512);
        let mut copies = Vec::new();
        let refused = loop {
            let to = fs.file(fs.root(), &format!("copy {}", copies.len())).ino;
            match fs.clone_range(from, 0, to, 0, data.len() as u64) {
                Ok(done) => assert_eq!(done.bytes, done.shared_bytes),
                Err(errno) => break errno,
            }
            copies.push(to);
            assert!(copies.len() < 10, "{limit} does not stop clones");
        };
        assert_eq!(refused, Errno::EDQUOT);
        fs.sync().unwrap();
        let used = match quota {
            Some(name) => fs.dataset().quotas().limited_usage(name.kind, name.id).unwrap().count.bytes,
            None => fs.dataset().branch().used_bytes(),
        };
        assert!(used <= 8 << 20 && used > 6 << 20, "{limit}: {used}");
        assert!(m.pool().status().live_bytes < 4 << 20);
        // In the place of another clone there is enough space, once that has been freed.
        fs.unlink(fs.root(), b"copy 0").unwrap();
        fs.forget(copies[0], 1);
        let again = fs.clone_range(from, 0, copies[1], 0, data.len() as u64);
        assert_eq!(again.map(|done| done.bytes), Ok(512 * RECORD), "{limit}");
        fs.sync().unwrap();
        assert_eq!(fs.bytes(copies[1]), data);
        assert_sound(&m);
    }
}

#[test]
fn a_read_only_data_set_takes_no_clone() {
    let m = machine();
    let fs = m.fs();
    let (from, _) = source(&m, 4);
    let to = fs.file(fs.root(), "copy").ino;
    fs.dataset().set("readonly", "on").unwrap();
    assert_eq!(fs.clone_range(from, 0, to, 0, 4 * RECORD), Err(Errno::EROFS));
}

/// Otherwise all files could not be overwritten within the reservation.
#[test]
fn a_data_set_with_a_refreservation_shares_nothing() {
    let m = machine();
    let (from, data) = source(&m, 40);
    assert_eq!(cloned(m.fs(), from, "before").1.shared_bytes, 40 * RECORD);
    m.fs().dataset().set("refreservation", "8M").unwrap();
    let (to, done) = cloned(m.fs(), from, "copy");
    assert_eq!((done.shared_bytes, m.fs().bytes(to)), (0, data));
    m.fs().dataset().set("refreservation", "none").unwrap();
    assert_eq!(cloned(m.fs(), from, "after").1.shared_bytes, 40 * RECORD);
}

/// Several clones of one block in one txg, some of which do not live until it syncs.
#[test]
fn clones_of_one_source_in_one_txg_are_counted_one_by_one() {
    for (sync_between, cut) in [(false, false), (false, true), (true, false), (true, true)] {
        let m = machine();
        let (fs, root) = (m.fs(), m.fs().root());
        let (from, data) = source(&m, 64);
        let (one, _) = cloned(fs, from, "one");
        let (two, of_clone) = cloned(fs, one, "two");
        assert_eq!(of_clone.shared_bytes, 64 * RECORD, "a clone of the same txg is shared");
        // Again over itself, and to another place of the same file.
        assert_eq!(fs.copy_range(from, 0, one, 0, 64 * RECORD), Ok(64 * RECORD));
        assert_eq!(fs.copy_range(one, 0, one, 64 * RECORD, 64 * RECORD), Ok(64 * RECORD));
        if sync_between {
            fs.sync().unwrap();
            assert_eq!((totals(&m).blocks, totals(&m).references), (64, 192));
            // The same once more changes nothing.
            assert_eq!(fs.copy_range(from, 0, one, 0, 64 * RECORD), Ok(64 * RECORD));
            assert_eq!(fs.copy_range(two, 0, from, 0, 64 * RECORD), Ok(64 * RECORD));
        }
        fs.unlink(root, b"source").unwrap();
        fs.forget(from, 1);
        if cut {
            fs.size(one, RECORD).unwrap();
        }
        (0..3).for_each(|_| commit(&m));
        m.pool().drop_cache();
        assert_eq!(fs.bytes(two), data);
        let expected = if cut { data[..RECORD as usize].to_vec() } else { [&data[..], &data].concat() };
        assert_eq!(fs.bytes(one), expected);
        assert_eq!(totals(&m).references, if cut { 1 } else { 128 });
        fs.unlink(root, b"two").unwrap();
        fs.unlink(root, b"one").unwrap();
        [one, two].iter().for_each(|ino| fs.forget(*ino, 1));
        (0..4).for_each(|_| commit(&m));
        assert_eq!(totals(&m), SharedTotals::default());
        assert_sound(&m);
    }
}

/// A source whose records have another size than those of the target, or are compressed in another way.
#[test]
fn files_with_other_records_are_copied() {
    let m = machine();
    let fs = m.fs();
    let (from, data) = source(&m, 40);
    fs.dataset().set("recordsize", "16K").unwrap();
    let large = fs.file(fs.root(), "large").ino;
    fs.put(large, 0, &[1; 100_000]);
    fs.sync().unwrap();
    assert_eq!(
        fs.clone_range(from, 0, large, 0, 40 * RECORD),
        Ok(Cloned { bytes: 40 * RECORD, shared_bytes: 0 })
    );
    assert_eq!(fs.bytes(large), data);
    // A file without content takes the record size of its source.
    let (to, done) = cloned(fs, from, "small");
    assert_eq!(done.shared_bytes, 40 * RECORD);
    // A hole has no records either, whatever its size.
    let sparse = fs.file(fs.root(), "sparse").ino;
    fs.size(sparse, 1 << 30).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.clone_range(from, 0, sparse, 8 * RECORD, 40 * RECORD).unwrap().bytes, 40 * RECORD);
    fs.dataset().set("compression", "zstd").unwrap();
    let text: Vec<u8> = (0..4 * RECORD).map(|at| (at / 9) as u8).collect();
    let compressed = fs.file(fs.root(), "compressed").ino;
    fs.put(compressed, 0, &text);
    fs.sync().unwrap();
    fs.dataset().set("compression", "off").unwrap();
    let (plain, done) = cloned(fs, compressed, "plain");
    assert_eq!(done.shared_bytes, 0, "new files are not compressed");
    fs.sync().unwrap();
    m.pool().drop_cache();
    assert_eq!((fs.bytes(large), fs.bytes(to), fs.bytes(plain)), (data.clone(), data.clone(), text));
    let mut found = Vec::new();
    fs.read(sparse, 7 * RECORD, 42 * RECORD as u32, &mut found).unwrap();
    assert!(found[..RECORD as usize].iter().chain(&found[41 * RECORD as usize..]).all(|byte| *byte == 0));
    assert!(found[RECORD as usize..41 * RECORD as usize] == data[..]);
    assert_sound(&m);
}

/// Overwrites with the same bytes keep the block, also that of a clone, and count it once.
#[test]
fn a_clone_that_is_overwritten_with_the_same_bytes_keeps_one_reference() {
    let m = machine();
    let fs = m.fs();
    let (from, data) = source(&m, 32);
    let (to, _) = cloned(fs, from, "copy");
    // In the txg of the clone, and in a later one.
    fs.put(to, 0, &data[..8 * RECORD as usize]);
    fs.sync().unwrap();
    for _ in 0..2 {
        fs.put(to, 8 * RECORD, &data[8 * RECORD as usize..]);
        fs.put(from, 16 * RECORD, &data[16 * RECORD as usize..]);
        fs.sync().unwrap();
        assert_eq!(totals(&m).references, 24);
    }
    fs.unlink(fs.root(), b"source").unwrap();
    fs.forget(from, 1);
    (0..3).for_each(|_| commit(&m));
    m.pool().drop_cache();
    assert_eq!(fs.bytes(to), data);
    assert_eq!(totals(&m), SharedTotals::default());
    assert_sound(&m);
}

/// A snapshot keeps the block of a clone, of its source, or of both.
#[test]
fn snapshots_keep_what_clones_shared() {
    for change in 0..3 {
        let mut m = machine();
        let (_, data) = source(&m, 50);
        let (root, from) = (m.fs().root(), m.fs().ino(m.fs().root(), "source").unwrap());
        let (_, done) = cloned(m.fs(), from, "copy");
        assert_eq!(done.shared_bytes, 50 * RECORD);
        let snapshot = m.take_snapshot();
        let fs = m.fs();
        if change != 1 {
            fs.unlink(root, b"source").unwrap();
        }
        if change != 0 {
            fs.unlink(root, b"copy").unwrap();
        }
        (0..4).for_each(|_| commit(&m));
        m.pool().drop_cache();
        let old = m.open_snapshot(&snapshot);
        for name in ["source", "copy"] {
            assert_eq!(old.bytes(old.ino(root, name).unwrap()), data, "{name}, change {change}");
        }
        assert_eq!(totals(&m).references, 50, "a reference that a snapshot keeps counts");
        assert_sound(&m);
    }
}

/// Frees reserve nothing, and each may change another leaf of the table.
#[test]
fn space_for_the_leaves_of_the_table_is_kept() {
    let mut m = machine();
    let kept = |m: &Machine| m.pool().stats().kept.parts.commits;
    let (records, before) = (40_000, kept(&m));
    // A record compresses to few granules, but does not fit its pointer.
    let mut data = vec![0; (records * RECORD) as usize];
    let mut rng = Prng::new(3);
    data.chunks_mut(RECORD as usize).for_each(|record| record[..160].copy_from_slice(&rng.random_bytes(160)));
    let from = m.fs().file(m.fs().root(), "source").ino;
    m.fs().put(from, 0, &data);
    m.fs().sync().unwrap();
    let size = data.len() as u64;
    let to = m.fs().file(m.fs().root(), "copy").ino;
    let mut done = 0;
    while done < size {
        done += m.fs().clone_range(from, done, to, done, size).unwrap().bytes;
    }
    m.fs().sync().unwrap();
    assert_eq!(totals(&m).references, records);
    let leaves = m.objects().shared().leaf_count();
    assert!(leaves > 6, "{leaves}");
    let more = (leaves - 4) * (32 << 10);
    assert!(kept(&m) >= before + more, "{} kept after {before}, for {leaves} leaves", kept(&m));
    m.remount();
    commit(&m);
    assert!(kept(&m) >= before + more);
    let root = m.fs().root();
    m.fs().unlink(root, b"source").unwrap();
    // So few leaves that nothing delays the frees.
    (0..2).for_each(|_| commit(&m));
    assert_eq!(totals(&m), SharedTotals::default());
    assert!(kept(&m) < before + more);
    let to = m.fs().ino(root, "copy").unwrap();
    assert!(m.fs().bytes(to) == data);
    assert_sound(&m);
}
