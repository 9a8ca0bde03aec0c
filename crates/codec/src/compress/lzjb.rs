//! lzjb: OpenZFS's algorithm before lz4. It is kept so that its blocks can be read and reproduced.
//!
//! A stream is a sequence of groups: a control byte, then up to eight items, one per bit from the lowest on. Bit 0 is
//! a literal byte. Bit 1 is a match of two bytes, high byte first: 6 bits of length - 3, 10 bits of distance back.
//! The stream has no end mark; it ends when the block is full.

#![expect(clippy::indexing_slicing, reason = "the encoder indexes only its own input and tables")]

use super::corrupt;
use terrane_wire::Corrupt;

const LEN_MIN: usize = 3;
const LEN_MAX: usize = 66;
const DISTANCE_MASK: u16 = 0x3ff;
/// A control byte and eight matches.
const CONTROL_GROUP_BYTES_MAX: usize = 17;

/// Hash table: the last position of three bytes with that hash, its low 16 bits.
pub type Table = [u16; 1024];

/// Compresses `src` into `out`, whose content is replaced, byte for byte as OpenZFS does. `None` unless it takes less
/// than `max_out` bytes.
pub fn compress(src: &[u8], max_out: usize, table: &mut Table, out: &mut Vec<u8>) -> Option<()> {
    table.fill(0);
    out.clear();
    let mut at = 0;
    while at < src.len() {
        if out.len() + CONTROL_GROUP_BYTES_MAX >= max_out {
            return None;
        }
        let mut group = [0; CONTROL_GROUP_BYTES_MAX];
        let mut used = 1;
        for bit in 0..8 {
            let Some(&byte) = src.get(at) else { break };
            if let Some(Match { distance, len }) = find_match(src, at, table) {
                let pair = ((len - LEN_MIN) << 10) as u16 | distance;
                group[0] |= 1 << bit;
                group[used..used + 2].copy_from_slice(&pair.to_be_bytes());
                used += 2;
                at += len;
            } else {
                group[used] = byte;
                used += 1;
                at += 1;
            }
        }
        out.extend_from_slice(&group[..used]);
    }
    Some(())
}

/// A match: `len` bytes, `distance` bytes back.
struct Match {
    distance: u16,
    len: usize,
}

/// Finds an earlier match for the bytes of `src` at `at`.
fn find_match(src: &[u8], at: usize, table: &mut Table) -> Option<Match> {
    // The longest match must fit into the block, so there is none near its end.
    let ahead = src.get(at..at + LEN_MAX)?;
    let mut hash = u32::from(ahead[0]) << 16 | u32::from(ahead[1]) << 8 | u32::from(ahead[2]);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = &mut table[hash as usize & 1023];
    let here = at as u16;
    let distance = here.wrapping_sub(std::mem::replace(slot, here)) & DISTANCE_MASK;
    let seen = &src[at.checked_sub(usize::from(distance)).filter(|_| distance != 0)?..];
    let len = ahead.iter().zip(seen).take_while(|(a, b)| a == b).count();
    (len >= LEN_MIN).then_some(Match { distance, len })
}

/// Fills `out`, and returns the bytes after the stream.
pub fn decompress<'a>(stream: &'a [u8], out: &mut [u8]) -> Result<&'a [u8], Corrupt> {
    let ended = || corrupt("lzjb stream", "more bytes", "the end of the input");
    let mut rest = stream;
    let mut at = 0;
    while at < out.len() {
        let (&control, behind) = rest.split_first().ok_or_else(ended)?;
        rest = behind;
        for bit in 0..8 {
            let Some(room) = out.len().checked_sub(at).filter(|room| *room > 0) else { break };
            if control >> bit & 1 == 0 {
                let (&byte, behind) = rest.split_first().ok_or_else(ended)?;
                rest = behind;
                if let Some(place) = out.get_mut(at) {
                    *place = byte;
                }
                at += 1;
                continue;
            }
            let (&pair, behind) = rest.split_first_chunk::<2>().ok_or_else(ended)?;
            rest = behind;
            let [high, _] = pair;
            let len = usize::from(high >> 2) + LEN_MIN;
            let distance = usize::from(u16::from_be_bytes(pair) & DISTANCE_MASK);
            if distance == 0 || distance > at {
                return Err(corrupt("lzjb distance", format_args!("1 to {at}"), distance));
            }
            if len > room {
                return Err(corrupt("lzjb match", format_args!("at most {room} bytes"), len));
            }
            copy_match(out, at, distance, len);
            at += len;
        }
    }
    Ok(rest)
}

/// Copies `len` bytes to `at` from `distance` bytes before it; both may overlap. The caller checked that
/// `distance <= at` and that `len` bytes fit.
fn copy_match(out: &mut [u8], at: usize, distance: usize, len: usize) {
    let mut done = 0;
    while done < len {
        // The copied bytes can be a source too, so each step doubles.
        let step = (distance + done).min(len - done);
        out.copy_within(at - distance..at - distance + step, at + done);
        done += step;
    }
}
