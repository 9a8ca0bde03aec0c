//! The paths that a source file imports, found without a compiler.

/// The identifier at the start of a text.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// Splits at the bracket that closes the group in which `text` begins: the group, and the text after it.
fn group(text: &str) -> (&str, &str) {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    (text, "")
}

/// The source without comments and without test-only code.
pub fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join("\n");
    let mut kept = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        kept.push_str(before);
        let (brace, end) = (after.find('{'), after.find(';'));
        rest = match (brace, end) {
            (Some(brace), end) if end.is_none_or(|end| brace < end) => group(&after[brace + 1..]).1,
            (_, Some(end)) => &after[end + 1..],
            _ => "",
        };
    }
    kept + rest
}

/// The items of an import group. Nested groups stay whole.
fn items(group: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let items = group.split(move |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    items.map(str::trim).filter(|item| !item.is_empty())
}

/// The first names of the items of an import group.
fn first_names(group: &str) -> Vec<&str> {
    items(group).map(identifier).collect()
}

/// The names that an import brings into scope: `a::{b, c as d, e::{f}}` gives b, d and f.
pub fn names(import: &str) -> Vec<&str> {
    match import.split_once('{') {
        Some((_, inside)) => items(group(inside).0).flat_map(names).collect(),
        None => import.trim().rsplit([':', ' ']).take(1).collect(),
    }
}

/// The names that follow a path prefix, wherever the prefix begins a path.
pub fn imported<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).flat_map(move |(at, _)| {
        let (before, after) = (&text[..at], &text[at + prefix.len()..]);
        // `pub(in crate::x)` is a visibility, and `super::super::x` begins earlier.
        let is_path = !before.ends_with("(in ")
            && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        match after.strip_prefix('{') {
            _ if !is_path => Vec::new(),
            Some(inside) => first_names(group(inside).0),
            None => vec![identifier(after)],
        }
    })
}
