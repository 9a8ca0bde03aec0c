//! Manual pages: one for each command, made from its definition and its help, and a few that are written.
//!
//! What stands below the options in a help text becomes sections of the page: a line that begins at the margin and ends with a colon
//! heads one, indented rows of `word  meaning` become a list, other indented lines stay as they are.

use crate::failure::Outcome;
use clap::Command;
use clap_mangen::Man;
use std::fmt::Write as _;
use std::io;

const SECTION: &str = "8";
const MANUAL: &str = "Terrane";

/// Name and text of every page.
pub fn all(words: Command) -> Outcome<Vec<(String, Vec<u8>)>> {
    let mut words = words.disable_help_subcommand(true);
    words.build();
    let mut pages = Vec::new();
    command_pages(&words, None, &mut pages)?;
    Ok(pages)
}

fn command_pages(
    command: &Command,
    parent: Option<&str>,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    let name = match parent {
        Some(parent) => format!("{parent}-{}", command.get_name()),
        None => command.get_name().to_owned(),
    };
    let subs: Vec<&Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(SECTION)
        .source(format!("terrane {}", env!("CARGO_PKG_VERSION")))
        .manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    page.extend(name_section(command, &name).into_bytes());
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if !subs.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_long_help().or(command.get_after_help()) {
        page.extend(sections(&text.to_string()).into_bytes());
    }
    page.extend(see_also(&name, parent, &subs).into_bytes());
    pages.push((format!("{name}.{SECTION}"), page));
    for sub in subs {
        command_pages(sub, Some(&name), pages)?;
    }
    Ok(())
}

/// One line, as `apropos` wants it.
fn name_section(command: &Command, name: &str) -> String {
    let about = command.get_about().map(|about| about.to_string()).unwrap_or_default();
    let about = about.split(". ").next().unwrap_or_default().trim_end_matches('.');
    format!(".SH NAME\n{} \\- {}\n", escape(name), escape(about))
}

fn see_also(name: &str, parent: Option<&str>, subs: &[&Command]) -> String {
    let mut names: Vec<String> = subs.iter().map(|sub| format!("{name}-{}", sub.get_name())).collect();
    names.extend(parent.map(str::to_owned));
    if names.is_empty() {
        return String::new();
    }
    let pages: Vec<String> =
        names.iter().map(|name| format!("\\fB{}\\fR({SECTION})", escape(name))).collect();
    format!(".SH SEE ALSO\n{}\n", pages.join(",\n"))
}

/// Text of a help page as roff.
pub fn sections(text: &str) -> String {
    let mut out = String::new();
    let mut verbatim = false;
    for line in text.lines() {
        let row = row(line).filter(|_| !verbatim);
        let indented = line.starts_with(' ');
        if verbatim && !indented && !line.is_empty() {
            out.push_str(".fi\n.RE\n");
            verbatim = false;
        }
        if line.is_empty() {
            out.push_str(if verbatim { "\n" } else { ".PP\n" });
        } else if let Some((word, meaning)) = row {
            let _ = write!(out, ".TP\n\\fB{}\\fR\n{}\n", escape(word), escape(meaning));
        } else if indented {
            if !verbatim {
                out.push_str(".RS 4\n.nf\n");
                verbatim = true;
            }
            let _ = writeln!(out, "{}", escape(line.strip_prefix("  ").unwrap_or(line)));
        } else if let Some(head) = line.strip_suffix(':') {
            let _ = writeln!(out, ".SH {}", escape(&head.to_uppercase()));
        } else {
            let _ = writeln!(out, "{}", escape(line));
        }
    }
    if verbatim {
        out.push_str(".fi\n.RE\n");
    }
    // A paragraph before a heading, or at the end, would be empty.
    while let Some(cut) = out.strip_suffix(".PP\n") {
        out.truncate(cut.len());
    }
    out.replace(".PP\n.SH", ".SH").replace("\n\n.fi", "\n.fi")
}

/// `  word  meaning`, a row of a list.
fn row(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("  ").filter(|line| !line.starts_with([' ', '$', '#']))?;
    let (word, meaning) = line.split_once("  ")?;
    Some((word, meaning.trim_start()))
}

/// Nothing in it means anything to roff.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
