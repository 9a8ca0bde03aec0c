//! Inputs of the targets that read attributes.
//!
//! `nvlist` takes its input as it is. One of `attributes` is two lengths (`u16` each), so many bytes that describe a registry and layouts
//! (none: OpenZFS's), so many of a bonus area, and a spill block.

#[path = "../../crates/sa/tests/oracle/mod.rs"]
mod oracle;

/// Runs one input of `nvlist`; a promise that is broken is a panic.
pub fn run_list(data: &[u8]) {
    oracle::list(data);
}

/// Runs one input of `attributes`; a promise that is broken is a panic.
pub fn run(data: &[u8]) {
    let Some((&[a, b, c, d], rest)) = data.split_first_chunk() else { return };
    let len = |low, high, rest: &[u8]| usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (table, rest) = rest.split_at(len(a, b, rest));
    let (bonus, spill) = rest.split_at(len(c, d, rest));
    if let Some(table) = oracle::table(table) {
        oracle::buffers(bonus, spill, &table);
    }
}

/// An input of `attributes`, as [`run`] takes it apart.
pub fn input(table: &[u8], bonus: &[u8], spill: &[u8]) -> Vec<u8> {
    let len = |part: &[u8]| u16::try_from(part.len()).expect("a small seed").to_le_bytes();
    [&len(table)[..], &len(bonus), table, bonus, spill].concat()
}

/// OpenZFS's registry and layouts, as an input describes them.
pub fn openzfs_table() -> Vec<u8> {
    let mut raw = Vec::new();
    for (row, index) in terrane_sa::Registry::built_in().iter().zip(0..) {
        raw.extend_from_slice(&[0, index]);
        raw.extend_from_slice(&row.to_zap_value().to_le_bytes()[..5]);
    }
    for (number, order) in oracle::OPENZFS_LAYOUTS {
        raw.extend_from_slice(&[1, order.len() as u8]);
        let number: u16 = number.parse().expect("a number");
        for number in std::iter::once(&number).chain(order) {
            raw.extend_from_slice(&number.to_le_bytes());
        }
    }
    raw
}
