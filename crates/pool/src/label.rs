//! Labels and uberblocks: how a pool is found and where its newest group begins.
//!
//! Nothing is ever written in place, the root included. Zones 0 and 1 of each device are its *anchor zones*. The anchor in use
//! begins with the *label* (who the pool is, which devices and features it has), then uberblocks are appended, one for each
//! committed group. When an anchor is full the other one is reset, gets the label, and takes over.
//!
//! Every anchor filling has a *turn*, one more than the one before; it is part of every seal, so a slot that survived from an
//! earlier turn never validates. Without a hardware pointer both anchors are read whole, never searched.
//!
//! Invariant: at every moment one anchor holds a valid label and the newest committed uberblock.

use crate::addr::{GRANULE, Place, ZONE_BYTES_MAX};
use crate::block_ptr::BLOCK_BYTES_MAX;
use crate::seal::{Seed, seal};
use terrane_wire::{Corrupt, Reader, Truncated, Txg, Writer, layout};

pub const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"TERRLABL");
pub const UBERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"TERRUBER");
/// Version of the frame of label and uberblock; what is inside is versioned by features.
pub const FORMAT_VERSION: u32 = 1;
/// Anchor zones of each device.
pub const ANCHORS: u32 = 2;
/// At most this much of an anchor is used, in bytes: what an import must read.
pub const ANCHOR_BYTES_MAX: u64 = 16 << 20;
/// Bytes reserved for the label at the start of an anchor.
pub const LABEL_BYTES: u64 = 16 << 10;

layout! {
    /// Fixed head of a label; features, name and device table follow. `FORMAT.md` section "Labels".
    LabelHead, 96 bytes {
        0  magic: u64,
        8  version: u32,
        12 body_bytes: u32,
        16 pool: u64,
        /// Of this device in this pool.
        24 device: u64,
        /// Raised by every change of features or devices; every uberblock repeats it.
        32 generation: u64,
        40 turn: u64,
        48 zone_size: u64,
        56 zone_count: u32,
        60 write_unit: u32,
        64 max_block: u32,
        68 sections: u32,
        72 reserved: u64,
        80 seal: [u8; 16],
    }
}

layout! {
    /// One copy of an uberblock; a commit appends two. `FORMAT.md` section "Uberblocks".
    UberblockPhys, 256 bytes {
        0   magic: u64,
        8   version: u32,
        12  flags: u32,
        16  pool: u64,
        24  generation: u64,
        32  turn: u64,
        40  incarnation: u64,
        48  txg: Txg,
        /// The oldest group that is still whole; nothing older is ever imported.
        56  oldest: Txg,
        64  time_ns: u64,
        /// Sequence numbers below this one may be in use.
        72  lease_seq: u64,
        /// Group numbers below this one may be in use.
        80  lease_txg: u64,
        88  record: RecordPtrPhys,
        200 reserved: [u64; 5],
        240 seal: [u8; 16],
    }
}

layout! {
    /// Where a bootstrap block lies, twice, and what it must be.
    RecordPtrPhys, 112 bytes {
        0   places: [Place; 2],
        64  checksum: [u8; 32],
        96  len: u32,
        /// Bytes of the batch in the zone, with directory part and padding.
        100 padded: u32,
        104 reserved: u64,
    }
}

/// Numbers that only count up stay far below the end of 64 bits; one that does not is a lie.
const COUNTER_MAX: u64 = 1 << 62;
/// The smallest `max_block` that a zone of the smallest size gives, in bytes.
const MAX_BLOCK_MIN: u32 = 256 << 10;

/// Set when the pool was exported: nothing was written after this uberblock.
pub const UBERBLOCK_CLEAN: u32 = 1;

impl Default for Place {
    fn default() -> Self {
        use terrane_wire::{DeviceIdx, ZoneIdx, ZoneSeq};
        Place::new(DeviceIdx(0), ZoneIdx(0), 0, ZoneSeq(0))
    }
}

/// Names a bootstrap block by place.
pub type BootPtr = RecordPtrPhys;

impl RecordPtrPhys {
    pub const NONE: RecordPtrPhys =
        RecordPtrPhys { places: [NO_PLACE; 2], checksum: [0; 32], len: 0, padded: 0, reserved: 0 };

    pub fn is_none(&self) -> bool {
        self.len == 0
    }

    /// Judges a stored pointer to a bootstrap block: only then may places become addresses.
    pub fn judge(&self, at: &dyn std::fmt::Display) -> Result<(), Corrupt> {
        let fits = |place: &Place| {
            place.seq.0 >> 36 == 0 && place.offset.is_multiple_of(GRANULE) && place.offset < ZONE_BYTES_MAX
        };
        if self.places.iter().all(fits) && self.len <= BLOCK_BYTES_MAX && self.padded <= BLOCK_BYTES_MAX * 2 {
            return Ok(());
        }
        Err(Corrupt::new(
            at,
            "pointer to a bootstrap block",
            "places and sizes in range",
            format_args!("{:?}", self.places),
        ))
    }

    /// Copies there are; a pool of very few zones may have both in one.
    pub fn copies(&self) -> impl Iterator<Item = Place> + '_ {
        self.places.iter().copied().filter(|place| place.seq.0 != 0)
    }
}

const NO_PLACE: Place = Place {
    device: terrane_wire::DeviceIdx(0),
    reserved: 0,
    zone: terrane_wire::ZoneIdx(0),
    offset: 0,
    seq: terrane_wire::ZoneSeq(0),
    reserved2: 0,
};

/// Features by name, in three lists: what an older Terrane may do with the pool when it does not know one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Unknown: the pool is refused.
    pub incompatible: Vec<String>,
    /// Unknown: the pool can be imported read-only.
    pub read_only_compatible: Vec<String>,
    /// Unknown: no matter.
    pub compatible: Vec<String>,
}

/// One row of the device table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    pub device: u64,
    pub zone_size: u64,
    pub zone_count: u32,
    pub write_unit: u32,
}

/// Who a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub pool: u64,
    pub name: String,
    pub device: u64,
    pub generation: u64,
    pub turn: u64,
    pub zone_size: u64,
    pub zone_count: u32,
    pub write_unit: u32,
    /// The largest stored block, in bytes.
    pub max_block: u32,
    /// Into how many sections the space tables are cut.
    pub sections: u32,
    pub features: Features,
    pub devices: Vec<DeviceRow>,
}

fn label_seed(pool: u64, device: u64, anchor: u32, turn: u64) -> Seed {
    Seed { pool, life: device, offset: u64::from(anchor), incarnation: turn }
}

impl Label {
    /// The label as it begins anchor number `anchor`, padded to [`LABEL_BYTES`].
    pub fn encode(&self, anchor: u32) -> Vec<u8> {
        let mut body = Writer::new();
        body.blob(self.name.as_bytes());
        for list in
            [&self.features.incompatible, &self.features.read_only_compatible, &self.features.compatible]
        {
            body.varint(list.len() as u64);
            for name in list {
                body.blob(name.as_bytes());
            }
        }
        body.varint(self.devices.len() as u64);
        for row in &self.devices {
            body.u64(row.device);
            body.u64(row.zone_size);
            body.u32(row.zone_count);
            body.u32(row.write_unit);
        }
        let mut head = LabelHead {
            magic: LABEL_MAGIC,
            version: FORMAT_VERSION,
            body_bytes: body.len() as u32,
            pool: self.pool,
            device: self.device,
            generation: self.generation,
            turn: self.turn,
            zone_size: self.zone_size,
            zone_count: self.zone_count,
            write_unit: self.write_unit,
            max_block: self.max_block,
            sections: self.sections,
            reserved: 0,
            seal: [0; 16],
        };
        let seed = label_seed(self.pool, self.device, anchor, self.turn);
        head.seal = seal(seed, &[&head.encode()[..LabelHead::SIZE - 16], body.as_bytes()]);
        let mut raw = head.encode().to_vec();
        raw.extend_from_slice(body.as_bytes());
        assert!(raw.len() as u64 <= LABEL_BYTES, "names and device table are bounded where they are made");
        raw.resize(LABEL_BYTES as usize, 0);
        raw
    }

    /// Judges the first [`LABEL_BYTES`] of an anchor.
    pub fn parse(raw: &[u8], anchor: u32, at: &str) -> Result<Label, Corrupt> {
        let short = || Corrupt::new(at, "label length", LABEL_BYTES, raw.len());
        let head = LabelHead::decode(raw).ok_or_else(short)?;
        if head.magic != LABEL_MAGIC {
            return Err(Corrupt::new(
                at,
                "label magic",
                format_args!("{LABEL_MAGIC:#x}"),
                format_args!("{:#x}", head.magic),
            ));
        }
        if head.version != FORMAT_VERSION {
            return Err(Corrupt::new(at, "label version", FORMAT_VERSION, head.version));
        }
        let body_bytes = usize::try_from(head.body_bytes).unwrap_or(usize::MAX);
        let body = LabelHead::SIZE
            .checked_add(body_bytes)
            .and_then(|end| raw.get(LabelHead::SIZE..end))
            .ok_or_else(short)?;
        let seed = label_seed(head.pool, head.device, anchor, head.turn);
        let sealed = raw.get(..LabelHead::SIZE - 16).ok_or_else(short)?;
        if seal(seed, &[sealed, body]) != head.seal {
            return Err(Corrupt::new(at, "label seal", "that of its bytes", "another"));
        }
        let unit_ok = head.write_unit.is_power_of_two() && (4096..=1 << 20).contains(&head.write_unit);
        let size_ok = head.zone_size >= u64::from(head.write_unit) && head.zone_size <= ZONE_BYTES_MAX;
        if !unit_ok || !size_ok || head.zone_count < ANCHORS || head.sections == 0 || head.sections > 1 << 16
        {
            return Err(Corrupt::new(
                at,
                "label geometry",
                "powers of two in range",
                format_args!(
                    "write unit {}, zone size {}, zones {}, sections {}",
                    head.write_unit, head.zone_size, head.zone_count, head.sections
                ),
            ));
        }
        let max_block_ok = (MAX_BLOCK_MIN..=BLOCK_BYTES_MAX).contains(&head.max_block);
        if !max_block_ok || head.turn >= COUNTER_MAX || head.generation >= COUNTER_MAX {
            return Err(Corrupt::new(
                at,
                "label counters",
                "in range",
                format_args!(
                    "max_block {}, turn {}, generation {}",
                    head.max_block, head.turn, head.generation
                ),
            ));
        }
        let truncated = |error: Truncated| Corrupt::new(at, "label body", "whole", error);
        let (name, features, devices) = parse_body(body).map_err(truncated)?;
        if !crate::import::is_name(&name) {
            return Err(Corrupt::new(
                at,
                "pool name",
                "letters, digits and _ - . :",
                format_args!("{name:?}"),
            ));
        }
        Ok(Label {
            pool: head.pool,
            name,
            device: head.device,
            generation: head.generation,
            turn: head.turn,
            zone_size: head.zone_size,
            zone_count: head.zone_count,
            write_unit: head.write_unit,
            max_block: head.max_block,
            sections: head.sections,
            features,
            devices,
        })
    }
}

fn parse_body(body: &[u8]) -> Result<(String, Features, Vec<DeviceRow>), Truncated> {
    let mut raw = Reader::new(body);
    let text = |raw: &mut Reader<'_>| -> Result<String, Truncated> {
        Ok(String::from_utf8_lossy(raw.blob()?).into_owned())
    };
    let name = text(&mut raw)?;
    let mut list = || -> Result<Vec<String>, Truncated> {
        let count = raw.count(1)?;
        (0..count).map(|_| text(&mut raw)).collect()
    };
    let features = Features { incompatible: list()?, read_only_compatible: list()?, compatible: list()? };
    let count = raw.count(24)?;
    let devices = (0..count)
        .map(|_| {
            Ok(DeviceRow {
                device: raw.u64()?,
                zone_size: raw.u64()?,
                zone_count: raw.u32()?,
                write_unit: raw.u32()?,
            })
        })
        .collect::<Result<_, Truncated>>()?;
    Ok((name, features, devices))
}

/// The root of one committed group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uberblock {
    pub clean: bool,
    pub generation: u64,
    pub turn: u64,
    pub incarnation: u64,
    pub txg: Txg,
    pub oldest: Txg,
    pub time_ns: u64,
    pub lease_seq: u64,
    pub lease_txg: u64,
    pub record: BootPtr,
}

impl Uberblock {
    /// Two slots of `slot` bytes, to be written at `offset` of the anchor in one write.
    pub fn encode(&self, label: &Label, anchor: u32, offset: u64, slot: usize) -> Vec<u8> {
        let mut raw = Vec::with_capacity(slot * 2);
        for copy in 0..2 {
            let mut phys = UberblockPhys {
                magic: UBERBLOCK_MAGIC,
                version: FORMAT_VERSION,
                flags: if self.clean { UBERBLOCK_CLEAN } else { 0 },
                pool: label.pool,
                generation: self.generation,
                turn: self.turn,
                incarnation: self.incarnation,
                txg: self.txg,
                oldest: self.oldest,
                time_ns: self.time_ns,
                lease_seq: self.lease_seq,
                lease_txg: self.lease_txg,
                record: self.record,
                reserved: [0; 5],
                seal: [0; 16],
            };
            let at = offset + copy * slot as u64;
            phys.seal = seal(uber_seed(label, anchor, at), &[&phys.encode()[..UberblockPhys::SIZE - 16]]);
            raw.extend_from_slice(&phys.encode());
            raw.resize((copy as usize + 1) * slot, 0);
        }
        raw
    }

    /// The uberblock in the slot at `offset` of an anchor, if one of this label's turn is there, whole.
    pub fn parse(raw: &[u8], label: &Label, anchor: u32, offset: u64) -> Option<Uberblock> {
        let phys = UberblockPhys::decode(raw)?;
        let sealed = raw.get(..UberblockPhys::SIZE - 16)?;
        let ours = phys.magic == UBERBLOCK_MAGIC
            && phys.version == FORMAT_VERSION
            && phys.pool == label.pool
            && phys.turn == label.turn
            && phys.txg.0.max(phys.incarnation).max(phys.lease_txg) < COUNTER_MAX
            && phys.lease_seq >> 36 == 0
            && phys.seal == seal(uber_seed(label, anchor, offset), &[sealed]);
        ours.then_some(Uberblock {
            clean: phys.flags & UBERBLOCK_CLEAN != 0,
            generation: phys.generation,
            turn: phys.turn,
            incarnation: phys.incarnation,
            txg: phys.txg,
            oldest: phys.oldest,
            time_ns: phys.time_ns,
            lease_seq: phys.lease_seq,
            lease_txg: phys.lease_txg,
            record: phys.record,
        })
    }
}

fn uber_seed(label: &Label, anchor: u32, offset: u64) -> Seed {
    Seed { pool: label.pool, life: label.device << 1 | u64::from(anchor), offset, incarnation: label.turn }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            pool: 0x1234,
            name: "tank".into(),
            device: 99,
            generation: 3,
            turn: 8,
            zone_size: 1 << 20,
            zone_count: 64,
            write_unit: 4096,
            max_block: 256 << 10,
            sections: 4,
            features: Features { incompatible: vec!["org.example:x".into()], ..Features::default() },
            devices: vec![DeviceRow { device: 99, zone_size: 1 << 20, zone_count: 64, write_unit: 4096 }],
        }
    }

    #[test]
    fn labels_come_back_and_belong_to_one_anchor() {
        let raw = label().encode(1);
        assert_eq!(Label::parse(&raw, 1, "here").unwrap(), label());
        assert!(Label::parse(&raw, 0, "here").is_err());
        assert!(Label::parse(&raw[..50], 1, "here").is_err());
    }

    /// The bytes of a label, up to the zeros that fill it.
    fn golden(name: &str, features: Features) {
        let label = Label { features, ..label() };
        let mut raw = label.encode(0);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let mut golden = std::fs::read(&path).unwrap();
        golden.resize(LABEL_BYTES as usize, 0);
        assert_eq!(Label::parse(&golden, 0, name).unwrap(), label);
        assert!(golden == raw, "{name}: another label would be written");
        raw[LabelHead::SIZE] ^= 1;
        assert!(golden != raw);
    }

    #[test]
    fn labels_with_and_without_features_are_what_they_always_were() {
        golden("label_of_the_first_version", Features::default());
        let mut features = Features::default();
        features.add(crate::Feature::TinyZap);
        golden("label_with_tinyzap", features);
    }

    #[test]
    fn no_bit_of_a_label_may_flip() {
        let raw = label().encode(0);
        let body = LabelHead::decode(&raw).unwrap().body_bytes as usize + LabelHead::SIZE;
        for bit in 0..body * 8 {
            let mut bad = raw.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Label::parse(&bad, 0, "here").is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_uberblock_is_two_slots_of_one_turn() {
        let label = label();
        let uber = Uberblock {
            clean: true,
            generation: 3,
            turn: 8,
            incarnation: 2,
            txg: Txg(17),
            oldest: Txg(14),
            time_ns: 1,
            lease_seq: 100,
            lease_txg: 200,
            record: BootPtr::NONE,
        };
        let raw = uber.encode(&label, 0, 16384, 4096);
        assert_eq!(raw.len(), 8192);
        assert_eq!(Uberblock::parse(&raw, &label, 0, 16384), Some(uber));
        assert_eq!(Uberblock::parse(&raw[4096..], &label, 0, 20480), Some(uber));
        assert_eq!(Uberblock::parse(&raw, &label, 1, 16384), None, "of another anchor");
        let next_turn = Label { turn: 9, ..label.clone() };
        assert_eq!(Uberblock::parse(&raw, &next_turn, 0, 16384), None, "of an earlier turn");
        for bit in 0..UberblockPhys::SIZE * 8 {
            let mut bad = raw.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Uberblock::parse(&bad, &label, 0, 16384), None, "bit {bit}");
        }
    }
}
