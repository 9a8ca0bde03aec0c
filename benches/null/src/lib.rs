//! The null server: the cost of a mount whose file system costs nothing.
//!
//! A file system in memory behind the same session, the same mount options and the same caching policy as a
//! real mount. Its results are the ceiling for Terrane's: the kernel, its switches between client and server,
//! and the front end. So it does what a request asks for, and nothing more: names are hashed, bytes are
//! copied once, and nothing is checked that the kernel has checked already.
//!
//! | module | content |
//! |---|---|
//! | `node` | directories, files, links, and their attributes |
//! | `xattr` | the extended attributes of a node |
//! | `memory` | one request, one change of nodes |
//!
//! The kernel locks a directory while its names change, and a file while it is written. So each lock here
//! guards one node's memory for a moment, and none is taken while another is held.

mod memory;
mod node;
mod xattr;

pub use memory::Memory;
