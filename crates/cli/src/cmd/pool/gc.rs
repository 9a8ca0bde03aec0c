//! `terrane pool gc`: GC on request.
//!
//! A pool starts GC itself when free zones run short. On request it runs before, at a quiet hour or before a
//! large copy. A mounted pool continues after the command has ended; for one that is not mounted, the command
//! itself runs GC.

use super::super::{ask, print};
use crate::failure::Outcome;
use crate::query::Query;
use crate::registry::Registry;
use crate::size;
use crate::table::envelope;
use clap::Args;
use serde_json::{Value, json};

pub const HELP: &str = "\
Garbage is dead blocks in full zones. Their live blocks are moved to other zones, and then they are reset. The lower the target, the more is
copied for each byte that is freed: the histogram of `terrane zones` shows how much.

A mounted pool continues in the background; --wait shows the progress, and may be interrupted. --target 100 ends a collection in progress.
";

#[derive(Args)]
pub struct Gc {
    /// A pool, by name or by device
    pool: String,
    /// Share of garbage in full zones at which it ends, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=100))]
    target: u8,
    /// Wait until it is done (always, if the pool is not mounted)
    #[arg(short, long)]
    wait: bool,
    /// JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
}

impl Gc {
    pub fn run(&self) -> Outcome {
        let query = Query::Collect { target_percent: self.target, wait: self.wait };
        let row = ask(&Registry::of_this_user()?, &self.pool, &query)?;
        if self.json {
            return print(&format!("{:#}\n", envelope("pool gc", json!({"pools": [row]}))));
        }
        print(&describe(&row))
    }
}

fn describe(row: &Value) -> String {
    let bytes = |key: &str| row[key].as_u64().unwrap_or(0);
    let name = row["name"].as_str().unwrap_or("?");
    let left = size::format(bytes("garbage"));
    if row["done"] == true {
        let won = bytes("garbage_before").saturating_sub(bytes("garbage"));
        return format!("{name}: {} of garbage collected, {left} left\n", size::format(won));
    }
    let goal = size::format(bytes("goal"));
    format!("{name}: {left} of garbage, target {goal}; `terrane pool status {name}` shows the progress\n")
}
