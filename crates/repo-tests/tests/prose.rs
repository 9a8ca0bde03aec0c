//! Pages keep the prose rules: sentences are short and name their actors.

use std::path::PathBuf;
use terrane_repo_tests::prose::{Figures, WORDS_MAX, WORDS_MEAN_MAX, sentences};
use terrane_repo_tests::{files, read, root, short};

fn pages() -> Vec<PathBuf> {
    let top = ["README", "DESIGN", "FORMAT", "SEMANTICS", "CHANGELOG", "CONTRIBUTING", "SECURITY"];
    let top = top.iter().map(|name| root().join(format!("{name}.md"))).filter(|path| path.exists());
    top.chain(files("docs", ".md")).chain(files("decisions", ".md")).collect()
}

fn complaints(name: &str, figures: &Figures) -> Vec<String> {
    let mut found = Vec::new();
    if figures.mean() > WORDS_MEAN_MAX {
        found
            .push(format!("{name}: {:.1} words a sentence on average, not {WORDS_MEAN_MAX}", figures.mean()));
    }
    for long in &figures.too_long {
        found.push(format!("{name}:{}: {} words, not {WORDS_MAX}: {}", long.line, long.words(), long.text));
    }
    for headless in &figures.headless {
        found.push(format!("{name}:{}: headless who: {}", headless.line, headless.text));
    }
    found
}

#[test]
fn pages_are_plain() {
    let mut found = Vec::new();
    for path in pages() {
        let name = short(&path);
        let figures = Figures::of(&read(&path));
        found.extend(complaints(&name, &figures));
    }
    assert!(found.is_empty(), "{} complaints:\n{}", found.len(), found.join("\n"));
}

/// `cargo test -p terrane-repo-tests --test all prose:: -- --nocapture` prints the figures.
#[test]
fn figures_of_pages() {
    for path in pages() {
        let figures = Figures::of(&read(&path));
        println!(
            "{:45} {:5} sentences, mean {:4.1}, longest {:3}, over {WORDS_MAX}: {:3}, headless: {:3}",
            short(&path),
            figures.sentences,
            figures.mean(),
            figures.longest,
            figures.too_long.len(),
            figures.headless.len()
        );
        assert!(figures.sentences > 0, "a page without a sentence");
    }
}

#[test]
fn sentences_are_found() {
    let page = "# Heading\n\nOne two three. Four `of code. here`\nfive!\n\n* an item of v1.2 is one.\n* [Another](x.md) item?\n\n| a | table |\n\n```\nno. Sentence.\n```\n";
    let found = sentences(page).into_iter().filter(|found| !found.in_table);
    let texts: Vec<(usize, String)> = found.map(|found| (found.line, found.text)).collect();
    let expected =
        [(3, "One two three."), (3, "Four code five!"), (6, "an item of v1.2 is one."), (7, "Another item?")];
    assert_eq!(texts, expected.map(|(line, text)| (line, text.to_string())));
}

#[test]
fn a_who_without_a_noun_is_found() {
    let is = |text: &str| Figures::of(text).headless.len() == 1;
    for headless in [
        "Who asks waits.",
        "It is given to who asks.",
        "Whoever asks waits.",
        "One thing is so: who asks waits.",
    ] {
        assert!(is(headless), "{headless}");
    }
    for named in
        ["A user who asks waits.", "Users who ask, wait.", "Who asks?", "The kernel asks those who wait."]
    {
        assert!(!is(named), "{named}");
    }
}

#[test]
fn long_sentences_are_found() {
    let long = format!("{}end.", "word ".repeat(WORDS_MAX));
    assert_eq!(Figures::of(&long).too_long.len(), 1);
    assert_eq!(Figures::of(&long[5..]).too_long.len(), 0);
    assert!(!Figures::of(&long[5..]).is_plain(), "the mean is too high all the same");
}
