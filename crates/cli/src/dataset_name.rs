//! Names of data sets on the command line: `tank`, `tank/home/ann`.
//!
//! The first part is a pool, by name or by the path of its device. So a word that is a known pool, or leads to a
//! device, means that pool's root data set.

use crate::failure::{Failure, Outcome};
use crate::registry::{Registry, is_name};
use std::path::Path;

/// The pool that a word names, and the path of the data set in it. The path of the root data set is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetName {
    pub pool: String,
    pub path: String,
}

impl DatasetName {
    /// Parses a word. Does not check whether the data set exists.
    pub fn parse(registry: &Registry, word: &str) -> Outcome<DatasetName> {
        let known = registry.pools()?;
        let whole = || DatasetName { pool: word.to_owned(), path: String::new() };
        let Some((pool, path)) = word.split_once('/').filter(|(pool, _)| is_name(pool)) else {
            return Ok(whole());
        };
        // The relative path of a device, whose first component is not a pool.
        if known.contains_key(word) || !known.contains_key(pool) && Path::new(word).symlink_metadata().is_ok()
        {
            return Ok(whole());
        }
        Ok(DatasetName { pool: pool.to_owned(), path: path.to_owned() })
    }

    /// The same for a word that may also name a snapshot, which the path then ends with: `home@monday`.
    pub fn parse_readable(registry: &Registry, word: &str) -> Outcome<DatasetName> {
        let is_device = || Path::new(word).symlink_metadata().is_ok();
        match word.split_once('@').filter(|_| !is_device()) {
            Some((dataset, snapshot)) => {
                let DatasetName { pool, path } = DatasetName::parse(registry, dataset)?;
                Ok(DatasetName { pool, path: format!("{path}@{snapshot}") })
            }
            None => DatasetName::parse(registry, word),
        }
    }

    /// The same for a data set to create, rename or destroy. Refuses the root.
    pub fn parse_below(registry: &Registry, word: &str) -> Outcome<DatasetName> {
        let name = DatasetName::parse(registry, word)?;
        if name.path.is_empty() {
            let expected = "a data set below a pool, like tank/home";
            return Err(Failure::refused(word, expected, "a pool", "name the data set"));
        }
        Ok(name)
    }
}

/// The name of a data set or snapshot, as commands write it: `tank`, `tank/home`, `tank/home@monday`.
pub fn full_name(pool: &str, path: &str) -> String {
    match path.chars().next() {
        None => pool.to_owned(),
        Some('@') => format!("{pool}{path}"),
        Some(_) => format!("{pool}/{path}"),
    }
}
