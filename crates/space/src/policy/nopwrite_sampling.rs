//! Decides which overwrites are compared with the old block (nopwrite).
//!
//! A block may hold the same content as the block it replaces although the stored bytes differ: another level, or another version of
//! the compressor. Only a read of the old block tells. So comparisons must pay off. If the last comparison in a file found equal
//! content, the next block of that file is compared too. Elsewhere comparisons are few, and rarer the longer they find nothing, down to
//! one in 1024 blocks. Random overwrites must not get slower, not even on drives that seek.
//!
//! Invariant: of *n* blocks without a match, at most `CREDIT_MAX` + *n* / `INTERVAL_MIN` + 1 are compared.

/// Most comparisons in a row without a match.
const CREDIT_MAX: u32 = 8;
/// Blocks between two comparisons. Doubles after each comparison without a match.
const INTERVAL_MIN: u32 = 64;
const INTERVAL_MAX: u32 = 1024;

/// An object, in its object set.
pub type File = (u64, u64);

/// The results of recent comparisons.
#[derive(Clone, Debug)]
pub struct NopwriteSampling {
    /// The last comparison was in this file and found equal content.
    matching_file: Option<File>,
    credit: u32,
    interval: u32,
    /// Blocks until the next comparison.
    until_next: u32,
}

impl Default for NopwriteSampling {
    fn default() -> Self {
        NopwriteSampling {
            matching_file: None,
            credit: CREDIT_MAX,
            interval: INTERVAL_MIN,
            until_next: INTERVAL_MIN,
        }
    }
}

impl NopwriteSampling {
    /// Whether the next block of `file` should be compared before it is compressed.
    pub fn expects_match(&self, file: File) -> bool {
        self.matching_file == Some(file)
    }

    /// Whether a block of `file` should be compared with the block it replaces.
    pub fn is_due(&mut self, file: File) -> bool {
        if self.expects_match(file) {
            return true;
        }
        if self.credit > 0 {
            self.credit -= 1;
            return true;
        }
        self.until_next -= 1;
        if self.until_next == 0 {
            self.until_next = self.interval;
            return true;
        }
        false
    }

    /// Notes the result of a comparison in `file`.
    pub fn note_result(&mut self, file: File, is_same: bool) {
        if is_same {
            self.matching_file = Some(file);
            self.credit = (self.credit + 1).min(CREDIT_MAX);
            self.interval = INTERVAL_MIN;
            self.until_next = self.until_next.min(INTERVAL_MIN);
        } else if self.expects_match(file) {
            self.matching_file = None;
        } else if self.credit == 0 {
            self.interval = (2 * self.interval).min(INTERVAL_MAX);
            self.until_next = self.interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: File = (1, 7);
    const B: File = (1, 8);

    /// Returns the number of comparisons over `blocks` blocks, and of matches.
    fn run(
        sampling: &mut NopwriteSampling,
        file: File,
        blocks: u32,
        is_same: impl Fn(u32) -> bool,
    ) -> (u32, u32) {
        let (mut done, mut same) = (0, 0);
        for at in 0..blocks {
            if sampling.is_due(file) {
                done += 1;
                same += u32::from(is_same(at));
                sampling.note_result(file, is_same(at));
            }
        }
        (done, same)
    }

    #[test]
    fn equal_files_are_found_from_the_first_block_on() {
        let mut sampling = NopwriteSampling::default();
        assert_eq!(run(&mut sampling, A, 10_000, |_| true), (10_000, 10_000));
        assert_eq!(run(&mut sampling, B, 10_000, |_| true), (10_000, 10_000));
    }

    #[test]
    fn differing_overwrites_are_rarely_compared() {
        let mut sampling = NopwriteSampling::default();
        let (done, _) = run(&mut sampling, A, 100_000, |_| false);
        assert!((CREDIT_MAX..150).contains(&done), "{done}");
        // Nor with many small files.
        let done: u32 = (0..100_000).map(|file| run(&mut sampling, (1, file), 1, |_| false).0).sum();
        assert!((50..150).contains(&done), "{done}");
    }

    #[test]
    fn a_file_that_is_rewritten_after_random_writes_is_noticed() {
        let mut sampling = NopwriteSampling::default();
        run(&mut sampling, A, 100_000, |_| false);
        let (_, same) = run(&mut sampling, B, 5_000, |_| true);
        assert!(same >= 5_000 - INTERVAL_MAX, "{same}");
        // And the next file is compared at once.
        assert_eq!(run(&mut sampling, A, 100, |_| true), (100, 100));
    }

    #[test]
    fn half_that_is_the_same_is_found() {
        let mut sampling = NopwriteSampling::default();
        let (done, same) = run(&mut sampling, A, 10_000, |at| at % 2 == 0);
        assert!(same >= 4_900 && done <= 10_000, "{same} of {done}");
    }
}
