//! Random operations on a file system and its model, and the model's state at the end of each txg.

use crate::machine::{Machine, USER};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_device::sim::Fault;
use terrane_oracle::{Content, Failure, Model, Node, ensure};
use terrane_posix::{
    Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Ino, Job, RENAME_EXCHANGE, RENAME_NOREPLACE, ReservedBytes,
    RewriteSpec, SetAttr, WriteFlags,
};
use terrane_store::errors::{LossCause, LostFile};
use terrane_txg::hold::ZoneHold;
use terrane_wire::Prng;

/// Names of extended attributes.
pub const NAMES: [&str; 7] = [
    "user.a",
    "user.b",
    "trusted.c",
    "security.d",
    "user.a name so long that the smallest dnode, even one with nothing else in it, has no room for it. It says of itself that it goes \
     on like this for quite a while, and it does, until it has about as many bytes as a name may have: 2...",
    "trusted.f",
    "user.g",
];

/// The model after this many operations.
#[derive(Clone)]
pub struct State {
    /// Operations so far.
    pub steps: u64,
    /// The model after them.
    pub model: Arc<Model>,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The operation was done, and the model agrees.
    Done,
    /// Power is off, or the pool has stopped.
    Stopped,
}

/// Txgs to which a crash can still lead back, and some more.
const HISTORY: usize = 64;

/// The object set of entries in the error log: no set has that number.
pub(crate) const ERROR_LOG_OBJSET: u64 = 99;

/// A file system and its model, to which the same random operations are applied.
pub struct Workload {
    /// The pool and its file system.
    pub machine: Machine,
    /// The expected content.
    pub model: Model,
    /// Source of all choices.
    pub rng: Prng,
    /// Operations so far.
    pub(crate) steps: u64,
    /// Possible states of the tree at the end of a txg.
    history: BTreeMap<u64, Vec<State>>,
    /// The durable promise: a crash leads to a state of at least this many operations.
    pub(crate) promised: u64,
    /// The last operation that changed an inode.
    pub(crate) touched: BTreeMap<Ino, u64>,
    /// Zones held by a long reader.
    pub(crate) pinned: Option<ZoneHold>,
    /// Maximum size of files, in bytes.
    pub file_bytes: u64,
    /// The operations to choose from.
    pub mix: OpMix,
    /// Reads fail now and then while txgs sync.
    pub reads_fail: bool,
    /// Files are rewritten in other forms meanwhile, which no reader may notice.
    pub rewrites: bool,
    /// The most that one rewrite changed: bytes of records, and files.
    pub rewritten: u64,
    /// The model between the operations of a step: a txg may end there.
    pub(crate) between: Vec<Arc<Model>>,
    /// Operations at which an entry was written to the error log.
    logged_errors: BTreeSet<u64>,
}

/// What a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpMix {
    /// All operations.
    Everything,
    /// Only names of all lengths in one directory, alternately more and fewer: it goes through every kind,
    /// both ways.
    Names,
    /// The same with words beside the names: slots get wider and narrower, too.
    Words,
    /// Only extended attributes of few files: they change their home again and again.
    Attributes,
    /// Only contents of files on a nearly full pool, so that GC never rests.
    Churn,
    /// Only few files, which share blocks.
    Clones,
}

impl Workload {
    /// Continues from the content of a committed pool.
    pub fn new(machine: Machine, model: Model, seed: u64) -> Workload {
        let state = State { steps: 0, model: Arc::new(model.clone()) };
        let history = BTreeMap::from([(machine.durable_txg().0, vec![state])]);
        Workload {
            machine,
            model,
            rng: Prng::new(seed),
            steps: 0,
            history,
            promised: 0,
            touched: BTreeMap::new(),
            pinned: None,
            file_bytes: 20_000,
            mix: OpMix::Everything,
            reads_fail: false,
            rewrites: false,
            rewritten: 0,
            between: Vec::new(),
            logged_errors: BTreeSet::new(),
        }
    }

    /// On a new machine, with an empty model.
    pub fn fresh(machine: Machine, seed: u64) -> Workload {
        let model = Model::new(machine.fs().root());
        Workload::new(machine, model, seed)
    }

    /// The possible states after a crash that leads to this txg.
    pub fn states(&self, txg: u64) -> &[State] {
        self.history.get(&txg).map_or(&[], Vec::as_slice)
    }

    /// Operations that a crash must not undo.
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// One operation on both.
    pub fn step(&mut self) -> Result<Step, Failure> {
        let before = State { steps: self.steps, model: Arc::new(self.model.clone()) };
        let first = self.machine.pool.open_txg().0;
        self.steps += 1;
        self.between.clear();
        let outcome = match self.mix {
            OpMix::Everything => self.act(),
            OpMix::Names | OpMix::Words => self.act_on_names(),
            OpMix::Attributes => self.act_on_few_files(),
            OpMix::Churn => self.churn(),
            OpMix::Clones => self.act_on_clones(),
        };
        if self.steps.is_multiple_of(5) {
            let _ = self.machine.fs().shrink_dirs().step(1);
        }
        if self.steps.is_multiple_of(3) {
            // For pools whose relocation index has no memory. Neither its changes nor its failures may be
            // visible.
            let _ = self.machine.fs().rewrite_relocated().step(1);
        }
        if self.steps.is_multiple_of(11) {
            self.log_error();
        }
        let rewritten = if self.rewrites { self.rewrite() } else { Ok(()) };
        let last = self.machine.pool.open_txg().0;
        let dead = !self.machine.is_alive();
        let after = State { steps: self.steps, model: Arc::new(self.model.clone()) };
        // Txgs that ended meanwhile may hold the operation or not; one that was cut may hold the state before
        // it.
        for txg in first..last + u64::from(dead) {
            let states = self.history.entry(txg).or_default();
            states.push(before.clone());
            // They count as the state before: the step is not complete.
            let between = self.between.iter().cloned();
            states.extend(between.map(|model| State { steps: before.steps, model }));
            states.push(after.clone());
        }
        while self.history.len() > HISTORY {
            self.history.pop_first();
        }
        if dead {
            return Ok(Step::Stopped);
        }
        outcome.and(rewritten).map_err(|failure| failure.within(format_args!("operation {}", self.steps)))?;
        Ok(Step::Done)
    }

    /// Writes an entry that the error log must keep, whatever crashes.
    fn log_error(&mut self) {
        let file = LostFile { generation: self.steps, cause: LossCause::NotWrittenBack };
        self.machine.pool.error_log().note_file((ERROR_LOG_OBJSET, self.steps), file);
        if self.machine.fs().record_errors().is_ok() {
            self.logged_errors.insert(self.steps);
        }
    }

    /// The entries that the error log must have after a crash, by operation. An entry is written after the
    /// operation itself, which may be an `fsync`.
    pub(crate) fn expected_errors(&self, promised: u64) -> impl Iterator<Item = u64> {
        self.logged_errors.range(..promised).copied()
    }

    /// Some steps of a rewrite, which is started if none is in progress, and cancelled now and then.
    fn rewrite(&mut self) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let ended = |errno: Errno| errno == Errno::ENOSPC || errno == Errno::EIO;
        if !fs.rewrite().is_running() {
            let words = ["lz4", "zstd-3", "zstd-9", "gzip-1", "off", "zle"];
            let compression = self.rng.pick(&words).and_then(|word| word.parse().ok());
            let record_size =
                self.rng.pick(&[None, None, Some(512), Some(16 << 10), Some(4 << 10)]).flatten();
            let spec = RewriteSpec { root: self.model.root, recursive: true, compression, record_size };
            let begun = fs.rewrite().begin(&spec);
            ensure(begun.is_ok() || begun.is_err_and(ended) || !self.machine.is_alive(), || {
                format!("beginning a rewrite: {begun:?}")
            })?;
        }
        for _ in 0..self.rng.below(6) {
            let step = fs.rewrite().step(1 << self.rng.below(20));
            ensure(step.is_ok() || !self.machine.is_alive(), || format!("a rewrite: {step:?}"))?;
        }
        let figures = fs.rewrite().progress().map(|status| status.figures).unwrap_or_default();
        self.rewritten = self.rewritten.max(figures.before_bytes + figures.reshaped);
        let failed = figures.errors;
        ensure(failed == 0 || !self.machine.is_alive(), || format!("a rewrite: {failed} errors"))?;
        if self.rng.one_in(40) {
            let cancelled = fs.rewrite().cancel();
            ensure(cancelled.is_ok() || !self.machine.is_alive(), || format!("a rewrite: {cancelled:?}"))?;
        }
        Ok(())
    }

    /// Makes everything so far a promise.
    pub fn sync(&mut self) -> Result<Step, Failure> {
        let first = self.machine.pool.open_txg().0;
        let outcome = self.sync_among_bad_reads();
        let last = self.machine.pool.open_txg().0;
        let dead = !self.machine.is_alive();
        let state = State { steps: self.steps, model: Arc::new(self.model.clone()) };
        for txg in first..last + u64::from(dead) {
            self.history.entry(txg).or_default().push(state.clone());
        }
        match outcome {
            Ok(()) => {
                self.promised = self.steps;
                // If there was nothing to commit, the newest txg was this state already.
                self.history.entry(self.machine.durable_txg().0).or_default().push(state);
            }
            Err(errno) => ensure(dead, || format!("sync: {errno}"))?,
        }
        Ok(if dead { Step::Stopped } else { Step::Done })
    }

    /// A burst of failing reads ends before the retries of one read are used up.
    fn sync_among_bad_reads(&mut self) -> Result<(), Errno> {
        let mut rng = Prng::new(self.steps ^ 0x4ead);
        if !self.reads_fail || !rng.one_in(3) {
            return self.machine.fs().sync();
        }
        let device = &self.machine.device;
        self.machine.pool.drop_cache();
        let fault = device.inject(Fault::ReadError { zone: None, one_in: 2 + rng.below(3) as u32 });
        let outcome = self.machine.fs().sync();
        device.disarm(fault);
        outcome
    }

    /// Creates files in the root directory until the pool is full; returns their names.
    pub fn fill(&mut self, round: u64) -> Result<Vec<String>, Failure> {
        let fs = Arc::clone(self.machine.fs());
        let root = self.model.root;
        let mut names = Vec::new();
        for number in 0..10_000 {
            let name = format!("fill {round} {number}");
            let made = fs.create(root, name.as_bytes(), 0o644, &USER);
            let Some(attr) = self.expect_same("create", made, Ok(()))? else { break };
            let node = Node::file(0o644);
            self.model.add_node(root, &name, attr.ino, node);
            let len = 1 + self.rng.below(self.file_bytes) as usize;
            let data = self.rng.sample_bytes(len);
            let found = fs.write(attr.ino, 0, &data, WriteFlags::default());
            fs.forget(attr.ino, 1);
            self.model.forget(attr.ino);
            names.push(name);
            let Some(written) = self.expect_same("write", found, Ok(()))? else { break };
            let kept = data.get(..written as usize).unwrap_or(&data);
            self.model.append(attr.ino, kept);
        }
        Ok(names)
    }

    /// Removes a file from the root directory.
    pub fn unlink(&mut self, name: &str) -> Result<(), Failure> {
        let root = self.model.root;
        let found = self.machine.fs().unlink(root, name.as_bytes());
        let expected = self.model.remove(root, name, false);
        ensure(found == expected, || format!("unlink {name}: {found:?}, expected {expected:?}"))
    }

    /// Compares the answers, unless the machine died, and returns whether the model should follow.
    pub(crate) fn expect_same<T>(
        &self,
        what: &str,
        found: Result<T, Errno>,
        expected: Result<(), Errno>,
    ) -> Result<Option<T>, Failure> {
        if !self.machine.is_alive() || matches!(found, Err(Errno::ENOSPC)) {
            return Ok(None);
        }
        let shown = found.as_ref().map(|_| ()).map_err(|errno| *errno);
        ensure(shown == expected, || format!("{what}: {shown:?}, expected {expected:?}"))?;
        Ok(found.ok())
    }

    fn any_dir(&mut self) -> Ino {
        let dirs = self.model.dirs();
        self.rng.pick(&dirs).unwrap_or(self.model.root)
    }

    fn any_name(&mut self) -> String {
        let short = self.rng.below(9);
        match self.rng.below(8) {
            // No slot can hold it: a directory becomes fat for it, and shrinks when it is removed.
            0 if short == 8 => format!("{:0>250}", "the longest name of all"),
            0 => format!("a longer name that no small slot can hold, and a half, number {short}"),
            _ => format!("n{short}"),
        }
    }

    fn any_file(&mut self) -> Option<Ino> {
        let files = self.model.files();
        self.rng.pick(&files)
    }

    pub(crate) fn touch(&mut self, ino: Ino) {
        self.touched.insert(ino, self.steps);
    }

    fn act(&mut self) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let (dir, name) = (self.any_dir(), self.any_name());
        let raw = name.as_bytes();
        match self.rng.below(32) {
            0..4 => {
                let expected = self.model.may_add(dir, &name);
                let made = fs.create(dir, raw, 0o644, &USER);
                if let Some(attr) = self.expect_same(&format!("create {name} in {dir}"), made, expected)? {
                    let node = Node::file(0o644);
                    self.model.add_node(dir, &name, attr.ino, node);
                    self.touch(attr.ino);
                }
            }
            4..6 => {
                let expected = self.model.may_add(dir, &name);
                let made = fs.mkdir(dir, raw, 0o755, &USER);
                if let Some(attr) = self.expect_same(&format!("mkdir {name} in {dir}"), made, expected)? {
                    self.model.add_node(dir, &name, attr.ino, Node::dir(dir, 0o755));
                }
            }
            6 => {
                let len = self.rng.pick(&[1, 50, 160, 161, 3000]).unwrap_or(1);
                let target: Vec<u8> = self.rng.sample_bytes(len).into_iter().map(|byte| byte | 1).collect();
                let expected = self.model.may_add(dir, &name);
                let made = fs.symlink(dir, raw, &target, &USER);
                if let Some(attr) = self.expect_same(&format!("symlink {name} in {dir}"), made, expected)? {
                    let node = Node::link(target);
                    self.model.add_node(dir, &name, attr.ino, node);
                }
            }
            7 => {
                let Some(ino) = self.any_file() else { return Ok(()) };
                let mut model = self.model.clone();
                let expected = model.add_link(ino, dir, &name);
                let found = fs.link(ino, dir, raw);
                if self.expect_same(&format!("link {ino} to {name} in {dir}"), found, expected)?.is_some() {
                    self.model = model;
                    self.touch(ino);
                }
            }
            8..11 => {
                let wants_dir = self.rng.one_in(3);
                let mut model = self.model.clone();
                let expected = model.remove(dir, &name, wants_dir);
                let found = if wants_dir { fs.rmdir(dir, raw) } else { fs.unlink(dir, raw) };
                if self.expect_same(&format!("remove {name} in {dir}"), found, expected)?.is_some() {
                    self.model = model;
                }
            }
            11..15 => {
                let (new_dir, new_name) = (self.any_dir(), self.any_name());
                let flags = self.rng.pick(&[0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]).unwrap_or(0);
                let mut model = self.model.clone();
                let expected = model.rename(dir, &name, new_dir, &new_name, flags);
                let found = fs.rename(dir, raw, new_dir, new_name.as_bytes(), flags);
                let what = format!("rename {name} in {dir} to {new_name} in {new_dir}, flags {flags}");
                if self.expect_same(&what, found, expected)?.is_some() {
                    self.model = model;
                }
            }
            15..21 => {
                let Some(ino) = self.any_file() else { return Ok(()) };
                self.change_file(ino)?;
            }
            26.. => {
                let all: Vec<Ino> = self.model.nodes.keys().copied().collect();
                if let Some(ino) = self.rng.pick(&all) {
                    self.act_on_attributes(ino, &NAMES)?;
                }
            }
            21 => drop(self.sync()?),
            22 | 23 => {
                let Some(ino) = self.any_file() else { return Ok(()) };
                let found = fs.fsync(ino, self.steps.is_multiple_of(2));
                if self.expect_same("fsync", found, Ok(()))?.is_some() {
                    // Earlier changes of this file are a promise now, and with them everything before.
                    self.promised = self.promised.max(self.touched.get(&ino).copied().unwrap_or(0));
                }
            }
            _ => {
                let open: Vec<Ino> = self.model.lookups.keys().copied().collect();
                if let Some(ino) = self.rng.pick(&open) {
                    fs.forget(ino, self.model.lookups.get(&ino).copied().unwrap_or(0));
                    self.model.forget(ino);
                }
            }
        }
        Ok(())
    }

    fn act_on_names(&mut self) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let dir = self.model.root;
        let len = self.rng.pick(&[2, 2, 2, 2, 2, 60, 110, 240, 250]).unwrap_or(2);
        let name = format!("{:0>len$}", self.rng.below(60));
        let draw = self.rng.next_u64() as usize;
        let old = match self.model.nodes.get(&dir).map(|node| &node.content) {
            Some(Content::Dir { names, .. }) => names.keys().nth(draw % names.len().max(1)).cloned(),
            _ => None,
        };
        let grows = (self.steps / 40).is_multiple_of(2);
        if self.mix == OpMix::Words && self.rng.one_in(2) {
            return self.act_on_words(&old.unwrap_or(name));
        }
        match (old, self.rng.below(4)) {
            (Some(old), 0) => {
                let mut model = self.model.clone();
                let expected = model.rename(dir, &old, dir, &name, 0);
                let found = fs.rename(dir, old.as_bytes(), dir, name.as_bytes(), 0);
                if self.expect_same(&format!("rename {old} to {name}"), found, expected)?.is_some() {
                    self.model = model;
                }
            }
            (Some(old), _) if !grows => {
                let mut model = self.model.clone();
                let expected = model.remove(dir, &old, false);
                let found = fs.unlink(dir, old.as_bytes());
                if self.expect_same(&format!("unlink {old}"), found, expected)?.is_some() {
                    self.model = model;
                }
            }
            _ => {
                let expected = self.model.may_add(dir, &name);
                let made = fs.create(dir, name.as_bytes(), 0o644, &USER);
                if let Some(attr) = self.expect_same(&format!("create {name}"), made, expected)? {
                    let node = Node::file(0o644);
                    self.model.add_node(dir, &name, attr.ino, node);
                    fs.forget(attr.ino, 1);
                    self.model.forget(attr.ino);
                }
            }
        }
        Ok(())
    }

    /// Sets or removes the words beside a name of the root directory.
    fn act_on_words(&mut self, name: &str) -> Result<(), Failure> {
        let dir = self.model.root;
        let count = self.rng.pick(&[0, 1, 3, 3, 3, 6]).unwrap_or(0);
        let words: Vec<u64> = (0..count).map(|_| self.rng.next_u64() >> self.rng.below(65).min(63)).collect();
        let mut model = self.model.clone();
        let expected = model.set_words(dir, name, &words);
        let fs = self.machine.fs();
        let found = match words.as_slice() {
            [] => fs.remove_entry_words(dir, name.as_bytes()),
            words => fs.set_entry_words(dir, name.as_bytes(), words),
        };
        if self.expect_same(&format!("words {words:x?} of {name}"), found, expected)?.is_some() {
            self.model = model;
        }
        Ok(())
    }

    pub(crate) fn change_file(&mut self, ino: Ino) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let (at, len) = (self.rng.below(self.file_bytes), 1 + self.rng.below(self.file_bytes / 2));
        let (from, to) = (at as usize, (at + len) as usize);
        match self.rng.below(6) {
            0..3 => {
                let mut data = self.rng.sample_bytes(len as usize);
                let append = self.rng.one_in(3) && (self.model.bytes(ino).len() as u64) < 2 * self.file_bytes;
                // Some writes change nothing, so that nopwrite keeps the existing blocks.
                if !append && data.first().is_some_and(|byte| byte % 4 == 0) {
                    let held = self.model.bytes(ino);
                    let same = held.get(from..to.min(held.len())).unwrap_or(&[]);
                    data[..same.len()].copy_from_slice(same);
                }
                let flags = WriteFlags { append, ..WriteFlags::default() };
                let found = fs.write(ino, at, &data, flags);
                if let Some(written) = self.expect_same("write", found, Ok(()))? {
                    let written = written as usize;
                    ensure(written == data.len(), || format!("write: {written} of {} bytes", data.len()))?;
                    if append {
                        self.model.append(ino, &data);
                    } else {
                        self.model.write(ino, at, &data);
                    }
                    self.touch(ino);
                }
            }
            3 | 4 => {
                let size = if self.rng.one_in(4) { 0 } else { at };
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                if self.expect_same("truncate", fs.setattr(ino, &set, &USER), Ok(()))?.is_some() {
                    self.model.resize(ino, size);
                    self.touch(ino);
                }
            }
            _ if at % 3 == 0 => {
                // It is visible only in the free space.
                self.expect_same("reserve", fs.fallocate(ino, FALLOC_KEEP_SIZE, at, len), Ok(()))?;
                let ReservedBytes { by_pool: promised, by_files: sum } = fs.reserved_bytes();
                ensure(promised == sum, || format!("{promised} bytes are promised, files have {sum}"))?;
            }
            _ => {
                let found = fs.fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, at, len);
                let mut model = self.model.clone();
                let expected = model.punch(ino, at..at + len);
                if self.expect_same("punch", found, expected)?.is_some() {
                    self.model = model;
                    self.touch(ino);
                }
            }
        }
        Ok(())
    }
}
