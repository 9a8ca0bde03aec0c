//! Parses and prints sizes: K, M, G are powers of 1024.

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// Bytes of `16G`, `64M`, `1.5T`, `4096`, `1GiB`.
///
/// # Errors
/// Describes the syntax if the word is not a size, is no whole number of bytes, or exceeds 2^64 - 1.
pub fn parse(word: &str) -> Result<u64, String> {
    let bad = || format!("invalid size {word:?}: expected a number, optionally with K, M, G, T, P or E");
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = word.get(digits.len()..).ok_or_else(bad)?.to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = 10 * UNITS.iter().position(|known| *known == unit).ok_or_else(bad)?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let only_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !only_digits(whole) || !only_digits(fraction) || fraction.len() > 9 {
        return Err(bad());
    }
    // In tenths, hundredths, ... of the unit, so that no fraction is ever rounded.
    let scale = 10u128.pow(fraction.len() as u32);
    let scaled: u128 = format!("{whole}{fraction}").parse().map_err(|_| bad())?;
    let bytes = scaled.checked_mul(1 << shift).ok_or_else(bad)?;
    if !bytes.is_multiple_of(scale) {
        return Err(bad());
    }
    u64::try_from(bytes / scale).map_err(|_| bad())
}

/// At most five characters: whole numbers as such (`16G`), others with three significant digits (`1.46G`).
pub fn format(bytes: u64) -> String {
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let divisor = 1u64 << (10 * unit);
    let suffix = UNITS.get(unit).copied().unwrap_or("");
    if bytes.is_multiple_of(divisor) {
        return format!("{}{suffix}", bytes / divisor);
    }
    let value = bytes as f64 / divisor as f64;
    // A value that would round to four digits before the point is printed in the next unit.
    let places = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (word, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("64MB", 64 << 20),
            ("64MiB", 64 << 20),
            ("1.5G", 3 << 29),
            ("0.5K", 512),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse(word), Ok(bytes), "{word}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_by_name() {
        for word in ["", "K", "-1", "+1", "1 G", "1Z", "0.3K", "1..5G", ".5G", "16E", "1e3", "0x10", "١G"] {
            let error = parse(word).unwrap_err();
            assert!(error.contains(&format!("{word:?}")), "{error}");
        }
    }

    #[test]
    fn sizes_are_short_and_whole_ones_are_exact() {
        for (bytes, text) in [
            (0, "0"),
            (512, "512"),
            (1023, "1023"),
            (1024, "1K"),
            (16 << 30, "16G"),
            (1536, "1.50K"),
            (15 << 20 | 1 << 19, "15.5M"),
            ((1 << 20) - 1, "1024K"),
            (300_000, "293K"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(format(bytes), text);
        }
    }
}
