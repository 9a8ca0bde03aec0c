//! Changes of a file system as values, and the one way to carry them out.
//!
//! An operation is plain data: numbers, names, bytes. So it can be compared, printed, stored, and repeated.
//! [`Fs::execute`] runs all operations in one order. It holds inodes (which may read), computes the cost, and
//! begins the transaction (which may wait). Then it locks in ascending order, checks again and changes, saves,
//! and ends. If the held state is stale once the locks are taken, it starts over.
//!
//! Invariant: nothing changes before `run`. If `run` fails, the transaction has no change that programs can
//! see.

use crate::attr::encode_time;
use crate::claims::{Claims, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::{InodeRef, Locked};
use crate::inode::Inode;
use crate::intents::Intent;
use crate::record::{NewInode, Record};
use crate::types::{Ino, Time};
use smallvec::SmallVec;
use std::time::Duration;
use terrane_dataset::{Charge, SyncMode};
use terrane_pool::Tx;
use terrane_txg::cost::Cost;

/// A change that programs can request.
pub(crate) trait Operation {
    /// What `hold` found: the inodes that are held, and input for `run`.
    type Held<'f>;
    /// Result of `run`, passed to `end`.
    type Done;
    type Answer;

    /// Finds and holds inodes. No transaction is open and no lock is held, so it may read and wait.
    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<Self::Held<'f>, Self::Answer>, Errno>;

    /// What the operation reserves in the worst case.
    fn cost<'h>(&self, fs: &'h Fs, held: &'h Self::Held<'_>) -> Result<OperationCost<'h>, Errno>;

    /// What it may take for the owners of objects, which their limits must allow.
    fn charges(&self, _: &Fs, _: &Self::Held<'_>) -> Result<Charges, Errno> {
        Ok(Charges::new())
    }

    /// Upper bound of its record in bytes.
    fn record_bytes_max(&self) -> usize {
        NAMES_RECORD_BYTES_MAX
    }

    /// The inodes that it changes.
    fn locks<'h>(held: &'h Self::Held<'_>) -> Locks<'h>;

    /// Checks again under locks, and changes. All locked inodes are saved afterwards.
    fn run<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &Self::Held<'f>,
    ) -> Result<Outcome<Self::Done>, Errno>;

    /// Whether a program waits for it. `sync=always` makes only such changes durable.
    fn is_call(&self) -> bool {
        true
    }

    /// What the log must know of the change. The locks are held, and everything is saved.
    fn intent(&self, change: &mut Change<'_, '_>, held: &Self::Held<'_>, done: &Self::Done) -> Intent<'_>;

    /// Builds the answer after everything is saved. Locks are held until it drops them.
    fn end<'f>(
        &self,
        change: Change<'_, 'f>,
        held: &Self::Held<'f>,
        done: Self::Done,
    ) -> Result<Self::Answer, Errno>;
}

/// Upper bound of a record without contents or attributes: two names, words, numbers.
pub(crate) const NAMES_RECORD_BYTES_MAX: usize = 1024;

pub(crate) enum HoldResult<H, A> {
    Held(H),
    /// There is nothing to change.
    NoChange(A),
}

/// The claims that an operation makes on inodes, and the inodes that it locks: a few, so they cost no allocation.
pub(crate) type Needs<'h> = SmallVec<[(&'h Claims, Need); 4]>;
pub(crate) type Locks<'h> = SmallVec<[&'h Inode; 4]>;

/// What an operation may take for owners.
pub(crate) type Charges = SmallVec<[Charge; 1]>;

/// These inodes.
pub(crate) fn to_lock<const N: usize>(inodes: [&Inode; N]) -> Locks<'_> {
    inodes.into_iter().collect()
}

/// What an operation reserves.
pub(crate) struct OperationCost<'h> {
    /// Worst case without `needs`.
    pub cost: Cost,
    /// Worst case per inode, from which the claims of the txg are subtracted.
    pub needs: Needs<'h>,
}

pub(crate) enum Outcome<D> {
    Changed(D),
    /// Everything is saved already.
    Saved(D),
    /// The held state is stale, and nothing was changed.
    Retry,
}

/// A running change: its transaction, and its locks.
pub(crate) struct Change<'c, 'f> {
    pub fs: &'f Fs,
    pub tx: &'c Tx,
    /// The inodes of [`Operation::locks`], write-locked.
    pub locked: Locked<'c>,
    /// Time of the change.
    pub now: Time,
    /// The inode that the operation creates, if that was created before and is created again.
    pub given: Option<NewInode>,
    /// An inode that the operation creates. It is dropped after the transaction has ended.
    pub new: &'c mut Option<InodeRef<'f>>,
}

impl Change<'_, '_> {
    /// The time of the change, as attributes store it.
    pub fn stamp(&self) -> [u64; 2] {
        encode_time(self.now)
    }

    /// The intent of a change of the contents of an inode that the operation has locked.
    pub fn content_intent<'a>(&mut self, ino: Ino, record: Record<'a>) -> Intent<'a> {
        if self.is_gone(ino) { Intent::Nameless(record) } else { Intent::Content(ino, record) }
    }

    /// Whether an inode that the operation has locked has no name, and no prospect of one. So it does not survive a crash.
    pub fn is_gone(&mut self, ino: Ino) -> bool {
        let state = self.locked.get(ino);
        state.attrs.zpl.links == 0 && !state.linkable
    }
}

/// No record has this number.
pub(crate) const PART_OF_A_CHANGE: u64 = 0;

/// What a replay gives to an operation, so that the result is that of the first time.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub now: Time,
    pub new: Option<NewInode>,
    /// Number of the record, or [`PART_OF_A_CHANGE`].
    pub change: u64,
}

impl Fs {
    pub(crate) fn execute<O: Operation>(&self, operation: &O) -> Result<O::Answer, Errno> {
        self.execute_as(operation, None)
    }

    /// The same. `given`: the operation was carried out before, and a crash undid it.
    pub(crate) fn execute_as<O: Operation>(
        &self,
        operation: &O,
        given: Option<Given>,
    ) -> Result<O::Answer, Errno> {
        self.check_changeable()?;
        loop {
            // References are dropped after the transaction: dropping the last one of an unlinked inode begins
            // its own.
            let held = match operation.hold(self)? {
                HoldResult::Held(held) => held,
                HoldResult::NoChange(answer) => return Ok(answer),
            };
            let mut new = None;
            let Some(answer) = self.attempt(operation, &held, given, &mut new)? else { continue };
            if !self.is_replaying && self.dataset.sync_mode() == SyncMode::Always && operation.is_call() {
                O::locks(&held).into_iter().try_for_each(|inode| self.make_inode_durable(inode))?;
            }
            return Ok(answer);
        }
    }

    /// Carries the operation out. `None`: the held state is stale, and nothing was changed.
    fn attempt<'f, O: Operation>(
        &'f self,
        operation: &O,
        held: &O::Held<'f>,
        given: Option<Given>,
        new: &mut Option<InodeRef<'f>>,
    ) -> Result<Option<O::Answer>, Errno> {
        let OperationCost { cost, needs } = operation.cost(self, held)?;
        // A change that is replayed was admitted before.
        let promise = match !self.is_replaying && self.dataset().quotas().has_limits() {
            true => self.admit(&operation.charges(self, held)?, cost.writes_back)?,
            false => None,
        };
        if !self.is_replaying && !self.dataset.admits_change(cost.writes_back) {
            return Err(Errno::EROFS);
        }
        let _space =
            self.intents.promise(operation.record_bytes_max(), &|| Ok(self.set.commit()?), &|ns| {
                self.set.pool().env().sleep(Duration::from_nanos(ns))
            })?;
        let tx = self.begin(cost, &needs)?;
        if let Some(promise) = promise {
            promise.join(tx.txg());
        }
        let locked = Locked::new(self, O::locks(held));
        let now = given.map_or_else(|| self.now(), |given| given.now);
        let given_inode = given.and_then(|given| given.new);
        let mut change = Change { fs: self, tx: &tx, locked, now, given: given_inode, new };
        let saved = operation.run(&mut change, held).and_then(|outcome| {
            if let Outcome::Changed(_) = outcome {
                change.locked.save(&tx)?;
            }
            Ok(outcome)
        });
        let done = match saved {
            Ok(Outcome::Changed(done) | Outcome::Saved(done)) => done,
            Ok(Outcome::Retry) => return Ok(None),
            Err(errno) => {
                // After damage, a part of the change may remain.
                if errno == Errno::EIO {
                    self.intents.lose(tx.txg());
                }
                return Err(errno);
            }
        };
        if let Some(given) = given.filter(|given| given.change != PART_OF_A_CHANGE) {
            tx.pool().note_replayed(&tx, given.change);
        }
        if self.intents.wants(tx.txg()) {
            let intent = operation.intent(&mut change, held, &done);
            self.intents.add(tx.txg(), (now, self.has_acls()), &intent);
        }
        operation.end(change, held, done).map(Some)
    }
}
