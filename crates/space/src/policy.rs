//! Policy: block placement and victim selection, as pure decisions without I/O.
//!
//! If blocks that die together lie together, the collector has little to copy. Decisions use a few numbers, no device and no lock, so
//! the simulator of large pools runs the same code.
//!
//! Modules:
//!
//! * [`hint`]: write-lifetime hints
//! * `placement`: what is known of a block's file
//! * [`clock`]: time in bytes written
//! * [`heat`]: lifetime of hot data, and age of survivors
//! * [`lifetime_predictor`]: expected lifetime of new files, from similar files
//! * [`placer`]: which open zone a block goes to
//! * [`victim`]: which zone is emptied next
//! * [`nopwrite_sampling`]: which overwrites may change nothing
//! * `options`: administrators' settings
//!
//! Invariant: no decision here can lose data. A wrong one only costs copying.

pub mod clock;
mod death_rates;
pub mod heat;
pub mod hint;
pub mod lifetime_predictor;
pub mod nopwrite_sampling;
mod options;
mod placement;
pub mod placer;
pub mod victim;

pub use clock::Clock;
pub use heat::{Age, Heat, HotLifetime};
pub use hint::{Hint, Match};
pub use lifetime_predictor::{LifetimePredictor, Prediction, SimilarityKey};
pub use nopwrite_sampling::NopwriteSampling;
pub use options::{CollectionOptions, IdleWindow};
pub use placement::Placement;
pub use placer::{Choice, Layout, Placer, Supply, ZoneSupply};
pub use victim::{Candidates, VictimPolicy};
