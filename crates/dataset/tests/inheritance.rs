//! Properties and quotas in a tree of data sets.

use crate::records;

use crate::shown::shown;
use crate::support::Machine;
use records::fill;
use terrane_codec::Compression;
use terrane_dataset::{AccessTime, Dataset, DatasetError, Datasets, Source, SyncMode};
use terrane_object::ObjectError;

fn inherited(value: &str, from: &str) -> (String, Source) {
    (value.to_string(), Source::Inherited(from.to_string()))
}

fn create(datasets: &Datasets, path: &str, props: &[(&str, &str)]) -> std::sync::Arc<Dataset> {
    datasets.create(path, props, &mut |_, _| Ok(())).unwrap()
}

#[test]
fn open_data_sets_obey_their_parents_at_once() {
    let m = Machine::new(1);
    let root = Dataset::create_root(&m.objects, &[("mountpoint", "/srv"), ("failmode", "continue")]).unwrap();
    drop(root);
    let datasets = Datasets::open(&m.objects).unwrap();
    let root = datasets.open_dataset("").unwrap();
    let home = create(&datasets, "home", &[("compression", "zstd-3"), ("a:b", "1")]);
    let ann = create(&datasets, "home/ann", &[("quota", "1G")]);
    assert_eq!(shown(&ann, "compression"), inherited("zstd-3", "home"));
    assert_eq!(ann.object_set().policy().compression.to_string(), "zstd-3");
    assert_eq!(shown(&ann, "mountpoint"), inherited("/srv/home/ann", ""));
    assert_eq!(shown(&ann, "a:b"), inherited("1", "home"));
    root.set("atime", "off").unwrap();
    home.set("compression", "off").unwrap();
    home.set("readonly", "on").unwrap();
    assert_eq!((ann.access_time(), shown(&ann, "atime")), (AccessTime::Off, inherited("off", "")));
    assert_eq!(ann.object_set().policy().compression, Compression::Off.into());
    assert!(ann.is_read_only() && home.is_read_only() && !root.is_read_only());
    home.set_temporary("atime", "on").unwrap();
    assert_eq!(
        (home.access_time(), ann.access_time()),
        (AccessTime::On, AccessTime::Off),
        "of one mount alone"
    );
    for refused in [ann.get("failmode").map(drop), ann.set("failmode", "wait"), ann.reset("gc_policy")] {
        assert!(matches!(refused, Err(DatasetError::PoolWide { .. })), "{refused:?}");
    }
    assert!(matches!(
        datasets.create("x", &[("gc_policy", "greedy")], &mut |_, _| Ok(())).map(drop),
        Err(DatasetError::PoolWide { name: "gc_policy" })
    ));
    assert!(ann.list().unwrap().iter().all(|property| property.name != "failmode"));
    // A data set that moves inherits from its new parents.
    create(&datasets, "old", &[("atime", "relatime")]);
    datasets.rename("home/ann", "old/ann").unwrap();
    assert_eq!(shown(&ann, "mountpoint"), inherited("/srv/old/ann", ""));
    assert_eq!(shown(&ann, "quota"), ("1G".to_string(), Source::Local));
    assert!(!ann.is_read_only() && ann.access_time() == AccessTime::Relative);
    root.set("checksum", "sha256").unwrap();
    assert_eq!(shown(&ann, "checksum"), inherited("sha256", ""));
    m.objects.mos().commit().unwrap();
    let before = [&root, &home, &ann].map(|dataset| dataset.list().unwrap());
    drop((root, home, ann, datasets));
    let m = m.crash();
    let datasets = Datasets::open(&m.objects).unwrap();
    let after = ["", "home", "old/ann"].map(|path| datasets.open_dataset(path).unwrap().list().unwrap());
    // What was temporary is gone.
    let lasting = |list: &[terrane_dataset::PropertyValue]| -> Vec<_> {
        list.iter().filter(|property| property.name != "atime").cloned().collect()
    };
    assert_eq!(after.map(|list| lasting(&list)), before.map(|list| lasting(&list)));
}

#[test]
fn sync_is_inherited_and_received() {
    let m = Machine::new(7);
    drop(Dataset::create_root(&m.objects, &[]).unwrap());
    let datasets = Datasets::open(&m.objects).unwrap();
    let root = datasets.open_dataset("").unwrap();
    let home = create(&datasets, "home", &[]);
    assert_eq!((home.sync_mode(), shown(&home, "sync").1), (SyncMode::Standard, Source::Default));
    root.set("sync", "always").unwrap();
    assert_eq!((home.sync_mode(), shown(&home, "sync")), (SyncMode::Always, inherited("always", "")));
    home.set_received("sync", "disabled").unwrap();
    let received = ("disabled".to_string(), Source::Received);
    assert_eq!((home.sync_mode(), shown(&home, "sync")), (SyncMode::Disabled, received));
    home.set("sync", "standard").unwrap();
    assert_eq!(home.sync_mode(), SyncMode::Standard);
    home.reset_to_received("sync").unwrap();
    assert_eq!((home.sync_mode(), root.sync_mode()), (SyncMode::Disabled, SyncMode::Always));
    home.set_temporary("sync", "standard").unwrap();
    assert_eq!(home.sync_mode(), SyncMode::Standard);
    assert!(matches!(root.set("sync", "on"), Err(DatasetError::BadValue { .. })));
    m.objects.mos().commit().unwrap();
    drop((root, home, datasets));
    let m = m.crash();
    let datasets = Datasets::open(&m.objects).unwrap();
    let mode = |path| datasets.open_dataset(path).unwrap().sync_mode();
    assert_eq!((mode(""), mode("home")), (SyncMode::Always, SyncMode::Disabled));
}

#[test]
fn naming_is_the_parents_unless_it_is_given() {
    let m = Machine::new(2);
    Dataset::create_root(&m.objects, &[("casesensitivity", "insensitive"), ("utf8only", "on")]).unwrap();
    let datasets = Datasets::open(&m.objects).unwrap();
    let same = create(&datasets, "same", &[]);
    assert_eq!(same.naming(), datasets.open_dataset("").unwrap().naming());
    assert_eq!(shown(&same, "casesensitivity"), ("insensitive".to_string(), Source::Creation));
    let other = create(&datasets, "other", &[("casesensitivity", "sensitive")]);
    assert_eq!(shown(&other, "casesensitivity").0, "sensitive");
    assert_eq!(shown(&other, "utf8only").0, "on");
}

#[test]
fn a_quota_counts_all_data_sets_below_open_or_not() {
    let m = Machine::new(3);
    Dataset::create_root(&m.objects, &[]).unwrap();
    let datasets = Datasets::open(&m.objects).unwrap();
    create(&datasets, "home", &[("quota", "12M")]);
    let ann = create(&datasets, "home/ann", &[]);
    let ben = create(&datasets, "home/ben", &[("refquota", "2M")]);
    assert!(fill(&ann, 40).1.is_none());
    let (written, refusal) = fill(&ben, 40);
    assert!(written < 16, "{written}");
    assert!(matches!(refusal, Some(ObjectError::Quota { property: "refquota", .. })), "{refusal:?}");
    m.objects.mos().commit().unwrap();
    let used = datasets.branch("home").unwrap().used_bytes();
    assert!(used > 6 << 20 && used <= 12 << 20, "{used}");
    drop((ann, ben, datasets));
    // After an import they are not open, and count all the same.
    let m = m.crash();
    let datasets = Datasets::open(&m.objects).unwrap();
    assert_eq!(datasets.branch("home").unwrap().used_bytes(), used);
    let ben = datasets.open_dataset("home/ben").unwrap();
    ben.set("refquota", "none").unwrap();
    let (written, refusal) = fill(&ben, 100);
    assert!((20..48).contains(&written), "{written}");
    assert!(
        matches!(refusal, Some(ObjectError::Quota { property: "quota", limit, .. }) if limit == 12 << 20)
    );
    m.objects.mos().commit().unwrap();
    let home = datasets.branch("home").unwrap();
    assert!(home.used_bytes() <= 12 << 20);
    assert_eq!(ben.object_set().usage().available_bytes, (12 << 20) - home.used_bytes());
    let other = create(&datasets, "other", &[]);
    assert!(fill(&other, 10).1.is_none(), "beside the quota");
    datasets.open_dataset("home").unwrap().set("quota", "20M").unwrap();
    assert!(fill(&ben, 5).1.is_none());
    m.pool.abandon();
}

#[test]
fn what_only_snapshots_hold_counts_for_the_quota() {
    let m = Machine::new(4);
    Dataset::create_root(&m.objects, &[]).unwrap();
    let datasets = Datasets::open(&m.objects).unwrap();
    let ann = create(&datasets, "ann", &[]);
    assert!(fill(&ann, 20).1.is_none());
    datasets.snapshot(&[("ann", "monday")]).unwrap();
    records::free_all(&ann);
    m.objects.mos().commit().unwrap();
    let usage = datasets.branch("ann").unwrap().own_usage();
    assert!(usage.snapshot_bytes > 20 * (128 << 10) && usage.head_bytes < 1 << 20, "{usage:?}");
    ann.set("quota", "4M").unwrap();
    ann.set("refquota", "4M").unwrap();
    let (written, refusal) = fill(&ann, 40);
    assert!(written < 12, "{written}");
    assert!(matches!(refusal, Some(ObjectError::Quota { property: "quota", .. })), "{refusal:?}");
    m.objects.mos().commit().unwrap();
    let usage = datasets.branch("ann").unwrap().own_usage();
    drop((ann, datasets));
    let m = m.crash();
    assert_eq!(Datasets::open(&m.objects).unwrap().branch("ann").unwrap().own_usage(), usage);
}
