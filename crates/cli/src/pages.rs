//! Manual pages: one for each command, made from its definition and its help, and a few that are written by
//! hand.
//!
//! The text below the options in a help becomes sections of the page. A line that begins at the margin and
//! ends with a colon is a heading, indented rows of `word  meaning` become a list, other indented lines stay
//! as they are.

use crate::failure::Outcome;
use crate::help::{self, EXAMPLES_HEAD, OPTION_HELP};
use crate::units::GENERATOR;
use clap::Command;
use clap_mangen::Man;
use std::fmt::Write as _;
use std::io;

const SECTION: &str = "8";
/// Names by which mount(8) finds us.
const MOUNT_HELPERS: [&str; 2] = ["mount.terrane", "mount.fuse.terrane"];
/// Below the page of the program as a whole.
const OVERVIEW: &str = include_str!("pages/terrane.txt");
/// The page of mount(8)'s helper, up to its options.
const MOUNT_HELPER: &str = include_str!("pages/mount.terrane.txt");

/// The page of fsck(8)'s helper.
const FSCK_HELPER: &str = include_str!("pages/fsck.terrane.txt");
/// The page of systemd's generator.
const GENERATOR_PAGE: &str = include_str!("pages/terrane-generator.txt");

/// Name and text of every page.
pub fn all(definition: Command) -> Outcome<Vec<(String, Vec<u8>)>> {
    let mut definition = definition.disable_help_subcommand(true);
    definition.build();
    let mut pages = Vec::new();
    command_pages(&definition, None, &mut pages)?;
    let mount = mount_helper_page();
    for name in MOUNT_HELPERS {
        pages.push((format!("{name}.{SECTION}"), mount.clone().into_bytes()));
    }
    pages.push((format!("fsck.terrane.{SECTION}"), fsck_helper_page().into_bytes()));
    pages.push((format!("{GENERATOR}.{SECTION}"), generator_page().into_bytes()));
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
    let man = Man::new(command.clone()).section(SECTION);
    let mut page = title(&name).into_bytes();
    page.extend(name_section(command, &name).into_bytes());
    page.extend(synopsis(command).into_bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if !subs.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    if parent.is_none() {
        page.extend(sections(OVERVIEW).into_bytes());
    }
    if let Some(text) = command.get_after_long_help().or(command.get_after_help()) {
        page.extend(sections(&text.to_string()).into_bytes());
    }
    page.extend(see_also(&name, parent, &subs).into_bytes());
    let page = String::from_utf8_lossy(&page).replace(".br\n\n.br\n", ".sp\n");
    pages.push((format!("{name}.{SECTION}"), page.into_bytes()));
    for sub in subs {
        command_pages(sub, Some(&name), pages)?;
    }
    Ok(())
}

/// Without a date: the version says more, and the same source makes the same page.
fn title(name: &str) -> String {
    format!(
        ".TH {} {SECTION} \"\" \"terrane {}\" Terrane\n",
        escape(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION")
    )
}

fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    // The command, up to the first argument.
    let (name, arguments) = usage.find(['[', '<']).map_or((usage, ""), |at| usage.split_at(at));
    format!(".SH SYNOPSIS\n\\fB{}\\fR {}\n", escape(name.trim_end()), escape(arguments))
}

/// One line, as `apropos` expects it.
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

fn mount_helper_page() -> String {
    let examples = help::examples("mount.terrane").unwrap_or_default();
    let examples: String = examples.lines().map(|line| format!("  {line}\n")).collect();
    let text = format!("{MOUNT_HELPER}{OPTION_HELP}\n{EXAMPLES_HEAD}\n{examples}");
    let also = "\\fBterrane\\fR(8),\n\\fBterrane\\-mount\\fR(8),\n\\fBmount\\fR(8),\n\\fBfstab\\fR(5)";
    format!("{}{}.SH SEE ALSO\n{also}\n", title(MOUNT_HELPERS[0]), sections(&text))
}

fn fsck_helper_page() -> String {
    // `check_fstab` in scripts/life.sh runs it.
    let text = format!("{FSCK_HELPER}\n{EXAMPLES_HEAD}\n  $ fsck.terrane -f /var/lib/tank.img\n");
    let also = "\\fBterrane\\-check\\fR(8),\n\\fBfsck\\fR(8)";
    format!("{}{}.SH SEE ALSO\n{also}\n", title("fsck.terrane"), sections(&text))
}

fn generator_page() -> String {
    let also = "\\fBterrane\\-mount\\fR(8),\n\\fBsystemd.generator\\fR(7),\n\\fBsystemd.mount\\fR(5)";
    format!("{}{}.SH SEE ALSO\n{also}\n", title(GENERATOR), sections(GENERATOR_PAGE))
}

/// What the previous lines were part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Text,
    List,
    Verbatim,
}

/// Text of a help page as roff.
fn sections(text: &str) -> String {
    let mut out = String::new();
    let mut part = LineKind::Text;
    for line in text.lines() {
        let indented = line.starts_with(' ');
        if !indented && !line.is_empty() {
            if part == LineKind::Verbatim {
                out.push_str(VERBATIM_END);
            }
            part = LineKind::Text;
        }
        if let Some((word, meaning)) = row(line).filter(|_| part != LineKind::Verbatim) {
            let _ = write!(out, ".TP\n\\fB{}\\fR\n{}\n", escape(word), escape(meaning));
            part = LineKind::List;
        } else if line.is_empty() {
            out.push_str(if part == LineKind::Verbatim { "\n" } else { ".PP\n" });
        } else if part == LineKind::List {
            // Terms without a meaning of their own, or continuation of the previous one.
            let word = line.strip_prefix("  ").filter(|line| !line.starts_with(' '));
            let _ = match word {
                Some(word) => writeln!(out, ".TP\n\\fB{}\\fR\n\\&", escape(word)),
                None => writeln!(out, "{}", escape(line.trim_start())),
            };
        } else if indented {
            if part != LineKind::Verbatim {
                out.push_str(VERBATIM_BEGIN);
                part = LineKind::Verbatim;
            }
            let _ = writeln!(out, "{}", escape(line.strip_prefix("  ").unwrap_or(line)));
        } else if let Some(head) = line.strip_suffix(':') {
            let _ = match head.contains(' ') {
                false => writeln!(out, ".SH {}", escape(&head.to_uppercase())),
                true => writeln!(out, ".SS {}", escape(head)),
            };
        } else {
            let _ = writeln!(out, "{}", escape(line));
        }
    }
    if part == LineKind::Verbatim {
        out.push_str(VERBATIM_END);
    }
    tidy(out)
}

const VERBATIM_BEGIN: &str = ".RS 4\n.nf\n";
const VERBATIM_END: &str = ".fi\n.RE\n";

/// Removes empty paragraphs: before and after a heading, and at the end.
fn tidy(mut out: String) -> String {
    while let Some(cut) = out.strip_suffix(".PP\n") {
        out.truncate(cut.len());
    }
    out.replace(".PP\n.S", ".S").replace("\n\n.fi", "\n.fi").replace(".PP\n.RS", ".RS")
}

/// `  word  meaning`, a row of a list.
fn row(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("  ").filter(|line| !line.starts_with([' ', '$', '#']))?;
    let (word, meaning) = line.split_once("  ")?;
    Some((word, meaning.trim_start()))
}

/// Escaped so that nothing in it has a meaning to roff.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_becomes_sections_lists_and_examples() {
        let text = "Mount options:\n  ro, rw  read\n          only\n  alone\n\nExamples:\n  $ a -b\n  .out\n";
        let page = ".SS Mount options\n.TP\n\\fBro, rw\\fR\nread\nonly\n.TP\n\\fBalone\\fR\n\\&\n\
                    .SH EXAMPLES\n.RS 4\n.nf\n$ a \\-b\n\\&.out\n.fi\n.RE\n";
        assert_eq!(sections(text), page);
    }

    #[test]
    fn every_page_has_a_name_and_an_example() {
        let pages = all(crate::command_definition()).unwrap_or_default();
        assert!(pages.len() >= 20, "{} pages", pages.len());
        for (name, page) in pages {
            let page = String::from_utf8(page).unwrap_or_default();
            for part in
                [".SH NAME\n", " \\- ", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n", ".SH EXAMPLES\n", "\n$ "]
            {
                assert!(page.contains(part), "{name} has no {part:?}:\n{page}");
            }
        }
    }
}
