//! Nodes and directories.
//!
//! Nodes are found by number in sharded maps. A node lives while it has a name or the kernel knows its
//! number.

use crate::xattr::Xattrs;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use terrane_posix::{Attr, Time, mode};

/// A multiply-and-rotate hash: a benchmark's hash tables need no protection against attacks.
#[derive(Default)]
pub struct FastHasher(u64);

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        // Hash tables take the low bits for a bucket and the high ones for a tag.
        self.0 ^ (self.0 >> 32)
    }
}

pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

pub struct Node {
    pub attr: Mutex<Attr>,
    pub body: Body,
    pub xattrs: RwLock<Xattrs>,
    /// The kernel's lookup count.
    lookups: AtomicU64,
}

pub enum Body {
    Dir(RwLock<Dir>),
    File(RwLock<Vec<u8>>),
    Link(Box<[u8]>),
    Special,
}

impl Node {
    pub fn attr(&self) -> Attr {
        *self.attr.lock()
    }

    pub fn add_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes attributes, and the change time.
    pub fn change<R>(&self, how: impl FnOnce(&mut Attr, Time) -> R) -> R {
        let now = now();
        let mut attr = self.attr.lock();
        attr.ctime = now;
        how(&mut attr, now)
    }
}

pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() }
}

/// One name.
#[derive(Clone)]
pub struct NamedEntry {
    pub name: Box<[u8]>,
    pub ino: u64,
    /// `DT_*`
    pub kind: u8,
}

/// Names, each in a slot whose number is its readdir offset.
#[derive(Default)]
pub struct Dir {
    slots: Vec<Option<NamedEntry>>,
    free: Vec<usize>,
    by_name: Map<Box<[u8]>, usize>,
    pub parent: u64,
}

impl Dir {
    pub fn new(parent: u64) -> Self {
        Dir { parent, ..Dir::default() }
    }

    pub fn get(&self, name: &[u8]) -> Option<&NamedEntry> {
        self.slots.get(*self.by_name.get(name)?)?.as_ref()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn insert(&mut self, named: NamedEntry) {
        let name = named.name.clone();
        let slot = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(place) => *place = Some(named),
            None => self.slots.push(Some(named)),
        }
        self.by_name.insert(name, slot);
    }

    pub fn take(&mut self, name: &[u8]) -> Option<NamedEntry> {
        let slot = self.by_name.remove(name)?;
        let taken = self.slots.get_mut(slot)?.take();
        self.free.push(slot);
        if self.by_name.is_empty() {
            // No offset is left that could move.
            self.slots.clear();
            self.free.clear();
        }
        taken
    }

    /// Names from this slot on, each with the slot to continue from.
    pub fn list(&self, from: usize) -> impl Iterator<Item = (usize, &NamedEntry)> {
        let slots = self.slots.iter().enumerate().skip(from);
        slots.filter_map(|(at, slot)| Some((at + 1, slot.as_ref()?)))
    }
}

const SHARDS: usize = 64;

/// Nodes by number.
pub struct Nodes {
    shards: Vec<Mutex<Map<u64, Arc<Node>>>>,
    next: AtomicU64,
}

impl Nodes {
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let nodes = Nodes { shards, next: AtomicU64::new(1) };
        nodes.add(mode::S_IFDIR | 0o755, (0, 0), Body::Dir(RwLock::new(Dir::new(1))));
        nodes
    }

    fn shard(&self, ino: u64) -> &Mutex<Map<u64, Arc<Node>>> {
        &self.shards[ino as usize % SHARDS]
    }

    pub fn get(&self, ino: u64) -> Option<Arc<Node>> {
        self.shard(ino).lock().get(&ino).cloned()
    }

    pub fn add(&self, mode: u32, (uid, gid): (u32, u32), body: Body) -> Arc<Node> {
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let time = now();
        let dir = mode & mode::S_IFMT == mode::S_IFDIR;
        let (nlink, size) = match &body {
            Body::Link(target) => (1, target.len() as u64),
            _ if dir => (2, 2),
            _ => (1, 0),
        };
        let attr = Attr {
            ino,
            generation: 1,
            mode,
            nlink,
            uid,
            gid,
            rdev: 0,
            size,
            blocks: 0,
            blocks_known: true,
            blksize: 131_072,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let (xattrs, lookups) = (RwLock::default(), AtomicU64::new(0));
        let node = Arc::new(Node { attr: Mutex::new(attr), body, xattrs, lookups });
        self.shard(ino).lock().insert(ino, Arc::clone(&node));
        node
    }

    /// Reduces the kernel's lookup count.
    pub fn forget(&self, ino: u64, count: u64) {
        let Some(node) = self.get(ino) else { return };
        let left = node.lookups.fetch_sub(count, Ordering::Relaxed).saturating_sub(count);
        if left == 0 && node.attr.lock().nlink == 0 {
            self.shard(ino).lock().remove(&ino);
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
