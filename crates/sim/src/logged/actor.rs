//! Random calls on a small tree.

use super::calls::Allocation;
use super::world::{Step, World};
use crate::attributes::acl_of;
use crate::machine::log_devices_of;
use std::sync::Arc;
use terrane_device::{Device, Fault, SimDevice};
use terrane_oracle::{Content, Failure, ensure, failed};
use terrane_posix::{ACL_ACCESS, ACL_DEFAULT, Ino, RENAME_EXCHANGE, RENAME_NOREPLACE, Time};
use terrane_wire::Prng;

/// Chooses the calls.
pub struct Actor {
    /// Source of all choices.
    pub rng: Prng,
    /// Most bytes of a write.
    pub write_bytes: u64,
    /// Writes of the log fail now and then.
    pub log_fails: bool,
    /// Log devices join, leave, and are tried again.
    pub log_devices: bool,
}

impl Actor {
    /// One that follows from a seed.
    pub fn new(seed: u64) -> Actor {
        Actor { rng: Prng::new(seed), write_bytes: 12_000, log_fails: false, log_devices: false }
    }

    fn name(&mut self) -> String {
        match self.rng.below(8) {
            0 => "a name that takes more than one slot of a directory".into(),
            number => format!("n{number}"),
        }
    }

    fn dir(&mut self, world: &World) -> Ino {
        self.rng.pick(&world.tree.dirs()).unwrap_or(world.tree.model.root)
    }

    fn any(&mut self, world: &World) -> Ino {
        let named = world.tree.inodes(|node| node.nlink > 0);
        self.rng.pick(&named).unwrap_or(world.tree.model.root)
    }

    fn is_kind(world: &World, ino: Ino, is_kind: impl Fn(&Content) -> bool) -> bool {
        world.tree.model.nodes.get(&ino).is_some_and(|node| is_kind(&node.content))
    }

    /// One call, or an `fsync`, or a commit now and then.
    pub fn step(&mut self, world: &mut World) -> Result<Step, Failure> {
        if self.log_devices && self.rng.one_in(12) {
            return self.change_log_devices(world);
        }
        match self.rng.below(40) {
            0..14 => self.change_names(world)?,
            14..20 => self.change_attributes(world)?,
            20..30 => self.change_contents(world)?,
            30 => return world.sync(),
            31 => {
                let open: Vec<Ino> = world.tree.model.lookups.keys().copied().collect();
                if let Some(ino) = self.rng.pick(&open) {
                    world.forget(ino)?;
                }
            }
            _ => {
                let files = world.tree.files();
                let ino = match self.rng.one_in(4) || files.is_empty() {
                    true => self.any(world),
                    false => self.rng.pick(&files).unwrap_or(world.tree.model.root),
                };
                return match self.log_fails && self.rng.one_in(5) {
                    true => self.fsync_with_error(world, ino),
                    false => world.fsync(ino),
                };
            }
        }
        Ok(if world.machine.is_alive() { Step::Done } else { Step::Stopped })
    }

    /// An `fsync` that finds one copy of the log broken: it commits.
    fn fsync_with_error(&mut self, world: &mut World, ino: Ino) -> Result<Step, Failure> {
        let zones = world.machine.pool.log_zones();
        let homes: Vec<_> = zones.iter().flat_map(|zone| zone.homes.iter().copied()).collect();
        let Some(home) = self.rng.pick(&homes) else { return world.fsync(ino) };
        let place = world.machine.log_place(&home);
        let (device, zone) = place.ok_or(Failure("a device of the log is missing".into()))?;
        let partial = self.rng.one_in(2);
        // A failed flush of a member stops the pool.
        let fault = match home.lent().is_none() && self.rng.one_in(2) {
            true => Fault::FailingFlush { nth: 1 },
            false => Fault::WriteError { zone: Some(zone), one_in: 1, partial },
        };
        let fault = device.inject(fault);
        let step = world.fsync(ino);
        device.disarm(fault);
        world.seen.failed_writes += device.fired(fault);
        step
    }

    /// A log device joins or leaves, or those that failed are tried again.
    fn change_log_devices(&mut self, world: &mut World) -> Result<Step, Failure> {
        let pool = world.machine.pool.clone();
        let named = pool.log_devices();
        let is_free = |device: &SimDevice| named.iter().all(|row| row.name != device.info().name);
        let free: Vec<SimDevice> =
            log_devices_of(&world.machine.device).into_iter().filter(is_free).collect();
        let ids: Vec<u64> = named.iter().map(|row| row.id).collect();
        let chosen = free.get(self.rng.below(2) as usize).or(free.first()).cloned();
        let outcome = match (self.rng.below(4), chosen, self.rng.pick(&ids)) {
            (0, ..) => {
                world.seen.retried += pool.retry_log_devices() as u64;
                Ok(())
            }
            (1 | 2, Some(device), _) => {
                world.seen.joined += 1;
                pool.add_log_device(Arc::new(device)).map(drop)
            }
            (_, _, Some(id)) => {
                world.seen.left += 1;
                pool.remove_log_device(id)
            }
            _ => Ok(()),
        };
        if !world.machine.is_alive() {
            return Ok(Step::Stopped);
        }
        outcome.map_err(failed("a change of log devices"))?;
        world.note_commits()?;
        Ok(Step::Done)
    }

    /// So many calls, or until the power is off. The tree is compared now and then.
    pub fn run(&mut self, world: &mut World, steps: u64) -> Result<Step, Failure> {
        for step in 1..=steps {
            let done = self.step(world).map_err(|failure| failure.within(format_args!("call {step}")))?;
            if done == Step::Stopped {
                let failed = world.machine.pool.status().failed;
                ensure(!world.machine.device.is_powered(), || format!("the pool stopped: {failed:?}"))?;
                return Ok(Step::Stopped);
            }
            if step % 8 == 0 {
                let same = world.tree.compare(world.machine.fs());
                same.map_err(|failure| failure.within(format_args!("call {step}, before a crash")))?;
            }
        }
        Ok(Step::Done)
    }

    fn change_names(&mut self, world: &mut World) -> Result<(), Failure> {
        let (dir, name) = (self.dir(world), self.name());
        match self.rng.below(14) {
            0..4 => world.create(dir, &name).map(drop),
            4 => world.mkdir(dir, &name).map(drop),
            5 => {
                let target = vec![b't'; 1 + self.rng.below(400) as usize];
                world.symlink(dir, &name, &target).map(drop)
            }
            6 => world.tmpfile().map(drop),
            7 => {
                let nameless: Vec<Ino> = world.nameless.iter().copied().collect();
                let ino = self.rng.pick(&nameless);
                ino.map_or(Ok(()), |ino| world.link(ino, dir, &name))
            }
            8 => {
                let ino = self.any(world);
                match Actor::is_kind(world, ino, |content| !matches!(content, Content::Dir { .. })) {
                    true => world.link(ino, dir, &name),
                    false => Ok(()),
                }
            }
            9 => {
                let wants_dir = self.rng.one_in(3);
                world.remove(dir, &name, wants_dir)
            }
            10 => {
                let count = 1 + self.rng.below(6);
                let words: Vec<u64> = (0..count).map(|_| self.rng.next_u64() >> 40).collect();
                match world.tree.model.find(dir, &name) {
                    Some(_) => world.words(dir, &name, &words),
                    None => Ok(()),
                }
            }
            _ => {
                let (new_dir, new_name) = (self.dir(world), self.name());
                let flags = self.rng.pick(&[0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]).unwrap_or(0);
                world.rename((dir, &name), (new_dir, &new_name), flags)
            }
        }
    }

    fn change_attributes(&mut self, world: &mut World) -> Result<(), Failure> {
        let ino = self.any(world);
        let is_link = Actor::is_kind(world, ino, |content| matches!(content, Content::Link(_)));
        let is_dir = Actor::is_kind(world, ino, |content| matches!(content, Content::Dir { .. }));
        match self.rng.below(8) {
            0 if !is_link => world.chmod(ino, self.rng.below(0o1000) as u32),
            1 => {
                let id = self.rng.below(9) as u32;
                world.chown(ino, (id, id + 1))
            }
            2 => {
                let mut time = || Time { secs: self.rng.below(1 << 33) as i64, nanos: 3 };
                let (atime, mtime) = (time(), time());
                world.utimes(ino, atime, mtime)
            }
            3 if !is_link => {
                // A file without a name inherits from the root, which has no list.
                let is_default = is_dir && ino != world.tree.model.root && self.rng.one_in(2);
                let raw = acl_of(1, || self.rng.below(8) as u16);
                world.set_acl(ino, if is_default { ACL_DEFAULT } else { ACL_ACCESS }, &raw)
            }
            at => {
                let names = ["user.a", "user.b", "trusted.c", "security.d"];
                let name = self.rng.pick(&names).unwrap_or("user.a");
                let len = self.rng.pick(&[0, 10, 300, 5000, 40_000]).unwrap_or(0);
                let value = if at < 6 { Some(self.rng.sample_bytes(len)) } else { None };
                world.xattr(ino, name, value)
            }
        }
    }

    fn change_contents(&mut self, world: &mut World) -> Result<(), Failure> {
        let files = world.tree.files();
        let Some(ino) = self.rng.pick(&files) else { return Ok(()) };
        let at = self.rng.below(2 * self.write_bytes);
        let len = 1 + self.rng.below(self.write_bytes);
        match self.rng.below(12) {
            0..6 => {
                let at = if self.rng.one_in(2) { world.tree.model.bytes(ino).len() as u64 } else { at };
                let at = at.min(4 * self.write_bytes);
                // What the log takes in large batches, and what it leaves to a commit.
                let len = match self.rng.below(60) {
                    0 => 300 << 10,
                    1 => 600 << 10,
                    _ => len,
                };
                let data = self.rng.sample_bytes(len as usize);
                world.write(ino, at, data)
            }
            6 => world.truncate(ino, at),
            7 => world.truncate_on_open(ino),
            8 => {
                let from = self.rng.pick(&files).unwrap_or(ino);
                match from != ino {
                    true => world.copy(from, 0..len.next_multiple_of(4096), ino, 0),
                    false => Ok(()),
                }
            }
            _ => {
                let ways = [
                    Allocation::Grow,
                    Allocation::KeepSize,
                    Allocation::ZeroAndGrow,
                    Allocation::Zero,
                    Allocation::Punch,
                ];
                let how = self.rng.pick(&ways).unwrap_or(Allocation::Grow);
                world.fallocate(ino, how, at..at + len)
            }
        }
    }
}
