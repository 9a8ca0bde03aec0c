//! Copies of a block that had to share a zone with another copy.

use super::Stored;
use terrane_format::addr::Addr;
use terrane_format::directory::Owner;
use terrane_wire::Txg;

/// A copy that lies in the zone of another copy.
pub struct ColocatedCopy {
    /// Birthplace of the copy.
    pub addr: Addr,
    /// Addresses of the other copies.
    pub other_copies: Vec<Addr>,
    /// Stored bytes, exact.
    pub psize: u32,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
    /// The txg in which the block was born.
    pub birth: Txg,
    /// The owner: always a block of an object.
    pub owner: Owner,
}

impl ColocatedCopy {
    /// Describes a block that was appended beside another copy. `None` for the pool's own blocks, which the checkpoint rotation
    /// rewrites.
    pub fn of(addr: Addr, block: &Stored<'_>) -> Option<ColocatedCopy> {
        matches!(block.owner, Owner::Block { .. }).then(|| ColocatedCopy {
            addr,
            other_copies: block.other_copies.to_vec(),
            psize: block.bytes.len() as u32,
            crc: block.crc,
            birth: block.birth,
            owner: block.owner,
        })
    }
}
