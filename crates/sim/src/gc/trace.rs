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
use terrane_wire::Prng;
use terrane_wire::Txg;

/// One operation of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file is created; `size` is its final size, as far as one txg can know.
    Create {
        /// Number of the file, not in use before.
        object: u64,
        /// Number of its directory.
        directory: u64,
        /// Its name, whose suffix predicts the lifetime within the directory.
        name: String,
        /// The lifetime hint of its creator.
        hint: Hint,
        /// Bytes; 0 is unknown.
        size: u64,
    },
    /// A block of it is written, for the first time in order, or again.
    Write {
        /// The file.
        object: u64,
        /// Number of the block: at most that of the first unwritten one.
        block: u32,
        /// Stored bytes.
        bytes: u64,
    },
    /// A file is deleted with all its blocks.
    Delete {
        /// The file.
        object: u64,
    },
    /// The following come from recordings of pools, block by block. Data is born under a name.
    Born {
        /// The block's name in the recording.
        name: u64,
        /// Stored bytes.
        bytes: u64,
        /// The placement that the recorded pool used.
        placement: Placement,
    },
    /// A copy of a block of metadata is born, the first (0) or the second (1).
    Copied {
        /// The copy's name in the recording.
        name: u64,
        /// Stored bytes.
        bytes: u64,
        /// 0 or 1.
        copy: usize,
    },
    /// The block of this name is freed.
    Freed {
        /// The name at birth.
        name: u64,
    },
    /// A txg is committed, when users had written this many bytes.
    Committed {
        /// The txg's number in the recording.
        txg: Txg,
        /// The recorded pool's clock.
        written_bytes: u64,
    },
}

/// An endless workload, after it has filled the pool to its level.
pub trait Trace {
    /// Events that fill the pool; `None` when it has its level.
    fn fill(&mut self, rng: &mut Prng) -> Option<Event>;
    /// `None`: it ends.
    fn next(&mut self, rng: &mut Prng) -> Option<Event>;
}

/// Which block of one large file is overwritten next.
pub enum Pick {
    /// Every block with the same probability.
    Uniform,
    /// This share of the writes goes to that share of the blocks.
    Hot {
        /// Share of the writes that go to hot blocks, 0 to 1.
        writes: f64,
        /// Share of the blocks that are hot, 0 to 1.
        blocks: f64,
    },
    /// Ranks by a power law, scattered over the blocks.
    Zipf {
        /// The exponent, between 0 and 1.
        theta: f64,
        /// The sum of `rank^-theta` over all ranks.
        zeta: f64,
        /// Number of ranks.
        blocks: u64,
    },
}

impl Pick {
    /// A power law over this many blocks. Beyond 2^20 ranks the sum is approximated by an integral.
    pub fn zipf(theta: f64, blocks: u64) -> Pick {
        // The sum over all ranks; past a million by the integral.
        let exact = blocks.min(1 << 20);
        let sum: f64 = (1..=exact).map(|rank| (rank as f64).powf(-theta)).sum();
        let rest = ((blocks as f64 + 0.5).powf(1.0 - theta) - (exact as f64 + 0.5).powf(1.0 - theta))
            / (1.0 - theta);
        Pick::Zipf { theta, zeta: sum + rest, blocks }
    }

    fn block(&self, blocks: u64, rng: &mut Prng) -> u64 {
        match *self {
            Pick::Uniform => rng.below(blocks),
            Pick::Hot { writes, blocks: part } => {
                let hot = ((blocks as f64 * part) as u64).max(1);
                let rank =
                    if rng.next_f64() < writes { rng.below(hot) } else { hot + rng.below(blocks - hot) };
                scatter(rank, blocks)
            }
            Pick::Zipf { theta, zeta, blocks: all } => {
                // Gray et al. 1994, "Quickly generating billion-record synthetic databases".
                let (u, n) = (rng.next_f64(), all as f64);
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
    /// Which block is overwritten next.
    pub pick: Pick,
    /// Blocks of the file.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    filled: Option<u64>,
}

impl Overwrite {
    /// A file of `live_bytes`, rounded down to whole blocks.
    pub fn new(pick: Pick, live_bytes: u64, block_bytes: u64) -> Overwrite {
        Overwrite { pick, blocks: live_bytes / block_bytes, block_bytes, filled: None }
    }
}

impl Trace for Overwrite {
    fn fill(&mut self, _rng: &mut Prng) -> Option<Event> {
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

    fn next(&mut self, rng: &mut Prng) -> Option<Event> {
        let block = self.pick.block(self.blocks, rng) as u32;
        Some(Event::Write { object: 0, block, bytes: self.block_bytes })
    }
}
