//! States of transaction groups: admission, throttling, the next commit record, garbage collection.
//!
//! [`admission`] has the states of txgs, the wait for space, and throttling. [`cost`] is what an operation
//! reserves, and [`pace`] measures how fast txgs take bytes. [`commit`] gathers the content of the next
//! commit record. [`history`] keeps the records that a replay needs.
//!
//! [`collector`] has the state of garbage collection, [`unread`] the zones that could not be read, and
//! [`gc_request`] the requests of administrators. [`sync`] is everything that belongs to the sync thread.
//!
//! Invariant: nothing here knows the pool, its client, or how a txg is written.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]
#![deny(missing_docs)]

pub mod activity;
pub mod admission;
pub mod collector;
pub mod commit;
pub mod control;
pub mod cost;
pub mod feature_uses;
pub mod gc_request;
pub mod history;
pub mod hold;
pub mod levels;
pub mod lifetimes;
pub mod members;
pub mod membership;
pub mod pace;
pub mod sleep;
pub mod sync;
pub mod trace;
pub mod unread;
