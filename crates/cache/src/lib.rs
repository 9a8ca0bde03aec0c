//! Memory caches of a pool.
//!
//! Modules: [`blocks`] (the block cache), [`retention`] (its eviction policy), [`reads_in_flight`] (a block is read once for several
//! readers), [`parts`] (decoded zone directories).

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod blocks;
mod kind;
pub mod parts;
pub mod reads_in_flight;
pub mod retention;

pub use kind::Kind;
