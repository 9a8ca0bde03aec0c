//! `terrane zones`: a map of the zones of a pool.
//!
//! Each cell is a zone at its position on the device, or several where a pool has more than fit on a screen.
//! The colour shows the class, the height the live share. Garbage in full zones is what GC can reclaim.

mod image;

use super::{ask, exit_with_usage, print};
use crate::failure::{Failure, Outcome};
use crate::query::Query;
use crate::registry::Registry;
use crate::size;
use crate::table::{Listing, OutputFormat, count, envelope, printable, size as size_column, text};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;

pub const HELP: &str = "\
Colours and letters:
  D  blue       data
  A  yellow     metadata, first copies
  B  orange     metadata, second copies
  L  magenta    log
  C  green      collection: what moved
  @  white      anchors: label and uberblocks
  x  grey       nothing in it is alive; waits to be reset
  r  brown      its device takes no more writes to it
  o  dark red   its device has lost it
  !  red        suspect: its content is not what its record says
  .  grey       empty

The class is that of a zone's first block. MOVED says how many of the live bytes in a zone GC brought there, whatever its class.

The height of a block is the share that is alive. Open zones are underlined; without colour they have a capital letter, full
ones a small one. The histogram under the map counts full zones by the share of them that is alive: the lower it is, the cheaper
is collecting them.
";

/// Show a map of a pool's zones: state, class, and how much of each is alive
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Zones {
    /// A pool, by name or by device
    pool: String,
    /// Draw the map into a file, by its ending: .svg or .png
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// When to use colour
    #[arg(long, value_enum, default_value_t = ColorWhen::Auto)]
    color: ColorWhen,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    Always,
    Never,
}

const ZONES: Listing = Listing {
    command: "zones",
    key: "zones",
    columns: &[
        count("DEVICE", "device"),
        count("ZONE", "zone"),
        text("STATE", "state"),
        text("CONDITION", "condition"),
        text("CLASS", "class"),
        count("SEQ", "seq"),
        size_column("CAPACITY", "capacity"),
        size_column("WRITTEN", "claimed"),
        size_column("LIVE", "live"),
        size_column("MOVED", "moved"),
    ],
};
const SUMMARY: Listing = Listing {
    command: "zones",
    key: "summary",
    columns: &[
        text("KIND", "kind"),
        count("ZONES", "zones"),
        count("OPEN", "open"),
        size_column("WRITTEN", "claimed"),
        size_column("LIVE", "live"),
        size_column("MOVED", "moved"),
        count("LIVE%", "live_percent"),
    ],
};

/// Maximum number of cells; beyond it a cell is several zones.
const CELLS_MAX: usize = 4096;
const CELLS_PER_LINE: usize = 64;
/// The longest bar of the histogram.
const BAR_CELLS: u128 = 40;

/// A kind of zone, as it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneKind {
    pub name: &'static str,
    letter: char,
    /// In the 256 colours of a terminal.
    ansi: u8,
    pub rgb: [u8; 3],
}

impl ZoneKind {
    /// Whether zones of this kind hold data of users or of the pool.
    pub fn is_class(&self) -> bool {
        matches!(self.name, "data" | "metadata A" | "metadata B" | "log" | "collection")
    }
}

/// In the order of legend and summary. A kind that is not a class is named by its state.
pub(crate) const KINDS: [ZoneKind; 11] = [
    ZoneKind { name: "data", letter: 'D', ansi: 33, rgb: [0x1f, 0x77, 0xd4] },
    ZoneKind { name: "metadata A", letter: 'A', ansi: 220, rgb: [0xe0, 0xb4, 0x00] },
    ZoneKind { name: "metadata B", letter: 'B', ansi: 208, rgb: [0xe8, 0x7a, 0x1c] },
    ZoneKind { name: "log", letter: 'L', ansi: 170, rgb: [0xb0, 0x3c, 0xa8] },
    ZoneKind { name: "collection", letter: 'C', ansi: 35, rgb: [0x2c, 0xa0, 0x4a] },
    ZoneKind { name: "anchor", letter: '@', ansi: 15, rgb: [0x30, 0x30, 0x38] },
    ZoneKind { name: "waiting", letter: 'x', ansi: 245, rgb: [0x8a, 0x8a, 0x92] },
    ZoneKind { name: "read-only", letter: 'r', ansi: 130, rgb: [0x8c, 0x56, 0x2b] },
    ZoneKind { name: "offline", letter: 'o', ansi: 88, rgb: [0x70, 0x10, 0x10] },
    ZoneKind { name: "suspect", letter: '!', ansi: 196, rgb: [0xd6, 0x20, 0x20] },
    ZoneKind { name: "empty", letter: '.', ansi: 240, rgb: [0xe4, 0xe6, 0xea] },
];
const GLYPHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One cell: a zone, or neighbouring zones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub device: u64,
    pub first_zone: u64,
    pub kind: ZoneKind,
    pub is_open: bool,
    /// Live share of the capacity, 0 to 1.
    pub live: f64,
    pub written: f64,
}

impl Zones {
    pub fn run(&self) -> Outcome {
        let format = self.image.as_deref().map(|path| {
            image::Format::of(path).unwrap_or_else(|| {
                exit_with_usage(&format!("--image {}: it should end in .svg or .png", path.display()))
            })
        });
        let answer = ask(&Registry::of_this_user()?, &self.pool, &Query::ZoneMap)?;
        let zones = answer["zones"].as_array().map(Vec::as_slice).unwrap_or_default();
        if let (Some(path), Some(format)) = (&self.image, format) {
            let title = format!("{}: {}", answer["name"].as_str().unwrap_or("?"), totals(&answer, zones));
            let bytes = image::draw(format, &title, &cells(zones, CELLS_MAX * 4))?;
            std::fs::write(path, bytes).map_err(Failure::io("writing", path))?;
            // A file was asked for; text beside it only for people.
            if !self.output.json && !self.output.no_header {
                return Ok(());
            }
        }
        if self.output.json {
            let mut answer = answer.clone();
            answer["summary"] = summary(zones).into();
            answer["live_shares"] = live_shares(zones).to_vec().into();
            return print(&format!("{:#}\n", envelope(ZONES.command, answer)));
        }
        if self.output.no_header {
            return print(&ZONES.render(zones, self.output));
        }
        let coloured = self.is_coloured();
        let map = maps(&cells(zones, CELLS_MAX), &answer["devices"], coloured);
        let table = SUMMARY.render(&summary(zones), self.output);
        let bars = histogram(&live_shares(zones));
        print(&format!("{}\n\n{map}{}\n{bars}{table}", totals(&answer, zones), legend(coloured)))
    }

    fn is_coloured(&self) -> bool {
        let unwanted = |variable: &str, is: fn(&std::ffi::OsStr) -> bool| {
            std::env::var_os(variable).is_some_and(|value| is(&value))
        };
        match self.color {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => {
                std::io::stdout().is_terminal()
                    && !unwanted("NO_COLOR", |value| !value.is_empty())
                    && !unwanted("TERM", |value| value == "dumb")
            }
        }
    }
}

fn totals(answer: &Value, zones: &[Value]) -> String {
    let empty = zones.iter().filter(|zone| zone["state"] == "empty").count();
    let live: u64 = zones.iter().filter_map(|zone| zone["live"].as_u64()).sum();
    let zone_size = answer["zone_size"].as_u64().unwrap_or(0);
    format!(
        "{} zones of {}, {empty} empty, {} alive",
        zones.len(),
        size::format(zone_size),
        size::format(live)
    )
}

fn kind_of(zone: &Value) -> ZoneKind {
    if let Some(condition) = zone["condition"].as_str() {
        return KINDS.into_iter().find(|kind| kind.name == condition).unwrap_or(KINDS[KINDS.len() - 1]);
    }
    let state = zone["state"].as_str().unwrap_or("");
    let name = if matches!(state, "open" | "full") { zone["class"].as_str().unwrap_or("") } else { state };
    KINDS.into_iter().find(|kind| kind.name == name).unwrap_or(KINDS[KINDS.len() - 1])
}

/// At most `cells_max` cells. Where zones share one, it has the kind of most of them, empty ones not counted.
fn cells(zones: &[Value], cells_max: usize) -> Vec<Cell> {
    let per_cell = zones.len().div_ceil(cells_max).max(1);
    // No cell holds zones of two devices.
    zones
        .chunk_by(|a, b| a["device"] == b["device"])
        .flat_map(|of| of.chunks(per_cell))
        .filter_map(cell)
        .collect()
}

fn cell(zones: &[Value]) -> Option<Cell> {
    let kinds: Vec<ZoneKind> = zones.iter().map(kind_of).collect();
    let votes = |kind: &ZoneKind| kinds.iter().filter(|other| *other == kind).count();
    let used = kinds.iter().filter(|kind| kind.name != "empty").max_by_key(|kind| votes(kind));
    let sum = |key: &str| zones.iter().filter_map(|zone| zone[key].as_u64()).sum::<u64>() as f64;
    let capacity = sum("capacity").max(1.0);
    Some(Cell {
        device: zones.first()?["device"].as_u64().unwrap_or(0),
        first_zone: zones.first()?["zone"].as_u64()?,
        kind: *used.or(kinds.first())?,
        is_open: zones.iter().any(|zone| zone["state"] == "open"),
        live: (sum("live") / capacity).min(1.0),
        written: (sum("claimed") / capacity).min(1.0),
    })
}

/// A map for each device, under its name if there are several.
fn maps(cells: &[Cell], devices: &Value, coloured: bool) -> String {
    let mut out = String::new();
    let is_one = cells.first().map(|cell| cell.device) == cells.last().map(|cell| cell.device);
    for of in cells.chunk_by(|a, b| a.device == b.device) {
        let device = of.first().map_or(0, |cell| cell.device);
        if !is_one {
            let name = devices[usize::try_from(device).unwrap_or(usize::MAX)].as_str().unwrap_or("?");
            out.push_str(&format!("device {device}: {}\n", printable(name)));
        }
        out.push_str(&map(of, coloured));
        out.push('\n');
    }
    out
}

fn map(cells: &[Cell], coloured: bool) -> String {
    let per_line = if coloured { CELLS_PER_LINE } else { CELLS_PER_LINE / 2 };
    let mut out = String::new();
    let mut lines = cells.chunks(per_line).peekable();
    while let Some(line) = lines.next() {
        let first = line.first().map_or(0, |cell| cell.first_zone);
        out.push_str(&format!("{first:>7}  "));
        // Several empty lines become one.
        let (mut lines_empty, mut last) = (1, None);
        while is_empty(line)
            && let Some(next) = lines.next_if(|next| is_empty(next))
        {
            (lines_empty, last) = (lines_empty + 1, next.last());
        }
        if let Some(last) = last {
            out.push_str(&format!("{lines_empty} lines of empty zones, to {}\n", last.first_zone));
            continue;
        }
        let mut painted = None;
        for cell in line {
            let paint = (cell.kind.ansi, cell.is_open);
            if coloured && painted != Some(paint) {
                out.push_str(&cell_style(cell.kind, cell.is_open));
                painted = Some(paint);
            }
            out.push_str(&draw_cell(cell, coloured));
        }
        out.push_str(if coloured { RESET } else { "" });
        out.push('\n');
    }
    out
}

fn legend(coloured: bool) -> String {
    let mut out = "         ".to_owned();
    for kind in KINDS {
        let sign = match kind.name {
            _ if !coloured => kind.letter.to_string(),
            _ if kind.is_class() => format!("{}█{RESET}", cell_style(kind, false)),
            _ => format!("{}{}{RESET}", cell_style(kind, false), kind.letter),
        };
        out.push_str(&format!("{sign} {}   ", kind.name));
    }
    let open = if coloured { "\u{1b}[4m▄\u{1b}[0m open" } else { "CAPITAL open, small full" };
    out.push_str(&format!("{open}\n"));
    out
}

fn is_empty(line: &[Cell]) -> bool {
    line.iter().all(|cell| cell.kind.name == "empty")
}

fn draw_cell(cell: &Cell, coloured: bool) -> String {
    let is_class = cell.kind.is_class();
    let glyph = if is_class { glyph(cell.live) } else { cell.kind.letter };
    match is_class {
        _ if coloured => glyph.to_string(),
        true if cell.is_open => format!("{}{glyph}", cell.kind.letter),
        true => format!("{}{glyph}", cell.kind.letter.to_ascii_lowercase()),
        false => format!("{glyph} "),
    }
}

const RESET: &str = "\u{1b}[0m";

fn cell_style(kind: ZoneKind, underlined: bool) -> String {
    let underline = if underlined { "4;" } else { "" };
    format!("\u{1b}[0;{underline}38;5;{}m", kind.ansi)
}

fn glyph(share: f64) -> char {
    let step = (share * GLYPHS.len() as f64).ceil() as usize;
    GLYPHS[step.clamp(1, GLYPHS.len()) - 1]
}

/// Full zones by live share, in tenths.
fn live_shares(zones: &[Value]) -> [u64; 10] {
    let mut bins = [0; 10];
    for zone in zones.iter().filter(|zone| zone["state"] == "full") {
        let live = u128::from(zone["live"].as_u64().unwrap_or(0));
        let tenth = (live * 10).checked_div(u128::from(zone["capacity"].as_u64().unwrap_or(0))).unwrap_or(0);
        bins[usize::try_from(tenth).unwrap_or(9).min(9)] += 1;
    }
    bins
}

/// A bar for each bin; empty if no zone is full.
fn histogram(bins: &[u64; 10]) -> String {
    let most = bins.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let mut out = "LIVE%      FULL ZONES\n".to_owned();
    for (tenth, count) in bins.iter().enumerate() {
        let length = (u128::from(*count) * BAR_CELLS).div_ceil(u128::from(most)) as usize;
        let bar = "█".repeat(length);
        let line = format!("{:>3} to {:<3} {count:>10}  {bar}", tenth * 10, tenth * 10 + 10);
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push('\n');
    out
}

/// A row for each kind that occurs.
fn summary(zones: &[Value]) -> Vec<Value> {
    let row = |kind: &ZoneKind| {
        let of: Vec<&Value> = zones.iter().filter(|zone| kind_of(zone) == *kind).collect();
        let sum = |key: &str| of.iter().filter_map(|zone| zone[key].as_u64()).sum::<u64>();
        let (claimed, live) = (sum("claimed"), sum("live"));
        (!of.is_empty()).then(|| {
            json!({
                "kind": kind.name,
                "zones": of.len(),
                "open": of.iter().filter(|zone| zone["state"] == "open").count(),
                "claimed": claimed,
                "live": live,
                "moved": sum("moved"),
                "live_percent": (u128::from(live) * 100).checked_div(u128::from(claimed)).map(|part| part as u64),
            })
        })
    };
    KINDS.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(zone: u64, state: &str, class: Option<&str>, live: u64) -> Value {
        let claimed = if state == "empty" { 0 } else { 80 };
        json!({
            "device": 0, "zone": zone, "state": state, "class": class, "capacity": 100, "claimed": claimed, "live": live,
            "moved": live / 4,
        })
    }

    fn zones() -> Vec<Value> {
        vec![
            zone(0, "anchor", None, 0),
            zone(1, "open", Some("data"), 20),
            zone(2, "full", Some("data"), 80),
            zone(3, "full", Some("metadata A"), 0),
            zone(4, "waiting", Some("data"), 0),
            zone(5, "empty", None, 0),
        ]
    }

    #[test]
    fn a_map_shows_every_zone() {
        let map = map(&cells(&zones(), 100), false);
        assert_eq!(map, "      0  @ D▂d▇a▁x . \n");
        let coloured = super::map(&cells(&zones(), 100), true);
        assert!(coloured.contains("\u{1b}[0;4;38;5;33m▂\u{1b}[0;38;5;33m▇\u{1b}"), "{coloured}");
    }

    #[test]
    fn each_device_has_a_map_of_its_own() {
        let mut both = zones();
        both.extend(zones().into_iter().map(|mut zone| {
            zone["device"] = 1.into();
            zone
        }));
        let cells = cells(&both, 4);
        assert_eq!(
            cells.iter().map(|cell| (cell.device, cell.first_zone)).collect::<Vec<_>>(),
            [(0, 0), (0, 3), (1, 0), (1, 3)],
            "no cell is shared by two"
        );
        let text = maps(&cells, &json!(["/dev/sda", "a\tb"]), false);
        assert!(text.starts_with("device 0: /dev/sda\n") && text.contains("\ndevice 1: a\\tb\n"), "{text}");
        assert!(!maps(&cells[..2], &json!(["/dev/sda"]), false).contains("device"));
    }

    #[test]
    fn a_zone_that_its_device_gave_up_is_shown_as_that() {
        let mut zones = zones();
        zones[2]["condition"] = "read-only".into();
        zones[5]["condition"] = "offline".into();
        assert!(map(&cells(&zones, 100), false).starts_with("      0  @ D▂r a▁x o \n"));
        let kinds: Vec<Value> = summary(&zones).into_iter().map(|mut row| row["kind"].take()).collect();
        assert_eq!(kinds, ["data", "metadata A", "anchor", "waiting", "read-only", "offline"]);
    }

    #[test]
    fn full_zones_are_counted_by_what_lives_in_them() {
        let full = |live| zone(0, "full", Some("data"), live);
        let mut zones = vec![full(0), full(9), full(10), full(99), full(100), full(100)];
        zones.push(zone(0, "open", Some("data"), 50));
        let bins = live_shares(&zones);
        assert_eq!(bins, [2, 1, 0, 0, 0, 0, 0, 0, 0, 3]);
        let text = histogram(&bins);
        assert_eq!(text.lines().nth(1), Some(format!("  0 to 10           2  {}", "█".repeat(27)).as_str()));
        assert_eq!(text.lines().nth(3), Some(" 20 to 30           0"));
        assert_eq!(histogram(&[0; 10]), "");
    }

    #[test]
    fn many_zones_share_a_cell() {
        let cells = cells(&zones(), 2);
        assert_eq!(
            cells.iter().map(|cell| (cell.first_zone, cell.kind.name)).collect::<Vec<_>>(),
            [(0, "data"), (3, "waiting")]
        );
        assert!((cells[0].live - 1.0 / 3.0).abs() < 1e-9 && cells[0].is_open);
    }

    #[test]
    fn the_summary_counts_by_kind() {
        let rows = summary(&zones());
        assert_eq!(
            (&rows[0]["kind"], &rows[0]["zones"], &rows[0]["live"]),
            (&"data".into(), &2.into(), &100.into())
        );
        assert_eq!((&rows[0]["live_percent"], &rows[0]["moved"]), (&62.into(), &25.into()));
        let empty = rows.last().unwrap();
        assert_eq!((&empty["kind"], &empty["live_percent"]), (&"empty".into(), &Value::Null));
    }
}
