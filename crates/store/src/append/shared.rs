//! Copies that had to go where another copy of the block lies.

use super::Stored;
use terrane_format::addr::Addr;
use terrane_format::directory::Owner;
use terrane_wire::Txg;

/// A copy that lies in the zone of another.
pub struct Shared {
    pub addr: Addr,
    pub siblings: Vec<Addr>,
    pub psize: u32,
    pub crc: u32,
    pub birth: Txg,
    pub owner: Owner,
}

impl Shared {
    /// A block that was appended where another of its copies lies. `None`: blocks of the pool's own are rewritten in turn.
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
