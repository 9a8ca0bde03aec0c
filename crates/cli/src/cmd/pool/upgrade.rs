//! `terrane pool upgrade`: features of a pool's format, and those that this program knows.

use super::super::{ask, ask_within, print};
use crate::control::SURVEY_TIMEOUT;
use crate::failure::{Failure, Outcome};
use crate::query::Query;
use crate::registry::Registry;
use crate::table::{Listing, OutputFormat, count, text};
use clap::Args;
use serde_json::{Value, json};
use terrane_format::FEATURES;
use terrane_format::label::FORMAT_VERSION;

pub const HELP: &str = "\
Without a pool it shows all that are known and changes nothing. An upgraded pool has every feature that new pools have. Versions that do
not know them refuse it by name once they are in use, which some are at once: see `terrane pool features`. It takes a moment, also while
the pool is mounted.
";

#[derive(Args)]
pub struct Upgrade {
    /// Pools to upgrade, by name or by device
    pools: Vec<String>,
    /// Upgrade all known pools
    #[arg(short, long, conflicts_with = "pools")]
    all: bool,
    /// List the features that this program supports
    #[arg(long, conflicts_with_all = ["pools", "all"])]
    features: bool,
    #[command(flatten)]
    output: OutputFormat,
}

const POOLS: Listing = Listing {
    command: "pool upgrade",
    key: "pools",
    columns: &[
        text("NAME", "name"),
        count("VERSION", "format_version"),
        text("FEATURES", "features"),
        text("UPGRADE", "upgrade"),
    ],
};
const FEATURE_ROWS: Listing = Listing {
    command: "pool upgrade",
    key: "features",
    columns: &[text("FEATURE", "name"), text("MEANING", "meaning")],
};

impl Upgrade {
    pub fn run(&self) -> Outcome {
        if self.features {
            return self.list_features();
        }
        let registry = Registry::of_this_user()?;
        let known = || Ok::<_, Failure>(registry.pools()?.into_keys().collect());
        let pools: Vec<String> = if self.pools.is_empty() { known()? } else { self.pools.clone() };
        let is_change = self.all || !self.pools.is_empty();
        let query = if is_change { Query::Upgrade } else { Query::Status };
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for word in &pools {
            let answer = match is_change {
                true => ask(&registry, word, &query),
                false => ask_within(&registry, word, &query, SURVEY_TIMEOUT),
            };
            match answer {
                Ok(answer) => rows.push(row(&answer)),
                Err(Failure(reason)) => failures.push(reason),
            }
        }
        if rows.is_empty() && failures.is_empty() && !self.output.json {
            print("no known pools; `terrane pool import` searches for some\n")?;
        } else {
            print(&POOLS.render(&rows, self.output))?;
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
    }

    fn list_features(&self) -> Outcome {
        let rows: Vec<Value> =
            FEATURES.iter().map(|row| json!({"name": row.name, "meaning": row.meaning})).collect();
        print(&FEATURE_ROWS.render(&rows, self.output))
    }
}

/// A pool that could be opened has this program's version: others are refused by name before.
fn row(answer: &Value) -> Value {
    let list = |key: &str| -> Option<Vec<&str>> {
        Some(answer[key].as_array()?.iter().filter_map(Value::as_str).collect())
    };
    let has = list("features").unwrap_or_default();
    let upgrade = match list("added") {
        Some(added) => ("added", added),
        None => {
            let lacking = FEATURES.iter().filter(|row| row.is_default && !has.contains(&row.name));
            ("available", lacking.map(|row| row.name).collect())
        }
    };
    json!({
        "name": answer["name"],
        "format_version": FORMAT_VERSION,
        "features": if has.is_empty() { "none".to_owned() } else { has.join(",") },
        "upgrade": match upgrade {
            (_, names) if names.is_empty() => "nothing to do".to_owned(),
            (what, names) => format!("{what}: {}", names.join(",")),
        },
    })
}
