//! `terrane debug`: shows the structures of the format.

use super::{ask, print, rows};
use crate::failure::Outcome;
use crate::query::Query;
use crate::registry::Registry;
use crate::table::{Listing, OutputFormat, cell, count, envelope, size, text};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Subcommand)]
pub enum DebugCommand {
    /// Labels and uberblocks, newest txg first; also of a pool that cannot be imported
    Uberblock(Pool),
    /// The zones of a pool, or the directory of one: its blocks, and which of them are alive
    Zone(Zone),
    /// Use of space: live blocks by purpose, dead blocks, and the rest
    Space(Pool),
    /// The objects of the data set, or one of them
    Dnode(Dnodes),
    /// The block pointers of an object (0: the meta dnode), from the root down
    Tree(Object),
    /// The entries of a ZAP or directory
    Zap(Object),
}

#[derive(Args)]
pub struct Pool {
    /// A pool, by name or by device
    pool: String,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Args)]
pub struct Zone {
    /// A pool, by name or by device
    pool: String,
    /// A zone's sequence number
    seq: Option<u64>,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Args)]
pub struct Dnodes {
    /// A pool, by name or by device
    pool: String,
    /// An object's number: that of an inode
    object: Option<u64>,
    /// Of the meta object set
    #[arg(short, long)]
    meta: bool,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Args)]
pub struct Object {
    /// A pool, by name or by device
    pool: String,
    /// An object's number: that of an inode
    object: u64,
    /// Of the meta object set
    #[arg(short, long)]
    meta: bool,
    #[command(flatten)]
    output: OutputFormat,
}

const UBERBLOCKS: Listing = Listing {
    command: "debug uberblock",
    key: "uberblocks",
    columns: &[
        count("ANCHOR", "anchor"),
        count("OFFSET", "offset"),
        count("TXG", "txg"),
        count("OLDEST", "oldest"),
        count("INCARNATION", "incarnation"),
        count("GENERATION", "anchor_generation"),
        text("CLEAN", "clean"),
        text("TIME", "time"),
        text("RECORD", "record"),
        text("DEVICE", "device"),
    ],
};
const ZONES: Listing = Listing {
    command: "debug zone",
    key: "zones",
    columns: &[
        count("SEQ", "seq"),
        text("CLASS", "class"),
        count("DEVICE", "device"),
        count("ZONE", "zone"),
        text("PHASE", "phase"),
        size("CAPACITY", "capacity"),
        size("CLAIMED", "claimed"),
        size("LIVE", "live"),
        count("OPENED", "opened"),
        count("RUNS", "moved_runs"),
    ],
};
const ENTRIES: Listing = Listing {
    command: "debug zone",
    key: "entries",
    columns: &[
        count("OFFSET", "offset"),
        text("BIRTHPLACE", "birthplace"),
        count("PSIZE", "psize"),
        count("BIRTH", "birth"),
        text("STANDING", "standing"),
        text("SIBLINGS", "siblings"),
        text("OWNER", "owner"),
    ],
};
const SPACE: Listing = Listing {
    command: "debug space",
    key: "space",
    columns: &[
        text("WHAT", "what"),
        count("COPIES", "copies"),
        size("STORED", "stored"),
        size("BYTES", "bytes"),
        count("PERCENT", "percent"),
    ],
};
const OBJECTS: Listing = Listing {
    command: "debug dnode",
    key: "objects",
    columns: &[
        count("OBJECT", "object"),
        text("KIND", "kind"),
        size("BLOCKSIZE", "block_size"),
        count("BLOCKS", "blocks"),
        count("LEVELS", "levels"),
        count("SLOTS", "slots"),
        size("USED", "used"),
        count("BIRTH", "birth"),
        count("BONUS", "bonus_bytes"),
    ],
};
const ATTRIBUTES: Listing = Listing {
    command: "debug dnode",
    key: "attributes",
    columns: &[
        text("ATTRIBUTE", "name"),
        text("HOME", "home"),
        count("BYTES", "bytes"),
        text("VALUE", "value"),
    ],
};
const XATTRS: Listing = Listing {
    command: "debug dnode",
    key: "xattrs",
    columns: &[text("XATTR", "name"), text("HOME", "home"), count("BYTES", "bytes")],
};
const POINTERS: Listing = Listing {
    command: "debug tree",
    key: "pointers",
    columns: &[
        count("LEVEL", "level"),
        count("BLOCK", "block"),
        text("POINTER", "pointer"),
        count("LSIZE", "lsize"),
        count("PSIZE", "psize"),
        count("BIRTH", "birth"),
        count("FILL", "fill"),
        text("CHECKSUM", "checksum"),
        text("ERROR", "error"),
    ],
};
const NAMES: Listing = Listing {
    command: "debug zap",
    key: "entries",
    columns: &[
        text("NAME", "name"),
        text("VALUE", "value"),
        count("INTSIZE", "int_size"),
        text("HASH", "hash"),
        count("CD", "cd"),
    ],
};
const DIRECTORY: Listing = Listing {
    command: "debug zap",
    key: "entries",
    columns: &[
        text("NAME", "name"),
        count("OBJECT", "object"),
        count("TYPE", "type"),
        text("HASH", "hash"),
        count("CD", "cd"),
        text("CONFLICT", "conflict"),
    ],
};

impl DebugCommand {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let list = |pool: &str, query: Query, listing: Listing, output: OutputFormat| {
            let rows = rows(ask(&registry, pool, &query)?)?;
            print(&listing.render(&rows, output))
        };
        match self {
            DebugCommand::Uberblock(Pool { pool, output }) => {
                let answer = ask(&registry, pool, &Query::Uberblocks)?;
                print(&uberblocks(&answer, *output)?)
            }
            DebugCommand::Zone(Zone { pool, seq: None, output }) => list(pool, Query::Zones, ZONES, *output),
            DebugCommand::Zone(Zone { pool, seq: Some(seq), output }) => {
                list(pool, Query::Zone { seq: *seq }, ENTRIES, *output)
            }
            DebugCommand::Space(Pool { pool, output }) => list(pool, Query::Space, SPACE, *output),
            DebugCommand::Dnode(Dnodes { pool, object: None, meta, output }) => {
                list(pool, Query::Dnodes { meta: *meta }, OBJECTS, *output)
            }
            DebugCommand::Dnode(Dnodes { pool, object: Some(object), meta, output }) => {
                let answer = ask(&registry, pool, &Query::Dnode { meta: *meta, object: *object })?;
                print(&match output.json {
                    true => format!("{:#}\n", envelope("debug dnode", json!({"object": answer}))),
                    false => dnode(answer, *output)?,
                })
            }
            DebugCommand::Tree(Object { pool, object, meta, output }) => {
                list(pool, Query::Tree { meta: *meta, object: *object }, POINTERS, *output)
            }
            DebugCommand::Zap(Object { pool, object, meta, output }) => {
                let answer = ask(&registry, pool, &Query::Zap { meta: *meta, object: *object })?;
                print(&zap(&answer, *output)?)
            }
        }
    }
}

/// The object, then its system attributes, then user attributes.
fn dnode(mut answer: Value, output: OutputFormat) -> Outcome<String> {
    let mut lists = String::new();
    for listing in [ATTRIBUTES, XATTRS] {
        let list = answer.as_object_mut().and_then(|object| object.remove(listing.key));
        let list = list.map_or(Ok(Vec::new()), rows)?;
        if !list.is_empty() {
            lists.push('\n');
            lists.push_str(&listing.render(&list, output));
        }
    }
    Ok(fields(&answer) + &lists)
}

fn uberblocks(answer: &Value, output: OutputFormat) -> Outcome<String> {
    if output.json {
        return Ok(format!("{:#}\n", envelope(UBERBLOCKS.command, answer.clone())));
    }
    let mut out = String::new();
    for label in rows(answer["labels"].clone())?.iter().filter(|_| !output.no_header) {
        out.push_str(&fields(label));
        out.push('\n');
    }
    out.push_str(&UBERBLOCKS.render(&rows(answer["uberblocks"].clone())?, output));
    Ok(out)
}

fn zap(answer: &Value, output: OutputFormat) -> Outcome<String> {
    if output.json {
        return Ok(format!("{:#}\n", envelope(NAMES.command, answer.clone())));
    }
    let entries = rows(answer["entries"].clone())?;
    let is_directory = entries.iter().any(|entry| entry.get("type").is_some());
    let listing = if is_directory { DIRECTORY } else { NAMES };
    let head = match output.no_header {
        true => String::new(),
        false => format!("{} ZAP, {} entries\n", answer["kind"].as_str().unwrap_or("?"), answer["length"]),
    };
    Ok(head + &listing.render(&entries, output))
}

/// One object, one line per field.
pub fn fields(object: &Value) -> String {
    let all = object.as_object().into_iter().flatten();
    let width = all.clone().map(|(key, _)| key.len()).max().unwrap_or(0);
    let line = |key: &str, value: &Value| {
        let shown = match value {
            Value::Array(items) if items.is_empty() => "none".to_owned(),
            Value::Array(items) => {
                items.iter().map(|item| item.as_str().unwrap_or("?")).collect::<Vec<_>>().join(", ")
            }
            _ => cell(text("", "value"), &json!({"value": value}), true),
        };
        format!("{:>width$}: {shown}\n", key.replace('_', " "))
    };
    all.map(|(key, value)| line(key, value)).collect()
}
