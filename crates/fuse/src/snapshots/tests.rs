//! Snapshots of a pool in memory, without a kernel.

use super::*;
use std::sync::atomic::AtomicUsize;
use terrane_dataset::{Dataset, Datasets};
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{Cred, WriteFlags};
use terrane_store::env::SeededEnv;

/// A file system with snapshots.
pub(crate) struct Snapshotted {
    pub datasets: Arc<Datasets>,
    pub fs: Arc<Fs>,
    pub source: Arc<DatasetSnapshots>,
    _objects: Arc<ObjectSets>,
}

impl Snapshotted {
    pub fn new(props: &[(&str, &str)]) -> Snapshotted {
        let config = SimConfig { zone_count: 64, zone_size: 4 << 20, ..SimConfig::default() };
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(SimDevice::new(config).unwrap())];
        let options = ImportOptions { cache_bytes: 4 << 20, ..ImportOptions::default() };
        let create = CreateOptions::named("test");
        let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(1)), &options).unwrap();
        let objects = ObjectSets::create(pool).unwrap();
        Fs::format(&Dataset::create_root(&objects, props).unwrap(), &Cred::default()).unwrap();
        let datasets = Datasets::open(&objects).unwrap();
        let fs = Fs::open(datasets.open_dataset("").unwrap()).unwrap();
        let source = DatasetSnapshots::new(Arc::clone(&datasets), "");
        Snapshotted { datasets, fs, source, _objects: objects }
    }

    pub fn dir(&self, file: Option<TagFile>) -> Arc<SnapshotDir> {
        let source: Arc<DatasetSnapshots> = Arc::clone(&self.source);
        SnapshotDir::new(source, file).unwrap()
    }

    pub fn take(&self, name: &str) -> SnapshotEntry {
        self.datasets.snapshot(&[("", name)]).unwrap();
        self.source.find(name.as_bytes()).unwrap().unwrap()
    }

    /// Sets the content of a file in the root directory.
    pub fn put(&self, name: &str, content: &[u8]) -> u64 {
        let root = self.fs.root();
        let file = match self.fs.lookup(root, name.as_bytes()) {
            Ok(file) => file.ino,
            Err(_) => self.fs.create(root, name.as_bytes(), 0o644, &Cred::default()).unwrap().ino,
        };
        self.fs.write(file, 0, content, WriteFlags::default()).unwrap();
        file
    }
}

fn content(fs: &Fs, ino: u64) -> Vec<u8> {
    let mut out = Vec::new();
    fs.read(ino, 0, 100, &mut out).unwrap();
    out
}

#[test]
fn a_bounded_number_of_snapshots_is_open() {
    let pool = Snapshotted::new(&[]);
    let file = pool.put("file", b"0");
    for at in 0..9u8 {
        pool.put("file", &[b'0' + at]);
        pool.take(&format!("s{at}"));
    }
    let source: Arc<DatasetSnapshots> = Arc::clone(&pool.source);
    let dir = SnapshotDir::with_open_max(source, None, 2).unwrap();
    let mut tags = Vec::new();
    for at in 0..9u8 {
        let tag = dir.enter(format!("s{at}").as_bytes(), |snapshot| Ok(snapshot.tag)).unwrap();
        tags.push(tag);
        assert!(dir.open_count() <= 2);
    }
    assert_eq!(dir.enter(b"none", |_| Ok(())), Err(Errno::ENOENT));
    assert_eq!((tags.len(), dir.tagged_count()), (9, 9));
    for (at, tag) in (0..).zip(&tags).chain((0..).zip(&tags)) {
        let snapshot = dir.resolve(*tag).unwrap();
        assert_eq!(content(&snapshot.fs, file), [b'0' + at]);
        assert!(dir.open_count() <= 2);
    }
    // The one that is used stays open.
    let used = dir.resolve(tags[3]).unwrap();
    for tag in &tags {
        dir.resolve(*tag).unwrap();
        assert!(Arc::ptr_eq(&dir.resolve(tags[3]).unwrap().fs, &used.fs));
    }
}

#[test]
fn a_renamed_snapshot_keeps_its_tag_and_a_new_one_gets_another() {
    let pool = Snapshotted::new(&[]);
    let file = pool.put("file", b"old");
    pool.take("name");
    let dir = SnapshotDir::with_open_max(Arc::<DatasetSnapshots>::clone(&pool.source), None, 1).unwrap();
    let old = dir.enter(b"name", |snapshot| Ok(snapshot.tag)).unwrap();
    pool.datasets.rename_snapshot("", "name", "other").unwrap();
    pool.put("file", b"new");
    pool.take("name");
    // It is closed meanwhile, so it is looked for again.
    let new = dir.enter(b"name", |snapshot| Ok(snapshot.tag)).unwrap();
    assert_ne!(old, new);
    assert_eq!(content(&dir.resolve(old).unwrap().fs, file), b"old");
    assert_eq!(content(&dir.resolve(new).unwrap().fs, file), b"new");
    assert_eq!(dir.enter(b"other", |snapshot| Ok(snapshot.tag)), Ok(old));
}

#[test]
fn a_successor_knows_the_tags_of_its_predecessor() {
    let pool = Snapshotted::new(&[]);
    let file = pool.put("file", b"content");
    let entry = pool.take("monday");
    pool.take("gone");
    let tag_file = TagFile::new().unwrap();
    let inherited = tag_file.file().try_clone().unwrap();
    let (tag, gone) = {
        let dir = pool.dir(Some(tag_file));
        let tag_of = |name: &[u8]| dir.enter(name, |snapshot| Ok(snapshot.tag)).unwrap();
        (tag_of(b"monday"), tag_of(b"gone"))
    };
    pool.datasets.destroy_snapshots("", &["gone"]).unwrap();
    let other = pool.take("tuesday");
    let dir = pool.dir(Some(TagFile::inherit(inherited).unwrap()));
    let found = dir.resolve(tag).unwrap();
    assert_eq!(content(&found.fs, file), b"content");
    assert_eq!(dir.created(&found.tagged), Some(entry.created));
    assert_eq!(dir.resolve(gone).map(drop), Err(Errno::ESTALE));
    assert_eq!(dir.enter(b"monday", |snapshot| Ok(snapshot.tag)), Ok(tag));
    let new = dir.enter(b"tuesday", |snapshot| Ok((snapshot.tag, snapshot.tagged.guid))).unwrap();
    assert!(new.0 != tag && new.0 != gone && new.1 == other.guid);
    // Without the file it knows none.
    assert_eq!(pool.dir(None).resolve(tag).map(drop), Err(Errno::ESTALE));
}

/// Counts calls.
struct Counting(Arc<DatasetSnapshots>, AtomicUsize);

impl Snapshots for Counting {
    fn list(&self) -> Result<Vec<SnapshotEntry>, Errno> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.list()
    }

    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, Errno> {
        self.0.find(name)
    }

    fn open(&self, guid: u64, name: Option<&str>) -> Result<Arc<Fs>, Errno> {
        self.0.open(guid, name)
    }
}

#[test]
fn no_lookup_lists_all_snapshots() {
    let pool = Snapshotted::new(&[]);
    for at in 0..5 {
        pool.take(&format!("s{at}"));
    }
    let source = Arc::new(Counting(Arc::clone(&pool.source), AtomicUsize::new(0)));
    let dir = SnapshotDir::with_open_max(Arc::<Counting>::clone(&source), None, 1).unwrap();
    for at in [0, 1, 2, 3, 4, 0, 1] {
        let tag = dir.enter(format!("s{at}").as_bytes(), |snapshot| Ok(snapshot.tag)).unwrap();
        let snapshot = dir.resolve(tag).unwrap();
        assert!(dir.created(&snapshot.tagged).is_some());
    }
    assert_eq!(source.1.load(Ordering::Relaxed), 0);
}
