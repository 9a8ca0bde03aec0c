//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod accounts;
mod acls;
mod clone;
mod entry_words;
mod files;
mod full;
mod hint_rules;
mod hints;
mod lifetimes;
mod limits;
mod model;
mod names;
mod naming;
mod owners;
mod placement;
mod prefetch;
mod relocated;
mod reserved;
mod rewrite;
mod second_copy;
mod shrink_dirs;
mod snapshot;
mod succession;
mod support;
mod sync;
mod threads;
mod xattrs;
