//! Inode flags, as chattr(1) sets and lsattr(1) shows them.
//!
//! They are bits of the inode's flags, with OpenZFS's numbers. The kernel does not know them, so they are
//! enforced here, for root as well. Errors are those of ext4. Only the permission to set them is checked by the
//! kernel. Rewrites and GC are not restricted: they change nothing that the flags protect.

use crate::attr::Attributes;
use crate::claims::Need;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::State;
use crate::operation::{Change, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::types::{Ino, SetAttr, SetTime, mode};
use smallvec::smallvec;
use terrane_txg::cost::Cost;

/// `ZFS_IMMUTABLE`, `ZFS_APPENDONLY`, `ZFS_NODUMP`.
const IMMUTABLE: u64 = 1 << 36;
const APPEND_ONLY: u64 = 1 << 38;
const NO_DUMP: u64 = 1 << 39;
const ALL: u64 = IMMUTABLE | APPEND_ONLY | NO_DUMP;

/// The flags of a file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    /// `chattr +i`: nothing changes, including the names of a directory.
    pub immutable: bool,
    /// `chattr +a`: appends to a file and new names in a directory are allowed, and no other change.
    pub append_only: bool,
    /// `chattr +d`: backups should skip it. It has no effect here; new files inherit it from their directory.
    pub no_dump: bool,
}

impl InodeFlags {
    fn of(attrs: &Attributes) -> Self {
        let has = |bit| attrs.zpl.flags & bit != 0;
        InodeFlags { immutable: has(IMMUTABLE), append_only: has(APPEND_ONLY), no_dump: has(NO_DUMP) }
    }

    fn bits(self) -> u64 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.immutable, IMMUTABLE) | bit(self.append_only, APPEND_ONLY) | bit(self.no_dump, NO_DUMP)
    }
}

/// The flags that a new file with these mode bits inherits.
pub(crate) fn inherited(parent: &State, bits: u32) -> u64 {
    match bits & mode::S_IFMT {
        mode::S_IFREG | mode::S_IFDIR => parent.attrs.zpl.flags & NO_DUMP,
        _ => 0,
    }
}

impl State {
    fn has(&self, bits: u64) -> bool {
        self.attrs.zpl.flags & bits != 0
    }

    fn refuse_if(&self, bits: u64) -> Result<(), Errno> {
        if self.has(bits) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Checks a change of attributes, existing content, or the inode's names in directories.
    pub fn check_changeable(&self) -> Result<(), Errno> {
        self.refuse_if(IMMUTABLE | APPEND_ONLY)
    }

    /// Checks a write from `offset` on.
    pub fn check_writable(&self, offset: u64) -> Result<(), Errno> {
        self.refuse_if(if offset < self.attrs.zpl.size { IMMUTABLE | APPEND_ONLY } else { IMMUTABLE })
    }

    /// Checks an allocation that keeps existing bytes: `fallocate` without holes and zeroing.
    pub fn check_extensible(&self) -> Result<(), Errno> {
        self.refuse_if(IMMUTABLE)
    }

    /// Checks that a directory may get one more name.
    pub fn check_can_add_name(&self) -> Result<(), Errno> {
        self.refuse_if(IMMUTABLE)
    }

    /// Checks that a directory may lose a name, or change its target.
    pub fn check_can_remove_name(&self) -> Result<(), Errno> {
        self.refuse_if(IMMUTABLE | APPEND_ONLY)
    }

    /// Checks a `setattr`. Setting times to now counts as no change of attributes. Nor does the change time
    /// alone, which the kernel's cache writes back.
    pub fn check_settable(&self, set: &SetAttr) -> Result<(), Errno> {
        let is_explicit = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let changes = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
        match changes || is_explicit(set.atime) || is_explicit(set.mtime) {
            true => self.check_changeable(),
            false => self.refuse_if(IMMUTABLE),
        }
    }
}

/// The request of chattr(1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetInodeFlags {
    pub ino: Ino,
    /// All flags afterwards: those that are missing here are cleared.
    pub flags: InodeFlags,
}

impl Operation for SetInodeFlags {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        check_type(&inode.read())?;
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
        let zpl = &mut change.locked.get(inode.ino).attrs.zpl;
        zpl.flags = zpl.flags & !ALL | self.flags.bits();
        zpl.ctime = now;
        Ok(Outcome::Changed(()))
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

impl Fs {
    /// The inode's flags. `ENOTTY`: neither file nor directory.
    pub fn inode_flags(&self, ino: Ino) -> Result<InodeFlags, Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        check_type(&state)?;
        Ok(InodeFlags::of(&state.attrs))
    }

    /// Sets the inode's flags. The caller has checked permission. `ENOTTY`: neither file nor directory.
    pub fn set_inode_flags(&self, ino: Ino, flags: InodeFlags) -> Result<(), Errno> {
        self.execute(&SetInodeFlags { ino, flags })
    }
}

fn check_type(state: &State) -> Result<(), Errno> {
    match state.attrs.file_type() {
        mode::S_IFREG | mode::S_IFDIR => Ok(()),
        _ => Err(Errno::ENOTTY),
    }
}
