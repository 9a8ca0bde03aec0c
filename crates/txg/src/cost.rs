//! What an operation reserves when it joins a txg, and the limits that apply to it.

use crate::admission::SpaceSnapshot;

/// Upper bounds of what an operation dirties.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Bytes of file data.
    pub write_bytes: u64,
    /// Dirtied metadata blocks, counted in units of 16 KiB.
    pub meta_blocks: u32,
    /// Bytes of further metadata blocks, of other sizes.
    pub meta_bytes: u64,
    /// Bytes of all these metadata blocks that few operations dirty, such as a leaf that splits. They do not count as dirty memory.
    pub rare_meta_bytes: u64,
    /// Bytes that changes of names are expected to dirty, beside all others. What such an operation really dirties is counted when it
    /// ends.
    pub names_bytes: Option<u64>,
    /// Objects whose dnodes change. The blocks that hold the dnodes are counted in `meta_blocks`, a shared
    /// block once.
    pub objects: u32,
    /// The operation frees space, so it may use the reserve.
    pub frees: bool,
    /// The kernel writes back what a program stored through a mapping, and that program cannot be told
    /// `ENOSPC`. So the operation may use a share of the reserve: see
    /// [`Limits`](terrane_space::account::Limits).
    pub writes_back: bool,
    /// Bytes that are reserved for a file once the operation has joined, until `Pool::end_file_reservation`.
    pub file_reservation: u64,
    /// The operation writes into its file's reservation, of which this many bytes are left.
    pub from_file_reservation: Option<u64>,
    /// Stored bytes of blocks that the operation shares. They take no space of the pool, but a data set is charged for
    /// all blocks that it refers to.
    pub shared_bytes: u64,
}

const META_COPIES: u64 = 2;
/// Stored bytes of a metadata block in the worst case: both copies.
pub const META_BLOCK_BYTES: u64 = META_COPIES * (16 << 10);
/// Memory of a dirty metadata block until its txg syncs, and of a changed object, in bytes.
pub const META_DIRTY_BYTES: u64 = 16 << 10;
const OBJECT_DIRTY_BYTES: u64 = 1 << 10;
/// An operation that dirties at most this is *little*: a create, an unlink, attributes, a short write.
const LITTLE_BYTES: u64 = 256 << 10;
/// An operation that dirties at most this is delayed where GC provides the free space.
const PACED_BYTES: u64 = 64 << 10;

impl Cost {
    /// No reservation; the operation still joins a txg.
    pub const NOTHING: Cost = Cost {
        write_bytes: 0,
        meta_blocks: 0,
        meta_bytes: 0,
        rare_meta_bytes: 0,
        names_bytes: None,
        objects: 0,
        frees: false,
        writes_back: false,
        file_reservation: 0,
        from_file_reservation: None,
        shared_bytes: 0,
    };

    /// The cost in a data set whose snapshots may keep replaced blocks. Dead lists take at most 32 bytes for each copy of a block of
    /// 4 KiB, and the last block of a list is written again.
    pub fn with_dead_lists(self) -> Cost {
        let entries = self.write_bytes / 128 + (u64::from(self.meta_blocks) << 8) + self.meta_bytes / 64;
        Cost {
            meta_blocks: self.meta_blocks.saturating_add(2),
            meta_bytes: self.meta_bytes.saturating_add(entries),
            ..self
        }
    }

    /// Memory that the operation may dirty in bytes, roughly.
    pub fn dirty_bytes(&self) -> u64 {
        self.write_bytes
            + self.metadata_bytes().saturating_sub(self.rare_meta_bytes)
            + self.names_bytes.unwrap_or(0)
            + u64::from(self.objects) * OBJECT_DIRTY_BYTES
    }

    fn metadata_bytes(&self) -> u64 {
        u64::from(self.meta_blocks) * META_DIRTY_BYTES + self.meta_bytes
    }

    /// The limits that apply: on live bytes, and on bytes written before GC has made more space. `file_reserved`:
    /// the reservations of all files.
    pub fn limits_of(&self, space: &SpaceSnapshot, file_reserved: u64) -> (u64, u64) {
        if self.frees {
            return (space.limits.live_frees, space.limits.writable_frees);
        }
        // Only frees may write into the space that GC needs. The other cases only raise the limit on live
        // bytes.
        let limit = match (self.from_file_reservation, self.writes_back) {
            (Some(own), _) => space.limits.live_reserved.saturating_sub(file_reserved.saturating_sub(own)),
            (None, true) => space.limits.live_write_backs.saturating_sub(file_reserved),
            (None, false) => space.limits.live.saturating_sub(file_reserved),
        };
        (limit.saturating_sub(self.file_reservation), space.limits.writable)
    }

    /// Whether the operation is delayed where GC provides the free space: a small one that does not free.
    pub fn is_paced(&self) -> bool {
        // The delay follows what is reserved, so the worst case counts.
        let most = self.write_bytes + self.metadata_bytes() + u64::from(self.objects) * OBJECT_DIRTY_BYTES;
        !self.frees && self.reserve_bytes() > 0 && most <= PACED_BYTES
    }

    /// Whether the operation is *little*. Only little ones may use the last share of the dirty bound.
    pub fn is_little(&self) -> bool {
        self.dirty_bytes() <= LITTLE_BYTES
    }

    /// Worst-case bytes on the device, both copies of metadata included.
    pub fn reserve_bytes(&self) -> u64 {
        self.write_bytes + u64::from(self.meta_blocks) * META_BLOCK_BYTES + self.meta_bytes * META_COPIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_space::account::Limits;

    #[test]
    fn a_file_reservation_is_usable_only_by_its_file() {
        let limits = Limits {
            live: 1000,
            live_write_backs: 1010,
            live_reserved: 1015,
            live_frees: 1020,
            writable: 50,
            writable_frees: 60,
            ..Limits::default()
        };
        let space = SpaceSnapshot { limits, ..SpaceSnapshot::default() };
        let found = |cost: Cost| cost.limits_of(&space, 300);
        assert_eq!(found(Cost::NOTHING), (700, 50));
        assert_eq!(found(Cost { file_reservation: 100, ..Cost::NOTHING }), (600, 50));
        assert_eq!(found(Cost { file_reservation: u64::MAX, ..Cost::NOTHING }), (0, 50));
        assert_eq!(found(Cost { writes_back: true, ..Cost::NOTHING }), (710, 50));
        let own = |bytes| Cost { from_file_reservation: Some(bytes), writes_back: true, ..Cost::NOTHING };
        assert_eq!((found(own(200)), found(own(400))), ((915, 50), (1015, 50)));
        assert_eq!(
            found(Cost { frees: true, ..own(1) }),
            (1020, 60),
            "promises keep nothing from those who free"
        );
    }
}
