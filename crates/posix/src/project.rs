//! Owners of inodes, and the limits that apply to operations.
//!
//! A *project* is a number that a file carries, for accounting alone. A directory with the flag `project_inherit`
//! passes its own on to new entries, and takes no entries of other projects.

use crate::attr::low32;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::State;
use crate::inode_flags::InodeFlags;
use crate::operation::Charges;
use crate::types::{Ino, StatFs};
use terrane_dataset::{OverQuota, Promise};
use terrane_object::{ObjectError, OwnerKind, Owners};

/// Copies of names, attributes and symlinks.
pub(crate) const META_COPIES: u64 = 2;
/// Most bytes of a directory entry beside its name.
const ENTRY_BYTES: u64 = 96;

/// Most stored bytes by which a name enlarges its directory, of which a split block may be half empty.
pub(crate) fn entry_bytes(name: &[u8]) -> u64 {
    (name.len() as u64 + ENTRY_BYTES) * 2 * META_COPIES
}

impl State {
    /// User, group and project that the inode counts for.
    pub fn owners(&self) -> Owners {
        let zpl = &self.attrs.zpl;
        Owners { user: low32(zpl.uid), group: low32(zpl.gid), project: self.project() }
    }

    /// Its project; 0: none.
    pub fn project(&self) -> u32 {
        low32(self.attrs.zpl.projid.unwrap_or(0))
    }

    /// The project of new entries of this directory.
    pub fn inherited_project(&self) -> u32 {
        if InodeFlags::of(&self.attrs).project_inherit { self.project() } else { 0 }
    }

    /// Checks that this directory may get an entry of that project.
    pub fn check_takes_project(&self, project: u32) -> Result<(), Errno> {
        let is_refused = InodeFlags::of(&self.attrs).project_inherit && self.project() != project;
        if is_refused { Err(Errno::EXDEV) } else { Ok(()) }
    }
}

impl Fs {
    /// The project of a file or directory; 0: none.
    pub fn project(&self, ino: Ino) -> Result<u32, Errno> {
        Ok(self.hold(ino)?.read().project())
    }

    /// Admits an operation with these charges. May commit, so the caller has begun no transaction and holds no lock.
    pub(crate) fn admit(&self, charges: &Charges, writes_back: bool) -> Result<Option<Promise>, Errno> {
        let mut waits = 0;
        loop {
            match self.dataset().quotas().admit(charges, writes_back)? {
                Ok(promise) => return Ok(promise),
                Err(OverQuota) if self.wait_for_unlinked(&mut waits) => {}
                Err(OverQuota) => return Err(Errno::EDQUOT),
            }
        }
    }

    /// Space and number of files for `statvfs` of this inode. Below a directory that passes on its project, the
    /// project's limits bound them.
    pub fn statfs_of(&self, ino: Ino) -> StatFs {
        let whole = self.statfs();
        let quotas = self.dataset().quotas();
        if !quotas.has_limits() {
            return whole;
        }
        let Ok(inode) = self.hold(ino) else { return whole };
        let project = inode.read().inherited_project();
        let usage = (project != 0).then(|| quotas.limited_usage(OwnerKind::Project, project)).flatten();
        let Some(usage) = usage else { return whole };
        let mut bounded = whole;
        let blocks = |bytes: u64| bytes / u64::from(whole.block_size.max(1));
        if usage.limits.bytes > 0 && blocks(usage.limits.bytes) < whole.blocks {
            let left = blocks(usage.limits.bytes.saturating_sub(usage.count.bytes));
            bounded.blocks = blocks(usage.limits.bytes);
            (bounded.free, bounded.available) = (left.min(whole.free), left.min(whole.available));
        }
        if usage.limits.objects > 0 && usage.limits.objects < whole.files {
            bounded.files = usage.limits.objects;
            bounded.files_free =
                usage.limits.objects.saturating_sub(usage.count.objects).min(whole.files_free);
        }
        bounded
    }

    /// Gives hidden objects of extended attributes the owners of their inode, after those have changed. A crash
    /// before the end leaves the rest with the old owners, for whom they then count.
    pub(crate) fn move_xattr_owners(&self, ino: Ino) -> Result<(), Errno> {
        let numbers = {
            let inode = self.hold(ino)?;
            let state = inode.read();
            if !Fs::may_have_xattrs(&inode, &state) {
                return Ok(());
            }
            match self.with_all_attributes(&inode, &state, |all| all.number(terrane_sa::Attr::XATTR))? {
                Some(number) => {
                    self.xattr_objects(ino, number).map_err(|error: ObjectError| Errno::from(error))?
                }
                None => return Ok(()),
            }
        };
        for step in numbers.chunks(OWNER_STEP) {
            self.execute(&crate::xattr_dir::MoveXattrOwners { ino, objects: step })?;
        }
        Ok(())
    }
}

/// Hidden objects whose owners change in one transaction. Each may dirty its own dnode block.
const OWNER_STEP: usize = 16;
