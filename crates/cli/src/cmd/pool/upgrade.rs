//! `terrane pool upgrade`: what a pool's format knows, and what this program does.

use super::super::{ask, print};
use crate::failure::{Failure, Outcome};
use crate::query::Query;
use crate::registry::Registry;
use crate::table::{Listing, Shape, count, text};
use clap::Args;
use serde_json::{Value, json};
use terrane_pool::import::KNOWN_FEATURES;
use terrane_pool::label::FORMAT_VERSION;

pub const HELP: &str = "\
Without a pool it shows all that are known and changes nothing. There is one format version so far, and no feature that a pool
could lack: so there is nothing to upgrade, and the command says so.
";

#[derive(Args)]
pub struct Upgrade {
    /// Pools to upgrade, by name or by device
    pools: Vec<String>,
    /// Upgrade all that are known
    #[arg(short, long, conflicts_with = "pools")]
    all: bool,
    /// List the format versions and features that this program knows
    #[arg(long, conflicts_with_all = ["pools", "all"])]
    features: bool,
    #[command(flatten)]
    shape: Shape,
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
const FEATURES: Listing = Listing {
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
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for word in &pools {
            match ask(&registry, word, &Query::Uberblocks) {
                Ok(answer) => rows.push(row(&answer)),
                Err(Failure(reason)) => failures.push(reason),
            }
        }
        if rows.is_empty() && failures.is_empty() && !self.shape.json {
            print("no pools are known here; `terrane pool import` looks for some\n")?;
        } else {
            print(&POOLS.render(&rows, self.shape))?;
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
    }

    fn list_features(&self) -> Outcome {
        let rows: Vec<Value> =
            KNOWN_FEATURES.iter().map(|name| json!({"name": name, "meaning": null})).collect();
        if rows.is_empty() && !self.shape.json && !self.shape.no_header {
            let text = format!("format version {FORMAT_VERSION}; no features beyond it are defined yet\n");
            return print(&text);
        }
        print(&FEATURES.render(&rows, self.shape))
    }
}

/// A pool whose label could be read is of this version: others are refused by name before anything else is.
fn row(answer: &Value) -> Value {
    let label = &answer["labels"][0];
    let lists = ["incompatible_features", "read_only_compatible_features", "compatible_features"];
    let names = lists.iter().filter_map(|list| label[*list].as_array()).flatten().filter_map(Value::as_str);
    let names: Vec<&str> = names.collect();
    json!({
        "name": label["pool"],
        "format_version": FORMAT_VERSION,
        "features": if names.is_empty() { "none".to_owned() } else { names.join(",") },
        "upgrade": "nothing to do",
    })
}
