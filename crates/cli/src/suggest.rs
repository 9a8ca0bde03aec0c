//! "Did you mean": the known word nearest to an unknown one.
//!
//! The command line parser itself suggests commands, options and fixed values. This is for words that are
//! known only when a pool is asked or a value is parsed.

/// The nearest of the known words, if it is near enough to be a typing error.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().take(WORD_MAX).collect();
    let near = |known: &'a str| {
        let other: Vec<char> = known.to_lowercase().chars().take(WORD_MAX).collect();
        let distance = distance(&word, &other);
        let bound = word.len().max(other.len()).div_ceil(3);
        (distance <= bound && distance < other.len()).then_some((distance, known))
    };
    known.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// The end of a message that refuses `word`; empty if no word is near.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|known| format!("; did you mean '{known}'?")).unwrap_or_default()
}

/// Longer words are compared by their beginnings.
const WORD_MAX: usize = 64;

/// Edit distance: insert, delete, change a letter or swap it with its neighbour (optimal string alignment).
fn distance(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut now = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let change = last[column] + usize::from(a != b);
            let mut best = change.min(last[column + 1] + 1).min(now[column] + 1);
            let swapped = row > 0 && column > 0 && *a == right[column - 1] && left[row - 1] == *b;
            if swapped {
                best = best.min(before[column - 1] + 1);
            }
            now.push(best);
        }
        before = std::mem::replace(&mut last, now);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_get_a_suggestion() {
        let known = ["compression", "recordsize", "checksum", "atime"];
        for (word, meant) in [
            ("compresion", Some("compression")),
            ("recrodsize", Some("recordsize")),
            ("record-size", Some("recordsize")),
            ("Checksum", Some("checksum")),
            ("atme", Some("atime")),
            ("colour", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
        assert_eq!(nearest("tnak", ["tank"]), Some("tank"));
        assert_eq!(hint("tnak", ["tank"]), "; did you mean 'tank'?");
        assert_eq!(hint("tnak", []), "");
    }
}
