//! Counted values of a dataset, shown among its properties; they cannot be set.

use crate::live::Live;
use crate::size;
use terrane_object::Account;

/// Their source, as `fs get` shows it.
pub const SOURCE: &str = "counted";

/// One counted value.
pub struct Figure {
    pub name: &'static str,
    /// For help.
    pub meaning: &'static str,
    value: fn(&Account) -> Number,
}

enum Number {
    Bytes(u64),
    Times(f64),
}

/// In the order in which they are listed.
pub static FIGURES: &[Figure] = &[
    Figure {
        name: "used",
        meaning: "bytes on devices: records and metadata, all copies",
        value: |account| Number::Bytes(account.used_bytes),
    },
    Figure {
        name: "logicalused",
        meaning: "bytes of records before compression; holes are none",
        value: |account| Number::Bytes(account.logical_bytes),
    },
    Figure {
        name: "physicalused",
        meaning: "bytes of records after compression, one copy",
        value: |account| Number::Bytes(account.physical_bytes),
    },
    Figure { name: "compressratio", meaning: "logicalused through physicalused", value: ratio },
    Figure {
        name: "refcompressratio",
        meaning: "the same of what can be read now; as there are no snapshots, equal",
        value: ratio,
    },
];

fn ratio(account: &Account) -> Number {
    Number::Times(account.ratio().unwrap_or(1.0))
}

impl Figure {
    pub fn find(name: &str) -> Option<&'static Figure> {
        FIGURES.iter().find(|figure| figure.name == name)
    }

    /// The value as of the last commit, for people and for scripts.
    pub fn show(&self, live: &Live) -> (String, String) {
        let Some(account) = live.dataset.objects().account() else { return ("-".to_owned(), "-".to_owned()) };
        match (self.value)(&account) {
            Number::Bytes(bytes) => (size::print(bytes), bytes.to_string()),
            Number::Times(times) => (format!("{times:.2}x"), format!("{times:.2}")),
        }
    }
}

/// The section about them in the help of `fs get`.
pub fn help() -> String {
    let rows = FIGURES.iter().map(|figure| format!("  {:16} {}\n", figure.name, figure.meaning));
    format!("Counted:\n{}", rows.collect::<String>())
}
