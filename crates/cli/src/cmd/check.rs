//! `terrane check`: verifies a whole pool.

use super::{ask, print, rebuild_index};
use crate::failure::{Failure, Outcome};
use crate::query::Query;
use crate::registry::Registry;
use crate::table::{envelope, printable};
use clap::Args;
use serde_json::{Value, json};

pub const HELP: &str = "\
A mounted pool is committed first; then its committed state is checked while writers continue. Nothing is changed without
--rebuild-index; but a mounted pool reuses suspect zones that prove sound, and keeps the findings for `terrane pool status`
until `terrane pool clear`. A finding is one line: the place, what was expected, what was found.

Exit codes:
  0             nothing found
  1             something was found, or the check could not be made or was cut short; standard error says why
  2             the command line is wrong
";

/// Walk everything reachable and verify it: checksums, space, zone directories, link counts, names. Exit code 1 and a list of
/// findings if anything is off.
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Check {
    /// Pools, by name or by device
    #[arg(required = true, value_name = "NAME|DEVICE")]
    pools: Vec<String>,
    /// First rebuild the zone tables from headers and directories of zones, and the table of shared blocks from all pointers, if it does
    /// not agree with them: for a pool that cannot be imported because such tables are damaged. It must not be mounted; all of it is
    /// read twice
    #[arg(long)]
    rebuild_index: bool,
    /// JSON
    #[arg(short, long)]
    json: bool,
}

impl Check {
    /// True: nothing was found.
    pub fn run(&self) -> Outcome<bool> {
        let registry = Registry::of_this_user()?;
        let mut reports = Vec::new();
        for pool in &self.pools {
            if self.rebuild_index {
                rebuild_index(&registry, pool)?;
            }
            reports.push((pool, ask(&registry, pool, &Query::Check)?));
        }
        let clean = reports.iter().all(|(_, report)| count(report) == 0);
        let cut_short =
            reports.iter().find(|(_, report)| !is_complete(report)).map(|(name, _)| name.to_string());
        let outcome = match cut_short {
            None => Ok(clean),
            Some(name) => Err(Failure(format!(
                "{name}: check incomplete: writers needed the space of zones that it held; unmount the pool, or try again later"
            ))),
        };
        if self.json {
            let named = |(name, report): (&String, Value)| {
                let mut row = json!({"name": name});
                if let (Some(row), Value::Object(report)) = (row.as_object_mut(), report) {
                    row.extend(report);
                }
                row
            };
            let reports: Vec<Value> = reports.into_iter().map(named).collect();
            print(&format!("{:#}\n", envelope("check", json!({"pools": reports}))))?;
            return outcome;
        }
        for (pool, report) in reports.iter().filter(|(_, report)| is_complete(report)) {
            print(&text(pool, report))?;
        }
        outcome
    }
}

/// False: it was cut short, and nothing is known. Servers of an older version fail instead.
fn is_complete(report: &Value) -> bool {
    report["complete"].as_bool().unwrap_or(true)
}

/// The number of findings, including those that were counted but not kept.
fn count(report: &Value) -> u64 {
    report["findings_count"].as_u64().unwrap_or(u64::MAX)
}

fn text(pool: &str, report: &Value) -> String {
    let (mut out, pool) = (String::new(), printable(pool));
    let findings = report["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    for finding in findings {
        let path = finding["path"].as_str().map(|path| format!("{path}: ")).unwrap_or_default();
        let text = finding["text"].as_str().unwrap_or("?");
        out.push_str(&format!("{pool}: {}{text}\n", printable(&path)));
    }
    let seen: Vec<String> = report["seen"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(what, count)| format!("{count} {}", what.replace('_', " ")))
        .collect();
    let verdict = match count(report) {
        0 => "nothing found".to_owned(),
        1 => "1 finding".to_owned(),
        all if all > findings.len() as u64 => format!("{all} findings, the first {} shown", findings.len()),
        all => format!("{all} findings"),
    };
    match report["explained_zones"].as_u64() {
        None | Some(0) => {}
        Some(zones) => out.push_str(&format!(
            "{pool}: {zones} suspect zones are sound: a mounted pool reuses them at once, any other when it is mounted\n"
        )),
    }
    out.push_str(&format!("{pool}: {verdict} ({})\n", seen.join(", ")));
    out
}
