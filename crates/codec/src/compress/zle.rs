//! zle: runs of zeros are shortened, everything else is copied. It is for compressed data with holes in it.
//!
//! A stream is a sequence of control bytes *c*. Up to 63, *c* + 1 literal bytes follow. From 64 on, it stands for
//! *c* - 63 zeros. The stream has no end mark; it ends when the block is full.

#![expect(clippy::indexing_slicing, reason = "the encoder indexes only its own input")]

use super::corrupt;
use terrane_wire::Corrupt;

const LITERALS_MAX: usize = 64;
const ZEROS_MAX: usize = 192;

/// Compresses `src` into `out`, whose content is replaced, byte for byte as OpenZFS does. `None` if it takes more
/// than `max_out` bytes.
pub fn compress(src: &[u8], max_out: usize, out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    let mut rest = src;
    while !rest.is_empty() {
        if out.len() + 1 >= max_out {
            return None;
        }
        let zeros = rest.iter().take(ZEROS_MAX).take_while(|&&byte| byte == 0).count();
        if zeros > 0 {
            out.push((zeros - 1 + LITERALS_MAX) as u8);
            rest = &rest[zeros..];
            continue;
        }
        // OpenZFS checks for the longest run, whatever the length of this one.
        if max_out - (out.len() + 1) < LITERALS_MAX {
            return None;
        }
        let window = &rest[..rest.len().min(LITERALS_MAX)];
        // A single zero costs less than two control bytes, so only two in a row end a run of literals.
        let count = match window.windows(2).position(|pair| pair == [0, 0]) {
            Some(before) => before,
            None if window.ends_with(&[0]) => window.len() - 1,
            None => window.len(),
        };
        out.push((count - 1) as u8);
        out.extend_from_slice(&rest[..count]);
        rest = &rest[count..];
    }
    Some(())
}

/// Fills `out`, and returns the bytes after the stream.
pub fn decompress<'a>(stream: &'a [u8], mut out: &mut [u8]) -> Result<&'a [u8], Corrupt> {
    let mut rest = stream;
    while !out.is_empty() {
        let (&control, behind) =
            rest.split_first().ok_or_else(|| corrupt("zle stream", "more bytes", "the end of the input"))?;
        rest = behind;
        let control = usize::from(control);
        let zeros = (control + 1).checked_sub(LITERALS_MAX).filter(|zeros| *zeros > 0);
        let count = zeros.unwrap_or(control + 1);
        let room = out.len();
        let (run, later) = out
            .split_at_mut_checked(count)
            .ok_or_else(|| corrupt("zle run", format_args!("at most {room} bytes"), count))?;
        if zeros.is_some() {
            run.fill(0);
        } else {
            let (literals, behind) = rest
                .split_at_checked(count)
                .ok_or_else(|| corrupt("zle run", format_args!("at most {} bytes", rest.len()), count))?;
            run.copy_from_slice(literals);
            rest = behind;
        }
        out = later;
    }
    Ok(rest)
}
