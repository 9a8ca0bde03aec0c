//! Features: what a pool may hold that older versions cannot read.
//!
//! The label names them in three lists, which say what a version that does not know a feature may do with the pool. Every feature that
//! this version knows is one row of [`FEATURES`]. Before a structure of a feature is written, the pool is asked whether the feature is
//! in force. Reads need no check: known structures are read wherever they are found.
//!
//! A feature is *disabled*, *enabled* or *active* ([`FeatureState`]). The list of its [`Compatibility`] names it only while it is
//! active: something stored may use it. While it is merely enabled, the compatible list names it, so that versions that do not know it
//! import the pool.
//!
//! Invariant: what is stored uses only features that are active in every label from which the pool could be imported.

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
    /// Data sets below the root, snapshots and clones.
    Snapshots,
    /// Tables in the headers of object sets of what each user, group and project has.
    Owners,
    /// Blocks with several references, and the table that counts them.
    Shared,
    /// An intent log, which commit records name.
    Log,
    /// Devices for the intent log alone (ZFS: SLOG).
    LogDevices,
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

/// Whether a pool may use a feature, and whether it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FeatureState {
    /// The pool does not use it.
    Disabled,
    /// The pool may use it. Nothing stored does.
    Enabled,
    /// Something stored may use it.
    Active,
}

impl FeatureState {
    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            FeatureState::Disabled => "disabled",
            FeatureState::Enabled => "enabled",
            FeatureState::Active => "active",
        }
    }
}

/// How a pool knows whether something stored uses a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseTracking {
    /// It is in use from the moment when it is enabled.
    WhenEnabled,
    /// In use from its first use on, until a walk over the whole pool finds no use.
    Marked,
    /// The uses are counted in each txg.
    Counted,
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
    /// How its uses are known.
    pub tracking: UseTracking,
    /// One use, in words.
    pub use_noun: &'static str,
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
        tracking: UseTracking::Counted,
        use_noun: "tiny ZAP",
        meaning: "directories of one block with long names, or several integers per name",
    },
    FeatureRow {
        feature: Feature::Naming,
        name: "org.terrane:naming",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        tracking: UseTracking::WhenEnabled,
        use_noun: "data set",
        meaning: "data sets with utf8only, normalization or casesensitivity",
    },
    FeatureRow {
        feature: Feature::Xattr,
        name: "org.terrane:xattr",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::Marked,
        use_noun: "inode",
        meaning: "extended attributes and ACLs",
    },
    FeatureRow {
        feature: Feature::Totals,
        name: "org.terrane:totals",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::WhenEnabled,
        use_noun: "table of totals",
        meaning: "bytes written since the pool's creation, by purpose",
    },
    FeatureRow {
        feature: Feature::Devices,
        name: "org.terrane:devices",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        tracking: UseTracking::WhenEnabled,
        use_noun: "device",
        meaning: "several devices, or special devices",
    },
    FeatureRow {
        feature: Feature::Tallies,
        name: "org.terrane:tallies",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::WhenEnabled,
        use_noun: "run",
        meaning: "fingerprints of relocated blocks, which save memory for freed ones",
    },
    FeatureRow {
        feature: Feature::Codecs,
        name: "org.terrane:codecs",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        tracking: UseTracking::Marked,
        use_noun: "block",
        meaning: "blocks compressed by lzjb, zle or gzip",
    },
    FeatureRow {
        feature: Feature::Accounts,
        name: "org.terrane:accounts",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::WhenEnabled,
        use_noun: "object set",
        meaning: "space of data sets before and after compression, for new data sets",
    },
    FeatureRow {
        feature: Feature::Caches,
        name: "org.terrane:caches",
        compatibility: Compatibility::Compatible,
        is_default: false,
        tracking: UseTracking::WhenEnabled,
        use_noun: "cache device",
        meaning: "cache devices",
    },
    FeatureRow {
        feature: Feature::Pointers,
        name: "org.terrane:pointers",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::Marked,
        use_noun: "object",
        meaning: "4 KiB indirect blocks for files with small records",
    },
    FeatureRow {
        feature: Feature::Identity,
        name: "org.terrane:identity",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        tracking: UseTracking::WhenEnabled,
        use_noun: "id",
        meaning: "a separate id for a copied pool",
    },
    FeatureRow {
        feature: Feature::Rows,
        name: "org.terrane:rows",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::WhenEnabled,
        use_noun: "zone table",
        meaning: "zone tables that later versions can extend",
    },
    FeatureRow {
        feature: Feature::Births,
        name: "org.terrane:births",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::WhenEnabled,
        use_noun: "block",
        meaning: "rewritten blocks keep the birth txg of their content",
    },
    FeatureRow {
        feature: Feature::Datasets,
        name: "org.terrane:datasets",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::WhenEnabled,
        use_noun: "object set",
        meaning: "data sets with ids, and pending frees per data set",
    },
    FeatureRow {
        feature: Feature::EntryWords,
        name: "org.terrane:entry_words",
        compatibility: Compatibility::ReadOnly,
        is_default: true,
        tracking: UseTracking::Marked,
        use_noun: "directory entry",
        meaning: "up to six 64-bit words beside a directory entry, such as file identifiers",
    },
    FeatureRow {
        feature: Feature::Snapshots,
        name: "org.terrane:snapshots",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::Marked,
        use_noun: "data set or snapshot",
        meaning: "data sets below the root, snapshots and clones",
    },
    FeatureRow {
        feature: Feature::Owners,
        name: "org.terrane:owners",
        compatibility: Compatibility::ReadOnly,
        is_default: true,
        tracking: UseTracking::WhenEnabled,
        use_noun: "object set",
        meaning: "space and objects of each user, group and project, and quotas",
    },
    FeatureRow {
        feature: Feature::Shared,
        name: "org.terrane:shared",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::Marked,
        use_noun: "cloned block",
        meaning: "copies of files that share their blocks",
    },
    FeatureRow {
        feature: Feature::Log,
        name: "org.terrane:log",
        compatibility: Compatibility::Incompatible,
        is_default: true,
        tracking: UseTracking::Marked,
        use_noun: "intent log",
        meaning: "fsync appends to an intent log, which an import replays",
    },
    FeatureRow {
        feature: Feature::LogDevices,
        name: "org.terrane:log_devices",
        compatibility: Compatibility::Incompatible,
        is_default: false,
        tracking: UseTracking::Marked,
        use_noun: "intent log",
        meaning: "an intent log on devices of its own",
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

    fn list_mut(&mut self, compatibility: Compatibility) -> &mut Vec<String> {
        match compatibility {
            Compatibility::Incompatible => &mut self.incompatible,
            Compatibility::ReadOnly => &mut self.read_only_compatible,
            Compatibility::Compatible => &mut self.compatible,
        }
    }

    /// The state of a feature. A feature in both its own list and the compatible one is active.
    pub fn state(&self, feature: Feature) -> FeatureState {
        let row = feature.row();
        let has = |list: &Vec<String>| list.iter().any(|name| name == row.name);
        if has(self.list(row.compatibility)) {
            FeatureState::Active
        } else if has(&self.compatible) {
            FeatureState::Enabled
        } else {
            FeatureState::Disabled
        }
    }

    /// Whether the feature is active.
    pub fn is_active(&self, feature: Feature) -> bool {
        self.state(feature) == FeatureState::Active
    }

    /// Changes the state of a feature. False: it had that state. A compatible feature cannot be merely enabled: it becomes active.
    pub fn set_state(&mut self, feature: Feature, state: FeatureState) -> bool {
        let (row, before) = (feature.row(), self.state(feature));
        if before == state {
            return false;
        }
        for compatibility in [row.compatibility, Compatibility::Compatible] {
            self.list_mut(compatibility).retain(|name| name != row.name);
        }
        let list = match state {
            FeatureState::Disabled => return true,
            FeatureState::Enabled => Compatibility::Compatible,
            FeatureState::Active => row.compatibility,
        };
        self.list_mut(list).push(row.name.to_owned());
        self.state(feature) != before
    }

    /// Enables a feature. It becomes active at once if its uses are not tracked. False: it was enabled or active.
    pub fn enable(&mut self, feature: Feature) -> bool {
        let state = match feature.row().tracking {
            UseTracking::WhenEnabled => FeatureState::Active,
            UseTracking::Marked | UseTracking::Counted => FeatureState::Enabled,
        };
        self.state(feature) < state && self.set_state(feature, state)
    }

    /// The features that are enabled or active, as far as this version knows them.
    pub fn known(&self) -> impl Iterator<Item = Feature> + '_ {
        FEATURES
            .iter()
            .map(|row| row.feature)
            .filter(|feature| self.state(*feature) != FeatureState::Disabled)
    }

    /// The first active feature that a reader must know, and that is not `known` to it. A reader that writes must also know the
    /// read-only compatible ones.
    pub fn first_unknown(&self, known: &dyn Fn(&str) -> bool, writes: bool) -> Option<&str> {
        let for_writers = self.read_only_compatible.iter().filter(|_| writes);
        self.incompatible.iter().chain(for_writers).map(String::as_str).find(|name| !known(name))
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
    #[test]
    fn only_an_active_feature_is_refused_by_a_reader_without_it() {
        let knows_no_tiny = |name: &str| name != "org.terrane:tinyzap";
        let mut features = Features::default();
        assert_eq!(features.state(Feature::TinyZap), FeatureState::Disabled);
        assert!(features.enable(Feature::TinyZap) && !features.enable(Feature::TinyZap));
        assert_eq!(features.state(Feature::TinyZap), FeatureState::Enabled);
        assert_eq!(features.first_unknown(&knows_no_tiny, true), None);
        assert_eq!(features.known().collect::<Vec<_>>(), [Feature::TinyZap]);
        assert!(features.set_state(Feature::TinyZap, FeatureState::Active));
        assert_eq!(features.first_unknown(&knows_no_tiny, true), Some("org.terrane:tinyzap"));
        assert_eq!(features.first_unknown(&|_| true, true), None);
        assert!(!features.enable(Feature::TinyZap), "it is more than enabled");
        assert!(features.set_state(Feature::TinyZap, FeatureState::Disabled));
        assert_eq!(features, Features::default());
        // Nothing stored can be in the form of such a feature unless it is active.
        assert!(features.enable(Feature::Rows) && features.is_active(Feature::Rows));
        features.read_only_compatible.push("org.example:append".into());
        assert_eq!(features.first_unknown(&|name| name.contains("terrane"), false), None);
        assert_eq!(
            features.first_unknown(&|name| name.contains("terrane"), true),
            Some("org.example:append")
        );
    }

    /// An older version that knows no states adds a feature to its own list, beside the compatible one.
    #[test]
    fn a_feature_in_two_lists_is_active() {
        let mut features = Features::default();
        features.enable(Feature::TinyZap);
        features.incompatible.push("org.terrane:tinyzap".into());
        assert_eq!(features.state(Feature::TinyZap), FeatureState::Active);
        assert!(features.set_state(Feature::TinyZap, FeatureState::Enabled));
        assert_eq!((features.incompatible.len(), features.compatible.len()), (0, 1));
        // A compatible feature has no list of its own.
        assert!(features.enable(Feature::Caches) && features.is_active(Feature::Caches));
        assert!(!features.set_state(Feature::Caches, FeatureState::Enabled));
    }
}
