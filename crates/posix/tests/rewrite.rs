//! Rewrites of files in use: programs see no difference, and a crash costs only time.

use crate::support::{Machine, Short, USER};
use std::collections::BTreeMap;
use terrane_codec::Compression;
use terrane_format::BlockPtr;
use terrane_posix::{
    Attr, Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, Job, JobStep, RewriteFigures, RewritePass,
    RewriteSpec, RewriteState,
};
use terrane_wire::{ObjectId, Prng};

/// Lines that every algorithm compresses, and better ones more.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Prng::new(seed);
    let mut out = Vec::with_capacity(len + 64);
    while out.len() < len {
        let words = ["zone", "record", "granule", "pointer", "group", "tree", "the", "of", "and", "writes"];
        for _ in 0..rng.below(9) + 2 {
            out.extend_from_slice(rng.one_of(&words).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(format!("{}\n", rng.below(1000)).as_bytes());
    }
    out.truncate(len);
    out
}

fn spec(root: Ino, compression: &str) -> RewriteSpec {
    RewriteSpec { root, recursive: true, compression: Some(compression.parse().unwrap()), record_size: None }
}

fn resized(root: Ino, bytes: u32) -> RewriteSpec {
    RewriteSpec { root, recursive: true, compression: None, record_size: Some(bytes) }
}

fn run(fs: &Fs) -> RewriteFigures {
    let mut steps = 0;
    while fs.rewrite().step(1).unwrap() != JobStep::NothingToDo {
        steps += 1;
        assert!(steps < 100_000, "it goes on for ever");
    }
    let status = fs.rewrite().progress().unwrap();
    assert_eq!(status.state, RewriteState::Done);
    fs.sync().unwrap();
    status.figures
}

/// Algorithms and levels of a file's records, with the number of records.
fn made_by(fs: &Fs, ino: Ino) -> BTreeMap<String, u64> {
    fs.sync().unwrap();
    let set = fs.dataset().object_set();
    let object = set.hold(ObjectId(ino)).unwrap();
    let mut found = BTreeMap::new();
    for block in 0..object.block_count() {
        let Some(BlockPtr::Normal(normal)) = object.stored_pointer(block).unwrap() else { continue };
        let name = match set.pool().zstd_level(&normal).unwrap() {
            Some(level) => Compression::Zstd(level).to_string(),
            None => Compression::name_of_id(normal.compression).unwrap().to_owned(),
        };
        *found.entry(name).or_default() += 1;
    }
    found
}

fn is_made_by(fs: &Fs, ino: Ino, name: &str) -> bool {
    let found = made_by(fs, ino);
    found.len() == 1 && found.contains_key(name)
}

/// The attributes that must not change.
fn seen(attr: &Attr) -> Attr {
    Attr { blocks: 0, blocks_known: true, blksize: 0, ..*attr }
}

/// A tree with all cases: files of many records, of one, embedded ones, holes, links, empty files.
fn tree(fs: &Fs) -> BTreeMap<Ino, (Attr, Vec<u8>)> {
    let root = fs.root();
    let mut files = Vec::new();
    let mut dirs = vec![root];
    for at in 0..5 {
        let parent = dirs[at / 2];
        dirs.push(fs.dir(parent, &format!("directory {at}")).ino);
    }
    for (at, len) in [0, 40, 700, 16 << 10, 50_000, 300_000, 3].into_iter().enumerate() {
        for (number, dir) in dirs.iter().enumerate() {
            let ino = fs.file(*dir, &format!("file {at}")).ino;
            fs.put(ino, 0, &text(at as u64 * 100 + number as u64, len));
            files.push(ino);
        }
    }
    let sparse = fs.file(dirs[3], "sparse").ino;
    fs.put(sparse, 2_000_000, &text(5, 70_000));
    fs.put(sparse, 0, &text(6, 100_000));
    fs.fallocate(sparse, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 20_000, 50_000).unwrap();
    fs.size(sparse, 3_000_000).unwrap();
    files.push(sparse);
    let noise = fs.file(dirs[4], "noise").ino;
    fs.put(noise, 0, &Prng::new(9).random_bytes(100_000));
    fs.link(noise, root, b"linked").unwrap();
    files.push(noise);
    fs.sync().unwrap();
    files.into_iter().map(|ino| (ino, (fs.getattr(ino).unwrap(), fs.bytes(ino)))).collect()
}

fn same(fs: &Fs, files: &BTreeMap<Ino, (Attr, Vec<u8>)>) {
    for (ino, (attr, bytes)) in files {
        let found = fs.getattr(*ino).unwrap();
        assert_eq!(seen(&found), seen(attr), "inode {ino}");
        assert!(fs.bytes(*ino) == *bytes, "content of inode {ino}");
    }
}

#[test]
fn rewriting_a_tree_changes_nothing_visible() {
    let mut m = Machine::new(31, &[("compression", "lz4"), ("recordsize", "16K"), ("atime", "off")]);
    let files = tree(m.fs());
    m.fs().rewrite().begin(&spec(m.fs().root(), "zstd-9")).unwrap();
    let figures = run(m.fs());
    // Counted by names: one file has two.
    assert_eq!((figures.files_total, figures.files, figures.errors), (45, 45, 0));
    assert!(figures.after_bytes * 10 < figures.before_bytes * 8, "{figures:?}");
    same(m.fs(), &files);
    let mut many = 0;
    for (ino, (_, bytes)) in &files {
        let made = made_by(m.fs(), *ino);
        assert!(
            made.keys().all(|name| name == "zstd-9" || name == "off"),
            "{made:?} of {} bytes",
            bytes.len()
        );
        many += made.get("zstd-9").unwrap_or(&0);
    }
    assert!(many > 100, "{many}");
    m.remount();
    assert_eq!(m.fs().rewrite().progress(), None);
    same(m.fs(), &files);
    // A repetition has nothing to do, and a lower level is applied.
    m.fs().rewrite().begin(&spec(m.fs().root(), "zstd-9")).unwrap();
    assert_eq!(run(m.fs()).before_bytes, 0);
    m.fs().rewrite().begin(&spec(m.fs().root(), "gzip-1")).unwrap();
    run(m.fs());
    m.remount();
    same(m.fs(), &files);
    let large = files.iter().find(|(_, (_, bytes))| bytes.len() == 300_000).unwrap().0;
    assert!(is_made_by(m.fs(), *large, "gzip-1"));
    // Later writes follow the property.
    m.fs().put(*large, 40_000, b"new");
    assert_eq!(made_by(m.fs(), *large).get("lz4"), Some(&1));
}

#[test]
fn a_rewrite_resumes_after_a_crash() {
    for seed in 40..46 {
        let mut m = Machine::new(seed, &[("compression", "lz4"), ("recordsize", "16K"), ("atime", "off")]);
        let files = tree(m.fs());
        let root = m.fs().root();
        m.fs().rewrite().begin(&spec(root, "zstd-3")).unwrap();
        m.fs().sync().unwrap();
        let mut rng = Prng::new(seed);
        let mut crashes = 0;
        let (mut done_before, mut rewritten) = (0, 0);
        while m.fs().rewrite().is_running() {
            for _ in 0..rng.below(90) {
                m.fs().rewrite().step(1 << rng.below(17)).unwrap();
            }
            if rng.below(3) > 0 {
                m.fs().sync().unwrap();
                let status = m.fs().rewrite().progress().unwrap();
                done_before = done_before.max(status.figures.before_bytes);
            }
            if rng.below(2) > 0 {
                m.crash();
                crashes += 1;
                if let Some(status) = m.fs().rewrite().progress() {
                    assert_eq!(status.spec, spec(root, "zstd-3"));
                    let figures = status.figures;
                    assert!(figures.before_bytes >= done_before, "what was committed is done: {figures:?}");
                }
            }
            rewritten = m.fs().rewrite().progress().map_or(rewritten, |status| status.figures.before_bytes);
        }
        assert!(crashes > 0 && rewritten > 0);
        assert_eq!(m.fs().rewrite().step(1), Ok(JobStep::NothingToDo));
        same(m.fs(), &files);
        for (ino, (_, bytes)) in files.iter().filter(|(_, (_, bytes))| bytes.len() == 300_000) {
            assert!(is_made_by(m.fs(), *ino, "zstd-3"), "{} bytes", bytes.len());
        }
    }
}

#[test]
fn a_concurrent_write_wins_over_a_rewrite() {
    let m = Machine::new(51, &[("compression", "lz4"), ("recordsize", "16K")]);
    let fs = m.fs();
    let file = fs.file(fs.root(), "busy").ino;
    let mut model = text(1, 900_000);
    fs.put(file, 0, &model);
    fs.sync().unwrap();
    fs.rewrite().begin(&RewriteSpec { recursive: false, ..spec(file, "zstd-9") }).unwrap();
    let mut rng = Prng::new(51);
    while fs.rewrite().step(1 << rng.below(16)).unwrap() != JobStep::NothingToDo {
        let at = rng.below(890_000);
        let data = text(rng.next_u64(), 1 + rng.below(9000) as usize);
        fs.put(file, at, &data);
        model[at as usize..][..data.len()].copy_from_slice(&data);
        if rng.below(9) == 0 {
            fs.sync().unwrap();
        }
    }
    let made = made_by(fs, file);
    assert!(made.contains_key("lz4") && made.contains_key("zstd-9"), "{made:?}");
    assert!(fs.bytes(file) == model);
}

#[test]
fn records_of_another_size_hold_the_same() {
    for (before, after) in [("4K", 64 << 10), ("128K", 4 << 10), ("16K", 512), ("512", 1 << 20)] {
        let mut m = Machine::new(61, &[("compression", "lz4"), ("recordsize", before), ("atime", "off")]);
        let files = tree(m.fs());
        let root = m.fs().root();
        m.fs().rewrite().begin(&resized(root, after)).unwrap();
        let figures = run(m.fs());
        assert!(figures.reshaped > 10 && (figures.no_room, figures.busy) == (0, 0), "{figures:?}");
        same(m.fs(), &files);
        m.remount();
        same(m.fs(), &files);
        for (ino, (attr, _)) in &files {
            let object = m.fs().dataset().object_set().hold(ObjectId(*ino)).unwrap();
            let whole = u32::try_from(attr.size.next_multiple_of(512)).unwrap().max(512);
            assert!(object.block_size() == after || object.block_size() <= whole.min(after), "{attr:?}");
            assert!(object.block_count() * u64::from(object.block_size()) < attr.size + u64::from(after));
        }
        // They can be written, truncated and extended like any other.
        let (large, (attr, bytes)) = files.iter().find(|(_, (_, bytes))| bytes.len() == 300_000).unwrap();
        // A new mount in the simulator restarts the clock.
        pass(m.fs(), 60);
        m.fs().put(*large, 299_000, &[7; 5000]);
        m.fs().size(*large, 301_000).unwrap();
        let mut model = bytes.clone();
        model.resize(304_000, 0);
        model[299_000..304_000].fill(7);
        model.truncate(301_000);
        assert!(m.fs().bytes(*large) == model);
        assert_ne!(m.fs().getattr(*large).unwrap().mtime, attr.mtime);
    }
}

#[test]
fn both_passes_run_despite_a_crash_between_them() {
    for seed in 70..74 {
        let mut m = Machine::new(seed, &[("compression", "lz4"), ("recordsize", "4K"), ("atime", "off")]);
        let files = tree(m.fs());
        let root = m.fs().root();
        let both = RewriteSpec { record_size: Some(32 << 10), ..spec(root, "zstd-19") };
        m.fs().rewrite().begin(&both).unwrap();
        m.fs().sync().unwrap();
        let mut rng = Prng::new(seed);
        for _ in 0..4 {
            for _ in 0..rng.below(120) {
                m.fs().rewrite().step(1).unwrap();
            }
            m.crash();
            same(m.fs(), &files);
        }
        run_to_the_end(m.fs());
        same(m.fs(), &files);
        for (ino, _) in files.iter().filter(|(_, (_, bytes))| bytes.len() == 300_000) {
            assert!(is_made_by(m.fs(), *ino, "zstd-19"));
            assert_eq!(m.fs().dataset().object_set().hold(ObjectId(*ino)).unwrap().block_size(), 32 << 10);
        }
    }
}

fn run_to_the_end(fs: &Fs) {
    while fs.rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    fs.sync().unwrap();
}

#[test]
fn invalid_rewrites_are_refused_and_running_ones_cancelled() {
    let mut m = Machine::new(81, &[("recordsize", "16K")]);
    let fs = m.fs();
    let root = fs.root();
    assert_eq!(fs.rewrite().step(1), Ok(JobStep::NothingToDo));
    assert_eq!((fs.rewrite().progress(), fs.rewrite().cancel()), (None, Ok(false)));
    let fifo = fs.mknod(root, b"fifo", 0o010_644, 0, &USER).unwrap().ino;
    let max = fs.dataset().object_set().pool().max_block();
    for (wrong, errno) in [
        (RewriteSpec { recursive: false, ..spec(root, "lz4") }, Errno::EISDIR),
        (spec(fifo, "lz4"), Errno::EINVAL),
        (spec(1 << 40, "lz4"), Errno::ESTALE),
        (RewriteSpec { compression: None, ..spec(root, "lz4") }, Errno::EINVAL),
        (resized(root, 3000), Errno::EINVAL),
        (resized(root, 256), Errno::EINVAL),
        (resized(root, 2 * max), Errno::EINVAL),
    ] {
        assert_eq!(fs.rewrite().begin(&wrong), Err(errno), "{wrong:?}");
    }
    for at in 0..20 {
        let file = fs.file(root, &format!("file {at}")).ino;
        fs.put(file, 0, &text(at, 100_000));
    }
    fs.sync().unwrap();
    let ours = spec(root, "zstd-9");
    fs.rewrite().begin(&ours).unwrap();
    fs.rewrite().begin(&ours).unwrap();
    assert_eq!(fs.rewrite().begin(&spec(root, "lz4")), Err(Errno::EBUSY));
    for _ in 0..40 {
        assert_eq!(fs.rewrite().step(1), Ok(JobStep::Progressed));
    }
    let status = fs.rewrite().progress().unwrap();
    assert_eq!(
        (status.pass, status.state, status.spec),
        (RewritePass::Compression, RewriteState::Running, ours)
    );
    assert_eq!(fs.rewrite().cancel(), Ok(true));
    assert_eq!(fs.rewrite().progress().unwrap().state, RewriteState::Cancelled);
    assert_eq!(fs.rewrite().step(1), Ok(JobStep::NothingToDo));
    m.remount();
    assert_eq!((m.fs().rewrite().progress(), m.fs().rewrite().is_running()), (None, false));
}

#[test]
fn an_unreadable_record_is_counted_once_on_a_full_pool() {
    let mut m = Machine::sized(83, &[("compression", "zstd-9"), ("recordsize", "16K")], 64, 1 << 20);
    let root = m.fs().root();
    let files: Vec<Ino> = (0..60).map(|at| m.fs().file(root, &format!("file {at}")).ino).collect();
    for (at, file) in (0..).zip(&files) {
        m.fs().put(*file, 0, &text(at, 1 << 20));
    }
    m.fs().sync().unwrap();
    m.remount();
    files.iter().for_each(|file| m.rot(*file, 1));
    let fs = m.fs();
    // Uncompressed, the files take four times the space, which the pool does not have.
    fs.rewrite().begin(&spec(root, "off")).unwrap();
    let mut error_counts = Vec::new();
    while error_counts.len() < 3 {
        if fs.rewrite().step(80 << 20).unwrap() == JobStep::NoSpace {
            error_counts.push(fs.rewrite().progress().unwrap().figures.errors);
        }
        assert_ne!(fs.rewrite().progress().unwrap().state, RewriteState::Done, "there was room for all");
    }
    assert_eq!(error_counts, [error_counts[0]; 3]);
    for at in 10..60 {
        fs.unlink(root, format!("file {at}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let errors = run(fs).errors;
    assert!((10..=60).contains(&errors), "{errors} of 60 records were told");
}

#[test]
fn concurrent_names_do_not_disturb_a_rewrite() {
    let m = Machine::new(91, &[("compression", "lz4"), ("recordsize", "16K")]);
    let fs = m.fs();
    let mut dirs = vec![fs.root()];
    for at in 0..6 {
        dirs.push(fs.dir(dirs[at], "deeper").ino);
    }
    for dir in &dirs {
        for at in 0..8 {
            let file = fs.file(*dir, &format!("file {at}")).ino;
            fs.put(file, 0, &text(at, 60_000));
        }
    }
    fs.sync().unwrap();
    fs.rewrite().begin(&spec(fs.root(), "zstd-3")).unwrap();
    let mut rng = Prng::new(91);
    let mut number = 0;
    while fs.rewrite().step(1).unwrap() != JobStep::NothingToDo {
        let dir = *rng.one_of(&dirs);
        number += 1;
        match rng.below(6) {
            0 => _ = fs.unlink(dir, format!("file {}", rng.below(8)).as_bytes()),
            1 => _ = fs.create(dir, format!("new {number}").as_bytes(), 0o644, &USER),
            2 => {
                let (to, old) = (*rng.one_of(&dirs), format!("file {}", rng.below(8)));
                _ = fs.rename(dir, old.as_bytes(), to, format!("moved {number}").as_bytes(), 0);
            }
            // A whole subtree moves elsewhere.
            3 => _ = fs.rename(dir, b"deeper", fs.root(), format!("subtree {number}").as_bytes(), 0),
            _ => {}
        }
    }
    assert_eq!(fs.rewrite().progress().unwrap().figures.errors, 0);
}

/// The walk's current directory is removed, and its number is reused elsewhere.
#[test]
fn a_rewrite_skips_a_directory_that_reuses_a_number() {
    const FILES: u64 = 200;
    let m = Machine::new(92, &[("recordsize", "16K")]);
    let fs = m.fs();
    let root = fs.root();
    let job = fs.dir(root, "job").ino;
    let dir = fs.dir(job, "inside").ino;
    for at in 0..FILES {
        fs.put(fs.file(dir, &format!("file {at}")).ino, 0, &text(at, 40_000));
    }
    fs.sync().unwrap();
    fs.rewrite().begin(&resized(job, 4096)).unwrap();
    while fs.rewrite().progress().is_some_and(|status| status.figures.reshaped < 5) {
        fs.rewrite().step(1).unwrap();
    }
    for at in 0..FILES {
        fs.unlink(dir, format!("file {at}").as_bytes()).unwrap();
    }
    fs.rmdir(job, b"inside").unwrap();
    fs.forget_all();
    fs.sync().unwrap();
    let mut others = (0..4000).map(|at| fs.dir(root, &format!("outside {at}")).ino);
    assert!(others.any(|ino| ino == dir), "the number does not come again");
    let files: Vec<Ino> = (0..FILES).map(|at| fs.file(dir, &format!("file {at}")).ino).collect();
    files.iter().for_each(|ino| fs.put(*ino, 0, &text(*ino, 40_000)));
    run(fs);
    let size = |ino: &Ino| fs.dataset().object_set().hold(ObjectId(*ino)).unwrap().block_size();
    assert_eq!(files.iter().filter(|ino| size(ino) == 4096).count(), 0, "they are outside of the job");
}

/// Runs all work to its end; returns the number of steps.
fn run_idle_work(fs: &Fs) -> u64 {
    let mut steps = 0;
    while fs.recompress().step(1).unwrap() == JobStep::Progressed {
        steps += 1;
        assert!(steps < 100_000, "it goes on for ever");
    }
    fs.sync().unwrap();
    steps
}

fn pass(fs: &Fs, secs: u64) {
    fs.dataset().object_set().pool().env().sleep(std::time::Duration::from_secs(secs));
}

#[test]
fn idle_time_compresses_what_is_cold_once() {
    let mut m = Machine::new(101, &[("compression", "lz4"), ("recordsize", "16K"), ("atime", "off")]);
    let files = tree(m.fs());
    let day = 86_400;
    pass(m.fs(), 20 * day);
    assert_eq!(run_idle_work(m.fs()), 0, "nobody asked for it");
    let root = m.fs().root();
    let young = m.fs().file(root, "young").ino;
    m.fs().put(young, 0, &text(1, 100_000));
    m.fs().sync().unwrap();
    m.fs().dataset().set("recompress", "idle:10").unwrap();
    assert!(run_idle_work(m.fs()) > 100);
    let done = m.fs().recompress().progress();
    assert!(
        done.records > 100 && done.after_bytes * 8 <= done.before_bytes * 7 && !done.is_running,
        "{done:?}"
    );
    same(m.fs(), &files);
    assert!(is_made_by(m.fs(), young, "lz4"), "it is not cold");
    let large = *files.iter().find(|(_, (_, bytes))| bytes.len() == 300_000).unwrap().0;
    assert!(is_made_by(m.fs(), large, "zstd-19"));
    let noise = files.iter().find(|(_, (attr, _))| attr.nlink == 2).unwrap().0;
    assert!(is_made_by(m.fs(), *noise, "off"), "that saves nothing");

    // Not again: not now, not after a remount, and not when more files have become cold.
    m.remount();
    assert_eq!((run_idle_work(m.fs()), m.fs().recompress().progress()), (0, done));
    // A new mount in the simulator restarts the clock.
    pass(m.fs(), 20 * day);
    m.fs().put(large, 50_000, b"written again");
    m.fs().sync().unwrap();
    pass(m.fs(), 11 * day);
    let fates = |m: &Machine| m.fs().dataset().object_set().pool().stats().totals_now.stored_bytes;
    let before = fates(&m);
    assert!(run_idle_work(m.fs()) > 0);
    let after = m.fs().recompress().progress();
    assert_eq!(
        after.records,
        done.records + made_by(m.fs(), young)["zstd-19"] + 1,
        "those that are new to it"
    );
    assert!(is_made_by(m.fs(), large, "zstd-19"));
    assert!(fates(&m) - before < 200_000, "others were not written");
}

#[test]
fn recompression_resumes_after_a_crash() {
    for seed in 110..114 {
        let mut m = Machine::new(seed, &[("compression", "lz4"), ("recordsize", "16K"), ("atime", "off")]);
        let files = tree(m.fs());
        pass(m.fs(), 20 * 86_400);
        m.fs().dataset().set("recompress", "idle").unwrap();
        m.fs().sync().unwrap();
        let mut rng = Prng::new(seed);
        let mut committed = 0;
        for _ in 0..5 {
            for _ in 0..rng.below(200) {
                m.fs().recompress().step(1).unwrap();
            }
            if rng.below(2) == 0 {
                m.fs().sync().unwrap();
                committed = m.fs().recompress().progress().records;
            }
            m.crash();
            pass(m.fs(), 20 * 86_400);
            assert!(m.fs().recompress().progress().records >= committed);
        }
        run_idle_work(m.fs());
        same(m.fs(), &files);
        for (ino, _) in files.iter().filter(|(_, (_, bytes))| bytes.len() == 300_000) {
            assert!(is_made_by(m.fs(), *ino, "zstd-19"));
        }
    }
}

#[test]
fn threads_rewrite_records_while_others_write_them() {
    const BLOCK: usize = 5000;
    const BLOCKS: u64 = 900;
    let m = Machine::with_threads(121);
    let fs = m.fs();
    let dir = fs.dir(fs.root(), "directory").ino;
    let files: Vec<Ino> = (0..3).map(|at| fs.file(dir, &format!("file {at}")).ino).collect();
    let stamp = |at: u64, turn: u64| text(at << 32 | turn, BLOCK);
    for ino in &files {
        (0..BLOCKS).for_each(|at| fs.put(*ino, at * BLOCK as u64, &stamp(at, 0)));
    }
    fs.sync().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let over = || is_over.load(std::sync::atomic::Ordering::Acquire);
    std::thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .map(|ino| {
                scope.spawn(move || {
                    let mut rng = Prng::new(*ino);
                    let mut last = vec![0; BLOCKS as usize];
                    for turn in 1.. {
                        if over() {
                            break;
                        }
                        let at = rng.below(BLOCKS);
                        fs.put(*ino, at * BLOCK as u64, &stamp(at, turn));
                        last[at as usize] = turn;
                        std::thread::sleep(std::time::Duration::from_micros(200));
                    }
                    last
                })
            })
            .collect();
        let mut stored = 0;
        for name in ["zstd-3", "lz4", "gzip-1", "zstd-9", "zle", "zstd-1"] {
            fs.rewrite().begin(&spec(dir, name)).unwrap();
            while fs.rewrite().step(1 << 20).unwrap() != JobStep::NothingToDo {}
            let status = fs.rewrite().progress().unwrap();
            assert_eq!((status.state, status.figures.errors), (RewriteState::Done, 0));
            stored += status.figures.before_bytes;
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
        assert!(stored > 100_000, "{stored}");
        for (ino, writer) in files.iter().zip(writers) {
            let last = writer.join().unwrap();
            let found = fs.bytes(*ino);
            for (at, turn) in last.into_iter().enumerate() {
                assert!(found[at * BLOCK..][..BLOCK] == stamp(at as u64, turn), "block {at}");
            }
        }
    });
}
