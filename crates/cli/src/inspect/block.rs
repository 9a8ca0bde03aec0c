//! One block at an address: where it lies, what it is, and whether its bytes are right.
//!
//! The directory of its zone says whose block it is, how long, and its CRC. The pointer, which is found through the
//! owner, says how it is compressed, and its checksum. A freed block has no pointer any more.

use super::{addr_text, place_text};
use crate::clock;
use crate::failure::{Failure, Outcome};
use crate::hex;
use serde::Serialize;
use serde_json::{Map, Value};
use std::str::FromStr;
use std::sync::Arc;
use terrane_codec::compress::algorithm::ID_ZSTD;
use terrane_codec::{ChecksumKind, Compression, ZstdLevel, compute};
use terrane_format::addr::{Addr, GRANULE, Place, ZONE_BYTES_MAX, is_valid_seq};
use terrane_format::block_ptr::Normal;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::directory::{
    Entry, POOL_DEAD_LOG, POOL_PART_COPY, POOL_RECORD, POOL_SECTION, PartTrailer, parse_part, parse_trailer,
};
use terrane_format::label::ANCHORS;
use terrane_format::record::{Home, Record, get_frees};
use terrane_format::zone_header::ZoneHeader;
use terrane_format::{BlockPtr, Owner};
use terrane_object::{ObjectKind, ObjectSets};
use terrane_pool::Pool;
use terrane_pool::inspect::{DeviceView, ZoneView};
use terrane_store::bootstrap::boot_decode;
use terrane_store::explain::EntryState;
use terrane_store::occupant::{Occupant, StoredCopy};
use terrane_wire::{Corrupt, DeviceIdx, ObjectId, Reader, ZoneIdx, ZoneSeq};

/// An address as commands and messages spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelled {
    /// `1:0x55740` or `zone 1 granule 21876`: a birthplace.
    Birthplace { seq: u64, offset: u64 },
    /// `0:2:0x7000` or `device 0 zone 2 granule 1792`: a place on a device.
    Place { device: u16, zone: u32, offset: u64 },
}

fn number<T: TryFrom<u64>>(word: &str) -> Option<T> {
    let value = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => u64::from_str(word),
    };
    T::try_from(value.ok()?).ok()
}

impl Spelled {
    fn parse(text: &str) -> Option<Spelled> {
        let bytes = |granule: &str| number::<u64>(granule)?.checked_mul(GRANULE);
        let words: Vec<&str> =
            text.split(|c: char| c == ':' || c.is_whitespace()).filter(|w| !w.is_empty()).collect();
        Some(match words[..] {
            ["zone", seq, "granule", granule] => {
                Spelled::Birthplace { seq: number(seq)?, offset: bytes(granule)? }
            }
            ["device", device, "zone", zone, "granule", granule] => {
                Spelled::Place { device: number(device)?, zone: number(zone)?, offset: bytes(granule)? }
            }
            [seq, offset] => Spelled::Birthplace { seq: number(seq)?, offset: number(offset)? },
            [device, zone, offset] => {
                Spelled::Place { device: number(device)?, zone: number(zone)?, offset: number(offset)? }
            }
            _ => return None,
        })
    }
}

/// What is to be told of a block beside its description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its stored bytes.
    pub stored: bool,
    /// Its decoded bytes.
    pub content: bool,
}

/// A block. What it does not have is left out.
#[derive(Default, Serialize)]
pub struct BlockRow {
    address: String,
    what: &'static str,
    zone: u64,
    class: &'static str,
    place: String,
    device: String,
    /// In the zone, in bytes.
    offset: u64,
    stored_bytes: u64,
    damaged: bool,
    findings: Vec<String>,
    /// Of a header, a directory part or a bootstrap block.
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: Map<String, Value>,
    #[serde(flatten)]
    listed: Option<ListedRow>,
    #[serde(flatten)]
    pointed: Option<PointedRow>,
    copies: Vec<CopyRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Why there is no `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_error: Option<String>,
}

/// What the directory of a zone says of a block.
#[derive(Serialize)]
struct ListedRow {
    birthplace: String,
    standing: &'static str,
    owner: String,
    birth: u64,
    crc: String,
    /// Why the checksum and the algorithm are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_pointer: Option<String>,
}

/// What the pointer to a block says.
#[derive(Serialize)]
struct PointedRow {
    logical_bytes: u64,
    compression: String,
    checksum_kind: String,
    checksum: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fill: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logical_birth: Option<u64>,
}

/// One copy of a block, on one replica of its zone.
#[derive(Serialize)]
struct CopyRow {
    address: String,
    zone: Option<u64>,
    class: Option<&'static str>,
    place: Option<String>,
    crc: Option<String>,
    checksum: Option<String>,
    state: &'static str,
    error: Option<String>,
}

/// How the bytes of a block are verified and decoded.
enum Pointer {
    Block(Normal),
    Bootstrap(BootPtr),
    Unknown(String),
}

impl Pointer {
    fn checksum(&self) -> Option<(ChecksumKind, [u8; 32])> {
        match self {
            Pointer::Block(normal) => Some((normal.checksum_kind, normal.checksum)),
            Pointer::Bootstrap(ptr) => Some((ChecksumKind::Blake3, ptr.checksum)),
            Pointer::Unknown(_) => None,
        }
    }

    fn error(&self) -> Option<String> {
        match self {
            Pointer::Unknown(reason) => Some(reason.clone()),
            Pointer::Block(_) | Pointer::Bootstrap(_) => None,
        }
    }
}

/// The zone and the offset that an address means, and the device of the zone.
struct Found {
    zone: ZoneView,
    device: DeviceView,
    offset: u64,
}

struct Looker<'a> {
    pool: &'a Arc<Pool>,
    /// `Err`: why no object can be read.
    sets: Result<&'a Arc<ObjectSets>, String>,
    wanted: Wanted,
    address: &'a str,
}

/// The block at an address.
///
/// # Errors
/// If nothing can be at that address, or the directory of its zone cannot be read. A damaged block is no error.
pub fn block(
    pool: &Arc<Pool>,
    sets: Result<&Arc<ObjectSets>, String>,
    address: &str,
    wanted: Wanted,
) -> Outcome<BlockRow> {
    let looker = Looker { pool, sets, wanted, address };
    let found = looker.find()?;
    looker.look(&found)
}

impl Looker<'_> {
    fn refused(&self, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Failure {
        let remedy = "`terrane debug zone POOL` lists zones, `terrane debug zone POOL SEQ` the blocks of one";
        Failure::refused(format_args!("address {}", self.address), expected, found, remedy)
    }

    fn find(&self) -> Outcome<Found> {
        let spelled = Spelled::parse(self.address).ok_or_else(|| {
            self.refused("SEQ:OFFSET (1:0x55740) or DEVICE:ZONE:OFFSET (0:2:0x7000)", "another spelling")
        })?;
        let (Spelled::Birthplace { offset, .. } | Spelled::Place { offset, .. }) = spelled;
        if !offset.is_multiple_of(GRANULE) {
            return Err(self.refused(format_args!("an offset that is a multiple of {GRANULE}"), offset));
        }
        let zones = self.pool.zones();
        let devices = self.pool.devices();
        let device_of = |home: Home| {
            let found = devices.iter().find(|device| device.index == home.device);
            found.cloned().ok_or_else(|| Failure(format!("device {}: not one of the pool", home.device)))
        };
        match spelled {
            Spelled::Place { device, zone, offset } => {
                let home = Home { device: DeviceIdx(device), zone: ZoneIdx(zone) };
                let known = devices.iter().find(|known| known.index == home.device).ok_or_else(|| {
                    let names = devices.iter().map(|known| format!("{} ({})", known.index, known.name));
                    self.refused(
                        format_args!("a device of the pool: {}", names.collect::<Vec<_>>().join(", ")),
                        format_args!("device {device}"),
                    )
                })?;
                let name = &known.name;
                if zone >= known.zone_count {
                    let expected = format_args!("a zone below {} on device {name}", known.zone_count);
                    return Err(self.refused(expected, format_args!("zone {zone}")));
                }
                if zone < ANCHORS {
                    let expected = format_args!("a zone from {ANCHORS} on of device {name}");
                    let found = "an anchor zone, which `terrane debug uberblock` shows";
                    return Err(self.refused(expected, found));
                }
                if offset >= known.zone_size {
                    let expected = format_args!(
                        "an offset below {:#x}, the zone size of device {name}",
                        known.zone_size
                    );
                    return Err(self.refused(expected, format_args!("{offset:#x}")));
                }
                let holds = |view: &ZoneView| view.capacity > 0 && view.home == home;
                let view = zones.into_iter().find(holds).ok_or_else(|| {
                    self.refused("a zone in use", format_args!("zone {zone} of device {name} empty"))
                })?;
                self.inside(Found { zone: view, device: known.clone(), offset })
            }
            Spelled::Birthplace { seq, offset } => {
                let no_zone = || self.refused("a zone of this pool", format_args!("none numbered {seq}"));
                if !is_valid_seq(ZoneSeq(seq)) {
                    return Err(no_zone());
                }
                let birth = zones.iter().find(|view| view.seq == ZoneSeq(seq)).ok_or_else(no_zone)?;
                let is_resident = birth.capacity > 0;
                if is_resident {
                    self.inside(Found { zone: birth.clone(), device: device_of(birth.home)?, offset })?;
                }
                if offset >= ZONE_BYTES_MAX {
                    let expected = format_args!("an offset below {ZONE_BYTES_MAX:#x}");
                    return Err(self.refused(expected, format_args!("{offset:#x}")));
                }
                let position = self.pool.position_of(Addr::new(ZoneSeq(seq), offset))?;
                let (seq, offset) = position.ok_or_else(|| {
                    self.refused(
                        "a block that still exists",
                        format_args!("zone {seq} reclaimed, and no block moved from there"),
                    )
                })?;
                let view = zones.into_iter().find(|view| view.seq == seq).ok_or_else(no_zone)?;
                let device = device_of(view.home)?;
                Ok(Found { zone: view, device, offset })
            }
        }
    }

    /// Refuses an offset past the zone.
    fn inside(&self, found: Found) -> Outcome<Found> {
        let Found { zone, device, offset } = &found;
        if *offset < zone.capacity {
            return Ok(found);
        }
        let expected = format_args!(
            "an offset below {:#x}, the capacity of zone {} (zone {} of device {})",
            zone.capacity, zone.seq, zone.home.zone, device.name
        );
        Err(self.refused(expected, format_args!("{offset:#x}")))
    }

    fn look(&self, found: &Found) -> Outcome<BlockRow> {
        let Found { zone, device, offset } = found;
        let gone = || Failure(format!("address {}: zone {} was just reclaimed", self.address, zone.seq));
        let mut row = BlockRow {
            address: self.address.to_owned(),
            zone: zone.seq.0,
            class: zone.class.name(),
            place: place_text(zone.home, *offset),
            device: device.name.clone(),
            offset: *offset,
            ..BlockRow::default()
        };
        match self.pool.occupant(zone.seq, *offset)?.ok_or_else(gone)? {
            Occupant::Unwritten => {
                row.what = "nothing: no committed txg has written there";
                Ok(row)
            }
            Occupant::Padding => {
                row.what = "padding";
                Ok(row)
            }
            Occupant::Header if *offset == 0 => self.header(row, found),
            Occupant::Header => Err(self
                .refused("the start of a block", format_args!("a byte of the header of zone {}", zone.seq))),
            Occupant::Part(trailer, end) => self.part(row, found, &trailer, end),
            Occupant::Block(entry, state) if entry.offset == *offset => {
                self.listed(row, zone.seq, &entry, state)
            }
            Occupant::Block(entry, _) => {
                let start = format!("{}:{:#x}", zone.seq, entry.offset);
                let found =
                    format_args!("a byte of the block at {start} (born at {})", addr_text(entry.identity));
                Err(self.refused("the start of a block", found))
            }
        }
    }

    fn header(&self, mut row: BlockRow, found: &Found) -> Outcome<BlockRow> {
        row.what = "zone header";
        row.stored_bytes = ZoneHeader::SIZE as u64;
        let seq = found.zone.seq;
        let copies = self.pool.stored_copies(seq, 0, ZoneHeader::SIZE as u32)?;
        let at = format!("zone {seq}");
        let parse = |raw: &[u8]| {
            ZoneHeader::parse(raw, self.pool.id(), seq, &at).map_err(|corrupt| corrupt.to_string())
        };
        for copy in &copies {
            let parsed = copy.bytes.as_ref().map_err(ToString::to_string).and_then(|raw| parse(raw));
            if let Ok(header) = &parsed {
                row.fields = fields([
                    ("pool", format!("{:016x}", header.pool).into()),
                    ("seq", header.seq.0.into()),
                    ("incarnation", header.incarnation.into()),
                    ("txg", header.txg.0.into()),
                    ("capacity", header.capacity.into()),
                    ("class", header.class.into()),
                    ("granule_shift", header.granule_shift.into()),
                    ("seal", hex::encode(&header.seal).into()),
                ]);
            }
            self.sealed_copy(&mut row, copy, parsed.err());
        }
        self.bytes(&mut row, copies.first(), |stored| Ok(stored.to_vec()));
        Ok(row)
    }

    fn part(&self, mut row: BlockRow, found: &Found, trailer: &PartTrailer, end: u64) -> Outcome<BlockRow> {
        row.what = "directory part";
        let seq = found.zone.seq;
        row.offset = trailer.part_start;
        row.place = place_text(found.zone.home, trailer.part_start);
        let len = u32::try_from(end.saturating_sub(trailer.part_start)).unwrap_or(u32::MAX);
        row.stored_bytes = len.into();
        row.fields = fields([
            ("end", end.into()),
            ("incarnation", trailer.incarnation.into()),
            ("txg", trailer.txg.0.into()),
            ("batch_start", trailer.batch_start.into()),
            ("entries", trailer.entries.into()),
            ("entry_bytes", trailer.entry_bytes.into()),
            ("moved", trailer.moved.into()),
            ("previous", Some(trailer.previous).filter(|end| *end != u64::MAX).into()),
            ("seal", hex::encode(&trailer.seal).into()),
        ]);
        let copies = self.pool.stored_copies(seq, trailer.part_start, len)?;
        for copy in &copies {
            let parsed = copy.bytes.as_ref().map_err(ToString::to_string).and_then(|raw| {
                let trailer = parse_trailer(raw, seq, end).map_err(|corrupt| corrupt.to_string())?;
                parse_part(self.pool.id(), &trailer, raw, end).map_err(|corrupt| corrupt.to_string())
            });
            self.sealed_copy(&mut row, copy, parsed.err());
        }
        self.bytes(&mut row, copies.first(), |stored| Ok(stored.to_vec()));
        Ok(row)
    }

    /// A copy of what has a seal of its own.
    fn sealed_copy(&self, row: &mut BlockRow, copy: &StoredCopy, damage: Option<String>) {
        let state = match (&copy.bytes, &damage) {
            (Err(_), _) => "unreadable",
            (Ok(_), Some(_)) => "wrong",
            (Ok(_), None) => "right",
        };
        let crc = copy.crc().map(|crc| format!("{crc:08x}"));
        row.findings.extend(damage.clone());
        row.damaged |= damage.is_some();
        let address = format!("{}:{:#x}", copy.seq, copy.offset);
        row.copies.push(CopyRow::of(address, Some(copy), (crc, None), state, damage));
    }

    fn listed(&self, mut row: BlockRow, seq: ZoneSeq, entry: &Entry, state: EntryState) -> Outcome<BlockRow> {
        row.what = "block";
        row.stored_bytes = entry.psize.into();
        let pointer = self.pointer(entry, state);
        row.listed = Some(ListedRow {
            birthplace: addr_text(entry.identity),
            standing: super::zones::standing_text(state),
            owner: owner(entry.owner),
            birth: entry.birth.0,
            crc: format!("{:08x}", entry.crc),
            no_pointer: pointer.error(),
        });
        let here = self.pool.stored_copies(seq, entry.offset, entry.psize)?;
        for copy in &here {
            self.copy(&mut row, addr_text(entry.identity), copy, entry, &pointer);
        }
        // Of a block that was freed, the other copies may be gone. One that moved is shown where it was asked for.
        if state == EntryState::Live {
            for other in &entry.other_copies {
                self.other_copy(&mut row, *other, entry, &pointer);
            }
        }
        let first = here.iter().find(|copy| copy.bytes.is_ok());
        row.pointed = self.pointed(&pointer, first);
        if let (Pointer::Bootstrap(_), Some(Ok(raw))) = (&pointer, first.map(|copy| copy.bytes.as_ref())) {
            self.bootstrap(&mut row, entry, raw);
        }
        self.bytes(&mut row, here.first(), |stored| match &pointer {
            Pointer::Block(normal) => {
                let decoded = self.pool.decode_stored(normal, entry.owner, stored);
                decoded.map_err(|error| error.to_string())
            }
            Pointer::Bootstrap(_) => boot_decode(stored, self.address).map_err(|corrupt| corrupt.to_string()),
            Pointer::Unknown(_) if is_part_copy(entry.owner) => Ok(stored.to_vec()),
            Pointer::Unknown(reason) => Err(format!("its algorithm and size are unknown: {reason}")),
        });
        Ok(row)
    }

    /// The pointer to a listed block.
    fn pointer(&self, entry: &Entry, state: EntryState) -> Pointer {
        let gone = || Pointer::Unknown(format!("the block is {}", super::zones::standing_text(state)));
        let Owner::Block { objset, .. } = entry.owner else {
            return match self.pool.bootstrap_pointer(entry.identity) {
                Some(ptr) => Pointer::Bootstrap(ptr),
                None if is_part_copy(entry.owner) => {
                    Pointer::Unknown("a directory part seals itself".to_owned())
                }
                None => gone(),
            };
        };
        let sets = match &self.sets {
            Ok(sets) => sets,
            Err(error) => return Pointer::Unknown(format!("the object sets cannot be read: {error}")),
        };
        let opened = match objset {
            0 => Ok(sets.mos().clone()),
            objset => terrane_dataset::open_any_set(sets, ObjectId(objset)),
        };
        match opened.and_then(|set| Ok(set.pointer_of(entry.owner)?)) {
            Ok(BlockPtr::Normal(normal)) if normal.copies().any(|addr| addr == entry.identity) => {
                Pointer::Block(normal)
            }
            Ok(_) => gone(),
            Err(error) => Pointer::Unknown(error.to_string()),
        }
    }

    fn copy(&self, row: &mut BlockRow, address: String, copy: &StoredCopy, entry: &Entry, pointer: &Pointer) {
        let raw = match &copy.bytes {
            Ok(raw) => raw,
            Err(error) => {
                row.damaged = true;
                row.findings.push(format!("{address}: {error}"));
                let error = Some(error.to_string());
                return row.copies.push(CopyRow::of(address, Some(copy), (None, None), "unreadable", error));
            }
        };
        let mut wrong = Vec::new();
        let crc = copy.crc().unwrap_or(!entry.crc);
        if crc != entry.crc {
            wrong.push(format!("{address}: CRC expected {:08x}, found {crc:08x}", entry.crc));
        }
        let checksum = pointer.checksum().map(|(kind, expected)| {
            let found = hex::encode(&compute(kind, raw));
            let expected = hex::encode(&expected);
            if found != expected {
                wrong.push(format!("{address}: {kind} expected {expected}, found {found}"));
            }
            found
        });
        let state = if wrong.is_empty() { "right" } else { "wrong" };
        row.damaged |= !wrong.is_empty();
        row.findings.append(&mut wrong);
        row.copies.push(CopyRow::of(
            address,
            Some(copy),
            (Some(format!("{crc:08x}")), checksum),
            state,
            None,
        ));
    }

    fn other_copy(&self, row: &mut BlockRow, other: Addr, entry: &Entry, pointer: &Pointer) {
        let address = addr_text(other);
        let stored = self
            .pool
            .locate(other, entry.psize)
            .and_then(|(seq, _, offset)| self.pool.stored_copies(seq, offset, entry.psize));
        match stored {
            Ok(copies) => {
                copies.iter().for_each(|copy| self.copy(row, address.clone(), copy, entry, pointer))
            }
            Err(error) => {
                row.damaged = true;
                row.findings.push(format!("{address}: {error}"));
                row.copies.push(CopyRow::of(
                    address,
                    None,
                    (None, None),
                    "unreadable",
                    Some(error.to_string()),
                ));
            }
        }
    }

    fn pointed(&self, pointer: &Pointer, copy: Option<&StoredCopy>) -> Option<PointedRow> {
        let stored: &[u8] = copy.and_then(|copy| copy.bytes.as_ref().ok()).map_or(&[], Vec::as_slice);
        let (kind, checksum) = pointer.checksum()?;
        let algorithm = |id: u8, stored: &[u8]| match ZstdLevel::of_stored(stored).filter(|_| id == ID_ZSTD) {
            Some(level) => level.to_string(),
            None => Compression::name_of_id(id).map_or_else(|| format!("unknown ({id})"), str::to_owned),
        };
        let row = PointedRow {
            logical_bytes: 0,
            compression: String::new(),
            checksum_kind: kind.to_string(),
            checksum: hex::encode(&checksum),
            kind: None,
            level: None,
            fill: None,
            logical_birth: None,
        };
        match pointer {
            Pointer::Block(normal) => Some(PointedRow {
                logical_bytes: normal.lsize.into(),
                compression: algorithm(normal.compression, stored),
                kind: Some(
                    ObjectKind::from_id(normal.kind)
                        .map_or_else(|| "unknown".to_owned(), |kind| format!("{kind:?}")),
                ),
                level: Some(normal.level),
                fill: Some(normal.fill),
                logical_birth: Some(normal.logical_birth.0),
                ..row
            }),
            Pointer::Bootstrap(_) => {
                // It begins with its algorithm and its logical size.
                let word = |at: usize| {
                    stored.get(at..at + 4).and_then(|raw| Some(u32::from_le_bytes(raw.try_into().ok()?)))
                };
                let id = word(0).and_then(|id| u8::try_from(id).ok()).unwrap_or(0);
                let logical_bytes = word(4).map_or(0, u64::from);
                Some(PointedRow {
                    logical_bytes,
                    compression: algorithm(id, stored.get(8..).unwrap_or(&[])),
                    ..row
                })
            }
            Pointer::Unknown(_) => None,
        }
    }

    /// The fields of a bootstrap block.
    fn bootstrap(&self, row: &mut BlockRow, entry: &Entry, raw: &[u8]) {
        let Owner::Pool { structure } = entry.owner else { return };
        let described = boot_decode(raw, self.address).and_then(|content| match structure {
            POOL_RECORD => Ok(record_fields(&Record::parse(&content, self.address)?)),
            POOL_DEAD_LOG => {
                let frees = get_frees(&mut Reader::new(&content));
                let frees = frees.map_err(|error| Corrupt::new(self.address, "frees", "whole", error))?;
                let granules: u64 = frees.iter().map(|free| u64::from(free.granules)).sum();
                Ok(fields([("frees", frees.len().into()), ("granules", granules.into())]))
            }
            _ => Ok(self.pool.section_at(entry.identity).map_or_else(Map::new, |section| {
                let form = format!("{:?}", section.form).to_lowercase();
                let last_txg = section.last_txg.0.into();
                fields([("section", section.section.into()), ("last_txg", last_txg), ("form", form.into())])
            })),
        });
        match described {
            Ok(described) => row.fields = described,
            // If its checksum is wrong as well, that is told already.
            Err(corrupt) => {
                row.damaged = true;
                row.findings.push(corrupt.to_string());
            }
        }
    }

    /// The bytes that were asked for, of the first replica.
    fn bytes(
        &self,
        row: &mut BlockRow,
        copy: Option<&StoredCopy>,
        decode: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
    ) {
        let Some(Ok(stored)) = copy.map(|copy| copy.bytes.as_ref()) else { return };
        if self.wanted.stored {
            row.stored = Some(hex::encode(stored));
        }
        if self.wanted.content {
            match decode(stored) {
                Ok(content) => row.content = Some(hex::encode(&content)),
                Err(error) => row.content_error = Some(error),
            }
        }
    }
}

impl CopyRow {
    fn of(
        address: String,
        copy: Option<&StoredCopy>,
        (crc, checksum): (Option<String>, Option<String>),
        state: &'static str,
        error: Option<String>,
    ) -> CopyRow {
        CopyRow {
            address,
            zone: copy.map(|copy| copy.seq.0),
            class: copy.map(|copy| copy.class.name()),
            place: copy.map(|copy| place_text(copy.home, copy.offset)),
            crc,
            checksum,
            state,
            error,
        }
    }
}

fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The fields of a commit record; of its lists the lengths.
fn record_fields(record: &Record) -> Map<String, Value> {
    let places = |ptr: &BootPtr| {
        let text = |place: Place| place_text(Home { device: place.device, zone: place.zone }, place.offset);
        ptr.copies().map(text).collect::<Vec<_>>().join(" ")
    };
    fields([
        ("txg", record.txg.0.into()),
        ("incarnation", record.incarnation.into()),
        ("time", clock::utc((record.time_ns / 1_000_000_000) as i64).into()),
        ("previous", places(&record.previous).into()),
        ("previous_txg", record.previous_txg.0.into()),
        ("replay_after", record.replay_after.0.into()),
        ("root", super::objects::pointer_text(&record.root).into()),
        ("opened", record.opened.len().into()),
        ("written", record.written.len().into()),
        ("filled", record.filled.len().into()),
        ("reset", record.reset.len().into()),
        ("suspect", record.suspect.len().into()),
        ("moves", record.moves.len().into()),
        ("frees", record.frees.len().into()),
        ("dead_log", record.dead_log.len().into()),
        ("sections", record.sections.len().into()),
        ("part_copies", record.part_copies.len().into()),
        ("may_open", record.may_open.len().into()),
        ("log_zones", record.log.as_ref().map_or(0, |log| log.zones.len()).into()),
    ])
}

fn is_part_copy(owner: Owner) -> bool {
    matches!(owner, Owner::Pool { structure: POOL_PART_COPY })
}

fn owner(owner: Owner) -> String {
    match owner {
        Owner::Pool { structure: POOL_RECORD } => "pool: commit record".to_owned(),
        Owner::Pool { structure: POOL_SECTION } => "pool: section of the zone tables".to_owned(),
        Owner::Pool { structure: POOL_DEAD_LOG } => "pool: dead log".to_owned(),
        Owner::Pool { structure: POOL_PART_COPY } => "pool: copy of a directory part".to_owned(),
        other => terrane_store::reports::owner_text(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        let birthplace = Some(Spelled::Birthplace { seq: 1, offset: 0x55740 });
        for text in ["1:0x55740", "1:350016", " 1:0X55740", "zone 1 granule 21876"] {
            assert_eq!(Spelled::parse(text), birthplace, "{text}");
        }
        let place = Some(Spelled::Place { device: 0, zone: 2, offset: 0x7000 });
        for text in ["0:2:0x7000", "0:2:28672", "device 0 zone 2 granule 1792"] {
            assert_eq!(Spelled::parse(text), place, "{text}");
        }
        let huge = format!("zone 1 granule {}", u64::MAX);
        for text in
            ["", "1", "1:", "1:0x", "1:-5", "a:b", "1:2:3:4", "70000:2:0", "0:99999999999:0", "1:0xg", &huge]
        {
            assert_eq!(Spelled::parse(text), None, "{text}");
        }
    }
}
