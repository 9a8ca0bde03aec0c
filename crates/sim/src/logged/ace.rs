//! All short sequences of calls on a few names, each with a power cut right behind its last persistence point.
//!
//! The bounds are those of CrashMonkey's generator: files `foo` and `bar` in the root, `A`, `B` and `A/C`, and one persistence point
//! behind each call. What a call needs is made before it. Cuts behind earlier persistence points belong to shorter sequences.

use super::calls::Allocation;
use super::world::{Step, World};
use super::{fresh, logged_plan};
use crate::machine::Plan;
use terrane_device::sim::Survival;
use terrane_oracle::{Failure, ensure};
use terrane_posix::Ino;

/// The files.
const FILES: [&str; 8] = ["foo", "bar", "A/foo", "A/bar", "B/foo", "B/bar", "A/C/foo", "A/C/bar"];
/// The directories.
const DIRS: [&str; 3] = ["A", "B", "A/C"];
/// Bytes of a file that a call needs.
const FILE_BYTES: usize = 10_000;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are system calls, with their paths")]
pub enum Call {
    Creat(&'static str),
    Mkdir(&'static str),
    Falloc(&'static str, Allocation),
    /// Behind the end of the file.
    Append(&'static str),
    Overwrite(&'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rename(&'static str, &'static str),
    Rmdir(&'static str),
    Truncate(&'static str),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
    Symlink(&'static str),
}

impl Call {
    /// All calls within the bounds.
    pub fn all() -> Vec<Call> {
        let mut all = Vec::new();
        for file in FILES {
            all.extend([
                Call::Creat(file),
                Call::Falloc(file, Allocation::Grow),
                Call::Falloc(file, Allocation::KeepSize),
                Call::Append(file),
                Call::Overwrite(file),
                Call::Unlink(file),
                Call::Truncate(file),
                Call::SetXattr(file),
                Call::RemoveXattr(file),
                Call::Symlink(file),
            ]);
            for other in FILES.into_iter().filter(|other| *other != file) {
                all.extend([Call::Link(file, other), Call::Rename(file, other)]);
            }
        }
        for dir in DIRS {
            all.extend([Call::Mkdir(dir), Call::Rmdir(dir)]);
            all.extend(DIRS.into_iter().filter(|to| *to != dir).map(|to| Call::Rename(dir, to)));
        }
        all
    }

    /// The call where `foo` is called `bar`, and the other way round.
    fn renamed(self) -> Call {
        match self {
            Call::Creat(path) => Call::Creat(renamed(path)),
            Call::Mkdir(path) => Call::Mkdir(renamed(path)),
            Call::Falloc(path, how) => Call::Falloc(renamed(path), how),
            Call::Append(path) => Call::Append(renamed(path)),
            Call::Overwrite(path) => Call::Overwrite(renamed(path)),
            Call::Link(from, to) => Call::Link(renamed(from), renamed(to)),
            Call::Unlink(path) => Call::Unlink(renamed(path)),
            Call::Rename(from, to) => Call::Rename(renamed(from), renamed(to)),
            Call::Rmdir(path) => Call::Rmdir(renamed(path)),
            Call::Truncate(path) => Call::Truncate(renamed(path)),
            Call::SetXattr(path) => Call::SetXattr(renamed(path)),
            Call::RemoveXattr(path) => Call::RemoveXattr(renamed(path)),
            Call::Symlink(path) => Call::Symlink(renamed(path)),
        }
    }

    /// Paths that it is about.
    fn paths(self) -> (&'static str, Option<&'static str>) {
        match self {
            Call::Link(from, to) | Call::Rename(from, to) => (from, Some(to)),
            Call::Creat(path)
            | Call::Mkdir(path)
            | Call::Falloc(path, _)
            | Call::Append(path)
            | Call::Overwrite(path)
            | Call::Unlink(path)
            | Call::Rmdir(path)
            | Call::Truncate(path)
            | Call::SetXattr(path)
            | Call::RemoveXattr(path)
            | Call::Symlink(path) => (path, None),
        }
    }
}

/// What follows a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// `fsync` of its first or only path.
    First,
    /// `fsync` of its second path.
    Second,
    /// `fsync` of the directory of its first path.
    FirstParent,
    /// `fsync` of the directory of its second path.
    SecondParent,
    /// `sync`
    All,
    /// Nothing. Not behind the last call.
    Nothing,
}

const PERSISTS: [Persist; 6] = [
    Persist::First,
    Persist::Second,
    Persist::FirstParent,
    Persist::SecondParent,
    Persist::All,
    Persist::Nothing,
];

/// Calls, each with what follows it.
pub type Sequence = Vec<(Call, Persist)>;

/// All sequences of one length, by number.
pub struct Sequences {
    calls: Vec<Call>,
    /// For each call, the index of its [`Call::renamed`].
    renamed: Vec<u64>,
    len: u32,
}

impl Sequences {
    /// Those of `len` calls.
    pub fn new(len: u32) -> Sequences {
        let calls = Call::all();
        let index = |call: &Call| calls.iter().position(|other| *other == call.renamed()).unwrap_or(0) as u64;
        let renamed = calls.iter().map(index).collect();
        Sequences { calls, renamed, len }
    }

    /// The number of the sequence where `foo` is called `bar`, and the other way round.
    fn renamed(&self, number: u64) -> Option<u64> {
        let (choices, persists) = (self.choices(), PERSISTS.len() as u64);
        let mut renamed = 0;
        for nth in 0..self.len {
            let place = choices.pow(nth);
            let choice = number / place % choices;
            let call = self.renamed.get((choice / persists) as usize)?;
            renamed += (call * persists + choice % persists) * place;
        }
        Some(renamed)
    }

    fn choices(&self) -> u64 {
        (self.calls.len() * PERSISTS.len()) as u64
    }

    /// Their number, with those that say the same twice.
    pub fn count(&self) -> u64 {
        self.choices().pow(self.len)
    }

    /// The sequence with this number. `None`: it is the same as another one, or would be if `foo` were called `bar`.
    pub fn get(&self, number: u64) -> Option<Sequence> {
        if self.renamed(number)? < number {
            return None;
        }
        let mut rest = number;
        let mut sequence = Vec::new();
        for nth in 1..=self.len {
            let (choice, next) = (rest % self.choices(), rest / self.choices());
            rest = next;
            let call = self.calls.get((choice / PERSISTS.len() as u64) as usize)?;
            let persist = *PERSISTS.get((choice % PERSISTS.len() as u64) as usize)?;
            let (first, second) = call.paths();
            let is_new = match persist {
                Persist::First => !matches!(call, Call::Unlink(_) | Call::Rmdir(_) | Call::Rename(..)),
                Persist::Second => second.is_some(),
                Persist::SecondParent => second.is_some_and(|second| split(second).0 != split(first).0),
                Persist::FirstParent | Persist::All => true,
                Persist::Nothing => nth < self.len,
            };
            if !is_new {
                return None;
            }
            sequence.push((*call, persist));
        }
        Some(sequence)
    }
}

/// A path where `foo` is called `bar`, and the other way round.
fn renamed(path: &'static str) -> &'static str {
    let other = match split(path) {
        (dir, "foo") => (dir, "bar"),
        (dir, "bar") => (dir, "foo"),
        same => same,
    };
    FILES.into_iter().find(|file| split(file) == other).unwrap_or(path)
}

/// Directory and name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Calls by path, on a pool that goes on after each simulated power cut.
pub struct Shell {
    /// The pool.
    pub world: World,
    /// Whether pools are checked after each power cut.
    pub checks: bool,
    cuts: u64,
}

impl Shell {
    /// An empty tree, and a log that is open.
    pub fn new(plan: &Plan) -> Result<Shell, Failure> {
        let mut shell = Shell { world: fresh(plan)?, checks: true, cuts: 0 };
        shell.creat("first")?;
        shell.fsync("first")?;
        shell.clear()?;
        ensure(shell.world.machine.pool.log_bytes_max() > 0, || "there is no log".into())?;
        Ok(shell)
    }

    /// With the plan of a seed.
    pub fn seeded(seed: u64) -> Result<Shell, Failure> {
        Shell::new(&logged_plan(seed))
    }

    /// The inode of a path.
    pub fn find(&self, path: &str) -> Option<Ino> {
        let model = &self.world.tree.model;
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(model.root, |dir, name| model.find(dir, name))
    }

    fn at(&self, path: &str) -> Result<Ino, Failure> {
        self.find(path).ok_or_else(|| Failure(format!("there is no '{path}'")))
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(Ino, &'p str), Failure> {
        let (dir, name) = split(path);
        Ok((self.at(dir)?, name))
    }

    /// `creat`
    pub fn creat(&mut self, path: &str) -> Result<(), Failure> {
        let (dir, name) = self.parent(path)?;
        self.world.create(dir, name).map(drop)
    }

    /// `mkdir`
    pub fn mkdir(&mut self, path: &str) -> Result<(), Failure> {
        let (dir, name) = self.parent(path)?;
        self.world.mkdir(dir, name).map(drop)
    }

    /// Writes bytes that depend on the offset.
    pub fn write(&mut self, path: &str, at: u64, len: usize) -> Result<(), Failure> {
        let ino = self.at(path)?;
        let data = (0..len as u64).map(|nth| ((at + nth) / 7 % 251 + 1) as u8).collect();
        self.world.write(ino, at, data)
    }

    /// `link`
    pub fn link(&mut self, from: &str, to: &str) -> Result<(), Failure> {
        let (ino, (dir, name)) = (self.at(from)?, self.parent(to)?);
        self.world.link(ino, dir, name)
    }

    /// `unlink`
    pub fn unlink(&mut self, path: &str) -> Result<(), Failure> {
        let (dir, name) = self.parent(path)?;
        self.world.remove(dir, name, false)
    }

    /// `rename`
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Failure> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        self.world.rename(from, to, 0)
    }

    /// `fallocate`
    pub fn fallocate(&mut self, path: &str, how: Allocation, at: u64, len: u64) -> Result<(), Failure> {
        let ino = self.at(path)?;
        self.world.fallocate(ino, how, at..at + len)
    }

    /// `fsync`, and a power cut behind it.
    pub fn fsync(&mut self, path: &str) -> Result<(), Failure> {
        let ino = self.at(path)?;
        ensure(self.world.fsync(ino)? == Step::Done, || "the power is on".into())?;
        self.cut()
    }

    /// `sync`, and a power cut behind it.
    pub fn sync(&mut self) -> Result<(), Failure> {
        ensure(self.world.sync()? == Step::Done, || "the power is on".into())?;
        self.cut()
    }

    /// Compares what would be left if the power failed now.
    fn cut(&mut self) -> Result<(), Failure> {
        self.cuts += 1;
        let survival = match self.cuts % 3 {
            0 => Survival::Seeded(self.cuts),
            1 => Survival::Nothing,
            _ => Survival::Everything,
        };
        let left = self.world.machine.device.restarted(survival);
        self.world.check_cut(&left, self.cuts, self.checks)
    }

    /// Removes everything, and commits.
    pub fn clear(&mut self) -> Result<(), Failure> {
        let root = self.world.tree.model.root;
        self.clear_dir(root)?;
        self.world.machine.fs().forget_all();
        let open: Vec<Ino> = self.world.tree.model.lookups.keys().copied().collect();
        open.into_iter().for_each(|ino| self.world.tree.model.forget(ino));
        ensure(self.world.sync()? == Step::Done, || "the power is on".into())
    }

    fn clear_dir(&mut self, dir: Ino) -> Result<(), Failure> {
        for (name, ino) in self.world.tree.names(dir) {
            let is_dir = self.world.tree.model.is_dir(ino);
            if is_dir {
                self.clear_dir(ino)?;
            }
            self.world.remove(dir, &name, is_dir)?;
        }
        Ok(())
    }

    /// Makes what a call needs: its directories, its file, its attribute.
    fn prepare(&mut self, call: Call) -> Result<(), Failure> {
        let (first, second) = call.paths();
        for path in [Some(first), second].into_iter().flatten() {
            let dirs = path.match_indices('/').map(|(at, _)| path.get(..at).unwrap_or(path));
            for dir in dirs {
                if self.find(dir).is_none() {
                    self.mkdir(dir)?;
                }
            }
        }
        match call {
            Call::Creat(_) | Call::Mkdir(_) | Call::Symlink(_) => return Ok(()),
            _ if self.find(first).is_some() => {}
            _ if DIRS.contains(&first) => self.mkdir(first)?,
            _ => {
                self.creat(first)?;
                self.write(first, 0, FILE_BYTES)?;
            }
        }
        if let Call::RemoveXattr(_) = call {
            let ino = self.at(first)?;
            self.world.xattr(ino, "trusted.x", Some(vec![7; 20]))?;
        }
        Ok(())
    }

    /// Makes a call. One that must fail says so, and changes nothing.
    fn call(&mut self, call: Call) -> Result<(), Failure> {
        let is_file =
            |shell: &Shell, path| shell.find(path).is_some_and(|ino| shell.world.tree.files().contains(&ino));
        let (first, second) = call.paths();
        // Within itself, or below what the preparation of another call has removed.
        if self.parent(first).is_err() || second.is_some_and(|second| self.parent(second).is_err()) {
            return Ok(());
        }
        match call {
            Call::Creat(path) => self.creat(path),
            Call::Mkdir(path) => self.mkdir(path),
            Call::Symlink(path) => {
                let (dir, name) = self.parent(path)?;
                self.world.symlink(dir, name, b"A/foo").map(drop)
            }
            Call::Link(from, to) => self.link(from, to),
            Call::Unlink(path) => self.unlink(path),
            Call::Rename(from, to) => self.rename(from, to),
            Call::Rmdir(path) => {
                let (dir, name) = self.parent(path)?;
                self.world.remove(dir, name, true)
            }
            Call::SetXattr(path) => {
                let ino = self.at(path)?;
                self.world.xattr(ino, "trusted.x", Some(vec![9; 30]))
            }
            Call::RemoveXattr(path) => {
                let ino = self.at(path)?;
                self.world.xattr(ino, "trusted.x", None)
            }
            _ if !is_file(self, first) => Ok(()),
            Call::Falloc(path, how) => self.fallocate(path, how, FILE_BYTES as u64 - 3000, 9000),
            Call::Append(path) => {
                let size = self.world.tree.model.bytes(self.at(path)?).len() as u64;
                self.write(path, size, 5000)
            }
            Call::Overwrite(path) => self.write(path, 3000, 4000),
            Call::Truncate(path) => {
                let ino = self.at(path)?;
                self.world.truncate(ino, 2500)
            }
        }
    }

    fn persist(&mut self, call: Call, persist: Persist) -> Result<(), Failure> {
        let (first, second) = call.paths();
        let second = second.unwrap_or(first);
        let path = match persist {
            Persist::Nothing => return Ok(()),
            Persist::All => return self.world.sync().map(drop),
            Persist::First => first,
            Persist::Second => second,
            Persist::FirstParent => split(first).0,
            Persist::SecondParent => split(second).0,
        };
        match self.find(path) {
            Some(ino) => self.world.fsync(ino).map(drop),
            None => Ok(()),
        }
    }

    /// Runs a sequence, cuts the power behind it, and removes what it has made. `committed`: what each call needs is committed.
    pub fn run(&mut self, sequence: &Sequence, committed: bool) -> Result<(), Failure> {
        for (call, persist) in sequence {
            self.prepare(*call)?;
            if committed {
                self.world.sync()?;
            }
            self.call(*call)?;
            self.persist(*call, *persist)?;
        }
        self.cut()?;
        self.clear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_is_there_with_one_of_its_two_namings() {
        let sequences = Sequences::new(2);
        let mut whole = 0;
        for number in (0..sequences.count()).step_by(17) {
            let other = sequences.renamed(number).unwrap();
            assert_eq!(sequences.renamed(other), Some(number));
            let (one, two) = (sequences.get(number), sequences.get(other));
            whole += usize::from(one.is_some() || two.is_some());
            match (one, two) {
                (Some(_), Some(_)) => assert_eq!(number, other, "it names no file"),
                (Some(calls), None) | (None, Some(calls)) => {
                    assert!(calls.iter().any(|(call, _)| call.renamed() != *call));
                }
                (None, None) => {}
            }
        }
        assert!(whole > 20_000, "{whole}");
    }
}
