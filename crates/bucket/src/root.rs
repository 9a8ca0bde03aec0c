//! The root: the one object that is replaced.
//!
//! It says which filling each zone has, and holds the anchor zones whole. Everything else is immutable. So a process that
//! replaces the root has committed, and one that finds another's in its place has lost the pool.
//!
//! Most zones do not change between two commits. They are named in a *table*, an immutable object of its own, and the root
//! has what changed since. `FORMAT.md`, section "Object stores".

use crate::filling::{End, Filling, FillingId, Part};
use std::collections::BTreeMap;
use std::sync::Weak;
use terrane_wire::{Corrupt, Reader, Truncated, Writer, ZoneIdx};

/// The name of the root.
pub const ROOT: &str = "root";
const ROOT_MAGIC: [u8; 8] = *b"TERRROOT";
const TABLE_MAGIC: [u8; 8] = *b"TERRTABL";
/// Version of root and table.
pub const ROOT_VERSION: u32 = 2;
/// Of the hash that ends root and table.
const HASH_BYTES: usize = 32;
/// Most bytes of a root that are read, and of a table.
pub const ROOT_BYTES_MAX: usize = 256 << 20;
pub const TABLE_BYTES_MAX: usize = 1 << 30;
/// Anchor zones are stored in pieces of so many bytes, and pieces of zeros are left out.
const PIECE: usize = 256;
/// Most bytes of an anchor zone.
pub const ANCHOR_BYTES: u64 = 16 << 20;
/// In bytes.
const ZONE_BYTES_MIN: u64 = 1 << 20;
/// Each takes some memory when the device is opened.
pub const ZONES_MAX: u32 = 1 << 26;
/// Zones 0 and 1 hold labels and uberblocks.
pub const ANCHORS: u32 = 2;

/// Constants of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// In bytes.
    pub write_unit: u32,
    /// In bytes.
    pub zone_size: u64,
    /// The anchor zones included.
    pub zone_count: u32,
}

/// The process that wrote a root, for messages.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Holder {
    /// The random number that this process drew when it opened the device.
    pub opener: u64,
    /// The name of its machine.
    pub host: String,
    /// Its number there.
    pub process: u32,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} of machine {:?}", self.process, self.host)
    }
}

/// What the root says of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneEntry {
    pub id: FillingId,
    /// Nothing can be added to the filling, and all its parts are here.
    pub is_complete: bool,
    /// Lengths of the parts, in bytes.
    pub parts: Vec<u64>,
}

impl ZoneEntry {
    /// What may be said of a filling: the parts that the store has.
    pub fn of(filling: &Filling, zone_size: u64) -> ZoneEntry {
        let stored = filling.parts.iter().take_while(|part| part.is_stored());
        let parts: Vec<u64> = stored.map(|part| part.len).collect();
        let is_full = parts.iter().sum::<u64>() == zone_size;
        ZoneEntry { id: filling.id, is_complete: is_full || filling.end == End::Sealed, parts }
    }

    /// The filling, as another process finds it.
    pub fn filling(&self) -> Filling {
        let mut start = 0;
        let parts = self.parts.iter().map(|len| {
            let part = Part { start, len: *len, body: Weak::new() };
            start += len;
            part
        });
        let end = if self.is_complete { End::Sealed } else { End::Unknown };
        Filling::of(self.id, parts.collect(), end)
    }
}

/// What is to be deleted, and since when no root names it, in seconds since 1970.
pub type Garbage = BTreeMap<FillingId, u64>;

/// Zones that have a filling.
pub type Zones = BTreeMap<ZoneIdx, ZoneEntry>;

/// The name of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableId(pub FillingId);

impl TableId {
    pub fn key(self) -> String {
        format!("table/{}", self.0)
    }
}

/// The content of the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Constants of the device.
    pub geometry: Geometry,
    /// The process that wrote it.
    pub holder: Holder,
    /// Counts the roots of a pool.
    pub number: u64,
    /// When it was written, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The number of the holder's next filling or table.
    pub(crate) next_number: u64,
    pub(crate) table: Option<TableId>,
    /// Zones that differ from the table; `None`: without a filling.
    pub(crate) changed: BTreeMap<ZoneIdx, Option<ZoneEntry>>,
    /// Fillings and tables that no root will name again, and whose objects may still exist.
    pub(crate) garbage: Garbage,
    /// What was written to the anchor zones.
    pub anchors: [Vec<u8>; ANCHORS as usize],
}

fn write_id(w: &mut Writer, id: FillingId) {
    w.u64(id.opener);
    w.varint(id.number);
}

fn read_id(r: &mut Reader<'_>) -> Result<FillingId, Truncated> {
    Ok(FillingId { opener: r.u64()?, number: r.varint()? })
}

/// Grouped by opener. Each has its number, as the difference to the one before, and its age in seconds.
fn write_garbage(w: &mut Writer, garbage: &Garbage, time_ns: u64) {
    let mut by_opener: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for (id, since) in garbage {
        let age = (time_ns / 1_000_000_000).saturating_sub(*since);
        by_opener.entry(id.opener).or_default().push((id.number, age));
    }
    w.varint(by_opener.len() as u64);
    for (opener, rows) in by_opener {
        w.u64(opener);
        w.varint(rows.len() as u64);
        let mut before = 0;
        for (number, age) in rows {
            w.varint(number - before);
            w.varint(age);
            before = number;
        }
    }
}

fn read_garbage(r: &mut Reader<'_>, time_ns: u64) -> Result<Garbage, Truncated> {
    let mut garbage = Garbage::new();
    for _ in 0..r.count(9)? {
        let opener = r.u64()?;
        let mut number = 0u64;
        for _ in 0..r.count(2)? {
            number = number.saturating_add(r.varint()?);
            let since = (time_ns / 1_000_000_000).saturating_sub(r.varint()?);
            garbage.insert(FillingId { opener, number }, since);
        }
    }
    Ok(garbage)
}

fn write_entry(w: &mut Writer, entry: &ZoneEntry) {
    write_id(w, entry.id);
    w.u8(u8::from(entry.is_complete));
    w.varint(entry.parts.len() as u64);
    entry.parts.iter().for_each(|len| w.varint(*len));
}

/// Reads an entry and judges it.
fn read_entry(
    r: &mut Reader<'_>,
    zone: ZoneIdx,
    geometry: &Geometry,
    at: &str,
) -> Result<ZoneEntry, Corrupt> {
    let short = |short: Truncated| truncated(at, short);
    let id = read_id(r).map_err(short)?;
    let is_complete = r.u8().map_err(short)? != 0;
    let count = r.count(1).map_err(short)?;
    // Each length takes a byte or more here, and eight in memory.
    let mut parts = Vec::new();
    let mut sum = 0u64;
    for _ in 0..count {
        let len = r.varint().map_err(short)?;
        sum = sum.saturating_add(len);
        let is_sound =
            len > 0 && len.is_multiple_of(u64::from(geometry.write_unit)) && sum <= geometry.zone_size;
        if !is_sound {
            let expected = format!("units of {} bytes up to {}", geometry.write_unit, geometry.zone_size);
            return Err(Corrupt::new(at, "parts of a zone", expected, format_args!("{len} in zone {zone}")));
        }
        parts.push(len);
    }
    Ok(ZoneEntry { id, is_complete, parts })
}

fn read_zone(r: &mut Reader<'_>, geometry: &Geometry, at: &str) -> Result<ZoneIdx, Corrupt> {
    let raw = r.varint().map_err(|short| truncated(at, short))?;
    let zone = u32::try_from(raw).ok().filter(|zone| (ANCHORS..geometry.zone_count).contains(zone));
    let expected = format_args!("{ANCHORS} to {}", geometry.zone_count).to_string();
    zone.map(ZoneIdx).ok_or_else(|| Corrupt::new(at, "zone number", expected, raw))
}

fn truncated(at: &str, short: Truncated) -> Corrupt {
    Corrupt::new(
        at,
        "length",
        format_args!("{} more bytes at offset {}", short.needed, short.offset),
        "its end",
    )
}

/// Appends the hash of what was written.
fn seal(w: Writer) -> Vec<u8> {
    let mut raw = w.into_bytes();
    let hash = blake3::hash(&raw);
    raw.extend_from_slice(hash.as_bytes());
    raw
}

/// What the hash covers, behind magic and version.
fn unseal<'a>(raw: &'a [u8], magic: &[u8; 8], at: &str) -> Result<Reader<'a>, Corrupt> {
    let (body, hash) = raw
        .len()
        .checked_sub(HASH_BYTES)
        .and_then(|len| raw.split_at_checked(len))
        .ok_or_else(|| Corrupt::new(at, "length", format_args!("at least {HASH_BYTES}"), raw.len()))?;
    let mut r = Reader::new(body);
    let found = r.array::<8>().map_err(|short| truncated(at, short))?;
    if found != *magic {
        return Err(Corrupt::new(
            at,
            "magic",
            String::from_utf8_lossy(magic),
            String::from_utf8_lossy(&found),
        ));
    }
    if blake3::hash(body).as_bytes() != hash {
        return Err(Corrupt::new(at, "hash", "that of the content", "another"));
    }
    let version = r.u32().map_err(|short| truncated(at, short))?;
    if version != ROOT_VERSION {
        return Err(Corrupt::new(at, "version", ROOT_VERSION, version));
    }
    Ok(r)
}

/// Writes all but the pieces that are zeros.
fn write_sparse(w: &mut Writer, content: &[u8]) {
    w.varint(content.len() as u64);
    let is_kept = |piece: &&[u8]| piece.iter().any(|byte| *byte != 0);
    let pieces: Vec<&[u8]> = content.chunks(PIECE).collect();
    let mut rest = pieces.as_slice();
    while !rest.is_empty() {
        let zeros = rest.iter().take_while(|piece| !is_kept(piece)).count();
        let (_, after) = rest.split_at(zeros);
        let kept = after.iter().take_while(|piece| is_kept(piece)).count();
        let (kept, after) = after.split_at(kept);
        w.varint(zeros as u64);
        w.varint(kept.len() as u64);
        kept.iter().for_each(|piece| w.bytes(piece));
        rest = after;
    }
}

fn read_sparse(r: &mut Reader<'_>, at: &str) -> Result<Vec<u8>, Corrupt> {
    let short = |short: Truncated| truncated(at, short);
    let len = r.varint().map_err(short)?;
    if len > ANCHOR_BYTES {
        return Err(Corrupt::new(
            at,
            "length of an anchor zone",
            format_args!("at most {ANCHOR_BYTES}"),
            len,
        ));
    }
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let mut content = Vec::with_capacity(len);
    let runs_past = || Corrupt::new(at, "pieces of an anchor zone", "as many as it has", "more, or none");
    while content.len() < len {
        let zeros = usize::try_from(r.varint().map_err(short)?).unwrap_or(usize::MAX);
        let kept = usize::try_from(r.varint().map_err(short)?).unwrap_or(usize::MAX);
        let left = len - content.len();
        let zeros = zeros.checked_mul(PIECE).ok_or_else(runs_past)?.min(left);
        let kept = kept.checked_mul(PIECE).ok_or_else(runs_past)?.min(left - zeros);
        if zeros + kept == 0 {
            return Err(runs_past());
        }
        content.resize(content.len() + zeros, 0);
        content.extend_from_slice(r.bytes(kept).map_err(short)?);
    }
    Ok(content)
}

impl Root {
    /// As it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(&ROOT_MAGIC);
        w.u32(ROOT_VERSION);
        w.u32(self.geometry.write_unit);
        w.u64(self.geometry.zone_size);
        w.u32(self.geometry.zone_count);
        w.u64(self.holder.opener);
        w.u32(self.holder.process);
        w.blob(self.holder.host.as_bytes());
        w.u64(self.number);
        w.u64(self.time_ns);
        w.varint(self.next_number);
        w.u8(u8::from(self.table.is_some()));
        if let Some(TableId(id)) = self.table {
            write_id(&mut w, id);
        }
        w.varint(self.changed.len() as u64);
        for (zone, entry) in &self.changed {
            w.varint(u64::from(zone.0));
            w.u8(u8::from(entry.is_some()));
            entry.iter().for_each(|entry| write_entry(&mut w, entry));
        }
        write_garbage(&mut w, &self.garbage, self.time_ns);
        self.anchors.iter().for_each(|anchor| write_sparse(&mut w, anchor));
        seal(w)
    }

    /// Validates a root. `at`: its URL, for messages.
    ///
    /// # Errors
    /// The first property that does not hold.
    pub fn parse(raw: &[u8], at: &str) -> Result<Root, Corrupt> {
        let mut r = unseal(raw, &ROOT_MAGIC, at)?;
        let short = |short: Truncated| truncated(at, short);
        let geometry = Geometry {
            write_unit: r.u32().map_err(short)?,
            zone_size: r.u64().map_err(short)?,
            zone_count: r.u32().map_err(short)?,
        };
        geometry.check(at)?;
        let (opener, process) = (r.u64().map_err(short)?, r.u32().map_err(short)?);
        let host = String::from_utf8_lossy(r.blob().map_err(short)?).into_owned();
        let holder = Holder { opener, host, process };
        let (number, time_ns) = (r.u64().map_err(short)?, r.u64().map_err(short)?);
        let next_number = r.varint().map_err(short)?;
        let table = match r.u8().map_err(short)? {
            0 => None,
            _ => Some(TableId(read_id(&mut r).map_err(short)?)),
        };
        let mut changed = BTreeMap::new();
        for _ in 0..r.count(2).map_err(short)? {
            let zone = read_zone(&mut r, &geometry, at)?;
            let entry = match r.u8().map_err(short)? {
                0 => None,
                _ => Some(read_entry(&mut r, zone, &geometry, at)?),
            };
            changed.insert(zone, entry);
        }
        let garbage = read_garbage(&mut r, time_ns).map_err(short)?;
        let anchors = [read_sparse(&mut r, at)?, read_sparse(&mut r, at)?];
        Ok(Root { geometry, holder, number, time_ns, next_number, table, changed, garbage, anchors })
    }
}

impl Geometry {
    fn check(&self, at: &str) -> Result<(), Corrupt> {
        let unit = u64::from(self.write_unit);
        if !self.write_unit.is_power_of_two() || !(4096..=1 << 20).contains(&self.write_unit) {
            return Err(Corrupt::new(
                at,
                "write unit",
                "a power of two from 4096 to 1048576",
                self.write_unit,
            ));
        }
        if self.zone_size < ZONE_BYTES_MIN || !self.zone_size.is_multiple_of(unit) || self.zone_size > 1 << 40
        {
            let expected = format_args!("a multiple of {unit} from {ZONE_BYTES_MIN} to 2^40").to_string();
            return Err(Corrupt::new(at, "zone size", expected, self.zone_size));
        }
        if !(ANCHORS + 1..=ZONES_MAX).contains(&self.zone_count) {
            let expected = format_args!("{} to {ZONES_MAX}", ANCHORS + 1).to_string();
            return Err(Corrupt::new(at, "number of zones", expected, self.zone_count));
        }
        Ok(())
    }
}

/// A table as it is stored.
pub fn encode_table(zones: &Zones) -> Vec<u8> {
    let mut w = Writer::new();
    w.bytes(&TABLE_MAGIC);
    w.u32(ROOT_VERSION);
    w.varint(zones.len() as u64);
    for (zone, entry) in zones {
        w.varint(u64::from(zone.0));
        write_entry(&mut w, entry);
    }
    seal(w)
}

/// Validates a table.
///
/// # Errors
/// The first property that does not hold.
pub fn parse_table(raw: &[u8], geometry: &Geometry, at: &str) -> Result<Zones, Corrupt> {
    let mut r = unseal(raw, &TABLE_MAGIC, at)?;
    let mut zones = Zones::new();
    for _ in 0..r.count(12).map_err(|short| truncated(at, short))? {
        let zone = read_zone(&mut r, geometry, at)?;
        zones.insert(zone, read_entry(&mut r, zone, geometry, at)?);
    }
    Ok(zones)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Root {
        let id = |number| FillingId { opener: 0xfeed, number };
        let mut anchor = vec![0; 80_000];
        anchor[100] = 1;
        anchor[70_000..].fill(7);
        Root {
            geometry: Geometry { write_unit: 4096, zone_size: 1 << 26, zone_count: 100 },
            holder: Holder { opener: 5, host: "elm".into(), process: 77 },
            number: 9,
            time_ns: 1 << 60,
            next_number: 300,
            table: Some(TableId(id(3))),
            changed: BTreeMap::from([
                (ZoneIdx(2), None),
                (ZoneIdx(99), Some(ZoneEntry { id: id(4), is_complete: true, parts: vec![4096, 1 << 20] })),
            ]),
            garbage: [(id(1), 0), (id(2), 1 << 30), (FillingId { opener: 6, number: 1 << 40 }, 17)].into(),
            anchors: [anchor, Vec::new()],
        }
    }

    #[test]
    fn a_root_comes_back() {
        let root = sample();
        let raw = root.encode();
        assert!(raw.len() < 15_000, "zeros of anchors take no space: {}", raw.len());
        assert_eq!(Root::parse(&raw, "here"), Ok(root));
    }

    #[test]
    fn a_table_comes_back() {
        let root = sample();
        let zones: Zones =
            root.changed.iter().filter_map(|(zone, entry)| Some((*zone, entry.clone()?))).collect();
        let raw = encode_table(&zones);
        assert_eq!(parse_table(&raw, &root.geometry, "here"), Ok(zones));
        let smaller = Geometry { zone_count: 99, ..root.geometry };
        assert_eq!(parse_table(&raw, &smaller, "here").unwrap_err().what, "zone number");
    }

    #[test]
    fn a_changed_bit_is_refused() {
        let raw = sample().encode();
        for at in (0..raw.len()).step_by(97).chain(raw.len() - HASH_BYTES..raw.len()) {
            let mut changed = raw.clone();
            changed[at] ^= 1;
            assert!(Root::parse(&changed, "here").is_err(), "byte {at}");
        }
    }

    proptest! {
        /// The hash is right, and the content is not.
        #[test]
        fn no_sealed_bytes_make_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
            cuts in any::<bool>(),
        ) {
            let raw = sample().encode();
            let mut body = raw[..raw.len() - HASH_BYTES].to_vec();
            // Most of the content are anchors: lies belong in front of them too.
            let len = body.len();
            for (at, byte) in changes {
                let at = at.index(len);
                body[if byte % 2 == 0 { at } else { at % 200 }] = byte;
            }
            if cuts {
                body.truncate(cut.index(len));
            }
            let lie = seal(Writer::from(body));
            if let Ok(root) = Root::parse(&lie, "here") {
                prop_assert!(root.anchors.iter().all(|anchor| anchor.len() as u64 <= ANCHOR_BYTES));
            }
            let _ = parse_table(&lie, &sample().geometry, "here");
        }
    }
}
