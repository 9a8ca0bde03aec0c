//! Pools in which one structure is wrong, and every checksum is right.
//!
//! A client of the pool writes the forged blocks itself, as an honest client would. So checksums, zone directories and
//! sums of space agree with what is stored, and only the forged meaning is wrong.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::{Arc, Mutex};
use terrane_check::{Report, check};
use terrane_codec::{ChecksumKind, Compression};
use terrane_dataset::Dataset;
use terrane_device::sim::Survival;
use terrane_device::{Device, SimDevice};
use terrane_format::{BlockPtr, Owner};
use terrane_object::ObjectSets;
use terrane_object::dnode::{DnodeHead, SLOT_BYTES, SLOTS_PER_BLOCK};
use terrane_object::objset::HEADER;
use terrane_pool::{Client, ImportOptions, Pool, Stream, Tx, TxgSync, WriteRequest};
use terrane_posix::WriteFlags;
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_store::PoolError;
use terrane_store::env::{SeededEnv, SystemEnv};
use terrane_wire::{ObjectId, Prng, Txg};

/// Bytes of each file, which is one record.
pub const FILE_BYTES: usize = 4096;

/// Offsets in the header of an object set.
pub const OBJECTS_AT: usize = 8;
pub const HIGH_WATER_AT: usize = 16;
pub const ACCOUNT_AT: usize = 32;
/// Offsets in a dnode.
pub const BLOCK_COUNT_AT: usize = 16;
pub const USED_AT: usize = 24;
pub const ROOT_AT: usize = DnodeHead::SIZE;
const BONUS_AT: usize = ROOT_AT + BlockPtr::SIZE;
/// Pointers in an indirect block of dnodes.
const POINTERS: u64 = 128;

/// A pool with a directory and two files of one record each.
pub struct Sound {
    pub device: SimDevice,
    /// The object set of the file system.
    pub set: u64,
    pub first: u64,
    pub second: u64,
}

impl Sound {
    pub fn new() -> Sound {
        let machine = Machine::create(&Plan::small(3)).unwrap();
        let fs = machine.fs().clone();
        fs.mkdir(fs.root(), b"dir", 0o755, &USER).unwrap();
        let mut dice = Prng::new(11);
        let mut file = |name: &str| {
            // So long a name that the directory does not fit its block pointer.
            let words: String = (0..10).map(|_| format!("{:016x}", dice.next_u64())).collect();
            let name = format!("{name} {words}");
            let ino = fs.create(fs.root(), name.as_bytes(), 0o644, &USER).unwrap().ino;
            fs.write(ino, 0, &dice.random_bytes(FILE_BYTES), WriteFlags::default()).unwrap();
            ino
        };
        let (first, second) = (file("first"), file("second"));
        fs.sync().unwrap();
        drop(fs);
        let device = machine.export().unwrap();
        let set = {
            let machine = Machine::import(&device, 3, true).unwrap();
            Dataset::open_root(&machine.objects).unwrap().object_set().id().0
        };
        Sound { device, set, first, second }
    }

    /// Imports the pool, not for writing.
    pub fn import(&self) -> Machine {
        Machine::import(&self.device, 3, true).unwrap()
    }

    /// What is found does not depend on threads.
    pub fn check(&self) -> Report {
        let report = check(&self.import().objects, &mut |_| {});
        let options = ImportOptions { read_only: true, ..ImportOptions::default() };
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        let pool = Pool::import(vec![device], Arc::new(SystemEnv::new()), &options).unwrap();
        assert!(pool.reads_at_a_time() > 1);
        let by_threads = check(&ObjectSets::open(pool).unwrap(), &mut |_| {});
        assert_eq!(by_threads.findings, report.findings);
        assert_eq!(by_threads.to_string(), report.to_string());
        report
    }

    pub fn root_directory(&self) -> u64 {
        let machine = self.import();
        let dataset = Dataset::open_root(&machine.objects).unwrap();
        dataset.master().unwrap().lookup_u64("ROOT").unwrap().unwrap()
    }

    /// The root pointer of an object of the file system.
    pub fn root_of(&self, object: u64) -> BlockPtr {
        let machine = self.import();
        let dataset = Dataset::open_root(&machine.objects).unwrap();
        let object = dataset.object_set().hold(ObjectId(object)).unwrap();
        object.dnode().root
    }

    /// Commits one txg whose root is what the closure makes of the present one, and checks the pool.
    pub fn after(self, act: impl FnOnce(&mut TxgSync<'_>, &BlockPtr) -> BlockPtr + Send + 'static) -> Report {
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(self.device.clone())];
        let options = ImportOptions { cache_bytes: 2 << 20, ..ImportOptions::default() };
        let pool = Pool::import(devices, Arc::new(SeededEnv::new(4)), &options).unwrap();
        let state = State { root: pool.root(), act: Some(Box::new(act)) };
        let forger = Arc::new(Forger(Mutex::new(state)));
        pool.set_client(forger.clone());
        pool.commit_txg(pool.open_txg()).unwrap();
        pool.abandon();
        assert!(forger.0.lock().unwrap().act.is_none(), "the client was asked to sync");
        Sound { device: self.device.restarted(Survival::Everything), ..self }.check()
    }

    /// Changes the header of the file system's object set.
    pub fn after_header(self, edit: impl FnMut(&mut TxgSync<'_>, &mut Vec<u8>) + Send + 'static) -> Report {
        let (set, mut edit) = (self.set, edit);
        self.after(move |group, root| edit_set(group, root, set, &mut edit))
    }

    /// Makes that many clones of the first file.
    pub fn with_clones(self, clones: usize) -> Sound {
        let mut machine = Machine::import(&self.device, 5, false).unwrap();
        machine.mount().unwrap();
        let fs = machine.fs().clone();
        for clone in 0..clones {
            let to = fs.create(fs.root(), format!("clone {clone}").as_bytes(), 0o644, &USER).unwrap().ino;
            let done = fs.clone_range(self.first, 0, to, 0, FILE_BYTES as u64).unwrap();
            assert_eq!(done.shared_bytes, FILE_BYTES as u64);
        }
        fs.sync().unwrap();
        fs.forget_all();
        drop(fs);
        Sound { device: machine.export().unwrap(), ..self }
    }

    /// Changes a block of the table of shared blocks, which has one indirect block.
    pub fn after_table(self, block: usize, edit: impl FnMut(&mut Vec<u8>) + Send + 'static) -> Report {
        let (table, mut edit) = (self.import().objects.shared().object().unwrap().0, edit);
        self.after(move |group, root| {
            rewrite(group, root, header_of(0), &mut |group, header| {
                let mut grown = 0;
                edit_dnode(group, header, (0, table), &mut |group, dnode| {
                    patch(group, dnode, ROOT_AT, &mut |group, tree| {
                        let owner = Owner::Block { objset: 0, object: table, level: 1, block: 0 };
                        let new = rewrite(group, tree, owner, &mut |group, pointers| {
                            patch(group, pointers, block * BlockPtr::SIZE, &mut |group, leaf| {
                                let owner =
                                    Owner::Block { objset: 0, object: table, level: 0, block: block as u64 };
                                let new = rewrite(group, leaf, owner, &mut |_, raw| edit(raw));
                                grown += new.allocated_bytes().cast_signed()
                                    - leaf.allocated_bytes().cast_signed();
                                new
                            });
                        });
                        grown += new.allocated_bytes().cast_signed() - tree.allocated_bytes().cast_signed();
                        new
                    });
                    add(dnode, USED_AT, grown);
                });
                add(header, ACCOUNT_AT, grown);
            })
        })
    }

    /// Changes the dnode of an object of the file system; the slice begins with it.
    pub fn after_dnode(
        self,
        object: u64,
        edit: impl FnMut(&mut TxgSync<'_>, &mut [u8]) + Send + 'static,
    ) -> Report {
        let (set, mut edit) = (self.set, edit);
        self.after_header(move |group, header| edit_dnode(group, header, (set, object), &mut edit))
    }
}

type Act = Box<dyn FnOnce(&mut TxgSync<'_>, &BlockPtr) -> BlockPtr + Send>;

struct State {
    root: BlockPtr,
    act: Option<Act>,
}

struct Forger(Mutex<State>);

impl Client for Forger {
    fn quiesced(&self, _last: &Tx) {}

    fn sync(&self, group: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let mut state = self.0.lock().unwrap();
        if let Some(act) = state.act.take() {
            state.root = act(group, &state.root);
        }
        Ok(state.root.clone())
    }

    fn synced(&self, _txg: Txg) {}
}

/// A block of metadata, to be written.
pub fn metadata(data: Vec<u8>, kind: u8, owner: Owner, fill: u64) -> WriteRequest {
    WriteRequest {
        data: Arc::new(data),
        kind,
        compression: Compression::Lz4.into(),
        checksum: ChecksumKind::Blake3,
        owner,
        fill,
        content_birth: None,
        stream: Stream::Metadata,
        may_embed: false,
        replaces: None,
    }
}

/// Adds to a little-endian number of 64 bits.
pub fn add(raw: &mut [u8], at: usize, more: i64) {
    let word = u64::from_le_bytes(raw[at..at + 8].try_into().unwrap());
    raw[at..at + 8].copy_from_slice(&word.wrapping_add_signed(more).to_le_bytes());
}

/// Replaces the pointer at this offset.
pub fn patch(
    group: &mut TxgSync<'_>,
    raw: &mut [u8],
    at: usize,
    new: &mut dyn FnMut(&mut TxgSync<'_>, &BlockPtr) -> BlockPtr,
) {
    let place = &mut raw[at..at + BlockPtr::SIZE];
    let old = BlockPtr::parse(place, &"a pointer").unwrap();
    place.copy_from_slice(&new(group, &old).encode());
}

/// Writes a changed block, and frees the old one.
fn rewrite(
    group: &mut TxgSync<'_>,
    old: &BlockPtr,
    owner: Owner,
    edit: &mut dyn FnMut(&mut TxgSync<'_>, &mut Vec<u8>),
) -> BlockPtr {
    let mut raw = group.pool().read(old, owner).unwrap().to_vec();
    edit(group, &mut raw);
    let new = group.write(vec![metadata(raw, old.kind(), owner, old.fill())]).unwrap().remove(0);
    group.release(old);
    new
}

fn header_of(objset: u64) -> Owner {
    Owner::Block { objset, object: HEADER, level: 0, block: 0 }
}

/// Changes the header of an object set, which the meta object set names.
fn edit_set(
    group: &mut TxgSync<'_>,
    root: &BlockPtr,
    set: u64,
    edit: &mut dyn FnMut(&mut TxgSync<'_>, &mut Vec<u8>),
) -> BlockPtr {
    rewrite(group, root, header_of(0), &mut |group, meta| {
        edit_dnode(group, meta, (0, set), &mut |group, dnode| {
            patch(group, dnode, BONUS_AT, &mut |group, header| rewrite(group, header, header_of(set), edit));
        });
    })
}

/// Changes a dnode, given the header of its set. The sums in the header stay right.
fn edit_dnode(
    group: &mut TxgSync<'_>,
    header: &mut [u8],
    (set, object): (u64, u64),
    edit: &mut dyn FnMut(&mut TxgSync<'_>, &mut [u8]),
) {
    let mut grown = 0;
    patch(group, header, SLOT_BYTES + ROOT_AT, &mut |group, tree| {
        edit_leaf(group, tree, (set, object), &mut grown, edit)
    });
    add(header, SLOT_BYTES + USED_AT, grown);
    add(header, ACCOUNT_AT, grown);
}

/// Descends the tree of dnodes to that of an object. `grown`: by how much its blocks take more space.
fn edit_leaf(
    group: &mut TxgSync<'_>,
    ptr: &BlockPtr,
    (set, object): (u64, u64),
    grown: &mut i64,
    edit: &mut dyn FnMut(&mut TxgSync<'_>, &mut [u8]),
) -> BlockPtr {
    let (level, block) = (ptr.level(), object / SLOTS_PER_BLOCK);
    let span = POINTERS.pow(level.into());
    let owner = Owner::Block { objset: set, object: 0, level, block: block / span };
    let new = rewrite(group, ptr, owner, &mut |group, raw| {
        if level == 0 {
            let at = (object % SLOTS_PER_BLOCK) as usize * SLOT_BYTES;
            edit(group, &mut raw[at..]);
            return;
        }
        let child = (block / (span / POINTERS) % POINTERS) as usize;
        patch(group, raw, child * BlockPtr::SIZE, &mut |group, below| {
            edit_leaf(group, below, (set, object), grown, edit)
        });
    });
    *grown += new.allocated_bytes().cast_signed() - ptr.allocated_bytes().cast_signed();
    new
}
