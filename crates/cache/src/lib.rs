//! Memory caches of a pool.
//!
//! Modules: [`blocks`] (the block cache), [`retention`] (its eviction policy), [`flights`] (reads in flight), [`parts`] (decoded zone
//! directories).

pub mod blocks;
pub mod flights;
mod kind;
pub mod parts;
pub mod retention;

pub use kind::Kind;
