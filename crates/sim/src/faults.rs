//! Faulty media.
//!
//! There are two kinds of scenario. In the first the device fails honestly: errors, zones that die, bit rot.
//! The file system must live with that. Metadata heals from its other copy, damage to file contents is `EIO`
//! to readers of that file, and everything else continues. In the second the device fails silently: a lost flush,
//! a lost write, or a misdirected one. No file system can prevent that, but it must be *detected*. These
//! canaries prove that the crash scenarios can fail.

use crate::crash;
use crate::machine::{Machine, Plan, USER};
use crate::workload::{Step, Workload};
use std::collections::BTreeSet;
use terrane_check::{Finding, Report, kind};
use terrane_device::sim::{Fault, Survival};
use terrane_device::{Device, SimDevice, ZoneState};
use terrane_format::Owner;
use terrane_format::directory::SPILL;
use terrane_object::ObjectKind;
use terrane_oracle::{Failure, Node, ensure, failed, xattr_names};
use terrane_posix::{Errno, Ino, SetAttr, SetTime, SetXattr, WriteFlags};
use terrane_wire::ZoneIdx;
use terrane_wire::{ObjectId, Prng};

/// A file system with some content, committed.
fn committed_workload(seed: u64, steps: u64) -> Result<Workload, Failure> {
    let mut workload = Workload::fresh(Machine::create(&Plan::small(seed))?, seed);
    for _ in 0..steps {
        ensure(workload.step()? == Step::Done, || "the pool stopped without an error".into())?;
    }
    workload.sync()?;
    Ok(workload)
}

/// The files of the model; any of them may have lost bytes.
fn files(workload: &Workload) -> BTreeSet<Ino> {
    workload.model.nodes.keys().copied().filter(|ino| !workload.model.is_dir(*ino)).collect()
}

fn report(machine: &Machine) -> Report {
    terrane_check::check(&machine.objects, &mut |_| {})
}

/// Writes fail now and then, some of them halfway; nothing is lost. `one_in` is how often.
pub fn write_errors(seed: u64, one_in: u32) -> Result<u64, Failure> {
    let mut workload = committed_workload(seed, 40)?;
    let device = workload.machine.device.clone();
    let fault = device.inject(Fault::WriteError { zone: None, one_in, partial: seed.is_multiple_of(2) });
    let mut dead = false;
    for step in 0..150 {
        let ended = if step % 10 == 9 { workload.sync()? } else { workload.step()? };
        if ended == Step::Stopped {
            dead = true;
            break;
        }
    }
    let fired = device.fired(fault);
    device.clear_faults();
    if dead {
        // The pool may stop if a commit cannot be completed; everything promised exists after the next
        // import.
        ensure(fired > 0, || "the pool stopped without a fault".into())?;
        workload.machine.pool.abandon();
        let left = device.restarted(Survival::Everything);
        crash::continue_workload(crash::recover(&workload, &left, seed)?, 20, seed)?;
    } else {
        crash::continue_workload(workload, 20, seed)?;
    }
    Ok(fired)
}

/// Reads fail in bursts, only while txgs sync: nothing that a sync promised is lost, and nothing partial is
/// committed. Returns how it ended.
pub fn read_bursts(seed: u64) -> Result<BurstOutcome, Failure> {
    let mut workload = committed_workload(seed, 60)?;
    let device = workload.machine.device.clone();
    let mut rng = Prng::new(seed ^ 0x0bad_4ead);
    let mut ended = BurstOutcome::default();
    for _ in 0..12 {
        for _ in 0..10 {
            ensure(workload.step()? == Step::Done, || "the pool stopped between two syncs".into())?;
        }
        workload.machine.pool.drop_cache();
        // Some of what the txg needs is in memory.
        for _ in 0..rng.below(4) {
            let nodes: Vec<Ino> = workload.model.nodes.keys().copied().collect();
            let _ = rng.pick(&nodes).map(|ino| workload.machine.fs().getattr(ino));
        }
        // A permanent fault is rare, since it ends the workload.
        let one_in = if rng.one_in(12) { 1 } else { 2 + rng.below(3) as u32 };
        let fault = device.inject(Fault::ReadError { zone: None, one_in });
        let step = workload.sync()?;
        ended.failed_reads += device.fired(fault);
        device.clear_faults();
        if step == Step::Stopped {
            ended.stopped = true;
            break;
        }
    }
    ensure(!ended.stopped || ended.failed_reads > 0, || "the pool stopped without a fault".into())?;
    let left = match seed % 3 {
        0 => device.after_power_loss(seed),
        _ => device.restarted(Survival::Everything),
    };
    workload.machine.pool.abandon();
    crash::continue_workload(crash::recover(&workload, &left, seed)?, 20, seed)?;
    Ok(ended)
}

/// How a workload with failing reads ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct BurstOutcome {
    /// Reads that the device failed.
    pub failed_reads: u64,
    /// A txg failed because it could not read what it needed.
    pub stopped: bool,
}

/// All metadata copies in one zone rot: every read is healed from the other copy, and after the next txgs a
/// check is clean again.
pub fn metadata_rot(seed: u64) -> Result<(), Failure> {
    let workload = committed_workload(seed, 80)?;
    let model = workload.model.after_remount();
    let device = workload.machine.export()?;
    let machine = Machine::import(&device, seed, true)?;
    let zone = machine
        .pool
        .zones()
        .into_iter()
        .find(|zone| zone.live > 0 && zone.class == terrane_format::record::ZoneClass::MetaA);
    let zone = zone.ok_or(Failure("no metadata zone was found".into()))?;
    // Only blocks of trees: reads do not heal what the pool itself keeps.
    let entries = machine.pool.zone_directory(zone.seq).map_err(failed("zone directory"))?;
    for (entry, standing) in entries {
        // Zones are shared: contents have one copy, and cannot be healed.
        let of_tree = matches!(entry.owner, Owner::Block { .. }) && !entry.other_copies.is_empty();
        if of_tree && standing == terrane_store::explain::EntryState::Live {
            let mut mask = vec![0; entry.psize as usize];
            if let Some(first) = mask.first_mut() {
                *first = 0x10;
            }
            device.rot(zone.home.zone, entry.offset, &mask).map_err(failed("rot"))?;
        }
    }
    drop(machine);
    let damaged = report(&Machine::import(&device, seed, true)?);
    ensure(!damaged.is_clean(), || "check found no damage after the rot".into())?;
    let mut machine = Machine::import(&device, seed, false)?;
    // Healing is bounded per txg.
    for round in 0..20 {
        machine.pool.drop_cache();
        machine.mount()?;
        model.compare(machine.fs())?;
        machine.fs().forget_all();
        // Reading alone makes nothing dirty: heals are written with a txg.
        let file = machine.fs().create(machine.fs().root(), b"heal", 0o600, &crate::machine::ROOT);
        let file = file.map_err(failed("create"))?;
        machine.fs().forget(file.ino, 1);
        machine.fs().unlink(machine.fs().root(), b"heal").map_err(failed("unlink"))?;
        machine.fs().sync().map_err(failed("sync"))?;
        machine.fs().sync().map_err(failed("sync"))?;
        machine.pool.drop_cache();
        let found = report(&machine);
        if found.is_clean() {
            return Ok(());
        }
        ensure(round < 19, || format!("not healed: {found}"))?;
    }
    Ok(())
}

/// File contents rot: `EIO` for readers of that file, and check names the blocks.
pub fn data_rot(seed: u64) -> Result<u64, Failure> {
    let mut workload = committed_workload(seed, 80)?;
    workload.model = workload.model.after_remount();
    let model = workload.model.clone();
    let all = files(&workload);
    let device = workload.machine.export()?;
    let machine = Machine::import(&device, seed, true)?;
    let mut rng = Prng::new(seed);
    let mut hit = BTreeSet::new();
    for zone in machine.pool.zones() {
        for (entry, standing) in machine.pool.zone_directory(zone.seq).map_err(failed("zone directory"))? {
            let Owner::Block { object, level: 0, .. } = entry.owner else { continue };
            let here = standing == terrane_store::explain::EntryState::Live && entry.other_copies.is_empty();
            if here && all.contains(&object) && rng.one_in(3) {
                let at = entry.offset + rng.below(u64::from(entry.psize));
                device.rot(zone.home.zone, at, &[1 << rng.below(8)]).map_err(failed("rot"))?;
                hit.insert(object);
            }
        }
    }
    drop(machine);
    let mut machine = Machine::import(&device, seed, false)?;
    let found = report(&machine);
    ensure(hit.is_empty() || found.has(kind::COPY), || "check found no damage after the rot".into())?;
    machine.mount()?;
    let lost = model.compare_with_damage(machine.fs(), &hit)?;
    ensure(lost == hit.len() as u64, || format!("{lost} of {} damaged files gave EIO", hit.len()))?;
    Ok(lost)
}

/// Which part of an inode's extended attributes can no longer be read, in any copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostPart {
    /// The spill block: here it holds the whole list.
    Spill,
    /// The names in the hidden directory.
    Names,
    /// One value in it.
    Value,
}

/// A part of one file's attributes rots. Reads of that part return `EIO`. The file, its other attributes and
/// other files are unchanged; attributes can be removed where possible, and the file always.
pub fn attribute_rot(seed: u64, lost: LostPart) -> Result<(), Failure> {
    const SPILLED: &str = "user.spilled";
    let props = vec![("dnodesize", "legacy"), ("recordsize", "4K")];
    let mut workload = Workload::fresh(Machine::create(&Plan { props, ..Plan::small(seed) })?, seed);
    let fs = workload.machine.fs().clone();
    let root = workload.model.root;
    let mut rng = Prng::new(seed);
    // So many names that the hidden directory does not fit into a pointer.
    let hidden: Vec<String> = (0..5)
        .map(|at| format!("user.hidden {at} {:x}{:x}{:x}", rng.next_u64(), rng.next_u64(), rng.next_u64()))
        .collect();
    let names = [SPILLED].into_iter().chain(hidden.iter().map(String::as_str));
    let mut files = Vec::new();
    for file in ["damaged", "other"] {
        let ino = fs.create(root, file.as_bytes(), 0o644, &USER).map_err(failed("create"))?.ino;
        workload.model.add_node(root, file, ino, Node::file(0o644));
        workload.model.write(ino, 0, &[9; 5000]);
        fs.write(ino, 0, &[9; 5000], WriteFlags::default()).map_err(failed("write"))?;
        for name in names.clone() {
            let value = content_of(&mut rng, if name == SPILLED { 3000 } else { 33_000 });
            fs.setxattr(ino, name.as_bytes(), &value, SetXattr::default(), &USER).map_err(failed("set"))?;
            let set = workload.model.set_xattr(ino, name, &value, SetXattr::default());
            set.map_err(failed("set in the model"))?;
        }
        files.push(ino);
    }
    workload.sync()?;
    let [ino, other] = files[..] else { return Err(Failure("expected two files".into())) };
    let victim = victim_of(&workload, ino, lost, &hidden)?;
    drop(fs);
    let model = workload.model.after_remount();
    let device = workload.machine.export()?;
    let machine = Machine::import(&device, seed, true)?;
    let mut copies = 0;
    for zone in machine.pool.zones() {
        for (entry, standing) in machine.pool.zone_directory(zone.seq).map_err(failed("zone directory"))? {
            if entry.owner == victim && standing == terrane_store::explain::EntryState::Live {
                device.rot(zone.home.zone, entry.offset + 9, &[0x40]).map_err(failed("rot"))?;
                copies += 1;
            }
        }
    }
    let expected = if lost == LostPart::Value { 1 } else { 2 };
    ensure(copies == expected, || format!("{victim:?} has {copies} copies, expected {expected}"))?;
    drop(machine);

    let mut machine = Machine::import(&device, seed, false)?;
    ensure(!report(&machine).is_clean(), || "check found no damage after the rot".into())?;
    machine.mount()?;
    let fs = machine.fs().clone();
    model.compare_with_damage(&fs, &BTreeSet::from([ino]))?;
    let get = |name: &str| {
        let mut value = Vec::new();
        fs.getxattr(ino, name.as_bytes(), &mut value).map(|()| value)
    };
    let xattrs = model.xattrs(ino);
    for (name, expected) in xattrs.iter() {
        let is_lost = match lost {
            // Whether a name was in the list is unknown.
            LostPart::Spill => true,
            LostPart::Names => name != SPILLED,
            LostPart::Value => *name == hidden[1],
        };
        let found = get(name);
        let same = if is_lost { found == Err(Errno::EIO) } else { found.as_ref() == Ok(expected) };
        ensure(same, || format!("{name}, lost {is_lost}: {:?}", found.map(|value| value.len())))?;
    }
    let listed = xattr_names(&fs, ino).map(|names| names.len());
    let expected = if lost == LostPart::Value { Ok(xattrs.len()) } else { Err(Errno::EIO) };
    ensure(listed == expected, || format!("listxattr: {listed:?}, expected {expected:?}"))?;
    // The file itself is unchanged, and can be changed.
    fs.write(ino, 10, b"changed", WriteFlags::default()).map_err(failed("write"))?;
    let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    fs.setattr(ino, &touch, &USER).map_err(failed("touch"))?;
    fs.rename(root, b"damaged", root, b"renamed", 0).map_err(failed("rename"))?;
    if lost == LostPart::Value {
        // Replacing the value repairs it; another attribute is removed as if nothing were damaged.
        fs.setxattr(ino, hidden[1].as_bytes(), b"new", SetXattr::default(), &USER)
            .map_err(failed("replace"))?;
        ensure(get(&hidden[1]).as_deref() == Ok(b"new"), || "the replaced value was not read back".into())?;
        fs.removexattr(ino, hidden[0].as_bytes()).map_err(failed("remove"))?;
    } else {
        let refused = fs.removexattr(ino, hidden[1].as_bytes());
        ensure(refused == Err(Errno::EIO), || {
            format!("removal of an unreadable attribute: {refused:?}, expected EIO")
        })?;
    }
    fs.sync().map_err(failed("sync"))?;
    fs.unlink(root, b"renamed").map_err(failed("unlink"))?;
    fs.forget_all();
    fs.sync().map_err(failed("sync"))?;
    ensure(fs.getattr(ino) == Err(Errno::ESTALE), || "the damaged file is still there".into())?;
    ensure(machine.is_alive(), || "the pool stopped".into())?;
    model.compare_xattrs(&fs, other)?;
    let found = report(&machine);
    // Without the names, the values that they named cannot be freed; nothing else is left.
    let is_left = |finding: &Finding| finding.kind == kind::ORPHAN && lost != LostPart::Value;
    ensure(found.findings.iter().all(is_left), || format!("after its removal: {found}"))
}

fn content_of(rng: &mut Prng, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes());
    words.take(len).collect()
}

/// The block whose loss this is.
fn victim_of(workload: &Workload, ino: Ino, lost: LostPart, hidden: &[String]) -> Result<Owner, Failure> {
    let set = workload.machine.fs().dataset().object_set().clone();
    let block = |object, block| Owner::Block { objset: set.id().0, object, level: 0, block };
    if lost == LostPart::Spill {
        return Ok(block(ino, SPILL));
    }
    let value = workload.model.xattrs(ino).get(&hidden[1]).cloned().unwrap_or_default();
    // Created after their file, before the next.
    for number in ino + 1..ino + 40 {
        let Ok(object) = set.hold(ObjectId(number)) else { continue };
        let is_it = match lost {
            LostPart::Value => {
                let mut found = vec![0; value.len()];
                object.read(0, &mut found).is_ok() && found == *value
            }
            _ => object.kind() == ObjectKind::Directory,
        };
        if is_it {
            return Ok(block(number, 0));
        }
    }
    Err(Failure("no hidden object was found".into()))
}

/// A zone dies in the middle of the workload. Only what lay in it returns `EIO`; the rest continues, without
/// a panic.
pub fn zone_failure(seed: u64, state: ZoneState) -> Result<(), Failure> {
    let mut workload = committed_workload(seed, 60)?;
    let device = workload.machine.device.clone();
    let mut rng = Prng::new(seed);
    let used: Vec<ZoneIdx> = workload.machine.pool.zones().iter().map(|zone| zone.home.zone).collect();
    let zone = rng.pick(&used).ok_or(Failure("no zone is used".into()))?;
    let after_ops = rng.below(40);
    device.inject(match state {
        ZoneState::ReadOnly => Fault::BecomesReadOnly { zone, after_ops },
        _ => Fault::BecomesOffline { zone, after_ops },
    });
    let offline = state == ZoneState::Offline;
    for step in 0..120 {
        let ended = if step % 8 == 7 { workload.sync() } else { workload.step() };
        match ended {
            Ok(Step::Done) => {}
            Ok(Step::Stopped) => break,
            // The oracle cannot follow a file that lost a block.
            Err(failure) if offline && failure.0.contains("EIO") => break,
            Err(failure) => return Err(failure),
        }
    }
    let dead = workload.machine.pool.status().failed.is_some();
    ensure(offline || !dead, || {
        format!("zone {zone} became read-only: {:?}", workload.machine.pool.status().failed)
    })?;
    if !offline {
        workload.sync()?;
        workload.machine.pool.drop_cache();
        let found = report(&workload.machine);
        ensure(found.is_clean(), || format!("zone {zone} became read-only: {found}"))?;
        return workload.model.compare(workload.machine.fs());
    }
    workload.machine.pool.abandon();
    // It stays dead after the restart.
    let left = device.restarted(Survival::Everything);
    left.kill_zone(zone, state).map_err(failed("kill zone"))?;
    let mut machine = Machine::import(&left, seed, false)?;
    let _ = report(&machine);
    machine.mount()?;
    let txg = machine.durable_txg().0;
    let mut last = Failure(format!("txg {txg} never committed"));
    for state in workload.states(txg).iter().filter(|state| state.steps >= workload.promised()) {
        let model = state.model.after_remount();
        // Names have two copies; contents and values in hidden directories have one, whatever their file.
        let all = model.nodes.keys().copied().collect();
        match model.compare_with_damage(machine.fs(), &all) {
            Ok(_) => return Ok(()),
            Err(failure) => last = failure,
        }
    }
    // The operation that met the dead zone ended between two states: it cannot be compared.
    if offline && workload.states(txg).is_empty() {
        Ok(())
    } else {
        Err(last.within("after a zone went offline"))
    }
}

/// How a device fails silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilentFault {
    /// A flush is reported as done, but does nothing.
    Flush,
    /// A write is reported as done, but does nothing.
    Write,
    /// A write goes to another zone.
    Misdirected,
}

/// A device fails silently once during a txg, and loses power after it. Returns how that was detected, or `None`
/// if the fault did not happen or could not matter.
pub fn inject_silent_fault(seed: u64, kind: SilentFault) -> Result<Option<Failure>, Failure> {
    let mut workload = committed_workload(seed, 30)?;
    let device = workload.machine.device.clone();
    let mut rng = Prng::new(seed ^ 0xca7a);
    for _ in 0..10 {
        workload.step()?;
    }
    if kind == SilentFault::Flush {
        // A txg that uses a feature for the first time writes labels too, with flushes of their own.
        workload.machine.fs().sync().map_err(failed("sync"))?;
    }
    let fault = match kind {
        // The second flush of a txg makes its uberblock durable.
        SilentFault::Flush => Fault::LostFlush { nth: 2 },
        SilentFault::Write => Fault::LostWrite { nth: 1 + rng.below(3) },
        SilentFault::Misdirected => {
            let used: Vec<ZoneIdx> =
                workload.machine.pool.zones().iter().map(|zone| zone.home.zone).collect();
            let to = rng.pick(&used).unwrap_or(ZoneIdx(2));
            Fault::MisdirectedWrite { nth: 1 + rng.below(3), to, offset: 0 }
        }
    };
    let before = device.ops_done();
    let fault = device.inject(fault);
    let file = workload.machine.fs().create(workload.machine.fs().root(), b"canary", 0o644, &USER);
    file.map_err(failed("create"))?;
    workload.machine.fs().sync().map_err(failed("sync"))?;
    if device.fired(fault) == 0 || device.ops_done() == before {
        return Ok(None);
    }
    device.cut_power();
    let left: SimDevice =
        device.restarted(if kind == SilentFault::Flush { Survival::Nothing } else { Survival::Everything });
    ensure(left.is_powered() && left.info().zone_count > 0, || "restart".into())?;
    workload.machine.pool.abandon();
    let outcome = (|| {
        let mut machine = Machine::import(&left, seed, true)?;
        machine.check()?;
        machine.mount()?;
        let found = machine.fs().lookup(machine.fs().root(), b"canary");
        found.map(drop).map_err(failed("the promised file"))
    })();
    Ok(Some(outcome.err().unwrap_or(Failure(String::new()))))
}
