//! Lies about the table of shared blocks: `FORMAT.md` 8.8.

use super::{Cast, Forgery, Found, Lie, Shape};
use terrane_oracle::{Failure, ensure, failed};
use terrane_wire::{ObjectId, Writer};

/// Bytes of a block of the table, and of a slot in an index block.
const BLOCK_BYTES: u64 = 16 << 10;
const SLOT_BYTES: u64 = 24;
/// Offsets in the head.
const HEAD_FIELDS: [(&str, u64); 6] = [
    ("magic", 0),
    ("blocks", 8),
    ("references", 16),
    ("block_bytes", 24),
    ("saved_bytes", 32),
    ("reserved", 40),
];

/// Address of a block, and references beyond the first.
type Entry = (u64, u64);

/// A leaf that says that it has `count` entries.
fn leaf(count: u64, entries: &[Entry]) -> Vec<u8> {
    let mut raw = Writer::with_capacity(1000);
    let mut last = 0u64;
    raw.varint(count);
    for (addr, extra) in entries {
        raw.varint(addr.wrapping_sub(last));
        raw.varint(*extra);
        last = *addr;
    }
    let mut raw = raw.into_bytes();
    raw.resize(BLOCK_BYTES as usize, 0);
    raw
}

fn slot((first, last): (u64, u64), entries: u32, reserved: u32) -> Vec<u8> {
    let numbers = [first.to_le_bytes(), last.to_le_bytes()].concat();
    [&numbers[..], &entries.to_le_bytes(), &reserved.to_le_bytes()].concat()
}

pub(super) fn about_table(cast: &Cast, lies: &mut Vec<Lie>) -> Result<(), Failure> {
    let table = cast.objects.shared();
    let object = table.object().ok_or_else(|| Failure("no table of shared blocks".into()))?;
    let mut entries: Vec<Entry> = Vec::new();
    let failures = table.for_each(&mut |addr, extra| entries.push((addr.raw(), extra)));
    ensure(failures.is_empty() && entries.len() > 2 && table.leaf_count() == 1, || {
        format!("{} leaves, {} entries, {failures:?}", table.leaf_count(), entries.len())
    })?;
    about_head(cast, object, lies)?;
    about_leaves(object, &entries, lies);
    for number in cast.numbers().into_iter().filter(|number| *number != object.0) {
        let (name, forgery) = (format!("table of shared blocks is {number}"), Forgery::SharedTable(number));
        lies.push(Lie { name, found: Found::Somehow, forgery });
    }
    for count in [0, 1, 2, 1 << 20, 1 << 40, 1 << 49] {
        // More blocks are holes.
        let found = if count > 2 { Found::Perhaps } else { Found::Somehow };
        let forgery = Forgery::Tree { object, shape: Shape::BlockCount(count) };
        lies.push(Lie { name: format!("shared blocks, {count} blocks"), found, forgery });
    }
    for bytes in [512, 8 << 10, 16 << 20] {
        let forgery = Forgery::Tree { object, shape: Shape::BlockBytes(bytes) };
        lies.push(Lie {
            name: format!("shared blocks, blocks of {bytes} bytes"),
            found: Found::Somehow,
            forgery,
        });
    }
    Ok(())
}

fn about_head(cast: &Cast, object: ObjectId, lies: &mut Vec<Lie>) -> Result<(), Failure> {
    let table = cast.objects.mos().hold(object).map_err(failed("table"))?;
    let head = table.read_block(0).map_err(failed("head"))?;
    for (field, at) in HEAD_FIELDS {
        let raw = head.get(at as usize..).and_then(|raw| raw.first_chunk());
        let number = raw.map_or(0, |raw| u64::from_le_bytes(*raw));
        for lie in [0, 1, number.wrapping_add(1), number.wrapping_sub(1), 1 << 40, u64::MAX] {
            let found = if lie == number { Found::Perhaps } else { Found::Somehow };
            let forgery = Forgery::Bytes { object, at, bytes: lie.to_le_bytes().to_vec() };
            lies.push(Lie { name: format!("head of shared blocks, {field} is {lie}"), found, forgery });
        }
    }
    Ok(())
}

fn about_leaves(object: ObjectId, entries: &[Entry], lies: &mut Vec<Lie>) {
    let mut add = |what: &str, block: u64, slot: u64, bytes: Vec<u8>| {
        let at = block * BLOCK_BYTES + slot * SLOT_BYTES;
        let name = format!("shared blocks, {what}");
        lies.push(Lie { name, found: Found::Somehow, forgery: Forgery::Bytes { object, at, bytes } });
    };
    let (first, last, count) = (entries[0].0, entries[entries.len() - 1].0, entries.len() as u32);
    add("an index without leaves", 1, 0, vec![0; SLOT_BYTES as usize]);
    for (what, span, number, reserved) in [
        ("first 0", (0, last), count, 0),
        ("first behind last", (last + 1, last), count, 0),
        ("last at the end", (first, u64::MAX), count, 0),
        ("first at the start", (1, last), count, 0),
        ("all addresses", (1, u64::MAX), count, 0),
        ("no entries", (first, last), 0, 0),
        ("one more entry", (first, last), count + 1, 0),
        ("entries without end", (first, last), u32::MAX, 0),
        ("reserved 1", (first, last), count, 1),
    ] {
        add(&format!("slot with {what}"), 1, 0, slot(span, number, reserved));
    }
    for (what, at, span) in [
        ("the same leaf again", 1, (first, last)),
        ("a leaf that overlaps", 511, (last, last + 9)),
        ("a leaf that is a hole", 1, (last + 1, last + 9)),
        ("a leaf that is a hole, at the end", 511, (u64::MAX, u64::MAX)),
    ] {
        add(what, 1, at, slot(span, 1, 0));
    }
    let honest = u64::from(count);
    let with = |at: usize, entry: Entry| {
        let mut changed = entries.to_vec();
        changed[at] = entry;
        changed
    };
    for (what, number, lie) in [
        ("one more", honest + 1, entries.to_vec()),
        ("too many", u64::MAX, entries.to_vec()),
        ("one less", honest - 1, entries.to_vec()),
        ("none", 0, Vec::new()),
        ("one more reference", honest, with(1, (entries[1].0, entries[1].1 + 1))),
        ("references without end", honest, with(1, (entries[1].0, u64::MAX))),
        ("no reference", honest, with(1, (entries[1].0, 0))),
        ("another address", honest, with(1, (entries[1].0 - 1, entries[1].1))),
        ("an address twice", honest, with(1, entries[0])),
        ("descending addresses", honest, with(1, (entries[0].0 - 1, 1))),
    ] {
        add(&format!("leaf with {what}"), 2, 0, leaf(number, &lie));
    }
    add("leaf of zeros", 2, 0, vec![0; BLOCK_BYTES as usize]);
    add("leaf of ones", 2, 0, vec![0xff; BLOCK_BYTES as usize]);
}
