//! The time of day where this machine stands: for what should happen at night.

#![expect(unsafe_code, reason = "localtime_r has no safe form among our dependencies")]

/// The minute of the day, 0 to 1439, at this moment, in seconds since 1970, by the machine's time zone. Without one it is UTC.
pub fn minute_of_day(secs: i64) -> u16 {
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: `secs` is read, and `local` written, both of them ours and valid for the call. All bytes of a `tm` may be zero, so it can be
    // read even if the call refused the time (a year that does not fit).
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
        // A day in January: no clock of the northern half is changed then, and a change elsewhere is a quarter of an hour at least.
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
