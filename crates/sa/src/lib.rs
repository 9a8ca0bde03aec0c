//! Attributes in the bonus area of a dnode, and in its spill block.
//!
//! What `stat` shows of a file (and its symlink target and small extended attributes) lies in its dnode, so that reading
//! the dnode is all that `stat` costs. A file stores only values: which attributes there are, and in which order, is
//! its *layout*, a numbered list kept once for each dataset; how long each one is comes from the dataset's *registry*.
//! Files of one kind share one layout, so the header of a buffer is 8 bytes, not a list of names.
//!
//! The encodings are those of OpenZFS's system attributes, byte for byte. Reading order of the rooms: [`attr`] (names
//! and numbers), [`registry`] (those of a dataset), [`layout`] (order), [`list`] (adding, removing, replacing),
//! [`buffer`] (bytes), [`place`](mod@place) (bonus or spill), [`zpl`] (what POSIX needs, as a struct), [`nvlist`]
//! (extended attributes, packed into one).
//!
//! Invariants:
//! * An [`Attrs`] or [`SaBuffer`] that exists lies wholly inside its bytes: every lookup succeeds or the attribute is
//!   not in the layout. Damage is found once, when the buffer is decoded.
//! * A layout's number and order never change once it was stored; tables only grow.
//!
//! ```
//! use terrane_sa::{Attr, Attrs, LayoutTable, Registry, SaBuffer, ZplAttrs};
//! let mut table = LayoutTable::new(Registry::built_in());
//!
//! // A new file. `find` is the common case; `add` gives a layout that must be stored with this transaction group.
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

pub mod attr;
pub mod buffer;
pub mod error;
pub mod layout;
pub mod list;
pub mod nvlist;
pub mod place;
pub mod registry;
pub mod zpl;

pub use attr::{Attr, SwapClass};
pub use buffer::{Attrs, SaBuffer};
pub use error::SaError;
pub use layout::{Layout, LayoutTable};
pub use list::{AttrList, AttrSlice};
pub use nvlist::NvList;
pub use place::place;
pub use registry::{AttrInfo, Registry};
pub use zpl::{Timestamp, ZplAttrs};
