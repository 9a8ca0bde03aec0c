//! Directory entries: a ZAP from a name to an object number and a file type, and up to six words of programs.

use super::State;
use crate::attr::kind_of;
use crate::errno::Errno;
use crate::types::{EntryWords, Ino, NAME_MAX};
use smallvec::SmallVec;
use terrane_dataset::{ENTRY_WORD_COUNT, ENTRY_WORDS_MAX, ObjectZap};
use terrane_format::Feature;
use terrane_pool::Tx;
use terrane_wire::{Corrupt, ObjectId};
use terrane_zap::{ShrinkPlan, ValueRef};

/// `DT_DIR`
pub(crate) const KIND_DIR: u8 = 4;
/// `DT_REG`
pub(crate) const KIND_FILE: u8 = 8;
/// The file type is in the 4 highest bits of an entry's value, the object number in the lowest ones.
const KIND_SHIFT: u32 = 60;

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildRef {
    pub ino: Ino,
    /// `DT_*`
    pub kind: u8,
}

impl ChildRef {
    /// The value of the directory entry.
    pub fn to_value(self) -> u64 {
        self.ino | u64::from(self.kind) << KIND_SHIFT
    }

    /// The whole value of an entry with words beside it.
    pub fn to_value_with(self, words: &EntryWords) -> SmallVec<[u64; 1 + ENTRY_WORDS_MAX]> {
        let count = words.as_slice().len() as u64;
        let first = self.to_value() | count << ENTRY_WORD_COUNT.shift;
        std::iter::once(first).chain(words.as_slice().iter().copied()).collect()
    }

    /// From the first word of a directory entry's value.
    pub fn from_value(value: u64) -> Self {
        let kind = u8::try_from(value >> KIND_SHIFT).unwrap_or(0);
        ChildRef { ino: value & ObjectId::MASK, kind }
    }
}

impl EntryWords {
    /// The words in an entry's value of `count` integers, of which `integers` are the first.
    pub(crate) fn from_integers(integers: &[u64], count: usize) -> Result<EntryWords, Corrupt> {
        let counted = integers.first().map_or(1, |first| ENTRY_WORD_COUNT.words(*first));
        let words = integers.get(1..counted).filter(|_| counted <= count);
        words.and_then(EntryWords::from_slice).ok_or_else(|| {
            let expected = format_args!("{counted} by its first, at most {}", 1 + ENTRY_WORDS_MAX);
            Corrupt::new("directory entry", "number of integers", expected, count)
        })
    }
}

/// Checks the form of a name in a directory operation.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name.len() {
        0 => return Err(Errno::ENOENT),
        len if len > NAME_MAX => return Err(Errno::ENAMETOOLONG),
        _ => {}
    }
    if name.contains(&b'/') || name.contains(&0) { Err(Errno::EINVAL) } else { Ok(()) }
}

pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl State {
    pub(crate) fn names(&self) -> Result<&ObjectZap, Errno> {
        self.names.as_ref().ok_or(Errno::ENOTDIR)
    }

    /// `ENOTDIR`: not a directory.
    pub fn names_mut(&mut self) -> Result<&mut ObjectZap, Errno> {
        self.names.as_mut().ok_or(Errno::ENOTDIR)
    }

    /// Refuses an inode that is not a directory, and a removed directory, where nothing can be created any
    /// more.
    pub fn check_linked_dir(&self) -> Result<(), Errno> {
        self.names()?;
        if self.attrs.zpl.links == 0 { Err(Errno::ENOENT) } else { Ok(()) }
    }

    /// Looks a name up. It does not know "." and "..". `ENOTDIR`: not a directory.
    pub fn find(&self, name: &[u8]) -> Result<Option<ChildRef>, Errno> {
        Ok(self.names()?.match_u64(name)?.map(ChildRef::from_value))
    }

    /// Looks a name up with the words beside it.
    pub fn find_with_words(&self, name: &[u8]) -> Result<Option<(ChildRef, EntryWords)>, Errno> {
        let Some(first) = self.names()?.match_u64(name)? else { return Ok(None) };
        if ENTRY_WORD_COUNT.words(first) == 1 {
            return Ok(Some((ChildRef::from_value(first), EntryWords::NONE)));
        }
        let Some(value) = self.names()?.match_value(name)? else { return Ok(None) };
        let words = EntryWords::from_integers(&value.ints(), value.num_ints())?;
        Ok(Some((ChildRef::from_value(first), words)))
    }

    /// Whether two names with different bytes match the same entry.
    pub fn is_same_name(&self, a: &[u8], b: &[u8]) -> Result<bool, Errno> {
        let (stored_a, stored_b) = (self.names()?.other_spelling(a)?, self.names()?.other_spelling(b)?);
        let is_other = stored_a.is_some() || stored_b.is_some();
        Ok(a != b && is_other && stored_a.as_deref().unwrap_or(a) == stored_b.as_deref().unwrap_or(b))
    }

    /// Checks the entries, not their count: removing a directory that still has names would lose them.
    pub fn is_empty_dir(&self) -> Result<bool, Errno> {
        Ok(self.names()?.is_empty()?)
    }

    /// Adds a name, which must not exist yet, and counts it in the size.
    pub fn insert(&mut self, tx: &Tx, name: &[u8], child: ChildRef, words: &EntryWords) -> Result<(), Errno> {
        note_words(tx, words);
        self.names_mut()?.add(tx, name, ValueRef::U64s(&child.to_value_with(words)))?;
        self.attrs.zpl.size += 1;
        Ok(())
    }

    /// Replaces the target of an existing name and the words beside it, and keeps its stored spelling.
    pub fn replace(
        &mut self,
        tx: &Tx,
        name: &[u8],
        child: ChildRef,
        words: &EntryWords,
    ) -> Result<(), Errno> {
        let stored = self.names()?.other_spelling(name)?;
        let name = stored.as_deref().unwrap_or(name);
        note_words(tx, words);
        let value = child.to_value_with(words);
        self.names_mut()?.update(tx, name, ValueRef::U64s(&value))?;
        Ok(())
    }

    /// Changes the spelling of an existing name. False: it already has this spelling.
    pub fn respell(&mut self, tx: &Tx, name: &[u8]) -> Result<bool, Errno> {
        let Some(stored) = self.names()?.other_spelling(name)? else { return Ok(false) };
        let (child, words) = self.find_with_words(&stored)?.ok_or(Errno::ENOENT)?;
        note_words(tx, &words);
        let names = self.names_mut()?;
        // Add before removing: if the directory cannot take the new name, it keeps the old one.
        names.add(tx, name, ValueRef::U64s(&child.to_value_with(&words)))?;
        names.remove(tx, &stored)?;
        Ok(true)
    }

    /// Removes a name. `ENOENT`: there is none.
    pub fn remove(&mut self, tx: &Tx, name: &[u8]) -> Result<(), Errno> {
        let stored = self.names()?.other_spelling(name)?;
        if !self.names_mut()?.remove(tx, stored.as_deref().unwrap_or(name))? {
            return Err(Errno::ENOENT);
        }
        self.attrs.zpl.size = self.attrs.zpl.size.saturating_sub(1).max(2);
        Ok(())
    }

    /// Whether shrinking might save space after removals.
    pub fn is_shrink_due(&self) -> bool {
        self.names.as_ref().is_some_and(ObjectZap::is_shrink_due)
    }

    /// Builds a smaller ZAP of the names in memory; `None`: there is nothing to gain now.
    pub fn plan_shrink(&self) -> Result<Option<ShrinkPlan>, Errno> {
        Ok(self.names()?.plan_shrink()?)
    }

    /// Applies a plan. False: the names changed since it was made, and nothing was done.
    pub fn apply_shrink(&mut self, tx: &Tx, plan: ShrinkPlan) -> Result<bool, Errno> {
        Ok(self.names_mut()?.apply_shrink(tx, plan)?)
    }

    /// Updates times after a name was added or removed.
    pub fn note_names_changed(&mut self, now: [u64; 2]) {
        self.attrs.zpl.mtime = now;
        self.attrs.zpl.ctime = now;
    }

    /// The caller saves the state. It has checked [`LINK_MAX`](crate::types::LINK_MAX).
    pub fn add_link(&mut self) {
        self.attrs.zpl.links += 1;
    }

    /// The caller saves the state, and handles an inode that lost its last link.
    pub fn remove_link(&mut self) {
        self.attrs.zpl.links = self.attrs.zpl.links.saturating_sub(1);
    }

    /// `DT_*`; 0 for an invalid mode.
    pub fn kind(&self) -> u8 {
        kind_of(self.attrs.mode()).unwrap_or(0)
    }
}

/// The pool's feature is active from the first words on.
fn note_words(tx: &Tx, words: &EntryWords) {
    if !words.is_empty() {
        tx.pool().note_use(Feature::EntryWords);
    }
}
