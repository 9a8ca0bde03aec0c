//! Operations on few files that share blocks: clones, and everything that ends sharing.

use crate::machine::USER;
use crate::workload::Workload;
use std::sync::Arc;
use terrane_oracle::{Failure, Node, ensure};
use terrane_posix::Ino;

/// Most files of the workload.
const FILES_MAX: usize = 6;
/// Bytes of a record in small plans.
const RECORD: u64 = 4096;

impl Workload {
    /// Clones, writes, truncates and punches; removes files; makes a clone and changes its source at once.
    pub(crate) fn act_on_clones(&mut self) -> Result<(), Failure> {
        let files = self.model.files();
        match self.rng.below(16) {
            _ if files.len() < 2 => self.make_file(),
            0 | 1 if files.len() < FILES_MAX => self.make_file(),
            0..5 => {
                let Some(ino) = self.rng.pick(&files) else { return Ok(()) };
                self.change_file(ino)
            }
            5 => {
                let name = self.file_name();
                if self.model.find(self.model.root, &name).is_none() {
                    return Ok(());
                }
                self.remove(&name)
            }
            6 | 7 => {
                // The sync meets the change of the source and the clone in the order of their numbers.
                let (Some(from), Some(to)) = (self.rng.pick(&files), self.rng.pick(&files)) else {
                    return Ok(());
                };
                self.clone_range(from, to)?;
                self.note_between();
                self.change_file(from)
            }
            8 => {
                let (Some(from), Some(to)) = (self.rng.pick(&files), self.rng.pick(&files)) else {
                    return Ok(());
                };
                let ok = from != to && self.machine.fs().truncate_on_open(to).is_ok();
                if ok {
                    self.model.resize(to, 0);
                    self.touch(to);
                    self.note_between();
                    self.copy(from, 0, to, 0, u64::from(u32::MAX))?;
                }
                Ok(())
            }
            _ => {
                let (Some(from), Some(to)) = (self.rng.pick(&files), self.rng.pick(&files)) else {
                    return Ok(());
                };
                self.clone_range(from, to)
            }
        }
    }

    fn file_name(&mut self) -> String {
        format!("file {}", self.rng.below(8))
    }

    fn make_file(&mut self) -> Result<(), Failure> {
        let (root, name) = (self.model.root, self.file_name());
        let expected = self.model.may_add(root, &name);
        let made = self.machine.fs().create(root, name.as_bytes(), 0o644, &USER);
        if let Some(attr) = self.expect_same(&format!("create {name}"), made, expected)? {
            self.model.add_node(root, &name, attr.ino, Node::file(0o644));
            self.touch(attr.ino);
            self.note_between();
            self.change_file(attr.ino)?;
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), Failure> {
        let root = self.model.root;
        let found = self.machine.fs().unlink(root, name.as_bytes());
        let mut model = self.model.clone();
        let expected = model.remove(root, name, false);
        if self.expect_same(&format!("unlink {name}"), found, expected)?.is_some() {
            self.model = model;
        }
        Ok(())
    }

    /// Clones a range, mostly of whole records.
    fn clone_range(&mut self, from: Ino, to: Ino) -> Result<(), Failure> {
        let most = self.file_bytes;
        let (mut at, mut into, mut len) =
            (self.rng.below(most), self.rng.below(most), 1 + self.rng.below(most));
        if !self.rng.one_in(4) {
            (at, into) = (at / RECORD * RECORD, into / RECORD * RECORD);
            len = if self.rng.one_in(2) { len.next_multiple_of(RECORD) } else { u64::from(u32::MAX) };
        }
        self.copy(from, at, to, into, len)
    }

    fn note_between(&mut self) {
        self.between.push(Arc::new(self.model.clone()));
    }

    /// In parts that are one operation each: whole records, and what is before and behind them.
    fn copy(&mut self, from: Ino, at: u64, to: Ino, into: u64, len: u64) -> Result<(), Failure> {
        let size = self.model.bytes(from).len() as u64;
        let len = len.min((4 * self.file_bytes).saturating_sub(into)).min(size.saturating_sub(at));
        if from == to && at.abs_diff(into) < len || at % RECORD != into % RECORD {
            return self.copy_part(from, at, to, into, len);
        }
        let head = at.next_multiple_of(RECORD).min(at + len) - at;
        let whole = (len - head) / RECORD * RECORD;
        let is_end = at + len == size && into + len >= self.model.bytes(to).len() as u64;
        let parts = if is_end { [head, len - head, 0] } else { [head, whole, len - head - whole] };
        let mut done = 0;
        for part in parts.into_iter().filter(|part| *part > 0) {
            self.copy_part(from, at + done, to, into + done, part)?;
            self.note_between();
            done += part;
        }
        Ok(())
    }

    fn copy_part(&mut self, from: Ino, at: u64, to: Ino, into: u64, len: u64) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let found = fs.copy_range(from, at, to, into, len);
        let mut model = self.model.clone();
        let expected = model.copy(from, at..at + len, to, into);
        let shown = format!("copy {len} bytes of {from} at {at} to {to} at {into}");
        if let Some(copied) = self.expect_same(&shown, found, expected.map(drop))? {
            // A pool without free space copies less.
            let is_short = expected.is_ok_and(|expected| copied < expected);
            ensure(expected == Ok(copied) || is_short, || {
                format!("{shown}: {copied}, expected {expected:?}")
            })?;
            let _ = self.model.copy(from, at..at + copied, to, into);
            self.touch(to);
        }
        Ok(())
    }
}
