//! Damage and forgery end in a named error or in what was written; never in a panic, and always within a time
//! limit.

use std::sync::Arc;
use terrane_dataset::Datasets;
use terrane_device::Device;
use terrane_device::sim::Survival;
use terrane_pool::ImportOptions;
use terrane_posix::Fs;
use terrane_sim::hostile::{
    FixedForgery, Image, Lie, Verdict, bit_flip, fixed_forgery, forge, lies, sealed_forgery, tell,
};
use terrane_sim::machine::{Machine, USER};
use terrane_sim::seeds::{number, seeds};
use terrane_store::env::{Env, SeededEnv};
use terrane_wire::Prng;

#[test]
fn an_image_that_nobody_touched_is_whole() {
    for seed in 0..3 {
        let image = Image::new(seed).unwrap();
        assert_eq!(terrane_sim::hostile::examine(&image.copy(), Some(&image.model)), Ok(Verdict::Intact));
    }
}

#[test]
fn no_flipped_bit_gives_wrong_bytes() {
    let image = Image::new(3).unwrap();
    let used = image.written_ranges().unwrap();
    let total: u64 = used.iter().map(|(_, bytes)| bytes * 8).sum();
    let flips = number("TERRANE_FLIPS").unwrap_or(250).min(total);
    let mut rng = Prng::new(seeds(1)[0]);
    let mut counts = [0u64; 3];
    for flip in 0..flips {
        // All of them in order, or as many at random.
        let mut at = if flips == total { flip } else { rng.below(total) };
        for (zone, bytes) in &used {
            if at < bytes * 8 {
                counts[bit_flip(&image, *zone, at).unwrap_or_else(|failure| panic!("{failure}")) as usize] +=
                    1;
                break;
            }
            at -= bytes * 8;
        }
    }
    println!("{total} bits; refused, damaged, whole: {counts:?}");
    assert!(counts[1] > 0);
}

#[test]
fn no_sealed_forgery_panics_or_hangs() {
    let image = Image::new(5).unwrap();
    let mut counts = [0u64; 4];
    let mut failures = Vec::new();
    for seed in seeds(number("TERRANE_LIES").unwrap_or(500)) {
        match sealed_forgery(&image, seed) {
            Ok(verdict) => counts[verdict.map_or(3, |(verdict, _)| verdict as usize)] += 1,
            Err(failure) => failures.push(failure),
        }
    }
    println!("refused, damaged, whole, none: {counts:?}");
    for failure in failures.iter().take(20) {
        println!("{failure}");
    }
    assert!(memory_peak_kib() < 512 << 10, "{} KiB were used at the peak", memory_peak_kib());
    assert!(failures.is_empty(), "{} lies failed; the first: {}", failures.len(), failures[0]);
}

#[test]
fn forged_counts_neither_panic_nor_hang() {
    // Counting one more or one less overflowed when something was changed.
    let image = Image::new(5).unwrap();
    let forgeries = [FixedForgery::Objects(0), FixedForgery::Objects(u64::MAX)];
    let forgeries =
        forgeries.into_iter().chain([FixedForgery::Used(u64::MAX), FixedForgery::Birth(u64::MAX)]);
    for (fixed, seed) in forgeries.flat_map(|fixed| (0..12).map(move |seed| (fixed, seed))) {
        let was_forged = fixed_forgery(&image, seed, fixed);
        assert!(
            was_forged.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")),
            "{fixed:?} was not told"
        );
    }
}

/// The first lie whose name contains this text.
fn find<'l>(all: &'l [Lie], text: &str) -> &'l Lie {
    all.iter().find(|lie| lie.name.contains(text)).unwrap_or_else(|| panic!("no lie about {text}"))
}

/// Each of these hung, overflowed or was not found.
#[test]
fn lies_that_once_hung_or_overflowed_are_found() {
    let image = Image::new(5).unwrap();
    let all = lies(&image).unwrap();
    let texts = [
        "used is 18446744073709551615",
        "created is 18446744073709551615",
        "562949953421312 blocks",
        "to holes, for",
        "snapshot s3, the same pointers at 4 levels",
        "snapshot s4, the same pointers at 7 levels",
        "\"origin_node\" is [77777]",
        "\"bookmarks\" is [1]",
        "retired \"1.prune_below\" is [0]",
    ];
    for text in texts {
        tell(&image, find(&all, text)).unwrap_or_else(|failure| panic!("{failure}"));
    }
    // The lists of a clone are read to tell what belongs to its origin.
    for lie in all.iter().filter(|lie| lie.name.starts_with("Some(\"clone\")")) {
        if ["562949953421312 blocks", "overflowing fills"].iter().any(|text| lie.name.contains(text)) {
            tell(&image, lie).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

/// The list ends before the missing part. What is behind it stays allocated.
#[test]
fn missing_part_of_a_dead_list_does_not_stop_the_pool() {
    let image = Image::new(5).unwrap();
    let mut reported = 0;
    for lie in lies(&image).unwrap().iter().filter(|lie| lie.name.ends_with("next is 77777")) {
        let device = forge(&image, lie).unwrap();
        let machine = Machine::import(&device, 1, false).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap();
        datasets.release("a", "s3", "tag").unwrap();
        datasets.destroy("clone").unwrap_err();
        for path in ["", "a", "clone"] {
            let snapshots = datasets.snapshots(path).unwrap();
            let names: Vec<&str> = snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
            for name in names {
                // One has a clone.
                let _ = datasets.destroy_snapshots(path, &[name]);
            }
        }
        for _ in 0..4 {
            let txg = machine.pool.open_txg();
            machine.pool.commit_txg(txg).unwrap_or_else(|error| panic!("{}: {error}", lie.name));
        }
        assert!(machine.is_alive(), "{}", lie.name);
        reported += usize::from(!machine.pool.errors().findings.is_empty());
    }
    assert!(reported > 4, "{reported}");
}

/// One damaged data set leaves the others.
#[test]
fn damage_of_one_data_set_leaves_the_others() {
    let image = Image::new(5).unwrap();
    let all = lies(&image).unwrap();
    let cases = [
        ("node \"/a\" \"set\" is [77777]", "clone"),
        ("node \"/a\" \"children\" is [77777]", "clone"),
        ("children of \"\" \"a\" is [77777]", "clone"),
        ("node \"\" \"dead_list\" is [77777]", ""),
        ("node \"\" \"snapshots\" is [77777]", "a"),
        ("retired \"77777.prune_below\" is [1]", "a"),
        ("\"retired\" is [77777]", "a"),
    ];
    for (text, path) in cases {
        let device = forge(&image, find(&all, text)).unwrap();
        let machine = Machine::import(&device, 1, false).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap_or_else(|error| panic!("{text}: {error}"));
        datasets.open_dataset(path).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// A retired set loses all changes. An entry of `retired` must not do that to a data set that is in the tree.
#[test]
fn data_set_that_is_also_retired_keeps_changes() {
    let image = Image::new(5).unwrap();
    let all = lies(&image).unwrap();
    let set = {
        let machine = Machine::import(&image.copy(), 1, true).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap().list().unwrap();
        datasets.into_iter().find(|found| found.path == "a").unwrap().set
    };
    let device = forge(&image, find(&all, &format!("retired \"{set}.prune_below\" is [1]"))).unwrap();
    let open = |machine: &Machine| {
        let datasets = Datasets::open(&machine.objects).unwrap();
        (Fs::open(datasets.open_dataset("a").unwrap()).unwrap(), datasets)
    };
    let machine = Machine::import(&device, 1, false).unwrap();
    let (fs, datasets) = open(&machine);
    fs.create(fs.root(), b"made", 0o644, &USER).unwrap();
    fs.sync().unwrap();
    drop((fs, datasets));
    let machine = Machine::import(&machine.device.restarted(Survival::Everything), 1, false).unwrap();
    let (fs, _datasets) = open(&machine);
    fs.lookup(fs.root(), b"made").unwrap();
}

/// Every field of the structures of data sets, snapshots and dead lists. One in many is told: `TERRANE_LIES` says how many.
#[test]
fn no_lie_about_data_sets_panics_or_hangs() {
    let image = Image::new(5).unwrap();
    let all = lies(&image).unwrap();
    let wanted = number("TERRANE_LIES").unwrap_or(100).min(all.len() as u64);
    let mut counts = [0u64; 3];
    let mut failures = Vec::new();
    let first = seeds(1)[0];
    for at in 0..wanted {
        let at = (first.wrapping_add(at * all.len() as u64 / wanted.max(1))) % all.len() as u64;
        match tell(&image, &all[at as usize]) {
            Ok(verdict) => counts[verdict as usize] += 1,
            Err(failure) => failures.push(failure),
        }
    }
    println!("{wanted} of {} lies; refused, damaged, whole: {counts:?}", all.len());
    for failure in failures.iter().take(40) {
        println!("{failure}");
    }
    assert!(memory_peak_kib() < 512 << 10, "{} KiB were used at the peak", memory_peak_kib());
    assert!(failures.is_empty(), "{} lies failed; the first: {}", failures.len(), failures[0]);
}

/// The table of shared blocks decides which frees are obeyed.
#[test]
fn lies_about_shared_blocks_are_found() {
    let image = Image::new(5).unwrap();
    let all = lies(&image).unwrap();
    let about: Vec<&Lie> = all.iter().filter(|lie| lie.name.contains("shared blocks")).collect();
    let failures: Vec<_> = about.iter().filter_map(|lie| tell(&image, lie).err()).collect();
    assert!(about.len() > 80, "{}", about.len());
    failures.iter().for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} of {} lies failed", failures.len(), about.len());
}

/// A rebuild believes no table of shared blocks.
#[test]
fn lies_about_shared_blocks_end_with_a_rebuild() {
    let image = Image::new(5).unwrap();
    let all = lies(&image).unwrap();
    let (mut rebuilt, mut failures) = (0, Vec::new());
    for lie in all.iter().filter(|lie| lie.name.contains("shared blocks")) {
        let device = forge(&image, lie).unwrap();
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(5));
        if let Err(refused) =
            terrane_check::rebuild_index(&devices, &env, &ImportOptions::default(), &mut |_| {})
        {
            println!("{}: {refused}", lie.name);
            continue;
        }
        rebuilt += 1;
        let checked = Machine::import(&device, 6, false).and_then(|machine| machine.check());
        // A forger of trees does not correct the sums of the meta object set, and a rebuild cannot either.
        let is_of_forger = |text: &str| {
            let sums =
                ["check: object set 0: bytes by the header", "check: object set 0 object 0: stored bytes"];
            sums.iter().any(|sum| text.starts_with(sum)) && text.contains("\n1 findings")
        };
        let failure = checked.err().filter(|failure| !is_of_forger(&failure.0));
        failures.extend(failure.map(|failure| format!("{}: {failure}", lie.name)));
    }
    failures.iter().for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} of {rebuilt} lies stay", failures.len());
    assert!(rebuilt > 80, "{rebuilt}");
}

/// The peak memory of this process, as Linux counts it; 0 elsewhere.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
