//! Pools that an older version made are imported, checked, read, written and imported again.
//!
//! The images were made by the code of commit f7492b2, with all features it knew:
//! * `one`: a file of 96 MiB;
//! * `three`: two devices and one for metadata;
//! * `drive`: a simulated zoned drive with uneven zones that lost power.
//!
//! `one` and `three` hold files of all codecs, checksums and record sizes, directories of all forms, and
//! extended attributes of all homes. They also hold holes, links, special files, and blocks that GC has
//! moved. `drive` holds what a random workload made; GC had moved nothing there. Beside each image are the
//! lines that [`manifest`] gave for it there. Images and lines are zstd frames.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use terrane_dataset::Dataset;
use terrane_device::sim::Survival;
use terrane_device::{Backing, Device, OpenMode, SimDevice};
use terrane_format::Feature;
use terrane_object::ObjectSets;
use terrane_pool::{ImportOptions, Pool};
use terrane_posix::{Attr, Cred, Fs, Ino, WriteFlags};
use terrane_store::env::SystemEnv;
use terrane_wire::ObjectId;

const ROOT: Cred = Cred { uid: 0, gid: 0, umask: 0 };
const ZONE_BYTES: u64 = 1 << 20;
/// Of a larger file this much counts for its line.
const READ_BYTES_MAX: u64 = 8 << 20;

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.zst"));
    let frame = std::fs::read(&path).unwrap();
    let bytes = zstd_safe::get_frame_content_size(&frame).unwrap().expect("a frame that says its size");
    let mut out = vec![0; usize::try_from(bytes).unwrap()];
    zstd_safe::decompress(&mut out[..], &frame).unwrap();
    out
}

/// Writes an image as a sparse file.
fn restore(dir: &TempDir, name: &str) -> PathBuf {
    let (path, image) = (dir.path().join(name), golden(name));
    let mut file = std::fs::File::create(&path).unwrap();
    file.set_len(image.len() as u64).unwrap();
    for (number, piece) in image.chunks(64 << 10).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            file.seek(SeekFrom::Start(number as u64 * (64 << 10))).unwrap();
            file.write_all(piece).unwrap();
        }
    }
    path
}

struct Mounted {
    pool: Arc<Pool>,
    objects: Arc<ObjectSets>,
    fs: Arc<Fs>,
}

impl Mounted {
    fn new(devices: Vec<Arc<dyn Device>>) -> Mounted {
        let options = ImportOptions { cache_bytes: 16 << 20, ..ImportOptions::default() };
        let pool = Pool::import(devices, Arc::new(SystemEnv::new()), &options).unwrap();
        let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
        let fs = Fs::open(Arc::new(Dataset::open_root(&objects).unwrap())).unwrap();
        Mounted { pool, objects, fs }
    }

    fn assert_sound(&self) {
        self.fs.forget_all();
        self.fs.sync().unwrap();
        let report = terrane_check::check(&self.objects, &mut |_| {});
        assert!(report.is_clean(), "{report}");
    }

    fn export(self) {
        self.fs.forget_all();
        self.pool.export().unwrap();
    }
}

/// A failed test leaves no threads.
impl Drop for Mounted {
    fn drop(&mut self) {
        self.pool.abandon();
    }
}

/// What every image must survive, as it is or `upgraded` to all features of this version. `open` returns its
/// devices, each time it is called.
fn check_image(name: &str, upgraded: bool, open: &dyn Fn() -> Vec<Arc<dyn Device>>) {
    let lines = String::from_utf8(golden(&format!("{name}.txt"))).unwrap();
    let expected: Vec<&str> = lines.lines().collect();
    let old = Mounted::new(open());
    assert_same(&manifest(&old.fs), &expected);
    // Otherwise no old relocation index is read.
    assert_eq!(old.pool.status().runs > 0, name != "drive", "blocks that collection had moved in {name}");
    old.assert_sound();
    let features = old.pool.label().features;
    old.export();

    let written = Mounted::new(open());
    let fs = &written.fs;
    if upgraded {
        let new = written.pool.enable(&Feature::defaults()).unwrap();
        let all = [
            Feature::Rows,
            Feature::Births,
            Feature::Datasets,
            Feature::EntryWords,
            Feature::Snapshots,
            Feature::Owners,
            Feature::Shared,
            Feature::Log,
        ];
        assert_eq!(new, all);
    }
    let added = fs.mkdir(fs.root(), b"added", 0o755, &ROOT).unwrap().ino;
    let content: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
    for number in 0..300 {
        let ino = fs.create(added, format!("file {number}").as_bytes(), 0o644, &ROOT).unwrap().ino;
        let bytes = if number < 20 { content.len() } else { number };
        fs.write(ino, 0, &content[..bytes], WriteFlags::default()).unwrap();
    }
    written.assert_sound();
    (0..300).step_by(2).for_each(|number| fs.unlink(added, format!("file {number}").as_bytes()).unwrap());
    let late = fs.create(fs.root(), b"of the new version", 0o600, &ROOT).unwrap().ino;
    fs.write(late, 1 << 20, &content, WriteFlags::default()).unwrap();
    written.pool.gc_request(1).unwrap();
    (0..4).for_each(|_| fs.sync().unwrap());
    written.assert_sound();
    written.export();

    let last = Mounted::new(open());
    assert_eq!(last.pool.label().features == features, !upgraded, "features of {name}");
    let identity = || {
        let set = last.fs.dataset().object_set().id().0;
        last.objects.identity(ObjectId(set)).unwrap()
    };
    assert_eq!(identity().is_some(), upgraded, "a data set has an identity in {name}");
    let fs = &last.fs;
    let added = fs.lookup(fs.root(), b"added").unwrap().ino;
    let ino = fs.lookup(added, b"file 1").unwrap().ino;
    let mut read = Vec::new();
    fs.read(ino, 0, 1 << 20, &mut read).unwrap();
    assert!(read == content, "a file of the new version differs");
    let is_old = |line: &String| {
        !(line.starts_with(' ') || line.starts_with("/added") || line.starts_with("/of the new version"))
    };
    let kept: Vec<String> = manifest(fs).into_iter().filter(is_old).collect();
    let expected: Vec<&str> = expected.into_iter().filter(|line| !line.starts_with(' ')).collect();
    assert_same(&kept, &expected);
    last.assert_sound();
    let (before, who) = (last.pool.status().live_bytes, identity());
    last.export();

    // Each section of the tables and each pointer is now in one form or the other, and means the same.
    let again = Mounted::new(open());
    assert!(again.pool.status().live_bytes.abs_diff(before) < 1 << 20);
    let set = again.fs.dataset().object_set().id().0;
    assert_eq!(again.objects.identity(ObjectId(set)).unwrap(), who, "who a data set is stays");
    again.assert_sound();
    again.export();
}

fn assert_same(found: &[String], expected: &[&str]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len(), "names");
}

fn files(names: &[&str]) {
    [false, true].into_iter().for_each(|upgraded| check_file_image(names, upgraded));
}

fn check_file_image(names: &[&str], upgraded: bool) {
    let dir = TempDir::new().unwrap();
    let paths: Vec<PathBuf> = names.iter().map(|name| restore(&dir, &format!("{name}.img"))).collect();
    let open = || {
        let one = |path: &PathBuf| {
            Backing::open(path, OpenMode::ReadWrite).unwrap().into_device(ZONE_BYTES).unwrap()
        };
        paths.iter().map(one).collect()
    };
    check_image(names[0].split('-').next().unwrap(), upgraded, &open);
}

#[test]
fn a_pool_in_a_file() {
    files(&["one"]);
}

#[test]
fn a_pool_of_several_devices() {
    files(&["three-a", "three-b", "three-s"]);
}

#[test]
fn a_pool_on_a_zoned_drive_that_lost_power() {
    for upgraded in [false, true] {
        let device = SimDevice::load(&golden("drive.drive")).unwrap();
        check_image("drive", upgraded, &|| vec![Arc::new(device.clone()) as Arc<dyn Device>]);
    }
}

/// The power fails in the middle of each write of an upgrade: of its labels, of the data set's identity, and of the first txgs in the new
/// form. What an import finds is whole, and holds what the old pool held.
#[test]
fn an_upgrade_is_cut_at_every_write() {
    let lines = String::from_utf8(golden("drive.txt")).unwrap();
    let expected: Vec<&str> = lines.lines().collect();
    let device = SimDevice::load(&golden("drive.drive")).unwrap();
    let open = |device: &SimDevice| Mounted::new(vec![Arc::new(device.clone()) as Arc<dyn Device>]);
    open(&device).export();
    device.record_power_cuts();
    let old = open(&device);
    old.pool.enable(&Feature::defaults()).unwrap();
    old.export();
    let new = open(&device);
    let name = b"of the new version";
    let ino = new.fs.create(new.fs.root(), name, 0o600, &ROOT).unwrap().ino;
    new.fs.write(ino, 0, &[7; 100_000], WriteFlags::default()).unwrap();
    new.fs.sync().unwrap();
    new.export();
    let cut_copies = device.take_cut_copies();
    assert!(cut_copies.len() > 40, "{} writes, resets and flushes", cut_copies.len());
    let (mut identified, mut plain) = (0, 0);
    for (number, cut_copy) in cut_copies.iter().enumerate() {
        for kept in [Survival::Nothing, Survival::Everything, Survival::Seeded(number as u64)] {
            let left = cut_copy.restarted(kept);
            let found = open(&left);
            found.assert_sound();
            let set = found.fs.dataset().object_set().id().0;
            let has_identity = found.objects.identity(ObjectId(set)).unwrap().is_some();
            assert_eq!(has_identity, found.pool.has(Feature::Datasets), "write {number}");
            if has_identity {
                identified += 1
            } else {
                plain += 1
            }
            if number % 8 == 0 {
                let is_old =
                    |line: &String| !(line.starts_with(' ') || line.starts_with("/of the new version"));
                let kept: Vec<String> = manifest(&found.fs).into_iter().filter(is_old).collect();
                let expected: Vec<&str> =
                    expected.iter().copied().filter(|line| !line.starts_with(' ')).collect();
                assert_same(&kept, &expected);
            }
        }
    }
    assert!(identified > 0 && plain > 0, "{identified} after the upgrade, {plain} before it");
}

/// One line for each name: path, mode, owner, links, size, modification time, checksum of the content,
/// extended attributes.
fn manifest(fs: &Fs) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = vec![(String::new(), fs.root())];
    while let Some((path, ino)) = open.pop() {
        lines.push(line(fs, &path, ino));
        if fs.getattr(ino).unwrap().mode & 0o170000 != 0o040000 {
            continue;
        }
        fs.readdir(ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                open.push((format!("{path}/{}", String::from_utf8_lossy(entry.name)), entry.ino));
            }
            true
        })
        .unwrap();
    }
    lines.sort();
    lines
}

fn line(fs: &Fs, path: &str, ino: Ino) -> String {
    let attr = fs.getattr(ino).unwrap();
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        // FNV-1a (Fowler, Noll, Vo).
        bytes.iter().for_each(|byte| sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    };
    match attr.mode & 0o170000 {
        0o100000 => {
            let mut content = Vec::new();
            fs.read(ino, 0, attr.size.min(READ_BYTES_MAX) as u32, &mut content).unwrap();
            add(&content);
        }
        0o120000 => add(&fs.readlink(ino).unwrap()),
        _ => {}
    }
    let mut names = Vec::new();
    fs.listxattr(ino, &|| true, &mut names).unwrap();
    let mut names: Vec<&[u8]> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort();
    for name in names {
        let mut value = Vec::new();
        fs.getxattr(ino, name, &mut value).unwrap();
        add(name);
        add(&value);
    }
    let Attr { mode, uid, gid, nlink, rdev, size, mtime, .. } = attr;
    format!("{path} {mode:o} {uid} {gid} {nlink} {rdev} {size} {mtime:?} {sum:016x}")
}
