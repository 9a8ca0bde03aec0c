//! Damage that is found while a txg syncs: what cannot be stored is reported, and everything else is intact.

use std::collections::BTreeSet;
use terrane_device::SimDevice;
use terrane_device::sim::Survival;
use terrane_format::Owner;
use terrane_format::rows::Phase;
use terrane_posix::{Errno, Fs, Ino, WriteFlags};
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_store::explain::EntryState;
use terrane_wire::Prng;

fn created() -> Machine {
    let props = vec![("recordsize", "4K"), ("compression", "off"), ("dnodesize", "legacy")];
    Machine::create(&Plan { props, ..Plan::small(2) }).unwrap()
}

/// Without anything cached.
fn imported(device: &SimDevice) -> Machine {
    let mut machine = Machine::import(device, 7, false).unwrap();
    machine.mount().unwrap();
    machine
}

fn files(machine: &Machine, dir: Ino, names: impl Iterator<Item = String>) -> Vec<Ino> {
    let fs = machine.fs();
    let file = |name: String| {
        let ino = fs.create(dir, name.as_bytes(), 0o644, &USER).unwrap().ino;
        fs.write(ino, 0, &[7; 4096], WriteFlags::default()).unwrap();
        ino
    };
    names.map(file).collect()
}

/// Damages, or repairs, every copy of the blocks that `is_wanted` selects.
fn flip(machine: &Machine, is_wanted: impl Fn(&Owner) -> bool) -> usize {
    let mut places = BTreeSet::new();
    for zone in machine.pool.zones().into_iter().filter(|zone| zone.phase != Phase::Reclaimed) {
        for (entry, standing) in machine.pool.zone_directory(zone.seq).unwrap() {
            if standing == EntryState::Live && is_wanted(&entry.owner) {
                places.insert((zone.home.zone, entry.offset, entry.psize));
            }
        }
    }
    for (zone, offset, psize) in &places {
        machine.device.rot(*zone, *offset, &vec![0x55; *psize as usize]).unwrap();
    }
    machine.pool.drop_cache();
    places.len()
}

fn is_dnode_block_of(owner: &Owner, ino: Ino) -> bool {
    matches!(owner, Owner::Block { objset: 2, object: 0, level: 0, block } if *block == ino / 32)
}

#[test]
fn a_file_whose_dnode_is_damaged_says_so_at_every_fsync_and_others_go_on() {
    let machine = created();
    let root = machine.fs().root();
    let all = files(&machine, root, (0..100).map(|n| format!("f{n}")));
    let (lost, other) = (all[90], all[0]);
    assert_ne!(lost / 32, other / 32);
    let machine = imported(&machine.export().unwrap());
    let fs = machine.fs().clone();
    let (lost_ino, other_ino) = (fs.lookup(root, b"f90").unwrap().ino, fs.lookup(root, b"f0").unwrap().ino);
    assert_eq!((lost_ino, other_ino), (lost, other));
    assert_eq!(flip(&machine, |owner| is_dnode_block_of(owner, lost)), 2);
    for ino in [lost, other] {
        fs.write(ino, 0, &[8; 4096], WriteFlags::default()).unwrap();
    }
    assert_eq!(fs.fsync(lost, false), Err(Errno::EIO));
    assert_eq!(fs.fsync(lost, false), Err(Errno::EIO), "and so it stays");
    assert_eq!(fs.fsync(other, false), Ok(()));
    let status = machine.pool.status();
    assert_eq!(status.failed, None);
    let named = |block: &terrane_store::errors::DamagedBlock| matches!(block.owner, Owner::Block { objset: 2, object, .. } if object == lost);
    assert!(status.errors.blocks.iter().any(named), "{:?}", status.errors.blocks);
    assert_eq!(fs.sync(), Err(Errno::EIO), "what was not asked about by name is told once");
    assert_eq!(fs.sync(), Ok(()));
    // The old tree is intact: nothing of it was freed.
    flip(&machine, |owner| is_dnode_block_of(owner, lost));
    fs.forget_all();
    fs.sync().unwrap();
    drop(fs);
    let machine = imported(&machine.export().unwrap());
    machine.check().unwrap();
    let fs = machine.fs();
    for (name, byte) in [("f90", 7), ("f0", 8)] {
        let mut out = Vec::new();
        fs.read(fs.lookup(root, name.as_bytes()).unwrap().ino, 0, 4096, &mut out).unwrap();
        assert_eq!(out, vec![byte; 4096], "{name}");
    }
}

#[test]
fn a_rename_out_of_a_directory_whose_dnode_is_damaged_is_not_committed_half() {
    let machine = created();
    let fs = machine.fs().clone();
    let root = fs.root();
    let from = fs.mkdir(root, b"from", 0o755, &USER).unwrap().ino;
    files(&machine, from, ["file".to_owned()].into_iter());
    files(&machine, root, (0..100).map(|n| format!("f{n}")));
    let to = fs.mkdir(root, b"to", 0o755, &USER).unwrap().ino;
    files(&machine, to, (0..10).map(|n| format!("precious{n}")));
    assert_ne!(from / 32, to / 32);
    fs.sync().unwrap();
    drop(fs);
    for victim in [from, to] {
        let machine = imported(&machine.device.restarted(Survival::Everything));
        let fs = machine.fs().clone();
        assert_eq!((fs.lookup(root, b"from").unwrap().ino, fs.lookup(root, b"to").unwrap().ino), (from, to));
        fs.rename(from, b"file", to, b"file", Default::default()).unwrap();
        assert_eq!(flip(&machine, |owner| is_dnode_block_of(owner, victim)), 2);
        assert_eq!(fs.fsync(to, false), Err(Errno::EIO));
        assert!(machine.pool.status().failed.is_some(), "it would be half a rename");
        flip(&machine, |owner| is_dnode_block_of(owner, victim));
        let left = machine.device.restarted(Survival::Everything);
        machine.pool.abandon();
        let machine = imported(&left);
        machine.check().unwrap();
        let fs = machine.fs();
        assert!(fs.lookup(from, b"file").is_ok());
        assert_eq!(fs.lookup(to, b"file").err(), Some(Errno::ENOENT));
        assert!(fs.lookup(to, b"precious3").is_ok());
    }
}

#[test]
fn a_file_whose_block_of_pointers_is_damaged_says_so_at_fsync() {
    let machine = created();
    let root = machine.fs().root();
    let ino = files(&machine, root, ["f".to_owned()].into_iter())[0];
    for record in 0..400 {
        machine.fs().write(ino, record * 4096, &[7; 4096], WriteFlags::default()).unwrap();
    }
    let machine = imported(&machine.export().unwrap());
    let fs = machine.fs().clone();
    assert_eq!(fs.lookup(root, b"f").unwrap().ino, ino);
    let is_pointers =
        |owner: &Owner| matches!(owner, Owner::Block { objset: 2, object, level: 1, .. } if *object == ino);
    fs.write(ino, 0, &[8; 4096], WriteFlags::default()).unwrap();
    assert!(flip(&machine, is_pointers) > 0);
    assert_eq!(fs.fsync(ino, false), Err(Errno::EIO));
    assert_eq!(fs.fsync(ino, false), Err(Errno::EIO));
    assert_eq!(machine.pool.status().failed, None);
    flip(&machine, is_pointers);
    assert_eq!(fs.sync(), Err(Errno::EIO));
    fs.forget_all();
    fs.sync().unwrap();
    machine.check().unwrap();
}

#[test]
fn a_loss_is_told_although_the_inode_left_memory_before_it_was_asked_for() {
    let machine = created();
    let root = machine.fs().root();
    let all = files(&machine, root, (0..100).map(|n| format!("f{n}")));
    let (early, late) = (all[90], all[91]);
    let machine = imported(&machine.export().unwrap());
    let fs = machine.fs().clone();
    assert_eq!(fs.lookup(root, b"f90").unwrap().ino, early);
    assert_eq!(fs.lookup(root, b"f91").unwrap().ino, late);
    assert_eq!(early / 32, late / 32);
    for ino in [early, late] {
        fs.write(ino, 0, &[8; 4096], WriteFlags::default()).unwrap();
    }
    assert_eq!(flip(&machine, |owner| is_dnode_block_of(owner, early)), 2);
    // As when programs access many other files.
    assert_eq!(fs.sync(), Err(Errno::EIO));
    fs.set_idle_inodes_max(0);
    // The device returns the block again, so that the inode can be read. The changes to it are lost
    // nevertheless.
    flip(&machine, |owner| is_dnode_block_of(owner, early));
    for ino in [early, late, early] {
        assert_eq!(fs.fsync(ino, false), Err(Errno::EIO), "inode {ino}");
    }
    let mut out = Vec::new();
    fs.read(early, 0, 4096, &mut out).unwrap();
    assert_eq!(out, vec![7; 4096], "the state before");
    // Another file of the same number has lost nothing.
    fs.unlink(root, b"f90").unwrap();
    fs.forget(early, 1);
    fs.sync().unwrap();
    for n in 0..200 {
        let ino = files(&machine, root, [format!("g{n}")].into_iter())[0];
        assert_eq!(fs.fsync(ino, false), Ok(()), "inode {ino}");
        if ino == early {
            return;
        }
    }
    panic!("the canary: its number was never given out again");
}

/// The counts of references are lost. What may be shared is never freed then, nothing more is shared near it, and the
/// pool goes on.
#[test]
fn a_damaged_leaf_of_the_table_of_shared_blocks_only_ends_sharing() {
    const BYTES: u64 = 200 * 4096;
    let props = vec![("recordsize", "4K"), ("compression", "lz4")];
    let machine = Machine::create(&Plan { props, ..Plan::small(2) }).unwrap();
    let (fs, root) = (machine.fs().clone(), machine.fs().root());
    let mut rng = Prng::new(1);
    for name in ["source", "other"] {
        let ino = fs.create(root, name.as_bytes(), 0o644, &USER).unwrap().ino;
        // Records of many sizes: a leaf of equal distances would fit its pointer.
        for record in 0..BYTES / 4096 {
            let len = 500 + rng.below(3000) as usize;
            let noise = rng.random_bytes(len);
            fs.write(ino, record * 4096, &noise, WriteFlags::default()).unwrap();
        }
        fs.write(ino, BYTES - 1, &[1], WriteFlags::default()).unwrap();
        fs.sync().unwrap();
    }
    let clone = |fs: &Fs, from: &str, name: &str| {
        let from = fs.lookup(root, from.as_bytes()).unwrap().ino;
        let to = fs.create(root, name.as_bytes(), 0o644, &USER).unwrap().ino;
        let done = fs.clone_range(from, 0, to, 0, BYTES).unwrap();
        assert_eq!(done.bytes, BYTES);
        done.shared_bytes
    };
    assert_eq!(clone(&fs, "source", "first"), BYTES);
    let read = |fs: &Fs, name: &str| {
        let mut out = Vec::new();
        let ino = fs.lookup(root, name.as_bytes()).unwrap().ino;
        fs.read(ino, 0, BYTES as u32, &mut out).map(|()| out)
    };
    let content = [read(&fs, "source"), read(&fs, "other")];
    drop(fs);
    let machine = imported(&machine.export().unwrap());
    let fs = machine.fs().clone();
    let table = machine.objects.shared().object().unwrap().0;
    let is_leaf = |owner: &Owner| matches!(owner, Owner::Block { objset: 0, object, level: 0, block: 2 } if *object == table);
    assert_eq!(flip(&machine, is_leaf), 2);
    for (from, name) in [("source", "second"), ("other", "third")] {
        assert_eq!(clone(&fs, from, name), 0, "{name}");
        assert_eq!(fs.sync(), Ok(()), "{name}");
    }
    let references = machine.objects.shared().totals();
    for name in ["source", "other"] {
        fs.unlink(root, name.as_bytes()).unwrap();
    }
    fs.forget_all();
    fs.sync().unwrap();
    assert_eq!(machine.pool.status().failed, None);
    assert!(!machine.pool.errors().findings.is_empty(), "it was reported");
    assert_eq!(machine.objects.shared().totals(), references);
    drop(fs);
    let machine = imported(&machine.export().unwrap());
    for (name, content) in [("first", &content[0]), ("second", &content[0]), ("third", &content[1])] {
        assert!(read(machine.fs(), name) == *content, "{name}");
    }
}
