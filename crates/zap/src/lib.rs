//! ZAPs: names in an array of blocks.
//!
//! A ZAP maps names to integers. Every directory is one, and so are the tables of attributes, snapshots and
//! properties. The encodings are OpenZFS's, byte for byte, so what is known about them holds here. A ZAP starts as
//! one small block of 64-byte slots (*micro*). Names or values that need it move to larger slots (*tiny*). If one
//! block is not enough, the ZAP becomes an extendible hash table (*fat*). This crate sees its object only through
//! [`Store`], as an array of blocks.
//!
//! | module | subject |
//! |---|---|
//! | [`store`] | the object, seen as blocks |
//! | [`hash`], [`key`], [`value`] | position of an entry, its key, its value |
//! | [`norm`] | names that mean the same |
//! | `slots`, `ordered`, `elements`, `index`, `slot_cache` | one block of slots, and the index of it in memory |
//! | `fat` | header, pointer table, leaves |
//! | `options` | how a ZAP is made, and how far it may grow |
//! | `convert`, `shrink`, `shrink_trigger` | conversions between kinds, which keep every cursor valid |
//! | `zap` | the kind of an object, and all operations |
//! | `alias` | which entry a name means, if names are normalized |
//! | `byte_order` | ZAPs of the other byte order |
//! | `prepared_index` | an index built before it is needed |
//! | [`cursor`] | a position in the order of entries |
//! | `check` | what must hold of a whole ZAP |
//! | `statistics` | what the blocks of a ZAP hold, for display |
//!
//! Invariant: no bytes of a store make this crate panic, loop forever, or use more memory than the store's size.
//!
//! ```
//! use terrane_zap::{Cursor, MemStore, Zap, ZapOptions};
//! let mut store = MemStore::new();
//! let mut zap = Zap::create(&mut store, ZapOptions::new(0x1357_9bdf))?;
//! zap.add(&mut store, "hello", &[42])?;
//! assert_eq!(zap.lookup_u64(&store, "hello")?, Some(42));
//! let (entry, after) = zap.next(&store, Cursor::START)?.expect("there is one entry");
//! assert_eq!(entry.key.name(), Some(&b"hello"[..]));
//! assert_eq!(zap.next(&store, after)?, None);
//! # Ok::<(), terrane_zap::Error<terrane_wire::Corrupt>>(())
//! ```

#![deny(missing_docs)]
// Blocks are untrusted bytes; tests and constants are not.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::disallowed_methods))]

mod alias;
mod byte_order;
mod bytes;
mod check;
mod convert;
pub mod cursor;
mod elements;
mod error;
mod fat;
pub mod hash;
mod index;
pub mod key;
pub mod norm;
mod options;
mod ordered;
mod prepared_index;
mod shrink;
mod shrink_trigger;
mod slot_cache;
mod slots;
mod statistics;
pub mod store;
pub mod value;
mod zap;

pub use check::Report;
pub use cursor::Cursor;
pub use error::Error;
pub use fat::{Entry, VisitedEntry};
pub use hash::{Flags, HashBits};
pub use key::{Key, KeyRef};
pub use norm::{Match, NormFlags};
pub use options::ZapOptions;
pub use prepared_index::PreparedIndex;
pub use shrink::ShrinkPlan;
pub use slots::is_tiny;
pub use statistics::{Contents, Damage, FatStatistics, Histogram, SlotStatistics, Statistics};
pub use store::{FirstBlock, MemStore, Store};
pub use value::{CountBits, Value, ValueRef, ValueShape};
pub use zap::{Kind, Zap};
