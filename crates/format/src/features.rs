//! Features: what a pool may hold that older versions cannot read.
//!
//! The label names them in three lists, which say what may be done with the pool by those who do not know one. Every
//! feature that this version knows is one row of [`FEATURES`]; the pool is asked whether one is in force before anything is written that
//! it stands for. Reading needs no question: what is known is read wherever it is found.

/// One feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// ZAPs of one block with up to 31 integers for a name.
    TinyZap,
    /// Names of directories are normalized, compared without case, or UTF-8 alone.
    Naming,
    /// Attributes that users name, wherever they are: in the bonus, in spill blocks, in hidden directories.
    Xattr,
    /// Commit records tell what the pool has done since it was made.
    Totals,
    /// Several devices, or one that is special, or one that is not the first any more.
    Devices,
    /// Runs of moved blocks have fingerprints.
    Tallies,
    /// Blocks by lzjb, zle and gzip.
    Codecs,
    /// Headers of object sets say what their blocks take.
    Accounts,
    /// A second level of the cache.
    Caches,
    /// Indirect blocks of 4 KiB above small blocks of files.
    Pointers,
    /// An id that a copy was given, beside that of the pool it was copied from.
    Identity,
    /// Rows of the zone tables with tails, and zones opened with a list of replicas.
    Rows,
    /// Blocks that were stored anew and say what they are: no younger than before.
    Births,
    /// Data sets say who they are, and what waits to be freed of them lies in the meta object set.
    Datasets,
}

/// Which list of the label a feature stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// Who does not know it refuses the pool.
    Incompatible,
    /// Who does not know it imports the pool read-only at most.
    ReadOnly,
    /// It does not matter to who does not know it.
    Compatible,
}

/// What there is to say of a feature.
#[derive(Debug)]
pub struct FeatureRow {
    pub feature: Feature,
    /// As the label has it.
    pub name: &'static str,
    pub compatibility: Compatibility,
    /// New pools have it, and an upgrade adds it. What does not is added by what needs it.
    pub is_default: bool,
    /// For users.
    pub meaning: &'static str,
}

/// Every feature this version knows, in the order in which they came.
pub static FEATURES: &[FeatureRow] = &[
    FeatureRow {
        feature: Feature::TinyZap,
        name: "org.terrane:tinyzap",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "directories of one block with long names or several integers for a name",
    },
    FeatureRow {
        feature: Feature::Naming,
        name: "org.terrane:naming",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "a data set made with utf8only, normalization or casesensitivity",
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
        meaning: "bytes written since the pool was made, by what they were for",
    },
    FeatureRow {
        feature: Feature::Devices,
        name: "org.terrane:devices",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "several devices, or special ones",
    },
    FeatureRow {
        feature: Feature::Tallies,
        name: "org.terrane:tallies",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "less is remembered of blocks that died before others moved",
    },
    FeatureRow {
        feature: Feature::Codecs,
        name: "org.terrane:codecs",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "contents compressed by lzjb, zle or gzip",
    },
    FeatureRow {
        feature: Feature::Accounts,
        name: "org.terrane:accounts",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "what data sets take before and after compression; for those made from now on",
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
        meaning: "files of small records with small blocks of pointers",
    },
    FeatureRow {
        feature: Feature::Identity,
        name: "org.terrane:identity",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        meaning: "a copy that was given an id of its own",
    },
    FeatureRow {
        feature: Feature::Rows,
        name: "org.terrane:rows",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "tables of zones that later versions can add to",
    },
    FeatureRow {
        feature: Feature::Births,
        name: "org.terrane:births",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "blocks that were stored in another form count as unchanged",
    },
    FeatureRow {
        feature: Feature::Datasets,
        name: "org.terrane:datasets",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        meaning: "data sets with ids, whose freed blocks are known beside them",
    },
];

impl Feature {
    pub fn row(self) -> &'static FeatureRow {
        FEATURES.iter().find(|row| row.feature == self).expect("every feature has a row")
    }

    /// The feature that labels call so, if this version knows it.
    pub fn of_name(name: &str) -> Option<Feature> {
        FEATURES.iter().find(|row| row.name == name).map(|row| row.feature)
    }

    /// What new pools have.
    pub fn defaults() -> Vec<Feature> {
        FEATURES.iter().filter(|row| row.is_default).map(|row| row.feature).collect()
    }

    /// Its bit in a set of features.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Features by name, in three lists: what an older Terrane may do with the pool when it does not know one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Unknown: the pool is refused.
    pub incompatible: Vec<String>,
    /// Unknown: the pool can be imported read-only.
    pub read_only_compatible: Vec<String>,
    /// Unknown: no matter.
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

    pub fn has(&self, feature: Feature) -> bool {
        let row = feature.row();
        self.list(row.compatibility).iter().any(|name| name == row.name)
    }

    /// False: it was there.
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

    /// Those that this version knows.
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
            assert_eq!(Feature::of_name(row.name), Some(row.feature));
            assert!(row.name.starts_with("org.terrane:"));
        }
        assert!(FEATURES.len() <= u32::BITS as usize, "each has a bit");
        assert_eq!(Feature::of_name("org.example:new"), None);
    }
}
