//! The root data set across the life of a pool.

use crate::shown::shown;
use crate::support::Machine;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_codec::{ChecksumKind, Compression};
use terrane_dataset::{
    AccessTime, AclType, Dataset, DatasetError, DnodeSize, Naming, PROPERTIES, Source, XattrPlacement,
};
use terrane_device::Device;
use terrane_format::Feature;
use terrane_object::{ObjectKind, ObjectSets};
use terrane_pool::{ImportOptions, Pool};
use terrane_space::policy::{CollectionOptions, IdleWindow, VictimPolicy};
use terrane_store::env::{Env, SystemEnv};
use terrane_txg::cost::Cost;
use terrane_zap::Cursor;

const COST: Cost = Cost { write_bytes: 1 << 20, meta_blocks: 16, ..Cost::NOTHING };

#[test]
fn a_new_data_set_has_defaults_and_the_given_properties() {
    let m = Machine::new(1);
    let dataset =
        Dataset::create_root(&m.objects, &[("compression", "zstd-3"), ("recordsize", "16K")]).unwrap();
    assert_eq!(shown(&dataset, "compression"), ("zstd-3".to_string(), Source::Local));
    assert_eq!(shown(&dataset, "checksum"), ("blake3".to_string(), Source::Default));
    assert_eq!(dataset.list().unwrap().len(), PROPERTIES.len());
    let policy = dataset.object_set().policy();
    assert_eq!(policy.compression.to_string(), "zstd-3");
    assert_eq!((policy.record_size, policy.checksum), (16 << 10, ChecksumKind::Blake3));
    assert_eq!(dataset.access_time(), AccessTime::Relative);
    assert_eq!(of_attributes(&dataset), (XattrPlacement::Sa, AclType::Posix, DnodeSize::Auto));
}

fn of_attributes(dataset: &Dataset) -> (XattrPlacement, AclType, DnodeSize) {
    (dataset.xattr_placement(), dataset.acl_type(), dataset.dnode_size())
}

#[test]
fn properties_act_at_once_and_survive() {
    let m = Machine::new(2);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    dataset.set("compression", "off").unwrap();
    dataset.set("checksum", "fletcher4").unwrap();
    dataset.set("recordsize", "1M").unwrap();
    dataset.set("atime", "off").unwrap();
    for (name, value) in [("xattr", "dir"), ("acltype", "off"), ("dnodesize", "4k")] {
        dataset.set(name, value).unwrap();
    }
    let chosen = (XattrPlacement::Dir, AclType::Off, DnodeSize::Slots(8));
    assert_eq!(of_attributes(&dataset), (chosen.0, AclType::Posix, chosen.2), "a kernel may know of lists");
    assert_eq!(shown(&dataset, "acltype"), ("off".to_string(), Source::Local));
    assert!(dataset.is_pending("acltype") && !dataset.is_pending("xattr") && !dataset.is_pending("atime"));
    let policy = dataset.object_set().policy();
    assert_eq!((policy.compression, policy.checksum), (Compression::Off.into(), ChecksumKind::Fletcher4));
    assert_eq!((policy.record_size, dataset.access_time()), (1 << 20, AccessTime::Off));
    dataset.reset("checksum").unwrap();
    assert_eq!(dataset.object_set().policy().checksum, ChecksumKind::Blake3);
    let pool = || dataset.object_set().pool().collection();
    assert_eq!(pool(), CollectionOptions::default());
    dataset.set("gc_idle", "22:30-06:00").unwrap();
    dataset.set("gc_policy", "greedy").unwrap();
    dataset.set("max_open_zones", "9").unwrap();
    let night = IdleWindow::new(22 * 60 + 30, 6 * 60);
    assert_eq!(
        pool(),
        CollectionOptions { victims: VictimPolicy::Greedy, idle: night, open_zones_max: Some(9) }
    );
    dataset.reset("gc_policy").unwrap();
    m.objects.mos().commit().unwrap();
    let before = dataset.list().unwrap();
    drop(dataset);
    let m = m.crash();
    let dataset = Dataset::open_root(&m.objects).unwrap();
    assert_eq!(dataset.list().unwrap(), before);
    let collection =
        CollectionOptions { victims: VictimPolicy::CostBenefit, idle: night, open_zones_max: Some(9) };
    assert_eq!(dataset.object_set().pool().collection(), collection);
    assert_eq!(dataset.object_set().policy(), policy_with(policy, ChecksumKind::Blake3));
    assert_eq!(of_attributes(&dataset), chosen);
    assert!(!dataset.is_pending("acltype"));
    dataset.set("xattr", "off").unwrap();
    assert_eq!(dataset.xattr_placement(), XattrPlacement::Dir, "a kernel may know that there are some");
    dataset.reset("xattr").unwrap();
    assert_eq!(dataset.xattr_placement(), XattrPlacement::Sa);
    dataset.set_temporary("xattr", "off").unwrap();
    assert_eq!(dataset.xattr_placement(), XattrPlacement::Off);
    dataset.reset("xattr").unwrap();
    assert_eq!(dataset.xattr_placement(), XattrPlacement::Off, "a kernel may know that there are none");
    dataset.set_temporary("acltype", "posix").unwrap();
    assert_eq!(dataset.acl_type(), AclType::Posix);
}

fn policy_with(policy: terrane_object::DataPolicy, checksum: ChecksumKind) -> terrane_object::DataPolicy {
    terrane_object::DataPolicy { checksum, ..policy }
}

#[test]
fn refused_properties_change_nothing() {
    let m = Machine::new(3);
    assert!(matches!(
        Dataset::create_root(&m.objects, &[("dedup", "on")]),
        Err(DatasetError::UnknownProperty { .. })
    ));
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    assert!(matches!(dataset.set("recordsize", "100"), Err(DatasetError::BadValue { .. })));
    assert!(matches!(dataset.get("dedup"), Err(DatasetError::UnknownProperty { .. })));
    assert!(dataset.list().unwrap().iter().all(|property| property.source == Source::Default));
}

/// An older version would take their blocks for damaged.
#[test]
fn new_codecs_enable_their_feature() {
    for (seed, word) in [(20, "lzjb"), (21, "zle"), (22, "gzip"), (23, "gzip-9")] {
        let m = Machine::new(seed);
        let dataset = Dataset::create_root(&m.objects, &[("compression", "lz4")]).unwrap();
        for older in ["zstd-19", "zstd-fast-1000", "off", "on"] {
            dataset.set("compression", older).unwrap();
        }
        assert!(!m.objects.pool().has(Feature::Codecs));
        if seed % 2 == 0 {
            dataset.set("compression", word)
        } else {
            dataset.set_temporary("compression", word)
        }
        .unwrap();
        assert!(m.objects.pool().has(Feature::Codecs), "{word}");
        let m = Machine::new(seed);
        Dataset::create_root(&m.objects, &[("compression", word)]).unwrap();
        assert!(m.objects.pool().has(Feature::Codecs), "{word}");
    }
}

#[test]
fn records_larger_than_a_block_of_the_pool_are_refused() {
    let m = Machine::with_zones_of(25, 1 << 20);
    let max_block = u64::from(m.objects.pool().max_block());
    assert_eq!(max_block, 256 << 10);
    let refused = |error: DatasetError| {
        assert!(matches!(error, DatasetError::BadValue { name: "recordsize", .. }), "{error}");
        assert!(error.to_string().contains("a quarter of a zone"), "{error}");
    };
    refused(Dataset::create_root(&m.objects, &[("recordsize", "1M")]).map(drop).unwrap_err());
    let dataset = Dataset::create_root(&m.objects, &[("recordsize", &max_block.to_string())]).unwrap();
    for word in ["1M", "16M"] {
        refused(dataset.set("recordsize", word).unwrap_err());
        refused(dataset.set_temporary("recordsize", word).unwrap_err());
    }
    assert_eq!(u64::from(dataset.object_set().record_size()), max_block);
}

#[test]
fn naming_is_fixed_at_creation() {
    let m = Machine::new(6);
    let props = [("normalization", "formD"), ("casesensitivity", "mixed")];
    let dataset = Dataset::create_root(&m.objects, &props).unwrap();
    assert!(m.objects.pool().has(Feature::Naming), "an older version would misplace names");
    for property in ["normalization", "casesensitivity", "utf8only"] {
        let before = shown(&dataset, property);
        assert_eq!(before.1, Source::Creation, "{property}");
        for refused in [
            dataset.set(property, &before.0).unwrap_err(),
            dataset.set_temporary(property, &before.0).unwrap_err(),
            dataset.reset(property).unwrap_err(),
        ] {
            assert!(matches!(refused, DatasetError::Fixed { .. }), "{refused}");
            assert!(refused.to_string().contains("pool create"), "{refused}");
        }
    }
    assert_eq!(shown(&dataset, "utf8only").0, "on", "a form wants UTF-8");
    m.objects.mos().commit().unwrap();
    let (before, naming) = (dataset.list().unwrap(), dataset.naming());
    drop(dataset);
    let m = m.crash();
    let dataset = Dataset::open_root(&m.objects).unwrap();
    assert_eq!((dataset.list().unwrap(), dataset.naming()), (before, naming));

    let m = Machine::new(7);
    let dataset = Dataset::create_root(&m.objects, &[("normalization", "none"), ("atime", "on")]).unwrap();
    assert!(!m.objects.pool().has(Feature::Naming));
    assert_eq!(dataset.naming(), Naming::BYTES);
    assert_eq!(shown(&dataset, "normalization"), ("none".to_string(), Source::Default));
    let m = Machine::new(8);
    let contrary = [("utf8only", "off"), ("normalization", "formC")];
    assert!(matches!(Dataset::create_root(&m.objects, &contrary), Err(DatasetError::BadValue { .. })));
}

/// A newer version's value cannot be replaced by the default: names would not be found.
#[test]
fn unknown_naming_is_refused() {
    let m = Machine::new(9);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    {
        let tx = dataset.object_set().begin(COST).unwrap();
        dataset.master().unwrap().add_u64(&tx, b"casesensitivity", 3).unwrap();
    }
    let Err(error) = Dataset::open_root(&m.objects) else { panic!("it was opened") };
    assert!(error.to_string().contains("casesensitivity"), "{error}");
}

#[test]
fn pool_without_a_data_set_is_refused() {
    let m = Machine::new(4);
    assert!(Dataset::open_root(&m.objects).is_err());
}

#[test]
fn a_zap_in_an_object_behaves_like_a_map() {
    let m = Machine::new(5);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    let set = dataset.object_set();
    let (mut zap, mut model) = {
        let tx = set.begin(COST).unwrap();
        (dataset.new_zap(&tx, ObjectKind::Zap).unwrap(), BTreeMap::new())
    };
    let id = zap.object().id();
    let mut seed = 7u64;
    let mut random = |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end
    };
    for round in 0..4 {
        for _ in 0..2000 {
            let tx = set.begin(COST).unwrap();
            let name = format!("name {} {}", random(3000), "x".repeat(random(2) as usize * 60));
            match random(3) {
                0 => {
                    let value = random(1 << 40);
                    zap.update_u64(&tx, name.as_bytes(), value).unwrap();
                    model.insert(name, value);
                }
                1 => {
                    let added = zap.add_u64(&tx, name.as_bytes(), 1).is_ok();
                    assert_eq!(added, !model.contains_key(&name));
                    model.entry(name).or_insert(1);
                }
                _ => assert_eq!(zap.remove(&tx, name.as_bytes()).unwrap(), model.remove(&name).is_some()),
            }
        }
        let listed = |zap: &terrane_dataset::ObjectZap| {
            let (mut seen, mut from) = (BTreeMap::new(), Cursor::START);
            loop {
                let entries = zap.list(from, 37).unwrap();
                for entry in &entries {
                    from = entry.cursor_after();
                    let name = String::from_utf8(entry.key.name().unwrap().to_vec()).unwrap();
                    assert!(seen.insert(name, entry.value.first_integer().unwrap()).is_none());
                }
                if entries.len() < 37 {
                    return seen;
                }
            }
        };
        assert_eq!(listed(&zap), model);
        zap = dataset.open_zap(id).unwrap();
        assert_eq!(listed(&zap), model);
        if round == 2 {
            for name in model.keys() {
                let tx = set.begin(COST).unwrap();
                assert!(zap.remove(&tx, name.as_bytes()).unwrap());
            }
            model.clear();
            assert!(zap.is_empty().unwrap());
            assert_eq!(zap.object().block_count(), 0);
        }
    }
}

fn threaded() -> Arc<dyn Env> {
    Arc::new(SystemEnv::new())
}

/// Changes commit even if all handles of the data set are dropped.
#[test]
fn changes_survive_dropping_the_last_handle() {
    let Machine { device, pool, objects, .. } = Machine::new(40);
    let dataset = Dataset::create_root(&objects, &[]).unwrap();
    drop(objects);
    for value in ["off", "on", "off"] {
        dataset.set("atime", value).unwrap();
        pool.commit().unwrap();
    }
    dataset.set("compression", "zstd-3").unwrap();
    drop(dataset);
    pool.export().unwrap();
    drop(pool);
    let pool = Pool::import(vec![Arc::new(device)], threaded(), &ImportOptions::default()).unwrap();
    let dataset = Dataset::open_root(&ObjectSets::open(Arc::clone(&pool)).unwrap()).unwrap();
    assert_eq!(dataset.access_time(), AccessTime::Off);
    assert_eq!(shown(&dataset, "compression").0, "zstd-3");
    pool.abandon();
}

/// A device is locked while its pool exists: an import right afterwards must find it free.
#[test]
fn dropped_pool_releases_its_devices() {
    let Machine { device, pool, objects, .. } = Machine::new(41);
    Dataset::create_root(&objects, &[]).unwrap();
    pool.export().unwrap();
    let device: Arc<dyn Device> = Arc::new(device);
    let import = |read_only| {
        let options = ImportOptions { read_only, ..ImportOptions::default() };
        let pool = Pool::import(vec![Arc::clone(&device)], threaded(), &options).unwrap();
        let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
        (pool, Dataset::open_root(&objects).unwrap())
    };
    for round in 0..20 {
        let (pool, dataset) = import(false);
        dataset.set("recordsize", ["16K", "1M"][round % 2]).unwrap();
        if round % 4 == 3 {
            pool.abandon();
        } else {
            pool.export().unwrap();
        }
        drop((pool, dataset));
        assert_eq!(Arc::strong_count(&device), 1, "in round {round}");
        // A read-only pool must not leave anything running either.
        drop(import(true));
        assert_eq!(Arc::strong_count(&device), 1, "read only, in round {round}");
    }
}
