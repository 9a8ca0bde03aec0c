//! Calls on a file system and its expected tree.

use super::tree::Change;
use super::world::World;
use crate::machine::USER;
use std::ops::Range;
use std::sync::Arc;
use terrane_oracle::{Failure, Node, Outcome};
use terrane_posix::{
    Acl, Attr, Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, Fs, Ino, RENAME_EXCHANGE,
    SetAttr, SetTime, SetXattr, Time, WriteFlags,
};

/// How `fallocate` is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// The size may grow.
    Grow,
    /// The size stays.
    KeepSize,
    /// Zeros instead of the bytes, and the size may grow.
    ZeroAndGrow,
    /// Zeros instead of the bytes.
    Zero,
    /// A hole instead of the bytes.
    Punch,
}

impl World {
    fn fs(&self) -> Arc<Fs> {
        Arc::clone(self.machine.fs())
    }

    fn made(
        &mut self,
        (dir, name): (Ino, &str),
        node: Node,
        made: Result<Attr, Errno>,
    ) -> Result<Option<Ino>, Failure> {
        let expected = self.tree.model.may_add(dir, name);
        let Some(attr) = self.answer(|| format!("make {name} in {dir}"), expected, made)? else {
            return Ok(None);
        };
        let Attr { ino, generation, uid, gid, .. } = attr;
        let place = Some((dir, name.to_string()));
        let change = Change::Make { dir: place, ino, node, generation, owners: (uid, gid) };
        self.note_names(dir, &[dir, ino], change)?;
        Ok(Some(ino))
    }

    /// `creat`. `None`, here and below: nothing was made, because it must fail, the pool is full, or the power is off.
    pub fn create(&mut self, dir: Ino, name: &str) -> Result<Option<Ino>, Failure> {
        let made = self.fs().create(dir, name.as_bytes(), 0o644, &USER);
        self.made((dir, name), Node::file(0o644), made)
    }

    /// `mkdir`
    pub fn mkdir(&mut self, dir: Ino, name: &str) -> Result<Option<Ino>, Failure> {
        let made = self.fs().mkdir(dir, name.as_bytes(), 0o755, &USER);
        self.made((dir, name), Node::dir(dir, 0o755), made)
    }

    /// `symlink`
    pub fn symlink(&mut self, dir: Ino, name: &str, target: &[u8]) -> Result<Option<Ino>, Failure> {
        let made = self.fs().symlink(dir, name.as_bytes(), target, &USER);
        self.made((dir, name), Node::link(target.to_vec()), made)
    }

    /// `O_TMPFILE`
    pub fn tmpfile(&mut self) -> Result<Option<Ino>, Failure> {
        let root = self.tree.model.root;
        let made = self.fs().tmpfile(root, 0o600, &USER);
        let Some(attr) = self.answer(|| "tmpfile".into(), Ok(()), made)? else { return Ok(None) };
        let Attr { ino, generation, uid, gid, .. } = attr;
        let node = Node::file(0o600);
        self.note_names(ino, &[ino], Change::Make { dir: None, ino, node, generation, owners: (uid, gid) })?;
        self.nameless.insert(ino);
        Ok(Some(ino))
    }

    /// `link`, also of a file that was made without a name.
    pub fn link(&mut self, ino: Ino, dir: Ino, name: &str) -> Result<(), Failure> {
        let is_nameless = self.nameless.contains(&ino);
        let mut model = self.tree.model.clone();
        let expected = match is_nameless {
            true => model.may_add(dir, name),
            false => model.add_link(ino, dir, name),
        };
        let linked = self.fs().link(ino, dir, name.as_bytes());
        if self.answer(|| format!("link {ino} to {name} in {dir}"), expected, linked)?.is_some() {
            let moved = [ino].into_iter().filter(|_| is_nameless).collect::<Vec<_>>();
            let change = Change::Link { ino, dir, name: name.to_string() };
            self.note_move(dir, &moved, &[ino, dir], change)?;
            self.nameless.remove(&ino);
        }
        Ok(())
    }

    /// `unlink`, `rmdir`
    pub fn remove(&mut self, dir: Ino, name: &str, wants_dir: bool) -> Result<(), Failure> {
        let ino = self.tree.model.find(dir, name);
        let expected = self.tree.model.clone().remove(dir, name, wants_dir);
        let (fs, raw) = (self.fs(), name.as_bytes());
        let removed = if wants_dir { fs.rmdir(dir, raw) } else { fs.unlink(dir, raw) };
        if self.answer(|| format!("remove {name} in {dir}"), expected, removed)?.is_some() {
            let changed: Vec<Ino> = ino.into_iter().chain([dir]).collect();
            self.note_names(dir, &changed, Change::Remove { dir, name: name.to_string(), wants_dir })?;
        }
        Ok(())
    }

    /// `renameat2`
    pub fn rename(
        &mut self,
        (dir, name): (Ino, &str),
        (new_dir, new_name): (Ino, &str),
        flags: u32,
    ) -> Result<(), Failure> {
        let moved = [self.tree.model.find(dir, name), self.tree.model.find(new_dir, new_name)];
        let expected = self.tree.model.clone().rename(dir, name, new_dir, new_name, flags);
        let found = self.fs().rename(dir, name.as_bytes(), new_dir, new_name.as_bytes(), flags);
        let what = || format!("rename {name} in {dir} to {new_name} in {new_dir}, flags {flags}");
        // Two names of one file: nothing happens.
        if self.answer(what, expected, found)?.is_some() && moved[0] != moved[1] {
            let (name, new_name) = (name.to_string(), new_name.to_string());
            let change = Change::Rename { dir, name, new_dir, new_name, flags };
            let count = if flags == RENAME_EXCHANGE { 2 } else { 1 };
            let takes_along: Vec<Ino> = moved.iter().take(count).flatten().copied().collect();
            let changed: Vec<Ino> = moved.into_iter().flatten().chain([dir, new_dir]).collect();
            self.note_move(dir, &takes_along, &changed, change)?;
        }
        Ok(())
    }

    fn set(&mut self, ino: Ino, set: &SetAttr, change: Change) -> Result<(), Failure> {
        let found = self.fs().setattr(ino, set, &USER);
        if self.answer(|| format!("{change:?}"), Ok(()), found)?.is_some() {
            // The times of a file go with its contents.
            let is_of_contents = match change {
                Change::Utimes { .. } => self.tree.is_file(ino),
                _ => set.size.is_some(),
            };
            match is_of_contents {
                true => self.note_content(ino, change)?,
                false => self.note_names(ino, &[ino], change)?,
            }
        }
        Ok(())
    }

    /// `chmod`
    pub fn chmod(&mut self, ino: Ino, bits: u32) -> Result<(), Failure> {
        let set = SetAttr { mode: Some(bits), ..SetAttr::default() };
        self.set(ino, &set, Change::Chmod { ino, bits })
    }

    /// `chown`
    pub fn chown(&mut self, ino: Ino, owners: (u32, u32)) -> Result<(), Failure> {
        let set = SetAttr { uid: Some(owners.0), gid: Some(owners.1), ..SetAttr::default() };
        self.set(ino, &set, Change::Chown { ino, owners })
    }

    /// `utimensat`
    pub fn utimes(&mut self, ino: Ino, atime: Time, mtime: Time) -> Result<(), Failure> {
        let [set_atime, set_mtime] = [atime, mtime].map(|time| Some(SetTime::At(time)));
        let set = SetAttr { atime: set_atime, mtime: set_mtime, ..SetAttr::default() };
        self.set(ino, &set, Change::Utimes { ino, atime, mtime })
    }

    /// `truncate`
    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<(), Failure> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.set(ino, &set, Change::Resize { ino, size })
    }

    /// `setxattr`, `removexattr`
    pub fn xattr(&mut self, ino: Ino, name: &str, value: Option<Vec<u8>>) -> Result<(), Failure> {
        let mut model = self.tree.model.clone();
        let fs = self.fs();
        let raw = name.as_bytes();
        let (expected, found) = match &value {
            Some(value) => {
                let how = SetXattr::default();
                (model.set_xattr(ino, name, value, how), fs.setxattr(ino, raw, value, how, &USER))
            }
            None => (model.remove_xattr(ino, name), fs.removexattr(ino, raw)),
        };
        if self.answer(|| format!("attribute {name} of {ino}"), expected, found)?.is_some() {
            let change = Change::Xattr { ino, name: name.to_string(), value: value.map(Arc::new) };
            self.note_names(ino, &[ino], change)?;
        }
        Ok(())
    }

    /// Sets an access control list.
    pub fn set_acl(&mut self, ino: Ino, name: &'static [u8], raw: &[u8]) -> Result<(), Failure> {
        let acl = Acl::parse(raw).map_err(|errno| Failure(format!("a list: {errno}")))?;
        let expected = self.tree.model.clone().set_acl(ino, name, acl.as_ref());
        let found = self.fs().setxattr(ino, name, raw, SetXattr::default(), &USER);
        if self.answer(|| format!("list of {ino}"), expected, found)?.is_some() {
            self.note_names(ino, &[ino], Change::SetAcl { ino, name, acl })?;
        }
        Ok(())
    }

    /// Sets the words beside a name.
    pub fn words(&mut self, dir: Ino, name: &str, words: &[u64]) -> Result<(), Failure> {
        let old = self.tree.model.words.get(&(dir, name.to_string()));
        if old.is_some_and(|old| old == words) {
            return Ok(());
        }
        let expected: Outcome = self.tree.model.clone().set_words(dir, name, words);
        let found = self.fs().set_entry_words(dir, name.as_bytes(), words);
        if self.answer(|| format!("words of {name} in {dir}"), expected, found)?.is_some() {
            let change = Change::Words { dir, name: name.to_string(), words: words.to_vec() };
            self.note_names(dir, &[dir], change)?;
        }
        Ok(())
    }

    /// `pwrite`, which may write less in a full pool.
    pub fn write(&mut self, ino: Ino, at: u64, mut data: Vec<u8>) -> Result<(), Failure> {
        let found = self.fs().write(ino, at, &data, WriteFlags::default());
        if let Some(written) = self.answer(|| format!("write to {ino}"), Ok(()), found)? {
            data.truncate(written as usize);
            self.note_content(ino, Change::Write { ino, at, data: Arc::new(data) })?;
        }
        Ok(())
    }

    /// `O_TRUNC`
    pub fn truncate_on_open(&mut self, ino: Ino) -> Result<(), Failure> {
        let found = self.fs().truncate_on_open(ino);
        if self.answer(|| format!("O_TRUNC of {ino}"), Ok(()), found)?.is_some() {
            self.note_content(ino, Change::Resize { ino, size: 0 })?;
        }
        Ok(())
    }

    /// `fallocate`. In a full pool it may fail after it has zeroed.
    pub fn fallocate(&mut self, ino: Ino, how: Allocation, range: Range<u64>) -> Result<(), Failure> {
        let (at, len) = (range.start, range.end - range.start);
        let mode = match how {
            Allocation::Grow => 0,
            Allocation::KeepSize => FALLOC_KEEP_SIZE,
            Allocation::ZeroAndGrow => FALLOC_ZERO_RANGE,
            Allocation::Zero => FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE,
            Allocation::Punch => FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE,
        };
        let before = self.tree.stamps.get(&ino).map(|stamps| stamps.ctime);
        let found = self.fs().fallocate(ino, mode, at, len);
        self.answer(|| format!("fallocate {how:?} of {ino}"), Ok(()), found)?;
        if self.fs().getattr(ino).is_ok_and(|after| Some(after.ctime) == before) {
            return Ok(());
        }
        let change = match how {
            Allocation::Grow => Change::Extend { ino, size: range.end },
            Allocation::KeepSize => {
                return Err(Failure("an allocation that keeps the size changed the file".into()));
            }
            _ => Change::Zero { ino, range, grows: how == Allocation::ZeroAndGrow },
        };
        self.note_content(ino, change)
    }

    /// `FICLONERANGE` or `copy_file_range`: blocks that are shared where that is possible.
    pub fn copy(&mut self, from: Ino, range: Range<u64>, ino: Ino, into: u64) -> Result<(), Failure> {
        let expected = self.tree.model.clone().copy(from, range.clone(), ino, into);
        let found = self.fs().clone_range(from, range.start, ino, into, range.end - range.start);
        let what = || format!("copy {range:?} of {from} into {ino} at {into}");
        if let Some(cloned) = self.answer(what, expected.map(|_| ()), found)?
            && cloned.bytes > 0
        {
            // The bytes of that moment, whether the log has them or a commit.
            let bytes = self.tree.model.bytes(from);
            let copied = bytes.iter().skip(range.start as usize).take(cloned.bytes as usize).copied();
            let data = Arc::new(copied.collect());
            self.note_content(ino, Change::Write { ino, at: into, data })?;
        }
        Ok(())
    }
}
