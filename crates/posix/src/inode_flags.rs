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
use crate::intents::Intent;
use crate::operation::{Change, Charges, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::record::Record;
use crate::types::{Ino, SetAttr, SetTime, mode};
use smallvec::smallvec;
use terrane_dataset::{Charge, FLAG_PROJECT};
use terrane_object::Owners;
use terrane_sa::Attr;
use terrane_txg::cost::Cost;

/// `ZFS_IMMUTABLE`, `ZFS_APPENDONLY`, `ZFS_NODUMP`, `ZFS_PROJINHERIT`.
const IMMUTABLE: u64 = 1 << 36;
const APPEND_ONLY: u64 = 1 << 38;
const NO_DUMP: u64 = 1 << 39;
const PROJECT_INHERIT: u64 = 1 << 46;
/// OpenZFS has no such flag.
const NO_ACCESS_TIME: u64 = 1 << 30;
const ALL: u64 = IMMUTABLE | APPEND_ONLY | NO_DUMP | PROJECT_INHERIT | NO_ACCESS_TIME;
/// Flags that new files and directories inherit.
const INHERITED: u64 = NO_DUMP | NO_ACCESS_TIME;
/// Bytes by which a spill block may grow when an attribute of one number is added.
const PROJECT_BYTES: u64 = 512;

/// The flags of a file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    /// `chattr +i`: nothing changes, including the names of a directory.
    pub immutable: bool,
    /// `chattr +a`: appends to a file and new names in a directory are allowed, and no other change.
    pub append_only: bool,
    /// `chattr +d`: backups should skip it. It has no effect here; new files inherit it from their directory.
    pub no_dump: bool,
    /// `chattr +A`: reading does not renew the access time. New files inherit it from their directory.
    pub no_access_time: bool,
    /// `chattr +P`: new entries of a directory get its project, and entries of other projects are refused. Other
    /// files never have it.
    pub project_inherit: bool,
}

impl InodeFlags {
    pub(crate) fn of(attrs: &Attributes) -> Self {
        let flags = InodeFlags::from_bits(attrs.zpl.flags);
        InodeFlags { project_inherit: flags.project_inherit && attrs.is_dir(), ..flags }
    }

    /// From bits of attributes, of which others are ignored.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let has = |bit| bits & bit != 0;
        InodeFlags {
            immutable: has(IMMUTABLE),
            append_only: has(APPEND_ONLY),
            no_dump: has(NO_DUMP),
            no_access_time: has(NO_ACCESS_TIME),
            project_inherit: has(PROJECT_INHERIT),
        }
    }

    fn bits(self) -> u64 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.immutable, IMMUTABLE)
            | bit(self.append_only, APPEND_ONLY)
            | bit(self.no_dump, NO_DUMP)
            | bit(self.no_access_time, NO_ACCESS_TIME)
            | bit(self.project_inherit, PROJECT_INHERIT)
    }
}

/// The flags that a new file with these mode bits inherits.
pub(crate) fn inherited(parent: &State, bits: u32) -> u64 {
    match bits & mode::S_IFMT {
        mode::S_IFREG => parent.attrs.zpl.flags & INHERITED,
        mode::S_IFDIR => parent.attrs.zpl.flags & (INHERITED | PROJECT_INHERIT),
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
    /// The new project; `None`: it stays.
    pub project: Option<u32>,
}

impl SetInodeFlags {
    fn new_project(&self, state: &State) -> Option<u32> {
        self.project.filter(|project| *project != state.project())
    }
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

    fn cost<'h>(&self, fs: &'h Fs, inode: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        let mut cost = Cost::NOTHING;
        if self.new_project(&inode.read()).is_some() {
            // The attributes move, and some of them into the spill block.
            let spill = fs.set.spill_of(inode.object())?.map_or(0, |spill| spill.len() as u64);
            cost.meta_bytes = (inode.object().bonus_max() as u64) + spill + PROJECT_BYTES;
        }
        Ok(OperationCost { cost, needs: smallvec![(&inode.claims, Need::attrs())] })
    }

    fn charges(&self, _: &Fs, inode: &InodeRef<'_>) -> Result<Charges, Errno> {
        let state = inode.read();
        let (before, used) = (state.owners(), inode.object().used_bytes());
        let moved = |project| Charge::moved(before, Owners { project, ..before }, used);
        Ok(self.new_project(&state).map(moved).into_iter().collect())
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let state = change.locked.get(inode.ino);
        let project = self.new_project(state);
        if project.is_some() && state.has(IMMUTABLE) && self.flags.immutable {
            return Err(Errno::EPERM);
        }
        let before = state.attrs.zpl.clone();
        let is_dir = state.attrs.is_dir();
        let flags = InodeFlags { project_inherit: self.flags.project_inherit && is_dir, ..self.flags };
        let zpl = &mut state.attrs.zpl;
        zpl.flags = zpl.flags & !ALL | flags.bits();
        zpl.ctime = now;
        let Some(project) = project else { return Ok(Outcome::Changed(())) };
        zpl.flags |= FLAG_PROJECT;
        zpl.projid = Some(project.into());
        let stored = fs.attr_list(inode, state).and_then(|mut list| {
            list.set_behind(Attr::LINKS, Attr::PROJID, &u64::from(project).to_le_bytes());
            fs.store_attrs(tx, inode, state, &list)
        });
        if stored.is_err() {
            state.attrs.zpl = before;
        }
        stored.map(Outcome::Saved)
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        let SetInodeFlags { ino, flags, project } = *self;
        Intent::Names(Record::SetInodeFlags { ino, flags: flags.bits(), project })
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
        self.execute(&SetInodeFlags { ino, flags, project: None })
    }

    /// Sets the inode's flags and its project. The caller has checked permission. `ENOTTY`: neither file nor
    /// directory. `EDQUOT`: the project's limit does not allow what the file takes.
    pub fn set_flags_and_project(&self, ino: Ino, flags: InodeFlags, project: u32) -> Result<(), Errno> {
        self.execute(&SetInodeFlags { ino, flags, project: Some(project) })?;
        self.move_xattr_owners(ino)
    }
}

fn check_type(state: &State) -> Result<(), Errno> {
    match state.attrs.file_type() {
        mode::S_IFREG | mode::S_IFDIR => Ok(()),
        _ => Err(Errno::ENOTTY),
    }
}
