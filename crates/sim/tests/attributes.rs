//! Extended attributes under concurrency, and at the size limits of their homes; `check` validates the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrane_dataset::Dataset;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_format::Owner;
use terrane_object::{ObjectKind, ObjectSets};
use terrane_oracle::xattr_names;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{
    ACL_ACCESS, ACL_DEFAULT, Errno, Fs, Ino, Loss, SetAttr, SetTime, SetXattr, WriteFlags, XATTR_LIST_MAX,
    XATTR_SIZE_MAX,
};
use terrane_sim::attributes::{XattrPlace, xattr_place};
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_sim::seeds::seeds;
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_store::explain::EntryState;
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;
use terrane_zap::Kind;

const ANY: SetXattr = SetXattr { create: false, replace: false, kill_sgid: false };
/// The longest packed list of names and values that one attribute holds.
const PACKED_BYTES_MAX: usize = 65_535;

fn machine(seed: u64, props: &[(&'static str, &'static str)]) -> Machine {
    Machine::create(&Plan { props: props.to_vec(), zones: 128, ..Plan::small(seed) }).unwrap()
}

fn file(fs: &Fs, name: &str) -> Ino {
    fs.create(fs.root(), name.as_bytes(), 0o644, &USER).unwrap().ino
}

fn set(fs: &Fs, ino: Ino, name: &str, value: &[u8]) {
    fs.setxattr(ino, name.as_bytes(), value, ANY, &USER).unwrap();
}

fn get(fs: &Fs, ino: Ino, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = Vec::new();
    fs.getxattr(ino, name.as_bytes(), &mut value).map(|()| value)
}

fn objects(fs: &Fs) -> u64 {
    fs.sync().unwrap();
    fs.dataset().object_set().usage().objects
}

/// Unmounted, imported, checked and mounted again.
fn again(machine: Machine) -> Machine {
    let device = machine.export().unwrap();
    let mut machine = Machine::import(&device, 77, false).unwrap();
    machine.check().unwrap();
    machine.mount().unwrap();
    machine
}

#[test]
fn a_list_is_full_at_65535_bytes_and_what_does_not_fit_goes_elsewhere() {
    let mut machine = machine(1, &[]);
    let fs = machine.fs().clone();
    let ino = file(&fs, "f");
    let before = objects(&fs);
    // A frame of 20 bytes; then 20 per pair, and name and value, each rounded up to 4. The remainder cannot
    // be used: 65532.
    let value = |names: usize| vec![3; PACKED_BYTES_MAX / 4 * 4 - 20 - names * 28 - 30_000];
    set(&fs, ino, "user.aaa", &[1; 30_000]);
    set(&fs, ino, "user.bbb", &value(2)[..30_000]);
    let rest = value(3).len() - 30_000;
    set(&fs, ino, "user.ccc", &vec![2; rest]);
    assert_eq!(objects(&fs), before, "all of them are in the list");
    set(&fs, ino, "user.ccc", &vec![2; rest + 1]);
    assert_eq!(objects(&fs), before + 2, "four bytes more are too many");
    assert_eq!(get(&fs, ino, "user.ccc").unwrap(), vec![2; rest + 1]);
    assert_eq!(xattr_names(&fs, ino).unwrap(), ["user.aaa", "user.bbb", "user.ccc"]);
    drop(fs);
    machine = again(machine);
    let fs = machine.fs().clone();
    set(&fs, ino, "user.ccc", &vec![4; rest]);
    assert_eq!(objects(&fs), before);
    assert_eq!(get(&fs, ino, "user.ccc").unwrap(), vec![4; rest]);
    // The largest of all, and the longest that may be in the list.
    for (len, where_it_is) in [
        (XATTR_SIZE_MAX, XattrPlace::XattrDir),
        (32 << 10, XattrPlace::XattrDir),
        ((32 << 10) + 1, XattrPlace::XattrDir),
        (5, XattrPlace::Spill),
    ] {
        set(&fs, ino, "user.ddd", &vec![5; len]);
        assert_eq!(xattr_place(&fs, ino, "user.ddd").unwrap(), where_it_is, "{len}");
        if len == 32 << 10 {
            fs.removexattr(ino, b"user.aaa").unwrap();
        }
    }
    drop(fs);
    again(machine);
}

#[test]
fn names_in_both_homes_are_bounded_together_and_go_together() {
    let machine = machine(2, &[]);
    let fs = machine.fs().clone();
    let ino = file(&fs, "f");
    let before = objects(&fs);
    let name = |at: usize| format!("user.{at:0250}");
    let most = XATTR_LIST_MAX / 256;
    for at in 0..most {
        // Every second one is in the hidden directory.
        fs.dataset().set("xattr", if at % 2 == 0 { "sa" } else { "dir" }).unwrap();
        set(&fs, ino, &name(at), &[7; 9]);
    }
    assert_eq!(xattr_names(&fs, ino).unwrap().len(), most);
    let one_more = fs.setxattr(ino, b"user.x", b"", ANY, &USER);
    assert_eq!(one_more, Err(Errno::ENOSPC));
    for at in (0..most).step_by(3) {
        fs.dataset().set("xattr", if at % 2 == 0 { "dir" } else { "sa" }).unwrap();
        set(&fs, ino, &name(at), b"moved to the other home");
    }
    fs.sync().unwrap();
    machine.check().unwrap();
    assert_eq!(xattr_names(&fs, ino).unwrap().len(), most);
    fs.unlink(fs.root(), b"f").unwrap();
    fs.sync().unwrap();
    machine.check().unwrap();
    assert_eq!(get(&fs, ino, &name(0)).unwrap(), b"moved to the other home");
    fs.forget(ino, 1);
    assert_eq!(objects(&fs), before - 1);
    drop(fs);
    again(machine);
}

#[test]
fn what_is_renamed_over_takes_its_attributes_with_it_and_leaves_no_others() {
    let machine = machine(3, &[("xattr", "dir")]);
    let fs = machine.fs().clone();
    let root = fs.root();
    set(&fs, root, "user.of the root", &[8; 50_000]);
    let before = objects(&fs);
    for open in [false, true] {
        let (old, new) = (file(&fs, "old"), file(&fs, "new"));
        set(&fs, old, "user.a", &[1; 40_000]);
        set(&fs, old, "user.b", &[1; 10]);
        set(&fs, new, "user.a", &[2; 500]);
        if !open {
            fs.forget(old, 1);
        }
        fs.rename(root, b"new", root, b"old", 0).unwrap();
        fs.sync().unwrap();
        machine.check().unwrap();
        if open {
            set(&fs, old, "user.c", b"set after it went");
            fs.removexattr(old, b"user.a").unwrap();
            assert_eq!(xattr_names(&fs, old).unwrap(), ["user.b", "user.c"]);
            fs.sync().unwrap();
            machine.check().unwrap();
            fs.forget(old, 1);
        }
        assert_eq!(get(&fs, new, "user.a").unwrap(), [2; 500]);
        assert_eq!(objects(&fs), before + 3);
        fs.unlink(root, b"old").unwrap();
        fs.forget(new, 1);
        assert_eq!(objects(&fs), before);
    }
    drop(fs);
    let machine = again(machine);
    let fs = machine.fs();
    assert_eq!(get(fs, fs.root(), "user.of the root").unwrap(), [8; 50_000]);
}

/// A large hidden directory is destroyed in pieces, in several transactions; other threads drain the queue
/// and commit meanwhile, and new files may want the number.
#[test]
fn a_large_xattr_dir_is_destroyed_once_by_concurrent_threads() {
    for seed in 0..6 {
        let machine = machine(seed, &[("xattr", "dir")]);
        let fs = machine.fs();
        let before = objects(fs);
        let doomed: Vec<Ino> = (0..3)
            .map(|at| {
                let ino = file(fs, &format!("doomed {at}"));
                (0..60).for_each(|name| set(fs, ino, &format!("user.{name}"), &[1; 600]));
                fs.unlink(fs.root(), format!("doomed {at}").as_bytes()).unwrap();
                ino
            })
            .collect();
        fs.sync().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let helpers = [
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let _ = fs.drain_unlinked();
                    }
                }),
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        fs.sync().unwrap()
                    }
                }),
                scope.spawn(|| {
                    for round in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let name = format!("new {}", round % 5);
                        let ino = file(fs, &name);
                        set(fs, ino, "user.new", &round.to_string().into_bytes());
                        assert_eq!(get(fs, ino, "user.new").unwrap(), round.to_string().as_bytes());
                        fs.unlink(fs.root(), name.as_bytes()).unwrap();
                        fs.forget(ino, 1);
                    }
                }),
            ];
            doomed.iter().for_each(|ino| fs.forget(*ino, 1));
            over.store(true, Ordering::Relaxed);
            helpers.into_iter().for_each(|helper| helper.join().unwrap());
        });
        while fs.drain_unlinked().unwrap() {}
        assert_eq!(fs.unlinked_count(), Ok(0), "seed {seed}");
        assert_eq!(objects(fs), before, "seed {seed}");
        machine.check().unwrap();
    }
}

/// The dirty limit is so low that every piece has a txg of its own.
#[test]
fn a_crash_between_the_pieces_of_a_hidden_directory_leaves_one_that_goes_on() {
    let machine = machine(9, &[("xattr", "dir")]);
    let before = objects(machine.fs());
    let ino = file(machine.fs(), "doomed");
    (0..200).for_each(|name| set(machine.fs(), ino, &format!("user.{name}"), &[1; 600]));
    machine.fs().unlink(machine.fs().root(), b"doomed").unwrap();
    machine.fs().sync().unwrap();
    let mut partly = 0;
    for cut in 0..60 {
        let device = machine.device.snapshot();
        let options =
            ImportOptions { cache_bytes: 2 << 20, dirty_bytes: 600 << 10, ..ImportOptions::default() };
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(cut));
        let pool = Pool::import(vec![Arc::new(device.clone())], env, &options).unwrap();
        let objects_of_pool = ObjectSets::open(pool.clone()).unwrap();
        let dataset = Dataset::open_root(&objects_of_pool).unwrap();
        device.crash_after(device.ops_done() + cut * 4);
        // Destroys what is in the queue, as far as it gets.
        let _ = Fs::open(Arc::new(dataset));
        device.cut_power();
        pool.abandon();
        let mut found = Machine::import(&device.after_power_loss(cut), cut, false).unwrap();
        found.check().unwrap();
        let stored = Dataset::open_root(&found.objects).unwrap().object_set().usage().objects;
        partly += u32::from((before + 2..before + 200).contains(&stored));
        found.mount().unwrap();
        assert_eq!(objects(found.fs()), before, "cut {cut}");
        found.check().unwrap();
    }
    assert!(partly > 10, "only {partly} crashes came between two pieces");
}

/// Readers see one of the values, whole, and the name once, while it moves from home to home.
#[test]
fn an_attribute_that_moves_is_never_missed() {
    let lengths = [1usize, 200, 3000, 40_000, 90, 33_000, 700, 65_536];
    for seed in 0..3 {
        let machine = machine(seed, &[("dnodesize", "legacy")]);
        let fs = machine.fs();
        let ino = file(fs, "f");
        let value = |turn: usize| vec![turn as u8; lengths[turn % lengths.len()]];
        set(fs, ino, "user.moves", &value(0));
        set(fs, ino, "user.stays", &[9; 33_000]);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = || {
                while !over.load(Ordering::Relaxed) {
                    let found = get(fs, ino, "user.moves").unwrap();
                    assert!(found.iter().all(|byte| *byte == found[0]));
                    assert_eq!(found, value(usize::from(found[0])));
                    assert_eq!(xattr_names(fs, ino).unwrap(), ["user.moves", "user.stays"]);
                    assert_eq!(get(fs, ino, "user.stays").unwrap(), [9; 33_000]);
                }
            };
            let readers = [scope.spawn(reader), scope.spawn(reader)];
            let syncer = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    fs.sync().unwrap()
                }
            });
            for turn in 0..200 {
                set(fs, ino, "user.moves", &value(turn));
            }
            over.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            syncer.join().unwrap();
        });
        fs.sync().unwrap();
        machine.check().unwrap();
    }
}

/// Whatever is set and removed, layouts stay few: the dataset has numbers for 1022.
#[test]
fn attributes_that_come_and_go_need_few_layouts() {
    let machine = machine(5, &[]);
    let fs = machine.fs();
    let mut rng = terrane_wire::Prng::new(5);
    let root = fs.root();
    let mut inodes = vec![root, fs.mkdir(root, b"d", 0o755, &USER).unwrap().ino];
    for (at, width) in ["legacy", "1k", "16k"].into_iter().enumerate() {
        fs.dataset().set("dnodesize", width).unwrap();
        inodes.push(file(fs, &format!("f{at}")));
        inodes.push(fs.symlink(root, format!("l{at}").as_bytes(), &[b't'; 160], &USER).unwrap().ino);
        inodes.push(fs.mknod(root, format!("b{at}").as_bytes(), 0o060_600, 7, &USER).unwrap().ino);
    }
    for _ in 0..1500 {
        let ino = rng.pick(&inodes).unwrap();
        let name = format!("trusted.{}", rng.below(4));
        if rng.one_in(3) {
            let _ = fs.removexattr(ino, name.as_bytes());
        } else {
            let most = rng.pick(&[30, 100, 300, 700, 40_000]).unwrap();
            set(fs, ino, &name, &vec![1; rng.below(most) as usize]);
        }
    }
    fs.sync().unwrap();
    let layouts = terrane_check::attributes::load_layouts(fs.dataset()).unwrap().unwrap();
    let count = layouts.iter().count();
    assert!(count < 60, "{count} layouts");
    machine.check().unwrap();
}

/// The successor of a mount finds attributes of files that were unlinked while open, and frees them on the
/// kernel's FORGET.
#[test]
fn a_successor_keeps_the_attributes_of_open_files_and_gives_them_back() {
    let machine = machine(6, &[]);
    let fs = machine.fs().clone();
    let before = objects(&fs);
    let ino = file(&fs, "open");
    (0..20).for_each(|name| set(&fs, ino, &format!("user.{name}"), &[1; 33_000]));
    set(&fs, ino, "user.listed", b"value");
    fs.unlink(fs.root(), b"open").unwrap();
    fs.sync().unwrap();
    set(&fs, ino, "user.lost", &[2; 40_000]);
    let device = machine.device.clone();
    drop(fs);
    machine.pool.abandon();
    let machine = Machine::import(&device, 8, false).unwrap();
    machine.check().unwrap();
    let dataset = Dataset::open_root(&machine.objects).unwrap();
    let fs = Fs::take_over(Arc::new(dataset), [(ino, Loss::default())].into()).unwrap();
    assert_eq!(get(&fs, ino, "user.listed").unwrap(), b"value");
    assert_eq!(get(&fs, ino, "user.7").unwrap(), [1; 33_000]);
    assert_eq!(get(&fs, ino, "user.lost"), Err(Errno::ENODATA));
    set(&fs, ino, "user.later", &[3; 50_000]);
    fs.forget(ino, 1);
    assert_eq!(objects(&fs), before);
    assert!(fs.dataset().object_set().hold(ObjectId(ino)).is_err());
    machine.check().unwrap();
}

/// `setattr` does everything it is asked for, or nothing: also if a file cannot be truncated because a block
/// of it cannot be read.
#[test]
fn a_mode_that_comes_with_a_size_changes_with_it_or_not_at_all() {
    let machine = machine(7, &[("recordsize", "4K")]);
    let fs = machine.fs().clone();
    let (plain, listed) = (file(&fs, "plain"), file(&fs, "with a list"));
    let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
                \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    fs.setxattr(listed, ACL_ACCESS, acl, ANY, &USER).unwrap();
    let mut rng = terrane_wire::Prng::new(7);
    let content: Vec<u8> = (0..8000).map(|_| rng.next_u64() as u8).collect();
    for ino in [plain, listed] {
        fs.write(ino, 0, &content, WriteFlags::default()).unwrap();
    }
    fs.sync().unwrap();
    drop(fs);
    let device = machine.export().unwrap();
    let mut machine = Machine::import(&device, 8, false).unwrap();
    for zone in machine.pool.zones() {
        for (entry, standing) in machine.pool.zone_directory(zone.seq).unwrap() {
            let Owner::Block { object, level: 0, block: 1, .. } = entry.owner else { continue };
            if standing == EntryState::Live && [plain, listed].contains(&object) {
                device.rot(zone.home.zone, entry.offset + 9, &[0x40]).unwrap();
            }
        }
    }
    machine.mount().unwrap();
    let fs = machine.fs();
    for ino in [plain, listed] {
        let before = (fs.getattr(ino).unwrap(), get(fs, ino, "system.posix_acl_access"));
        let both = SetAttr { mode: Some(0o700), size: Some(6000), ..SetAttr::default() };
        assert_eq!(fs.setattr(ino, &both, &USER), Err(Errno::EIO));
        assert_eq!((fs.getattr(ino).unwrap(), get(fs, ino, "system.posix_acl_access")), before);
        let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        fs.setattr(ino, &touch, &USER).unwrap();
        assert_eq!(fs.getattr(ino).unwrap().mode, before.0.mode);
    }
}

/// A pool whose txgs sync by themselves, in threads.
fn with_threads(device: &SimDevice, is_new: bool) -> (Arc<Pool>, Arc<ObjectSets>, Arc<Fs>) {
    let env: Arc<dyn Env> = Arc::new(SystemEnv::new());
    let options = ImportOptions {
        cache_bytes: 2 << 20,
        commit_period: std::time::Duration::from_millis(5),
        ..ImportOptions::default()
    };
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    if is_new {
        let pool = Pool::create(devices, &CreateOptions::named("threads"), env, &options).unwrap();
        let objects = ObjectSets::create(pool.clone()).unwrap();
        let dataset = Dataset::create_root(&objects, &[]).unwrap();
        Fs::format(&dataset, &USER).unwrap();
        (pool, objects, Fs::open(Arc::new(dataset)).unwrap())
    } else {
        let pool = Pool::import(devices, env, &options).unwrap();
        let objects = ObjectSets::open(pool.clone()).unwrap();
        let report = terrane_check::check(&objects, &mut |_| {});
        assert!(report.is_clean(), "{report}");
        let dataset = Dataset::open_root(&objects).unwrap();
        (pool, objects, Fs::open(Arc::new(dataset)).unwrap())
    }
}

/// Allows the answers of a race, and of a device without power.
fn may_fail(outcome: Result<(), Errno>) -> u32 {
    let expected = [
        Errno::EEXIST,
        Errno::EINVAL,
        Errno::EIO,
        Errno::EISDIR,
        Errno::ENODATA,
        Errno::ENOENT,
        Errno::ENOTDIR,
        Errno::ENOTEMPTY,
        Errno::ESTALE,
        Errno::EACCES,
    ];
    if let Err(errno) = outcome {
        assert!(expected.contains(&errno), "{errno}");
    }
    u32::from(outcome.is_ok())
}

/// Returns how many steps succeeded.
fn storm(fs: &Fs, seed: u64, steps: usize) -> u32 {
    let mut done = 0;
    let mut rng = terrane_wire::Prng::new(seed);
    let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
                \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    for _ in 0..steps {
        let (name, other) = (format!("n{}", rng.below(6)), format!("n{}", rng.below(6)));
        let (name, other, root) = (name.as_bytes(), other.as_bytes(), fs.root());
        let attribute = format!("user.{}", rng.below(4));
        let with = |change: &mut dyn FnMut(Ino) -> Result<(), Errno>| {
            let ino = fs.lookup(root, name)?.ino;
            let changed = change(ino);
            fs.forget(ino, 1);
            changed
        };
        done += may_fail(match rng.below(14) {
            0 => fs.create(root, name, 0o644, &USER).map(|attr| fs.forget(attr.ino, 1)),
            1 => fs.mkdir(root, name, 0o755, &USER).map(|attr| fs.forget(attr.ino, 1)),
            2 => fs.unlink(root, name),
            3 => fs.rmdir(root, name),
            4 => fs.rename(root, name, root, other, 0),
            5 => {
                let home = rng.pick(&["sa", "dir"]).unwrap();
                fs.dataset().set("xattr", home).map_err(|_| Errno::EIO)
            }
            6 => with(&mut |ino| fs.removexattr(ino, attribute.as_bytes())),
            7 => with(&mut |ino| {
                let name = rng.pick(&[ACL_ACCESS, ACL_DEFAULT]).unwrap();
                fs.setxattr(ino, name, acl, ANY, &USER)
            }),
            8 => with(&mut |ino| {
                let mode = Some(0o600 | rng.below(0o100) as u32);
                fs.setattr(ino, &SetAttr { mode, ..SetAttr::default() }, &USER).map(drop)
            }),
            9 => with(&mut |ino| xattr_names(fs, ino).map(drop)),
            10 => fs.drain_unlinked().map(drop),
            _ => with(&mut |ino| {
                let most = rng.pick(&[50, 200, 3000, 40_000]).unwrap();
                let value = vec![rng.below(256) as u8; rng.below(most) as usize];
                fs.setxattr(ino, attribute.as_bytes(), &value, ANY, &USER)?;
                // Another thread may have set or removed it, but only as a whole.
                let found = get(fs, ino, &attribute)?;
                assert!(found.iter().all(|byte| *byte == found[0]));
                Ok(())
            }),
        });
    }
    done
}

#[test]
fn a_storm_of_attributes_leaves_nothing_behind_with_and_without_power() {
    for seed in seeds(4) {
        let config = SimConfig { seed, zone_count: 64, zone_size: 4 << 20, ..SimConfig::default() };
        let mut device = SimDevice::new(config).unwrap();
        let (mut pool, mut all, mut fs) = with_threads(&device, true);
        for round in 0..3 {
            let cut = round == 1;
            if cut {
                device.crash_after(device.ops_done() + 10 + seed % 10 * 9);
            }
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|thread| {
                        let fs = &fs;
                        scope.spawn(move || storm(fs, seed.wrapping_mul(100) + round * 10 + thread, 1500))
                    })
                    .collect();
                let done: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
                assert!(cut || done > 1500, "only {done} of 6000 changes were made");
            });
            if cut {
                device.cut_power();
                pool.abandon();
                drop((fs, all));
                device = device.after_power_loss(seed);
            } else {
                assert_eq!(fs.unlinked_count(), Ok(0), "seed {seed} round {round}");
                fs.forget_all();
                drop(fs);
                pool.export().unwrap();
                drop(all);
            }
            (pool, all, fs) = with_threads(&device, false);
        }
        fs.forget_all();
        drop(fs);
        pool.export().unwrap();
        drop(all);
    }
}

/// Names that are listed but cannot be looked up, as in a forged image.
#[test]
fn a_hidden_directory_that_cannot_be_emptied_does_not_keep_its_inode() {
    const SALT_AT: u64 = 80;
    let machine = machine(11, &[("xattr", "dir"), ("zapsize", "2K")]);
    let ino = file(machine.fs(), "doomed");
    (0..60).for_each(|at| set(machine.fs(), ino, &format!("user.{at:0100}"), b"value"));
    let device = machine.export().unwrap();
    let mut machine = Machine::import(&device, 12, false).unwrap();
    let dataset = Dataset::open_root(&machine.objects).unwrap();
    let is_hidden = |id: &u64| {
        let object = dataset.object_set().hold(ObjectId(*id));
        object.is_ok_and(|object| object.kind() == ObjectKind::Directory)
    };
    let hidden = (ino + 1..ino + 9).find(is_hidden).unwrap();
    let zap = dataset.open_zap(ObjectId(hidden)).unwrap();
    assert_eq!(zap.kind().unwrap(), Kind::Fat);
    {
        let tx = dataset.object_set().begin(Cost { meta_blocks: 4, ..Cost::NOTHING }).unwrap();
        zap.object().write(&tx, SALT_AT, &[0x5a; 8]).unwrap();
    }
    drop((zap, dataset));
    machine.pool.commit().unwrap();
    machine.mount().unwrap();
    let fs = machine.fs();
    assert_eq!(get(fs, ino, &format!("user.{:0100}", 7)), Err(Errno::ENODATA), "it is listed, and not found");
    fs.unlink(fs.root(), b"doomed").unwrap();
    fs.forget_all();
    assert_eq!(fs.unlinked_count(), Ok(0));
    assert_eq!(fs.getattr(ino), Err(Errno::ESTALE));
    fs.sync().unwrap();
}
