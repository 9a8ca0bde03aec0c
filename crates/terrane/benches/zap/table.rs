//! Rows, and the reference values beside them.

use crate::PhaseTime;
use serde_json::json;

/// The result of one phase of one group of rows.
pub struct Row {
    pub group: &'static str,
    pub what: &'static str,
    pub threads: usize,
    pub ops: u64,
    pub took: PhaseTime,
    /// Bytes of memory per entry of the in-memory index.
    pub index_bytes: Option<f64>,
}

/// What a row is compared with.
struct Reference {
    /// The goal for CPU time per operation, in microseconds.
    goal_us: Option<f64>,
    /// The goal for operations per second on two threads.
    goal_per_s: Option<f64>,
    /// Published or measured elsewhere.
    published: &'static str,
}

/// OpenZFS: its library in process (master of 2026, 16 KiB leaves, lz4, ARC warm), microseconds of the
/// caller's CPU, best to worst run. The server's values are the best published for a whole metadata server.
fn reference(group: &str, what: &str) -> Reference {
    let cpu = |goal_us, published| Reference { goal_us: Some(goal_us), goal_per_s: None, published };
    let rate = |goal_per_s, published| Reference { goal_us: None, goal_per_s: Some(goal_per_s), published };
    match (group, what) {
        ("micro", "add") => cpu(0.6, "2.0-3.7 us"),
        ("micro", "lookup") => cpu(0.2, "0.63-1.09 us"),
        ("micro", "remove") => cpu(0.3, "0.68-2.0 us"),
        ("micro", "index") => cpu(70.0, "250-320 us"),
        // OpenZFS has none: a fifth more than micro.
        ("tiny", "add") => cpu(0.72, ""),
        ("tiny", "lookup") => cpu(0.24, ""),
        ("tiny", "remove") => cpu(0.36, ""),
        ("tiny", "index") => cpu(84.0, ""),
        ("fat", "add") => cpu(1.1, "3.3-4.4 us"),
        ("fat", "lookup") => cpu(1.1, "4.1-4.9 us"),
        ("fat", "remove") => cpu(1.5, "5.0-5.9 us"),
        ("server", "create") => rate(107_000.0, "107,000/s"),
        ("server", "stat") => rate(296_000.0, "296,000/s"),
        ("server", "remove") => rate(156_000.0, "156,000/s"),
        _ => Reference { goal_us: None, goal_per_s: None, published: "" },
    }
}

impl Row {
    fn caller_us(&self) -> f64 {
        self.took.caller_ns as f64 / 1e3 / self.ops as f64
    }

    fn process_us(&self) -> f64 {
        self.took.process_ns as f64 / 1e3 / self.ops as f64
    }

    fn per_s(&self) -> f64 {
        self.ops as f64 * 1e9 / self.took.wall_ns as f64
    }

    /// The goal, and whether the row meets it; a rate applies to two threads.
    fn goal(&self) -> (String, Option<bool>) {
        let reference = reference(self.group, self.what);
        match (reference.goal_us, reference.goal_per_s) {
            (Some(us), _) => (format!("<= {us} us"), Some(self.caller_us() <= us)),
            (_, Some(per_s)) => {
                (format!("> {per_s:.0}/s"), (self.threads == 2).then(|| self.per_s() > per_s))
            }
            _ => (String::new(), None),
        }
    }
}

pub struct Table {
    json: bool,
    rows: Vec<Row>,
}

impl Table {
    pub fn new(json: bool) -> Table {
        if !json {
            println!(
                "{:<20} {:>10} {:>9}{:>13}{:>10}  {:<18}{:<14}index B/name",
                "             threads", "CPU us/op", "(all)", "ops/s wall", "scaling", "goal", "elsewhere"
            );
        }
        Table { json, rows: Vec::new() }
    }

    /// Operations per second over those of the same row on one thread.
    fn scaling(&self, row: &Row) -> Option<f64> {
        let alone =
            self.rows.iter().rev().find(|r| r.threads == 1 && (r.group, r.what) == (row.group, row.what));
        let alone = alone.filter(|_| row.threads == 2)?;
        let rate = |row: &Row| row.ops as f64 / row.took.undisturbed_ns.max(1) as f64;
        Some(rate(row) / rate(alone))
    }

    pub fn add(&mut self, row: Row) {
        if !self.json {
            let scaling = self.scaling(&row).map_or(String::new(), |times| format!("{times:.2}x"));
            let (goal, met) = row.goal();
            println!(
                "{:<8}{:<9}{:>3} {:>10.3} {:>9}{:>13.0}{:>10}  {:<13}{:<5}{:<14}{}",
                row.group,
                row.what,
                row.threads,
                row.caller_us(),
                format!("({:.2})", row.process_us()),
                row.per_s(),
                scaling,
                goal,
                met.map_or("", |met| if met { "yes" } else { "NO" }),
                reference(row.group, row.what).published,
                row.index_bytes.map_or(String::new(), |bytes| format!("{bytes:.2}")),
            );
        }
        self.rows.push(row);
    }

    pub fn finish(self) {
        if !self.json {
            return;
        }
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "group": row.group, "what": row.what, "threads": row.threads, "ops": row.ops,
                    "caller_us_per_op": row.caller_us(), "process_us_per_op": row.process_us(),
                    "ops_per_s": row.per_s(), "scaling": self.scaling(row),
                    "index_bytes_per_name": row.index_bytes,
                })
            })
            .collect();
        println!("{}", json!({ "rows": rows }));
    }
}
