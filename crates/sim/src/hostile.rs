//! Damaged and forged images.
//!
//! There are two claims. Against damage: whatever bits of an image flip, everything that can still be read is
//! what was written, and the rest is a named error. Against malice: where forged content has correct
//! checksums, every operation ends soon, without a panic.
//!
//! Modules: `data_sets` (the data sets of an image, and every operation on them), `forge_pool` (pool structures, sealed again),
//! `forge_tree` (trees, written by the pool itself out of damaged blocks), `lies` (chosen fields of data sets, snapshots and dead
//! lists). Mutations come from `mutate`.

mod data_sets;
mod forge_pool;
mod forge_tree;
mod lies;

pub use forge_tree::FixedForgery;
pub use lies::{Lie, forge, lies, tell};

use crate::machine::{Machine, Plan, USER};
use crate::workload::Workload;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use terrane_check::Report;
use terrane_device::sim::Survival;
use terrane_device::{Device, SimDevice};
use terrane_format::log::LogHead;
use terrane_format::{BlockPtr, Owner};
use terrane_oracle::{Content, Failure, Model, Node, Xattrs, ensure, failed, xattr_names};
use terrane_posix::{DirEntry, Errno, Fs, Ino, SetXattr, WriteFlags};
use terrane_wire::{ObjectId, Prng, ZoneIdx};

/// No operation on a small image takes longer, even on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(20);
/// What takes longer never ends.
const HANG: Duration = Duration::from_secs(90);
/// Names and objects of a small image; a walk that meets more does not end.
const NAMES_MAX: u64 = 100_000;
/// Bytes read of a file, whatever its size field holds.
const READ_BYTES: u32 = 1 << 20;

/// How examining an image ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not imported, or not mounted: a named error.
    Refused,
    /// `check` or a read found something.
    Damaged,
    /// No damage was found.
    Intact,
}

/// A small image and what it holds.
pub struct Image {
    /// The device with the image.
    pub device: SimDevice,
    /// The content of its file system.
    pub model: Model,
}

impl Image {
    /// 32 zones, some files, directories, links, a fat directory, attributes in every home. Data sets with snapshots, a clone, and a
    /// destroyed one that is still being freed. On a device like a file: damage can be anywhere.
    pub fn new(seed: u64) -> Result<Image, Failure> {
        Image::made(seed, 60, 40)
    }

    /// The smallest image that has one of most things: small enough to flip every bit of it within an hour.
    pub fn tiny(seed: u64) -> Result<Image, Failure> {
        Image::made(seed, 9, 0)
    }

    fn made(seed: u64, steps: u32, names: u32) -> Result<Image, Failure> {
        let plan = Plan { zones: 32, drive: false, stale: false, ..Plan::small(seed) };
        let mut workload = Workload::fresh(Machine::create(&plan)?, seed);
        workload.file_bytes = 9000;
        for _ in 0..steps {
            workload.step()?;
        }
        let root = workload.model.root;
        for number in 0..names {
            let name = format!("one of many names that make this directory fat, {number}");
            let node = Node::file(0o600);
            let attr = workload
                .machine
                .fs()
                .create(root, name.as_bytes(), 0o600, &USER)
                .map_err(failed("create"))?;
            workload.model.add_node(root, &name, attr.ino, node);
        }
        workload.xattrs_in_all_places(names > 0)?;
        workload.sync()?;
        if names > 0 {
            data_sets::add(&mut workload)?;
        }
        let model = workload.model.after_remount();
        let device = match names {
            0 => workload.machine.export()?,
            // An export would end the destroyed data set.
            _ => workload.machine.device.restarted(Survival::Everything),
        };
        Ok(Image { device, model })
    }

    /// A copy to be damaged.
    pub fn copy(&self) -> SimDevice {
        self.device.snapshot()
    }

    /// Everything that was ever written: zone, and bytes from its start.
    pub fn written_ranges(&self) -> Result<Vec<(ZoneIdx, u64)>, Failure> {
        let machine = Machine::import(&self.copy(), 1, true)?;
        let mut used: Vec<(ZoneIdx, u64)> =
            machine.pool.zones().iter().map(|zone| (zone.home.zone, zone.claimed)).collect();
        for anchor in 0..terrane_format::label::ANCHORS {
            let ubers = terrane_pool::inspect::anchors(&self.device);
            let last = ubers.iter().filter(|(at, ..)| *at == anchor).flat_map(|(.., ubers)| ubers.last());
            used.push((ZoneIdx(anchor), last.map(|(at, _)| at + 4096).max().unwrap_or(4096)));
        }
        Ok(used)
    }
}

/// Overwrites bytes of a zone, against the rules of zones.
pub fn overwrite(device: &SimDevice, zone: ZoneIdx, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
    let unit = u64::from(device.info().write_unit);
    let (from, to) = (offset / unit * unit, (offset + bytes.len() as u64).next_multiple_of(unit));
    let mut old = vec![0; usize::try_from(to - from).unwrap_or(0)];
    device.read(zone, from, &mut old).map_err(failed("read before damage"))?;
    let skipped = usize::try_from(offset - from).unwrap_or(0);
    let mask: Vec<u8> = old.iter().skip(skipped).zip(bytes).map(|(old, new)| old ^ new).collect();
    device.rot(zone, offset, &mask).map_err(failed("damage"))
}

/// Changes what the newest commit says of the intent log, and makes all checksums right again.
pub fn forge_log_head(device: &SimDevice, change: impl FnOnce(&mut LogHead)) -> Result<(), Failure> {
    forge_pool::log_head(device, change)
}

/// Changes and removes content as far as possible: an operation may fail or the pool may stop, but not panic
/// or take long.
fn change(device: &SimDevice, what: &str) -> Result<(), Failure> {
    guarded(what, || {
        let Ok(mut machine) = Machine::import(device, 1, false) else { return Ok(()) };
        if machine.mount().is_err() {
            return Ok(());
        }
        let fs = machine.fs();
        let (mut todo, mut seen) = (vec![fs.root()], BTreeSet::new());
        while let Some(dir) = todo.pop() {
            let mut found = Vec::new();
            let mut take = |entry: &DirEntry<'_>| {
                found.push((entry.name.to_vec(), entry.ino));
                found.len() < 200
            };
            let _ = fs.readdir(dir, 2, &mut |entry| take(&entry));
            for (name, ino) in found {
                if !seen.insert(ino) || seen.len() > 400 {
                    continue;
                }
                let names = xattr_names(fs, ino).unwrap_or_default();
                for (at, len) in [10, 300, 40_000, 20].into_iter().enumerate() {
                    let name = names.get(at).map_or("trusted.new", String::as_str);
                    let _ = fs.setxattr(ino, name.as_bytes(), &vec![1; len], SetXattr::default(), &USER);
                }
                let last = names.last().map_or("trusted.new", String::as_str);
                let _ = fs.removexattr(ino, last.as_bytes());
                let _ = fs.write(ino, 0, b"changed", WriteFlags::default());
                if fs.getattr(ino).is_ok_and(|attr| attr.mode & 0o170_000 == 0o040_000) {
                    todo.push(ino);
                } else {
                    let _ = fs.unlink(dir, &name);
                }
            }
        }
        let _ = fs.sync();
        fs.forget_all();
        let _ = fs.sync();
        Ok(())
    })
}

/// Imports, checks, mounts and reads everything. With a model, what is read without an error must agree with
/// the model.
pub fn examine(device: &SimDevice, model: Option<&Model>) -> Result<Verdict, Failure> {
    guarded("examining", || Ok(examine_unguarded(device, model)?.0))
}

/// Blocks of a zone that are looked at.
const LOOKS_MAX: usize = 200;

/// Looks at the blocks that the zone directories list, as people do who search for damage: an answer may be an error.
fn look(device: &SimDevice, what: &str) -> Result<(), Failure> {
    guarded(what, || {
        let Ok(machine) = Machine::import(device, 1, true) else { return Ok(()) };
        let (pool, meta) = (&machine.pool, machine.objects.mos());
        for zone in pool.zones() {
            let _ = pool.occupant(zone.seq, 0);
            let listed = pool.zone_directory(zone.seq).unwrap_or_default();
            for (entry, _) in listed.into_iter().take(LOOKS_MAX) {
                let _ = pool.position_of(entry.identity);
                let _ = pool.bootstrap_pointer(entry.identity);
                let past = entry.offset.saturating_add(entry.psize.into());
                for offset in [entry.offset, past] {
                    let _ = pool.occupant(zone.seq, offset);
                }
                let Ok(copies) = pool.stored_copies(zone.seq, entry.offset, entry.psize) else { continue };
                let set = match entry.owner {
                    Owner::Block { objset, .. } if objset != meta.id().0 => {
                        terrane_dataset::open_any_set(&machine.objects, ObjectId(objset))
                    }
                    _ => Ok(Arc::clone(meta)),
                };
                let Ok(BlockPtr::Normal(normal)) = set.and_then(|set| Ok(set.pointer_of(entry.owner)?))
                else {
                    continue;
                };
                for stored in copies.iter().filter_map(|copy| copy.bytes.as_ref().ok()) {
                    let _ = pool.decode_stored(&normal, entry.owner, stored);
                }
            }
        }
        Ok(())
    })
}

/// A panic is a failure, and so is taking long. A job that hangs ends the process, as it cannot be stopped.
fn guarded<T>(what: &str, job: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let (ends, end) = mpsc::channel::<()>();
    let name = what.to_string();
    let watch = std::thread::spawn(move || {
        if end.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("hangs for {HANG:?}: {name}");
            std::process::abort();
        }
    });
    let began = Instant::now();
    let done = catch_unwind(AssertUnwindSafe(job));
    let took = began.elapsed();
    drop(ends);
    let _ = watch.join();
    let done = done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Failure(format!("{what}: panic: {text}"))
    })?;
    let done = done.map_err(|failure| failure.within(what))?;
    ensure(took < TIME_MAX, || format!("{what}: timed out: took {took:?}, limit {TIME_MAX:?}"))?;
    Ok(done)
}

fn examine_unguarded(device: &SimDevice, model: Option<&Model>) -> Result<(Verdict, Report), Failure> {
    let Ok(mut machine) = Machine::import(device, 1, true) else {
        return Ok((Verdict::Refused, Report::default()));
    };
    let report = terrane_check::check(&machine.objects, &mut |_| {});
    if machine.mount().is_err() {
        return match report.is_clean() {
            true => Err(Failure("check is clean, but the mount failed".into())),
            false => Ok((Verdict::Refused, report)),
        };
    }
    let errors = walk(machine.fs(), model)?;
    let of_sets = data_sets::walk_all(&machine.objects)?;
    if report.is_clean() {
        ensure(errors == 0, || format!("check is clean, but {errors} reads failed"))?;
        if let Some(error) = of_sets {
            return Err(Failure(format!("check is clean, but {error}")));
        }
        if let Some(model) = model {
            model.compare(machine.fs())?;
        }
        return Ok((Verdict::Intact, report));
    }
    Ok((Verdict::Damaged, report))
}

/// Everything that is done to a forged image. `what`: for messages.
fn exercise(device: &SimDevice, what: &str) -> Result<(Verdict, Report), Failure> {
    let at = |stage: &str| format!("{stage}: {what}");
    let (verdict, report) = guarded(&at("examining"), || examine_unguarded(device, None))?;
    look(device, &at("looking"))?;
    let before = device.snapshot();
    change(device, &at("changing"))?;
    guarded(&at("living"), || data_sets::live(&before))?;
    Ok((verdict, report))
}

/// Reads everything from the root on; returns how many reads failed.
fn walk(fs: &Fs, model: Option<&Model>) -> Result<u64, Failure> {
    let (mut todo, mut seen, mut errors, mut names) = (vec![fs.root()], BTreeSet::new(), 0, 0);
    let _ = fs.statfs();
    while let Some(ino) = todo.pop() {
        if !seen.insert(ino) {
            continue;
        }
        match walk_one(fs, ino, model, &mut todo, &mut names) {
            Ok(()) => {}
            Err(ReadFailure::Error(_)) => errors += 1,
            Err(ReadFailure::Wrong(failure)) => return Err(failure),
        }
        ensure(names < NAMES_MAX, || "walk stopped: more names than the image can hold".into())?;
    }
    Ok(errors)
}

enum ReadFailure {
    Error(#[expect(dead_code, reason = "read by a debugger")] Errno),
    Wrong(Failure),
}

impl From<Errno> for ReadFailure {
    fn from(errno: Errno) -> Self {
        ReadFailure::Error(errno)
    }
}

fn walk_one(
    fs: &Fs,
    ino: Ino,
    model: Option<&Model>,
    todo: &mut Vec<Ino>,
    names: &mut u64,
) -> Result<(), ReadFailure> {
    let attr = fs.getattr(ino)?;
    let known = Known::of(model, ino);
    let wrong =
        |what: &str| Err(ReadFailure::Wrong(Failure(format!("inode {ino}: {what} is not what was written"))));
    match attr.mode & 0o170_000 {
        0o040_000 => {
            let mut found = Vec::new();
            let listed = fs.readdir(ino, 0, &mut |entry| {
                *names += 1;
                if entry.name != b"." && entry.name != b".." {
                    found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
                }
                *names < NAMES_MAX
            });
            for (name, target) in &found {
                let same = fs.lookup(ino, name.as_bytes()).map(|attr| attr.ino);
                if same.is_ok() {
                    fs.forget(*target, 1);
                }
                if let Known::Node(Node { content: Content::Dir { names, .. }, .. }) = known
                    && names.get(name) != Some(target)
                {
                    return wrong("a name");
                }
                todo.push(*target);
            }
            listed?;
            let _ = fs.lookup(ino, b"there is no such name");
        }
        0o120_000 => {
            let target = fs.readlink(ino)?;
            if !known.holds(|content| *content == Content::Link(target)) {
                return wrong("a link");
            }
        }
        0o100_000 => {
            let mut out = Vec::new();
            fs.read(ino, 0, READ_BYTES.min(u32::try_from(attr.size).unwrap_or(READ_BYTES)), &mut out)?;
            if !known.holds(|content| matches!(content, Content::File(bytes) if **bytes == out)) {
                return wrong("a file");
            }
            if let Known::Nothing = known {
                // At other offsets where it claims to have bytes.
                for at in [attr.size / 2, attr.size.saturating_sub(1)] {
                    out.clear();
                    fs.read(ino, at, 4096, &mut out)?;
                }
                let _ = (fs.seek_data(ino, 0), fs.seek_hole(ino, 0));
            }
        }
        _ => {}
    }
    walk_xattrs(fs, ino, known)
}

/// What is known of an inode.
#[derive(Clone, Copy)]
enum Known<'m> {
    /// There is no model.
    Nothing,
    Node(&'m Node),
    /// The model has no inode of this number.
    Absent,
}

impl<'m> Known<'m> {
    fn of(model: Option<&'m Model>, ino: Ino) -> Known<'m> {
        match model.map(|model| model.nodes.get(&ino)) {
            None => Known::Nothing,
            Some(Some(node)) => Known::Node(node),
            Some(None) => Known::Absent,
        }
    }

    /// Whether it may hold this, as far as that is known.
    fn holds(self, fits: impl FnOnce(&Content) -> bool) -> bool {
        match self {
            Known::Nothing => true,
            Known::Node(node) => fits(&node.content),
            Known::Absent => false,
        }
    }

    /// Its extended attributes; one that the model does not have should have none.
    fn xattrs(self) -> Option<Arc<Xattrs>> {
        match self {
            Known::Nothing => None,
            Known::Node(node) => Some(Arc::clone(&node.xattrs)),
            Known::Absent => Some(Arc::default()),
        }
    }
}

/// Reads an inode's extended attributes.
fn walk_xattrs(fs: &Fs, ino: Ino, known: Known<'_>) -> Result<(), ReadFailure> {
    let wrong =
        |what: &str| Err(ReadFailure::Wrong(Failure(format!("inode {ino}: {what} is not what was set"))));
    let expected = known.xattrs();
    let mut failed = None;
    let listed = xattr_names(fs, ino);
    if let (Ok(listed), Some(expected)) = (&listed, &expected)
        && !listed.iter().eq(expected.keys())
    {
        return wrong("the list of attributes");
    }
    // Also those that should be there: one damaged attribute must not give others wrong values.
    let names = listed
        .as_ref()
        .map_or_else(|_| expected.iter().flat_map(|expected| expected.keys().cloned()).collect(), Vec::clone);
    for name in names.iter().take(NAMES_MAX as usize) {
        let mut value = Vec::new();
        match fs.getxattr(ino, name.as_bytes(), &mut value) {
            Ok(()) => {
                if let Some(expected) = &expected
                    && expected.get(name).is_none_or(|expected| **expected != value)
                {
                    return wrong("an attribute");
                }
            }
            Err(errno) => failed = Some(errno),
        }
    }
    listed?;
    failed.map_or(Ok(()), |errno| Err(errno.into()))
}

/// One bit of the used parts flips.
pub fn bit_flip(image: &Image, zone: ZoneIdx, bit: u64) -> Result<Verdict, Failure> {
    let device = image.copy();
    device.rot(zone, bit / 8, &[1 << (bit % 8)]).map_err(failed("rot"))?;
    let verdict = examine(&device, Some(&image.model)).and_then(|verdict| {
        // For one in seven of all bits of an image, which includes bits of every byte position.
        if verdict == Verdict::Damaged && bit.is_multiple_of(7) {
            look(&device, "looking")?;
            let before = device.snapshot();
            change(&device, "changing")?;
            guarded("living", || data_sets::live(&before))?;
        }
        Ok(verdict)
    });
    verdict.map_err(|failure| failure.within(format_args!("zone {zone} bit {bit}")))
}

/// A forged structure with correct checksums, chosen by the seed: in pool structures or in trees; and a
/// description of it. `None`: this seed found nothing to forge.
pub fn sealed_forgery(image: &Image, seed: u64) -> Result<Option<(Verdict, String)>, Failure> {
    let mut rng = Prng::new(seed);
    let forged = catch_unwind(AssertUnwindSafe(|| match rng.below(4) {
        0 => forge_pool::forge(image, &mut rng),
        _ => forge_tree::forge_in_tree(image, &mut rng, None),
    }));
    let forged = forged.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Failure(format!(
            "seed {seed}: panic while forging: {}",
            text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")
        ))
    })?;
    let Some((device, description)) =
        forged.map_err(|failure| failure.within(format_args!("seed {seed}")))?
    else {
        return Ok(None);
    };
    let (verdict, _) = exercise(&device, &format!("seed {seed}, {description}"))?;
    Ok(Some((verdict, description)))
}

/// A given forgery, at a place that the seed chooses; the image is examined and changed. False: the descent
/// never ended where it applies.
pub fn fixed_forgery(image: &Image, seed: u64, fixed: FixedForgery) -> Result<bool, Failure> {
    let forged = forge_tree::forge_in_tree(image, &mut Prng::new(seed), Some(fixed))?;
    let Some((device, forged)) = forged else { return Ok(false) };
    exercise(&device, &format!("{fixed:?}, {forged}")).map(|_| true)
}

/// Damages bytes somewhere in `range`: a bit, a byte, a field, a field that is moved, a run of bytes.
fn mutate(raw: &mut [u8], range: std::ops::Range<usize>, rng: &mut Prng) {
    let len = range.len() as u64;
    if len == 0 || range.end > raw.len() {
        return;
    }
    let at = range.start + rng.below(len) as usize;
    match rng.below(8) {
        0 | 1 => raw[at] ^= 1 << rng.below(8),
        2 => raw[at] = rng.pick(&[0, 1, 0x7f, 0x80, 0xff]).unwrap_or(0),
        3..6 => {
            let width = rng.pick(&[2usize, 4, 8]).unwrap_or(8);
            let at = at / width * width;
            let Some(field) = raw.get_mut(at..at + width) else { return };
            let mut old = [0; 8];
            old[..width].copy_from_slice(field);
            let old = u64::from_le_bytes(old);
            let new = match rng.below(8) {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << 63,
                3 => old.wrapping_add(1),
                4 => old.wrapping_sub(1),
                5 => 1 << rng.below(64),
                6 => rng.below(64),
                _ => rng.next_u64(),
            };
            field.copy_from_slice(&new.to_le_bytes()[..width]);
        }
        6 => {
            let width = rng.pick(&[8usize, 16, 128]).unwrap_or(8);
            let from = range.start + rng.below(len) as usize / width * width;
            let to = at / width * width;
            if from + width <= raw.len() && to + width <= raw.len() {
                raw.copy_within(from..from + width, to);
            }
        }
        _ => {
            let end = (at + 1 + rng.below(40) as usize).min(range.end);
            for byte in &mut raw[at..end] {
                *byte = rng.next_u64() as u8;
            }
        }
    }
}
