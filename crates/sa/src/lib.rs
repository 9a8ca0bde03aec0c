//! System attributes (SA), in the bonus of a dnode and in its spill block.
//!
//! The attributes that `stat` needs, the target of a symlink and small extended attributes lie in the dnode. So
//! `stat` costs one read of the dnode. A file stores only values. Its *layout*, a numbered list kept once per
//! dataset, says which attributes there are, in which order. Their lengths come from the dataset's *registry*. Files
//! of one kind share one layout, so the header of a buffer is 8 bytes and not a list of names.
//!
//! The encodings are OpenZFS's, byte for byte. Modules in reading order:
//!
//! * [`attr`] and [`registry`]: names and numbers of attributes, those of one dataset;
//! * [`layout`] and [`list`]: order, and adding, removing, replacing;
//! * [`buffer`] and [`placement`]: bytes, and bonus or spill;
//! * [`zpl`]: the POSIX attributes as a struct;
//! * [`nvlist`]: extended attributes, packed into one.
//!
//! Invariants:
//! * Every [`Attrs`] and [`SaBuffer`] lies wholly inside its bytes: a lookup succeeds, or the layout lacks the
//!   attribute. Damage is found once, when the buffer is decoded.
//! * The number and order of a stored layout never change; tables only grow.
//!
//! ```
//! use terrane_sa::{Attr, Attrs, LayoutTable, Registry, SaBuffer, ZplAttrs};
//! let mut table = LayoutTable::new(Registry::built_in());
//!
//! // A new file. `find` is the common case; `add` gives a layout that must be stored in this txg.
//! let file = ZplAttrs { mode: 0o100644, links: 1, ..ZplAttrs::default() };
//! let list = file.to_list();
//! let layout = match table.find(list.order()) {
//!     Some(layout) => layout.clone(),
//!     None => table.add(&list.order().collect::<Vec<_>>())?,
//! };
//! let mut buffer = SaBuffer::encode(&layout, &list)?;
//!
//! // A write changes two numbers in place.
//! assert!(buffer.set_u64(Attr::SIZE, 4096) && buffer.set_pair(Attr::MTIME, [1_700_000_000, 0]));
//!
//! // `stat` of a file whose dnode was just read.
//! let attrs = Attrs::decode(buffer.as_bytes(), &table)?;
//! assert_eq!(ZplAttrs::from_attrs(&attrs)?.size, 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]

pub mod attr;
pub mod buffer;
pub mod error;
pub mod layout;
pub mod list;
pub mod nvlist;
pub mod placement;
pub mod registry;
pub mod zpl;

pub use attr::{Attr, SwapClass};
pub use buffer::{Attrs, SaBuffer};
pub use error::SaError;
pub use layout::{Layout, LayoutTable};
pub use list::{AttrList, AttrSlice};
pub use nvlist::NvList;
pub use placement::count_in_bonus;
pub use registry::{AttrInfo, Registry};
pub use zpl::{Timestamp, ZplAttrs};
