//! Numbers of bytes as words: `512`, `16K`, `1.5G`.

const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Bytes of a number with a unit, which may be written `K`, `KB` or `KiB`, and in lower case. `None`: not a
/// whole number of bytes, or 2^63 and more.
pub(crate) fn parse_bytes(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = word.get(digits.len()..)?.to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match unit.chars().next() {
        None => 0,
        Some(letter) if unit.len() == 1 => 10 * (1 + UNITS.iter().position(|known| *known == letter)?),
        Some(_) => return None,
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (digits, ""),
    };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let scaled = format!("{whole}{fraction}").parse::<u128>().ok()?.checked_mul(1 << shift)?;
    let bytes = u64::try_from(scaled.is_multiple_of(scale).then_some(scaled / scale)?).ok()?;
    (bytes < 1 << 63).then_some(bytes)
}

/// The number in the largest unit that is exact.
pub(crate) fn print_bytes(bytes: u64) -> String {
    let fits = |(index, _): &(usize, &char)| bytes > 0 && bytes.is_multiple_of(1 << (10 * (index + 1)));
    match UNITS.iter().enumerate().take_while(fits).last() {
        Some((index, unit)) => format!("{}{unit}", bytes >> (10 * (index + 1))),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (word, bytes, shown) in [
            ("0", 0, "0"),
            ("512", 512, "512"),
            ("16k", 16 << 10, "16K"),
            ("16KiB", 16 << 10, "16K"),
            ("1048576", 1 << 20, "1M"),
            ("1.5G", 3 << 29, "1536M"),
            ("2tb", 2 << 40, "2T"),
            ("7E", 7 << 60, "7E"),
        ] {
            assert_eq!(parse_bytes(word), Some(bytes), "{word}");
            assert_eq!(print_bytes(bytes), shown);
        }
        for word in
            ["", "K", "1.", "8E", "1.0001K", "1KK", "-1", "+1", " 1", "1 K", "1.5.1K", "1X", "9999999999E"]
        {
            assert_eq!(parse_bytes(word), None, "{word}");
        }
    }
}
