//! Output as tables and JSON.
//!
//! The result of a command is a list of JSON objects, which this module prints. So every listing has a form
//! for people, one for scripts (`-H`: no header, tabs; `-p`: exact numbers) and one for programs (`--json`),
//! with the same data.
//!
//! Invariant: JSON is an object with `output_version`, the command, and what `docs/json.md` lists for it.
//! Keys are added, never renamed or removed, without another version.

use crate::size;
use clap::Args;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

/// How a listing is wanted.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct OutputFormat {
    /// JSON, with exact numbers
    #[arg(short, long)]
    pub json: bool,
    /// Exact numbers instead of rounded ones
    #[arg(short, long)]
    pub parsable: bool,
    /// No header, and tabs between columns
    #[arg(short = 'H', long = "no-header")]
    pub no_header: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Text,
    /// A number of bytes.
    Size,
    Count,
    /// A ratio, to two places.
    Ratio,
}

/// One column: its title, the key of its values, and their kind.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    pub key: &'static str,
    pub kind: ColumnKind,
}

pub const fn text(title: &'static str, key: &'static str) -> Column {
    Column { title, key, kind: ColumnKind::Text }
}

pub const fn size(title: &'static str, key: &'static str) -> Column {
    Column { title, key, kind: ColumnKind::Size }
}

pub const fn count(title: &'static str, key: &'static str) -> Column {
    Column { title, key, kind: ColumnKind::Count }
}

pub const fn ratio(title: &'static str, key: &'static str) -> Column {
    Column { title, key, kind: ColumnKind::Ratio }
}

/// Version of the JSON that commands print: it changes if a key changes its meaning or is removed.
pub const OUTPUT_VERSION: u64 = 1;

/// A listing: the command that prints it, the key of its rows in JSON, and its columns.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    pub command: &'static str,
    pub key: &'static str,
    pub columns: &'static [Column],
}

/// The JSON output of a command; `fields` is an object.
pub fn envelope(command: &str, fields: Value) -> Value {
    let mut out = json!({"output_version": OUTPUT_VERSION, "command": command});
    if let (Some(out), Value::Object(fields)) = (out.as_object_mut(), fields) {
        out.extend(fields);
    }
    out
}

impl Listing {
    pub fn json(&self, rows: &[Value]) -> String {
        format!("{:#}\n", envelope(self.command, json!({self.key: rows})))
    }

    /// The rows in the chosen form; ends with a line break unless it is empty.
    pub fn render(&self, rows: &[Value], output: OutputFormat) -> String {
        self.render_columns(self.columns, rows, output)
    }

    /// The same with the columns of these names (`name,used`); none: all.
    pub fn render_chosen(&self, names: &[String], rows: &[Value], output: OutputFormat) -> String {
        let find = |name: &String| self.columns.iter().find(|column| column.name() == *name).copied();
        let chosen: Vec<Column> = names.iter().filter_map(find).collect();
        self.render_columns(if names.is_empty() { self.columns } else { &chosen }, rows, output)
    }

    /// The same with these columns.
    pub fn render_columns(&self, columns: &[Column], rows: &[Value], output: OutputFormat) -> String {
        if output.json { self.json(rows) } else { render(columns, rows, output) }
    }
}

impl Column {
    /// Its name for `-o`.
    pub fn name(&self) -> String {
        self.title.trim_end_matches('%').to_ascii_lowercase()
    }
}

/// Lines and columns; ends with a line break unless it is empty.
fn render(columns: &[Column], rows: &[Value], output: OutputFormat) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|column| cell(*column, row, output.parsable)).collect())
        .collect();
    if output.no_header {
        return cells.iter().map(|row| row.join("\t") + "\n").collect();
    }
    let mut lines = vec![columns.iter().map(|column| column.title.to_owned()).collect()];
    lines.extend(cells);
    align(columns, &lines)
}

/// A value for people; "-" if it is missing.
pub fn cell(column: Column, row: &Value, exact: bool) -> String {
    match row.get(column.key) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => printable(text),
        Some(Value::Bool(yes)) => if *yes { "yes" } else { "no" }.to_owned(),
        Some(number) => match number.as_u64() {
            Some(bytes) if column.kind == ColumnKind::Size && !exact => size::format(bytes),
            _ if column.kind == ColumnKind::Ratio && !exact => {
                format!("{:.2}", number.as_f64().unwrap_or(0.0))
            }
            _ => number.to_string(),
        },
    }
}

/// Replaces control characters: names come from images and directories, and must not move a terminal's cursor
/// or break a script's lines.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

fn align(columns: &[Column], lines: &[Vec<String>]) -> String {
    let width = |number: usize| {
        lines.iter().filter_map(|line| line.get(number)).map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for ((cell, column), width) in line.iter().zip(columns).zip(&widths) {
            let blanks = " ".repeat(width.saturating_sub(cell.width()));
            // Numbers are aligned to the right.
            let (before, after) = match column.kind {
                ColumnKind::Text => ("", &*blanks),
                ColumnKind::Size | ColumnKind::Count | ColumnKind::Ratio => (&*blanks, ""),
            };
            text.extend([before, cell, after, "  "]);
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [text("NAME", "name"), size("SIZE", "size"), text("STATE", "state")];

    fn rows() -> Vec<Value> {
        vec![
            json!({"name": "tank", "size": 16u64 << 30, "state": "mounted"}),
            json!({"name": "b", "size": 1536, "state": null}),
        ]
    }

    #[test]
    fn people_get_columns_that_line_up() {
        let text = render(&COLUMNS, &rows(), OutputFormat::default());
        assert_eq!(text, "NAME   SIZE  STATE\ntank    16G  mounted\nb     1.50K  -\n");
    }

    #[test]
    fn wide_and_combining_characters_line_up() {
        // Two columns for each of the first; one for the letter with its accent.
        let rows =
            ["漢字プール", "e\u{301}t", "tank"].map(|name| json!({"name": name, "size": 512, "state": "-"}));
        let text = render(&COLUMNS, &rows, OutputFormat::default());
        let expected = "\
            NAME        SIZE  STATE\n\
            漢字プール   512  -\n\
            e\u{301}t           512  -\n\
            tank         512  -\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn scripts_get_tabs_and_exact_numbers() {
        let output = OutputFormat { parsable: true, no_header: true, json: false };
        assert_eq!(render(&COLUMNS, &rows(), output), "tank\t17179869184\tmounted\nb\t1536\t-\n");
        assert_eq!(render(&COLUMNS, &[], output), "");
    }

    #[test]
    fn programs_get_all_there_is() {
        let listing = Listing { command: "pool list", key: "pools", columns: &COLUMNS };
        let output = OutputFormat { json: true, ..OutputFormat::default() };
        let text = listing.render_chosen(&["name".to_owned()], &rows(), output);
        let expected = json!({"output_version": 1, "command": "pool list", "pools": rows()});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn columns_can_be_chosen() {
        let listing = Listing { command: "pool list", key: "pools", columns: &COLUMNS };
        let output = OutputFormat { no_header: true, ..OutputFormat::default() };
        let chosen = ["state", "name"].map(str::to_owned);
        assert_eq!(listing.render_chosen(&chosen, &rows(), output), "mounted\ttank\n-\tb\n");
        assert_eq!(listing.render_chosen(&[], &rows(), output), listing.render(&rows(), output));
    }

    #[test]
    fn a_name_cannot_break_a_line() {
        let rows = [json!({"name": "a\tb\nc\u{1b}[2J"})];
        let output = OutputFormat { no_header: true, ..OutputFormat::default() };
        assert_eq!(render(&[text("NAME", "name")], &rows, output), "a\\tb\\nc\\u{1b}[2J\n");
    }
}
