//! How a file system treats POSIX ACLs, as a page to compare: the same changes everywhere, drawn from one seed.
//!
//! ```text
//! cargo run -p terrane-posix --example acl_vectors -- DIR
//! ```
//!
//! `tests/golden/acls_of_ext4` is ext4's page (Linux 6.18; before 6.13 its ctimes are too coarse). The same
//! page is required of `Fs` in process (`tests/acls.rs`) and of a mount (`scripts/xattrs.sh`). That script also
//! runs on ext4, which checks the page itself.
//!
//! A line is a new file (`file 640`), or a change of it and its result. The result is an error or `ok`, the
//! mode, the access ACL, the default ACL, and whether the ctime changed. For a file created in the file, these
//! are the new file's.

#![allow(clippy::unwrap_used, reason = "a failed step ends the program")]

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, XattrFlags};
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub type Outcome<T> = Result<T, i32>;

/// Which of a file's two ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Access,
    Default,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    Fifo,
    Symlink,
    /// A file without a name.
    Tmp,
}

/// The visible state of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub mode: u32,
    pub access: Option<Vec<u8>>,
    pub default: Option<Vec<u8>>,
    pub ctime: (i64, u32),
}

/// A file system with one test file. Errors are those of Linux.
pub trait Subject {
    /// Replaces the file by a new one.
    fn begin(&mut self, kind: Kind, mode: u32);
    /// Sets an ACL; `None` removes it.
    fn set(&mut self, list: List, value: Option<&[u8]>) -> Outcome<()>;
    fn chmod(&mut self, mode: u32) -> Outcome<()>;
    /// Creates a file in the file, returns its state, and removes it.
    fn make(&mut self, kind: Kind, mode: u32, umask: u32) -> Outcome<Seen>;
    fn seen(&mut self) -> Seen;
}

impl List {
    pub fn name(self) -> &'static str {
        match self {
            List::Access => "system.posix_acl_access",
            List::Default => "system.posix_acl_default",
        }
    }
}

const TAGS: [(u16, &str); 6] = [(1, "u"), (2, "u"), (4, "g"), (8, "g"), (16, "m"), (32, "o")];
const NOBODY: u32 = u32::MAX;

type Row = (u16, u16, u32);

fn value(rows: &[Row]) -> Vec<u8> {
    let mut raw = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in rows {
        raw.extend(tag.to_le_bytes());
        raw.extend(permissions.to_le_bytes());
        raw.extend(id.to_le_bytes());
    }
    raw
}

/// In the form of setfacl, but with numbers for permissions.
fn text(value: Option<&[u8]>) -> String {
    let Some(raw) = value else { return "-".to_string() };
    let number = |at: &[u8]| at.iter().rev().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    if raw.len() < 12 || number(&raw[..4]) != 2 || raw.len() % 8 != 4 {
        return raw.iter().fold("0x".to_string(), |text, byte| format!("{text}{byte:02x}"));
    }
    let row = |row: &[u8]| {
        let (tag, permissions, id) = (number(&row[..2]), number(&row[2..4]), number(&row[4..]));
        let known = TAGS.iter().find(|(known, _)| u32::from(*known) == tag);
        let tag = known.map_or_else(|| format!("?{tag}"), |(_, name)| (*name).to_string());
        if id == NOBODY { format!("{tag}:{permissions}") } else { format!("{tag}{id}:{permissions}") }
    };
    raw[4..].chunks(8).map(row).collect::<Vec<_>>().join(",")
}

/// Possible errors in an ACL.
#[derive(Clone, Copy)]
enum Wrong {
    Tag,
    Id,
    Permissions,
    Missing,
    Twice,
}

const WRONGS: [Wrong; 5] = [Wrong::Tag, Wrong::Id, Wrong::Permissions, Wrong::Missing, Wrong::Twice];

/// A random generator with the same numbers for every file system.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % bound
    }

    fn permissions(&mut self) -> u16 {
        self.below(8) as u16
    }

    fn named(&mut self, tag: u16) -> Vec<Row> {
        (0..self.below(3)).map(|_| (tag, self.permissions(), 1000 + self.below(3))).collect()
    }

    /// Rows of an ACL; mostly, one in eight has an error.
    fn rows(&mut self, wrongs: &[Wrong]) -> Vec<Row> {
        let mut rows = vec![(1, self.permissions(), NOBODY)];
        if self.below(2) == 0 {
            rows.extend(self.named(2));
        }
        rows.push((4, self.permissions(), NOBODY));
        if self.below(2) == 0 {
            rows.extend(self.named(8));
        }
        if rows.len() > 2 || self.below(3) == 0 {
            rows.push((16, self.permissions(), NOBODY));
        }
        rows.push((32, self.permissions(), NOBODY));
        if self.below(8) == 0 {
            let at = self.below(rows.len() as u32) as usize;
            match wrongs[self.below(wrongs.len() as u32) as usize] {
                Wrong::Missing => drop(rows.remove(at)),
                Wrong::Twice => rows.push(rows[at]),
                Wrong::Permissions => rows[at].1 = 8,
                Wrong::Tag => rows[at].0 = 3,
                Wrong::Id => rows[at].2 = if rows[at].2 == NOBODY { 7 } else { NOBODY },
            }
        }
        rows
    }

    fn value(&mut self, wrongs: &[Wrong], there: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let some = value(&self.rows(wrongs));
        match self.below(16) {
            0 | 1 => None,
            2 => Some(Vec::new()),
            3 => Some(value(&[])),
            4 => Some(vec![2, 0, 0]),
            5 => Some(vec![1, 0, 0, 0]),
            6 => Some([some, vec![0]].concat()),
            7 => there.or(Some(some)),
            _ => Some(some),
        }
    }

    fn mode(&mut self) -> u32 {
        self.below(0o1000) | if self.below(6) == 0 { 0o6000 } else { 0 }
    }
}

/// Builds the page.
pub fn page(subject: &mut dyn Subject) -> String {
    let mut page = String::new();
    let mut drawn = Drawn(0x7465_7272_616e_6501);
    let kinds = [Kind::File, Kind::Dir, Kind::Fifo, Kind::Dir, Kind::File, Kind::Dir, Kind::Symlink];
    for round in 0..60 {
        let kind = kinds[round % kinds.len()];
        let mode = drawn.mode();
        subject.begin(kind, mode);
        let _ = writeln!(page, "{} {mode:o}", word(kind));
        for _ in 0..if kind == Kind::Symlink { 3 } else { 9 } {
            if kind == Kind::Dir && drawn.below(5) > 1 {
                make_one(subject, &mut drawn, &mut page);
            } else {
                change(subject, kind, &mut drawn, &mut page);
            }
        }
    }
    page
}

fn word(name: impl std::fmt::Debug) -> String {
    format!("{name:?}").to_lowercase()
}

fn change(subject: &mut dyn Subject, kind: Kind, drawn: &mut Drawn, page: &mut String) {
    let before = subject.seen();
    let (what, outcome) = if kind != Kind::Symlink && drawn.below(6) == 0 {
        let mode = drawn.mode();
        (format!("chmod {mode:o}"), subject.chmod(mode))
    } else {
        let is_access = if kind == Kind::Dir { drawn.below(3) == 0 } else { drawn.below(4) > 0 };
        let (list, there) =
            if is_access { (List::Access, before.access) } else { (List::Default, before.default) };
        // The order of two refusals is not specified.
        let is_refused = kind == Kind::Symlink || kind != Kind::Dir && !is_access;
        let value = drawn.value(if is_refused { &WRONGS[..2] } else { &WRONGS }, there);
        (format!("{} {}", word(list), text(value.as_deref())), subject.set(list, value.as_deref()))
    };
    let after = subject.seen();
    let ctime = if after.ctime == before.ctime { "same" } else { "changed" };
    let outcome = outcome.map_or_else(|errno| format!("errno {errno}"), |()| "ok".to_string());
    let _ = writeln!(page, "  {what} = {outcome} {} ctime {ctime}", shown(&after));
}

fn shown(seen: &Seen) -> String {
    format!("{:o} {} {}", seen.mode, text(seen.access.as_deref()), text(seen.default.as_deref()))
}

fn make_one(subject: &mut dyn Subject, drawn: &mut Drawn, page: &mut String) {
    let kinds = [Kind::File, Kind::Dir, Kind::Fifo, Kind::Symlink, Kind::Tmp];
    let kind = kinds[drawn.below(5) as usize];
    let (mode, umask) = (drawn.below(0o1000), [0, 0o022, 0o077][drawn.below(3) as usize]);
    let made = subject.make(kind, mode, umask);
    let outcome = made.map_or_else(|errno| format!("errno {errno}"), |made| shown(&made));
    let _ = writeln!(page, "  make {} {mode:o} umask {umask:o} = {outcome}", word(kind));
}

/// A directory of a mounted file system.
struct Mounted {
    dir: PathBuf,
}

fn raw<T>(outcome: rustix::io::Result<T>) -> Outcome<T> {
    outcome.map_err(rustix::io::Errno::raw_os_error)
}

fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode)
}

fn make(path: &Path, kind: Kind, mode: u32) -> Outcome<()> {
    let mode = bits(mode);
    raw(match kind {
        Kind::File => rustix::fs::open(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode).map(drop),
        Kind::Dir => rustix::fs::mkdir(path, mode),
        Kind::Fifo => rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0),
        Kind::Symlink => rustix::fs::symlink("target", path),
        Kind::Tmp => unreachable!("it has no path"),
    })
}

fn seen(
    stat: rustix::io::Result<rustix::fs::Stat>,
    list: impl Fn(&str, &mut [u8]) -> rustix::io::Result<usize>,
) -> Outcome<Seen> {
    let stat = raw(stat)?;
    let list = |which: List| {
        let mut buffer = [0; 4096];
        match list(which.name(), &mut buffer) {
            Ok(len) => Ok(Some(buffer[..len].to_vec())),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno.raw_os_error()),
        }
    };
    Ok(Seen {
        mode: stat.st_mode & 0o7777,
        access: list(List::Access)?,
        default: list(List::Default)?,
        ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
    })
}

fn seen_at(path: &Path) -> Outcome<Seen> {
    seen(rustix::fs::lstat(path), |name, buffer| rustix::fs::lgetxattr(path, name, buffer))
}

impl Mounted {
    fn file(&self) -> PathBuf {
        self.dir.join("acl_vectors")
    }

    fn remove(&self) {
        match self.file().symlink_metadata() {
            Ok(is) if is.is_dir() => std::fs::remove_dir(self.file()).unwrap(),
            Ok(_) => std::fs::remove_file(self.file()).unwrap(),
            Err(_) => {}
        }
    }
}

impl Subject for Mounted {
    fn begin(&mut self, kind: Kind, mode: u32) {
        self.remove();
        make(&self.file(), kind, 0o600).unwrap();
        if kind != Kind::Symlink {
            self.chmod(mode).unwrap();
        }
    }

    fn set(&mut self, list: List, value: Option<&[u8]>) -> Outcome<()> {
        raw(match value {
            Some(value) => rustix::fs::lsetxattr(self.file(), list.name(), value, XattrFlags::empty()),
            None => rustix::fs::lremovexattr(self.file(), list.name()),
        })
    }

    fn chmod(&mut self, mode: u32) -> Outcome<()> {
        raw(rustix::fs::chmodat(CWD, self.file(), bits(mode), AtFlags::empty()))
    }

    fn make(&mut self, kind: Kind, mode: u32, umask: u32) -> Outcome<Seen> {
        let before = rustix::process::umask(bits(umask));
        let outcome = if kind == Kind::Tmp {
            raw(rustix::fs::open(self.file(), OFlags::TMPFILE | OFlags::RDWR, bits(mode))).and_then(|file| {
                seen(rustix::fs::fstat(&file), |name, buffer| rustix::fs::fgetxattr(&file, name, buffer))
            })
        } else {
            let path = self.file().join("made");
            let outcome = make(&path, kind, mode).and_then(|()| seen_at(&path));
            if kind == Kind::Dir { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
            outcome
        };
        rustix::process::umask(before);
        outcome
    }

    fn seen(&mut self) -> Seen {
        seen_at(&self.file()).unwrap()
    }
}

fn main() {
    let dir = std::env::args_os().nth(1).expect("a directory of a mounted file system");
    let mut mounted = Mounted { dir: dir.into() };
    print!("{}", page(&mut mounted));
    mounted.remove();
}
