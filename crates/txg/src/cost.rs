//! What an operation reserves when it joins a txg, and the limits that apply to it.

use crate::admission::Room;

/// Upper bounds of what an operation dirties.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Bytes of file data.
    pub write_bytes: u64,
    /// Dirtied metadata blocks, counted in units of 16 KiB.
    pub meta_blocks: u32,
    /// Bytes of further metadata blocks, of other sizes.
    pub meta_bytes: u64,
    /// Objects whose dnodes change. The blocks that hold the dnodes are counted in `meta_blocks`, a shared
    /// block once.
    pub objects: u32,
    /// The operation frees space, so it may use the reserve.
    pub frees: bool,
    /// The kernel writes back what a program stored through a mapping, and that program cannot be told
    /// `ENOSPC`. So the operation may use a share of the reserve: see
    /// [`Limits`](terrane_space::account::Limits).
    pub writes_back: bool,
    /// Bytes that are reserved for a file once the operation has joined, until `Pool::end_promise`.
    pub promises: u64,
    /// The operation writes into its file's reservation, of which this many bytes are left.
    pub from_promise: Option<u64>,
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
        objects: 0,
        frees: false,
        writes_back: false,
        promises: 0,
        from_promise: None,
    };

    /// Memory that the operation may dirty in bytes, roughly.
    pub fn dirty_bytes(&self) -> u64 {
        self.write_bytes
            + u64::from(self.meta_blocks) * META_DIRTY_BYTES
            + self.meta_bytes
            + u64::from(self.objects) * OBJECT_DIRTY_BYTES
    }

    /// The limits that apply: on live bytes, and on bytes written before GC has made more space. `promised`:
    /// the reservations of all files.
    pub fn room_of(&self, room: &Room, promised: u64) -> (u64, u64) {
        if self.frees {
            return (room.limits.live_frees, room.limits.writable_frees);
        }
        // Only frees may write into the space that GC needs. The other cases only raise the limit on live
        // bytes.
        let limit = match (self.from_promise, self.writes_back) {
            (Some(own), _) => room.limits.live_promised.saturating_sub(promised.saturating_sub(own)),
            (None, true) => room.limits.live_write_backs.saturating_sub(promised),
            (None, false) => room.limits.live.saturating_sub(promised),
        };
        (limit.saturating_sub(self.promises), room.limits.writable)
    }

    pub fn is_paced(&self) -> bool {
        !self.frees && self.reserve_bytes() > 0 && self.dirty_bytes() <= PACED_BYTES
    }

    pub fn is_little(&self) -> bool {
        self.dirty_bytes() <= LITTLE_BYTES
    }

    pub fn reserve_bytes(&self) -> u64 {
        self.write_bytes + u64::from(self.meta_blocks) * META_BLOCK_BYTES + self.meta_bytes * META_COPIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_space::account::Limits;

    #[test]
    fn who_was_promised_room_finds_all_but_that_of_others() {
        let limits = Limits {
            live: 1000,
            live_write_backs: 1010,
            live_promised: 1015,
            live_frees: 1020,
            writable: 50,
            writable_frees: 60,
            ..Limits::default()
        };
        let room = Room { limits, ..Room::default() };
        let found = |cost: Cost| cost.room_of(&room, 300);
        assert_eq!(found(Cost::NOTHING), (700, 50));
        assert_eq!(found(Cost { promises: 100, ..Cost::NOTHING }), (600, 50));
        assert_eq!(found(Cost { promises: u64::MAX, ..Cost::NOTHING }), (0, 50));
        assert_eq!(found(Cost { writes_back: true, ..Cost::NOTHING }), (710, 50));
        let own = |bytes| Cost { from_promise: Some(bytes), writes_back: true, ..Cost::NOTHING };
        assert_eq!((found(own(200)), found(own(400))), ((915, 50), (1015, 50)));
        assert_eq!(
            found(Cost { frees: true, ..own(1) }),
            (1020, 60),
            "promises keep nothing from those who free"
        );
    }
}
