//! Zone headers: the start of each zone that blocks were written to.

use crate::seal::{Seed, seal};
use terrane_wire::{Corrupt, Txg, ZoneSeq, layout};

/// `magic` of a [`ZoneHeader`].
pub const ZONE_MAGIC: u64 = u64::from_le_bytes(*b"TERRZONE");

layout! {
    /// Written once, at the start of a zone, with its first batch. `FORMAT.md` section "Zone headers".
    ZoneHeader, 80 bytes {
        /// [`ZONE_MAGIC`].
        0  magic: u64,
        /// Id of the pool, as in the label.
        8  pool: u64,
        /// This filling of the zone.
        16 seq: ZoneSeq,
        /// The incarnation that opened the zone.
        24 incarnation: u64,
        /// The txg in which the zone was opened.
        32 txg: Txg,
        /// Writable bytes.
        40 capacity: u64,
        /// Stored number of the zone's class.
        48 class: u8,
        /// 4: granules have 16 bytes.
        49 granule_shift: u8,
        /// Ignored.
        50 reserved: [u8; 14],
        /// Over the rest.
        64 seal: [u8; 16],
    }
}

impl ZoneHeader {
    /// The stored form, with its seal. The field `seal` may have any value.
    pub fn encode_sealed(mut self) -> [u8; ZoneHeader::SIZE] {
        self.seal = self.seal_of();
        self.encode()
    }

    fn seal_of(&self) -> [u8; 16] {
        let seed = Seed { pool: self.pool, scope: self.seq.0, offset: 0, incarnation: self.incarnation };
        seal(seed, &[&self.encode()[..ZoneHeader::SIZE - 16]])
    }

    /// Validates the first bytes of a zone that should hold the filling `seq` of `pool`.
    pub fn parse(raw: &[u8], pool: u64, seq: ZoneSeq, at: &str) -> Result<ZoneHeader, Corrupt> {
        let header = ZoneHeader::decode(raw)
            .ok_or_else(|| Corrupt::new(at, "zone header length", ZoneHeader::SIZE, raw.len()))?;
        if header.magic != ZONE_MAGIC || header.pool != pool || header.seal != header.seal_of() {
            return Err(Corrupt::new(at, "zone header", "valid and of this pool", "another or a bad seal"));
        }
        if header.seq != seq {
            return Err(Corrupt::new(at, "sequence in the zone header", seq, header.seq));
        }
        Ok(header)
    }
}
