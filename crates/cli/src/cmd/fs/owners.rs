//! `terrane fs userspace`, `groupspace` and `projectspace`: what users, groups and projects have.

use super::super::{ask, print, rows};
use crate::dataset_name::DatasetName;
use crate::failure::Outcome;
use crate::owners::names_of;
use crate::query::{Query, word_of};
use crate::registry::Registry;
use crate::table::{Column, Listing, OutputFormat, count, size, text};
use clap::Args;
use serde_json::Value;
use terrane_object::OwnerKind;

pub const HELP: &str = "\
Space is counted as it is stored: after compression, with all copies, as of the last commit. Directories, symbolic links and extended
attributes count too, and so does a file that is open and has no name any more. Limits are set by `terrane fs set userquota@NAME=10G DATASET`,
and likewise groupquota@, projectquota@, userobjquota@, groupobjquota@ and projectobjquota@; `none` removes one.

A snapshot shows what was used and which limits were set when it was taken.
";

const COLUMNS: &[Column] = &[
    text("NAME", "name"),
    size("USED", "used"),
    size("QUOTA", "quota"),
    count("OBJECTS", "objects"),
    count("OBJQUOTA", "objquota"),
];

const fn listing(command: &'static str) -> Listing {
    Listing { command, key: "owners", columns: COLUMNS }
}

#[derive(Args)]
pub struct OwnerList {
    /// A data set or snapshot; a pool, by name or by device, is its root data set
    #[arg(value_name = "DATASET|SNAPSHOT")]
    dataset: String,
    /// Numbers instead of names
    #[arg(short, long)]
    numeric: bool,
    #[command(flatten)]
    output: OutputFormat,
}

impl OwnerList {
    pub fn run(&self, kind: OwnerKind) -> Outcome {
        let registry = Registry::of_this_user()?;
        let DatasetName { pool, path } = DatasetName::parse_readable(&registry, &self.dataset)?;
        let query = Query::Owners { path, of: word_of(kind).to_owned() };
        let mut rows = rows(ask(&registry, &pool, &query)?)?;
        let id_of = |row: &Value| row["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let ids: Vec<u32> = rows.iter().filter_map(id_of).collect();
        let names = if self.numeric { Default::default() } else { names_of(kind, &ids) };
        for row in &mut rows {
            let id = id_of(row).unwrap_or_default();
            row["name"] = names.get(&id).cloned().unwrap_or_else(|| id.to_string()).into();
        }
        let listing = match kind {
            OwnerKind::User => listing("fs userspace"),
            OwnerKind::Group => listing("fs groupspace"),
            OwnerKind::Project => listing("fs projectspace"),
        };
        print(&listing.render(&rows, self.output))
    }
}
