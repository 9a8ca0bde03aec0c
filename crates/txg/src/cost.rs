//! What an operation asks for when it joins a group, and how much room it finds.

use crate::admission::Room;

/// What an operation may dirty at the most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Bytes of file data.
    pub write_bytes: u64,
    /// Metadata blocks that are dirtied, counted in units of 16 KiB.
    pub meta_blocks: u32,
    /// Bytes of further metadata blocks, of other sizes.
    pub meta_bytes: u64,
    /// Objects whose dnode changes; the blocks those lie in are counted in `meta_blocks`, once for all who share one.
    pub objects: u32,
    /// The operation gives space back, so it may use the reserve.
    pub frees: bool,
    /// The kernel writes back what a program stored through a mapping, and the program cannot be told that there is no room. So the
    /// operation may use a share of the reserve: see [`Limits`](terrane_space::account::Limits).
    pub writes_back: bool,
    /// Bytes to be kept from others once the operation has joined, until `Pool::end_promise`.
    pub promises: u64,
    /// The operation writes into what was promised to it, of which so many bytes are left.
    pub from_promise: Option<u64>,
}

const META_COPIES: u64 = 2;
/// Stored bytes of a metadata block, both copies, at the worst.
pub const META_BLOCK_BYTES: u64 = META_COPIES * (16 << 10);
/// Memory a dirty metadata block holds until its group syncs, and a changed object.
pub const META_DIRTY_BYTES: u64 = 16 << 10;
const OBJECT_DIRTY_BYTES: u64 = 1 << 10;
/// A change that may dirty no more is little: a name made or removed, attributes, a short write.
const LITTLE_BYTES: u64 = 256 << 10;
/// A change that may dirty no more is delayed where room comes by collection.
const PACED_BYTES: u64 = 64 << 10;

impl Cost {
    /// Nothing, which joins a group all the same.
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

    /// Bytes of memory it may dirty, roughly.
    pub fn dirty_bytes(&self) -> u64 {
        self.write_bytes
            + u64::from(self.meta_blocks) * META_DIRTY_BYTES
            + self.meta_bytes
            + u64::from(self.objects) * OBJECT_DIRTY_BYTES
    }

    /// The bounds on what lives, and on what is written before collection has made more room. `promised`: to all.
    pub fn room_of(&self, room: &Room, promised: u64) -> (u64, u64) {
        if self.frees {
            return (room.limits.live_frees, room.limits.writable_frees);
        }
        // Only deletes may use what collection needs; for others only the bound on live bytes is higher.
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
