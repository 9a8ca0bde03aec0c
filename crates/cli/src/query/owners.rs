//! Users, groups and projects: what they have, and their limits.

use super::datasets;
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use crate::size;
use serde::Serialize;
use terrane_dataset::{OwnerUsage, QuotaName, QuotaUnit};
use terrane_object::OwnerKind;

/// What one owner has.
#[derive(Serialize)]
pub(super) struct OwnerRow {
    id: u32,
    used: u64,
    quota: Option<u64>,
    objects: u64,
    objquota: Option<u64>,
}

/// The word of a kind of owners in questions.
pub fn word_of(kind: OwnerKind) -> &'static str {
    match kind {
        OwnerKind::User => "user",
        OwnerKind::Group => "group",
        OwnerKind::Project => "project",
    }
}

/// What owners have in a data set, or in a snapshot: `home@monday`.
pub(super) fn list(open_pool: &OpenPool, path: &str, word: &str) -> Outcome<Vec<OwnerRow>> {
    let kind = OwnerKind::ALL.into_iter().find(|kind| word_of(*kind) == word);
    let kind = kind.ok_or_else(|| Failure(format!("expected user, group or project, found '{word}'")))?;
    let limit = |limit: u64| (limit > 0).then_some(limit);
    let row = |OwnerUsage { id, count, limits }| OwnerRow {
        id,
        used: count.bytes,
        quota: limit(limits.bytes),
        objects: count.objects,
        objquota: limit(limits.objects),
    };
    let dataset = match path.split_once('@') {
        Some((path, name)) => open_pool.datasets.open_snapshot(path, name),
        None => open_pool.datasets.open_dataset(path),
    };
    let dataset = dataset.map_err(|error| datasets::named(open_pool, error))?;
    Ok(dataset.quotas().usage(kind)?.into_iter().map(row).collect())
}

/// Parses the value of a limit; 0: none.
pub fn parse_limit(name: &str, unit: QuotaUnit, value: &str) -> Outcome<u64> {
    let parsed = match (value, unit) {
        ("none" | "off", _) => Ok(0),
        (value, QuotaUnit::Bytes) => size::parse(value),
        (value, QuotaUnit::Objects) => value.parse().map_err(|_| format!("invalid number {value:?}")),
    };
    parsed.map_err(|text| {
        let expected = match unit {
            QuotaUnit::Bytes => "a size, such as 10G, or none",
            QuotaUnit::Objects => "a number of objects, or none",
        };
        Failure(format!("property {name}: {text}; expected {expected}"))
    })
}

/// The value of a limit for people, and exactly.
pub(super) fn show_limit(name: QuotaName, limit: u64) -> (String, String) {
    match (limit, name.unit) {
        (0, _) => ("none".to_owned(), "0".to_owned()),
        (limit, QuotaUnit::Bytes) => (size::format(limit), limit.to_string()),
        (limit, QuotaUnit::Objects) => (limit.to_string(), limit.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sizes_or_numbers() {
        let parse = |unit, value| parse_limit("userquota@1", unit, value).map_err(|Failure(text)| text);
        assert_eq!(parse(QuotaUnit::Bytes, "1.5G"), Ok(3 << 29));
        assert_eq!(parse(QuotaUnit::Bytes, "none"), Ok(0));
        assert_eq!(parse(QuotaUnit::Objects, "1000"), Ok(1000));
        for (unit, value) in
            [(QuotaUnit::Bytes, "much"), (QuotaUnit::Objects, "1K"), (QuotaUnit::Objects, "-1")]
        {
            assert!(parse(unit, value).unwrap_err().contains("userquota@1"));
        }
    }
}
