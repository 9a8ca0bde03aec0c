//! Features: what a pool may hold that older versions cannot read.
//!
//! The label names them in three lists, which say what a version that does not know a feature may do with the pool. Every feature that
//! this version knows is one row of [`FEATURES`]. Before a structure of a feature is written, the pool is asked whether the feature is
//! in force. Reads need no check: known structures are read wherever they are found.

/// A feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// ZAPs of one block with up to 31 integers per name.
    TinyZap,
    /// Names in directories are normalized, compared without case, or restricted to UTF-8.
    Naming,
    /// User-defined attributes, wherever stored: in the bonus, in spill blocks, in hidden directories.
    Xattr,
    /// Commit records hold the totals of the pool since its creation.
    Totals,
    /// Several devices, a special device, or a single device that is not the first.
    Devices,
    /// Runs of moved blocks have fingerprints.
    Tallies,
    /// Blocks compressed by lzjb, zle and gzip.
    Codecs,
    /// Headers of object sets hold the space that their blocks take.
    Accounts,
    /// Cache devices (ZFS: L2ARC).
    Caches,
    /// Indirect blocks of 4 KiB above small blocks of files.
    Pointers,
    /// A separate id of a copied pool, beside the id of its original.
    Identity,
    /// Rows of the zone tables with tails, and zones opened with a list of replicas.
    Rows,
    /// Rewritten blocks that say so: their content keeps its logical birth.
    Births,
    /// Data sets with an identity, and pending frees of theirs in the meta object set.
    Datasets,
    /// Words beside directory entries.
    EntryWords,
}

/// The label's list that names the feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// A version that does not know it refuses the pool.
    Incompatible,
    /// A version that does not know it imports the pool read-only at most.
    ReadOnly,
    /// A version that does not know it may ignore it.
    Compatible,
}

/// The properties of a feature.
#[derive(Debug)]
pub struct FeatureRow {
    /// The feature of this row.
    pub feature: Feature,
    /// The name in the label.
    pub name: &'static str,
    /// What versions without the feature may do with the pool.
    pub compatibility: Compatibility,
    /// New pools have it, and an upgrade adds it. Other features are added by their first use.
    pub is_default: bool,
    /// The description for users.
    pub meaning: &'static str,
}

/// Every feature that this version knows, in order of introduction.
pub static FEATURES: &[FeatureRow] = &[
    FeatureRow {
        feature: Feature::TinyZap,
        name: "org.terrane:tinyzap",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "directories of one block with long names, or several integers per name",
    },
    FeatureRow {
        feature: Feature::Naming,
        name: "org.terrane:naming",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "data sets with utf8only, normalization or casesensitivity",
    },
    FeatureRow {
        feature: Feature::Xattr,
        name: "org.terrane:xattr",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "extended attributes and ACLs",
    },
    FeatureRow {
        feature: Feature::Totals,
        name: "org.terrane:totals",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "bytes written since the pool's creation, by purpose",
    },
    FeatureRow {
        feature: Feature::Devices,
        name: "org.terrane:devices",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "several devices, or special devices",
    },
    FeatureRow {
        feature: Feature::Tallies,
        name: "org.terrane:tallies",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "fingerprints of relocated blocks, which save memory for freed ones",
    },
    FeatureRow {
        feature: Feature::Codecs,
        name: "org.terrane:codecs",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "blocks compressed by lzjb, zle or gzip",
    },
    FeatureRow {
        feature: Feature::Accounts,
        name: "org.terrane:accounts",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "space of data sets before and after compression, for new data sets",
    },
    FeatureRow {
        feature: Feature::Caches,
        name: "org.terrane:caches",
        compatibility: Compatibility::Compatible,
        is_default: false,
        meaning: "cache devices",
    },
    FeatureRow {
        feature: Feature::Pointers,
        name: "org.terrane:pointers",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "4 KiB indirect blocks for files with small records",
    },
    FeatureRow {
        feature: Feature::Identity,
        name: "org.terrane:identity",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "a separate id for a copied pool",
    },
    FeatureRow {
        feature: Feature::Rows,
        name: "org.terrane:rows",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "zone tables that later versions can extend",
    },
    FeatureRow {
        feature: Feature::Births,
        name: "org.terrane:births",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "rewritten blocks keep the birth txg of their content",
    },
    FeatureRow {
        feature: Feature::Datasets,
        name: "org.terrane:datasets",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "data sets with ids, and pending frees per data set",
    },
    FeatureRow {
        feature: Feature::EntryWords,
        name: "org.terrane:entry_words",
        compatibility: Compatibility::ReadOnly,
        is_default: true,
        meaning: "up to six 64-bit words beside a directory entry, such as file identifiers",
    },
];

impl Feature {
    /// The feature's row in [`FEATURES`].
    pub fn row(self) -> &'static FeatureRow {
        FEATURES.iter().find(|row| row.feature == self).expect("every feature has a row")
    }

    /// The feature with this name in labels, if this version knows it.
    pub fn from_name(name: &str) -> Option<Feature> {
        FEATURES.iter().find(|row| row.name == name).map(|row| row.feature)
    }

    /// The features of new pools.
    pub fn defaults() -> Vec<Feature> {
        FEATURES.iter().filter(|row| row.is_default).map(|row| row.feature).collect()
    }

    /// Its bit in a set of features.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Features by name, in three lists: what a version that does not know one may do with the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// If unknown, the pool is refused.
    pub incompatible: Vec<String>,
    /// If unknown, the pool can be imported read-only.
    pub read_only_compatible: Vec<String>,
    /// If unknown, ignored.
    pub compatible: Vec<String>,
}

impl Features {
    fn list(&self, compatibility: Compatibility) -> &Vec<String> {
        match compatibility {
            Compatibility::Incompatible => &self.incompatible,
            Compatibility::ReadOnly => &self.read_only_compatible,
            Compatibility::Compatible => &self.compatible,
        }
    }

    /// Whether the feature is in the list of its compatibility.
    pub fn has(&self, feature: Feature) -> bool {
        let row = feature.row();
        self.list(row.compatibility).iter().any(|name| name == row.name)
    }

    /// Adds a feature. False: it was there.
    pub fn add(&mut self, feature: Feature) -> bool {
        if self.has(feature) {
            return false;
        }
        let row = feature.row();
        match row.compatibility {
            Compatibility::Incompatible => &mut self.incompatible,
            Compatibility::ReadOnly => &mut self.read_only_compatible,
            Compatibility::Compatible => &mut self.compatible,
        }
        .push(row.name.to_owned());
        true
    }

    /// The features that this version knows.
    pub fn known(&self) -> impl Iterator<Item = Feature> + '_ {
        FEATURES.iter().map(|row| row.feature).filter(|feature| self.has(*feature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_one_row_and_a_name_of_its_own() {
        for (at, row) in FEATURES.iter().enumerate() {
            assert_eq!(row.feature as usize, at, "rows stand in the order of the features");
            assert_eq!(Feature::from_name(row.name), Some(row.feature));
            assert!(row.name.starts_with("org.terrane:"));
        }
        assert!(FEATURES.len() <= u32::BITS as usize, "each has a bit");
        assert_eq!(Feature::from_name("org.example:new"), None);
    }
}
