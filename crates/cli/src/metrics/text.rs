//! The text exposition format of Prometheus, version 0.0.4: each family once, with its HELP and TYPE, all samples of a family
//! together.

use std::fmt::{Display, Write as _};
use terrane_wire::meter::{BUCKETS, HistogramSnapshot};

/// Names of a pool's metrics begin with this.
const PREFIX: &str = "terrane_";

pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// The text under construction.
pub struct MetricsText {
    pub pool: String,
    pub out: String,
}

impl MetricsText {
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a `String` cannot fail.
        let _ = write!(self.out, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
    }

    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let _ = write!(self.out, "{PREFIX}{name}{{pool=\"{}\"", escaped(&self.pool));
        for (label, text) in labels {
            let _ = write!(self.out, ",{label}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.out, "}} {value}");
    }

    pub fn scalar(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.scalar(name, "counter", help, value);
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.scalar(name, "gauge", help, value);
    }

    /// One sample for each of several things of a kind.
    pub fn labelled<'a, V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) {
        self.family(name, kind, help);
        for (text, value) in values {
            self.sample(name, &[(label, text)], value);
        }
    }

    pub fn histogram(&mut self, name: &str, help: &str, times: &HistogramSnapshot) {
        self.family(name, "histogram", help);
        self.buckets(name, &[], times);
    }

    pub fn buckets(&mut self, name: &str, labels: Labels<'_>, times: &HistogramSnapshot) {
        let mut sum = 0;
        for (index, count) in times.buckets.iter().enumerate().take(BUCKETS) {
            sum += count;
            let bound =
                HistogramSnapshot::bound_ns(index).map_or("+Inf".to_owned(), |ns| seconds(ns).to_string());
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.sample(&format!("{name}_bucket"), &labels, sum);
        }
        self.sample(&format!("{name}_sum"), labels, seconds(times.sum_ns));
        // Not counted separately: a sample that comes in between would make the two disagree.
        self.sample(&format!("{name}_count"), labels, sum);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_things_cannot_break_out_of_a_label() {
        let mut text = MetricsText { pool: "a\"b".to_owned(), out: String::new() };
        text.gauge("x", "Help.", 1);
        text.labelled(("y_total", "counter", "Help."), "device", [("back\\slash\nline", 2)]);
        let lines: Vec<&str> = text.out.lines().collect();
        assert_eq!(lines[2], "terrane_x{pool=\"a\\\"b\"} 1");
        assert_eq!(lines[5], "terrane_y_total{pool=\"a\\\"b\",device=\"back\\\\slash\\nline\"} 2");
        assert_eq!(lines.len(), 6);
    }
}
