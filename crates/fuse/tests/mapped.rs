//! Files that programs change through shared mappings, or past the kernel's cache. A real mount of a file
//! system on a simulated device, with the helper process that has the kernel write back.
//!
//! Programs that map files are separate processes. A page fault that waits for an answer holds the lock of
//! its process's memory, and the threads that answer need theirs.
//!
//! Where `/dev/fuse` cannot be used the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]
#![expect(unsafe_code, reason = "shared mappings and asynchronous I/O have no safe form")]

mod support;

use memmap2::MmapRaw;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};
use support::Mounted;
use terrane_posix::ReservedBytes;
use terrane_store::errors::LossCause;

const LAUNDERS: &str = "TERRANE_TEST_LAUNDERS";
const PROGRAM: &str = "TERRANE_TEST_PROGRAM";
const DIR: &str = "TERRANE_TEST_DIR";
type Program = fn(&Path);
const PROGRAMS: [(&str, Program); 6] = [
    ("holes", holes),
    ("copier", copier),
    ("asynchronous", asynchronous),
    ("full", full),
    ("kept", kept),
    ("times", times),
];
const MIB: u64 = 1 << 20;
/// The length of a file for which a full pool has no room, in MiB.
const PARTS: u64 = 12;

/// This program, as the helper process of a mount.
fn helper() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "the_helper_process"]).env(LAUNDERS, "");
    command
}

#[test]
fn the_helper_process() {
    // Otherwise the tests run, and no server gives orders.
    if std::env::var_os(LAUNDERS).is_some() {
        terrane_fuse::forget::run().unwrap();
    }
}

/// Runs one of [`PROGRAMS`] on this directory in a process of its own.
fn run(program: &str, dir: &Path) {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "the_program_that_maps", "--nocapture"]).env(PROGRAM, program).env(DIR, dir);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_program_that_maps() {
    let Some(name) = std::env::var_os(PROGRAM) else { return };
    let (_, program) = PROGRAMS.iter().find(|(known, _)| *known == name).unwrap();
    program(Path::new(&std::env::var_os(DIR).unwrap()));
}

fn new_file(path: PathBuf, size: u64) -> File {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.set_len(size).unwrap();
    file
}

/// A shared mapping of a whole file.
struct Mapping(MmapRaw);

impl Mapping {
    fn new(file: &File) -> Mapping {
        Mapping(MmapRaw::map_raw(file).unwrap())
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.0.len());
        // SAFETY: the range lies in the mapping, which stands while `self` does, and the file is as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_mut_ptr().add(offset), bytes.len()) }
    }
}

fn seek(file: &File, whence: SeekFrom) -> Result<u64, Errno> {
    rustix::fs::seek(file, whence)
}

/// The bytes that a copier copies by SEEK_DATA and SEEK_HOLE, and how many.
fn copied_by_holes(file: &File) -> (Vec<u8>, u64) {
    let mut copy = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    let (mut at, mut bytes) = (0, 0);
    while let Ok(data) = seek(file, SeekFrom::Data(at)) {
        let hole = seek(file, SeekFrom::Hole(data)).unwrap();
        let range = usize::try_from(data).unwrap()..usize::try_from(hole).unwrap();
        file.read_exact_at(&mut copy[range], data).unwrap();
        (at, bytes) = (hole, bytes + hole - data);
    }
    (copy, bytes)
}

fn holes(dir: &Path) {
    let file = new_file(dir.join("f"), 4 * MIB);
    let map = Mapping::new(&file);
    // Nothing was stored: one hole.
    assert_eq!(seek(&file, SeekFrom::Data(0)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(5)), Ok(5));
    let mut expected = vec![0; 4 << 20];
    for at in [500_000, 2_000_000, 3_999_999] {
        map.store(at, b"abc");
        expected[at..at + 3].copy_from_slice(b"abc");
        let (copy, bytes) = copied_by_holes(&file);
        assert!(copy == expected, "stored at {at}");
        assert!(bytes <= 3 * (128 << 10), "holes stay holes, {bytes}");
    }
    // Data, then a hole in which something was stored a moment ago, then a hole.
    file.write_all_at(&[7; 300_000], MIB).unwrap();
    expected[1 << 20..(1 << 20) + 300_000].fill(7);
    map.store((1 << 20) + (384 << 10) + 5, b"xyz");
    assert_eq!(seek(&file, SeekFrom::Hole(MIB)), Ok(MIB + (512 << 10)));
    expected[(1 << 20) + (384 << 10) + 5..][..3].copy_from_slice(b"xyz");
    assert!(copied_by_holes(&file).0 == expected);
    // Stores filled the last hole: the data ends at the end of the file, and no hole follows.
    let filled = new_file(dir.join("filled"), MIB);
    filled.write_all_at(&[7; 128 << 10], 0).unwrap();
    // It stays mapped: unmapping writes back.
    let stored = Mapping::new(&filled);
    stored.store(128 << 10, &[8; (1 << 20) - (128 << 10)]);
    assert_eq!(seek(&filled, SeekFrom::Hole(0)), Ok(MIB));
    // A copy that the kernel makes without reading the file itself.
    map.store(100, b"new");
    let copy = new_file(dir.join("copy"), 0);
    let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), &copy, None, 4 << 20).unwrap();
    let mut head = [0; 200];
    copy.read_exact_at(&mut head, 0).unwrap();
    assert!(copied >= 200 && &head[100..103] == b"new");
    // A read past the kernel's cache.
    map.store(50, b"newer");
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(dir.join("f")).unwrap();
    direct.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head[50..55], b"newer");
    // A hole is punched, and the file extended.
    map.store(60, b"newest");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 4096).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 5 * MIB).unwrap();
    file.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head[60..66], b"newest");
}

#[test]
fn what_was_stored_through_a_mapping_is_no_hole() {
    for (name, words) in [("holes", ""), ("holes-direct", "direct_io"), ("holes-uring", "uring")] {
        let Some(mounted) = Mounted::start_small(name, words, Some(helper)) else { return };
        run("holes", &mounted.dir);
        mounted.end();
    }
}

fn copier(dir: &Path) {
    let file = new_file(dir.join(format!("f{}", std::process::id())), 4 * MIB);
    let map = Mapping::new(&file);
    for round in 0..10 {
        let at = round * 31 % 64 * (64 << 10) + 9;
        map.store(at, b"abc");
        assert_eq!(&copied_by_holes(&file).0[at..at + 3], b"abc");
    }
}

#[test]
fn many_copiers_beside_stores_find_all_and_wait_for_no_time_limit() {
    for (name, words) in [("copiers", ""), ("copiers-uring", "uring")] {
        let Some(mounted) = Mounted::start_small(name, words, Some(helper)) else { return };
        let since = Instant::now();
        std::thread::scope(|scope| (0..12).for_each(|_| _ = scope.spawn(|| run("copier", &mounted.dir))));
        assert!(since.elapsed() < Duration::from_secs(9), "{words}: {:?}", since.elapsed());
        mounted.end();
    }
}

/// Writes past the cache while other threads read through it. Counts the writes after which a reader still
/// finds the old bytes.
fn asynchronous(dir: &Path) {
    const BLOCK: usize = 256 << 10;
    let file = new_file(dir.join("f"), 2 * BLOCK as u64);
    file.write_all_at(&[0; 2 * BLOCK], 0).unwrap();
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(dir.join("f")).unwrap();
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel fills in the number of a context of one operation.
    assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) }, 0);
    let (done, stale) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut page = [0; 4096];
                let mut at = 0;
                while !done.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut page, at).unwrap();
                    at = (at + 37 * 4096) % (2 * BLOCK as u64);
                }
            });
        }
        for round in 0..200u64 {
            let (value, at) = ((round % 250 + 1) as u8, round % 2 * BLOCK as u64);
            let memory = vec![value; 2 * BLOCK];
            let bytes = &memory[memory.as_ptr().align_offset(4096)..][..BLOCK];
            // SAFETY: iocb is a plain C structure for which all zeros is a value.
            let mut order: libc::iocb = unsafe { std::mem::zeroed() };
            order.aio_lio_opcode = 1;
            order.aio_fildes = direct.as_raw_fd().cast_unsigned();
            order.aio_buf = bytes.as_ptr().addr() as u64;
            order.aio_nbytes = BLOCK as u64;
            order.aio_offset = at.cast_signed();
            let mut orders = [&raw mut order];
            let mut event = [0u64; 4];
            // SAFETY: one order, whose buffer lives until the event has come; one event of 32 bytes.
            let (given, ended) = unsafe {
                let given = libc::syscall(libc::SYS_io_submit, context, 1, orders.as_mut_ptr());
                (given, libc::syscall(libc::SYS_io_getevents, context, 1, 1, event.as_mut_ptr(), 0))
            };
            assert_eq!((given, ended, event[2]), (1, 1, BLOCK as u64));
            let mut block = vec![0; BLOCK];
            file.read_exact_at(&mut block, at).unwrap();
            stale.fetch_add(u32::from(block != bytes), Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(stale.into_inner(), 0, "writes that a reader did not find");
}

#[test]
fn a_write_past_the_cache_is_found_by_whoever_reads_through_it() {
    let Some(mounted) = Mounted::start_small("asynchronous", "", Some(helper)) else { return };
    run("asynchronous", &mounted.dir);
    mounted.end();
}

fn times(dir: &Path) {
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let path = dir.join("f");
    let file = new_file(path.clone(), MIB);
    let mtime = || fs::metadata(&path).unwrap().modified().unwrap();
    for _ in 0..2 {
        let map = Mapping::new(&file);
        map.store(500_000, b"abc");
        file.set_modified(past).unwrap();
        drop(map);
        file.sync_all().unwrap();
        assert_eq!(mtime(), past, "stored before it was set");
        let map = Mapping::new(&file);
        map.store(500_000, b"xyz");
        file.sync_all().unwrap();
        assert!(mtime() > past, "stored after it was set");
        drop(map);
    }
    let mut stored = [0; 3];
    file.read_exact_at(&mut stored, 500_000).unwrap();
    assert_eq!(&stored, b"xyz");
}

#[test]
fn a_time_that_is_set_after_a_store_stays() {
    for (name, words) in [("times", ""), ("times-least", "threads=3"), ("times-uring", "uring")] {
        let Some(mounted) = Mounted::start_small(name, words, Some(helper)) else { return };
        let since = Instant::now();
        run("times", &mounted.dir);
        assert!(since.elapsed() < Duration::from_secs(9), "{words}: {:?}", since.elapsed());
        mounted.end();
    }
}

/// Stores into a mapping for which the pool has no space, and ends without asking whether it was stored.
fn full(dir: &Path) {
    let file = new_file(dir.join("f"), PARTS * MIB);
    fill_and_store(dir, &file);
}

/// The same, but the space was reserved.
fn kept(dir: &Path) {
    let file = new_file(dir.join("f"), 0);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, PARTS * MIB).unwrap();
    fill_and_store(dir, &file);
}

/// Bytes that do not compress, known by their number.
fn noise(number: u64) -> Vec<u8> {
    let mut seed = number + 1;
    let words = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed ^ seed >> 29
    });
    words.take(MIB as usize / 8).flat_map(u64::to_le_bytes).collect()
}

/// Fills the pool, then stores [`noise`] in all of this file.
fn fill_and_store(dir: &Path, file: &File) {
    let other = new_file(dir.join("fill"), 0);
    let mut at = 0;
    loop {
        match other.write_at(&noise(PARTS + at), at) {
            Ok(bytes) => at += bytes as u64,
            Err(error) => break assert_eq!(error.raw_os_error(), Some(libc::ENOSPC)),
        }
    }
    let map = Mapping::new(file);
    (0..PARTS).for_each(|part| map.store((part * MIB) as usize, &noise(part)));
}

#[test]
fn stores_for_which_there_is_no_room_are_told_and_not_shown() {
    let Some(mounted) = Mounted::start_small("full", "", Some(helper)) else { return };
    run("full", &mounted.dir);
    let file = File::open(mounted.dir.join("f")).unwrap();
    let ino = mounted.fs.lookup(mounted.fs.root(), b"f").unwrap().ino;
    assert_eq!(mounted.fs.lost_files(), [(ino, LossCause::NotWrittenBack)]);
    // Readers see what is stored, once the helper has had time.
    let since = Instant::now();
    loop {
        let mut stored = Vec::new();
        (0..PARTS).for_each(|part| mounted.fs.read(ino, part * MIB, 1 << 20, &mut stored).unwrap());
        let mut shown = vec![0; (PARTS * MIB) as usize];
        file.read_exact_at(&mut shown, 0).unwrap();
        if shown == stored {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "the kernel shows what is not stored");
        std::thread::sleep(Duration::from_millis(50));
    }
    // No program received the error so far.
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    file.sync_all().unwrap();
    assert_eq!(mounted.fs.clear_losses().unwrap().files.len(), 1);
    assert!(mounted.fs.lost_files().is_empty());
    drop(file);
    mounted.end();
}

#[test]
fn stores_for_which_room_was_kept_are_kept() {
    let Some(mounted) = Mounted::start_small("kept", "", Some(helper)) else { return };
    run("kept", &mounted.dir);
    let file = File::open(mounted.dir.join("f")).unwrap();
    file.sync_all().unwrap();
    assert!(mounted.fs.lost_files().is_empty());
    let ino = mounted.fs.lookup(mounted.fs.root(), b"f").unwrap().ino;
    let (mut stored, mut shown) = (Vec::new(), vec![0; (PARTS * MIB) as usize]);
    (0..PARTS).for_each(|part| mounted.fs.read(ino, part * MIB, 1 << 20, &mut stored).unwrap());
    file.read_exact_at(&mut shown, 0).unwrap();
    assert!(shown == stored);
    assert!(stored == (0..PARTS).flat_map(noise).collect::<Vec<u8>>(), "not what was stored");
    assert_eq!(mounted.fs.reserved_bytes(), ReservedBytes::default());
    drop(file);
    mounted.end();
}

#[test]
fn without_a_helper_nothing_is_called_a_hole() {
    let Some(mounted) = Mounted::start_small("alone", "", None) else { return };
    let file = new_file(mounted.dir.join("f"), 4 * MIB);
    assert_eq!(seek(&file, SeekFrom::Data(5)), Ok(5));
    assert_eq!(seek(&file, SeekFrom::Hole(5)), Ok(4 * MIB));
    assert_eq!(seek(&file, SeekFrom::Data(4 * MIB)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(4 * MIB)), Err(Errno::NXIO));
    drop(file);
    mounted.end();
}
