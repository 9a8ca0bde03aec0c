//! `terrane pool clear`: what `pool status` told was read.

use super::super::{ask, print};
use crate::failure::Outcome;
use crate::query::Query;
use crate::registry::Registry;
use crate::table::envelope;
use clap::Args;
use serde_json::{Value, json};

pub const HELP: &str = "\
When the server of a mount is killed, another one goes on, without the changes that were in no commit yet: at most 5 seconds of them. Files that
lost some are listed by `terrane pool status -v`. The first change of each is refused, and fsync until a change was refused, so that programs
that go on with them notice. This command ends both for all of them.
";

#[derive(Args)]
pub struct Clear {
    /// A pool, by name or by device
    pool: String,
    /// JSON
    #[arg(short, long)]
    json: bool,
}

impl Clear {
    pub fn run(&self) -> Outcome {
        let row = ask(&Registry::of_this_user()?, &self.pool, &Query::Clear)?;
        if self.json {
            return print(&format!("{:#}\n", envelope("pool clear", json!({"pools": [row]}))));
        }
        print(&describe(&row))
    }
}

fn describe(row: &Value) -> String {
    let name = row["name"].as_str().unwrap_or("?");
    match row["lost_files"].as_u64().unwrap_or(0) {
        0 => format!("{name}: no file is listed that lost changes\n"),
        1 => format!("{name}: 1 file that lost changes is not listed any more\n"),
        files => format!("{name}: {files} files that lost changes are not listed any more\n"),
    }
}
