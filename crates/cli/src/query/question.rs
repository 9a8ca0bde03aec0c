//! The questions, as sent over the socket: one JSON object each, whose `ask` says which.
//!
//! After an upgrade a command and a daemon may be of different versions for a moment. So words and keys never
//! change, and an unknown question is refused by name.

use super::snapshots::SnapshotAction;
use crate::device_probe::DevicePurpose;
use crate::json;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A property and its new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, String)", into = "(String, String)")]
pub struct Setting {
    pub name: String,
    pub value: String,
}

impl From<(String, String)> for Setting {
    fn from((name, value): (String, String)) -> Self {
        Setting { name, value }
    }
}

impl From<Setting> for (String, String) {
    fn from(Setting { name, value }: Setting) -> Self {
        (name, value)
    }
}

/// The data sets and snapshots that a question is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Paths of data sets. The path of the root data set is empty. No paths: all data sets.
    pub paths: Vec<String>,
    /// Include all data sets below.
    pub recursive: bool,
    /// `filesystem`, `snapshot`, `bookmark`, `all`. None: `filesystem`.
    pub kinds: Vec<String>,
}

/// All questions. Those that [`Query::is_change`] lists change something, the others only read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Query {
    Status,
    Metrics,
    /// The named properties; none: all.
    Get {
        names: Vec<String>,
    },
    Set {
        #[serde(rename = "pairs")]
        settings: Vec<Setting>,
    },
    /// Resets the named properties to their defaults.
    Inherit {
        names: Vec<String>,
    },
    /// What users, groups or projects have in a data set.
    Owners {
        /// The data set, or a snapshot: `home@monday`. Empty: the root. Older daemons refuse a snapshot as an unknown data set.
        path: String,
        /// `user`, `group` or `project`
        of: String,
    },
    /// The named properties of data sets; none: all.
    #[serde(rename = "get of")]
    GetOf {
        of: Selection,
        names: Vec<String>,
    },
    #[serde(rename = "set of")]
    SetOf {
        paths: Vec<String>,
        #[serde(rename = "pairs")]
        settings: Vec<Setting>,
    },
    /// Removes the named properties, so that data sets inherit them. `received`: received values stay, and apply again.
    #[serde(rename = "inherit of")]
    InheritOf {
        of: Selection,
        names: Vec<String>,
        received: bool,
    },
    /// Data sets and snapshots, with the named properties.
    #[serde(rename = "list data sets")]
    ListDatasets {
        of: Selection,
        names: Vec<String>,
    },
    #[serde(rename = "create data set")]
    CreateDataset {
        path: String,
        /// Also create the missing data sets above it.
        parents: bool,
        #[serde(rename = "pairs")]
        settings: Vec<Setting>,
    },
    #[serde(rename = "destroy data set")]
    DestroyDataset {
        path: String,
    },
    /// Destroys a data set. A question of its own: an older daemon would not see the key for a dry run.
    #[serde(rename = "destroy tree")]
    DestroyTree {
        path: String,
        /// Include its snapshots, and all data sets below.
        recursive: bool,
        /// Only report what would be destroyed.
        dry_run: bool,
    },
    Snapshots {
        action: SnapshotAction,
    },
    #[serde(rename = "rename data set")]
    RenameDataset {
        path: String,
        to: String,
    },
    /// Adds a device.
    Add {
        #[serde(with = "json::path")]
        path: PathBuf,
        kind: DevicePurpose,
        /// In bytes, for a device without zones of its own; `None`: by its size.
        zone_size: Option<u64>,
        /// Existing content may be overwritten.
        force: bool,
    },
    /// Removes a device: by path, number or id.
    Remove {
        device: String,
    },
    /// I/O counters of the devices.
    Iostat,
    Check,
    Uberblocks,
    /// Enables all features that new pools have.
    Upgrade,
    /// The features and their states.
    Features {
        enable: Vec<String>,
        disable: Vec<String>,
        /// Walks over the pool to count the uses.
        count: bool,
    },
    /// Runs GC down to a share of garbage in full zones.
    Collect {
        target_percent: u8,
        wait: bool,
    },
    /// Rewrites files in another form; done by the server of a mount.
    Rewrite {
        object: u64,
        recursive: bool,
        compression: Option<String>,
        record_size: Option<u32>,
    },
    /// The progress of a rewrite.
    #[serde(rename = "rewrite status")]
    RewriteStatus,
    #[serde(rename = "rewrite cancel")]
    RewriteCancel,
    /// Empties the error log.
    Clear,
    Zones,
    /// Every zone at its position.
    #[serde(rename = "zone map")]
    ZoneMap,
    /// The use of space.
    Space,
    /// How an inode is stored.
    Stat {
        object: u64,
    },
    /// How the file at a path from the root of the dataset is stored.
    #[serde(rename = "stat path")]
    StatPath {
        path: Vec<u8>,
    },
    /// Why the blocks of an inode lie where they lie. `name`: its last name on the command line.
    Explain {
        object: u64,
        name: Vec<u8>,
    },
    /// The same of the file at a path from the root of the dataset.
    #[serde(rename = "explain path")]
    ExplainPath {
        path: Vec<u8>,
    },
    Zone {
        seq: u64,
    },
    Dnodes {
        meta: bool,
    },
    Dnode {
        meta: bool,
        object: u64,
    },
    Tree {
        meta: bool,
        object: u64,
    },
    Zap {
        meta: bool,
        object: u64,
    },
    /// A ZAP without its entries.
    #[serde(rename = "zap statistics")]
    ZapStatistics {
        meta: bool,
        object: u64,
    },
    /// Blocks of a ZAP, from this one on.
    #[serde(rename = "zap blocks")]
    ZapBlocks {
        meta: bool,
        object: u64,
        first: u64,
    },
    /// The block at an address, as commands spell it.
    Block {
        address: String,
        /// With its stored bytes.
        stored: bool,
        /// With its decoded bytes.
        content: bool,
    },
}

impl Query {
    /// Whether it needs a writable pool.
    pub fn is_change(&self) -> bool {
        if let Query::Features { enable, disable, count } = self {
            return *count || !enable.is_empty() || !disable.is_empty();
        }
        if let Query::Snapshots { action } = self {
            return action.is_change();
        }
        if let Query::DestroyTree { dry_run, .. } = self {
            return !dry_run;
        }
        matches!(
            self,
            Query::Set { .. }
                | Query::Inherit { .. }
                | Query::SetOf { .. }
                | Query::InheritOf { .. }
                | Query::CreateDataset { .. }
                | Query::DestroyDataset { .. }
                | Query::RenameDataset { .. }
                | Query::Upgrade
                | Query::Add { .. }
                | Query::Remove { .. }
                | Query::Collect { .. }
                | Query::Rewrite { .. }
                | Query::RewriteCancel
                | Query::Clear
        )
    }

    /// Whether it may change which data sets are mounted at boot, and where.
    pub(super) fn changes_boot_mounts(&self) -> bool {
        let decides = |name: &str| ["mountpoint", "canmount"].contains(&name);
        match self {
            Query::Set { settings } | Query::SetOf { settings, .. } => {
                settings.iter().any(|setting| decides(&setting.name))
            }
            Query::Inherit { names } | Query::InheritOf { names, .. } => {
                names.iter().any(|name| decides(name))
            }
            Query::CreateDataset { .. }
            | Query::DestroyDataset { .. }
            | Query::RenameDataset { .. }
            | Query::Add { .. }
            | Query::Remove { .. } => true,
            Query::DestroyTree { dry_run, .. } => !dry_run,
            Query::Snapshots { action } => matches!(action, SnapshotAction::Clone { .. }),
            _ => false,
        }
    }

    /// Whether it changes the tree of data sets and snapshots, or checks whether it could.
    pub(super) fn changes_tree(&self) -> bool {
        match self {
            Query::CreateDataset { .. }
            | Query::DestroyDataset { .. }
            | Query::DestroyTree { .. }
            | Query::RenameDataset { .. } => true,
            Query::Snapshots { action } => action.is_change(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Parses a line as a daemon does.
    fn parsed(line: &str) -> Option<Query> {
        Query::deserialize(&serde_json::from_str::<Value>(line).unwrap()).ok()
    }

    #[test]
    fn questions_survive_the_socket() {
        for query in [
            Query::Status,
            Query::Metrics,
            Query::Get { names: vec![] },
            Query::Get { names: vec!["atime".into(), "x\n".into()] },
            Query::Set { settings: vec![Setting { name: "a".into(), value: "b=c".into() }] },
            Query::Inherit { names: vec!["atime".into()] },
            Query::Owners { path: "a/b".into(), of: "user".into() },
            Query::GetOf { of: Selection::default(), names: vec!["a:b".into()] },
            Query::SetOf { paths: vec!["home".into()], settings: vec![] },
            Query::InheritOf { of: Selection::default(), names: vec![], received: true },
            Query::ListDatasets {
                of: Selection { paths: vec!["a/b".into()], recursive: true, kinds: vec!["snapshot".into()] },
                names: vec!["used".into()],
            },
            Query::CreateDataset { path: "a".into(), parents: true, settings: vec![] },
            Query::DestroyDataset { path: "a/\u{e4}".into() },
            Query::DestroyTree { path: "a".into(), recursive: true, dry_run: true },
            Query::RenameDataset { path: "a".into(), to: "b".into() },
            Query::Add {
                path: "/dev/\u{e4}".into(),
                kind: DevicePurpose::Special,
                zone_size: Some(1 << 20),
                force: false,
            },
            Query::Add { path: "/x".into(), kind: DevicePurpose::Cache, zone_size: None, force: true },
            Query::Remove { device: "/dev/sdb".into() },
            Query::Iostat,
            Query::Check,
            Query::Uberblocks,
            Query::Upgrade,
            Query::Features { enable: vec!["tinyzap".into()], disable: vec![], count: true },
            Query::Collect { target_percent: 7, wait: true },
            Query::Rewrite {
                object: 7,
                recursive: true,
                compression: Some("zstd-19".into()),
                record_size: None,
            },
            Query::Rewrite { object: 8, recursive: false, compression: None, record_size: Some(1 << 20) },
            Query::RewriteStatus,
            Query::RewriteCancel,
            Query::Zones,
            Query::ZoneMap,
            Query::Space,
            Query::Stat { object: 7 },
            Query::StatPath { path: b"/a\xff\n".to_vec() },
            Query::Explain { object: 7, name: b"a\xff".to_vec() },
            Query::ExplainPath { path: b"/a\xff\n".to_vec() },
            Query::Zone { seq: u64::MAX },
            Query::Dnodes { meta: true },
            Query::Dnode { meta: true, object: 3 },
            Query::Tree { meta: false, object: 0 },
            Query::Zap { meta: false, object: 1 << 60 },
            Query::ZapStatistics { meta: true, object: 1 },
            Query::ZapBlocks { meta: false, object: 7, first: 64 },
            Query::Block { address: "1:0x55740".into(), stored: true, content: false },
        ] {
            let line = serde_json::to_value(&query).unwrap().to_string();
            assert_eq!(parsed(&line), Some(query), "{line}");
        }
    }

    #[test]
    fn unknown_queries_are_refused() {
        for raw in ["1", "{}", r#"{"ask":"fly"}"#, r#"{"ask":"zone"}"#, r#"{"ask":"set","pairs":[["a"]]}"#] {
            assert_eq!(parsed(raw), None, "{raw}");
        }
    }

    #[test]
    fn words_and_keys_are_those_of_the_first_version() {
        let path = Query::StatPath { path: b"/\xff".to_vec() };
        let set = Query::Set { settings: vec![Setting { name: "a".into(), value: "b".into() }] };
        let add =
            Query::Add { path: "/x".into(), kind: DevicePurpose::Special, zone_size: None, force: true };
        for (query, line) in [
            (Query::Status, r#"{"ask":"status"}"#),
            (Query::ZoneMap, r#"{"ask":"zone map"}"#),
            (Query::RewriteCancel, r#"{"ask":"rewrite cancel"}"#),
            (path, r#"{"ask":"stat path","path":[47,255]}"#),
            (set, r#"{"ask":"set","pairs":[["a","b"]]}"#),
            (add, r#"{"ask":"add","force":true,"kind":"special","path":[47,120],"zone_size":null}"#),
        ] {
            assert_eq!(serde_json::to_value(&query).unwrap().to_string(), line);
        }
    }
}
