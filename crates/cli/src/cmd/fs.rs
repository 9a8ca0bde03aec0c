//! `terrane fs`: data sets and their properties.

use super::{ask, pair, print, rows};
use crate::failure::Outcome;
use crate::query::{Query, property_help};
use crate::registry::Registry;
use crate::table::{self, Column, Shape, count, size, text};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Subcommand)]
pub enum FsCommand {
    /// Show properties
    #[command(after_help = property_help())]
    Get(Get),
    /// Change properties; what is written already stays as it is
    #[command(after_help = property_help())]
    Set(Set),
    /// List data sets
    List(List),
}

#[derive(Args)]
pub struct Get {
    /// Names separated by commas, or `all`
    #[arg(required = true, value_delimiter = ',', value_name = "PROPERTY|all")]
    properties: Vec<String>,
    /// A pool, by name or by device
    pool: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Args)]
pub struct Set {
    #[arg(required = true, value_parser = pair, value_name = "PROPERTY=VALUE")]
    properties: Vec<(String, String)>,
    /// A pool, by name or by device
    pool: String,
}

#[derive(Args)]
pub struct List {
    /// Pools, by name or by device; without any: all that are known
    pools: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

const PROPERTIES: [Column; 4] =
    [text("NAME", "name"), text("PROPERTY", "property"), text("VALUE", "value"), text("SOURCE", "source")];
const DATASETS: [Column; 5] = [
    text("NAME", "name"),
    size("USED", "used"),
    size("AVAIL", "available"),
    count("OBJECTS", "objects"),
    text("MOUNTPOINT", "mountpoint"),
];

impl FsCommand {
    pub fn run(&self) -> Outcome {
        match self {
            FsCommand::Get(get) => get.run(),
            FsCommand::Set(set) => {
                let query = Query::Set(set.properties.clone());
                ask(&Registry::of_this_user()?, &set.pool, &query).map(drop)
            }
            FsCommand::List(list) => list.run(),
        }
    }
}

impl Get {
    fn run(&self) -> Outcome {
        let all = self.properties.iter().any(|name| name == "all");
        let names = if all { Vec::new() } else { self.properties.clone() };
        let rows = rows(ask(&Registry::of_this_user()?, &self.pool, &Query::Get(names))?)?;
        print(&table::render(&PROPERTIES, &rows, self.shape))
    }
}

impl List {
    fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let (statuses, failed) = super::pool::statuses(&registry, &self.pools)?;
        let row = |status: &Value| {
            json!({
                "name": status["name"],
                "used": status["used"],
                "available": status["available"],
                "objects": status["objects"],
                "mountpoint": status["mountpoint"],
            })
        };
        let rows: Vec<Value> = statuses.iter().map(row).collect();
        print(&table::render(&DATASETS, &rows, self.shape))?;
        failed
    }
}
