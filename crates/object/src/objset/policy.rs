//! How file contents are stored: the policy of a set.

use super::ObjectSet;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_codec::{AutoRange, ChecksumKind, Compression, CompressionPolicy};
use terrane_pool::Pool;
use terrane_space::policy::Hint;
use terrane_txg::levels::Levels;

/// How file contents are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPolicy {
    /// Compression of file contents.
    pub compression: CompressionPolicy,
    /// Checksum of file contents. Metadata is always BLAKE3.
    pub checksum: ChecksumKind,
    /// Block size of new files, in bytes.
    pub record_size: u32,
    /// Lifetime hint of objects without their own.
    pub write_hint: Hint,
}

impl Default for DataPolicy {
    fn default() -> Self {
        DataPolicy {
            compression: Compression::Lz4.into(),
            checksum: ChecksumKind::Blake3,
            record_size: 128 << 10,
            write_hint: Hint::NotSet,
        }
    }
}

/// The policy in effect.
pub(super) struct ActivePolicy {
    policy: RwLock<DataPolicy>,
    /// Controller of the policy's `zstd-auto`.
    pub zstd_levels: Arc<Levels>,
    /// The policy's record size, bounded by the pool's blocks. Atomic, as every `stat` reads it.
    record_size: AtomicU32,
}

impl ActivePolicy {
    pub fn new(pool: &Pool) -> ActivePolicy {
        ActivePolicy {
            record_size: AtomicU32::new(DataPolicy::default().record_size.min(pool.max_block())),
            policy: RwLock::default(),
            zstd_levels: Levels::new(AutoRange::default()),
        }
    }
}

impl ActivePolicy {
    /// A copy for a set that writes nothing. It has only what programs can see of the policy.
    pub fn copy_of(other: &ActivePolicy) -> ActivePolicy {
        ActivePolicy {
            record_size: AtomicU32::new(other.record_size.load(Ordering::Relaxed)),
            policy: RwLock::new(*other.policy.read()),
            zstd_levels: Levels::new(AutoRange::default()),
        }
    }
}

impl ObjectSet {
    /// How file contents are stored now.
    pub fn policy(&self) -> DataPolicy {
        *self.policy.policy.read()
    }

    /// Applies to everything written from now on.
    pub fn set_policy(&self, policy: DataPolicy) {
        self.pool.note_record_size(policy.record_size);
        if let CompressionPolicy::Auto(range) = policy.compression {
            self.policy.zstd_levels.set_range(range);
        }
        self.pool.reset_nopwrite_sampling();
        *self.policy.policy.write() = policy;
        self.policy.record_size.store(policy.record_size.min(self.pool.max_block()), Ordering::Relaxed);
    }

    /// What `zstd-auto` chose since the set was opened.
    pub fn zstd_levels(&self) -> &Levels {
        &self.policy.zstd_levels
    }

    /// Block size of new files, in bytes.
    pub fn record_size(&self) -> u32 {
        self.policy.record_size.load(Ordering::Relaxed)
    }
}
