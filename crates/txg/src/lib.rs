//! States of transaction groups: admission, throttling, the next commit record, garbage collection.
//!
//! [`admission`] has the states of txgs, the wait for space, and throttling. [`cost`] is what an operation
//! reserves, and [`pace`] measures how fast txgs take bytes. [`commit`] gathers the content of the next
//! commit record. [`history`] keeps the records that a replay needs.
//!
//! [`collector`] has the state of garbage collection, [`unread`] the zones that could not be read, and
//! [`by_hand`] the requests of administrators. [`sync`] is everything that belongs to the sync thread.
//!
//! Invariant: nothing here knows the pool, its client, or how a txg is written.

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
