//! Properties as users see them.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use terrane_dataset::{Dataset, Source};

/// The value of a property, and where it is from.
pub fn shown(dataset: &Dataset, name: &str) -> (String, Source) {
    let property = dataset.get(name).unwrap();
    (property.value, property.source)
}
