//! The questions, as they stand on the socket: one JSON object each, whose `ask` says which.
//!
//! A command and a daemon may be of different versions for a moment, after an upgrade. So words and keys stay what they are, and a
//! question that is not understood is refused by name.

use crate::json;
use crate::newcomer::Kind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A property and what it shall be.
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

/// What can be asked. Everything but `Set`, `Inherit`, `Upgrade`, `Add`, `Remove`, `Collect`, `Rewrite`, `RewriteCancel` and `Clear` only
/// reads.
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
    /// The named properties back to their defaults.
    Inherit {
        names: Vec<String>,
    },
    /// One more device.
    Add {
        #[serde(with = "json::path")]
        path: PathBuf,
        kind: Kind,
        /// Where the device has none of its own, in bytes; `None`: as fits it.
        zone_size: Option<u64>,
        /// What is there may go.
        force: bool,
    },
    /// One device less: by path, number or id.
    Remove {
        device: String,
    },
    /// What the devices have done.
    Iostat,
    Check,
    Uberblocks,
    /// All features that new pools have.
    Upgrade,
    /// Garbage away, down to a share of what full zones hold.
    Collect {
        target_percent: u8,
        wait: bool,
    },
    /// Files stored in another form, by the server of a mount.
    Rewrite {
        object: u64,
        recursive: bool,
        compression: Option<String>,
        record_size: Option<u32>,
    },
    /// How far that is.
    #[serde(rename = "rewrite status")]
    RewriteStatus,
    #[serde(rename = "rewrite cancel")]
    RewriteCancel,
    /// Empties the error log.
    Clear,
    Zones,
    /// Every zone in its place.
    #[serde(rename = "zone map")]
    ZoneMap,
    /// Where the bytes went.
    Space,
    /// How an inode is stored.
    Stat {
        object: u64,
    },
    /// How what a path leads to is stored; from the root of the data set.
    #[serde(rename = "stat path")]
    StatPath {
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
}

impl Query {
    /// Whether it needs a pool that can be written.
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Query::Set { .. }
                | Query::Inherit { .. }
                | Query::Upgrade
                | Query::Add { .. }
                | Query::Remove { .. }
                | Query::Collect { .. }
                | Query::Rewrite { .. }
                | Query::RewriteCancel
                | Query::Clear
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// As a daemon hears a line.
    fn heard(line: &str) -> Option<Query> {
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
            Query::Add {
                path: "/dev/\u{e4}".into(),
                kind: Kind::Special,
                zone_size: Some(1 << 20),
                force: false,
            },
            Query::Add { path: "/x".into(), kind: Kind::Cache, zone_size: None, force: true },
            Query::Remove { device: "/dev/sdb".into() },
            Query::Iostat,
            Query::Check,
            Query::Uberblocks,
            Query::Upgrade,
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
            Query::Zone { seq: u64::MAX },
            Query::Dnodes { meta: true },
            Query::Dnode { meta: true, object: 3 },
            Query::Tree { meta: false, object: 0 },
            Query::Zap { meta: false, object: 1 << 60 },
        ] {
            let line = serde_json::to_value(&query).unwrap().to_string();
            assert_eq!(heard(&line), Some(query), "{line}");
        }
    }

    #[test]
    fn what_nobody_asks_is_not_understood() {
        for raw in ["1", "{}", r#"{"ask":"fly"}"#, r#"{"ask":"zone"}"#, r#"{"ask":"set","pairs":[["a"]]}"#] {
            assert_eq!(heard(raw), None, "{raw}");
        }
    }

    #[test]
    fn words_and_keys_are_those_of_the_first_version() {
        let path = Query::StatPath { path: b"/\xff".to_vec() };
        let set = Query::Set { settings: vec![Setting { name: "a".into(), value: "b".into() }] };
        let add = Query::Add { path: "/x".into(), kind: Kind::Special, zone_size: None, force: true };
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
