//! "Did you mean": the known word nearest to an unknown one.
//!
//! The command line parser itself suggests commands, options and fixed values. This is for words that are
//! known only when a pool is asked or a value is parsed.

/// The nearest of the known words, if it is near enough to be a typing error. A swap of neighbours is one error.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let beginning = |word: &str| -> String { word.to_lowercase().chars().take(WORD_MAX).collect() };
    let word = beginning(word);
    let near = |known: &'a str| {
        let other = beginning(known);
        let distance = strsim::osa_distance(&word, &other);
        let (len, other_len) = (word.chars().count(), other.chars().count());
        (distance <= len.max(other_len).div_ceil(3) && distance < other_len).then_some((distance, known))
    };
    known.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// The end of a message that refuses `word`; empty if no word is near.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|known| format!("; did you mean '{known}'?")).unwrap_or_default()
}

/// Longer words are compared by their beginnings.
const WORD_MAX: usize = 64;

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
