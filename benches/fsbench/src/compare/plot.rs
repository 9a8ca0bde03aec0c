//! Bars, one group for each row of a table. The longest of a group is the best value, in any unit.

use super::page::{Section, number, peers_of};
use super::results::Results;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
/// Where bars begin, and the length of the longest.
const LEFT: f64 = 170.0;
const BAR: f64 = 560.0;
const LINE: f64 = 15.0;
const GAP: f64 = 26.0;

fn colour(peer: &str) -> &'static str {
    match peer {
        "null" => "#b8b8b8",
        "ext4" => "#4e79a7",
        "xfs" => "#76b7b2",
        "btrfs" => "#59a14f",
        "btrfs-zstd" => "#8cd17d",
        peer if peer.starts_with("zfs") => "#9c755f",
        _ => "#e15759",
    }
}

/// `None`: nothing was measured.
pub fn plot(results: &Results, section: &Section) -> Option<String> {
    let peers = peers_of(results, section);
    if peers.is_empty() {
        return None;
    }
    let mut body = String::new();
    let mut y = 30.0;
    for (label, metric) in &section.rows {
        let values: Vec<_> =
            peers.iter().filter_map(|peer| Some((*peer, results.values(*metric, peer)?.median))).collect();
        let Some(largest) = values.iter().map(|(_, value)| *value).max_by(f64::total_cmp) else { continue };
        let note = if metric.field.is_cost() { " (less is better)" } else { "" };
        let _ = writeln!(body, r#"<text x="8" y="{:.0}" font-weight="bold">{label}{note}</text>"#, y + 11.0);
        y += LINE + 2.0;
        for (peer, value) in values {
            let length = (BAR * value / largest.max(f64::MIN_POSITIVE)).max(1.0);
            let (middle, end) = (y + 10.0, LEFT + length + 6.0);
            let _ =
                writeln!(body, r#"<text x="{}" y="{middle:.0}" text-anchor="end">{peer}</text>"#, LEFT - 6.0);
            let _ = writeln!(
                body,
                r#"<rect x="{LEFT}" y="{y:.0}" width="{length:.1}" height="12" fill="{}"/>"#,
                colour(peer)
            );
            let _ = writeln!(body, r#"<text x="{end:.1}" y="{middle:.0}">{}</text>"#, number(value));
            y += LINE;
        }
        y += GAP - LINE;
    }
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"8\" y=\"18\" \
         font-size=\"14\">{}</text>\n{body}</svg>\n",
        section.title
    ))
}
