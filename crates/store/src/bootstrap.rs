//! Bootstrap blocks: read before the zone tables are known. Their pointers name places, and they cannot be relocated.

use crate::devices::Devices;
use crate::error::PoolError;
use terrane_codec::{
    ChecksumKind, Compression, Compressor, INPUT_BYTES_MAX, Outcome, ZstdLevel, compute, max_stored,
};
use terrane_device::Device;
use terrane_format::addr::Place;
use terrane_format::block_ptr::BLOCK_BYTES_MAX;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::label::ANCHORS;
use terrane_wire::{Corrupt, Reader, Writer};

/// Encodes a bootstrap block: compression id, logical size, payload.
pub fn boot_encode(codec: &mut Compressor, raw: &[u8]) -> Vec<u8> {
    let zstd = Compression::Zstd(ZstdLevel::new(3).expect("3 is a level"));
    let mut packed = Vec::new();
    let outcome = codec.compress(zstd, raw, max_stored(raw.len()), &mut packed);
    let (id, body) = if outcome == Outcome::Compressed {
        (zstd.id(), packed.as_slice())
    } else {
        (Compression::Off.id(), raw)
    };
    let mut out = Writer::with_capacity(body.len() + 8);
    out.u32(u32::from(id));
    out.u32(raw.len() as u32);
    out.bytes(body);
    out.into_bytes()
}

/// Reads a bootstrap block from its first good copy. The flag is true if all copies were good.
///
/// # Errors
/// `Device` if a copy could not be read: it may be good. `Corrupt` if all are damaged.
pub fn read_boot(devices: &Devices, ptr: &BootPtr, what: &str) -> Result<(Vec<u8>, bool), PoolError> {
    let mut failure: Option<PoolError> = None;
    for place in ptr.copies() {
        match read_boot_copy(devices, ptr, &place, what) {
            Ok(raw) => return Ok((raw, failure.is_none())),
            Err(error) => {
                let state = if error.is_transient() { "unreadable" } else { "damaged" };
                log::warn!("copy {state}: {what} at {place}: {error}");
                failure = failure.filter(PoolError::is_transient).or(Some(error));
            }
        }
    }
    Err(failure.unwrap_or_else(|| Corrupt::new(what, "place", "at least one", "none").into()))
}

fn read_boot_copy(devices: &Devices, ptr: &BootPtr, place: &Place, what: &str) -> Result<Vec<u8>, PoolError> {
    let at = format!("{what} at {place}");
    let device = devices
        .get(place.device)
        .map_err(|_| Corrupt::new(&at, "device", "one of the pool", place.device))?;
    let info = device.info();
    let end = place.offset.checked_add(u64::from(ptr.len));
    let inside = place.zone.0 >= ANCHORS
        && place.zone.0 < info.zone_count
        && end.is_some_and(|end| end <= info.zone_size);
    if !inside || ptr.len < 8 || ptr.len > BLOCK_BYTES_MAX {
        let found = format_args!("{} bytes", ptr.len);
        return Err(Corrupt::new(&at, "place and length", "inside a zone", found).into());
    }
    let unit = u64::from(info.write_unit);
    let from = place.offset / unit * unit;
    let to = (place.offset + u64::from(ptr.len)).next_multiple_of(unit);
    let mut wide = vec![0; (to - from) as usize];
    device.read(place.zone, from, &mut wide)?;
    let start = (place.offset - from) as usize;
    let stored = wide.get(start..start + ptr.len as usize).unwrap_or(&[]);
    if compute(ChecksumKind::Blake3, stored) != ptr.checksum {
        return Err(Corrupt::new(&at, "checksum", "that of its pointer", "another").into());
    }
    Ok(boot_decode(stored, &at)?)
}

/// The content of a bootstrap block whose stored bytes were verified.
pub fn boot_decode(stored: &[u8], at: &str) -> Result<Vec<u8>, Corrupt> {
    let truncated = |error| Corrupt::new(at, "bootstrap block", "whole", error);
    let mut reader = Reader::new(stored);
    let id = reader.u32().map_err(truncated)?;
    let lsize = reader.u32().map_err(truncated)?;
    let id = u8::try_from(id).map_err(|_| Corrupt::new(at, "compression", "a known one", id))?;
    // Check the size before memory is allocated for it.
    let fits = usize::try_from(lsize).ok().filter(|bytes| *bytes <= INPUT_BYTES_MAX);
    let expected = format_args!("at most {INPUT_BYTES_MAX}");
    let mut out = vec![0; fits.ok_or_else(|| Corrupt::new(at, "logical size", expected, lsize))?];
    Compressor::new().decompress_into(id, reader.rest(), &mut out).map_err(|corrupt| corrupt.within(at))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::record::RowForm;
    use terrane_format::record::{Home, ZoneClass};
    use terrane_space::zones::{Tables, Zone};
    use terrane_wire::{DeviceIdx, Txg, ZoneIdx, ZoneSeq};

    #[test]
    fn sections_of_many_small_blocks_come_back() {
        // Two zones of 4 GiB with small blocks, of which every third lives.
        let home = |zone| Home { device: DeviceIdx(0), zone: ZoneIdx(zone) };
        let mut tables = Tables::default();
        for seq in 1..3u64 {
            let mut zone = Zone::new(ZoneClass::Data, home(seq as u32), 4 << 30, Txg(1));
            let dead: Vec<(u32, u32)> = (0..4u32 << 20).map(|at| (at * 60 + at % 7, 30 + at % 13)).collect();
            assert_eq!(zone.born.dead.add_sorted(&dead), []);
            tables.insert(ZoneSeq(seq), zone);
        }
        let raw = tables.encode_section(0, 1, RowForm::Tailed);
        assert!(raw.len() > 16 << 20, "{}", raw.len());
        let stored = boot_encode(&mut Compressor::new(), &raw);
        assert!(stored.len() < BLOCK_BYTES_MAX as usize, "{}", stored.len());
        assert!(boot_decode(&stored, "here").unwrap() == raw);
        let mut forged = stored;
        forged[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(boot_decode(&forged, "here").unwrap_err().to_string().contains("logical size"));
    }
}
