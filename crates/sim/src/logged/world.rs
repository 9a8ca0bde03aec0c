//! A pool with an intent log, and what must survive a crash of it.
//!
//! What an `fsync` of an inode makes durable: all changes of names and attributes before it, of whatever inode, and the contents of
//! that inode. A file that gets a new name takes its contents along. A commit makes all changes durable.
//!
//! Every change is kept until a commit contains it, with its txg and with the batch of the log that has it. After a crash the imported
//! txg says which changes its commit contains, and the others are there if their batch was durable. Only one batch can be in doubt:
//! the one that was written when the power failed.

use super::tree::{Change, Tree};
use crate::machine::{Machine, log_devices_of, without_log_devices};
use std::collections::BTreeSet;
use terrane_device::sim::Survival;
use terrane_device::{Device, SimDevice};
use terrane_format::log::LogHome;
use terrane_oracle::{Failure, Outcome, ensure, failed};
use terrane_posix::{AccessTimes, Errno, Ino, Time};

/// What makes a change durable, beside a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// An `fsync` of any inode.
    Names,
    /// An `fsync` of this one.
    Contents(Ino),
}

/// A change that no commit contains.
#[derive(Clone, Debug)]
struct Entry {
    change: Change,
    now: Time,
    /// Its txg. A call that ends early in a full pool may have made the change in one of `first_txg..=txg`.
    txg: u64,
    first_txg: u64,
    place: Place,
    /// The batch of the log that has it.
    batch: Option<u64>,
}

/// How often something happened that a test wants to have seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Calls of `fsync` that the log answered.
    pub logged: u64,
    /// Those that were a commit.
    pub committed: u64,
    /// The log went on in another zone.
    pub moved: u64,
    /// The log gave its zones back.
    pub returned: u64,
    /// Records that were replayed.
    pub replayed: u64,
    /// The batch that was being written survived.
    pub kept_unpromised: u64,
    /// It did not.
    pub lost_unpromised: u64,
    /// Power failed in a replay.
    pub cut_replays: u64,
    /// Writes of the log that failed.
    pub failed_writes: u64,
    /// Log devices that joined, left, and were tried again after a failure.
    pub joined: u64,
    /// See `joined`.
    pub left: u64,
    /// See `joined`.
    pub retried: u64,
    /// An import was refused because a log device was missing.
    pub missed: u64,
}

impl Seen {
    /// Adds another count.
    pub fn add(&mut self, other: &Seen) {
        self.logged += other.logged;
        self.committed += other.committed;
        self.moved += other.moved;
        self.returned += other.returned;
        self.replayed += other.replayed;
        self.kept_unpromised += other.kept_unpromised;
        self.lost_unpromised += other.lost_unpromised;
        self.cut_replays += other.cut_replays;
        self.failed_writes += other.failed_writes;
        self.joined += other.joined;
        self.left += other.left;
        self.retried += other.retried;
        self.missed += other.missed;
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was done, and the tree follows.
    Done,
    /// Power is off.
    Stopped,
}

/// A pool in memory, and what its tree must be.
pub struct World {
    /// The pool and its file system.
    pub machine: Machine,
    /// With all changes.
    pub tree: Tree,
    /// Open files that were made without a name and have none yet.
    pub nameless: BTreeSet<Ino>,
    /// What was counted.
    pub seen: Seen,
    /// The tree of the newest durable txg that is known.
    base: Tree,
    base_txg: u64,
    entries: Vec<Entry>,
    /// The open txg when the last call ended.
    open_txg: u64,
    /// The newest batch that an `fsync` has promised.
    acked: u64,
    /// A batch after it may have been written.
    is_in_flight: bool,
    /// Inodes that have changed since they were made durable.
    changed: BTreeSet<Ino>,
    /// Inodes that have lost their last name.
    gone: BTreeSet<Ino>,
    /// First zone of the log.
    log_zone: Option<LogHome>,
}

impl World {
    /// With the tree of a pool that is committed and mounted.
    pub fn new(machine: Machine, tree: Tree) -> World {
        let base_txg = machine.durable_txg().0;
        let base = tree.clone();
        // A copy reads its source.
        machine.fs().set_access_times(AccessTimes::Never);
        World {
            machine,
            tree,
            nameless: BTreeSet::new(),
            seen: Seen::default(),
            base,
            base_txg,
            entries: Vec::new(),
            open_txg: base_txg,
            acked: 0,
            is_in_flight: false,
            changed: BTreeSet::new(),
            gone: BTreeSet::new(),
            log_zone: None,
        }
    }

    /// On a new machine.
    pub fn fresh(machine: Machine) -> Result<World, Failure> {
        let tree = Tree::of_new(machine.fs())?;
        Ok(World::new(machine, tree))
    }

    /// Compares an answer with the expected one. `None`: nothing was changed, since the power is off or the pool is full.
    pub fn answer<T>(
        &self,
        what: impl Fn() -> String,
        expected: Outcome,
        found: Result<T, Errno>,
    ) -> Result<Option<T>, Failure> {
        if found.is_err() && !self.machine.is_alive() || matches!(found, Err(Errno::ENOSPC)) {
            return Ok(None);
        }
        let shown = found.as_ref().map(|_| ()).map_err(|errno| *errno);
        ensure(shown == expected, || format!("{}: {shown:?}, expected {expected:?}", what()))?;
        Ok(found.ok())
    }

    fn ctime(&self, ino: Ino) -> Result<Time, Failure> {
        Ok(self.machine.fs().getattr(ino).map_err(failed("attributes of a change"))?.ctime)
    }

    /// Notes a change of names or attributes that was made. `witness`: its change time is that of the change.
    pub fn note_names(&mut self, witness: Ino, changed: &[Ino], change: Change) -> Result<(), Failure> {
        let now = self.ctime(witness)?;
        self.note(Place::Names, changed, change, now)
    }

    /// The same, where these inodes take their contents along.
    pub fn note_move(
        &mut self,
        witness: Ino,
        moved: &[Ino],
        changed: &[Ino],
        change: Change,
    ) -> Result<(), Failure> {
        for entry in self.entries.iter_mut().filter(|entry| entry.batch.is_none()) {
            if matches!(entry.place, Place::Contents(ino) if moved.contains(&ino)) {
                entry.place = Place::Names;
            }
        }
        self.changed.extend(moved);
        self.note_names(witness, changed, change)
    }

    /// Notes a change of the contents of a file.
    pub fn note_content(&mut self, ino: Ino, change: Change) -> Result<(), Failure> {
        let now = self.ctime(ino)?;
        self.note(Place::Contents(ino), &[ino], change, now)
    }

    fn note(&mut self, place: Place, changed: &[Ino], change: Change, now: Time) -> Result<(), Failure> {
        self.tree.apply(&change, now)?;
        self.changed.extend(changed);
        match &change {
            Change::Make { ino, .. } => _ = self.gone.remove(ino),
            Change::Remove { .. } | Change::Rename { .. } => {
                let has_no_name = |ino: &&Ino| !self.tree.is_named(**ino);
                self.gone.extend(changed.iter().filter(has_no_name));
            }
            _ => {}
        }
        // A crash ends them, so nothing is promised of their contents.
        let is_gone = |place| matches!(place, Place::Contents(ino) if self.gone.contains(&ino));
        self.entries.retain(|entry| entry.batch.is_some() || !is_gone(entry.place));
        if is_gone(place) {
            return self.settle();
        }
        // An operation waits for a commit only before it joins a txg.
        let (first_txg, txg) = (self.open_txg, self.machine.pool.open_txg().0);
        self.entries.push(Entry { change, now, txg, first_txg, place, batch: None });
        self.settle()
    }

    /// Moves what a commit contains to the base.
    fn settle(&mut self) -> Result<(), Failure> {
        self.open_txg = self.machine.pool.open_txg().0;
        let durable = self.machine.durable_txg().0;
        if durable > self.base_txg {
            self.settle_first(self.entries.partition_point(|entry| entry.txg <= durable))?;
            self.base_txg = durable;
        }
        let zones = self.machine.pool.log_zones();
        let first = zones.first().and_then(|zone| zone.homes.first());
        let first = first.copied();
        if first != self.log_zone && self.log_zone.is_some() {
            *(if first.is_some() { &mut self.seen.moved } else { &mut self.seen.returned }) += 1;
        }
        self.log_zone = first;
        Ok(())
    }

    fn settle_first(&mut self, count: usize) -> Result<(), Failure> {
        for entry in self.entries.drain(..count) {
            self.base.apply(&entry.change, entry.now)?;
        }
        if self.entries.is_empty() {
            self.changed.clear();
        }
        Ok(())
    }

    /// All changes are durable by a commit.
    fn settle_all(&mut self) -> Result<(), Failure> {
        self.settle()?;
        let later = self.entries.iter().filter(|entry| entry.first_txg > self.base_txg).count();
        ensure(later == 0, || format!("{later} changes are not in txg {}", self.base_txg))?;
        self.settle_first(self.entries.len())
    }

    fn step(&self) -> Step {
        if self.machine.is_alive() { Step::Done } else { Step::Stopped }
    }

    /// Closes a file, which destroys it if it has no name.
    pub fn forget(&mut self, ino: Ino) -> Result<(), Failure> {
        let lookups = self.tree.model.lookups.get(&ino).copied().unwrap_or(0);
        self.machine.fs().forget(ino, lookups);
        self.tree.model.forget(ino);
        self.nameless.remove(&ino);
        self.settle()
    }

    /// Commits.
    pub fn sync(&mut self) -> Result<Step, Failure> {
        let synced = self.machine.fs().sync();
        if !self.machine.is_alive() {
            return Ok(Step::Stopped);
        }
        synced.map_err(failed("sync"))?;
        self.settle_all()?;
        Ok(Step::Done)
    }

    /// Makes an inode durable.
    pub fn fsync(&mut self, ino: Ino) -> Result<Step, Failure> {
        // Calls that failed in a full pool may have committed.
        self.settle()?;
        let is_included = |place| place == Place::Names || place == Place::Contents(ino);
        let batch = self.acked + 1;
        let mut pending = 0;
        for entry in self.entries.iter_mut().filter(|entry| is_included(entry.place)) {
            pending += u64::from(entry.batch.is_none());
            entry.batch = entry.batch.or(Some(batch));
        }
        let (durable, ops) = (self.machine.durable_txg(), self.machine.device.ops_done());
        self.is_in_flight = self.machine.pool.log_bytes_max() > 0;
        let synced = self.fsync_by(ino);
        if !self.machine.is_alive() && synced.is_err() {
            return Ok(Step::Stopped);
        }
        self.is_in_flight = false;
        synced.map_err(failed("fsync"))?;
        if self.machine.durable_txg() > durable {
            self.seen.committed += 1;
            self.acked = batch;
            self.settle_all()?;
        } else if self.machine.device.ops_done() > ops {
            self.seen.logged += 1;
            self.acked = batch;
            self.settle()?;
        } else {
            ensure(pending == 0 || !self.changed.contains(&ino), || {
                format!(
                    "fsync of inode {ino} did nothing, although {pending} changes were to be made durable"
                )
            })?;
            // It had not changed, so nothing was promised.
            for entry in self.entries.iter_mut().filter(|entry| entry.batch == Some(batch)) {
                entry.batch = None;
            }
        }
        self.changed.remove(&ino);
        Ok(self.step())
    }

    /// Of every other inode in two halves, as a mount does it.
    fn fsync_by(&self, ino: Ino) -> Result<(), Errno> {
        let fs = self.machine.fs();
        let pending = if ino.is_multiple_of(2) { fs.begin_fsync(ino)? } else { None };
        pending.map_or_else(|| fs.fsync(ino, false), |pending| pending.finish())
    }

    /// The states after a crash from which this txg is imported. Without and with the batch in flight.
    fn states(&self, txg: u64) -> Result<Vec<Tree>, Failure> {
        ensure(txg >= self.base_txg, || {
            format!("txg {txg} was imported, but txg {} was durable", self.base_txg)
        })?;
        let state = |acked: u64, in_doubt: bool| -> Result<Tree, Failure> {
            let mut tree = self.base.clone();
            for entry in &self.entries {
                let is_committed = if in_doubt { entry.first_txg <= txg } else { entry.txg <= txg };
                if is_committed || entry.batch.is_some_and(|batch| batch <= acked) {
                    tree.apply(&entry.change, entry.now)?;
                }
            }
            Ok(tree.after_remount())
        };
        let is_in_doubt = self.entries.iter().any(|entry| (entry.first_txg..entry.txg).contains(&txg));
        let mut states = vec![state(self.acked, false)?];
        if self.is_in_flight {
            states.push(state(self.acked + 1, false)?);
        }
        if is_in_doubt {
            states.push(state(self.acked, true)?);
        }
        Ok(states)
    }

    /// The state that a mounted machine has, whose import found this txg.
    fn matching(&mut self, machine: &Machine, txg: u64) -> Result<Tree, Failure> {
        let states = self.states(txg)?;
        let mut failures = Vec::new();
        for (nth, state) in states.into_iter().enumerate() {
            match state.compare(machine.fs()) {
                Ok(()) => {
                    if self.is_in_flight {
                        self.seen.kept_unpromised += u64::from(nth == 1);
                        self.seen.lost_unpromised += u64::from(nth == 0);
                    }
                    return Ok(state);
                }
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        let (durable, acked) = (self.base_txg, self.acked);
        Err(Failure(format!(
            "txg {txg} of {durable}, batches to {acked}, no state matches: {}",
            failures.join("; or ")
        )))
    }

    /// Imports what a crash left, replays, compares, and goes on from there.
    pub fn recover(mut self, left: &SimDevice, seed: u64) -> Result<World, Failure> {
        let (machine, txg, replayed) = import(left, seed)?;
        let tree = self.matching(&machine, txg)?;
        let seen = Seen { replayed: self.seen.replayed + replayed, ..self.seen };
        Ok(World { seen, ..World::new(machine, tree) })
    }

    /// A change of devices may have committed.
    pub fn note_commits(&mut self) -> Result<(), Failure> {
        self.settle()
    }

    /// Without some log device, or all of them, nothing is lost unnoticed: an import has everything, or refuses and names a device.
    pub fn check_without_log_devices(&mut self, left: &SimDevice, seed: u64) -> Result<(), Failure> {
        let names: Vec<String> =
            log_devices_of(left).iter().map(|device| device.info().name.clone()).collect();
        let one = |name: &String| vec![name.clone()];
        let all = Some(names.clone()).filter(|names| !names.is_empty());
        for lost in names.iter().map(one).chain(all) {
            let rest = without_log_devices(left, |name| lost.iter().any(|lost| lost == name));
            let within = |failure: Failure| failure.within(format_args!("without {lost:?}"));
            match import(&rest, seed) {
                Ok((machine, txg, _)) => drop(self.matching(&machine, txg).map_err(within)?),
                Err(failure) => {
                    let is_named = lost.iter().any(|name| failure.0.contains(&format!("known as {name}")));
                    ensure(is_named && failure.0.contains("--discard-log"), || {
                        format!("without {lost:?}: {failure}")
                    })?;
                    self.seen.missed += 1;
                }
            }
        }
        Ok(())
    }

    /// Compares what a power cut has left, and goes on as if there had been none. `checks`: the pool is checked, too.
    pub fn check_cut(&mut self, left: &SimDevice, seed: u64, checks: bool) -> Result<(), Failure> {
        let (machine, txg, replayed) = import_as(left, seed, checks)?;
        self.seen.replayed += replayed;
        self.matching(&machine, txg).map(drop)
    }

    /// The same, after the power has failed in the replay, and again in the replay of the replay. `None`: there were fewer operations.
    pub fn recover_cut(
        &mut self,
        left: &SimDevice,
        cuts: &[u64],
        seed: u64,
    ) -> Result<Option<Tree>, Failure> {
        let (machine, txg, replayed) = import(&left.restarted(Survival::Everything), seed)?;
        self.seen.replayed += replayed;
        let tree = self.matching(&machine, txg)?;
        drop(machine);
        let mut device = left.restarted(Survival::Everything);
        for (nth, cut) in (1..).zip(cuts) {
            match cut_import(&device, *cut, seed + nth)? {
                Some(left) => device = left,
                None => return Ok(None),
            }
            self.seen.cut_replays += 1;
        }
        let (machine, txg, _) = import(&device, seed + 100)
            .map_err(|failure| failure.within(format_args!("after cuts at {cuts:?}")))?;
        let same = tree.compare(machine.fs());
        same.map_err(|failure| failure.within(format_args!("after cuts at {cuts:?}, txg {txg}")))?;
        Ok(Some(tree))
    }
}

/// Imports, replays, checks and mounts. Returns the imported txg and the number of records.
pub fn import(left: &SimDevice, seed: u64) -> Result<(Machine, u64, u64), Failure> {
    import_as(left, seed, true)
}

fn import_as(left: &SimDevice, seed: u64, checks: bool) -> Result<(Machine, u64, u64), Failure> {
    let mut machine = Machine::import_logged(left, seed)?;
    let txg = machine.pool.status().imported.0;
    let replayed = machine.replay()?;
    if checks {
        machine.check().map_err(|failure| failure.within(format_args!("txg {txg}, after the replay")))?;
    }
    machine.mount()?;
    Ok((machine, txg, replayed))
}

/// Cuts the power in this device operation of an import with its replay and mount. Returns what is left. `None`: there were fewer.
fn cut_import(device: &SimDevice, cut: u64, seed: u64) -> Result<Option<SimDevice>, Failure> {
    device.crash_after(device.ops_done() + cut);
    let outcome = Machine::import_logged(device, seed).and_then(|mut machine| {
        machine.replay()?;
        machine.mount()
    });
    if device.is_powered() {
        return outcome.map(|()| None);
    }
    Ok(Some(device.after_power_loss(seed ^ 0x0c07)))
}
