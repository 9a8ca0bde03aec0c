//! Copies of a block that had to share a zone with another copy.

use super::Stored;
use terrane_format::addr::Addr;
use terrane_format::directory::Owner;
use terrane_wire::Txg;

/// A copy that lies in the zone of another copy.
pub struct Shared {
    pub addr: Addr,
    pub siblings: Vec<Addr>,
    pub psize: u32,
    pub crc: u32,
    pub birth: Txg,
    pub owner: Owner,
}

impl Shared {
    /// Describes a block that was appended beside another copy. `None` for the pool's own blocks, which the checkpoint rotation
    /// rewrites.
    pub fn of(addr: Addr, block: &Stored<'_>) -> Option<Shared> {
        matches!(block.owner, Owner::Block { .. }).then(|| Shared {
            addr,
            siblings: block.siblings.clone(),
            psize: block.bytes.len() as u32,
            crc: block.crc,
            birth: block.birth,
            owner: block.owner,
        })
    }
}
