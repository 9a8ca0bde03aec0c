//! Times as text, in UTC: a log may be read on another machine than the one that wrote it.

use jiff::Timestamp;

/// `2026-05-20T17:03:09Z` for seconds since 1970; `@SECONDS` after the year 9999.
pub fn utc(secs: i64) -> String {
    Timestamp::from_second(secs).map_or_else(|_| format!("@{secs}"), |time| time.to_string())
}

/// Seconds since 1970, now.
pub fn seconds() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

/// The current time as text, with milliseconds.
pub fn now() -> String {
    format!("{:.3}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_207_200, "9999-12-30T22:00:00Z"),
            (i64::MAX, "@9223372036854775807"),
        ] {
            assert_eq!(utc(secs), text);
        }
        let now = now();
        assert!(now.len() == "2026-05-20T17:03:09.123Z".len() && now.ends_with('Z'), "{now}");
    }
}
