//! Where blocks should go and which zones should be emptied: decisions without input or output.
//!
//! Blocks that die together should lie together, and then collection has little to copy. What is decided here is decided from a
//! few numbers, without a device and without a lock, so that the simulator of large pools runs the same code.
//!
//! Rooms: [`hint`] (what somebody said about life times), `placement` (what is known of a block's file), [`clock`] (what time is here),
//! [`lives`] (how long hot data lives, and how old survivors are), [`siblings`] (how long files live that are like a new one), [`placer`]
//! (which open zone a block goes to), [`victim`] (which zone is emptied next), [`looks`]
//! (which overwrites may change nothing), `options` (what administrators say).
//!
//! Invariant: no decision here can lose data. The worst that a wrong one costs is copying.

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
