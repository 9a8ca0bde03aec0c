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
//! * [`lives`]: lifetime of hot data, and age of survivors
//! * [`siblings`]: expected lifetime of new files, from similar files
//! * [`placer`]: which open zone a block goes to
//! * [`victim`]: which zone is emptied next
//! * [`looks`]: which overwrites may change nothing
//! * `options`: administrators' settings
//!
//! Invariant: no decision here can lose data. A wrong one only costs copying.

pub mod clock;
pub mod hint;
pub mod lives;
pub mod looks;
mod mortality;
mod options;
mod placement;
pub mod placer;
pub mod siblings;
pub mod victim;

pub use clock::Clock;
pub use hint::{Hint, Match};
pub use lives::{Age, Heat, Lives};
pub use looks::Looks;
pub use options::{CollectionOptions, IdleWindow};
pub use placement::Placement;
pub use placer::{Choice, Layout, Placer, Stock};
pub use siblings::{SiblingKey, Siblings};
pub use victim::{Candidates, VictimPolicy};
