//! The diagram of the crates, drawn from the table in DESIGN.md.
//!
//! A crate's layer is the length of the longest path below it. An edge that longer paths imply is left out. An edge that crosses layers
//! has a *bend* in each. Bends are ordered within the layer like crates, so edges pass between boxes. Layers are ordered by the mean
//! position of each node's neighbours, in sweeps down and up. All numbers are integers, so the picture is the same on every machine.

use crate::table::{Edges, below, drawn, libraries, rows};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const BOX_WIDTH: i64 = 104;
const BOX_HEIGHT: i64 = 30;
const BEND_WIDTH: i64 = 14;
const GAP: i64 = 22;
const LAYER_HEIGHT: i64 = 66;
const MARGIN: i64 = 16;
/// Sweeps over all layers. The order is stable long before.
const SWEEPS: usize = 24;

/// A crate, or the bend of an edge.
struct Node {
    name: Option<String>,
    layer: usize,
    /// The x coordinate of its middle.
    x: i64,
    above: Vec<usize>,
    below: Vec<usize>,
}

impl Node {
    fn new(name: Option<String>, layer: usize) -> Node {
        Node { name, layer, x: 0, above: Vec::new(), below: Vec::new() }
    }

    fn width(&self) -> i64 {
        if self.name.is_some() { BOX_WIDTH } else { BEND_WIDTH }
    }
}

/// The edges that no longer path implies.
fn reduced(edges: &Edges) -> Edges {
    let kept = |tos: &BTreeSet<String>| -> BTreeSet<String> {
        let is_implied = |to: &String| tos.iter().any(|via| via != to && below(edges, via).contains(to));
        tos.iter().filter(|to| !is_implied(to)).cloned().collect()
    };
    edges.iter().map(|(from, tos)| (from.clone(), kept(tos))).collect()
}

/// The longest path from a crate downward.
fn layer(edges: &Edges, of: &str) -> usize {
    edges[of].iter().map(|to| layer(edges, to) + 1).max().unwrap_or(0)
}

struct Layout {
    nodes: Vec<Node>,
    layers: Vec<Vec<usize>>,
}

impl Layout {
    fn new(edges: &Edges, names: &[String]) -> Layout {
        let mut nodes: Vec<Node> =
            names.iter().map(|name| Node::new(Some(name.clone()), layer(edges, name))).collect();
        let numbers: BTreeMap<&String, usize> = names.iter().zip(0..).collect();
        for (from, tos) in edges {
            for to in tos {
                let mut at = numbers[from];
                for layer in (nodes[numbers[to]].layer + 1..nodes[at].layer).rev() {
                    nodes.push(Node::new(None, layer));
                    let bend = nodes.len() - 1;
                    join(&mut nodes, at, bend);
                    at = bend;
                }
                join(&mut nodes, at, numbers[to]);
            }
        }
        let top = nodes.iter().map(|node| node.layer).max().unwrap_or(0);
        let layers = (0..=top).map(|layer| (0..nodes.len()).filter(|at| nodes[*at].layer == layer).collect());
        Layout { layers: layers.collect(), nodes }
    }

    /// The mean position of a node's neighbours on one side, or its own position if there are none.
    fn wanted(&self, at: usize, is_downward: bool) -> i64 {
        let node = &self.nodes[at];
        let joined = if is_downward { &node.above } else { &node.below };
        let sum: i64 = joined.iter().map(|other| self.nodes[*other].x).sum();
        if joined.is_empty() { node.x } else { sum / joined.len() as i64 }
    }

    /// Places the nodes of a layer as near as possible to their wanted positions, in order and without overlap. Neighbours that would
    /// overlap form one block at the mean of their wanted positions.
    fn place(&mut self, layer: usize, is_downward: bool) {
        let mut row: Vec<(i64, usize)> =
            self.layers[layer].iter().map(|at| (self.wanted(*at, is_downward), *at)).collect();
        row.sort_by_key(|(wanted, _)| *wanted);
        let mut offsets = Vec::new();
        let mut offset = 0;
        for pair in row.windows(2) {
            offsets.push(offset);
            offset += (self.nodes[pair[0].1].width() + self.nodes[pair[1].1].width()) / 2 + GAP;
        }
        offsets.push(offset);
        // Sum of wanted positions of the first node, and number of nodes. Positions rise from block to block.
        let mut blocks: Vec<(i64, i64)> = Vec::new();
        for ((wanted, _), offset) in row.iter().zip(&offsets) {
            let mut block = (wanted - offset, 1);
            while let Some(before) = blocks.pop_if(|before| before.0 * block.1 >= block.0 * before.1) {
                block = (before.0 + block.0, before.1 + block.1);
            }
            blocks.push(block);
        }
        let starts = blocks.iter().flat_map(|(sum, count)| (0..*count).map(move |_| sum / count));
        for (((_, at), offset), start) in row.iter().zip(&offsets).zip(starts) {
            self.nodes[*at].x = start + offset;
        }
        self.layers[layer] = row.into_iter().map(|(_, at)| at).collect();
    }

    fn arrange(&mut self) {
        for layer in 0..self.layers.len() {
            self.place(layer, false);
        }
        for _ in 0..SWEEPS {
            (0..self.layers.len()).rev().for_each(|layer| self.place(layer, true));
            (0..self.layers.len()).for_each(|layer| self.place(layer, false));
        }
        let left = self.nodes.iter().map(|node| node.x - node.width() / 2).min().unwrap_or(0);
        self.nodes.iter_mut().for_each(|node| node.x += MARGIN - left);
    }

    fn width(&self) -> i64 {
        self.nodes.iter().map(|node| node.x + node.width() / 2).max().unwrap_or(0) + MARGIN
    }

    fn height(&self) -> i64 {
        (self.layers.len() as i64 - 1) * LAYER_HEIGHT + BOX_HEIGHT + 2 * MARGIN
    }

    /// The upper edge of a layer.
    fn y(&self, layer: usize) -> i64 {
        MARGIN + (self.layers.len() - 1 - layer) as i64 * LAYER_HEIGHT
    }

    /// The path of an edge from a crate, through its bends, to its last crate.
    fn path(&self, from: usize, first: usize) -> String {
        let (mut x, mut y) = (self.nodes[from].x, self.y(self.nodes[from].layer) + BOX_HEIGHT);
        let mut path = format!("M{x} {y}");
        let mut at = first;
        loop {
            let node = &self.nodes[at];
            let end = self.y(node.layer);
            let middle = (y + end) / 2;
            let _ = write!(path, "C{x} {middle} {} {middle} {} {end}", node.x, node.x);
            if node.name.is_some() {
                return path;
            }
            (x, y) = (node.x, end + BOX_HEIGHT);
            let _ = write!(path, "V{y}");
            at = node.below[0];
        }
    }
}

fn join(nodes: &mut [Node], upper: usize, lower: usize) {
    nodes[upper].below.push(lower);
    nodes[lower].above.push(upper);
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const STYLE: &str = "\
.page{fill:#fff}.crate rect{fill:#eef3f8;stroke:#57708a}.program rect{fill:#fdf4e3;stroke:#96742f}
text{fill:#1b242d;font:13px system-ui,sans-serif;text-anchor:middle}path{fill:none;stroke:#7b8894}#tip path{fill:#7b8894;stroke:none}
@media(prefers-color-scheme:dark){.page{fill:#15191e}.crate rect{fill:#22303d;stroke:#6f8ba6}.program rect{fill:#3a2f1b;stroke:#b0904a}
text{fill:#e4eaf0}path{stroke:#8a97a4}#tip path{fill:#8a97a4}}";

/// The diagram of the table of crates: what each may use, and what it is for.
pub fn crates_svg() -> String {
    let rows = rows();
    let libraries = libraries();
    let edges = reduced(&drawn());
    let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
    let mut layout = Layout::new(&edges, &names);
    layout.arrange();
    let (width, height) = (layout.width(), layout.height());
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <title>The crates of Terrane: an arrow leads to what a crate uses</title>\n<style>\n{STYLE}\n</style>\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n"
    );
    for (from, node) in layout.nodes.iter().enumerate().filter(|(_, node)| node.name.is_some()) {
        for first in &node.below {
            let _ = writeln!(svg, "<path d=\"{}\" marker-end=\"url(#tip)\"/>", layout.path(from, *first));
        }
    }
    for (row, node) in rows.iter().zip(&layout.nodes) {
        let (left, top) = (node.x - BOX_WIDTH / 2, layout.y(node.layer));
        let class = if libraries.contains(&row.name) { "crate" } else { "program" };
        let _ = writeln!(
            svg,
            "<g class=\"{class}\"><title>{}</title><rect x=\"{left}\" y=\"{top}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" \
             rx=\"5\"/><text x=\"{}\" y=\"{}\">{}</text></g>",
            escaped(&row.purpose.replace('`', "")),
            node.x,
            top + BOX_HEIGHT / 2 + 5,
            row.name.trim_start_matches("terrane-"),
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(listed: &[(&str, &[&str])]) -> Edges {
        let row = |tos: &[&str]| tos.iter().map(|name| name.to_string()).collect();
        listed.iter().map(|(from, tos)| (from.to_string(), row(tos))).collect()
    }

    #[test]
    fn an_edge_that_a_longer_path_implies_is_left_out() {
        let all = edges(&[("a", &["b", "c", "d"]), ("b", &["c"]), ("c", &[]), ("d", &["c"])]);
        let kept = edges(&[("a", &["b", "d"]), ("b", &["c"]), ("c", &[]), ("d", &["c"])]);
        assert_eq!(reduced(&all), kept);
        assert_eq!((layer(&kept, "a"), layer(&kept, "d"), layer(&kept, "c")), (2, 1, 0));
    }

    #[test]
    fn boxes_do_not_overlap_and_edges_bend_in_each_layer() {
        let edges = edges(&[
            ("top", &["left", "bottom", "right"]),
            ("left", &["low"]),
            ("right", &["low"]),
            ("low", &["bottom"]),
            ("other", &["bottom"]),
            ("bottom", &[]),
        ]);
        let names: Vec<String> = edges.keys().cloned().collect();
        let mut layout = Layout::new(&edges, &names);
        layout.arrange();
        for layer in &layout.layers {
            for pair in layer.windows(2) {
                let (left, right) = (&layout.nodes[pair[0]], &layout.nodes[pair[1]]);
                assert!(left.x + left.width() / 2 < right.x - right.width() / 2);
            }
        }
        assert_eq!(layout.nodes.iter().filter(|node| node.name.is_none()).count(), 2);
    }
}
