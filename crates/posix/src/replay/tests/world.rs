//! A mounted data set whose log is in memory, and all that programs see of a data set.

use crate::fs::Fs;
use crate::inode_flags::InodeFlags;
use crate::intents::{IntentLog, LISTS_BYTES_MAX, Ticket};
use crate::mount::Opening;
use crate::replay::{ReplayError, Replayed};
use crate::support::{Machine, Short};
use crate::types::{AccessTimes, Attr, HintOrigin, Ino, mode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use terrane_dataset::Dataset;
use terrane_format::log::Frame;
use terrane_pool::Pool;
use terrane_space::policy::Hint;
use terrane_store::log::LogFailed;
use terrane_wire::Txg;

/// A log in memory. All that it takes is durable at once, unless it fails.
#[derive(Default)]
pub struct TestLog {
    changes: AtomicU64,
    pub bytes_max: AtomicUsize,
    /// 0: as in pools.
    pub lists_bytes_max: AtomicUsize,
    /// What was logged, one batch for each ticket.
    pub batches: Mutex<Vec<Vec<u8>>>,
    /// It takes nothing.
    pub is_closed: AtomicBool,
    /// It is full until a thread waits.
    pub is_full: AtomicBool,
    /// What it takes is not durable.
    pub fails: AtomicBool,
    /// Tickets that have failed.
    pub failed: Mutex<Vec<u64>>,
    /// Tickets that were waited for.
    pub waits: Mutex<Vec<u64>>,
    /// Runs once while a thread waits.
    pub during_wait: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pool: Mutex<Option<Arc<Pool>>>,
}

struct Shared(Arc<TestLog>);

impl IntentLog for Shared {
    fn next_change(&self) -> u64 {
        self.0.changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn bytes_max(&self) -> usize {
        self.0.bytes_max.load(Ordering::Relaxed)
    }

    fn lists_bytes_max(&self) -> usize {
        match self.0.lists_bytes_max.load(Ordering::Relaxed) {
            0 => LISTS_BYTES_MAX,
            bytes => bytes,
        }
    }

    fn log(&self, frames: Vec<u8>, _: Txg) -> Option<Ticket> {
        if self.0.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let mut batches = self.0.batches.lock();
        // What is not durable is not there after the crash.
        batches.push(if self.0.fails.load(Ordering::Relaxed) { Vec::new() } else { frames });
        Some(Ticket::Test(batches.len() as u64))
    }

    fn full_until(&self, _: usize) -> Option<Ticket> {
        let newest = self.0.batches.lock().len() as u64;
        self.0.is_full.load(Ordering::Relaxed).then_some(Ticket::Test(newest))
    }

    fn has_failed(&self, ticket: Ticket) -> bool {
        matches!(ticket, Ticket::Test(number) if self.0.failed.lock().contains(&number))
    }

    fn wait(&self, ticket: Ticket) -> Result<(), LogFailed> {
        let Ticket::Test(number) = ticket else { panic!("not of this log") };
        self.0.waits.lock().push(number);
        self.0.is_full.store(false, Ordering::Relaxed);
        let during_wait = self.0.during_wait.lock().take();
        during_wait.into_iter().for_each(|run| run());
        match self.0.fails.load(Ordering::Relaxed) || self.0.failed.lock().contains(&number) {
            true => Err(LogFailed),
            false => Ok(()),
        }
    }

    fn synced_txg(&self) -> u64 {
        self.0.pool.lock().as_ref().unwrap().synced_txg().0
    }
}

pub struct World {
    pub machine: Machine,
    pub log: Arc<TestLog>,
    has_threads: bool,
}

impl World {
    /// A log that takes up to so many bytes at once.
    pub fn with_log(seed: u64, props: &[(&str, &str)], bytes_max: usize) -> World {
        World::of(Machine::new(seed, props), bytes_max, false)
    }

    /// Txgs sync concurrently with the test.
    pub fn with_threads(seed: u64) -> World {
        World::of(Machine::with_threads(seed), 1 << 20, true)
    }

    fn of(mut machine: Machine, bytes_max: usize, has_threads: bool) -> World {
        let log = Arc::new(TestLog { bytes_max: AtomicUsize::new(bytes_max), ..TestLog::default() });
        machine.remount_as(|dataset| open(dataset, &log));
        World { machine, log, has_threads }
    }

    pub fn new(seed: u64, props: &[(&str, &str)]) -> World {
        World::with_log(seed, props, 1 << 20)
    }

    pub fn fs(&self) -> Arc<Fs> {
        Arc::clone(self.machine.fs())
    }

    /// All frames that were logged.
    pub fn logged(&self) -> Vec<u8> {
        self.log.batches.lock().concat()
    }

    /// All frames, also those that no `fsync` has asked for.
    pub fn recorded(&self) -> Vec<u8> {
        [self.logged(), self.fs().intents.all_frames()].concat()
    }

    /// The same data set after a power cut, before a replay. It is mounted as for a replay.
    pub fn cut(&self) -> Machine {
        self.machine.after_power_cut(|dataset| Fs::open_to_replay(dataset).unwrap())
    }

    /// After a power cut, and a replay of these frames.
    pub fn replayed(&self, frames: &[u8]) -> Machine {
        self.machine.after_power_cut(|dataset| {
            let replayed = replay_in(&dataset, frames).unwrap();
            assert!(replayed.is_whole || self.has_threads, "one commit has all of it");
            Fs::open(dataset).unwrap()
        })
    }
}

fn open(dataset: Arc<Dataset>, log: &Arc<TestLog>) -> Arc<Fs> {
    *log.pool.lock() = Some(Arc::clone(dataset.object_set().pool()));
    let log: Option<Box<dyn IntentLog>> = Some(Box::new(Shared(Arc::clone(log))));
    Fs::open_as(dataset, Opening { log, ..Opening::default() }).unwrap()
}

/// Replays and commits.
pub fn replay_in(dataset: &Arc<Dataset>, frames: &[u8]) -> Result<Replayed, ReplayError> {
    let fs = Fs::open_to_replay(Arc::clone(dataset)).unwrap();
    let replayed = replay(&fs, frames)?;
    fs.sync().unwrap();
    Ok(replayed)
}

/// Replays what the imported state lacks.
pub fn replay(fs: &Fs, frames: &[u8]) -> Result<Replayed, ReplayError> {
    let pool = fs.dataset().object_set().pool();
    fs.replay(&Frame::parse_all(frames).unwrap(), pool.synced_txg())
}

/// What programs see of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// With 0 blocks: how they are stored does not matter.
    pub attr: Attr,
    /// Bytes of a file, target of a link.
    pub content: Vec<u8>,
    /// Names and values, access control lists included.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub flags: Option<InodeFlags>,
    pub project: u32,
    pub hint: Option<(Hint, HintOrigin)>,
}

/// All that programs see, by path, with the words beside each name.
pub type Tree = BTreeMap<String, (Vec<u64>, Seen)>;

pub fn seen(fs: &Fs, ino: Ino) -> Seen {
    fs.set_access_times(AccessTimes::Never);
    let attr = Attr { blocks: 0, blocks_known: true, ..fs.getattr(ino).unwrap() };
    let content = match attr.mode & mode::S_IFMT {
        mode::S_IFREG => fs.bytes(ino),
        mode::S_IFLNK => fs.readlink(ino).unwrap(),
        _ => Vec::new(),
    };
    let mut names = Vec::new();
    let _ = fs.listxattr(ino, &|| true, &mut names);
    let listed = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = Vec::new();
        fs.getxattr(ino, name, &mut value).unwrap();
        (name.to_vec(), value)
    };
    let xattrs = listed.map(value).collect();
    let (flags, hint) = (fs.inode_flags(ino).ok(), fs.write_hint_origin(ino).ok());
    let project = fs.project(ino).unwrap();
    fs.set_access_times(AccessTimes::AsProperty);
    Seen { attr, content, xattrs, flags, project, hint }
}

/// The paths of all inodes, and their numbers.
pub fn paths(fs: &Fs) -> Vec<(String, Ino)> {
    fs.set_access_times(AccessTimes::Never);
    let mut found = vec![(String::new(), fs.root())];
    let mut at = 0;
    while at < found.len() {
        let (path, ino) = found[at].clone();
        at += 1;
        if fs.getattr(ino).unwrap().mode & mode::S_IFMT == mode::S_IFDIR {
            let names = fs.names(ino).into_iter();
            found.extend(names.map(|name| (format!("{path}/{name}"), fs.ino(ino, &name).unwrap())));
        }
    }
    fs.set_access_times(AccessTimes::AsProperty);
    found
}

pub fn tree(fs: &Fs) -> Tree {
    let of = |(path, ino): (String, Ino)| {
        let words = path.rsplit_once('/').map_or_else(Vec::new, |(above, name)| {
            let dir = above.split('/').filter(|name| !name.is_empty());
            let dir = dir.fold(fs.root(), |dir, name| fs.ino(dir, name).unwrap());
            fs.entry_words(dir, name.as_bytes())
                .map_or_else(|_| Vec::new(), |words| words.as_slice().to_vec())
        });
        (path, (words, seen(fs, ino)))
    };
    paths(fs).into_iter().map(of).collect()
}

/// Compares two trees, and names the first difference.
pub fn assert_same(found: &Tree, expected: &Tree, what: &str) {
    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}: names");
    for (path, (words, expected)) in expected {
        let (found_words, found) = &found[path];
        assert_eq!(found_words, words, "{what}: words of '{path}'");
        assert_eq!(found.attr, expected.attr, "{what}: attributes of '{path}'");
        assert_eq!(found.xattrs, expected.xattrs, "{what}: extended attributes of '{path}'");
        let rest = |seen: &Seen| (seen.flags, seen.project, seen.hint);
        assert_eq!(rest(found), rest(expected), "{what}: flags of '{path}'");
        assert!(found.content == expected.content, "{what}: content of '{path}'");
    }
}

/// Objects of the data set.
pub fn objects(fs: &Fs) -> u64 {
    fs.dataset().object_set().usage().objects
}
