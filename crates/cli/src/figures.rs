//! Counted values of a dataset, shown among its properties; they cannot be set.

use crate::clock;
use crate::size;
use terrane_dataset::DatasetUsage;
use terrane_object::Account;

/// Their source, as `fs get` shows it.
pub const SOURCE: &str = "counted";

/// The counted values of one data set, as of the last commit.
pub struct Facts {
    pub usage: DatasetUsage,
    /// Seconds since 1970.
    pub creation: Option<u64>,
    pub guid: Option<u64>,
    /// The snapshot of which it is a clone.
    pub origin: Option<String>,
}

/// One counted value.
pub struct Figure {
    pub name: &'static str,
    /// For help.
    pub meaning: &'static str,
    /// `None`: not known.
    value: fn(&Facts) -> Option<CountedValue>,
}

enum CountedValue {
    Bytes(u64),
    Ratio(f64),
    Number(u64),
    /// Seconds since 1970.
    Moment(u64),
    Text(String),
}
use CountedValue::{Bytes, Moment, Number, Ratio, Text};

/// In the order in which they are listed.
pub static FIGURES: &[Figure] = &[
    Figure { name: "type", meaning: "filesystem", value: |_| Some(Text("filesystem".to_owned())) },
    Figure { name: "creation", meaning: "when it was created", value: |facts| facts.creation.map(Moment) },
    Figure {
        name: "guid",
        meaning: "a random number that identifies the data set",
        value: |facts| facts.guid.map(Number),
    },
    Figure {
        name: "origin",
        meaning: "the snapshot of which it is a clone",
        value: |facts| facts.origin.clone().map(Text),
    },
    Figure {
        name: "used",
        meaning: "bytes on devices, all copies, with snapshots, all data sets below, and reservations",
        value: |facts| of_account(facts, |_| Bytes(facts.usage.used)),
    },
    Figure {
        name: "available",
        meaning: "bytes that can still be written, by quotas, reservations and the pool",
        value: |facts| Some(Bytes(facts.usage.available)),
    },
    Figure {
        name: "referenced",
        meaning: "bytes on devices of current data: records and metadata, all copies",
        value: |facts| of_account(facts, |_| Bytes(facts.usage.space.referenced)),
    },
    Figure {
        name: "usedbydataset",
        meaning: "the part of used that is freed if the data set is destroyed",
        value: |facts| of_account(facts, |_| Bytes(facts.usage.space.by_dataset)),
    },
    Figure {
        name: "usedbysnapshots",
        meaning: "the part of used that is freed if all snapshots are destroyed",
        value: |facts| of_account(facts, |_| Bytes(facts.usage.space.by_snapshots)),
    },
    Figure {
        name: "usedbychildren",
        meaning: "the part of used of all data sets below, with their reservations",
        value: |facts| Some(Bytes(facts.usage.children)),
    },
    Figure {
        name: "usedbyrefreservation",
        meaning: "the part of used that refreservation keeps for the data set",
        value: |facts| Some(Bytes(facts.usage.ref_reservation)),
    },
    Figure {
        name: "written",
        meaning: "bytes of current data that the newest snapshot does not have",
        value: |facts| of_account(facts, |_| Bytes(facts.usage.space.written)),
    },
    Figure {
        name: "logicalused",
        meaning: "bytes of records before compression, without holes",
        value: |facts| of_account(facts, |account| Bytes(account.logical_bytes)),
    },
    Figure {
        name: "physicalused",
        meaning: "bytes of records after compression, one copy",
        value: |facts| of_account(facts, |account| Bytes(account.physical_bytes)),
    },
    Figure { name: "compressratio", meaning: "logicalused divided by physicalused", value: ratio },
    Figure {
        name: "refcompressratio",
        meaning: "compressratio of current data; equal, as snapshots are not counted",
        value: ratio,
    },
];

/// `None`: a version that did not count has made the data set.
fn of_account(facts: &Facts, value: impl FnOnce(&Account) -> CountedValue) -> Option<CountedValue> {
    facts.usage.account.as_ref().map(value)
}

fn ratio(facts: &Facts) -> Option<CountedValue> {
    of_account(facts, |account| Ratio(account.ratio().unwrap_or(1.0)))
}

impl Figure {
    pub fn find(name: &str) -> Option<&'static Figure> {
        FIGURES.iter().find(|figure| figure.name == name)
    }

    /// The value as of the last commit, for people and for scripts.
    pub fn show(&self, facts: &Facts) -> (String, String) {
        match (self.value)(facts) {
            None => ("-".to_owned(), "-".to_owned()),
            Some(Bytes(bytes)) => (size::format(bytes), bytes.to_string()),
            Some(Ratio(times)) => (format!("{times:.2}x"), format!("{times:.2}")),
            Some(Number(number)) => (number.to_string(), number.to_string()),
            Some(Moment(seconds)) => {
                (clock::utc(i64::try_from(seconds).unwrap_or(i64::MAX)), seconds.to_string())
            }
            Some(Text(text)) => (text.clone(), text),
        }
    }
}

/// The section about them in the help of `fs get`.
pub fn help() -> String {
    let rows = FIGURES.iter().map(|figure| format!("  {:16} {}\n", figure.name, figure.meaning));
    format!("Counted:\n{}", rows.collect::<String>())
}
