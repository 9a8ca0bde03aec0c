//! The local time of day, for jobs that should run at night.

#![expect(unsafe_code, reason = "localtime_r has no safe form among our dependencies")]

/// The minute of the day, 0 to 1439, in the machine's time zone, or UTC without one. `secs` is in seconds since 1970.
pub fn minute_of_day(secs: i64) -> u16 {
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: the call reads `secs` and writes `local`; both are ours and valid for the call. All bytes of a `tm` may
    // be zero, so it can be read even if the call refused the time (a year that does not fit).
    let local = unsafe {
        libc::localtime_r(&secs, local.as_mut_ptr());
        local.assume_init()
    };
    let minute = local.tm_hour * 60 + local.tm_min;
    u16::try_from(minute.clamp(0, 24 * 60 - 1)).unwrap_or(0)
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
}
