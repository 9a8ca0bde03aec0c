//! The null server: what a mount costs when the file system behind it costs nothing.
//!
//! A file system in memory behind the same session, the same mount options and the same caching policy as a real
//! mount. What it reaches is the ceiling that Terrane's figures are measured against: the kernel, its switches between
//! client and server, and the front end. So it does honestly what a request asks for, and nothing that it does not:
//! names are hashed, bytes are copied once, and nothing is checked that the kernel has checked already.
//!
//! | room | what it is about |
//! |---|---|
//! | `node` | what is there: directories, files, links, and their attributes |
//! | `xattr` | the extended attributes of a node |
//! | `memory` | one request, one change of nodes |
//!
//! The kernel locks a directory while its names change, and a file while it is written. So each lock here guards one
//! node's memory for a moment, and none is taken while another is held.

mod memory;
mod node;
mod xattr;

pub use memory::Memory;
