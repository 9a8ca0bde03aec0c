//! Objects of one record each.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use terrane_dataset::Dataset;
use terrane_object::{ObjectError, ObjectKind, ObjectSpec};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

/// Writes records until one is refused; returns how many were written, and the refusal.
pub fn fill(dataset: &Dataset, records: u64) -> (u64, Option<ObjectError>) {
    let set = dataset.object_set();
    let spec = || ObjectSpec {
        kind: ObjectKind::File,
        block_size: 128 << 10,
        dnode_slots: 1,
        bonus: Vec::new(),
        spill: None,
    };
    for record in 0..records {
        let cost = Cost { write_bytes: 128 << 10, meta_blocks: 8, objects: 1, ..Cost::NOTHING };
        let tx = match set.begin(cost) {
            Ok(tx) => tx,
            Err(error) => return (record, Some(error)),
        };
        let object = set.create(&tx, spec()).unwrap();
        let mut content = vec![0; 128 << 10];
        let mut word = record.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for byte in &mut content {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (word >> 56) as u8;
        }
        object.write(&tx, 0, &content).unwrap();
    }
    (records, None)
}

/// Destroys all objects of records.
pub fn free_all(dataset: &Dataset) {
    let set = dataset.object_set();
    for number in 2..set.header_counts().high_water {
        let tx = set.begin(Cost { meta_blocks: 8, frees: true, ..Cost::NOTHING }).unwrap();
        let Ok(object) = set.hold(ObjectId(number)) else { continue };
        if object.kind() == ObjectKind::File {
            set.destroy(&tx, &object).unwrap();
        }
    }
}
