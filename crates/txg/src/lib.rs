//! What a pool knows while transaction groups follow each other: their states, who may join them, and what the next commit will say.
//!
//! [`admission`] has the life of groups, waiting for space, and throttling; [`cost`] is what an operation reserves, [`pace`] how fast
//! groups take bytes. [`commit`] gathers what the record of the group that syncs will tell, and [`history`] keeps the records that a replay
//! needs. [`collector`] has the state of garbage collection, [`unread`] the zones that could not be read, [`by_hand`] what administrators
//! asked for. [`sync`] is all that belongs to the thread that syncs.
//!
//! Invariant: nothing here knows the pool, its client, or how a group is written.

pub mod activity;
pub mod admission;
pub mod by_hand;
pub mod collector;
pub mod commit;
pub mod control;
pub mod cost;
pub mod fates;
pub mod history;
pub mod hold;
pub mod levels;
pub mod members;
pub mod membership;
pub mod pace;
pub mod sleep;
pub mod sync;
pub mod trace;
pub mod unread;
