//! Fields of the kernel's tables of mounts and swap areas.

/// Undoes the kernel's octal escapes (`\040` for a space). What is no such escape is kept as it is.
pub fn unescape_field(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = if first == b'\\' { tail.split_first_chunk().and_then(octal) } else { None };
        let (byte, tail) = escaped.unwrap_or((first, tail));
        out.push(byte);
        rest = tail;
    }
    out
}

/// The byte of three octal digits, and what follows them.
fn octal<'a>((digits, tail): (&[u8; 3], &'a [u8])) -> Option<(u8, &'a [u8])> {
    // `from_str_radix` would accept a sign.
    let add = |sum: u8, digit: &u8| {
        let value = digit.checked_sub(b'0').filter(|value| *value < 8)?;
        sum.checked_mul(8)?.checked_add(value)
    };
    digits.iter().try_fold(0, add).map(|byte| (byte, tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_anything_else_is_kept() {
        for (field, plain) in [
            (br"/mnt/a\040b\134c".as_slice(), br"/mnt/a b\c".as_slice()),
            (br"\377\000x", b"\xff\0x"),
            (br"tail\04", br"tail\04"),
            (br"\9xx", br"\9xx"),
            (br"\400", br"\400"),
            (br"\+40\-40\ 40", br"\+40\-40\ 40"),
            (br"\\040", b"\\ "),
            (b"\xff\\", b"\xff\\"),
        ] {
            assert_eq!(unescape_field(field), plain, "{}", field.escape_ascii());
        }
    }
}
