//! Growth of ZAPs in a data set: by features and the property `zapsize`, and within what was reserved.

use crate::support::Machine;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_dataset::{Dataset, Naming, ObjectZap, ZapPolicy};
use terrane_format::Feature;
use terrane_object::ObjectKind;
use terrane_txg::cost::Cost;
use terrane_wire::Prng;
use terrane_zap::{Kind, ValueRef};

const COST: Cost = Cost { write_bytes: 4 << 20, meta_blocks: 64, ..Cost::NOTHING };
const THREE: ValueRef<'_> = ValueRef::U64s(&[0x2_0000_0401, 7, 0]);

fn new_zap(dataset: &Dataset) -> ObjectZap {
    let tx = dataset.object_set().begin(COST).unwrap();
    dataset.new_zap(&tx, ObjectKind::Zap).unwrap()
}

fn add(dataset: &Dataset, zap: &mut ObjectZap, name: &str, value: ValueRef<'_>) {
    let tx = dataset.object_set().begin(COST).unwrap();
    zap.add(&tx, name, value).unwrap();
}

#[test]
fn a_pool_without_the_feature_gets_no_tiny_zap_before_it_is_upgraded() {
    let machine = Machine::without_features(1);
    let dataset = Dataset::create_root(&machine.objects, &[]).unwrap();
    let (mut before, mut throughout) = (new_zap(&dataset), new_zap(&dataset));
    add(&dataset, &mut before, "three", THREE);
    assert_eq!(before.kind().unwrap(), Kind::Fat, "as in the first version");
    add(&dataset, &mut throughout, "one", ValueRef::U64s(&[1]));
    assert_eq!(throughout.kind().unwrap(), Kind::Micro);

    machine.objects.pool().enable(&[Feature::TinyZap]).unwrap();
    add(&dataset, &mut before, "another three", THREE);
    assert_eq!(before.kind().unwrap(), Kind::Fat, "what is there stays as it is");
    let mut after = new_zap(&dataset);
    add(&dataset, &mut after, "three", THREE);
    assert_eq!(after.kind().unwrap(), Kind::Tiny { chunk_bytes: 64, value_ints: 3 });
    let long = "a name that is longer than forty-nine bytes, and so for tiny slots";
    add(&dataset, &mut throughout, long, ValueRef::U64s(&[2]));
    assert_eq!(throughout.kind().unwrap(), Kind::Tiny { chunk_bytes: 128, value_ints: 1 });
    dataset.object_set().commit().unwrap();

    let (before, after) = (before.object().id(), after.object().id());
    let machine = machine.crash();
    let dataset = Dataset::open_root(&machine.objects).unwrap();
    for id in [before, after] {
        let zap = dataset.open_zap(id).unwrap();
        assert_eq!(zap.lookup("three").unwrap().unwrap().ints(), [0x2_0000_0401, 7, 0]);
    }
}

#[test]
fn the_meta_object_set_has_no_tiny_zap() {
    let machine = Machine::new(2);
    let dataset = Dataset::create_root(&machine.objects, &[]).unwrap();
    let mos = machine.objects.mos();
    let policy = ZapPolicy::of(mos);
    assert!(dataset.zap_policy().may_be_tiny() && !policy.may_be_tiny());
    let mut props = ObjectZap::new(&policy, mos.hold(terrane_dataset::POOL_DIRECTORY).unwrap());
    let tx = mos.begin(COST).unwrap();
    props.add(&tx, "three", THREE).unwrap();
    assert_eq!(props.kind().unwrap(), Kind::Fat);
}

#[test]
fn a_block_of_slots_grows_as_far_as_the_property_says() {
    // Its zones support blocks of 2 MiB.
    let machine = Machine::new(3);
    let dataset = Dataset::create_root(&machine.objects, &[("zapsize", "1536")]).unwrap();
    let fill = |zap: &mut ObjectZap, names: usize| {
        for number in 0..names {
            add(&dataset, zap, &format!("{number}"), ValueRef::U64s(&[1]));
        }
    };
    let mut zap = new_zap(&dataset);
    fill(&mut zap, 23);
    assert_eq!((zap.kind().unwrap(), zap.object().block_size()), (Kind::Micro, 1536));
    add(&dataset, &mut zap, "one more", ValueRef::U64s(&[1]));
    assert_eq!(zap.kind().unwrap(), Kind::Fat);
    dataset.set("zapsize", "1M").unwrap();
    let mut zap = new_zap(&dataset);
    fill(&mut zap, 2100);
    assert_eq!(zap.kind().unwrap(), Kind::Micro);
    assert!(zap.object().block_size() > 128 << 10);
    dataset.reset("zapsize").unwrap();
    add(&dataset, &mut zap, "one more", ValueRef::U64s(&[1]));
    assert_eq!(zap.kind().unwrap(), Kind::Micro, "there is a free slot");
    fill(&mut new_zap(&dataset), 10);
    assert_eq!(dataset.get("zapsize").unwrap().value, "128K");
}

#[test]
fn the_property_is_clipped_by_the_largest_block_of_the_pool() {
    let machine = Machine::with_zones_of(4, 1 << 20);
    let dataset = Dataset::create_root(&machine.objects, &[("zapsize", "1M")]).unwrap();
    assert_eq!(dataset.get("zapsize").unwrap().value, "1M");
    let max_block = machine.objects.pool().max_block();
    assert_eq!((max_block, dataset.zap_policy().slots_bytes_max()), (256 << 10, 256 << 10));
    let mut zap = new_zap(&dataset);
    let mut number = 0;
    while zap.kind().unwrap() != Kind::Fat {
        let tx = dataset.object_set().begin(COST).unwrap();
        for _ in 0..100 {
            zap.add_u64(&tx, format!("{number}").as_bytes(), 1).unwrap();
            number += 1;
        }
    }
    assert!(number > 4000, "{number} names in a block of 256 KiB");
}

/// Each change in its own txg, so that it alone causes all dirty blocks.
#[test]
fn changes_dirty_at_most_their_cost() {
    let machine = Machine::new(5);
    let dataset = Dataset::create_root(&machine.objects, &[]).unwrap();
    let set = dataset.object_set();
    let (mut conversions, mut reshaped) = (0, 0);
    for (round, ints) in [1, 1, 3, 7, 15, 31].into_iter().enumerate() {
        let limit = ["2K", "8K", "32K", "128K", "1M", "16K"][round];
        dataset.set("zapsize", limit).unwrap();
        let mut zap = new_zap(&dataset);
        let mut names = 0;
        let mut longest = 3;
        while names < 5000 && zap.kind().unwrap() != Kind::Fat {
            // Mostly unchanged lengths, sometimes longer ones, and once a name that no slot can hold.
            let value = vec![names; ints];
            let len = match names % 97 {
                96 => (longest * 2).min(100),
                _ if names == 1500 => 250,
                _ => 3.max(longest / 2),
            };
            longest = longest.max(len);
            let name = format!("{names:0len$}");
            let size_before = (zap.kind().unwrap(), zap.object().block_size());
            let cost = zap.put_cost(name.len(), ValueRef::U64s(&value));
            set.commit().unwrap();
            let tx = set.begin(COST).unwrap();
            zap.add(&tx, name.as_str(), ValueRef::U64s(&value)).unwrap();
            let dirty = zap.object().dirty_blocks(&tx) as u64 * u64::from(zap.object().block_size());
            assert!(
                dirty <= cost.bytes,
                "{ints} integers, name {names} of {len}: {dirty} bytes are dirty, {cost:?}; {size_before:?}"
            );
            conversions += u32::from(zap.kind().unwrap() == Kind::Fat);
            reshaped += u32::from(size_before.0 != zap.kind().unwrap());
            drop(tx);
            names += 1;
            // Many at once up to near the limit, and then one by one.
            let tx = set.begin(COST).unwrap();
            let is_small = |zap: &ObjectZap| {
                u64::from(zap.object().block_size()) * 2 < u64::from(dataset.zap_policy().slots_bytes_max())
            };
            while is_small(&zap) && names % 97 < 90 && names % 200 != 100 {
                let name = format!("{names:0width$}", width = 3.max(longest / 2));
                zap.add(&tx, name.as_str(), ValueRef::U64s(&vec![names; ints])).unwrap();
                names += 1;
            }
        }
    }
    assert!(conversions >= 3 && reshaped >= 6, "{conversions} {reshaped}");
}

/// Words beside the entries of a directory come and go, and slots get wider.
#[test]
fn words_beside_entries_dirty_at_most_their_cost() {
    let machine = Machine::new(6);
    let dataset = Dataset::create_root(&machine.objects, &[]).unwrap();
    let set = dataset.object_set();
    let mut reshaped = BTreeMap::new();
    for (seed, limit) in [(1, "2K"), (2, "8K"), (3, "32K"), (4, "128K"), (5, "8K"), (6, "32K")] {
        dataset.set("zapsize", limit).unwrap();
        let mut rng = Prng::new(seed);
        let object = Arc::clone(new_zap(&dataset).object());
        let mut zap = ObjectZap::directory(dataset.zap_policy(), object, Naming::BYTES);
        let plain = 1 + rng.below(u64::from(dataset.zap_policy().slots_bytes_max()) / 64 - 8);
        let tx = set.begin(COST).unwrap();
        for number in 0..plain {
            zap.add_u64(&tx, format!("{number}").as_bytes(), number).unwrap();
        }
        drop(tx);
        for step in 0..60 {
            let len = [1, 1, 1, 20, 40, 70, 110, 200][(rng.below(8).min(step / 6)) as usize];
            let name = format!("{:0len$}", rng.below(2 * plain));
            let count = rng.below(7).min(step / 8) as usize;
            let value: Vec<u64> = [&[step | (count as u64) << 48][..], &vec![step; count]].concat();
            let kind_before = zap.kind().unwrap();
            let cost = zap.put_cost(name.len(), ValueRef::U64s(&value));
            set.commit().unwrap();
            let tx = set.begin(COST).unwrap();
            zap.update(&tx, name.as_str(), ValueRef::U64s(&value)).unwrap();
            let dirty = zap.object().dirty_blocks(&tx) as u64 * u64::from(zap.object().block_size());
            let kind = zap.kind().unwrap();
            assert!(
                dirty <= cost.bytes,
                "seed {seed}, {count} words, {len} bytes of name: {dirty} bytes are dirty, {cost:?}; {kind_before} to {kind}"
            );
            if kind != kind_before {
                *reshaped.entry((kind_before.to_string(), kind.to_string())).or_insert(0) += 1;
            }
            if kind == Kind::Fat && step > 40 {
                break;
            }
        }
    }
    let from = |kind: &str| reshaped.keys().filter(|(from, _)| from.starts_with(kind)).count();
    assert!(from("Micro") >= 1 && from("Tiny") >= 4, "{reshaped:?}");
}
