//! The local time of day, for jobs that should run at night.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::sync::LazyLock;

/// Read once: the zone's file may lie on a file system that this process serves.
static ZONE: LazyLock<TimeZone> = LazyLock::new(TimeZone::system);

/// The minute of the day, 0 to 1439, in the machine's time zone, or UTC without one. `secs` is in seconds since 1970.
/// For a time outside the years -9999 to 9999 it is that of 1970-01-01T00:00Z.
pub fn minute_of_day(secs: i64) -> u16 {
    minute_in(&ZONE, secs)
}

fn minute_in(zone: &TimeZone, secs: i64) -> u16 {
    let time = zone.to_datetime(Timestamp::from_second(secs).unwrap_or_default());
    u16::from(time.hour().unsigned_abs()) * 60 + u16::from(time.minute().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_go_on_one_by_one_and_begin_again_each_day() {
        // A day in January: the northern half changes no clock then, and a change elsewhere is at least a quarter of
        // an hour.
        let start = 1_768_000_000;
        let mut last = minute_of_day(start);
        let mut steps = 0;
        for at in 1..24 * 60 {
            let minute = minute_of_day(start + at * 60);
            assert!(minute < 1440);
            steps += usize::from(minute == (last + 1) % 1440);
            last = minute;
        }
        assert!(steps >= 24 * 60 - 2, "{steps}");
        assert!(minute_of_day(i64::MAX) < 1440 && minute_of_day(i64::MIN) < 1440);
    }

    #[test]
    fn the_zone_decides_and_changes_its_clock_in_summer() {
        // Noon UTC, in January and in July.
        let (winter, summer) = (1_768_392_000, 1_784_030_400);
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (zone, expected) in [(&TimeZone::UTC, [12 * 60, 12 * 60]), (&berlin, [13 * 60, 14 * 60])] {
            assert_eq!([minute_in(zone, winter), minute_in(zone, summer)], expected);
        }
        assert_eq!(minute_in(&berlin, winter + 11 * 3600 + 59), 0, "the next day");
    }
}
