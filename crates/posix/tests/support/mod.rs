//! A pool in memory, mounted, unmounted and crashed.
#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;
use terrane_dataset::Dataset;
use terrane_object::{Objects, Pool};
use terrane_pool::SeededEnv;
use terrane_posix::{Attr, Cred, Errno, Fs, Ino, SetAttr, WriteFlags};

pub const ROOT_CRED: Cred = Cred { uid: 0, gid: 0 };
pub const USER: Cred = Cred { uid: 1000, gid: 100 };

pub struct Machine {
    pool: Arc<Pool>,
    objects: Option<Arc<Objects>>,
    fs: Option<Arc<Fs>>,
}

impl Machine {
    pub fn new(seed: u64, props: &[(&str, &str)]) -> Machine {
        let pool = Pool::fake(Arc::new(SeededEnv::new(seed)));
        let objects = Objects::create(Arc::clone(&pool)).unwrap();
        let dataset = Dataset::create_root(&objects, props).unwrap();
        Fs::format(&dataset, &ROOT_CRED).unwrap();
        let fs = Fs::open(Arc::new(dataset)).unwrap();
        Machine { pool, objects: Some(objects), fs: Some(fs) }
    }

    pub fn fs(&self) -> &Arc<Fs> {
        self.fs.as_ref().unwrap()
    }

    pub fn objects(&self) -> &Arc<Objects> {
        self.objects.as_ref().unwrap()
    }

    /// Unmounts and mounts again.
    pub fn remount(&mut self) {
        self.fs().forget_all();
        self.fs().sync().unwrap();
        self.crash();
    }

    /// What was not committed is gone.
    pub fn crash(&mut self) {
        self.fs = None;
        self.objects = None;
        let objects = Objects::open(Arc::clone(&self.pool)).unwrap();
        self.fs = Some(Fs::open(Arc::new(Dataset::open_root(&objects).unwrap())).unwrap());
        self.objects = Some(objects);
    }
}

/// The numbers of one seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Short forms for what most tests do.
pub trait Short {
    fn ino(&self, dir: Ino, name: &str) -> Result<Ino, Errno>;
    fn file(&self, dir: Ino, name: &str) -> Attr;
    fn dir(&self, dir: Ino, name: &str) -> Attr;
    fn put(&self, ino: Ino, offset: u64, data: &[u8]);
    fn bytes(&self, ino: Ino) -> Vec<u8>;
    fn names(&self, dir: Ino) -> Vec<String>;
    fn size(&self, ino: Ino, size: u64) -> Result<Attr, Errno>;
}

impl Short for Fs {
    /// Leaves no lookup behind.
    fn ino(&self, dir: Ino, name: &str) -> Result<Ino, Errno> {
        let attr = self.lookup(dir, name.as_bytes())?;
        self.forget(attr.ino, 1);
        Ok(attr.ino)
    }

    fn file(&self, dir: Ino, name: &str) -> Attr {
        self.create(dir, name.as_bytes(), 0o644, &USER).unwrap()
    }

    fn dir(&self, dir: Ino, name: &str) -> Attr {
        self.mkdir(dir, name.as_bytes(), 0o755, &USER).unwrap()
    }

    fn put(&self, ino: Ino, offset: u64, data: &[u8]) {
        assert_eq!(self.write(ino, offset, data, WriteFlags::default()).unwrap() as usize, data.len());
    }

    fn bytes(&self, ino: Ino) -> Vec<u8> {
        let mut out = Vec::new();
        self.read(ino, 0, u32::try_from(self.getattr(ino).unwrap().size).unwrap(), &mut out).unwrap();
        out
    }

    /// Sorted, without "." and "..".
    fn names(&self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.readdir(dir, 0, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })
        .unwrap();
        assert_eq!(names[..2], [".", ".."]);
        names.drain(..2);
        names.sort();
        names
    }

    fn size(&self, ino: Ino, size: u64) -> Result<Attr, Errno> {
        self.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }, &USER)
    }
}
