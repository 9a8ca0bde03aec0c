//! Times as text, in UTC: a log may be read on another machine than the one that wrote it.

use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-05-20T17:03:09Z` for seconds since 1970.
pub fn utc(secs: i64) -> String {
    let Day { year, month, day } = civil(secs.div_euclid(86_400));
    let second = secs.rem_euclid(86_400);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Seconds since 1970, now.
pub fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The current time as text, with milliseconds.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = utc(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    format!("{}.{:03}Z", text.trim_end_matches('Z'), since.subsec_millis())
}

/// A date of the Gregorian calendar.
struct Day {
    year: i64,
    month: i64,
    day: i64,
}

/// The date that many days after 1970-01-01: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`. Years begin in March there, so that the leap day comes last.
fn civil(days: i64) -> Day {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    Day { year: era * 400 + year_of_era + i64::from(month <= 2), month, day }
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
        ] {
            assert_eq!(utc(secs), text);
        }
    }
}
