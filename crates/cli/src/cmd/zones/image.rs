//! The map as an image: SVG for pages and people, PNG for programs that cannot show SVG.
//!
//! Both are drawn from the same squares. The strong colour rises from the bottom as far as the zone is live,
//! a pale one as far as it is written; the rest is the background. SVG has a legend and, under the mouse,
//! each zone's number.

use super::{Cell, KINDS};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Svg,
    Png,
}

const CELL: usize = 14;
const GAP: usize = 2;
const MARGIN: usize = 16;
const PAPER: [u8; 3] = [0xff, 0xff, 0xff];
/// Background of what is not written.
const UNWRITTEN: [u8; 3] = [0xf2, 0xf3, 0xf5];

impl Format {
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "svg" => Some(Format::Svg),
            "png" => Some(Format::Png),
            _ => None,
        }
    }
}

struct Rect {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    rgb: [u8; 3],
}

/// The number of columns: a multiple of eight, for an image about as wide as high.
fn columns(cells: usize) -> usize {
    let side = (cells as f64).sqrt().ceil() as usize;
    side.next_multiple_of(8).max(16)
}

fn pale(rgb: [u8; 3]) -> [u8; 3] {
    rgb.map(|part| (u16::from(part) / 4 + 3 * 64 - 1) as u8)
}

/// The squares of one cell, from back to front.
fn rects(cell: &Cell, at: usize, columns: usize) -> Vec<Rect> {
    let (x, y) = (MARGIN + at % columns * (CELL + GAP), MARGIN + at / columns * (CELL + GAP));
    let bar = |share: f64, rgb| {
        let height = if share > 0.0 { ((share * CELL as f64).round() as usize).clamp(1, CELL) } else { 0 };
        Rect { x, y: y + CELL - height, width: CELL, height, rgb }
    };
    let rgb = cell.kind.rgb;
    match cell.kind.name {
        "anchor" | "suspect" | "empty" | "read-only" | "offline" => vec![bar(1.0, rgb)],
        "waiting" => vec![bar(1.0, UNWRITTEN), bar(cell.written, pale(rgb))],
        _ => vec![bar(1.0, UNWRITTEN), bar(cell.written, pale(rgb)), bar(cell.live, rgb)],
    }
}

/// The bytes of the image file.
pub fn draw(format: Format, title: &str, cells: &[Cell]) -> std::io::Result<Vec<u8>> {
    let columns = columns(cells.len());
    let width = 2 * MARGIN + columns * (CELL + GAP) - GAP;
    let height = 2 * MARGIN + cells.len().div_ceil(columns).max(1) * (CELL + GAP) - GAP;
    let size = Size { width, height };
    match format {
        Format::Svg => Ok(svg(title, cells, columns, size).into_bytes()),
        Format::Png => png(cells, columns, size),
    }
}

/// The size of the image, in pixels.
struct Size {
    width: usize,
    height: usize,
}

fn svg(title: &str, cells: &[Cell], columns: usize, Size { width, height }: Size) -> String {
    let hex = |[r, g, b]: [u8; 3]| format!("#{r:02x}{g:02x}{b:02x}");
    let (legend_line, font) = (18, "font-family=\"sans-serif\" font-size=\"12\" fill=\"#30303a\"");
    let width = width.max(420);
    let whole = height + (KINDS.len() + 2) * legend_line;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{whole}\" viewBox=\"0 0 {width} {whole}\">\n\
         <title>{}</title>\n<rect width=\"{width}\" height=\"{whole}\" fill=\"{}\"/>\n",
        escape(title),
        hex(PAPER)
    );
    let draw = |out: &mut String, rect: &Rect| {
        let Rect { x, y, width, height, rgb } = rect;
        let fill = hex(*rgb);
        let _ =
            write!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>");
    };
    let is_one = cells.first().map(|cell| cell.device) == cells.last().map(|cell| cell.device);
    for (at, cell) in cells.iter().enumerate() {
        let device = if is_one { String::new() } else { format!("device {} ", cell.device) };
        let open = if cell.is_open { ", open" } else { "" };
        let live = (cell.live * 100.0).round();
        let _ = write!(
            out,
            "<g><title>{device}zone {}: {}{open}, {live} % alive</title>",
            cell.first_zone, cell.kind.name
        );
        rects(cell, at, columns).iter().filter(|rect| rect.height > 0).for_each(|rect| draw(&mut out, rect));
        out.push_str("</g>\n");
    }
    let mut y = height + legend_line / 2;
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{y}\" {font}>{}</text>", escape(title));
    for kind in KINDS {
        y += legend_line;
        draw(&mut out, &Rect { x: MARGIN, y: y - CELL + 3, width: CELL, height: CELL, rgb: kind.rgb });
        let _ = writeln!(out, "<text x=\"{}\" y=\"{y}\" {font}>{}</text>", MARGIN + CELL + 8, kind.name);
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Eight-bit RGB, no filter: <https://www.w3.org/TR/png-3/>.
fn png(cells: &[Cell], columns: usize, Size { width, height }: Size) -> std::io::Result<Vec<u8>> {
    // Each line begins with the number of its filter: none.
    let stride = 1 + 3 * width;
    let mut raw = Vec::with_capacity(stride * height);
    for _ in 0..height {
        raw.push(0);
        raw.extend(PAPER.repeat(width));
    }
    for rect in cells.iter().enumerate().flat_map(|(at, cell)| rects(cell, at, columns)) {
        for y in rect.y..rect.y + rect.height {
            let from = y * stride + 1 + 3 * rect.x;
            if let Some(line) = raw.get_mut(from..from + 3 * rect.width) {
                line.copy_from_slice(&rect.rgb.repeat(rect.width));
            }
        }
    }
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(&raw)?;
    let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX).to_be_bytes();
    let mut header = [side(width), side(height)].concat();
    // Eight bits, colour without alpha, and the only defined values of compression, filtering and
    // interlacing.
    header.extend([8, 2, 0, 0, 0]);
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", header), (b"IDAT", zlib.finish()?), (b"IEND", Vec::new())] {
        out.extend(side(data.len()));
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(&data);
        out.extend(kind);
        out.extend(&data);
        out.extend(crc.sum().to_be_bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn cell(zone: u64, kind: usize, live: f64) -> Cell {
        Cell { device: 0, first_zone: zone, kind: KINDS[kind], is_open: false, live, written: live }
    }

    #[test]
    fn the_ending_says_what_is_drawn() {
        assert_eq!(Format::of(Path::new("a.b/map.SVG")), Some(Format::Svg));
        assert_eq!(Format::of(Path::new("map.png")), Some(Format::Png));
        assert!(Format::of(Path::new("map.jpg")).is_none() && Format::of(Path::new("png")).is_none());
    }

    #[test]
    fn a_png_shows_the_squares() {
        let raw = draw(Format::Png, "", &[cell(0, 0, 1.0), cell(1, 0, 0.5)]).unwrap();
        assert_eq!(raw.get(..8).unwrap(), b"\x89PNG\r\n\x1a\n");
        let word = |at: usize| u32::from_be_bytes(raw[at..at + 4].try_into().unwrap()) as usize;
        let (width, height) = (word(16), word(20));
        assert_eq!((width, height), (2 * MARGIN + 16 * (CELL + GAP) - GAP, 2 * MARGIN + CELL));
        let at = 8 + 25;
        assert_eq!(&raw[at + 4..at + 8], b"IDAT");
        let mut lines = Vec::new();
        flate2::read::ZlibDecoder::new(&raw[at + 8..at + 8 + word(at)]).read_to_end(&mut lines).unwrap();
        assert_eq!(lines.len(), height * (1 + 3 * width));
        let pixel = |x: usize, y: usize| &lines[y * (1 + 3 * width) + 1 + 3 * x..][..3];
        assert_eq!(pixel(0, 0), PAPER);
        assert_eq!(pixel(MARGIN, MARGIN), KINDS[0].rgb);
        assert_eq!(pixel(MARGIN + CELL + GAP, MARGIN), UNWRITTEN);
        assert_eq!(pixel(MARGIN + CELL + GAP, MARGIN + CELL - 1), KINDS[0].rgb);
        assert_eq!(&raw[raw.len() - 8..raw.len() - 4], b"IEND");
    }

    #[test]
    fn an_svg_names_its_zones() {
        let raw = String::from_utf8(draw(Format::Svg, "a<b", &[cell(7, 1, 0.25)]).unwrap()).unwrap();
        assert!(raw.contains("zone 7: metadata A, 25 % alive") && raw.contains("a&lt;b"), "{raw}");
        assert_eq!(raw.matches("<svg").count(), raw.matches("</svg>").count());
        assert_eq!(raw.matches("<g>").count(), raw.matches("</g>").count());
    }
}
