//! zle: runs of zeros made short, everything else as it is. For data that is compressed already and has holes in it.
//!
//! A stream is a control byte c and what belongs to it, again and again: up to 63, c + 1 bytes follow that are as they are; from 64 on,
//! c - 63 zeros that do not follow. Nothing says where a stream ends: it does when the block is full.

use super::corrupt;
use terrane_wire::Corrupt;

const LITERALS_MAX: usize = 64;
const ZEROS_MAX: usize = 192;

/// Compresses `src` into `out` (whose content is replaced) if that takes at most `max_out` bytes, as OpenZFS does byte for byte.
pub fn shrink(src: &[u8], max_out: usize, out: &mut Vec<u8>) -> Option<()> {
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
        // Room for the longest run, whatever this one will have.
        if max_out - (out.len() + 1) < LITERALS_MAX {
            return None;
        }
        let window = &rest[..rest.len().min(LITERALS_MAX)];
        // One zero among others costs less than two control bytes: only two in a row end a run.
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

/// Fills `out` and returns what follows the stream.
pub fn expand<'a>(stream: &'a [u8], mut out: &mut [u8]) -> Result<&'a [u8], Corrupt> {
    let mut rest = stream;
    while !out.is_empty() {
        let (&control, behind) =
            rest.split_first().ok_or_else(|| corrupt("zle stream", "more of it", "its end"))?;
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
