//! Inputs of the targets that read attributes.
//!
//! `nvlist` takes its input as it is. An input of `attributes` begins with two lengths (`u16` each). Bytes of the first length describe a
//! registry and layouts (0: those of OpenZFS). Bytes of the second length are a bonus area. The rest is a spill block.

#[path = "../../crates/sa/tests/oracle/mod.rs"]
mod oracle;

/// Runs one input of `nvlist`. Panics if a promise is broken.
pub fn run_list(data: &[u8]) {
    oracle::list(data);
}

/// Runs one input of `attributes`. Panics if a promise is broken.
pub fn run(data: &[u8]) {
    let Some((&[a, b, c, d], rest)) = data.split_first_chunk() else { return };
    let len = |low, high, rest: &[u8]| usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (table, rest) = rest.split_at(len(a, b, rest));
    let (bonus, spill) = rest.split_at(len(c, d, rest));
    if let Some(table) = oracle::table(table) {
        oracle::buffers(bonus, spill, &table);
    }
}

/// Builds an input of `attributes`, in the layout that [`run`] expects.
pub fn input(table: &[u8], bonus: &[u8], spill: &[u8]) -> Vec<u8> {
    let len = |part: &[u8]| u16::try_from(part.len()).expect("a small seed").to_le_bytes();
    [&len(table)[..], &len(bonus), table, bonus, spill].concat()
}

/// OpenZFS's registry and layouts, in the form of an input.
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
