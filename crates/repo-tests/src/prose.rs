//! Checks the sentences of a Markdown page: short on average, none very long, and every actor named.

/// Most words per sentence: on average over a page, and in any one.
pub const WORDS_MEAN_MAX: f64 = 18.0;
pub const WORDS_MAX: usize = 35;

/// A sentence, with the first line of its paragraph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    pub line: usize,
    pub text: String,
    /// It stands in a table, whose cells are mostly short, so it does not count for the average.
    pub in_table: bool,
}

impl Sentence {
    /// Number of words. Inline code is one word, and punctuation between spaces is none.
    pub fn words(&self) -> usize {
        self.text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
    }

    /// Whether a "who" has no noun: "who asks waits". After a noun it is fine: "a user who asks".
    pub fn is_headless(&self) -> bool {
        const BEFORE: [&str; 22] = [
            "and", "or", "but", "for", "to", "of", "by", "from", "with", "than", "as", "if", "when", "that",
            "so", "is", "what", "how", "where", "then", "because", "while",
        ];
        if self.text.ends_with('?') {
            return false;
        }
        let words: Vec<&str> = self.text.split_whitespace().collect();
        words.iter().enumerate().any(|(at, word)| {
            let word = word.trim_matches(|letter: char| !letter.is_alphanumeric()).to_lowercase();
            if word == "whoever" {
                return true;
            }
            if word != "who" {
                return false;
            }
            match at.checked_sub(1).and_then(|at| words.get(at)) {
                None => true,
                // A colon or a semicolon ends the clause before.
                Some(before) if before.ends_with([':', ';']) => true,
                Some(before) => BEFORE.contains(&before.to_lowercase().as_str()),
            }
        })
    }
}

/// The figures of a page.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub sentences: usize,
    pub words: usize,
    pub longest: usize,
    pub too_long: Vec<Sentence>,
    pub headless: Vec<Sentence>,
}

impl Figures {
    pub fn of(page: &str) -> Figures {
        let mut figures = Figures::default();
        for sentence in sentences(page) {
            let words = sentence.words();
            if !sentence.in_table {
                figures.sentences += 1;
                figures.words += words;
            }
            figures.longest = figures.longest.max(words);
            if sentence.is_headless() {
                figures.headless.push(sentence.clone());
            }
            if words > WORDS_MAX {
                figures.too_long.push(sentence);
            }
        }
        figures
    }

    pub fn mean(&self) -> f64 {
        self.words as f64 / self.sentences.max(1) as f64
    }

    /// Whether the page keeps all rules.
    pub fn is_plain(&self) -> bool {
        self.mean() <= WORDS_MEAN_MAX && self.too_long.is_empty() && self.headless.is_empty()
    }
}

/// The sentences of a page: paragraphs, list items, quotes, and table cells. Headings and code blocks are skipped.
pub fn sentences(page: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    let (mut paragraph, mut begins, mut in_code) = (String::new(), 0, false);
    for (at, line) in page.lines().chain([""]).enumerate() {
        let text = line.trim();
        if text.starts_with("```") || text.starts_with("~~~") {
            in_code = !in_code;
        }
        let is_apart = in_code || text.starts_with(['#', '|', '`']) && !is_prose(text) || text.is_empty();
        let item = item_of(text);
        if is_apart || item.is_some() {
            split(&paragraph, begins, false, &mut found);
            paragraph.clear();
        }
        if !in_code && text.starts_with('|') {
            text.split('|').for_each(|cell| split(cell, at + 1, true, &mut found));
        }
        if is_apart {
            continue;
        }
        if paragraph.is_empty() {
            begins = at + 1;
        }
        paragraph.push(' ');
        paragraph.push_str(item.unwrap_or(text));
    }
    split(&paragraph, begins, false, &mut found);
    found
}

/// Whether a line is prose that begins with inline code.
fn is_prose(text: &str) -> bool {
    text.starts_with('`') && !text.starts_with("```")
}

/// The text of a list item.
fn item_of(text: &str) -> Option<&str> {
    let bullet =
        text.strip_prefix("* ").or_else(|| text.strip_prefix("- ")).or_else(|| text.strip_prefix("> "));
    bullet.or_else(|| {
        let (number, rest) = text.split_once(". ")?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(rest)
    })
}

/// Replaces inline code by one word, and a link by its text.
fn plain(paragraph: &str) -> String {
    let mut out = String::new();
    for (at, piece) in paragraph.split('`').enumerate() {
        out.push_str(if at % 2 == 1 { "code" } else { piece });
    }
    let mut text = String::new();
    let mut rest = out.as_str();
    while let Some((before, behind)) = rest.split_once("](") {
        text.push_str(before);
        rest = behind.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    text.replace(['[', ']', '*', '_'], "")
}

fn split(paragraph: &str, line: usize, in_table: bool, found: &mut Vec<Sentence>) {
    let text = plain(paragraph);
    let mut sentence = String::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        sentence.push_str(if sentence.is_empty() { "" } else { " " });
        sentence.push_str(word);
        let bare = word.trim_end_matches([')', '"']);
        let ends = bare.ends_with(['.', '?', '!']) && !["e.g.", "i.e.", "etc.", "vs."].contains(&bare);
        let next_begins =
            words.peek().is_none_or(|next| next.starts_with(|letter: char| !letter.is_lowercase()));
        if ends && next_begins {
            found.push(Sentence { line, text: std::mem::take(&mut sentence), in_table });
        }
    }
    if sentence.split_whitespace().count() > 1 {
        found.push(Sentence { line, text: sentence, in_table });
    }
}
