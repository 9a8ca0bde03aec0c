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
Garbage is what full zones hold that is not alive any more; what is alive in them is copied together, and then they are reset. The lower the
target, the more is copied for each byte that is won: the histogram of `terrane zones` shows what there is to win.

A mounted pool goes on with it in the background; --wait shows how far it is, and may be interrupted. --target 100 ends one that goes on.
";

#[derive(Args)]
pub struct Gc {
    /// A pool, by name or by device
    pool: String,
    /// Go on until at most so much of what full zones hold is garbage, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=100))]
    target: u8,
    /// Wait until it is done; of a pool that is not mounted one always does
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
    let left = size::print(bytes("garbage"));
    if row["done"] == true {
        let won = bytes("garbage_before").saturating_sub(bytes("garbage"));
        return format!("{name}: {} of garbage collected, {left} left\n", size::print(won));
    }
    let goal = size::print(bytes("goal"));
    format!(
        "{name}: {left} of garbage, on the way down to {goal}; `terrane pool status {name}` shows how far it is\n"
    )
}
