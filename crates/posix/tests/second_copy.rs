//! Large files in records of another size: a second copy is built while they are used, and whatever ends the
//! process.

use crate::support::{Machine, Short};
use terrane_posix::{
    Attr, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, Fs, Ino, Job, JobStep, RewriteSpec,
    RewriteState, WriteFlags,
};
use terrane_wire::{ObjectId, Prng};

fn resized(root: Ino, bytes: u32) -> RewriteSpec {
    RewriteSpec { root, recursive: false, compression: None, record_size: Some(bytes) }
}

fn block_size(fs: &Fs, ino: Ino) -> u32 {
    fs.dataset().object_set().hold(ObjectId(ino)).unwrap().block_size()
}

/// Bytes that compress a little.
fn stuff(rng: &mut Prng, len: usize) -> Vec<u8> {
    (0..len).map(|_| b'a' + rng.below(20) as u8).collect()
}

fn seen(attr: &Attr) -> Attr {
    Attr { blocks: 0, blocks_known: true, blksize: 0, ..*attr }
}

/// One change of a file and of its model.
fn change(fs: &Fs, ino: Ino, model: &mut Vec<u8>, rng: &mut Prng) {
    let size = model.len() as u64;
    let at = rng.below(size + 1);
    let len = 1 + rng.below(60_000);
    match rng.below(8) {
        0 => {
            fs.fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, at, 4 * len).unwrap();
            let end = (at + 4 * len).min(size);
            model[at as usize..end as usize].fill(0);
        }
        1 => {
            fs.fallocate(ino, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, at, len).unwrap();
            let end = (at + len).min(size);
            model[at as usize..end as usize].fill(0);
        }
        2 => {
            // Truncates, rarely to nothing, and perhaps extends again, so that a hole follows.
            let cut = if rng.below(6) == 0 { 0 } else { size - rng.below(size / 2 + 1) };
            fs.size(ino, cut).unwrap();
            model.truncate(cut as usize);
            if rng.below(2) == 0 {
                let long = cut + rng.below(2_000_000);
                fs.size(ino, long).unwrap();
                model.resize(long as usize, 0);
            }
        }
        _ => {
            let data = stuff(rng, len as usize);
            fs.put(ino, at, &data);
            let end = at as usize + data.len();
            model.resize(model.len().max(end), 0);
            model[at as usize..end].copy_from_slice(&data);
        }
    }
}

#[test]
fn a_large_file_changes_while_it_is_copied() {
    let mut resumed = 0;
    for (seed, before, after) in [
        (1, "4K", 64 << 10),
        (2, "128K", 4 << 10),
        (3, "16K", 512),
        (4, "4K", 128 << 10),
        (5, "32K", 16 << 10),
    ] {
        let mut m = Machine::new(seed, &[("recordsize", before), ("atime", "off")]);
        let mut rng = Prng::new(seed);
        let root = m.fs().root();
        let ino = m.fs().file(root, "large").ino;
        let mut model = stuff(&mut rng, 3_000_000);
        m.fs().put(ino, 0, &model);
        m.fs().fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 500_000, 700_000).unwrap();
        model[500_000..1_200_000].fill(0);
        m.fs().sync().unwrap();
        let (mut rounds, mut reshaped) = (0, 0);
        while rounds < 6 {
            if model.len() < 1_000_000 {
                m.fs().put(ino, 900_000, &stuff(&mut rng, 900_000));
                model = m.fs().bytes(ino);
                assert!(model.len() >= 1_000_000);
            }
            // Alternately to the new size and back.
            let to = if rounds % 2 == 0 { after } else { 8 << 10 };
            m.fs().rewrite().begin(&resized(ino, to)).unwrap();
            let mut is_done = false;
            while !is_done {
                for _ in 0..rng.below(7) {
                    is_done |= m.fs().rewrite().step(1).unwrap() == JobStep::NothingToDo;
                }
                if rng.below(3) == 0 {
                    change(m.fs(), ino, &mut model, &mut rng);
                }
                let attr = m.fs().getattr(ino).unwrap();
                match rng.below(30) {
                    0..4 => m.fs().sync().unwrap(),
                    4 => m.remount(),
                    5 => m.remount_unforgotten(),
                    6 | 7 => {
                        m.fs().sync().unwrap();
                        resumed += u64::from(m.fs().rewrite().is_running());
                        m.crash();
                    }
                    8 => {
                        m.fs().sync().unwrap();
                        m.die(&[]);
                    }
                    _ => continue,
                }
                assert_eq!(seen(&m.fs().getattr(ino).unwrap()), seen(&attr));
                assert!(m.fs().bytes(ino) == model, "seed {seed}, round {rounds}");
                is_done |= !m.fs().rewrite().is_running();
            }
            rounds += 1;
            if let Some(status) = m.fs().rewrite().progress() {
                assert_eq!((status.state, status.figures.errors), (RewriteState::Done, 0));
                reshaped += u64::from(status.figures.reshaped > 0 && block_size(m.fs(), ino) == to);
            }
            assert!(m.fs().bytes(ino) == model, "seed {seed}, round {rounds}");
        }
        assert!(reshaped > 0, "seed {seed}");
        m.remount();
        assert!(m.fs().bytes(ino) == model);
        assert_eq!(m.fs().unlinked_count(), Ok(0));
    }
    assert!(resumed > 2, "{resumed}");
}

/// Runs `steps` steps, after which the copy must exist.
fn run_steps(fs: &Fs, steps: usize) {
    for _ in 0..steps {
        assert_eq!(fs.rewrite().step(1), Ok(JobStep::Progressed));
    }
    assert_eq!(fs.unlinked_count(), Ok(1), "the copy stands in the delete queue");
}

fn large(m: &Machine, bytes: usize) -> (Ino, Vec<u8>) {
    let ino = m.fs().file(m.fs().root(), "large").ino;
    let model = Prng::new(7).random_bytes(bytes);
    m.fs().put(ino, 0, &model);
    m.fs().sync().unwrap();
    (ino, model)
}

#[test]
fn a_copy_resumes_after_a_crash() {
    let mut m = Machine::new(11, &[("recordsize", "4K"), ("compression", "off")]);
    let (ino, model) = large(&m, 6_000_000);
    m.fs().rewrite().begin(&resized(ino, 16 << 10)).unwrap();
    run_steps(m.fs(), 50);
    m.fs().sync().unwrap();
    let figures = m.fs().rewrite().progress().unwrap().figures;
    assert!(figures.logical_bytes > 2_000_000 && figures.logical_bytes < 5_000_000, "{figures:?}");
    assert!(figures.stored_bytes > 2_000_000 && figures.stored_bytes < 5_000_000, "{figures:?}");
    for way in 0..3 {
        match way {
            0 => m.crash(),
            1 => m.remount(),
            _ => m.remount_unforgotten(),
        }
        assert_eq!(m.fs().rewrite().progress().unwrap().figures, figures);
        assert_eq!(m.fs().unlinked_count(), Ok(1), "it goes on growing");
    }
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    let done = m.fs().rewrite().progress().unwrap().figures;
    assert!(done.logical_bytes < 6_100_000, "all of it, once: {done:?}");
    assert_eq!((done.reshaped, block_size(m.fs(), ino)), (1, 16 << 10));
    assert!(done.stored_bytes.abs_diff(done.stored_total) < done.stored_total / 20, "{done:?}");
    assert!(m.fs().bytes(ino) == model);
    m.crash();
    assert!(m.fs().bytes(ino) == model);
    assert_eq!(m.fs().unlinked_count(), Ok(0));
}

#[test]
fn an_abandoned_copy_frees_its_space() {
    let mut m = Machine::new(12, &[("recordsize", "16K"), ("compression", "off")]);
    let (ino, model) = large(&m, 6_000_000);
    let used = |m: &Machine| {
        for _ in 0..4 {
            m.fs().sync().unwrap();
        }
        m.fs().dataset().object_set().usage().used_bytes
    };
    let before = used(&m);
    for way in 0..4 {
        m.fs().rewrite().begin(&resized(ino, 4 << 10)).unwrap();
        run_steps(m.fs(), 40);
        m.fs().sync().unwrap();
        match way {
            0 => assert_eq!(m.fs().rewrite().cancel(), Ok(true)),
            1 => {
                m.crash();
                assert_eq!(m.fs().rewrite().cancel(), Ok(true));
            }
            // The file is small now, and rewritten at once.
            2 => {
                m.fs().size(ino, 30_000).unwrap();
                while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
                assert_eq!(block_size(m.fs(), ino), 4 << 10);
                m.fs().size(ino, 0).unwrap();
                m.fs().put(ino, 0, &model);
            }
            _ => {
                let root = m.fs().root();
                m.fs().unlink(root, b"large").unwrap();
                while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
                m.remount();
            }
        }
        assert_eq!(m.fs().unlinked_count(), Ok(0), "way {way}");
        let now = used(&m);
        let expected = if way == 3 { 0 } else { before };
        assert!(now < expected + 900_000, "way {way}: {now}, {expected} expected");
    }
}

#[test]
fn rewrite_skips_a_file_without_space() {
    // 64 MiB.
    let mut m = Machine::sized(13, &[("recordsize", "16K"), ("compression", "off")], 64, 1 << 20);
    let (ino, model) = large(&m, 20_000_000);
    let available = |m: &Machine| m.fs().dataset().object_set().usage().available_bytes;
    let filler = m.fs().file(m.fs().root(), "filler").ino;
    let most = available(&m) - 15_000_000;
    m.fs().put(filler, 0, &Prng::new(3).random_bytes(most as usize));
    m.fs().sync().unwrap();
    // Too little space from the start.
    m.fs().rewrite().begin(&resized(ino, 4 << 10)).unwrap();
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {
        assert_eq!(m.fs().unlinked_count(), Ok(0));
    }
    let figures = m.fs().rewrite().progress().unwrap().figures;
    assert_eq!((figures.no_room, figures.reshaped, figures.errors), (1, 0, 0));
    // Enough space at first, which another writer then uses.
    m.fs().size(filler, 1_000_000).unwrap();
    m.fs().sync().unwrap();
    m.fs().sync().unwrap();
    m.fs().rewrite().begin(&resized(ino, 4 << 10)).unwrap();
    run_steps(m.fs(), 600);
    let most = available(&m) - 1_000_000;
    let _ = m.fs().write(filler, 0, &Prng::new(4).random_bytes(most as usize), WriteFlags::default());
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    let status = m.fs().rewrite().progress().unwrap();
    assert_eq!((status.state, status.figures.no_room, status.figures.reshaped), (RewriteState::Done, 1, 0));
    assert_eq!((m.fs().unlinked_count(), block_size(m.fs(), ino)), (Ok(0), 16 << 10));
    m.fs().sync().unwrap();
    m.fs().sync().unwrap();
    assert!(available(&m) > 4_000_000, "{}: half a copy helps nobody", available(&m));
    m.remount();
    assert!(m.fs().bytes(ino) == model);
}

#[test]
fn writers_carry_on_while_the_trees_are_exchanged() {
    const BLOCK: usize = 3000;
    const BLOCKS: u64 = 1000;
    let m = Machine::with_threads(14);
    let fs = m.fs();
    let ino = fs.file(fs.root(), "large").ino;
    let stamp = |at: u64, turn: u64| Prng::new(at << 32 | turn).random_bytes(BLOCK);
    for at in 0..BLOCKS {
        fs.put(ino, at * BLOCK as u64, &stamp(at, 0));
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let over = || is_over.load(std::sync::atomic::Ordering::Acquire);
    std::thread::scope(|scope| {
        // Each thread has its own blocks, and remembers its last write to each.
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                scope.spawn(move || {
                    let mut rng = Prng::new(100 + writer);
                    let mut last = vec![0; BLOCKS as usize];
                    let mut turn = 0;
                    while !over() {
                        turn += 1;
                        let at = rng.below(BLOCKS / 3) * 3 + writer;
                        if at < BLOCKS {
                            fs.put(ino, at * BLOCK as u64, &stamp(at, turn));
                            last[at as usize] = turn;
                        }
                        let mut found = Vec::new();
                        let known = rng.below(BLOCKS / 3) * 3 + writer;
                        if known < BLOCKS {
                            fs.read(ino, known * BLOCK as u64, BLOCK as u32, &mut found).unwrap();
                            assert!(found == stamp(known, last[known as usize]), "block {known}");
                        }
                        std::thread::sleep(std::time::Duration::from_micros(300));
                    }
                    last
                })
            })
            .collect();
        let mut reshaped = 0;
        for turn in 0..6 {
            let bytes = if turn % 2 == 0 { 16 << 10 } else { 64 << 10 };
            fs.rewrite().begin(&resized(ino, bytes)).unwrap();
            while fs.rewrite().step(1).unwrap() != JobStep::NothingToDo {}
            reshaped += fs.rewrite().progress().unwrap().figures.reshaped;
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
        assert!(reshaped > 0, "never in so many rounds");
        for (writer, thread) in writers.into_iter().enumerate() {
            let last = thread.join().unwrap();
            for at in (writer as u64..BLOCKS).step_by(3) {
                let mut found = Vec::new();
                fs.read(ino, at * BLOCK as u64, BLOCK as u32, &mut found).unwrap();
                assert!(found == stamp(at, last[at as usize]), "block {at}");
            }
        }
    });
}

#[test]
fn a_rewrite_announces_its_record_size_to_the_pool() {
    let mut m = Machine::new(15, &[("recordsize", "128K")]);
    let size = |m: &Machine| {
        m.fs().sync().unwrap();
        m.fs().dataset().object_set().usage().size_bytes
    };
    let (ino, _) = large(&m, 5_000_000);
    let before = size(&m);
    m.fs().rewrite().begin(&resized(ino, 2 << 20)).unwrap();
    m.fs().put(ino, 0, b"another group");
    let known = size(&m);
    assert!(known < before, "ends of zones do not take a record: {known}");
    // A mount that continues the job.
    m.crash();
    m.fs().put(ino, 0, b"another group");
    assert_eq!(size(&m), known);
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    // A mount that finds such a file.
    m.remount();
    m.fs().put(m.fs().file(m.fs().root(), "other").ino, 0, b"another group");
    assert_eq!(size(&m), before);
    m.fs().put(ino, 0, b"another group");
    assert_eq!(size(&m), known);
}

#[test]
fn a_copy_is_not_used_for_a_file_that_reuses_the_number() {
    let mut m = Machine::new(16, &[("recordsize", "4K"), ("compression", "off")]);
    let root = m.fs().root();
    let (old, _) = large(&m, 6_000_000);
    // A mount only searches for free numbers if there are many.
    for at in 0..200 {
        m.fs().file(root, &format!("other {at}"));
    }
    m.fs().rewrite().begin(&RewriteSpec { recursive: true, ..resized(root, 16 << 10) }).unwrap();
    while m.fs().unlinked_count() == Ok(0) {
        m.fs().rewrite().step(1).unwrap();
    }
    run_steps(m.fs(), 30);
    m.fs().unlink(root, b"large").unwrap();
    (0..200).for_each(|at| m.fs().unlink(root, format!("other {at}").as_bytes()).unwrap());
    m.remount();
    assert_eq!(
        (m.fs().getattr(old).is_err(), m.fs().unlinked_count()),
        (true, Ok(1)),
        "the copy is there still"
    );
    let mut others = 0;
    let new = loop {
        others += 1;
        let ino = m.fs().file(root, &format!("new {others}")).ino;
        if ino == old {
            break ino;
        }
        assert!(others < 2000, "the number does not come again");
    };
    // Large, and almost all of it a hole.
    let mut model = vec![0; 6_000_000];
    model[5_900_000..].copy_from_slice(&Prng::new(8).random_bytes(100_000));
    m.fs().put(new, 5_900_000, &model[5_900_000..]);
    m.fs().sync().unwrap();
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    let status = m.fs().rewrite().progress().unwrap();
    assert_eq!((status.state, status.figures.errors), (RewriteState::Done, 0));
    assert_eq!((block_size(m.fs(), new), m.fs().unlinked_count()), (16 << 10, Ok(0)));
    assert!(m.fs().bytes(new) == model, "what another file held shows in its holes");
}

/// The walk pauses at a file, and meanwhile its number is reused for a directory.
#[test]
fn a_directory_that_got_the_number_of_a_file_keeps_its_records() {
    const NAMES: u64 = 2000;
    let mut m = Machine::new(17, &[("recordsize", "128K")]);
    let root = m.fs().root();
    let (old, _) = large(&m, 6_000_000);
    (0..200).for_each(|at| _ = m.fs().file(root, &format!("other {at}")));
    m.fs().rewrite().begin(&RewriteSpec { recursive: true, ..resized(root, 16 << 10) }).unwrap();
    while m.fs().unlinked_count() == Ok(0) {
        m.fs().rewrite().step(1).unwrap();
    }
    m.fs().unlink(root, b"large").unwrap();
    m.fs().forget(old, 1);
    (0..200).for_each(|at| m.fs().unlink(root, format!("other {at}").as_bytes()).unwrap());
    m.fs().sync().unwrap();
    let mut new = (0..4000).map(|at| m.fs().dir(root, &format!("new {at}")).ino);
    assert!(new.any(|ino| ino == old), "the number does not come again");
    (0..NAMES).for_each(|at| _ = m.fs().file(old, &format!("name {at}")));
    m.fs().sync().unwrap();
    let before = block_size(m.fs(), old);
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    assert_eq!(block_size(m.fs(), old), before);
    m.remount();
    (0..NAMES).for_each(|at| _ = m.fs().lookup(old, format!("name {at}").as_bytes()).unwrap());
}

/// Like a header that says "in use" for a moment: the txg that is stored has no trace of the change.
#[test]
fn a_change_undone_in_its_own_txg_is_not_copied() {
    let m = Machine::new(18, &[("recordsize", "4K"), ("checksum", "blake3")]);
    let (ino, mut model) = large(&m, 6_000_000);
    m.fs().fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 12_288, 8192).unwrap();
    model[12_288..20_480].fill(0);
    m.fs().sync().unwrap();
    m.fs().rewrite().begin(&resized(ino, 16 << 10)).unwrap();
    while m.fs().unlinked_count() == Ok(0) {
        m.fs().rewrite().step(1).unwrap();
    }
    // The first round begins, and looks for changes from this txg on.
    m.fs().rewrite().step(1).unwrap();
    m.fs().put(ino, 0, &[b'x'; 4096]);
    m.fs().put(ino, 16_384, &[b'y'; 4096]);
    m.fs().rewrite().step(1).unwrap();
    m.fs().put(ino, 0, &model[..4096]);
    m.fs().fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 16_384, 4096).unwrap();
    m.fs().sync().unwrap();
    while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
    assert_eq!(block_size(m.fs(), ino), 16 << 10);
    assert!(m.fs().bytes(ino) == model, "what was taken back is there again");
}

/// A hole grows with the record size that the file gets when it is extended again.
#[test]
fn a_file_that_was_cut_to_a_hole_and_grows_in_larger_records_shows_zeros() {
    for (syncs, punches) in [(true, true), (false, true), (true, false), (false, false)] {
        let m = Machine::new(19, &[("recordsize", "4K"), ("compression", "off")]);
        // A punched hole, and one that was never written.
        let ino = m.fs().file(m.fs().root(), "large").ino;
        let from = if punches { 0 } else { 4096 };
        m.fs().put(ino, from, &Prng::new(7).random_bytes(3_000_000));
        m.fs().sync().unwrap();
        if punches {
            m.fs().fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 4096).unwrap();
        }
        (0..4).for_each(|_| m.fs().sync().unwrap());
        m.fs().rewrite().begin(&resized(ino, 16 << 10)).unwrap();
        while m.fs().unlinked_count() == Ok(0) {
            m.fs().rewrite().step(1).unwrap();
        }
        // Most of the first round.
        run_steps(m.fs(), 40);
        assert_eq!(block_size(m.fs(), ino), 4096);
        m.fs().dataset().set("recordsize", "1M").unwrap();
        m.fs().size(ino, 4096).unwrap();
        m.fs().put(ino, 2 << 20, &[b'z'; 512]);
        if syncs {
            m.fs().sync().unwrap();
        }
        while m.fs().rewrite().step(1).unwrap() != JobStep::NothingToDo {}
        let bytes = m.fs().bytes(ino);
        assert_eq!(bytes.iter().take(2 << 20).position(|byte| *byte != 0), None, "syncs: {syncs}");
        assert_eq!(bytes[2 << 20..], [b'z'; 512]);
    }
}

/// A file mapped by a program: pages are read on demand, and written back when the kernel likes.
struct Mapped<'a> {
    fs: &'a Fs,
    ino: Ino,
    bytes: u64,
    pages: std::collections::BTreeMap<u64, (Vec<u8>, bool)>,
}

impl Mapped<'_> {
    const PAGE: u64 = 4096;

    fn store(&mut self, at: u64, byte: u8) {
        let (fs, ino) = (self.fs, self.ino);
        let (page, dirty) = self.pages.entry(at / Self::PAGE).or_insert_with_key(|page| {
            let mut content = Vec::new();
            fs.read(ino, page * Self::PAGE, Self::PAGE as u32, &mut content).unwrap();
            (content, false)
        });
        (page[(at % Self::PAGE) as usize], *dirty) = (byte, true);
    }

    /// Writes some dirty pages back, and drops some clean ones.
    fn write_back(&mut self, rng: &mut Prng, one_in: u64) {
        let (fs, ino, bytes) = (self.fs, self.ino, self.bytes);
        self.pages.retain(|page, (content, dirty)| {
            if *dirty && rng.below(one_in) == 0 {
                let at = page * Self::PAGE;
                let len = Self::PAGE.min(bytes - at) as usize;
                fs.put(ino, at, &content[..len]);
                *dirty = false;
            }
            *dirty || rng.below(3) > 0
        });
    }
}

#[test]
fn a_file_that_is_mapped_keeps_what_is_stored_in_its_pages() {
    for (seed, before, after) in [(21, "16K", 4 << 10), (22, "4K", 64 << 10), (23, "128K", 16 << 10)] {
        let m = Machine::new(seed, &[("recordsize", before), ("compression", "lz4")]);
        let fs = m.fs();
        let mut rng = Prng::new(seed);
        let ino = fs.file(fs.root(), "mapped").ino;
        let mut model = stuff(&mut rng, 2_000_001);
        fs.put(ino, 0, &model);
        fs.sync().unwrap();
        let bytes = model.len() as u64;
        let mut mapped = Mapped { fs, ino, bytes, pages: std::collections::BTreeMap::new() };
        let compression = Some("zstd-3".parse().unwrap());
        fs.rewrite().begin(&RewriteSpec { compression, ..resized(ino, after) }).unwrap();
        while fs.rewrite().step(1 << rng.below(20)).unwrap() != JobStep::NothingToDo {
            // All over the file, and often in a hot part.
            for _ in 0..rng.below(20) {
                let at = if rng.below(2) == 0 { rng.below(bytes) } else { rng.below(60_000) };
                let byte = rng.next_u64() as u8;
                mapped.store(at, byte);
                model[at as usize] = byte;
            }
            mapped.write_back(&mut rng, 4);
            if rng.below(5) == 0 {
                fs.sync().unwrap();
            }
        }
        let status = fs.rewrite().progress().unwrap();
        assert_eq!((status.figures.reshaped, status.figures.errors), (1, 0));
        mapped.write_back(&mut rng, 1);
        assert!(fs.bytes(ino) == model, "seed {seed}");
        assert_eq!(block_size(fs, ino), after);
    }
}
