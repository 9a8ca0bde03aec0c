//! Errors of data sets: one variant for each thing a caller would do differently.

use std::fmt;
use terrane_format::Feature;
use terrane_object::ObjectError;
use terrane_store::PoolError;
use terrane_wire::ObjectId;

/// Errors of a ZAP in an object.
pub type ZapError = terrane_zap::Error<ObjectError>;

/// Why a data set could not be created, opened or changed.
#[derive(Debug)]
pub enum DatasetError {
    /// The object set failed.
    Object(ObjectError),
    /// A ZAP refused the operation.
    Zap(ZapError),
    /// There is no such property.
    UnknownProperty {
        /// The unknown name.
        name: String,
        /// The names of all properties, separated by commas.
        valid: String,
    },
    /// The property does not accept this value.
    BadValue {
        /// Name of the property.
        name: &'static str,
        /// The refused word, or a stored number that this version does not know.
        found: String,
        /// The accepted values, in words.
        expected: String,
    },
    /// A user property does not accept this name or value.
    BadUserProperty {
        /// Its name.
        name: String,
        /// What it accepts, in words.
        expected: &'static str,
    },
    /// The user property is not set, here or on a parent.
    NotSet {
        /// Its name.
        name: String,
    },
    /// The whole pool has one value. It is set on the root data set.
    PoolWide {
        /// Name of the property.
        name: &'static str,
    },
    /// The property is fixed when the data set is created.
    Fixed {
        /// Name of the property.
        name: &'static str,
    },
    /// There is no such data set or snapshot.
    Unknown {
        /// Its path and name.
        name: String,
        /// The existing one whose name is most like it.
        nearest: Option<String>,
    },
    /// There is a data set or snapshot with this name already.
    Exists {
        /// Its path and name.
        name: String,
    },
    /// The name cannot be that of a data set or snapshot.
    InvalidName {
        /// Path and name.
        name: String,
    },
    /// Something must be ended or destroyed first.
    InUse {
        /// Path and name of the data set or snapshot.
        name: String,
        /// What is in the way, in words.
        by: String,
    },
    /// A quota, or the pool with what is reserved, has no space for what a data set would be charged.
    OverLimit {
        /// The path of the data set.
        name: String,
        /// The path of the data set whose `quota` it is; `None`: the pool.
        quota_of: Option<String>,
        /// Bytes of the quota, or bytes of the pool that can be used.
        limit: u64,
        /// Bytes that it counts now.
        used: u64,
        /// Bytes that it would count more.
        need: u64,
    },
    /// Some snapshots were destroyed before an error.
    Partly {
        /// How many are gone.
        done: usize,
        /// How many should have been destroyed.
        all: usize,
        /// What stopped it.
        error: Box<DatasetError>,
    },
    /// The pool lacks a feature that only an upgrade adds.
    NeedsFeature {
        /// The feature.
        feature: Feature,
    },
    /// The pool directory or the properties are invalid.
    Damaged {
        /// The damaged structure, as the subject of a message.
        at: &'static str,
        /// What a valid one holds, in words.
        expected: String,
        /// What it holds, in words.
        found: String,
    },
}

impl DatasetError {
    /// Whether the pool has no space for the operation.
    pub(crate) fn is_no_space(&self) -> bool {
        if let DatasetError::Partly { error, .. } = self {
            return error.is_no_space();
        }
        matches!(self, DatasetError::Object(ObjectError::Pool(PoolError::NoSpace { .. })))
    }

    /// Whether a device read failed, so that a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        if let DatasetError::Partly { error, .. } = self {
            return error.is_transient();
        }
        matches!(self, DatasetError::Object(ObjectError::Pool(error)) if error.is_transient())
    }

    /// An unknown path: `name` is not below `known`, which has these names.
    pub(crate) fn unknown(path: &str, known: &str, name: &str, names: Vec<String>) -> Self {
        let nearest = Self::nearest(name, names);
        let nearest = nearest.map(|found| if known.is_empty() { found } else { format!("{known}/{found}") });
        DatasetError::Unknown { name: path.to_string(), nearest }
    }

    /// The most similar name, if one is similar enough.
    pub(crate) fn nearest(name: &str, names: Vec<String>) -> Option<String> {
        let distance = |other: &String| edit_distance(name, other);
        let nearest = names.into_iter().min_by_key(distance)?;
        Some(nearest).filter(|found| edit_distance(name, found) <= 1 + name.chars().count() / 3)
    }

    /// A new object set must number its objects from 1, since the object is found by its number later.
    pub(crate) fn first_object(at: &'static str, found: ObjectId) -> Self {
        DatasetError::Damaged {
            at,
            expected: "object 1 in an empty object set".to_string(),
            found: found.to_string(),
        }
    }
}

/// The number of characters to insert, remove or replace to turn one word into the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (above, x) in a.chars().enumerate() {
        let mut next = vec![above + 1];
        for ((y, pair), left) in b.iter().zip(row.windows(2)).zip(0..) {
            let &[diagonal, up] = pair else { continue };
            let before = next.get(left).copied().unwrap_or(usize::MAX - 1);
            next.push((diagonal + usize::from(x != *y)).min(up + 1).min(before + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

impl fmt::Display for DatasetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatasetError::Object(error) => error.fmt(f),
            DatasetError::Zap(error) => error.fmt(f),
            DatasetError::UnknownProperty { name, valid } => {
                write!(f, "unknown property '{name}'; valid properties: {valid}")
            }
            DatasetError::BadValue { name, found, expected } => {
                write!(f, "invalid value '{found}' of property '{name}': expected {expected}")
            }
            DatasetError::BadUserProperty { name, expected } => {
                write!(f, "user property {name:?} refused: expected {expected}")
            }
            DatasetError::NotSet { name } => write!(f, "user property '{name}' is not set"),
            DatasetError::PoolWide { name } => write!(
                f,
                "property '{name}' refused: the whole pool has one value; set it on the root data set (the pool's name)"
            ),
            DatasetError::Fixed { name } => write!(
                f,
                "property '{name}' refused: it is fixed when a pool or data set is created \
                 (`terrane pool create -o {name}=...`, `terrane fs create -o {name}=...`), because all stored names depend on it"
            ),
            DatasetError::Unknown { name, nearest: None } => write!(f, "{name} does not exist"),
            DatasetError::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "{name} does not exist; did you mean {nearest}?")
            }
            DatasetError::Exists { name } => write!(f, "{name} exists already"),
            DatasetError::InvalidName { name } => write!(
                f,
                "invalid name '{name}': expected letters, digits, and any of '-_.: ', at most 255 bytes in all, and not . or .."
            ),
            DatasetError::InUse { name, by } => write!(f, "{name} is in use: {by}"),
            DatasetError::OverLimit { name, quota_of: Some(quota_of), limit, used, need } => {
                let of = if quota_of.is_empty() { "the root data set" } else { quota_of };
                write!(
                    f,
                    "{name} refused: quota of {of} {limit} bytes: {used} used, {need} more needed; delete something or raise it"
                )
            }
            DatasetError::OverLimit { name, quota_of: None, limit, used, need } => write!(
                f,
                "{name} refused: pool {limit} bytes: {used} used or reserved, {need} more would be reserved; \
                 delete something or lower a reservation"
            ),
            DatasetError::Partly { done, all, error } => {
                write!(
                    f,
                    "{done} of {all} snapshots destroyed, then: {error}; the others are there, so try again"
                )
            }
            DatasetError::NeedsFeature { feature } => write!(
                f,
                "the pool lacks the feature {}: add it with `terrane pool upgrade`",
                feature.row().name
            ),
            DatasetError::Damaged { at, expected, found } => {
                write!(f, "{at} damaged: expected {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for DatasetError {}

impl From<ObjectError> for DatasetError {
    fn from(error: ObjectError) -> Self {
        DatasetError::Object(error)
    }
}

impl From<ZapError> for DatasetError {
    fn from(error: ZapError) -> Self {
        match error {
            ZapError::Store(error) => DatasetError::Object(error),
            other => DatasetError::Zap(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_part_says_how_far() {
        let error = ObjectError::Pool(PoolError::NoSpace { need: 7, free: 3 });
        let error = DatasetError::Partly { done: 512, all: 1000, error: Box::new(error.into()) };
        assert!(error.is_no_space() && !error.is_transient());
        assert!(error.to_string().starts_with("512 of 1000 snapshots destroyed, then: "), "{error}");
    }

    #[test]
    fn nearest_names_are_found() {
        let nearest =
            |name: &str| DatasetError::nearest(name, vec!["home".to_string(), "backup".to_string()]);
        assert_eq!(nearest("hme").as_deref(), Some("home"));
        assert_eq!(nearest("bakcup").as_deref(), Some("backup"));
        assert_eq!(nearest("zebra"), None);
        assert_eq!((edit_distance("", "abc"), edit_distance("kitten", "sitting")), (3, 3));
    }
}
