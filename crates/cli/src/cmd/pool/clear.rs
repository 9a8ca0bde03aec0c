//! `terrane pool clear`: empties the error log that `pool status` shows.

use super::super::{ask, print};
use crate::failure::Outcome;
use crate::query::Query;
use crate::registry::Registry;
use crate::table::envelope;
use clap::Args;
use serde_json::{Value, json};

pub const HELP: &str = "\
`terrane pool status` names damage that was found, files that lost changes, and how often each device failed. All of that is
kept in the pool until this command empties it; what is still damaged comes back when it is read again.

When the server of a mount is killed, another one takes over, without the uncommitted changes: at most 5 seconds of them. The
first change of each file that lost some fails, and so does fsync until a change has failed, so that programs that use them
notice. This command ends both.

Log devices that had failed or were missing are tried again.
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
    let count = |key: &str| row[key].as_u64().unwrap_or(0);
    let counted = |key, one: &str, many: &str| match count(key) {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    };
    let cleared: Vec<String> = [
        counted("damage", "finding", "findings"),
        counted("damaged", "damaged block", "damaged blocks"),
        counted("lost_files", "file that lost changes", "files that lost changes"),
        counted("devices", "device's errors", "devices' errors"),
        counted("log_devices", "failure of a log device", "failures of log devices"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let name = row["name"].as_str().unwrap_or("?");
    if cleared.is_empty() {
        return format!("{name}: there was nothing to clear\n");
    }
    format!("{name}: cleared {}\n", cleared.join(", "))
}
