//! A real mount, answered from memory: what only the kernel can show about protocol, session and mount.
//!
//! The file system is minimal: one directory, and files that are byte vectors. Where `/dev/fuse` cannot be
//! used the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod forgetter;

use forgetter::forgetter;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use terrane_fuse::cache_policy::CachePolicy;
use terrane_fuse::mount::MountMethod;
use terrane_fuse::proto::{Request, WriteOut, fattr};
use terrane_fuse::reply::{DirReply, Reply, attr};
use terrane_fuse::session::{Call, Handler, Negotiated};
use terrane_fuse::transport::{DevFuse, Received, Transport};
use terrane_fuse::{Mount, MountOptions, Session, SessionConfig, UnmountHandle};
use terrane_posix::{Attr, Errno, StatFs, Time};

#[derive(Default)]
struct Files {
    /// By node id, from 2 on.
    nodes: BTreeMap<u64, Vec<u8>>,
    names: BTreeMap<Vec<u8>, u64>,
}

#[derive(Default)]
struct MemoryFs {
    files: Mutex<Files>,
    policy: CachePolicy,
    /// What a predecessor told the kernel and never committed.
    lost: Vec<u64>,
    requests: AtomicUsize,
    opens: AtomicUsize,
    /// FSYNC returns when the file "release" was read.
    released: Mutex<bool>,
    release: Condvar,
}

impl MemoryFs {
    fn attr(&self, files: &Files, node: u64) -> Result<Attr, Errno> {
        let size = match files.nodes.get(&node) {
            Some(data) => data.len() as u64,
            None if node == 1 => 2,
            None => return Err(Errno::ENOENT),
        };
        let mode = if node == 1 { 0o40_755 } else { 0o100_644 };
        let time = Time { secs: 1_000_000_000, nanos: 123_456_789 };
        Ok(Attr {
            ino: node,
            generation: 1,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            blocks_known: true,
            blksize: 131_072,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        })
    }

    fn create(&self, files: &mut Files, name: &[u8]) -> u64 {
        let node = files.nodes.last_key_value().map_or(2, |(last, _)| last + 1);
        files.nodes.insert(node, Vec::new());
        files.names.insert(name.to_vec(), node);
        node
    }

    fn readdir(&self, files: &Files, offset: u64, mut dir: DirReply<'_>, plus: bool) {
        let dots = [(1, b".".to_vec(), 1), (2, b"..".to_vec(), 1)];
        let names = files.names.iter().map(|(name, node)| (listing_position(name), name.clone(), *node));
        let mut names: Vec<_> = dots.into_iter().chain(names).filter(|(at, ..)| *at > offset).collect();
        names.sort();
        for (next, name, node) in names {
            let kind = if node == 1 { libc::DT_DIR } else { libc::DT_REG };
            let entry = match self.attr(files, node) {
                Ok(attr) if node != 1 => attr::entry(&attr, node, &self.policy),
                _ => attr::no_entry(Duration::ZERO),
            };
            let fits = match plus {
                true => dir.entry_plus(&entry, node, next, kind, &name),
                false => dir.entry(node, next, kind, &name),
            };
            if !fits {
                break;
            }
        }
    }
}

/// The position of a name in a listing, whatever names come and go: by a hash (FNV-1a), as in a real
/// directory.
fn listing_position(name: &[u8]) -> u64 {
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    3 + (hash >> 8)
}

impl Handler for MemoryFs {
    fn lost_nodes(&self) -> Vec<u64> {
        self.lost.clone()
    }

    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let node = call.header.nodeid;
        if matches!(call.request, Request::Fsync { .. }) {
            let mut released = self.released.lock();
            let limit = Duration::from_secs(20);
            let late = self.release.wait_while_for(&mut released, |released| !*released, limit).timed_out();
            return if late { Err(Errno(libc::ETIMEDOUT)) } else { Ok(()) };
        }
        let mut files = self.files.lock();
        match *call.request {
            Request::Lookup { name: b"panic" } => panic!("as asked"),
            Request::Lookup { name } => {
                let entry = match files.names.get(name) {
                    Some(node) => attr::entry(&self.attr(&files, *node)?, *node, &self.policy),
                    None => attr::no_entry(self.policy.negative),
                };
                reply.bytes(&entry.encode());
            }
            Request::Getattr => attr::put_attr(reply, &self.attr(&files, node)?, &self.policy),
            Request::Statx { .. } if !self.policy.birth_times => return Err(Errno(libc::ENOSYS)),
            Request::Statx { .. } => attr::put_statx(reply, &self.attr(&files, node)?, &self.policy),
            Request::Setattr(set) => {
                if set.valid & fattr::SIZE != 0 {
                    files.nodes.get_mut(&node).ok_or(Errno::ENOENT)?.resize(set.size as usize, 0);
                }
                attr::put_attr(reply, &self.attr(&files, node)?, &self.policy);
            }
            Request::Create { name, .. } => {
                let node = self.create(&mut files, name);
                reply.bytes(&attr::entry(&self.attr(&files, node)?, node, &self.policy).encode());
                attr::put_open(reply, self.policy.file_flags());
            }
            Request::Unlink { name } => {
                // The node stays until its FORGET, as open files expect.
                files.names.remove(name).ok_or(Errno::ENOENT)?;
            }
            Request::Forget { .. } => {
                files.nodes.remove(&node);
            }
            Request::Open(open) => {
                self.opens.fetch_add(1, Ordering::Relaxed);
                if call.negotiated.stateless_open() {
                    return Err(Errno(libc::ENOSYS));
                }
                if open.flags & libc::O_TRUNC as u32 != 0 {
                    files.nodes.get_mut(&node).ok_or(Errno::ENOENT)?.clear();
                }
                attr::put_open(reply, self.policy.file_flags());
            }
            Request::Opendir(_) if !call.negotiated.stateless_opendir() => {
                attr::put_open(reply, self.policy.dir_flags());
            }
            Request::Release | Request::Releasedir => {}
            Request::Read(read) => {
                let data = files.nodes.get(&node).ok_or(Errno::ENOENT)?;
                let start = data.len().min(read.offset as usize);
                reply.bytes(&data[start..data.len().min(start + read.size as usize)]);
                if files.names.get(&b"release"[..]) == Some(&node) {
                    *self.released.lock() = true;
                    self.release.notify_all();
                }
            }
            Request::Write(write) => {
                let data = files.nodes.get_mut(&node).ok_or(Errno::ENOENT)?;
                let (start, end) = (write.offset as usize, write.offset as usize + write.data.len());
                data.resize(data.len().max(end), 0);
                data[start..end].copy_from_slice(write.data);
                reply.bytes(&WriteOut { size: write.data.len() as u32, padding: 0 }.encode());
            }
            Request::Readdir(read) => {
                self.readdir(&files, read.offset, DirReply::new(reply, read.size as usize), false);
            }
            Request::Readdirplus(read) => {
                self.readdir(&files, read.offset, DirReply::new(reply, read.size as usize), true);
            }
            Request::Statfs => {
                let (block_size, name_max) = (4096, 255);
                let figures = StatFs {
                    block_size,
                    blocks: 1000,
                    free: 500,
                    available: 400,
                    files: 9,
                    files_free: 8,
                    name_max,
                };
                attr::put_statfs(reply, &figures);
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }
}

/// A mount with its session in the background.
struct Running {
    dir: PathBuf,
    memory: Arc<MemoryFs>,
    handle: UnmountHandle,
    session: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Running {
    /// `None`, with a message, where this machine has no FUSE.
    fn start(name: &str, method: MountMethod, words: &str) -> Option<Running> {
        let dir = std::env::temp_dir().join(format!("terrane-fuse-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut options = MountOptions { source: "tank/tests, odd".to_owned(), ..MountOptions::default() };
        options.apply(words).unwrap();
        let mount = match Mount::new_with_method(method, &dir, &options) {
            Ok(mount) => mount,
            Err(error) => {
                eprintln!("SKIPPED {name}: this machine cannot mount FUSE: {error}");
                fs::remove_dir(&dir).unwrap();
                return None;
            }
        };
        let session = Session::new(mount, SessionConfig::from(&options));
        let handle = session.unmount_handle();
        let memory = Arc::new(MemoryFs { policy: options.cache, ..MemoryFs::default() });
        let handler = memory.clone();
        let session = std::thread::spawn(move || session.run(&*handler));
        Some(Running { dir, memory, handle, session: Some(session) })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn end(mut self) {
        self.handle.unmount().unwrap();
        self.session.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Also after a failed assertion: nothing may be left mounted.
        let _ = self.handle.abort();
        let _ = fs::remove_dir(&self.dir);
    }
}

fn mount_line(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap_or_default().to_owned()
}

/// What any mount must do, whatever its options.
fn exercise(running: &Running) {
    let path = running.path("file");
    let data: Vec<u8> = (0..3_000_001u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    fs::write(&path, &data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), 3_000_001);
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 123_456_789));
    assert_eq!(
        meta.created().is_ok(),
        running.memory.policy.birth_times,
        "the time of birth, if it is wished for"
    );

    // O_TRUNC reaches us whether or not opens are sent.
    fs::write(&path, b"short").unwrap();
    assert_eq!(running.memory.files.lock().nodes.values().next().unwrap(), b"short");
    assert_eq!(fs::read(&path).unwrap(), b"short");
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b" and more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short and more");

    // A removed file lives as long as it is open.
    let open = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    let mut text = String::new();
    (&open).read_to_string(&mut text).unwrap();
    assert_eq!(text, "short and more");
    drop(open);

    for n in 0..500 {
        File::create(running.path(&format!("entry {n:03}"))).unwrap();
    }
    let listed = || {
        let entries = fs::read_dir(&running.dir).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<_> =
            entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().len())).collect();
        names.sort();
        names
    };
    for names in [listed(), listed()] {
        assert_eq!(names.len(), 500);
        assert_eq!(names[499].0, "entry 499");
    }

    // A panic is an I/O error, and the mount goes on.
    assert_eq!(fs::metadata(running.path("panic")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(running.path("entry 000").exists());
}

#[test]
fn files_come_back_through_a_mount_by_the_kernel() {
    let Some(running) = Running::start("kernel", MountMethod::Kernel, "nodev,nosuid,threads=4") else {
        return;
    };
    exercise(&running);
    let line = mount_line(&running.dir);
    assert!(line.starts_with(r"tank/tests,\040odd "), "{line}");
    assert!(
        line.contains(" fuse.terrane rw,nosuid,nodev,relatime,") && line.contains("default_permissions"),
        "{line}"
    );
    // After the kernel has processed our answer to INIT, which could have reduced it.
    let bdi = format!("/sys/class/bdi/0:{}/read_ahead_kb", fs::metadata(&running.dir).unwrap().dev());
    match OpenOptions::new().write(true).open(&bdi) {
        Ok(_) => assert_eq!(fs::read_to_string(&bdi).unwrap().trim(), "4096"),
        Err(error) => eprintln!("SKIPPED: {bdi} cannot be written here: {error}"),
    }
    running.end();
}

#[test]
fn files_come_back_through_a_mount_by_the_helper() {
    let Some(running) = Running::start("helper", MountMethod::Fusermount, "") else { return };
    exercise(&running);
    let line = mount_line(&running.dir);
    assert!(line.starts_with(r"tank/tests,\040odd ") && line.contains(" fuse.terrane "), "{line}");
    running.end();
}

#[test]
fn files_come_back_with_direct_io() {
    for words in ["direct_io,birth_times", "direct_io,attr_timeout=0,entry_timeout=0,negative_timeout=0"] {
        let Some(running) = Running::start("modes", MountMethod::Kernel, words) else { return };
        exercise(&running);
        let asked = running.memory.opens.load(Ordering::Relaxed);
        assert!(asked > 2, "{asked} opens with {words}");
        running.end();
    }
}

#[test]
fn what_the_kernel_knows_it_does_not_ask() {
    let Some(running) = Running::start("caches", MountMethod::Kernel, "") else { return };
    let path = running.path("file");
    fs::write(&path, b"data").unwrap();
    let ask = || {
        assert_eq!(fs::read(&path).unwrap(), b"data");
        assert!(!running.path("missing").exists());
        assert_eq!(fs::metadata(&path).unwrap().len(), 4);
    };
    // Once to fill the caches, once because reading made the access time uncertain.
    ask();
    ask();
    let before = running.memory.requests.load(Ordering::Relaxed);
    (0..100).for_each(|_| ask());
    let after = running.memory.requests.load(Ordering::Relaxed);
    assert!(after - before <= 100, "{} requests for 300 questions", after - before);
    running.end();
}

/// The kernel caches listings, and joins the pieces of several readers. Without notifications it shows the
/// last of these readers a directory without a name that existed before it began: `rm -r` fails then, with
/// "Directory not empty".
#[test]
fn a_listing_shows_what_was_there_before_it_began_whoever_else_lists() {
    let Some(running) = Running::start("listings", MountMethod::Kernel, "") else { return };
    for n in 0..4000 {
        File::create(running.path(&format!("entry {n}"))).unwrap();
    }
    let list = || fs::read_dir(&running.dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut order: Vec<u64> = (0..4000).map(|n| listing_position(format!("entry {n}").as_bytes())).collect();
    order.sort_unstable();
    // The first reader has passed the position of the new name when that is created. The second begins
    // afterwards, and has not reached it when the first one is done.
    let mut first = list();
    assert_eq!(first.by_ref().take(3000).count(), 3000);
    let between = order[1600]..order[2800];
    let late = (0..)
        .map(|n| format!("late {n}"))
        .find(|name| between.contains(&listing_position(name.as_bytes())))
        .unwrap();
    File::create(running.path(&late)).unwrap();
    let mut second = list();
    let mut names = vec![second.next().unwrap()];
    first.for_each(drop);
    names.extend(second);
    assert!(names.iter().any(|name| *name == *late), "{late} is not among {} names", names.len());
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4001);
    assert_eq!(list().count(), 4001);
    running.end();
}

#[test]
fn reads_go_on_while_all_others_wait_for_a_commit() {
    let Some(running) = Running::start("waits", MountMethod::Kernel, "direct_io") else { return };
    fs::write(running.path("release"), b"x").unwrap();
    fs::write(running.path("file"), b"x").unwrap();
    let release = File::open(running.path("release")).unwrap();
    let path = running.path("file");
    std::thread::scope(|scope| {
        let fsyncs: Vec<_> = (0..30).map(|_| scope.spawn(|| File::open(&path)?.sync_all())).collect();
        std::thread::sleep(Duration::from_millis(200));
        let mut byte = [0];
        release.read_exact_at(&mut byte, 0).unwrap();
        for fsync in fsyncs {
            fsync.join().unwrap().unwrap();
        }
    });
    drop(release);
    running.end();
}

#[test]
fn a_busy_mount_stays_and_an_aborted_one_leaves_nothing_behind() {
    let Some(mut running) = Running::start("abort", MountMethod::Kernel, "") else { return };
    let file = File::create(running.path("file")).unwrap();
    let error = running.handle.unmount().unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
    // What an administrator does to a mount that hangs: the connection ends, the mount itself stays.
    let control = std::env::temp_dir().join(format!("terrane-fusectl-{}", std::process::id()));
    fs::create_dir_all(&control).unwrap();
    let mounted = Command::new("mount").args(["-t", "fusectl", "none"]).arg(&control).status().unwrap();
    if mounted.success() {
        let number = libc::minor(running.dir.metadata().unwrap().dev());
        fs::write(control.join(number.to_string()).join("abort"), b"1").unwrap();
        assert!(Command::new("umount").arg(&control).status().unwrap().success());
    } else {
        eprintln!("SKIPPED part of abort: fusectl cannot be mounted");
        running.handle.abort().unwrap();
    }
    fs::remove_dir(&control).unwrap();
    running.session.take().unwrap().join().unwrap().unwrap();
    drop(file);
    assert_eq!(mount_line(&running.dir), "");
    assert!(fs::read_dir(&running.dir).unwrap().next().is_none());
}

#[test]
fn a_dead_mount_of_a_predecessor_is_replaced() {
    let dir = std::env::temp_dir().join(format!("terrane-fuse-dead-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    // A process that is killed runs no destructor: the shell ends, its descriptor is closed, and the mount
    // stays.
    let script = r#"exec 9<>/dev/fuse && mount -i -t fuse.terrane -o fd=9,rootmode=40000,user_id=0,group_id=0 dead "$0""#;
    let mounted = Command::new("bash").arg("-c").arg(script).arg(&dir).status().unwrap();
    if mounted.success() {
        assert_eq!(fs::metadata(&dir).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        let mount = Mount::new_with_method(MountMethod::Kernel, &dir, &MountOptions::default()).unwrap();
        mount.unmount_handle().unmount().unwrap();
        assert_eq!(mount_line(&dir), "");
    } else {
        eprintln!("SKIPPED dead: this machine cannot mount FUSE");
    }
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_successor_answers_what_its_predecessor_left() {
    let dir = std::env::temp_dir().join(format!("terrane-fuse-successor-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let options = MountOptions::default();
    let config = SessionConfig::from(&options);
    let Ok(mount) = Mount::new_with_method(MountMethod::Kernel, &dir, &options) else {
        eprintln!("SKIPPED successor: this machine cannot mount FUSE");
        return fs::remove_dir(&dir).unwrap();
    };
    let (device, again) = (mount.device().unwrap(), mount.device().unwrap());
    let first = Session::new(mount, config);
    let agreed = first.negotiate().unwrap().unwrap();
    let agreed = Negotiated::decode(&agreed.encode()).unwrap();
    let path = dir.join("made twice");
    let caller = std::thread::spawn(move || fs::write(&path, b"once"));
    // The first process reads a request, and dies with it.
    let mut buf = vec![0; agreed.buffer_bytes()];
    assert!((&again).read(&mut buf).unwrap() > 40);
    first.into_mount().hand_over();
    drop(again);

    let second = Session::new(Mount::adopt(device, &dir), config);
    let handle = second.unmount_handle();
    let memory = Arc::new(MemoryFs::default());
    let handler = memory.clone();
    let session = std::thread::spawn(move || second.resume(&agreed, &*handler, forgetter()));
    caller.join().unwrap().unwrap();
    assert_eq!(memory.files.lock().nodes.values().next().unwrap(), b"once");
    handle.unmount().unwrap();
    session.join().unwrap().unwrap();
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn after_a_loss_the_kernel_believes_nothing_it_was_told() {
    let dir = std::env::temp_dir().join(format!("terrane-fuse-loss-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let options = MountOptions::default();
    let config = SessionConfig::from(&options);
    let Ok(mount) = Mount::new_with_method(MountMethod::Kernel, &dir, &options) else {
        eprintln!("SKIPPED loss: this machine cannot mount FUSE");
        return fs::remove_dir(&dir).unwrap();
    };
    let device = mount.device().unwrap();
    let first = Session::new(mount, config);
    let agreed = first.negotiate().unwrap().unwrap();
    // The first server answers a few requests, and has then gone.
    let memory = MemoryFs::default();
    let (old, new) = (dir.join("old"), dir.join("new"));
    {
        let transport = DevFuse::new(first.device().unwrap(), first.unmount_handle());
        std::thread::scope(|scope| {
            let (old, new) = (&old, &new);
            let caller = scope.spawn(move || {
                fs::write(new, b"lost").unwrap();
                assert_eq!(fs::read(new).unwrap(), b"lost");
                assert!(!old.exists());
                assert_eq!(fs::read_dir(new.parent().unwrap()).unwrap().count(), 1);
                assert!(!new.with_file_name("the last request").exists());
            });
            let mut buf = vec![0; agreed.buffer_bytes()];
            let mut reply = Reply::new();
            loop {
                let Received::Request { len } = transport.receive(&mut buf).unwrap() else { panic!("ended") };
                let (header, request) = Request::parse(&buf[..len], agreed.dialect).unwrap();
                let call = Call { header: &header, request: &request, negotiated: &agreed };
                reply.clear();
                let outcome = memory.handle(&call, &mut reply);
                transport.send(reply.seal(header.unique, outcome)).unwrap();
                if matches!(request, Request::Lookup { name: b"the last request" }) {
                    break;
                }
            }
            caller.join().unwrap();
        });
    }
    first.into_mount().hand_over();

    // What the second server knows: the name cached as missing exists, and the cached file never existed.
    let memory = MemoryFs { lost: vec![1, 2], ..MemoryFs::default() };
    memory.create(&mut memory.files.lock(), b"old");
    let memory = Arc::new(memory);
    let handler = memory.clone();
    let second = Session::new(Mount::adopt(device, &dir), config);
    let handle = second.unmount_handle();
    let session = std::thread::spawn(move || second.resume(&agreed, &*handler, forgetter()));
    let listed = || fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let names = agreed.minor >= 44;
    if !names {
        eprintln!("SKIPPED part of loss: this kernel cannot forget names (Linux 6.16)");
    }
    // Until the successor has begun, the kernel answers from its caches as before.
    let since = std::time::Instant::now();
    while listed() != ["old"] || (names && (!old.exists() || new.exists())) {
        if since.elapsed() > Duration::from_secs(20) {
            let _ = handle.abort();
            panic!("still believed: {:?}", listed());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    handle.unmount().unwrap();
    session.join().unwrap().unwrap();
    fs::remove_dir(&dir).unwrap();
}
