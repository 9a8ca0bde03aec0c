//! What an `fsync` promises, and how it keeps it.

use super::world::{Seen, World, paths, seen, tree};
use crate::errno::Errno;
use crate::support::{Machine, Short, USER};
use crate::types::{
    Attr, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, Ino, RENAME_EXCHANGE, SetXattr, Time,
    WriteFlags, mode,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The states that an inode had.
#[derive(Default)]
struct History {
    versions: Vec<Seen>,
    /// The oldest one that may come back.
    promised: usize,
    /// The oldest one that may come back once the names are durable.
    moved: usize,
}

/// A machine, and what was promised of it.
pub struct Watch {
    pub world: World,
    history: BTreeMap<Ino, History>,
    /// How often an `fsync` returned, and how often of them the log was enough.
    pub synced: u32,
    pub logged: u32,
    /// How often the inode had not changed, so that nothing became durable.
    pub unchanged: u32,
}

impl Watch {
    pub fn new(world: World) -> Watch {
        let mut watch = Watch { world, history: BTreeMap::new(), synced: 0, logged: 0, unchanged: 0 };
        watch.touched(watch.world.fs().root());
        watch
    }

    /// A new inode.
    pub fn made(&mut self, made: Result<Attr, Errno>) -> Option<Attr> {
        let attr = made.ok()?;
        self.history.remove(&attr.ino);
        self.touched(attr.ino);
        Some(attr)
    }

    /// The contents of an inode have changed.
    pub fn touched(&mut self, ino: Ino) {
        let seen = seen(&self.world.fs(), ino);
        self.history.entry(ino).or_default().versions.push(seen);
    }

    /// An inode has a new name, and takes its contents along.
    pub fn moved(&mut self, ino: Ino) {
        self.touched(ino);
        let history = self.history.get_mut(&ino).unwrap();
        history.moved = history.versions.len() - 1;
    }

    pub fn commit(&mut self) {
        self.world.fs().sync().unwrap();
        self.promise_all();
    }

    fn promise_all(&mut self) {
        for history in self.history.values_mut() {
            history.promised = history.versions.len() - 1;
        }
    }

    /// Syncs an inode, cuts the power, replays the log, and compares.
    pub fn fsync(&mut self, ino: Ino) -> Machine {
        let fs = self.world.fs();
        self.touched(ino);
        let is_unchanged = fs.hold(ino).is_ok_and(|inode| inode.is_durable(inode.changes()));
        if is_unchanged {
            fs.fsync(ino, false).unwrap();
            self.unchanged += 1;
            return self.world.replayed(&self.world.logged());
        }
        let committed = self.world.machine.pool().synced_txg();
        fs.fsync(ino, false).unwrap();
        self.synced += 1;
        if self.world.machine.pool().synced_txg() > committed {
            self.promise_all();
        } else {
            self.logged += 1;
        }
        for history in self.history.values_mut() {
            history.promised = history.promised.max(history.moved);
        }
        let history = self.history.get_mut(&ino).unwrap();
        history.promised = history.versions.len() - 1;
        self.compare()
    }

    /// The machine after a power cut and a replay of the log.
    pub fn compare(&self) -> Machine {
        let fs = self.world.fs();
        let machine = self.world.replayed(&self.world.logged());
        let (found, live) = (tree(machine.fs()), tree(&fs));
        assert_eq!(paths(machine.fs()), paths(&fs), "names and numbers");
        for (path, (words, live)) in &live {
            let (found_words, found) = &found[path];
            assert_eq!(found_words, words, "words of '{path}'");
            self.compare_inode(path, found, live);
        }
        machine
    }

    fn compare_inode(&self, path: &str, found: &Seen, live: &Seen) {
        let named = |seen: &Seen| {
            let Attr { ino, generation, mode, nlink, uid, gid, rdev, btime, .. } = seen.attr;
            (ino, generation, mode, nlink, uid, gid, rdev, btime)
        };
        assert_eq!(named(found), named(live), "attributes of '{path}'");
        let rest = |seen: &Seen| (seen.xattrs.clone(), seen.flags, seen.project, seen.hint);
        assert_eq!(rest(found), rest(live), "extended attributes and flags of '{path}'");
        let ino = live.attr.ino;
        if live.attr.mode & mode::S_IFMT != mode::S_IFREG {
            // Reads may have changed it.
            let without_atime = |seen: &Seen| Attr { atime: Time::default(), ..seen.attr };
            assert_eq!(without_atime(found), without_atime(live), "attributes of '{path}'");
            assert_eq!(found.content, live.content, "content of '{path}'");
            return;
        }
        // Whiteouts and the like are unknown here.
        let Some(history) = self.history.get(&ino) else { return };
        if history.promised == history.versions.len() - 1 {
            assert_eq!(found.attr, live.attr, "attributes of '{path}', which was synced");
            assert!(found.content == live.content, "content of '{path}', which was synced");
            return;
        }
        let possible = history.versions[history.promised..].iter();
        let times = |seen: &Seen| seen.attr.mtime;
        let is_possible = possible
            .clone()
            .any(|version| version.content == found.content && times(version) == times(found));
        let sizes: Vec<usize> = possible.map(|version| version.content.len()).collect();
        assert!(
            is_possible,
            "content and time of '{path}': {} bytes, possible {sizes:?}",
            found.content.len()
        );
    }

    // What scripts do.

    fn root(&self) -> Ino {
        self.world.fs().root()
    }

    /// The inode of a path.
    fn at(&self, path: &str) -> Ino {
        let fs = self.world.fs();
        path.split('/').fold(fs.root(), |dir, name| fs.ino(dir, name).unwrap())
    }

    fn parent<'p>(&self, path: &'p str) -> (Ino, &'p [u8]) {
        match path.rsplit_once('/') {
            Some((above, name)) => (self.at(above), name.as_bytes()),
            None => (self.root(), path.as_bytes()),
        }
    }

    fn creat(&mut self, path: &str) -> Ino {
        let (dir, name) = self.parent(path);
        self.made(self.world.fs().create(dir, name, 0o644, &USER)).unwrap().ino
    }

    fn mkdir(&mut self, path: &str) -> Ino {
        let (dir, name) = self.parent(path);
        self.made(self.world.fs().mkdir(dir, name, 0o755, &USER)).unwrap().ino
    }

    fn put(&mut self, path: &str, offset: u64, data: &[u8]) {
        let ino = self.at(path);
        self.world.fs().put(ino, offset, data);
        self.touched(ino);
    }

    fn rename_as(&mut self, from: &str, to: &str, flags: u32) {
        let moved = self.at(from);
        let ((dir, name), (new_dir, new_name)) = (self.parent(from), self.parent(to));
        let target = (flags == RENAME_EXCHANGE).then(|| self.at(to));
        self.world.fs().rename(dir, name, new_dir, new_name, flags).unwrap();
        [Some(moved), target].into_iter().flatten().for_each(|ino| self.moved(ino));
    }

    fn rename(&mut self, from: &str, to: &str) {
        self.rename_as(from, to, 0);
    }

    fn link(&mut self, from: &str, to: &str) {
        let (dir, name) = self.parent(to);
        self.world.fs().link(self.at(from), dir, name).unwrap();
    }

    fn unlink(&mut self, path: &str) {
        let (dir, name) = self.parent(path);
        self.world.fs().unlink(dir, name).unwrap();
    }

    fn falloc(&mut self, path: &str, mode: u32, offset: u64, len: u64) {
        let ino = self.at(path);
        self.world.fs().fallocate(ino, mode, offset, len).unwrap();
        self.touched(ino);
    }

    fn truncate(&mut self, path: &str, size: u64) {
        let ino = self.at(path);
        self.world.fs().size(ino, size).unwrap();
        self.touched(ino);
    }

    fn sync(&mut self, path: &str) -> Machine {
        let ino = self.at(path);
        self.fsync(ino)
    }
}

/// Runs a script with nothing committed before it, and with its first lines committed.
fn script(before: impl Fn(&mut Watch), then: impl Fn(&mut Watch)) {
    for is_committed in [false, true] {
        let mut watch = Watch::new(World::new(1, &[("recordsize", "4K")]));
        before(&mut watch);
        if is_committed {
            watch.commit();
        }
        then(&mut watch);
        assert_eq!(watch.logged, watch.synced, "the log was enough");
        assert!(watch.unchanged <= 1, "nearly all of them did something");
    }
}

/// The ten bugs that CrashMonkey found in other file systems, in the order of its list.
#[test]
fn the_ten_of_crashmonkey() {
    script(
        |w| {
            w.mkdir("A");
            w.creat("A/bar");
        },
        |w| {
            w.sync("A/bar");
            w.mkdir("B");
            w.creat("B/bar");
            w.rename("B/bar", "A/bar");
            w.creat("A/foo");
            w.sync("A/foo");
            w.sync("A");
        },
    );
    script(
        |w| {
            w.mkdir("A");
            w.mkdir("A/C");
        },
        |w| {
            w.rename("A/C", "B");
            w.creat("B/bar");
            w.sync("B/bar");
            w.rename("B/bar", "A/bar");
            w.rename("A", "B2");
            w.sync("B2/bar");
        },
    );
    script(
        |w| {
            w.mkdir("A");
            w.mkdir("B");
            w.mkdir("A/C");
            w.creat("B/foo");
        },
        |w| {
            w.link("B/foo", "A/C/foo");
            w.sync("A");
        },
    );
    script(
        |w| {
            w.mkdir("A");
        },
        |w| {
            w.rename("A", "B");
            w.creat("B/foo");
            w.sync("B/foo");
            w.sync("B");
        },
    );
    script(
        |w| {
            w.mkdir("A");
            w.mkdir("B");
            w.creat("A/foo");
        },
        |w| {
            w.link("A/foo", "B/foo");
            w.sync("A/foo");
            w.sync("B/foo");
        },
    );
    script(
        |w| {
            w.mkdir("test");
            w.mkdir("test/A");
        },
        |w| {
            w.creat("test/foo");
            w.creat("test/A/foo");
            w.sync("test/A");
            w.sync("test");
        },
    );
    script(
        |w| {
            w.mkdir("A");
            w.creat("foo");
        },
        |w| {
            w.link("foo", "A/bar");
            w.sync("foo");
        },
    );
    script(
        |w| {
            w.creat("foo");
            w.put("foo", 0, &[1; 8192]);
        },
        |w| {
            w.sync("foo");
            w.falloc("foo", FALLOC_KEEP_SIZE, 8192, 8192);
            let machine = w.sync("foo");
            assert!(machine.fs().reserved_bytes().by_files > 0, "what was allocated stays");
        },
    );
    script(
        |w| {
            w.creat("foo");
            w.put("foo", 0, &[1; 16_384]);
        },
        |w| {
            w.sync("foo");
            w.falloc("foo", FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, 16_384, 4096);
            w.sync("foo");
        },
    );
    script(
        |w| {
            w.mkdir("A");
            w.mkdir("B");
            w.creat("A/foo");
        },
        |w| {
            w.rename("A/foo", "B/foo");
            w.put("B/foo", 0, b"x");
            w.sync("B/foo");
        },
    );
}

/// Link counts and sizes of directories: generic/034 to 041, 104, 106, 107, 336, 557, 764, 771.
#[test]
fn links_are_counted() {
    script(
        |w| {
            w.mkdir("d");
            w.creat("d/foo");
            w.creat("other");
        },
        |w| {
            w.link("d/foo", "d/bar");
            w.unlink("d/foo");
            w.sync("d/bar");
            w.link("d/bar", "d/foo");
            w.unlink("d/bar");
            w.creat("d/bar");
            w.sync("d/bar");
            for at in 0..40 {
                w.link("other", &format!("d/{at}"));
            }
            w.unlink("d/7");
            w.sync("other");
            w.unlink("other");
            w.sync("d");
            w.unlink("d/foo");
            w.creat("d/foo");
            w.sync("d/foo");
        },
    );
}

/// Data and names that are replaced: generic/056, 057, 325, 335, 341 to 343, 498, 502, 510, 526, 527, 690.
#[test]
fn renamed_files_keep_their_data() {
    script(
        |w| {
            w.creat("old");
            w.put("old", 0, b"the old content");
            w.creat("other");
            w.mkdir("d");
        },
        |w| {
            // Nothing of the new file was synced.
            w.creat("new");
            w.put("new", 0, &[8; 9000]);
            w.rename("new", "old");
            let machine = w.sync("other");
            let fs = machine.fs();
            assert_eq!(fs.bytes(fs.ino(fs.root(), "old").unwrap()), [8; 9000], "no empty file");
            w.put("old", 0, b"later");
            w.put("other", 0, b"exchanged");
            w.rename_as("old", "other", RENAME_EXCHANGE);
            let machine = w.sync("d");
            let fs = machine.fs();
            assert!(fs.bytes(fs.ino(fs.root(), "other").unwrap()).starts_with(b"later"));
            assert_eq!(fs.bytes(fs.ino(fs.root(), "old").unwrap()), b"exchanged");
            w.rename("d", "e");
            w.mkdir("d");
            w.creat("d/foo");
            w.sync("d/foo");
            w.rename("e", "d/e");
            w.sync("d");
        },
    );
}

/// A file that is made without a name: generic/502 and 509, 530.
#[test]
fn a_linked_tmpfile_is_whole() {
    script(
        |w| {
            w.mkdir("d");
        },
        |w| {
            let fs = w.world.fs();
            let ino = w.made(fs.tmpfile(fs.root(), 0o600, &USER)).unwrap().ino;
            fs.put(ino, 0, &[5; 6000]);
            // It has no name, and may get one.
            w.fsync(ino);
            fs.put(ino, 6000, &[6; 10]);
            fs.link(ino, w.at("d"), b"named").unwrap();
            w.moved(ino);
            let machine = w.sync("d");
            assert_eq!(machine.fs().bytes(ino).len(), 6010);
            let gone = w.made(fs.tmpfile(fs.root(), 0o600, &USER)).unwrap().ino;
            w.fsync(gone);
            fs.forget(gone, 1);
            let machine = w.sync("d");
            assert_eq!(machine.fs().unlinked_count(), Ok(0));
        },
    );
}

/// Holes, and sizes of allocations: generic/059, 101, 177, 483, 512, 546, 677, 695.
#[test]
fn holes_and_sizes_come_back() {
    script(
        |w| {
            w.creat("foo");
            w.put("foo", 0, &[1; 135_180]);
        },
        |w| {
            w.sync("foo");
            w.falloc("foo", FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 90_123, 5000);
            w.sync("foo");
            w.falloc("foo", FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 4096, 8192);
            w.falloc("foo", FALLOC_ZERO_RANGE, 130_000, 20_000);
            w.sync("foo");
            w.truncate("foo", 5000);
            w.truncate("foo", 6000);
            w.falloc("foo", FALLOC_KEEP_SIZE, 0, 100_000);
            w.sync("foo");
            w.put("foo", 50_000, b"far");
            w.falloc("foo", 0, 0, 70_000);
            w.sync("foo");
            w.truncate("foo", 0);
            w.sync("foo");
        },
    );
}

/// Extended attributes that were removed stay removed: generic/066, 489, 745, 753.
#[test]
fn removed_attributes_stay_removed() {
    script(
        |w| {
            let ino = w.creat("foo");
            for name in [&b"user.a"[..], b"user.b"] {
                w.world.fs().setxattr(ino, name, &[1; 5000], SetXattr::default(), &USER).unwrap();
            }
        },
        |w| {
            let (fs, ino) = (w.world.fs(), w.at("foo"));
            w.sync("foo");
            fs.removexattr(ino, b"user.a").unwrap();
            fs.setxattr(ino, b"user.c", b"c", SetXattr::default(), &USER).unwrap();
            let machine = w.sync("foo");
            assert_eq!(machine.fs().getxattr(ino, b"user.a", &mut Vec::new()), Err(Errno::ENODATA));
            w.link("foo", "bar");
            w.unlink("foo");
            w.sync("bar");
        },
    );
}

/// A commit between two changes of one file, and changes of other files around it.
#[test]
fn a_commit_in_between_changes_nothing() {
    script(
        |w| {
            w.creat("foo");
            w.creat("bar");
        },
        |w| {
            w.put("foo", 0, b"one");
            w.sync("foo");
            w.commit();
            w.put("foo", 3, b"two");
            w.put("bar", 0, b"not synced");
            w.sync("foo");
            w.unlink("bar");
            w.creat("bar");
            w.put("foo", 0, b"three");
            w.sync("foo");
            w.commit();
            w.compare();
        },
    );
}

#[test]
fn an_unchanged_inode_is_not_logged_again() {
    let mut watch = Watch::new(World::new(1, &[]));
    let ino = watch.creat("foo");
    watch.fsync(ino);
    let batches = || watch.world.log.batches.lock().len();
    let (before, waits) = (batches(), watch.world.log.waits.lock().len());
    // A change of another file, which this one does not wait for.
    let fs = watch.world.fs();
    fs.file(fs.root(), "other");
    fs.fsync(ino, false).unwrap();
    assert_eq!((batches(), watch.world.log.waits.lock().len()), (before, waits));
    fs.put(ino, 0, b"more");
    fs.fsync(ino, true).unwrap();
    assert_eq!(batches(), before + 1);
}

/// The names of `other` are in a batch that was taken before, but is perhaps not durable.
#[test]
fn an_inode_without_records_waits_for_those_that_were_taken() {
    let mut watch = Watch::new(World::new(1, &[]));
    let (foo, other) = (watch.creat("foo"), watch.creat("other"));
    watch.fsync(foo);
    let (batches, fs) = (watch.world.log.batches.lock().len(), watch.world.fs());
    watch.world.log.fails.store(true, Ordering::Relaxed);
    let before = watch.world.machine.pool().synced_txg();
    fs.fsync(other, false).unwrap();
    assert_eq!(watch.world.log.batches.lock().len(), batches, "there was nothing more to log");
    assert!(watch.world.machine.pool().synced_txg() > before, "the log had failed, so it was committed");
}

/// The log has refused the names of both files, and there was no commit yet.
#[test]
fn records_that_the_log_refused_need_a_commit() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let (one, two) = (fs.file(fs.root(), "one").ino, fs.file(fs.root(), "two").ino);
    world.log.is_closed.store(true, Ordering::Relaxed);
    assert!(!fs.intents.make_durable(one));
    world.log.is_closed.store(false, Ordering::Relaxed);
    assert!(!fs.intents.make_durable(two));
    fs.sync().unwrap();
    assert!(fs.intents.make_durable(two));
}

#[test]
fn a_change_between_the_halves_of_an_fsync_is_synced_by_the_next_one() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let ino = fs.file(fs.root(), "foo").ino;
    fs.put(ino, 0, b"one");
    let pending = fs.begin_fsync(ino).unwrap().unwrap();
    fs.put(ino, 3, b"two");
    pending.finish().unwrap();
    assert_eq!(world.replayed(&world.logged()).fs().bytes(ino), b"one");
    let pending = fs.begin_fsync(ino).unwrap().unwrap();
    // A second caller waits for the same records.
    let other = fs.begin_fsync(ino).unwrap().unwrap();
    other.finish().unwrap();
    pending.finish().unwrap();
    assert_eq!(world.log.batches.lock().len(), 2);
    assert_eq!(world.replayed(&world.logged()).fs().bytes(ino), b"onetwo");
    assert!(fs.begin_fsync(ino).unwrap().is_none(), "nothing is left to do");
}

#[test]
fn a_full_log_is_waited_for() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let (one, two) = (fs.file(fs.root(), "one").ino, fs.file(fs.root(), "two").ino);
    let synced = world.machine.pool().synced_txg();
    // Of the first, another data set has filled the log.
    for (nth, ino) in [one, two].into_iter().enumerate() {
        fs.put(ino, 0, b"much");
        world.log.is_full.store(true, Ordering::Relaxed);
        assert!(fs.begin_fsync(ino).unwrap().is_none(), "it would wait for others");
        assert_eq!(world.log.batches.lock().len(), nth);
        fs.fsync(ino, false).unwrap();
        assert_eq!((world.log.batches.lock().len(), world.machine.pool().synced_txg()), (nth + 1, synced));
        assert_eq!(world.replayed(&world.logged()).fs().bytes(ino), b"much");
    }
}

#[test]
fn one_commit_serves_all_whose_records_failed() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let [one, two, other] = ["one", "two", "other"].map(|name| fs.file(fs.root(), name).ino);
    fs.put(one, 0, b"one");
    fs.put(two, 0, b"two");
    let pending = [one, two].map(|ino| fs.begin_fsync(ino).unwrap().unwrap());
    world.log.failed.lock().extend([1, 2]);
    let mut synced = Vec::new();
    for each in pending {
        each.finish().unwrap();
        synced.push(world.machine.pool().synced_txg());
        fs.put(other, 0, b"meanwhile");
    }
    assert_eq!(synced[0], synced[1]);
    assert_eq!(world.log.batches.lock().len(), 2);
}

/// What is written while an `fsync` waits is not taken for durable.
#[test]
fn a_change_during_an_fsync_is_synced_by_the_next_one() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let ino = fs.file(fs.root(), "foo").ino;
    fs.put(ino, 0, b"one");
    let writer = world.fs();
    *world.log.during_wait.lock() = Some(Box::new(move || writer.put(ino, 3, b"two")));
    fs.fsync(ino, false).unwrap();
    assert_eq!(world.replayed(&world.logged()).fs().bytes(ino), b"one");
    fs.fsync(ino, false).unwrap();
    assert_eq!(world.log.batches.lock().len(), 2);
    assert_eq!(world.replayed(&world.logged()).fs().bytes(ino), b"onetwo");
}

/// The log has failed and goes on in another zone, before the caller whose records are lost has marked them.
#[test]
fn nothing_is_logged_behind_records_that_failed_unnoticed() {
    let world = World::new(1, &[]);
    let fs = world.fs();
    let (one, two) = (fs.file(fs.root(), "one").ino, fs.file(fs.root(), "two").ino);
    fs.put(one, 0, b"one");
    fs.put(two, 0, b"two");
    let (other, log) = (world.fs(), Arc::clone(&world.log));
    *world.log.during_wait.lock() = Some(Box::new(move || {
        log.failed.lock().push(1);
        // The names went with the ticket that has failed.
        assert!(!other.intents.make_durable(two));
    }));
    assert!(!fs.intents.make_durable(one));
    assert_eq!(world.log.batches.lock().len(), 1, "nothing follows");
}

#[test]
fn an_inode_whose_records_are_too_large_commits_until_then() {
    let mut watch = Watch::new(World::with_log(1, &[], 10_000));
    watch.creat("large");
    watch.creat("small");
    watch.put("large", 0, &[1; 9000]);
    watch.put("large", 9000, &[2; 9000]);
    watch.put("small", 0, b"small");
    watch.sync("small");
    assert_eq!((watch.synced, watch.logged), (1, 1), "the other one is logged");
    watch.sync("large");
    assert_eq!((watch.synced, watch.logged), (2, 1));
    watch.put("large", 0, b"again");
    watch.sync("large");
    assert_eq!((watch.synced, watch.logged), (3, 2), "after the commit it is logged again");
    watch.put("large", 0, &[3; 20_000]);
    watch.rename("large", "renamed");
    watch.put("small", 0, b"more");
    watch.sync("small");
    assert_eq!((watch.synced, watch.logged), (4, 2), "its contents should have gone along");
}

#[test]
fn the_records_of_a_txg_are_bounded() {
    let mut watch = Watch::new(World::with_log(1, &[], 1 << 30));
    let fs = watch.world.fs();
    for at in 0..20 {
        let ino = fs.file(fs.root(), &format!("file {at}")).ino;
        for piece in 0..16 {
            fs.write(ino, piece << 16, &[at; 1 << 16], WriteFlags::default()).unwrap();
        }
        assert!(fs.intents.all_frames().len() <= 16 << 20);
    }
    let ino = watch.creat("another");
    watch.fsync(ino);
    assert_eq!(watch.logged, 1, "names are logged, and files that are written from now on");
    watch.put("another", 0, b"in the same txg");
    watch.fsync(ino);
    assert_eq!(watch.logged, 2);
    let first = fs.ino(fs.root(), "file 0").unwrap();
    assert!(!fs.intents.make_durable(first), "its contents need a commit");
    fs.sync().unwrap();
    fs.put(first, 0, b"in the next txg");
    assert!(fs.intents.make_durable(first));
}
