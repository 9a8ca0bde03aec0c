//! What the kernel may remember, and for how long.
//!
//! A dataset has one mount and nobody else changes it, so the kernel's caches of names, attributes and pages are never
//! wrong and need no time limit: a `stat` that they answer costs a microsecond instead of five. Missing names are
//! remembered as well; builds ask for them more often than for names that exist.
//!
//! Opens are not sent to us at all: file handles carry nothing, so the first OPEN and OPENDIR are answered with ENOSYS,
//! and the kernel keeps the pages of closed files. Only where pages must not be kept (`direct_io`) do opens come, since
//! that wish travels in their answer.
//!
//! Times of birth are the one attribute that no other answer carries. A kernel that is told of them sends a STATX for each
//! node that a program asks to stat with its time of birth, and some ask always (Rust's standard library does):
//! one request more for each file of a walk. So they are shown only where somebody wants them.

use crate::proto::fopen;
use std::time::Duration;

/// How long the kernel may trust what it was told. Each part of it can be set by a mount option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePolicy {
    /// A name leads to the same node.
    pub entry: Duration,
    /// A name does not exist.
    pub negative: Duration,
    /// Attributes stay.
    pub attr: Duration,
    /// Data bypasses the page cache; each read and write is a request.
    pub direct_io: bool,
    /// `statx` shows when a file was made.
    pub birth_times: bool,
}

/// A year: "for ever" for a mount, and far from where the kernel's clock arithmetic saturates.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Default for CachePolicy {
    fn default() -> Self {
        CachePolicy {
            entry: FOR_EVER,
            negative: FOR_EVER,
            attr: FOR_EVER,
            direct_io: false,
            birth_times: false,
        }
    }
}

impl CachePolicy {
    /// The kernel may open files and directories without asking.
    pub fn stateless_open(&self) -> bool {
        !self.direct_io
    }

    /// Flags of an answer to OPEN or CREATE.
    pub fn file_flags(&self) -> u32 {
        if self.direct_io {
            fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES
        } else {
            fopen::KEEP_CACHE | fopen::NOFLUSH
        }
    }

    /// Flags of an answer to OPENDIR.
    pub fn dir_flags(&self) -> u32 {
        fopen::KEEP_CACHE | fopen::CACHE_DIR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_io_needs_opens_to_be_sent() {
        let policy = CachePolicy { direct_io: true, ..CachePolicy::default() };
        assert!(!policy.stateless_open());
        assert_eq!(policy.file_flags() & fopen::DIRECT_IO, fopen::DIRECT_IO);
        assert_eq!(CachePolicy::default().file_flags() & fopen::DIRECT_IO, 0);
    }
}
