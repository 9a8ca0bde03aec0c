//! What the kernel may cache, and for how long.
//!
//! A dataset has one mount, and nothing else changes it. So the kernel's caches of names, attributes and
//! pages are never stale and need no timeout. A `stat` that they answer costs one microsecond instead of
//! five. Missing names are cached as well: builds look up more names that are missing than names that exist.
//!
//! The kernel does not send opens. File handles carry nothing, so the first OPEN and OPENDIR are answered
//! with ENOSYS, and the kernel keeps the pages of closed files. Opens are sent only where pages must not be
//! kept (`direct_io`), because the answer to OPEN is what says so.
//!
//! A mount that follows another process is the exception. There names and attributes are valid for a moment, and pages as long as
//! times and sizes are the same.
//!
//! One number changes without a request: compression decides at the commit how many blocks a file takes. So
//! attributes of an inode with bytes that are not stored yet are valid for [`UNSTORED_ATTR`] only.
//!
//! Birth times are the one attribute that only STATX carries. A kernel that learns that we serve them sends a
//! STATX for each node that a program stats with its birth time. Some programs always ask for it (Rust's
//! standard library does), which costs one more request per file of a tree walk. So birth times are shown
//! only if an option asks for them.

use crate::proto::fopen;
use std::time::Duration;
use terrane_posix::Attr;

/// How long the kernel may use what it has cached. A mount option sets each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePolicy {
    /// Lifetime of an entry: a name and its node.
    pub entry: Duration,
    /// Lifetime of a negative entry: a name that does not exist.
    pub negative: Duration,
    /// Lifetime of attributes.
    pub attr: Duration,
    /// Data bypasses the page cache: each read and write is a request.
    pub direct_io: bool,
    /// `statx` shows birth times.
    pub birth_times: bool,
    /// Another process changes the data set. The kernel drops pages of a file when it sees another time or size.
    pub follows: bool,
}

/// A year: longer than any mount, and far from where the kernel's clock arithmetic saturates.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Lifetime of attributes whose number of blocks the next commit may change. Shorter: programs that keep appending
/// to many files send more GETATTR. Longer: `du` after a `sync` shows uncompressed bytes that long.
pub const UNSTORED_ATTR: Duration = Duration::from_millis(500);

impl Default for CachePolicy {
    fn default() -> Self {
        CachePolicy {
            entry: FOR_EVER,
            negative: FOR_EVER,
            attr: FOR_EVER,
            direct_io: false,
            birth_times: false,
            follows: false,
        }
    }
}

impl CachePolicy {
    /// For a mount that follows another process, whose changes are to be seen after this time.
    #[must_use]
    pub fn following(self, period: Duration) -> CachePolicy {
        let at_most = |time: Duration| time.min(period);
        let (entry, negative, attr) = (at_most(self.entry), at_most(self.negative), at_most(self.attr));
        CachePolicy { entry, negative, attr, follows: true, ..self }
    }

    /// Whether the kernel may open files and directories without a request.
    pub fn stateless_open(&self) -> bool {
        !self.direct_io
    }

    /// Lifetime of these attributes.
    pub fn attr_of(&self, attr: &Attr) -> Duration {
        if attr.blocks_known { self.attr } else { self.attr.min(UNSTORED_ATTR) }
    }

    /// Flags of the answer to OPEN or CREATE.
    pub fn file_flags(&self) -> u32 {
        if self.direct_io {
            fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES
        } else {
            fopen::KEEP_CACHE | fopen::NOFLUSH
        }
    }

    /// Flags of the answer to OPENDIR.
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
