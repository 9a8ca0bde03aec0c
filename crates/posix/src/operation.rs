//! Changes of a file system as values, and the one way by which they are carried out.
//!
//! An operation is plain: numbers, names, bytes. So it can be compared, shown, written down, and carried out again.
//! [`Fs::carry_out`] follows one order for all: hold (which may read), say the cost, begin (which may wait), lock in ascending order, judge
//! again and change, save, end. Where what was held is not true any more once the locks are taken, all starts over.
//!
//! Invariant: nothing is changed before `run`, and after it returned an error the transaction holds nothing that programs can see.

use crate::attr::stored;
use crate::claims::{Claims, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::{InodeRef, Locked};
use crate::inode::Inode;
use crate::types::Time;
use terrane_pool::{Cost, Tx};

/// A change that programs can ask for.
pub(crate) trait Operation {
    /// What it found before it began: the inodes that it holds, and what `run` goes by.
    type Held<'f>;
    /// What `run` leaves for `end`.
    type Done;
    type Answer;

    /// Finds and holds inodes. No transaction is open and no lock is held, so it may read and wait.
    fn hold<'f>(&self, fs: &'f Fs) -> Result<Found<Self::Held<'f>, Self::Answer>, Errno>;

    /// What it reserves, at the worst.
    fn cost<'h>(&self, fs: &'h Fs, held: &'h Self::Held<'_>) -> Result<Room<'h>, Errno>;

    /// The inodes that it changes.
    fn locks<'h>(held: &'h Self::Held<'_>) -> Vec<&'h Inode>;

    /// Judges again, and changes. All that is locked is saved after it.
    fn run<'f>(
        &self,
        change: &mut Change<'_, 'f>,
        held: &Self::Held<'f>,
    ) -> Result<Outcome<Self::Done>, Errno>;

    /// The answer, once everything is saved. Locks are held until it drops them.
    fn end<'f>(
        &self,
        change: Change<'_, 'f>,
        held: &Self::Held<'f>,
        done: Self::Done,
    ) -> Result<Self::Answer, Errno>;
}

pub(crate) enum Found<H, A> {
    Held(H),
    /// There is nothing to change.
    Nothing(A),
}

/// What an operation reserves.
pub(crate) struct Room<'h> {
    pub cost: Cost,
    pub needs: Vec<(&'h Claims, Need)>,
}

pub(crate) enum Outcome<D> {
    Changed(D),
    /// Nothing is left to be saved.
    Saved(D),
    /// What was held is not true any more, and nothing was changed.
    Again,
}

/// A change under way: its transaction, and its locks.
pub(crate) struct Change<'c, 'f> {
    pub fs: &'f Fs,
    pub tx: &'c Tx,
    pub locked: Locked<'c>,
    /// When it happens.
    pub now: Time,
    /// An inode that it makes, which is dropped after the transaction has ended.
    pub new: &'c mut Option<InodeRef<'f>>,
}

impl Change<'_, '_> {
    /// Its time, as attributes hold it.
    pub fn stamp(&self) -> [u64; 2] {
        stored(self.now)
    }
}

impl Fs {
    pub(crate) fn carry_out<O: Operation>(&self, operation: &O) -> Result<O::Answer, Errno> {
        loop {
            // What is held is dropped after the transaction: the last holder of an unlinked inode destroys it in one of its own.
            let held = match operation.hold(self)? {
                Found::Held(held) => held,
                Found::Nothing(answer) => return Ok(answer),
            };
            let mut new = None;
            let Room { cost, needs } = operation.cost(self, &held)?;
            let tx = self.begin(cost, &needs)?;
            let locked = Locked::new(self, O::locks(&held));
            let mut change = Change { fs: self, tx: &tx, locked, now: self.now(), new: &mut new };
            let done = match operation.run(&mut change, &held)? {
                Outcome::Changed(done) => {
                    change.locked.save(&tx)?;
                    done
                }
                Outcome::Saved(done) => done,
                Outcome::Again => continue,
            };
            return operation.end(change, &held, done);
        }
    }
}
