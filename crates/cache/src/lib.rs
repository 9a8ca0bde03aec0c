//! What a pool keeps in memory of what is stored.
//!
//! Rooms: [`blocks`] (the block cache), [`retention`] (which blocks it keeps), [`flights`] (blocks that are being read), [`parts`] (zone
//! directories, taken apart).

pub mod blocks;
pub mod flights;
mod kind;
pub mod parts;
pub mod retention;

pub use kind::Kind;
