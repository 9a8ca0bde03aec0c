//! Properties beside those of the table's numbers, and quotas, on the root data set.

use crate::records::fill;
use crate::shown::shown;
use crate::support::Machine;
use terrane_dataset::{Dataset, DatasetError, SnapDir, Source};
use terrane_object::ObjectError;
use terrane_txg::cost::Cost;

#[test]
fn texts_survive_beside_numbers() {
    let m = Machine::new(1);
    let dataset =
        Dataset::create_root(&m.objects, &[("mountpoint", "/srv"), ("com.example:a", "1")]).unwrap();
    let long = "ü".repeat(4000);
    dataset.set("com.example:long", &long).unwrap();
    dataset.set("com.example:empty", "").unwrap();
    dataset.set("compression", "zstd-3").unwrap();
    dataset.set("snapdir", "visible").unwrap();
    dataset.set_received("atime", "off").unwrap();
    dataset.set_received("compression", "gzip").unwrap();
    m.objects.mos().commit().unwrap();
    let before = dataset.list().unwrap();
    drop(dataset);
    let m = m.crash();
    let dataset = Dataset::open_root(&m.objects).unwrap();
    assert_eq!(dataset.list().unwrap(), before);
    assert_eq!(shown(&dataset, "mountpoint"), ("/srv".into(), Source::Local));
    assert_eq!(shown(&dataset, "com.example:long"), (long, Source::Local));
    assert_eq!(shown(&dataset, "com.example:empty"), (String::new(), Source::Local));
    assert_eq!(shown(&dataset, "atime"), ("off".into(), Source::Received));
    assert_eq!(shown(&dataset, "compression"), ("zstd-3".into(), Source::Local));
    assert_eq!(dataset.snapdir(), SnapDir::Visible);
    dataset.reset_to_received("compression").unwrap();
    assert_eq!(shown(&dataset, "compression"), ("gzip-6".into(), Source::Received));
    assert_eq!(dataset.object_set().policy().compression.to_string(), "gzip-6");
    dataset.reset("compression").unwrap();
    assert_eq!(shown(&dataset, "compression"), ("lz4".into(), Source::Default));
    dataset.reset("com.example:a").unwrap();
    assert!(matches!(dataset.get("com.example:a"), Err(DatasetError::NotSet { .. })));
    assert!(matches!(dataset.set("Com.Example:a", "1"), Err(DatasetError::BadUserProperty { .. })));
    assert!(matches!(dataset.set("a:b", &"x".repeat(8192)), Err(DatasetError::BadUserProperty { .. })));
    m.objects.mos().commit().unwrap();
    let before = dataset.list().unwrap();
    drop(dataset);
    let m = m.crash();
    assert_eq!(Dataset::open_root(&m.objects).unwrap().list().unwrap(), before);
}

#[test]
fn a_read_only_data_set_admits_write_backs_for_a_while() {
    let m = Machine::new(2);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    assert!(!dataset.is_read_only() && dataset.admits_change(false));
    dataset.set("readonly", "on").unwrap();
    assert!(dataset.is_read_only() && !dataset.admits_change(false) && dataset.admits_change(true));
    m.pool.env().sleep(std::time::Duration::from_secs(61));
    assert!(!dataset.admits_change(true), "by then the kernel has nothing left to write");
    dataset.expect_write_backs();
    assert!(dataset.admits_change(true), "a successor's kernel may have");
    m.objects.mos().commit().unwrap();
    drop(dataset);
    let m = m.crash();
    let dataset = Dataset::open_root(&m.objects).unwrap();
    assert!(dataset.is_read_only() && !dataset.admits_change(true));
    dataset.set("readonly", "off").unwrap();
    assert!(dataset.admits_change(false));
}

#[test]
fn quotas_bound_what_is_used() {
    for (seed, name) in [(3, "quota"), (4, "refquota")] {
        let m = Machine::new(seed);
        let dataset = Dataset::create_root(&m.objects, &[(name, "8M")]).unwrap();
        let limit = 8 << 20;
        assert_eq!(dataset.object_set().usage().size_bytes, limit);
        let (written, refusal) = fill(&dataset, 100);
        let Some(ObjectError::Quota { property, limit: found, used, need }) = refusal else {
            panic!("{refusal:?}")
        };
        assert_eq!((property, found), (name, limit));
        assert!(used + need > limit && used <= limit, "{used} + {need}");
        m.objects.mos().commit().unwrap();
        let used = dataset.branch().used_bytes();
        assert!(used <= limit && written > 55, "{written} records take {used}");
        assert_eq!(dataset.object_set().usage().available_bytes, limit - used);
        let write_back = Cost { write_bytes: 128 << 10, writes_back: true, ..Cost::NOTHING };
        let freeing = Cost { meta_blocks: 8, frees: true, ..Cost::NOTHING };
        drop(dataset.object_set().begin(write_back).unwrap());
        drop(dataset.object_set().begin(freeing).unwrap());
        let large = Cost { write_bytes: 2 << 20, writes_back: true, ..Cost::NOTHING };
        assert!(
            matches!(dataset.object_set().begin(large), Err(ObjectError::Quota { .. })),
            "within the margin only"
        );
        dataset.set(name, "16M").unwrap();
        assert_eq!(fill(&dataset, 10).0, 10);
        dataset.set(name, "4M").unwrap();
        assert_eq!(fill(&dataset, 1).0, 0, "less than is used");
        assert_eq!(dataset.object_set().usage().available_bytes, 0);
        dataset.reset(name).unwrap();
        assert_eq!(fill(&dataset, 10).0, 10);
        m.pool.abandon();
    }
}
