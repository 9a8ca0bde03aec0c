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
pub struct Looks {
    /// The last comparison was in this file and found equal content.
    trusted: Option<File>,
    credit: u32,
    interval: u32,
    /// Blocks until the next comparison.
    left: u32,
}

impl Default for Looks {
    fn default() -> Self {
        Looks { trusted: None, credit: CREDIT_MAX, interval: INTERVAL_MIN, left: INTERVAL_MIN }
    }
}

impl Looks {
    /// Whether the next block of `file` should be compared before it is compressed.
    pub fn trusts(&self, file: File) -> bool {
        self.trusted == Some(file)
    }

    /// Whether a block of `file` should be compared with the block it replaces.
    pub fn is_due(&mut self, file: File) -> bool {
        if self.trusts(file) {
            return true;
        }
        if self.credit > 0 {
            self.credit -= 1;
            return true;
        }
        self.left -= 1;
        if self.left == 0 {
            self.left = self.interval;
            return true;
        }
        false
    }

    /// Notes the result of a comparison in `file`.
    pub fn found(&mut self, file: File, is_same: bool) {
        if is_same {
            self.trusted = Some(file);
            self.credit = (self.credit + 1).min(CREDIT_MAX);
            self.interval = INTERVAL_MIN;
            self.left = self.left.min(INTERVAL_MIN);
        } else if self.trusts(file) {
            self.trusted = None;
        } else if self.credit == 0 {
            self.interval = (2 * self.interval).min(INTERVAL_MAX);
            self.left = self.interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: File = (1, 7);
    const B: File = (1, 8);

    /// Returns the number of comparisons over `blocks` blocks, and of matches.
    fn run(looks: &mut Looks, file: File, blocks: u32, is_same: impl Fn(u32) -> bool) -> (u32, u32) {
        let (mut done, mut same) = (0, 0);
        for at in 0..blocks {
            if looks.is_due(file) {
                done += 1;
                same += u32::from(is_same(at));
                looks.found(file, is_same(at));
            }
        }
        (done, same)
    }

    #[test]
    fn what_is_the_same_throughout_is_found_from_the_first_block_on() {
        let mut looks = Looks::default();
        assert_eq!(run(&mut looks, A, 10_000, |_| true), (10_000, 10_000));
        assert_eq!(run(&mut looks, B, 10_000, |_| true), (10_000, 10_000));
    }

    #[test]
    fn what_is_overwritten_by_something_else_is_hardly_ever_looked_at() {
        let mut looks = Looks::default();
        let (done, _) = run(&mut looks, A, 100_000, |_| false);
        assert!((CREDIT_MAX..150).contains(&done), "{done}");
        // Nor with many small files.
        let done: u32 = (0..100_000).map(|file| run(&mut looks, (1, file), 1, |_| false).0).sum();
        assert!((50..150).contains(&done), "{done}");
    }

    #[test]
    fn a_file_that_is_rewritten_after_random_writes_is_noticed() {
        let mut looks = Looks::default();
        run(&mut looks, A, 100_000, |_| false);
        let (_, same) = run(&mut looks, B, 5_000, |_| true);
        assert!(same >= 5_000 - INTERVAL_MAX, "{same}");
        // And the next file is compared at once.
        assert_eq!(run(&mut looks, A, 100, |_| true), (100, 100));
    }

    #[test]
    fn half_that_is_the_same_is_found() {
        let mut looks = Looks::default();
        let (done, same) = run(&mut looks, A, 10_000, |at| at % 2 == 0);
        assert!(same >= 4_900 && done <= 10_000, "{same} of {done}");
    }
}
