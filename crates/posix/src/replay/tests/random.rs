//! Random changes. All of their records are replayed, or those that an `fsync` has logged.

use super::fsync::Watch;
use super::world::{World, assert_same, objects, paths, tree};
use crate::acl::{ACL_ACCESS, ACL_DEFAULT};
use crate::hint_rules::HINT_RULES;
use crate::inode_flags::InodeFlags;
use crate::intents::ChangeKeeper;
use crate::support::{ROOT_CRED, USER};
use crate::types::{
    Cred, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, Ino, RENAME_EXCHANGE, RENAME_NOREPLACE,
    SetAttr, SetTime, SetXattr, Time, WriteFlags, mode,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_format::log::Frame;
use terrane_space::policy::Hint;
use terrane_wire::{ObjsetId, Prng, Txg};

/// Makes random changes.
pub struct Actor {
    rng: Prng,
    watch: Watch,
    /// Made without a name.
    nameless: Vec<Ino>,
    /// Copies may share blocks.
    clones: bool,
}

impl Actor {
    fn new(seed: u64, watch: Watch, clones: bool) -> Actor {
        Actor { rng: Prng::new(seed), watch, nameless: Vec::new(), clones }
    }

    fn name(&mut self) -> String {
        let at = self.rng.below(9);
        if at == 0 {
            "a name that takes more than one slot of a directory".to_string()
        } else {
            format!("n{at}")
        }
    }

    fn any(&mut self, is_fitting: impl Fn(u32) -> bool) -> Option<Ino> {
        let fs = self.watch.world.fs();
        let all = paths(&fs).into_iter().map(|(_, ino)| ino);
        let fitting: Vec<Ino> =
            all.filter(|ino| is_fitting(fs.getattr(*ino).unwrap().mode & mode::S_IFMT)).collect();
        self.rng.pick(&fitting)
    }

    fn dir(&mut self) -> Ino {
        self.any(|kind| kind == mode::S_IFDIR).unwrap()
    }

    fn file(&mut self) -> Option<Ino> {
        if self.rng.one_in(8) && !self.nameless.is_empty() {
            return self.rng.pick(&self.nameless);
        }
        self.any(|kind| kind == mode::S_IFREG)
    }

    /// Now and then one is immutable for the rest of the run.
    fn flags(&mut self) -> InodeFlags {
        InodeFlags {
            no_dump: self.rng.one_in(2),
            no_access_time: self.rng.one_in(2),
            project_inherit: self.rng.one_in(3),
            append_only: self.rng.one_in(20),
            immutable: self.rng.one_in(20),
        }
    }

    fn change_names(&mut self) {
        let fs = self.watch.world.fs();
        let (dir, name) = (self.dir(), self.name());
        let (to, new_name) = (self.dir(), self.name());
        let (raw, new_raw) = (name.as_bytes(), new_name.as_bytes());
        let cred = Cred { umask: [0, 0o22, 0o77][self.rng.below(3) as usize], ..USER };
        match self.rng.below(13) {
            0..3 => _ = self.watch.made(fs.create(dir, raw, 0o666, &cred)),
            3 => _ = self.watch.made(fs.mkdir(dir, raw, 0o777, &cred)),
            4 => {
                let target = vec![b't'; 1 + self.rng.below(400) as usize];
                _ = self.watch.made(fs.symlink(dir, raw, &target, &cred));
            }
            5 => {
                if let Some(attr) = self.watch.made(fs.tmpfile(dir, 0o600, &cred)) {
                    self.nameless.push(attr.ino);
                }
            }
            6 => {
                if let Some(ino) = self.rng.pick(&self.nameless)
                    && fs.link(ino, dir, raw).is_ok()
                {
                    self.nameless.retain(|nameless| *nameless != ino);
                    self.watch.moved(ino);
                }
            }
            7 => {
                if let Some(ino) = self.any(|kind| kind != mode::S_IFDIR) {
                    let words: Vec<u64> = (0..1 + self.rng.below(6)).collect();
                    let _ = fs.with_entry_words(&words).unwrap().link(ino, dir, raw);
                }
            }
            8 => {
                let _ = fs.unlink(dir, raw);
                let _ = fs.rmdir(to, new_raw);
            }
            9 => {
                let words: Vec<u64> = (0..1 + self.rng.below(6)).collect();
                let _ = fs.set_entry_words(dir, raw, &words);
                let _ = fs.remove_entry_words(to, new_raw);
            }
            _ => {
                let moved = [fs.lookup(dir, raw), fs.lookup(to, new_raw)];
                let flags = [0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE][self.rng.below(4) as usize];
                let renamed = match self.rng.one_in(4) && flags != RENAME_EXCHANGE {
                    true => fs.rename_with_whiteout(dir, raw, to, new_raw, flags, &cred),
                    false => fs.rename(dir, raw, to, new_raw, flags),
                };
                let numbers = moved.map(|attr| attr.map(|attr| attr.ino));
                // A rename to another name of the same file does nothing.
                let is_done = renamed.is_ok() && numbers[0] != numbers[1];
                for (at, attr) in moved.into_iter().enumerate() {
                    let Ok(attr) = attr else { continue };
                    if is_done && (at == 0 || flags == RENAME_EXCHANGE) {
                        self.watch.moved(attr.ino);
                    }
                    fs.forget(attr.ino, 1);
                }
            }
        }
    }

    fn change_attributes(&mut self) {
        let fs = self.watch.world.fs();
        let Some(ino) = self.any(|_| true) else { return };
        let at = |rng: &mut Prng| SetTime::At(Time { secs: rng.below(1 << 33) as i64, nanos: 3 });
        match self.rng.below(10) {
            0 => {
                let set = SetAttr { mode: Some(self.rng.below(0o1000) as u32), ..SetAttr::default() };
                let _ = fs.setattr(ino, &set, &USER);
            }
            1 => {
                let uid = Some(self.rng.below(9) as u32);
                let _ = fs.setattr(ino, &SetAttr { uid, gid: uid, ..SetAttr::default() }, &USER);
            }
            2 => {
                let (atime, mtime) = (Some(at(&mut self.rng)), Some(SetTime::Now));
                let _ = fs.setattr(ino, &SetAttr { atime, mtime, ..SetAttr::default() }, &USER);
                // The times of a file go with its contents.
                self.watch.touched(ino);
            }
            3..6 => {
                let bytes = [0, 10, 300, 5000, 40_000][self.rng.below(5) as usize];
                let value = self.rng.random_bytes(bytes);
                let name = format!("user.{}", self.rng.below(4));
                if self.rng.one_in(3) {
                    let _ = fs.removexattr(ino, name.as_bytes());
                } else {
                    let _ = fs.setxattr(ino, name.as_bytes(), &value, SetXattr::default(), &USER);
                }
            }
            6 => {
                let name = if self.rng.one_in(2) { ACL_ACCESS } else { ACL_DEFAULT };
                if self.rng.one_in(4) {
                    let _ = fs.removexattr(ino, name);
                } else {
                    let acl = super::each::acl(self.rng.below(8) as u16);
                    let _ = fs.setxattr(ino, name, &acl, SetXattr::default(), &ROOT_CRED);
                }
            }
            7 => {
                let (flags, project) = (self.flags(), self.rng.below(3) as u32);
                let _ = match self.rng.one_in(2) && !flags.project_inherit {
                    true => fs.set_inode_flags(ino, flags),
                    false => fs.set_flags_and_project(ino, flags, project),
                };
            }
            8 => {
                let hint = [Hint::NotSet, Hint::Short, Hint::Long][self.rng.below(3) as usize];
                let _ = fs.set_write_hint(ino, hint);
            }
            _ => {
                let rules: &[u8] = if self.rng.one_in(2) { b"n*=short" } else { b"n1=long\nn2=none" };
                let _ = fs.setxattr(ino, HINT_RULES, rules, SetXattr::default(), &USER);
            }
        }
    }

    fn change_contents(&mut self) {
        let fs = self.watch.world.fs();
        let Some(ino) = self.file() else { return };
        let offset = self.rng.below(40_000);
        let len = 1 + self.rng.below(20_000);
        match self.rng.below(10) {
            0..4 => {
                let data = self.rng.sample_bytes(len as usize);
                let flags = WriteFlags { append: self.rng.one_in(2), ..WriteFlags::default() };
                let _ = fs.write(ino, offset, &data, flags);
            }
            4 => {
                let set = SetAttr { size: Some(offset), mtime: Some(SetTime::Now), ..SetAttr::default() };
                let _ = fs.setattr(ino, &set, &USER);
            }
            5 => _ = fs.truncate_on_open(ino),
            6 => {
                let punch = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
                let modes = [punch, FALLOC_ZERO_RANGE, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE];
                let _ = fs.fallocate(ino, modes[self.rng.below(3) as usize], offset, len);
            }
            7 => _ = fs.fallocate(ino, if self.rng.one_in(2) { 0 } else { FALLOC_KEEP_SIZE }, offset, len),
            8 if self.clones => {
                if let Some(from) = self.file().filter(|from| *from != ino) {
                    let _ = fs.clone_range(from, 0, ino, 0, 1 << 20);
                    // It was read.
                    self.watch.touched(from);
                }
            }
            _ => {
                let _ = fs.read(ino, offset, 10, &mut Vec::new());
                let dir = self.dir();
                let _ = fs.readdir(dir, 0, &mut |_| true);
            }
        }
        self.watch.touched(ino);
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..4 => self.change_names(),
            4..6 => self.change_attributes(),
            _ => self.change_contents(),
        }
    }
}

const PROPS: [&[(&str, &str)]; 3] = [
    &[("recordsize", "4K")],
    &[("recordsize", "4K"), ("xattr", "dir"), ("dnodesize", "1k")],
    &[("atime", "on")],
];

#[test]
fn random_changes_come_back() {
    for seed in 0..30 {
        let world = World::with_log(seed, PROPS[seed as usize % 3], 64 << 20);
        let mut actor = Actor::new(seed, Watch::new(world), false);
        for step in 1..=250 {
            actor.step();
            if actor.rng.one_in(70) {
                actor.watch.commit();
            }
            if step % 50 == 0 {
                let world = &actor.watch.world;
                let machine = world.replayed(&world.recorded());
                let what = format!("seed {seed} step {step}");
                assert_same(&tree(machine.fs()), &tree(&world.fs()), &what);
                if world.fs().unlinked_count() == Ok(0) {
                    assert_eq!(objects(machine.fs()), objects(&world.fs()), "{what}: objects");
                }
            }
        }
    }
}

/// Frames of all changes that no commit contains, as a server keeps them.
#[derive(Clone, Default)]
struct TestKeeper(Arc<Mutex<Vec<KeptChange>>>);

/// Its txg, number and record.
type KeptChange = (Txg, u64, Vec<u8>);

impl ChangeKeeper for TestKeeper {
    fn reserve(&self, _: usize) -> bool {
        true
    }

    fn unreserve(&self, _: usize) {}

    fn keep(&self, txg: Txg, change: u64, pieces: &[&[u8]]) {
        self.0.lock().push((txg, change, pieces.concat()));
    }

    fn release(&self, durable: Txg) {
        self.0.lock().retain(|(txg, ..)| *txg > durable);
    }
}

impl TestKeeper {
    fn frames(&self, set: ObjsetId) -> Vec<u8> {
        let mut frames = Vec::new();
        for (txg, change, body) in &*self.0.lock() {
            Frame { set, change: *change, txg: *txg, body }.append_to(&mut frames);
        }
        frames
    }

    /// Copies that share blocks.
    fn clones(&self) -> usize {
        self.0.lock().iter().filter(|(.., body)| body.first().is_some_and(|kind| kind & 0x7f == 18)).count()
    }
}

/// What no log has comes back too: copies that share blocks, and files without a name that get one later.
#[test]
fn all_that_a_server_kept_comes_back() {
    let mut clones = 0;
    for seed in 400..420 {
        let (world, keeper) =
            (World::with_log(seed, PROPS[seed as usize % 2], 64 << 20), TestKeeper::default());
        world.fs().set_keeper(Box::new(keeper.clone()));
        let mut actor = Actor::new(seed, Watch::new(world), true);
        for step in 1..=250 {
            actor.step();
            if actor.rng.one_in(30) {
                actor.watch.commit();
            }
            if step % 25 == 0 {
                let world = &actor.watch.world;
                let machine = world.replayed(&keeper.frames(world.fs().dataset().object_set().id()));
                assert_same(&tree(machine.fs()), &tree(&world.fs()), &format!("seed {seed} step {step}"));
            }
        }
        clones += keeper.clones();
    }
    assert!(clones > 20, "{clones} copies shared blocks");
}

/// After each `fsync` the power fails, and the log is replayed.
fn run_with_fsyncs(seed: u64, bytes_max: usize, fails: bool) -> Watch {
    run_with_lists(seed, (bytes_max, 0), fails)
}

/// The same, with a bound of the log's and one of all lists together.
fn run_with_lists(seed: u64, (bytes_max, lists_bytes_max): (usize, usize), fails: bool) -> Watch {
    let world = World::with_log(seed, PROPS[seed as usize % 3], bytes_max);
    world.log.lists_bytes_max.store(lists_bytes_max, Ordering::Relaxed);
    let mut actor = Actor::new(seed, Watch::new(world), true);
    for _ in 0..150 {
        actor.step();
        if fails {
            let log = &actor.watch.world.log;
            log.is_closed.store(actor.rng.one_in(8), Ordering::Relaxed);
            log.fails.store(actor.rng.one_in(8), Ordering::Relaxed);
        }
        if actor.rng.one_in(4) {
            let ino = actor.file().filter(|_| !actor.rng.one_in(5)).unwrap_or_else(|| actor.dir());
            actor.watch.fsync(ino);
        }
        if actor.rng.one_in(40) {
            actor.watch.commit();
        }
    }
    actor.watch
}

#[test]
fn what_was_synced_comes_back_whole() {
    for seed in 0..24 {
        let watch = run_with_fsyncs(seed, 1 << 20, false);
        assert!(watch.logged > 15, "seed {seed}: {} of {}", watch.logged, watch.synced);
    }
}

#[test]
fn what_is_too_large_for_the_log_is_committed() {
    let (mut synced, mut logged) = (0, 0);
    for seed in 100..112 {
        let watch = run_with_fsyncs(seed, 8000, false);
        (synced, logged) = (synced + watch.synced, logged + watch.logged);
    }
    assert!(logged > synced / 10 && logged < synced * 9 / 10, "{logged} of {synced}");
}

#[test]
fn files_that_nobody_synced_need_a_commit_when_the_lists_are_full() {
    let (mut unbounded, mut bounded) = (0, 0);
    for seed in 400..424 {
        unbounded += run_with_fsyncs(seed, 1 << 20, false).logged;
        // Names stay far below.
        bounded += run_with_lists(seed, (1 << 20, 30_000), seed % 2 == 1).logged;
    }
    assert!(bounded > unbounded / 3 && bounded < unbounded, "{bounded} and {unbounded}");
}

#[test]
fn what_the_log_does_not_take_is_committed() {
    for seed in 200..212 {
        run_with_fsyncs(seed, 1 << 20, true);
    }
}

#[test]
fn without_a_log_each_fsync_commits() {
    for seed in 300..304 {
        let watch = run_with_fsyncs(seed, 0, false);
        // An inode that was read again may have changed, but a commit finds nothing.
        assert!(watch.world.logged().is_empty() && watch.logged < watch.synced / 5);
    }
}
