//! A pool that is filled, emptied, and filled again.
//!
//! Claims:
//! * Writes to a full pool return `ENOSPC`, and no other operation does.
//! * Freeing space always works, and the space is available again, round after round.
//! * Nothing is lost on the way.

use crate::machine::{Machine, Plan, USER};
use std::collections::BTreeMap;
use terrane_oracle::{Failure, ensure, failed};
use terrane_posix::{Errno, Fs, Ino, Job, JobStep, SetXattr, WriteFlags};
use terrane_wire::Prng;

/// Reproducible bytes: their seed and number.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    seed: u64,
    len: usize,
}

struct Written {
    content: Bytes,
    attribute: Option<Bytes>,
}

/// Names and what their files hold.
type Files = BTreeMap<String, Written>;

const ATTRIBUTE: &[u8] = b"user.attribute";

fn content(Bytes { seed, len }: Bytes) -> Vec<u8> {
    let mut rng = Prng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Writes incompressible files until the pool is full. Returns how many bytes were accepted.
fn fill(fs: &Fs, rng: &mut Prng, prefix: &str, files: &mut Files) -> Result<u64, Failure> {
    let mut bytes = 0;
    for number in 0.. {
        let name = format!("{prefix}-{number}");
        let (seed, len) = (rng.next_u64(), 1 + rng.below(600_000) as usize);
        let attr = match fs.create(fs.root(), name.as_bytes(), 0o644, &USER) {
            Ok(attr) => attr,
            Err(Errno::ENOSPC) => break,
            Err(errno) => return Err(Failure(format!("create {name}: {errno}"))),
        };
        // Before the contents: a refusal then must leave nothing.
        let mut attribute = None;
        if rng.one_in(3) {
            let most = rng.pick(&[100, 600, 30_000, 65_536]).unwrap_or(100);
            let value = Bytes { seed: rng.next_u64(), len: 1 + rng.below(most) as usize };
            let set = set_attribute(fs, attr.ino, value).map_err(|failure| failure.within(&name))?;
            attribute = set.then_some(value);
            bytes += attribute.map_or(0, |value| value.len as u64);
        }
        let written = fs.write(attr.ino, 0, &content(Bytes { seed, len }), WriteFlags::default());
        fs.forget(attr.ino, 1);
        match written {
            Ok(written) => {
                files.insert(name, Written { content: Bytes { seed, len: written as usize }, attribute });
                bytes += u64::from(written);
                if (written as usize) < len {
                    break;
                }
            }
            Err(Errno::ENOSPC) => {
                files.insert(name, Written { content: Bytes { seed, len: 0 }, attribute });
                break;
            }
            Err(errno) => return Err(Failure(format!("write {name}: {errno}"))),
        }
    }
    Ok(bytes)
}

/// False: there is no space for it.
fn set_attribute(fs: &Fs, ino: Ino, value: Bytes) -> Result<bool, Failure> {
    match fs.setxattr(ino, ATTRIBUTE, &content(value), SetXattr::default(), &USER) {
        Ok(()) => Ok(true),
        Err(Errno::ENOSPC) => Ok(false),
        Err(errno) => Err(Failure(format!("set an attribute: {errno}"))),
    }
}

fn compare_attribute(fs: &Fs, ino: Ino, expected: Option<Bytes>) -> Result<(), Failure> {
    let mut found = Vec::new();
    let got = fs.getxattr(ino, ATTRIBUTE, &mut found);
    let same = match expected {
        Some(expected) => got.is_ok() && found == content(expected),
        None => got == Err(Errno::ENODATA),
    };
    ensure(same, || format!("its attribute: {got:?} and {} bytes, expected {expected:?}", found.len()))
}

/// On a full pool: other values are accepted or refused as a whole, and attributes can be removed.
fn change_attributes(fs: &Fs, rng: &mut Prng, files: &mut Files) -> Result<(), Failure> {
    for (name, written) in files.iter_mut().filter(|(_, written)| written.attribute.is_some()) {
        let at = |failure: Failure| failure.within(format_args!("{name} on a full pool"));
        let errno = |errno: Errno| at(Failure(errno.to_string()));
        let ino = fs.lookup(fs.root(), name.as_bytes()).map_err(errno)?.ino;
        fs.forget(ino, 1);
        if rng.one_in(2) {
            let value = Bytes { seed: rng.next_u64(), len: 1 + rng.below(65_536) as usize };
            if set_attribute(fs, ino, value).map_err(at)? {
                written.attribute = Some(value);
            }
        } else if rng.one_in(2) {
            fs.removexattr(ino, ATTRIBUTE).map_err(errno)?;
            written.attribute = None;
        }
        compare_attribute(fs, ino, written.attribute).map_err(at)?;
    }
    Ok(())
}

/// Everything that was written can be read.
fn compare(fs: &Fs, files: &Files) -> Result<(), Failure> {
    for (name, written) in files {
        let attr =
            fs.lookup(fs.root(), name.as_bytes()).map_err(|errno| Failure(format!("{name}: {errno}")))?;
        let mut found = Vec::new();
        let read = fs.read(attr.ino, 0, u32::try_from(attr.size).unwrap_or(u32::MAX), &mut found);
        fs.forget(attr.ino, 1);
        read.map_err(|errno| Failure(format!("read {name}: {errno}")))?;
        ensure(found == content(written.content), || {
            format!("{name} of {} bytes differs", written.content.len)
        })?;
        compare_attribute(fs, attr.ino, written.attribute).map_err(|failure| failure.within(name))?;
    }
    Ok(())
}

fn remove(fs: &Fs, files: &mut Files, mut which: impl FnMut() -> bool) -> Result<(), Failure> {
    let names: Vec<String> = files.keys().filter(|_| which()).cloned().collect();
    for name in names {
        fs.unlink(fs.root(), name.as_bytes())
            .map_err(|errno| Failure(format!("unlink {name} on a full pool: {errno}")))?;
        files.remove(&name);
    }
    // The files were closed: their space is freed, however full the pool is.
    let waiting = fs.unlinked_count().map_err(failed("unlinked objects"))?;
    ensure(waiting == 0, || format!("{waiting} removed files wait for the next mount"))
}

fn sync(machine: &Machine) -> Result<(), Failure> {
    machine.fs().sync().map_err(failed("sync"))
}

/// Waits for space that becomes available only after a few txgs.
fn wait_for_freed_space(machine: &Machine) -> Result<u64, Failure> {
    for round in 0..8 {
        while machine.fs().shrink_dirs().step(1) == Ok(JobStep::Progressed) {}
        let file = machine.fs().create(machine.fs().root(), b"settle", 0o600, &USER);
        if let Ok(attr) = file {
            machine.fs().forget(attr.ino, 1);
            machine.fs().unlink(machine.fs().root(), b"settle").map_err(failed("unlink"))?;
        }
        sync(machine).map_err(|failure| failure.within(format_args!("settling, round {round}")))?;
    }
    Ok(machine.fs().statfs().available)
}

/// Results of one run of [`rounds`].
#[derive(Clone, Copy, Debug)]
pub struct RoundStats {
    /// Free space of the empty pool at the beginning, in blocks of `statvfs`.
    pub available_first: u64,
    /// Free space of the emptied pool at the end, in blocks of `statvfs`.
    pub available_last: u64,
    /// Bytes that the files took in the first round.
    pub filled_first: u64,
    /// Bytes that the files took in the round in which it was least.
    pub filled_least: u64,
}

/// Fills and empties a pool of 64 zones of 1 MiB, `count` times. In odd rounds every second file, or a random
/// part, is removed before the pool is filled again.
pub fn rounds(seed: u64, count: u64) -> Result<RoundStats, Failure> {
    let mut plan = Plan { props: vec![("recordsize", "16K"), ("compression", "off")], ..Plan::small(seed) };
    // A directory that becomes fat and shrinks in every round, while there is no free space.
    plan.props.extend((seed % 2 == 1).then_some(("zapsize", "2K")));
    let mut machine = Machine::create(&plan)?;
    let mut rng = Prng::new(seed);
    let mut files = Files::new();
    let first = wait_for_freed_space(&machine)?;
    let mut stats =
        RoundStats { available_first: first, available_last: first, filled_first: 0, filled_least: u64::MAX };
    for round in 0..count {
        let at = |failure: Failure| failure.within(format_args!("round {round}"));
        let filled = fill(machine.fs(), &mut rng, &format!("a{round}"), &mut files).map_err(at)?;
        if round == 0 {
            stats.filled_first = filled;
        }
        stats.filled_least = stats.filled_least.min(filled);
        change_attributes(machine.fs(), &mut rng, &mut files).map_err(at)?;
        sync(&machine).map_err(at)?;
        if round % 2 == 1 {
            let (mut every_second, random) = (false, rng.one_in(2));
            remove(machine.fs(), &mut files, || {
                every_second = !every_second;
                if random { rng.one_in(2) } else { every_second }
            })
            .map_err(at)?;
            sync(&machine).map_err(at)?;
            wait_for_freed_space(&machine).map_err(at)?;
            let again = fill(machine.fs(), &mut rng, &format!("b{round}"), &mut files).map_err(at)?;
            ensure(again > 0, || "nothing could be written after every second file was removed".into())
                .map_err(at)?;
            sync(&machine).map_err(at)?;
        }
        if round % 5 == 4 {
            compare(machine.fs(), &files).map_err(at)?;
            machine.check().map_err(at)?;
            let device = machine.export().map_err(at)?;
            machine = Machine::import(&device, seed + round, false).map_err(at)?;
            machine.mount().map_err(at)?;
        }
        remove(machine.fs(), &mut files, || true).map_err(at)?;
        machine.fs().forget_all();
        sync(&machine).map_err(at)?;
        stats.available_last = wait_for_freed_space(&machine).map_err(at)?;
    }
    machine.check()?;
    Ok(stats)
}

/// Results of one run of [`emptied`], in bytes.
#[derive(Clone, Copy, Debug)]
pub struct EmptyingStats {
    /// Free space of the empty pool.
    pub offered: u64,
    /// Space in use at the first refusal: highest value, and lowest of all rounds.
    pub most_in_use: u64,
    /// The lowest value of all rounds.
    pub least_in_use: u64,
    /// Highest value of the space in use after everything was deleted.
    pub most_left: u64,
}

/// Fills a pool until something is refused, and empties it, again and again. The free space of the empty pool
/// can be used but for 2 %, nothing leaks, and the device is nearly empty after each deletion. Files are of
/// one kind in each round: large, small, or both.
pub fn emptied(seed: u64, zones: u32, count: u64) -> Result<EmptyingStats, Failure> {
    let plan = Plan { zones, stale: false, props: vec![("compression", "off")], ..Plan::small(seed) };
    let machine = Machine::create(&plan)?;
    let mut rng = Prng::new(seed);
    wait_for_freed_space(&machine)?;
    let (_, live_empty, offered) = machine.pool.space();
    let mut stats = EmptyingStats { offered, most_in_use: 0, least_in_use: u64::MAX, most_left: 0 };
    for round in 0..count {
        let at = |failure: Failure| failure.within(format_args!("round {round}"));
        let mut files = Files::new();
        let kind = rng.below(3);
        let mut refused = false;
        while !refused {
            let len = match kind {
                0 => 3 << 20,
                1 => 40_000,
                _ => 1 + rng.below(1 << 20) as usize,
            };
            refused = !append_file(machine.fs(), &mut rng, len, &mut files).map_err(at)?;
        }
        sync(&machine).map_err(at)?;
        let in_use = machine.pool.space().1 - live_empty;
        stats.most_in_use = stats.most_in_use.max(in_use);
        stats.least_in_use = stats.least_in_use.min(in_use);
        ensure(in_use * 100 >= offered * 98, || {
            format!("{in_use} bytes are in use of {offered} that were offered, files of kind {kind}")
        })
        .map_err(at)?;
        if round % 5 == 0 {
            compare(machine.fs(), &files).map_err(at)?;
        }
        remove(machine.fs(), &mut files, || true).map_err(at)?;
        wait_for_freed_space(&machine).map_err(at)?;
        machine.check().map_err(at)?;
        let (_, live, again) = machine.pool.space();
        ensure(again * 100 >= offered * 99, || {
            format!("{again} bytes are offered when all is deleted, {offered} at first; {live_empty} bytes lived then, {live} now")
        })
        .map_err(at)?;
        let left = machine.device.stored_bytes();
        stats.most_left = stats.most_left.max(left);
        ensure(left * 4 <= offered, || format!("{left} bytes are on the device when all is deleted"))
            .map_err(at)?;
    }
    Ok(stats)
}

/// Appends a file of up to `len` bytes in pieces of 64 KiB. False: it was refused, in whole or in part.
fn append_file(fs: &Fs, rng: &mut Prng, len: usize, files: &mut Files) -> Result<bool, Failure> {
    let name = format!("{:08}", files.len());
    let ino = match fs.create(fs.root(), name.as_bytes(), 0o644, &USER) {
        Ok(attr) => attr.ino,
        Err(Errno::ENOSPC) => return Ok(false),
        Err(errno) => return Err(Failure(format!("create {name}: {errno}"))),
    };
    let seed = rng.next_u64();
    let bytes = content(Bytes { seed, len });
    let mut done = 0;
    for piece in bytes.chunks(64 << 10) {
        match fs.write(ino, done as u64, piece, WriteFlags::default()) {
            Ok(written) => done += written as usize,
            Err(Errno::ENOSPC) => break,
            Err(errno) => return Err(Failure(format!("write {name}: {errno}"))),
        }
    }
    fs.forget(ino, 1);
    files.insert(name, Written { content: Bytes { seed, len: done }, attribute: None });
    Ok(done == len)
}

/// Creates empty files with attributes, in dnodes of any size, until nothing fits. Then the attributes are
/// changed and removed, then the files, and as much space is free as before. Returns how many files there
/// were.
pub fn small_files(seed: u64, dnode_size: &'static str) -> Result<u64, Failure> {
    let props = vec![("dnodesize", dnode_size), ("compression", "off")];
    let machine = Machine::create(&Plan { props, zones: 32, ..Plan::small(seed) })?;
    let fs = machine.fs();
    let mut rng = Prng::new(seed);
    let mut files = Files::new();
    let first = wait_for_freed_space(&machine)?;
    let mut made = 0;
    for round in 0..2 {
        let at = |failure: Failure| failure.within(format_args!("round {round}"));
        for number in 0.. {
            let name = format!("{round}-{number}");
            let ino = match fs.create(fs.root(), name.as_bytes(), 0o644, &USER) {
                Ok(attr) => attr.ino,
                Err(Errno::ENOSPC) => break,
                Err(errno) => return Err(at(Failure(format!("create {name}: {errno}")))),
            };
            let most = rng.pick(&[100, 600, 6000, 60_000]).unwrap_or(100);
            let value = Bytes { seed: rng.next_u64(), len: 1 + rng.below(most) as usize };
            let set = set_attribute(fs, ino, value).map_err(at)?;
            fs.forget(ino, 1);
            files.insert(name, Written { content: Bytes::default(), attribute: set.then_some(value) });
            made += 1;
        }
        change_attributes(fs, &mut rng, &mut files).map_err(at)?;
        sync(&machine).map_err(at)?;
        compare(fs, &files).map_err(at)?;
        machine.check().map_err(at)?;
        remove(fs, &mut files, || round == 1 || rng.one_in(2)).map_err(at)?;
        sync(&machine).map_err(at)?;
        wait_for_freed_space(&machine).map_err(at)?;
    }
    let last = wait_for_freed_space(&machine)?;
    machine.check()?;
    ensure(last + first / 25 >= first, || format!("{last} blocks are available, of {first}"))?;
    Ok(made)
}
