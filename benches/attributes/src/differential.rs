//! Compares two file systems: the same random operations must have the same answers and the same results.
//!
//! The cases cover what their author thought of; this covers the rest. Users, modes, umask, ACLs,
//! capabilities and attributes of every home meet in one small tree. A failure prints the seed and the last
//! operations.

use crate::cases::privileges::chmod;
use crate::describe::Describe;
use crate::person::{ANN, BOB, CAT, CREW, Person};
use crate::xattr::{self, ACCESS, CAPABILITY, DEFAULT, Entry, acl, random_bytes};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, XattrFlags, chownat, mkdirat, mknodat, openat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, umask};
use std::collections::VecDeque;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

/// The user of an operation; `None` is root.
const PEOPLE: [Option<Person>; 6] = [None, None, Some(ANN), Some(BOB), Some(CAT), Some(ANN)];
const PATHS: [&str; 10] = ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a"];
const NAMES: [&str; 6] = ["user.a", "user.b", "user.longer-name", "trusted.a", "security.a", "user.c"];
/// Paths that are directories if they exist; otherwise soon nothing would be below them.
const DIRECTORIES: [&str; 3] = ["d", "d/e", "f"];
/// ext4 has a block for short values, and inodes for long ones: between the two it refuses what Terrane
/// stores.
const LENS: [usize; 8] = [0, 5, 40, 100, 5000, 33_000, 40_000, 65_536];
/// Operations between two comparisons of everything.
const OPS_PER_SNAPSHOT: u64 = 25;
const OPS_SHOWN: usize = 12;

struct Random(u64);

impl Random {
    /// A random number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// An operation, with all its random parameters.
#[derive(Clone, Debug)]
enum Op {
    Create { mode: u32, umask: u32 },
    Mkdir { mode: u32, umask: u32 },
    Fifo { mode: u32, umask: u32 },
    Symlink,
    Remove,
    Rename(&'static str),
    Link(&'static str),
    Chmod(u32),
    Chown { uid: Option<u32>, gid: Option<u32> },
    Append,
    Truncate,
    Open { read: bool, write: bool },
    Set { name: &'static str, len: usize, seed: u64, flags: u32 },
    Get(&'static str),
    List,
    Unset(&'static str),
    SetAcl { name: &'static str, value: Vec<u8> },
    SetCapability,
}

fn random_acl(random: &mut Random) -> Vec<u8> {
    let mut may = || random.below(8) as u16;
    let mut entries = vec![Entry::Owner(may())];
    let (users, groups, with_mask) = (may() % 3, may() % 3, may() > 0);
    let people = [ANN, BOB, CAT];
    entries.extend(people.iter().take(users.into()).map(|person| Entry::User(person.uid, may())));
    entries.push(Entry::Group(may()));
    entries.extend([CAT.gid, CREW].iter().take(groups.into()).map(|gid| Entry::NamedGroup(*gid, may())));
    // Now and then a required mask is missing: that is refused.
    if with_mask && (users + groups > 0 || may() > 4) {
        entries.push(Entry::Mask(may()));
    }
    entries.push(Entry::Other(may()));
    acl(&entries)
}

fn random_op(random: &mut Random) -> Op {
    let masks = [0, 0o022, 0o027, 0o077];
    let (mode, umask) = (random.below(0o1000) as u32 | 0o400, random.one_of(&masks));
    let owners = [None, Some(0), Some(ANN.uid), Some(BOB.uid), Some(CAT.uid)];
    match random.below(32) {
        0..3 => Op::Create { mode, umask },
        3 => Op::Mkdir { mode: mode | 0o700, umask },
        4 => Op::Fifo { mode, umask },
        5 if random.below(3) == 0 => Op::Symlink,
        6 if random.below(2) == 0 => Op::Remove,
        7 => Op::Rename(random.one_of(&PATHS)),
        8 => Op::Link(random.one_of(&PATHS)),
        9..11 => Op::Chmod(random.below(0o10000) as u32 | 0o100),
        11 => {
            let groups = [None, Some(0), Some(ANN.gid), Some(CREW), Some(CREW)];
            Op::Chown { uid: random.one_of(&owners), gid: random.one_of(&groups) }
        }
        12 => Op::Append,
        13 => Op::Truncate,
        14 => Op::Open { read: random.below(2) == 0, write: random.below(2) == 0 },
        15..20 => {
            let flags = random.one_of(&[0, 0, 0, 1, 2]);
            Op::Set {
                name: random.one_of(&NAMES),
                len: random.one_of(&LENS),
                seed: random.below(1000),
                flags,
            }
        }
        20 => Op::Get(random.one_of(&NAMES)),
        21 => Op::List,
        22..24 => Op::Unset(random.one_of(&NAMES)),
        24 => Op::Unset(random.one_of(&[ACCESS, DEFAULT, CAPABILITY])),
        25..28 => Op::SetAcl { name: ACCESS, value: random_acl(random) },
        28 => Op::SetAcl { name: DEFAULT, value: random_acl(random) },
        29 => Op::Get(random.one_of(&[ACCESS, DEFAULT, CAPABILITY])),
        30 => Op::SetCapability,
        _ => Op::List,
    }
}

fn plain(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn perform(root: &Path, at: &str, op: &Op) -> String {
    let path = &root.join(at);
    let open = |flags, mode: u32| openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, mode.into());
    let with_umask = |mask: u32| umask(Mode::from_raw_mode(mask));
    match op {
        Op::Create { mode, umask } => {
            with_umask(*umask);
            open(OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, *mode).map(drop).describe()
        }
        Op::Mkdir { mode, umask } => {
            with_umask(*umask);
            mkdirat(CWD, path, Mode::from_raw_mode(*mode)).describe()
        }
        Op::Fifo { mode, umask } => {
            with_umask(*umask);
            mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(*mode), 0).describe()
        }
        Op::Symlink => symlink("a", path).map_err(plain).describe(),
        Op::Remove => {
            std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path)).map_err(plain).describe()
        }
        Op::Rename(to) => std::fs::rename(path, root.join(to)).map_err(plain).describe(),
        Op::Link(to) => std::fs::hard_link(path, root.join(to)).map_err(plain).describe(),
        Op::Chmod(mode) => chmod(path, *mode).describe(),
        Op::Chown { uid, gid } => {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW).describe()
        }
        Op::Append => open(OFlags::WRONLY | OFlags::APPEND, 0)
            .and_then(|file| rustix::io::write(&file, b"x"))
            .describe(),
        Op::Truncate => open(OFlags::WRONLY, 0).and_then(|file| rustix::fs::ftruncate(&file, 0)).describe(),
        Op::Open { read, write } => {
            let flags = match (read, write) {
                (true, true) => OFlags::RDWR,
                (false, true) => OFlags::WRONLY,
                _ => OFlags::RDONLY,
            };
            open(flags, 0).map(drop).describe()
        }
        Op::Set { name, len, seed, flags } => rustix::fs::lsetxattr(
            path,
            *name,
            &random_bytes(*seed, *len),
            XattrFlags::from_bits_retain(*flags),
        )
        .describe(),
        Op::Get(name) => xattr::lget(path, *name).describe(),
        Op::List => xattr::llist(path).describe(),
        Op::Unset(name) => xattr::lremove(path, *name).describe(),
        Op::SetAcl { name, value } => xattr::lset(path, *name, value).describe(),
        Op::SetCapability => xattr::lset(path, CAPABILITY, &xattr::net_raw()).describe(),
    }
}

/// Everything below, as root sees it: a line for each file and each of its attributes.
fn snapshot(root: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    for at in PATHS {
        let path = root.join(at);
        let Ok(stat) = path.symlink_metadata() else { continue };
        let kind = stat.file_type();
        let kind = match () {
            () if kind.is_dir() => "directory",
            () if kind.is_symlink() => "symlink",
            () if kind.is_fifo() => "fifo",
            () => "file",
        };
        // The two count links and sizes of directories differently.
        let (links, len) = if kind == "directory" { (0, 0) } else { (stat.nlink(), stat.len()) };
        seen.push(format!(
            "{at}: {kind} {:o} {}:{} {links} links, {len} bytes",
            stat.mode(),
            stat.uid(),
            stat.gid()
        ));
        for name in xattr::llist(&path).unwrap_or_default() {
            seen.push(format!(
                "{at}: {}: {}",
                name.escape_ascii(),
                xattr::lget(&path, name.as_slice()).describe()
            ));
        }
    }
    seen
}

fn adapted(at: &str, op: Op) -> Op {
    let is_directory = |at| DIRECTORIES.contains(&at);
    match op {
        Op::Create { mode, umask } | Op::Fifo { mode, umask } if is_directory(at) => {
            Op::Mkdir { mode: mode | 0o700, umask }
        }
        Op::Mkdir { mode, umask } if !is_directory(at) => Op::Create { mode, umask },
        Op::Symlink if is_directory(at) => Op::List,
        // By a stranger: Linux checks it only where set-id bits would be dropped, which it leaves to a FUSE
        // server.
        Op::Chown { uid: None, gid: None } => Op::List,
        Op::Rename(to) | Op::Link(to) if is_directory(at) != is_directory(to) => Op::List,
        op => op,
    }
}

/// A set-gid bit without the execute permission has no meaning. When a user outside the group writes the file
/// or changes its owner, Linux drops the bit, and FUSE's protocol keeps it.
fn is_left_to_fuse(op: &Op, path: &Path) -> bool {
    let mode = path.metadata().map_or(0, |stat| stat.mode());
    matches!(op, Op::Append | Op::Truncate | Op::Chown { .. }) && mode & 0o2010 == 0o2000
}

/// Runs `ops` operations in two new directories. Returns how many were not refused, or the first difference.
pub fn compare(one: &Path, other: &Path, ops: u64, seed: u64) -> Result<u64, String> {
    let mut done = 0;
    let mut random = Random(seed);
    let mut last: VecDeque<String> = VecDeque::new();
    let roots = [one.join("beside"), other.join("beside")];
    umask(Mode::empty());
    for root in &roots {
        std::fs::create_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
        chmod(root, 0o777).map_err(|errno| format!("{}: {errno}", root.display()))?;
    }
    for count in 0..ops {
        let (who, at, op) = (random.one_of(&PEOPLE), random.one_of(&PATHS), random_op(&mut random));
        // Terrane drops set-id bits after root's writes, too, on purpose.
        let who = if matches!(op, Op::Append | Op::Truncate) { who.or(Some(ANN)) } else { who };
        let op = adapted(at, op);
        let op = if is_left_to_fuse(&op, &roots[0].join(at)) { Op::List } else { op };
        let answers = roots.each_ref().map(|root| match who {
            Some(person) => person.run_as(|| perform(root, at, &op)),
            None => perform(root, at, &op),
        });
        done += u64::from(!answers[0].starts_with('E'));
        last.push_back(format!("{:?} {at} {op:?}: {}", who.map(|person| person.uid), answers[0]));
        if last.len() > OPS_SHOWN {
            last.pop_front();
        }
        let story = || last.iter().map(|line| format!("    {line}\n")).collect::<String>();
        if answers[0] != answers[1] {
            return Err(format!(
                "seed {seed}, operation {count}: results differ, the other directory returned {}\n{}",
                answers[1],
                story()
            ));
        }
        if count % OPS_PER_SNAPSHOT == 0 || count + 1 == ops {
            let snapshots = roots.each_ref().map(|root| snapshot(root));
            let lines = snapshots[0]
                .iter()
                .filter(|line| !snapshots[1].contains(line))
                .map(|line| format!("    < {line}\n"));
            let others = snapshots[1]
                .iter()
                .filter(|line| !snapshots[0].contains(line))
                .map(|line| format!("    > {line}\n"));
            let differ: String = lines.chain(others).collect();
            if !differ.is_empty() {
                return Err(format!("seed {seed}, after operation {count}:\n{differ}{}", story()));
            }
        }
    }
    Ok(done)
}
