//! Counted values of a dataset, shown among its properties; they cannot be set.

use crate::open_pool::OpenPool;
use crate::size;
use terrane_object::Account;

/// Their source, as `fs get` shows it.
pub const SOURCE: &str = "counted";

/// One counted value.
pub struct Figure {
    pub name: &'static str,
    /// For help.
    pub meaning: &'static str,
    value: fn(&Account) -> CountedNumber,
}

enum CountedNumber {
    Bytes(u64),
    Ratio(f64),
}

/// In the order in which they are listed.
pub static FIGURES: &[Figure] = &[
    Figure {
        name: "used",
        meaning: "bytes on devices: records and metadata, all copies",
        value: |account| CountedNumber::Bytes(account.used_bytes),
    },
    Figure {
        name: "logicalused",
        meaning: "bytes of records before compression, without holes",
        value: |account| CountedNumber::Bytes(account.logical_bytes),
    },
    Figure {
        name: "physicalused",
        meaning: "bytes of records after compression, one copy",
        value: |account| CountedNumber::Bytes(account.physical_bytes),
    },
    Figure { name: "compressratio", meaning: "logicalused divided by physicalused", value: ratio },
    Figure {
        name: "refcompressratio",
        meaning: "compressratio of current data; equal, as there are no snapshots",
        value: ratio,
    },
];

fn ratio(account: &Account) -> CountedNumber {
    CountedNumber::Ratio(account.ratio().unwrap_or(1.0))
}

impl Figure {
    pub fn find(name: &str) -> Option<&'static Figure> {
        FIGURES.iter().find(|figure| figure.name == name)
    }

    /// The value as of the last commit, for people and for scripts.
    pub fn show(&self, open_pool: &OpenPool) -> (String, String) {
        let Some(account) = open_pool.dataset.object_set().account() else {
            return ("-".to_owned(), "-".to_owned());
        };
        match (self.value)(&account) {
            CountedNumber::Bytes(bytes) => (size::format(bytes), bytes.to_string()),
            CountedNumber::Ratio(times) => (format!("{times:.2}x"), format!("{times:.2}")),
        }
    }
}

/// The section about them in the help of `fs get`.
pub fn help() -> String {
    let rows = FIGURES.iter().map(|figure| format!("  {:16} {}\n", figure.name, figure.meaning));
    format!("Counted:\n{}", rows.collect::<String>())
}
