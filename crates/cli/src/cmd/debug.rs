//! `terrane debug`: shows the structures of the format.

use super::{ask, print, print_bytes, print_on, rows};
use crate::failure::{Failure, Outcome};
use crate::hex;
use crate::query::Query;
use crate::registry::Registry;
use crate::table::{Listing, OutputFormat, cell, count, envelope, printable, size, text};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::IsTerminal;

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
    /// A ZAP or directory: its entries, and what its blocks hold
    Zap(Zap),
    /// The block at an address: what it is, and whether its checksum is right
    Block(Block),
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

#[derive(Args)]
pub struct Zap {
    #[command(flatten)]
    zap: Object,
    /// Without the entries
    #[arg(short, long)]
    stats: bool,
    /// The blocks to standard output, holes as zeros
    #[arg(long, conflicts_with = "stats")]
    raw: bool,
    /// The blocks as a hex dump, as xxd prints one
    #[arg(long, conflicts_with = "stats")]
    hex: bool,
}

#[derive(Args)]
pub struct Block {
    /// A pool, by name or by device
    pool: String,
    /// SEQ:OFFSET (1:0x55740), where a block was born, or DEVICE:ZONE:OFFSET (0:2:0x7000), where it lies. As messages spell
    /// it, "zone 1 granule 21876", is understood too.
    address: String,
    /// The stored bytes to standard output, also if they are damaged
    #[arg(long, conflicts_with = "decompress")]
    raw: bool,
    /// The decompressed bytes to standard output
    #[arg(long)]
    decompress: bool,
    /// The bytes as a hex dump, as xxd prints one; without --decompress the stored ones
    #[arg(long)]
    hex: bool,
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
const HISTOGRAMS: Listing = Listing {
    command: "debug zap",
    key: "histograms",
    columns: &[text("HISTOGRAM", "histogram"), count("VALUE", "value"), count("COUNT", "count")],
};
const COPIES: Listing = Listing {
    command: "debug block",
    key: "copies",
    columns: &[
        text("COPY", "address"),
        count("ZONE", "zone"),
        text("CLASS", "class"),
        text("PLACE", "place"),
        text("CRC", "crc"),
        text("STATE", "state"),
        text("ERROR", "error"),
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
    /// Returns false if damage was found.
    pub fn run(&self) -> Outcome<bool> {
        let registry = Registry::of_this_user()?;
        let list = |pool: &str, query: Query, listing: Listing, output: OutputFormat| {
            let rows = rows(ask(&registry, pool, &query)?)?;
            print(&listing.render(&rows, output))
        };
        match self {
            DebugCommand::Uberblock(Pool { pool, output }) => {
                let answer = ask(&registry, pool, &Query::Uberblocks)?;
                print(&uberblocks(&answer, *output)?)?;
            }
            DebugCommand::Zone(Zone { pool, seq: None, output }) => list(pool, Query::Zones, ZONES, *output)?,
            DebugCommand::Zone(Zone { pool, seq: Some(seq), output }) => {
                list(pool, Query::Zone { seq: *seq }, ENTRIES, *output)?;
            }
            DebugCommand::Space(Pool { pool, output }) => list(pool, Query::Space, SPACE, *output)?,
            DebugCommand::Dnode(Dnodes { pool, object: None, meta, output }) => {
                list(pool, Query::Dnodes { meta: *meta }, OBJECTS, *output)?;
            }
            DebugCommand::Dnode(Dnodes { pool, object: Some(object), meta, output }) => {
                let answer = ask(&registry, pool, &Query::Dnode { meta: *meta, object: *object })?;
                print(&match output.json {
                    true => format!("{:#}\n", envelope("debug dnode", json!({"object": answer}))),
                    false => dnode(answer, *output)?,
                })?;
            }
            DebugCommand::Tree(Object { pool, object, meta, output }) => {
                list(pool, Query::Tree { meta: *meta, object: *object }, POINTERS, *output)?;
            }
            DebugCommand::Zap(zap) => zap.run(&registry)?,
            DebugCommand::Block(block) => return block.run(&registry),
        }
        Ok(true)
    }
}

/// A block of a ZAP.
struct ZapBlock<'a> {
    number: u64,
    /// In the object, in bytes.
    offset: u64,
    content: &'a [u8],
}

impl Zap {
    fn run(&self, registry: &Registry) -> Outcome {
        let Object { pool, object, meta, output } = &self.zap;
        let (meta, object, output) = (*meta, *object, *output);
        let with_blocks = self.raw || self.hex;
        if with_blocks && !output.json {
            refuse_terminal(self.hex)?;
            return self.each_block(registry, &mut |block| match self.hex {
                true => {
                    print_on(&format!("block {}\n{}", block.number, hex::dump(block.content, block.offset)))
                }
                false => print_bytes(block.content),
            });
        }
        let query = match self.stats {
            true => Query::ZapStatistics { meta, object },
            false => Query::Zap { meta, object },
        };
        let mut answer = ask(registry, pool, &query)?;
        if with_blocks {
            let mut content = Vec::new();
            self.each_block(registry, &mut |block| {
                content.push(Value::from(hex::encode(block.content)));
                Ok(true)
            })?;
            answer["content"] = content.into();
        }
        print(&zap(answer, output)?)
    }

    /// Passes the blocks to `each`, until it returns false.
    fn each_block(
        &self,
        registry: &Registry,
        each: &mut dyn FnMut(&ZapBlock<'_>) -> Outcome<bool>,
    ) -> Outcome {
        let Object { pool, object, meta, .. } = &self.zap;
        let mut next = 0;
        loop {
            let answer =
                ask(registry, pool, &Query::ZapBlocks { meta: *meta, object: *object, first: next })?;
            let number = |key: &str| answer[key].as_u64().ok_or_else(|| other_version(key));
            let (block_bytes, blocks) = (number("block_bytes")?, number("blocks")?);
            let contents = rows(answer["content"].clone())?;
            for text in &contents {
                let content = text.as_str().and_then(hex::decode).ok_or_else(|| other_version("content"))?;
                let offset = next.saturating_mul(block_bytes);
                if !each(&ZapBlock { number: next, offset, content: &content })? {
                    return Ok(());
                }
                next += 1;
            }
            if next >= blocks || contents.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Block {
    /// Returns false if the block is damaged.
    fn run(&self, registry: &Registry) -> Outcome<bool> {
        let with_bytes = self.raw || self.decompress || self.hex;
        if with_bytes && !self.output.json {
            refuse_terminal(self.hex)?;
        }
        let query = Query::Block {
            address: self.address.clone(),
            stored: with_bytes && !self.decompress,
            content: self.decompress,
        };
        let answer = ask(registry, &self.pool, &query)?;
        let is_whole = answer["damaged"] == false;
        for finding in rows(answer["findings"].clone())? {
            eprintln!("terrane: damaged: {}", printable(finding.as_str().unwrap_or("?")));
        }
        if self.output.json {
            print(&format!("{:#}\n", envelope("debug block", json!({"blocks": [answer]}))))?;
            return Ok(is_whole);
        }
        if !with_bytes {
            print(&block(&answer, self.output)?)?;
            return Ok(is_whole);
        }
        let bytes = answer[if self.decompress { "content" } else { "stored" }].as_str().and_then(hex::decode);
        let Some(bytes) = bytes else {
            let reason = answer["content_error"].as_str().or_else(|| answer["copies"][0]["error"].as_str());
            let found = reason.or_else(|| answer["what"].as_str()).unwrap_or("nothing");
            let expected = "a block that can be read";
            return Err(Failure::refused(
                format_args!("address {}", self.address),
                expected,
                found,
                "without --raw, --decompress and --hex its fields are shown",
            ));
        };
        match self.hex {
            true => print(&hex::dump(&bytes, 0))?,
            false => print_bytes(&bytes).map(drop)?,
        }
        Ok(is_whole)
    }
}

fn other_version(key: &str) -> Failure {
    Failure(format!("expected {key:?} in the answer, found none; is the daemon of another version?"))
}

/// Raw bytes would change the state of a terminal.
fn refuse_terminal(is_text: bool) -> Outcome {
    match std::io::stdout().is_terminal() && !is_text {
        true => Err(Failure::refused(
            "standard output",
            "a file or a pipe for raw bytes",
            "a terminal",
            "add --hex, or redirect it",
        )),
        false => Ok(()),
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

fn zap(mut answer: Value, output: OutputFormat) -> Outcome<String> {
    if output.json {
        return Ok(format!("{:#}\n", envelope(NAMES.command, answer)));
    }
    let entries = answer.as_object_mut().and_then(|object| object.remove("entries"));
    let mut out = String::new();
    if !output.no_header || entries.is_none() {
        out = format!("{} ZAP, {} entries\n", answer["kind"].as_str().unwrap_or("?"), answer["length"]);
        out.push_str(&lines(&zap_lines(&answer)));
        if let Some(histograms) = answer["leaves"]["histograms"].as_array() {
            out.push('\n');
            out.push_str(&HISTOGRAMS.render(histograms, output));
        }
    }
    let Some(entries) = entries else { return Ok(out) };
    let entries = rows(entries)?;
    let is_directory = entries.iter().any(|entry| entry.get("type").is_some());
    let listing = if is_directory { DIRECTORY } else { NAMES };
    if !out.is_empty() {
        out.push('\n');
    }
    Ok(out + &listing.render(&entries, output))
}

/// What the blocks of a ZAP hold.
fn zap_lines(answer: &Value) -> Vec<(String, String)> {
    let flags: Vec<&str> =
        answer["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let flags = if flags.is_empty() { "none".to_owned() } else { flags.join(" ") };
    let word = |key: &str| answer[key].as_str().unwrap_or("?");
    let mut all = vec![
        (
            "blocks",
            format!(
                "{} of {} bytes; {} bytes stored in {}, {} embedded",
                answer["blocks"],
                answer["block_bytes"],
                answer["stored_bytes"],
                answer["stored_blocks"],
                answer["embedded_blocks"]
            ),
        ),
        ("salt", word("salt").to_owned()),
        ("keys", format!("flags {flags}, normalization {}, {}", answer["normalization"], word("byte_order"))),
    ];
    let slots = &answer["slots"];
    if slots.is_object() {
        let (used, free, count) = (&slots["used"], &slots["free"], &slots["slots"]);
        let (bytes, words) = (&slots["slot_bytes"], &slots["value_words"]);
        let (longest, most) = (&slots["longest_name"], &slots["longest_name_max"]);
        let sizes = format!("{bytes} bytes each, words {words}, longest name {longest} of {most}");
        all.push(("slots", format!("{used} used and {free} free of {count}; {sizes}")));
    }
    let table = &answer["table"];
    if table.is_object() {
        let place = match table["blocks"].as_u64() {
            Some(0) => "in block 0".to_owned(),
            _ => format!("in {} blocks from {}", table["blocks"], table["block"]),
        };
        let growth = match table["growing"].as_bool() {
            Some(true) => {
                format!("the next begins at {}, {} copied", table["next_block"], table["blocks_copied"])
            }
            _ => "not growing".to_owned(),
        };
        let unused = format!("first unused block {}", table["free_block"]);
        all.push((
            "table",
            format!("2^{} = {} pointers {place}; {growth}; {unused}", table["shift"], table["pointers"]),
        ));
    }
    let leaves = &answer["leaves"];
    if leaves.is_object() {
        let (count, entries) = (&leaves["leaves"], &leaves["entries"]);
        let header = format!("header {} and {}", leaves["header_leaves"], leaves["header_entries"]);
        let chunks = format!("{} of {} chunks free", leaves["chunks_free"], leaves["chunks"]);
        let stored = &answer["leaf_stored_bytes"];
        all.push((
            "leaves",
            format!("{count} with {entries} entries ({header}); {chunks}; {stored} bytes stored"),
        ));
    }
    let damage = answer["damage"].as_array().into_iter().flatten();
    all.extend(damage.map(|damage| ("damage", printable(damage.as_str().unwrap_or("?")))));
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Fields of a block in the order in which they are shown.
const BLOCK_FIELDS: [&str; 24] = [
    "address",
    "what",
    "owner",
    "kind",
    "level",
    "fill",
    "standing",
    "birthplace",
    "birth",
    "logical_birth",
    "zone",
    "class",
    "device",
    "place",
    "offset",
    "stored_bytes",
    "logical_bytes",
    "compression",
    "crc",
    "checksum_kind",
    "checksum",
    "no_pointer",
    "content_error",
    "damaged",
];

/// The block's fields, those of the structure in it, damage, then its copies.
fn block(answer: &Value, output: OutputFormat) -> Outcome<String> {
    let shown = |object: &Value, key: &str| cell(text("", "value"), &json!({"value": object[key]}), true);
    let known = BLOCK_FIELDS.into_iter().filter(|key| !answer[*key].is_null());
    let mut all: Vec<_> = known.map(|key| (key.replace('_', " "), shown(answer, key))).collect();
    let structure = answer["fields"].as_object().into_iter().flatten();
    all.extend(
        structure.map(|(key, _)| (format!("its {}", key.replace('_', " ")), shown(&answer["fields"], key))),
    );
    for finding in answer["findings"].as_array().into_iter().flatten() {
        all.push(("damage".to_owned(), printable(finding.as_str().unwrap_or("?"))));
    }
    let copies = answer["copies"].as_array().map_or(&[][..], Vec::as_slice);
    let copies =
        if copies.is_empty() { String::new() } else { format!("\n{}", COPIES.render(copies, output)) };
    Ok(lines(&all) + &copies)
}

/// Keys and values, aligned at the colon.
fn lines(all: &[(String, String)]) -> String {
    let width = all.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    all.iter().map(|(key, value)| format!("{key:>width$}: {value}\n")).collect()
}

/// One object, one line per field.
pub fn fields(object: &Value) -> String {
    let line = |(key, value): (&String, &Value)| {
        let shown = match value {
            Value::Array(items) if items.is_empty() => "none".to_owned(),
            Value::Array(items) => {
                items.iter().map(|item| item.as_str().unwrap_or("?")).collect::<Vec<_>>().join(", ")
            }
            _ => cell(text("", "value"), &json!({"value": value}), true),
        };
        (key.replace('_', " "), shown)
    };
    lines(&object.as_object().into_iter().flatten().map(line).collect::<Vec<_>>())
}
