//! Names in an array of blocks.
//!
//! A ZAP maps names to integers: every directory is one, and so are the tables that describe attributes, snapshots
//! and properties. The encodings are OpenZFS's, byte for byte, so that what is known about them holds here. A ZAP
//! starts as a single small block of 64-byte slots (*micro*), goes on in larger ones where names or values ask for it
//! (*tiny*), and becomes an extendible hash table (*fat*) when one block is not enough. All that
//! this crate knows of the world below is the [`Store`]: an array of blocks.
//!
//! | room | what it is about |
//! |---|---|
//! | [`store`] | the object, seen as blocks |
//! | [`hash`], [`key`], [`value`] | where a name belongs, what it is, what it holds |
//! | [`norm`] | names that mean the same |
//! | `slots`, `ordered`, `index`, `remembered` | one block of slots, and what is remembered about it |
//! | `fat` | header, pointer table, leaves |
//! | `options` | how a ZAP is made, and how far it may grow |
//! | `convert`, `shrink`, `removals` | from one kind to another, keeping every cursor valid |
//! | `zap` | which of them an object is now |
//! | `alias` | which entry a name means, where names are normalized |
//! | `byte_order` | ZAPs of machines with the other one |
//! | `prepared` | an index made before it is wanted |
//! | [`cursor`] | a place in the order of entries |
//! | `check` | what must hold of a whole ZAP |
//!
//! Invariant: no bytes of a store make anything here panic, hang, or use more than the store's size of memory.
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

// Blocks are bytes that may lie; tests and constants are ours.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod alias;
mod byte_order;
mod bytes;
mod check;
mod convert;
pub mod cursor;
mod error;
mod fat;
pub mod hash;
mod index;
pub mod key;
pub mod norm;
mod options;
mod ordered;
mod prepared;
mod remembered;
mod removals;
mod shrink;
mod slots;
pub mod store;
pub mod value;
mod zap;

pub use check::Report;
pub use cursor::Cursor;
pub use error::Error;
pub use fat::{Entry, Visited};
pub use hash::{Flags, HashBits};
pub use key::{Key, KeyRef};
pub use norm::{Match, NormFlags};
pub use options::ZapOptions;
pub use prepared::Prepared;
pub use shrink::Shrink;
pub use store::{First, MemStore, Store};
pub use value::{Value, ValueRef, ValueShape};
pub use zap::{Kind, Zap};
