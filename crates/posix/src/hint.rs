//! Write hints: what somebody said about how long a file's bytes will live.
//!
//! A hint is three bits of an inode's flags, so that whoever loads the inode knows it without a further look. Programs see it as
//! the extended attribute `user.terrane.write_hint`, wherever other attributes are put, and by a call. New files and directories
//! take their directory's. Where there is none, the data set's property counts.
//!
//! Invariant: an inode in memory has told its object what its flags say.

use crate::attr::hint_flags;
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::{Inode, State};
use crate::operation::{Change, Found, Operation, Outcome, Room};
use crate::types::{Ino, SetXattr, mode};
use terrane_pool::Cost;
use terrane_space::policy::Hint;

/// What the hint is called as an extended attribute; its value is [`Hint::name`].
pub const WRITE_HINT: &[u8] = b"user.terrane.write_hint";

/// The flags that a new file with these bits begins with.
pub(crate) fn inherited(parent: &State, bits: u32) -> u64 {
    match bits & mode::S_IFMT {
        mode::S_IFREG | mode::S_IFDIR => hint_flags(parent.attrs.hint()),
        _ => 0,
    }
}

/// Bytes that the hint takes in the list of names.
pub(crate) fn listed_bytes(state: &State) -> usize {
    if state.attrs.hint() == Hint::NotSet { 0 } else { WRITE_HINT.len() + 1 }
}

/// How long the bytes of a file will live that are written from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetHint {
    pub ino: Ino,
    /// `NotSet` takes it back.
    pub hint: Hint,
    /// As an extended attribute, which changes the change time.
    pub as_xattr: Option<AsXattr>,
}

/// How a hint is changed as an extended attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsXattr {
    /// Not set: removed.
    pub is_set: bool,
    pub how: SetXattr,
}

impl Operation for SetHint {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<Found<InodeRef<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        if self.as_xattr.is_none() {
            let state = inode.read();
            check_type(&state)?;
            if state.attrs.hint() == self.hint {
                return Ok(Found::Nothing(()));
            }
        }
        Ok(Found::Held(inode))
    }

    fn cost<'h>(&self, _: &'h Fs, inode: &'h InodeRef<'_>) -> Result<Room<'h>, Errno> {
        Ok(Room { cost: Cost::NOTHING, needs: vec![(&inode.claims, Need::attrs())] })
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Vec<&'h Inode> {
        vec![inode]
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let now = change.stamp();
        let state = change.locked.get(inode.ino);
        if let Some(AsXattr { is_set, how }) = self.as_xattr {
            match state.attrs.hint() != Hint::NotSet {
                true if how.create => return Err(Errno::EEXIST),
                false if how.replace || !is_set => return Err(Errno::ENODATA),
                false if self.hint != Hint::NotSet && change.fs.names_would_fill(inode, state)? => {
                    return Err(Errno::ENOSPC);
                }
                _ => {}
            }
            state.attrs.zpl.ctime = now;
        }
        state.attrs.set_hint(self.hint);
        Ok(Outcome::Changed(()))
    }

    fn end<'f>(&self, _: Change<'_, 'f>, inode: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        inode.object().set_hint(self.hint);
        Ok(())
    }
}

impl Fs {
    /// What somebody said about this file or directory, or about the directory it was made in; [`Hint::NotSet`]: nobody did. `EINVAL`:
    /// it is neither.
    pub fn write_hint(&self, ino: Ino) -> Result<Hint, Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        check_type(&state)?;
        Ok(state.attrs.hint())
    }

    /// Says how long the bytes of a file will live that are written from now on, or those of files that will be made in a directory;
    /// [`Hint::NotSet`] takes it back. It stays until it is changed. No time stamp changes: a program that opens its files and says
    /// so each time has changed nothing that others look at. `EINVAL`: neither file nor directory.
    pub fn set_write_hint(&self, ino: Ino, hint: Hint) -> Result<(), Errno> {
        self.carry_out(&SetHint { ino, hint, as_xattr: None })
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

    /// As [`setxattr`](Self::setxattr), and [`removexattr`](Self::removexattr) with no value. `EINVAL`: no hint has this name.
    pub(crate) fn put_hint(&self, ino: Ino, value: Option<&[u8]>, how: SetXattr) -> Result<(), Errno> {
        let named = |value| std::str::from_utf8(value).ok().and_then(Hint::from_name).ok_or(Errno::EINVAL);
        let hint = value.map_or(Ok(Hint::NotSet), named)?;
        self.carry_out(&SetHint { ino, hint, as_xattr: Some(AsXattr { is_set: value.is_some(), how }) })
    }

    /// Whether the list of names has no room for the hint's.
    fn names_would_fill(&self, inode: &Inode, state: &mut State) -> Result<bool, Errno> {
        if !Fs::may_have_xattrs(inode, state) {
            return Ok(false);
        }
        self.held(inode, state, WRITE_HINT)?.is_full(WRITE_HINT, 0)
    }
}

fn check_type(state: &State) -> Result<(), Errno> {
    match state.attrs.file_type() {
        mode::S_IFREG | mode::S_IFDIR => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}
