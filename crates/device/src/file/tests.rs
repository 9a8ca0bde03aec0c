use super::*;
use crate::backing::probe;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicU32;

const MIB: u64 = 1 << 20;
const ZONE: u64 = MIB;

/// A directory of its own for each test, removed at the end.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("terrane-device-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn found(error: DeviceError) -> String {
    match error {
        DeviceError::Refused { found, .. } => found,
        other => panic!("should have been refused, found {other}"),
    }
}

#[test]
fn what_is_written_comes_back_after_opening_again() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    let device = FileDevice::create(&path, 8 * ZONE + 5000, ZONE).unwrap();
    assert_eq!(device.info().zone_count, 8);
    assert_eq!(device.report(ZoneIdx(3)).unwrap().state, ZoneState::Empty);
    let data = vec![7u8; 64 << 10];
    device.write(ZoneIdx(3), 0, &data).unwrap();
    assert!(matches!(device.write(ZoneIdx(3), 0, &data), Err(DeviceError::Rule { .. })));
    device.write(ZoneIdx(3), 64 << 10, &data).unwrap();
    device.flush().unwrap();
    drop(device);

    let device = FileDevice::open(&path, OpenMode::ReadWrite, ZONE).unwrap();
    assert!(!device.info().hardware_pointers);
    assert_eq!(device.report(ZoneIdx(3)).unwrap().state, ZoneState::Unknown);
    assert!(matches!(device.write(ZoneIdx(3), 128 << 10, &data), Err(DeviceError::Rule { .. })));
    assert_eq!(device.resume(ZoneIdx(3), 128 << 10).unwrap(), 128 << 10);
    let mut back = vec![0; 128 << 10];
    device.read(ZoneIdx(3), 0, &mut back).unwrap();
    assert_eq!(back, vec![7; 128 << 10]);
    device.write(ZoneIdx(3), 128 << 10, &data).unwrap();
    device.finish(ZoneIdx(3)).unwrap();
    assert_eq!(device.report(ZoneIdx(3)).unwrap().pointer, ZONE);
    assert!(device.read(ZoneIdx(3), ZONE - 1, &mut [0; 2]).is_err());
}

#[test]
fn a_reset_gives_the_space_back() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    let device = FileDevice::create(&path, 4 * ZONE, ZONE).unwrap();
    device.write(ZoneIdx(1), 0, &vec![1; MIB as usize]).unwrap();
    device.write(ZoneIdx(2), 0, &vec![2; MIB as usize]).unwrap();
    device.flush().unwrap();
    let full = fs::metadata(&path).unwrap().blocks();
    device.reset(ZoneIdx(1)).unwrap();
    device.flush().unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < full * 512 - MIB / 2);
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 * ZONE);
    let mut byte = [9];
    device.read(ZoneIdx(1), 5, &mut byte).unwrap();
    assert_eq!(byte, [0]);
    device.read(ZoneIdx(2), 5, &mut byte).unwrap();
    assert_eq!(byte, [2]);
    device.write(ZoneIdx(1), 0, &[3; 4096]).unwrap();
}

#[test]
fn create_refuses_an_existing_path_and_leaves_it_alone() {
    let dir = TempDir::new();
    let path = dir.path("precious");
    fs::write(&path, "precious").unwrap();
    found(FileDevice::create(&path, 8 * ZONE, ZONE).unwrap_err());
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    for (size, zone) in [(8 * ZONE, 0), (8 * ZONE, 5000), (100, ZONE), (u64::MAX, 4096)] {
        found(FileDevice::create(dir.path("none"), size, zone).unwrap_err());
    }
    assert!(matches!(FileDevice::create(dir.path("none"), u64::MAX, 1 << 40), Err(DeviceError::Io { .. })));
    assert!(!dir.path("none").exists());
}

#[test]
fn a_second_opener_is_refused_with_who_holds_it() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    let first = FileDevice::create(&path, 4 * ZONE, ZONE).unwrap();
    for mode in [OpenMode::ReadOnly, OpenMode::ReadWrite] {
        let who = found(Backing::open(&path, mode).unwrap_err());
        assert!(who.contains(&std::process::id().to_string()), "{who}");
    }
    drop(first);
    let reader = Backing::open(&path, OpenMode::ReadOnly).unwrap();
    let another = Backing::open(&path, OpenMode::ReadOnly).unwrap();
    found(Backing::open(&path, OpenMode::ReadWrite).unwrap_err());
    drop((reader, another));
    Backing::open(&path, OpenMode::ReadWrite).unwrap();
}

/// `flock(1)` holds the lock in another process.
#[test]
fn a_holder_in_another_process_is_named_by_command() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    drop(FileDevice::create(&path, 4 * ZONE, ZONE).unwrap());
    let Ok(mut child) =
        Command::new("flock").arg("-x").arg("--no-fork").arg(&path).arg("sleep").arg("30").spawn()
    else {
        return; // No such tool here; the test above covers the lock, `holders` covers the text.
    };
    let mut who = None;
    for _ in 0..200 {
        match Backing::open(&path, OpenMode::ReadWrite) {
            Err(error) => {
                who = Some(found(error));
                break;
            }
            Ok(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    }
    let pid = child.id();
    let _ = child.kill();
    let _ = child.wait();
    let who = who.unwrap();
    assert!(who.contains(&pid.to_string()) && (who.contains("sleep") || who.contains("flock")), "{who}");
}

#[test]
fn what_cannot_be_a_device_is_refused_by_name() {
    let dir = TempDir::new();
    assert_eq!(found(Backing::open(dir.path(""), OpenMode::ReadOnly).unwrap_err()), "a directory");
    assert_eq!(
        found(Backing::open("/dev/null", OpenMode::ReadWrite).unwrap_err()),
        "a character device, pipe or socket"
    );
    assert!(matches!(Backing::open(dir.path("none"), OpenMode::ReadOnly), Err(DeviceError::Io { .. })));
    assert_eq!(probe(dir.path("")).unwrap().kind, PathKind::Directory);
    assert_eq!(probe("/dev/null").unwrap().kind, PathKind::Other);
    fs::write(dir.path("f"), [0; 5]).unwrap();
    let probed = probe(dir.path("f")).unwrap();
    assert_eq!((probed.kind, probed.size, probed.host_managed), (PathKind::Regular, 5, false));
    let text = probe(dir.path("none")).unwrap_err().to_string();
    assert!(text.contains("none"), "{text}");
}

#[test]
fn a_file_cut_short_gives_a_named_error_and_no_panic() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    let device = FileDevice::create(&path, 4 * ZONE, ZONE).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(3 * ZONE + 100).unwrap();
    let error = device.read(ZoneIdx(3), 0, &mut [0; 4096]).unwrap_err().to_string();
    assert!(error.contains(&(3 * ZONE + 100).to_string()) && error.contains("zone 3"), "{error}");
    device.read(ZoneIdx(2), 0, &mut [0; 4096]).unwrap();
}

#[test]
fn a_device_opened_for_reading_is_not_written() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    drop(FileDevice::create(&path, 4 * ZONE, ZONE).unwrap());
    let device = FileDevice::open(&path, OpenMode::ReadOnly, ZONE).unwrap();
    assert_eq!(device.resume(ZoneIdx(0), 4096).unwrap(), 4096);
    assert!(matches!(device.write(ZoneIdx(0), 4096, &[0; 4096]), Err(DeviceError::Rule { .. })));
    assert!(matches!(device.reset(ZoneIdx(0)), Err(DeviceError::Rule { .. })));
    assert!(matches!(device.finish(ZoneIdx(0)), Err(DeviceError::Rule { .. })));
}

/// A medium that takes few bytes at a time, is interrupted, and fails in the end.
struct SlowMedium {
    taken: std::cell::RefCell<Vec<u8>>,
    calls: std::cell::Cell<u32>,
    capacity: usize,
    full: Option<i32>,
}

impl FileExt for SlowMedium {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get().is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut taken = self.taken.borrow_mut();
        assert_eq!(offset, 100 + taken.len() as u64);
        let n = data.len().min(1000).min(self.capacity - taken.len());
        if n == 0
            && let Some(errno) = self.full
        {
            return Err(io::Error::from_raw_os_error(errno));
        }
        taken.extend_from_slice(&data[..n]);
        Ok(n)
    }
}

#[test]
fn short_writes_are_continued_and_zero_bytes_is_an_error() {
    let data: Vec<u8> = (0..5500u32).map(|n| n as u8).collect();
    let medium = |room, full| SlowMedium {
        taken: Default::default(),
        calls: Default::default(),
        capacity: room,
        full,
    };
    let whole = medium(10_000, None);
    let (taken, result) = write_all_at(&whole, &data, 100);
    assert_eq!((taken, result.is_ok()), (5500, true));
    assert_eq!(*whole.taken.borrow(), data);
    let (taken, result) = write_all_at(&medium(2500, None), &data, 100);
    assert_eq!((taken, result.unwrap_err().kind()), (2500, io::ErrorKind::WriteZero));
    let (taken, result) = write_all_at(&medium(2500, Some(libc::ENOSPC)), &data, 100);
    assert_eq!((taken, result.unwrap_err().raw_os_error()), (2500, Some(libc::ENOSPC)));
}

#[test]
fn a_device_that_keeps_its_space_is_not_punched() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    fs::write(&path, vec![9u8; 4 * MIB as usize]).unwrap();
    let taken = || fs::metadata(&path).unwrap().blocks();
    let before = taken();
    let device = FileDevice::open(&path, OpenMode::ReadWrite, ZONE).unwrap();
    device.keep_space();
    device.reset(ZoneIdx(1)).unwrap();
    device.flush().unwrap();
    assert_eq!((taken(), device.report(ZoneIdx(1)).unwrap().pointer), (before, 0));
    let mut old = [0; 4096];
    device.read(ZoneIdx(1), 0, &mut old).unwrap();
    assert_eq!(old, [9; 4096]);
}

#[test]
fn direct_and_cached_requests_see_the_same_bytes() {
    let dir = TempDir::new();
    let path = dir.path("pool");
    fs::write(&path, vec![9u8; 16 * MIB as usize]).unwrap();
    let device = FileDevice::open(&path, OpenMode::ReadWrite, ZONE).unwrap();
    device.keep_space();
    if device.direct.get().is_none() {
        eprintln!("*** SKIPPED in part: no direct I/O on {} ***", dir.path("").display());
    }
    (0..16).for_each(|zone| device.reset(ZoneIdx(zone)).unwrap());
    let bytes = |seed: u8, len: usize| (0..len).map(|at| seed ^ (at / 7) as u8).collect::<Vec<u8>>();
    // Aligned memory, unaligned memory, and a write of one unit.
    let pieces = [(0u64, 65536usize, true), (65536, 8192, false), (73728, 4096, true)];
    for (zone, (offset, len, aligned)) in (0..16).flat_map(|zone| pieces.map(|piece| (zone, piece))) {
        let data = bytes(zone as u8, len);
        let written = match aligned {
            true => device.write(ZoneIdx(zone), offset, &AlignedBuf::from(&data[..])),
            // A vector may begin on a page by chance; one byte further it does not.
            false => device.write(ZoneIdx(zone), offset, &[&[0], &data[..]].concat()[1..]),
        };
        written.unwrap();
    }
    device.flush().unwrap();
    // First in an order without sequential reads, then in sequential order.
    for zone in (0..16).map(|at| at * 7 % 16).chain(0..16) {
        for (offset, len, _) in pieces {
            let mut aligned = AlignedBuf::new();
            aligned.prepare(len);
            device.read(ZoneIdx(zone), offset, &mut aligned).unwrap();
            let mut plain = vec![0; len];
            device.read(ZoneIdx(zone), offset, &mut plain).unwrap();
            assert!(aligned[..] == bytes(zone as u8, len)[..] && plain == aligned[..], "zone {zone}");
        }
    }
    assert_eq!(fs::read(&path).unwrap()[ZONE as usize..][..4096], bytes(1, 65536)[..4096]);
}

#[test]
fn sequential_reads_are_recognised() {
    let recent = RecentReads::default();
    let far = |n: u64| n * (64 << 20);
    assert!(!recent.note_read(far(1), 4096) && !recent.note_read(far(5), 4096));
    // Two streams side by side, one of them with a gap and one overtaken by its own second reader.
    assert!(recent.note_read(far(1) + 4096, 4096) && recent.note_read(far(5) + 100_000, 4096));
    assert!(recent.note_read(far(1) + 300_000, 4096) && recent.note_read(far(1) + 20_000, 4096));
    assert!((10..30).all(|n| !recent.note_read(far(n), 4096)));
    assert!(!recent.note_read(far(1) + 24_096, 4096), "forgotten by now");
}

/// Another file may replace the inspected one before it is opened.
#[test]
fn opening_a_pipe_does_not_block() {
    let dir = TempDir::new();
    let (path, pipe) = (dir.path("image"), dir.path("pipe"));
    drop(FileDevice::create(&path, 4 * MIB, ZONE).unwrap());
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Two paths are exchanged while they are inspected, until the moment in between is met.
    let (ends, place, other) = (std::sync::Arc::new(AtomicU32::new(0)), path.clone(), dir.path("other"));
    let changing = std::thread::spawn({
        let ends = ends.clone();
        move || {
            while ends.load(Ordering::Relaxed) == 0 {
                for name in [&place, &pipe] {
                    fs::rename(name, &other).unwrap();
                    let _ = fs::hard_link(&other, dir.path("look"));
                    let _ = fs::remove_file(dir.path("look"));
                    fs::rename(&other, name).unwrap();
                }
            }
            dir
        }
    });
    let look = path.with_file_name("look");
    for _ in 0..3000 {
        let _ = Backing::open(&look, OpenMode::ReadOnly);
        let _ = probe(&look);
        let _ = crate::UnlockedReader::open(&look);
    }
    ends.store(1, Ordering::Relaxed);
    let dir = changing.join().unwrap();
    let error = crate::UnlockedReader::open(dir.path("pipe")).unwrap_err();
    assert!(error.to_string().contains("a regular file or a block device"), "{error}");
}
