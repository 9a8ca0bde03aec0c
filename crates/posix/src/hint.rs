//! Write hints: expected lifetimes of a file's bytes, as users state them.
//!
//! A hint is three bits of an inode's flags, so it is known once the inode is loaded. Programs see it as the
//! extended attribute `user.terrane.write_hint`, and through [`Fs::set_write_hint`]. New files and directories
//! inherit it from their directory, and [rules](crate::hint_rules) of the directory go before that. Without a
//! hint, the data set's property applies. Two more bits tell who stated the hint: a hint that was stated for a
//! file stays, whatever its name.
//!
//! Invariant: the object of a loaded inode has the hint that the inode's flags state.

use crate::attr::hint_flags;
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::{InodeRef, Locked};
use crate::inode::{Inode, State};
use crate::intents::Intent;
use crate::operation::{Change, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::record::{HintXattr, Record};
use crate::types::{HintOrigin, Ino, SetXattr, mode};
use smallvec::smallvec;
use terrane_space::policy::Hint;
use terrane_txg::cost::Cost;

/// Name of the hint as an extended attribute; its value is [`Hint::name`].
pub const WRITE_HINT: &[u8] = b"user.terrane.write_hint";

/// The flags that a new file with these bits inherits. `rule`: the hint of the directory's rules for its name.
pub(crate) fn inherited(parent: &State, bits: u32, rule: Option<Hint>) -> u64 {
    match (bits & mode::S_IFMT, rule) {
        (mode::S_IFREG, Some(hint)) => hint_flags(hint, HintOrigin::Rule),
        (mode::S_IFREG | mode::S_IFDIR, _) => hint_flags(parent.attrs.hint(), HintOrigin::Directory),
        _ => 0,
    }
}

/// Bytes that the hint takes in the list of names.
pub(crate) fn listed_bytes(state: &State) -> usize {
    if state.attrs.hint() == Hint::NotSet { 0 } else { WRITE_HINT.len() + 1 }
}

/// Sets the expected lifetime of bytes that are written to a file from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetHint {
    pub ino: Ino,
    /// `NotSet` removes the hint.
    pub hint: Hint,
    /// Set through the extended attribute, which changes the change time.
    pub as_xattr: Option<HintXattr>,
}

impl Operation for SetHint {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        if self.as_xattr.is_none() {
            let state = inode.read();
            check_type(&state)?;
            if state.attrs.hint() == self.hint && state.attrs.hint_origin() == HintOrigin::File {
                return Ok(HoldResult::NoChange(()));
            }
        }
        Ok(HoldResult::Held(inode))
    }

    fn cost<'h>(&self, _: &'h Fs, inode: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        Ok(OperationCost { cost: Cost::NOTHING, needs: smallvec![(&inode.claims, Need::attrs())] })
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let now = change.stamp();
        let state = change.locked.get(inode.ino);
        if let Some(HintXattr { is_set, how }) = self.as_xattr {
            match state.attrs.hint() != Hint::NotSet {
                true if how.create => return Err(Errno::EEXIST),
                false if how.replace || !is_set => return Err(Errno::ENODATA),
                false
                    if self.hint != Hint::NotSet
                        && change.fs.is_name_list_full_with_hint(inode, state)? =>
                {
                    return Err(Errno::ENOSPC);
                }
                _ => {}
            }
            state.attrs.zpl.ctime = now;
        }
        state.attrs.set_hint(self.hint, HintOrigin::File);
        Ok(Outcome::Changed(()))
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        let SetHint { ino, hint, as_xattr } = *self;
        Intent::Names(Record::SetHint { ino, hint, as_xattr })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, inode: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        inode.object().set_hint(self.hint);
        Ok(())
    }
}

impl Fs {
    /// The hint of this file or directory, possibly inherited; [`Hint::NotSet`]: none. `EINVAL`: neither file
    /// nor directory.
    pub fn write_hint(&self, ino: Ino) -> Result<Hint, Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        check_type(&state)?;
        Ok(state.attrs.hint())
    }

    /// The hint, and where it comes from. `EINVAL`: neither file nor directory.
    pub fn write_hint_origin(&self, ino: Ino) -> Result<(Hint, HintOrigin), Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        check_type(&state)?;
        Ok((state.attrs.hint(), state.attrs.hint_origin()))
    }

    /// A file gets this name in this directory: its hint follows the directory's rules, unless it was stated
    /// for the file itself. The caller saves the inode.
    pub(crate) fn match_hint(
        &self,
        locked: &mut Locked<'_>,
        file: &InodeRef<'_>,
        dir: &InodeRef<'_>,
        name: &[u8],
    ) {
        let file_state = locked.get(file.ino);
        let (hint, origin) = (file_state.attrs.hint(), file_state.attrs.hint_origin());
        let is_stated = hint != Hint::NotSet && origin == HintOrigin::File;
        if file_state.attrs.file_type() != mode::S_IFREG || is_stated {
            return;
        }
        let parent = locked.get(dir.ino);
        let (hint, origin) = match self.hint_by_rule(dir, parent, name) {
            Some(hint) => (hint, HintOrigin::Rule),
            // The rule was about the old name.
            None if origin == HintOrigin::Rule => (parent.attrs.hint(), HintOrigin::Directory),
            None => return,
        };
        locked.get(file.ino).attrs.set_hint(hint, origin);
        file.object().set_hint(hint);
    }

    /// Sets the expected lifetime of bytes written to a file from now on. On a directory it applies to files
    /// created later. [`Hint::NotSet`] removes it; otherwise it is kept until changed. Timestamps do not
    /// change, so programs may set it on each open. `EINVAL`: neither file nor directory.
    pub fn set_write_hint(&self, ino: Ino, hint: Hint) -> Result<(), Errno> {
        self.execute(&SetHint { ino, hint, as_xattr: None })
    }

    /// As [`getxattr`](Self::getxattr).
    pub(crate) fn get_hint(&self, state: &State, out: &mut Vec<u8>) -> Result<(), Errno> {
        let hint = state.attrs.hint();
        if hint == Hint::NotSet {
            return Err(Errno::ENODATA);
        }
        out.extend_from_slice(hint.name().as_bytes());
        Ok(())
    }

    /// As [`setxattr`](Self::setxattr), or as [`removexattr`](Self::removexattr) without a value. `EINVAL`: no
    /// such hint.
    pub(crate) fn put_hint(&self, ino: Ino, value: Option<&[u8]>, how: SetXattr) -> Result<(), Errno> {
        let parse = |value| std::str::from_utf8(value).ok().and_then(Hint::from_name).ok_or(Errno::EINVAL);
        let hint = value.map_or(Ok(Hint::NotSet), parse)?;
        self.execute(&SetHint { ino, hint, as_xattr: Some(HintXattr { is_set: value.is_some(), how }) })
    }

    /// Whether the list of names has no space for the hint's name.
    fn is_name_list_full_with_hint(&self, inode: &Inode, state: &mut State) -> Result<bool, Errno> {
        if !Fs::may_have_xattrs(inode, state) {
            return Ok(false);
        }
        self.xattr_state(inode, state, WRITE_HINT)?.is_name_list_full(WRITE_HINT, 0)
    }
}

fn check_type(state: &State) -> Result<(), Errno> {
    match state.attrs.file_type() {
        mode::S_IFREG | mode::S_IFDIR => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}
