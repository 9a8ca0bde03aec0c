//! Workloads for the simulator.
//!
//! Each trace decides who gives lifetime hints and how: that is part of the workload, not of the policy. This
//! module has the overwrites of one large file that theory analyses. In [`files`] files are created and
//! deleted whole, as are the tables of an [`lsm`] tree. A [`database`] does both, and a [`recorded`] trace
//! comes from a file.

pub mod database;
pub mod files;
pub mod lsm;
pub mod recorded;

use terrane_space::policy::{Hint, Placement};
use terrane_wire::Dice;
use terrane_wire::Txg;

/// One operation of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file is created; `size` is its final size, as far as one txg can know.
    Create {
        object: u64,
        directory: u64,
        name: String,
        hint: Hint,
        size: u64,
    },
    /// A block of it is written, for the first time in order, or again.
    Write {
        object: u64,
        block: u32,
        bytes: u64,
    },
    Delete {
        object: u64,
    },
    /// The following come from recordings of pools, block by block. Data is born under a name.
    Born {
        name: u64,
        bytes: u64,
        placement: Placement,
    },
    /// A copy of a block of metadata is born, the first (0) or the second (1).
    Copied {
        name: u64,
        bytes: u64,
        copy: usize,
    },
    /// The block of this name is freed.
    Died {
        name: u64,
    },
    /// A txg is committed, when users had written this many bytes.
    Committed {
        txg: Txg,
        written_bytes: u64,
    },
}

/// An endless workload, after it has filled the pool to its level.
pub trait Trace {
    /// Events that fill the pool; `None` when it has its level.
    fn fill(&mut self, dice: &mut Dice) -> Option<Event>;
    /// `None`: it ends.
    fn next(&mut self, dice: &mut Dice) -> Option<Event>;
}

/// Which block of one large file is overwritten next.
pub enum Pick {
    Uniform,
    /// This share of the writes goes to that share of the blocks.
    Hot {
        writes: f64,
        blocks: f64,
    },
    /// Ranks by a power law, scattered over the blocks.
    Zipf {
        theta: f64,
        zeta: f64,
        blocks: u64,
    },
}

impl Pick {
    pub fn zipf(theta: f64, blocks: u64) -> Pick {
        // The sum over all ranks; past a million by the integral.
        let exact = blocks.min(1 << 20);
        let sum: f64 = (1..=exact).map(|rank| (rank as f64).powf(-theta)).sum();
        let rest = ((blocks as f64 + 0.5).powf(1.0 - theta) - (exact as f64 + 0.5).powf(1.0 - theta))
            / (1.0 - theta);
        Pick::Zipf { theta, zeta: sum + rest, blocks }
    }

    fn block(&self, blocks: u64, dice: &mut Dice) -> u64 {
        match *self {
            Pick::Uniform => dice.below(blocks),
            Pick::Hot { writes, blocks: part } => {
                let hot = ((blocks as f64 * part) as u64).max(1);
                let rank =
                    if dice.part() < writes { dice.below(hot) } else { hot + dice.below(blocks - hot) };
                scatter(rank, blocks)
            }
            Pick::Zipf { theta, zeta, blocks: all } => {
                // Gray et al. 1994, "Quickly generating billion-record synthetic databases".
                let (u, n) = (dice.part(), all as f64);
                let uz = u * zeta;
                let rank = if uz < 1.0 {
                    0
                } else if uz < 1.0 + 0.5f64.powf(theta) {
                    1
                } else {
                    let zeta2 = 1.0 + 0.5f64.powf(theta);
                    let eta = (1.0 - (2.0 / n).powf(1.0 - theta)) / (1.0 - zeta2 / zeta);
                    (n * (eta * u - eta + 1.0).powf(1.0 / (1.0 - theta))) as u64
                };
                scatter(rank.min(all - 1), blocks)
            }
        }
    }
}

/// A fixed permutation: hot blocks do not lie side by side in the file.
fn scatter(rank: u64, blocks: u64) -> u64 {
    // A prime greater than any number of blocks here, so it does not divide them.
    ((u128::from(rank) * 4_294_967_311) % u128::from(blocks)) as u64
}

/// One large file with overwritten blocks, as in theory and other simulations. Gives no hints.
pub struct Overwrite {
    pub pick: Pick,
    pub blocks: u64,
    pub block_bytes: u64,
    filled: Option<u64>,
}

impl Overwrite {
    pub fn new(pick: Pick, live_bytes: u64, block_bytes: u64) -> Overwrite {
        Overwrite { pick, blocks: live_bytes / block_bytes, block_bytes, filled: None }
    }
}

impl Trace for Overwrite {
    fn fill(&mut self, _dice: &mut Dice) -> Option<Event> {
        let Some(next) = self.filled else {
            self.filled = Some(0);
            let (name, size) = ("image".into(), self.blocks * self.block_bytes);
            return Some(Event::Create { object: 0, directory: 1, name, hint: Hint::NotSet, size });
        };
        self.filled = Some(next + 1);
        (next < self.blocks).then_some(Event::Write {
            object: 0,
            block: next as u32,
            bytes: self.block_bytes,
        })
    }

    fn next(&mut self, dice: &mut Dice) -> Option<Event> {
        let block = self.pick.block(self.blocks, dice) as u32;
        Some(Event::Write { object: 0, block, bytes: self.block_bytes })
    }
}
