//! ACLs of files: setting an ACL changes the mode, setting the mode changes the ACL, new files inherit.
//!
//! ACLs are stored as extended attributes in the inode's list if they fit, whatever `xattr` says. The kernel
//! reads a file's ACL before it lets any user but the owner in. `xattr=off` disables ACLs too.
//!
//! Invariant: if an access ACL is stored, the mode's nine bits match it. A `chmod` maintains this even while
//! `acltype` is off. Otherwise a file that was made private then would open up once `acltype` is on again.

use crate::acl::{ACL_ACCESS, ACL_BYTES_MAX, ACL_DEFAULT, Acl};
use crate::claims::Need;
use crate::errno::{Errno, log_eio};
use crate::fs::Fs;
use crate::hint_rules::HINT_RULES;
use crate::hold::InodeRef;
use crate::inode::{Inode, State};
use crate::intents::Intent;
use crate::operation::{
    Change, HoldResult, Locks, NAMES_RECORD_BYTES_MAX, Operation, OperationCost, Outcome, to_lock,
};
use crate::record::Record;
use crate::types::{Ino, SetXattr, mode};
use smallvec::smallvec;
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use terrane_dataset::{AclType, XattrPlacement};
use terrane_format::Feature;
use terrane_pool::Tx;
use terrane_sa::NvList;
use terrane_txg::cost::Cost;

const PERMISSIONS: u32 = 0o777;
/// Bytes of framing around inherited ACLs in a spill block, and of the attributes that move there with them.
const INHERITED_OVERHEAD: u64 = 256;
/// Blocks that hold an ACL and the rest of its spill block, nearly always.
const LATE_META_BLOCKS: u32 = 2;

/// Which of a file's two ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AclKind {
    /// Controls access to the file.
    Access,
    /// Of a directory: new files in it inherit this one.
    Default,
}

impl AclKind {
    /// The kind of the ACL with this name as an extended attribute.
    pub fn of(name: &[u8]) -> Option<Self> {
        match name {
            ACL_ACCESS => Some(AclKind::Access),
            ACL_DEFAULT => Some(AclKind::Default),
            _ => None,
        }
    }

    /// The kind of a directory's default ACL, or that of an access ACL.
    pub fn new(is_default: bool) -> Self {
        if is_default { AclKind::Default } else { AclKind::Access }
    }

    fn name(self) -> &'static [u8] {
        match self {
            AclKind::Access => ACL_ACCESS,
            AclKind::Default => ACL_DEFAULT,
        }
    }
}

/// Result of setting an ACL.
#[derive(PartialEq, Eq)]
struct NewAcl {
    mode: u32,
    /// `None`: no ACL is stored.
    stored: Option<Vec<u8>>,
}

impl NewAcl {
    fn of(kind: AclKind, acl: Option<&Acl>, mode: u32, kill_sgid: bool) -> Self {
        let Some(acl) = acl else { return NewAcl { mode, stored: None } };
        match kind {
            AclKind::Default => NewAcl { mode, stored: Some(acl.to_bytes()) },
            AclKind::Access => {
                let mode = if kill_sgid { mode & !mode::S_ISGID } else { mode };
                let stored = (!acl.is_minimal()).then(|| acl.to_bytes());
                NewAcl { mode: mode & !PERMISSIONS | acl.permissions(), stored }
            }
        }
    }
}

impl Acl {
    /// Extended attributes of a new file, in a directory with this default ACL. `None`: it has none. The file's
    /// permissions are [`permissions`](Acl::permissions) of [`for_new`](Acl::for_new).
    pub(crate) fn inherited(&self, bits: u32) -> Option<Vec<u8>> {
        let access = self.for_new(bits);
        let mut packed = None;
        if !access.is_minimal() {
            packed = NvList::default().with(ACL_ACCESS, &access.to_bytes());
        }
        if bits & mode::S_IFMT == mode::S_IFDIR {
            let list = packed.as_deref().map_or(Ok(NvList::default()), NvList::parse);
            packed = list.expect("the list was packed above").with(ACL_DEFAULT, &self.to_bytes());
        }
        packed
    }
}

/// Extended attributes of a new file with these bits: ACLs by the directory's default ACL, and the hint rules
/// of a directory.
pub(crate) fn inherited_attributes(acl: Option<&Acl>, rules: Option<&[u8]>, bits: u32) -> Option<Vec<u8>> {
    let packed = acl.and_then(|acl| acl.inherited(bits));
    let Some(rules) = rules else { return packed };
    let list = packed.as_deref().map_or(Ok(NvList::default()), NvList::parse);
    list.expect("the list was packed above").with(HINT_RULES, rules)
}

/// Sets an ACL, or removes it (`None`).
#[derive(Debug)]
pub(crate) struct SetAcl {
    pub ino: Ino,
    pub kind: AclKind,
    /// `None` removes the ACL.
    pub acl: Option<Acl>,
    /// Clears the set-gid bit with an access ACL: the caller is not in the file's group.
    pub kill_sgid: bool,
}

/// An inode, and the cost of setting its ACL.
pub(crate) struct HeldAcl<'f> {
    inode: InodeRef<'f>,
    cost: Cost,
}

impl Operation for SetAcl {
    type Held<'f> = HeldAcl<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldAcl<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        let (new, before) = {
            let state = inode.read();
            check_type(&state)?;
            state.check_changeable()?;
            if self.kind == AclKind::Default && !state.attrs.is_dir() {
                return if self.acl.is_some() { Err(Errno::EACCES) } else { Ok(HoldResult::NoChange(())) };
            }
            let mode = state.attrs.mode();
            let stored = fs.stored_value(&inode, &state, self.kind)?;
            (NewAcl::of(self.kind, self.acl.as_ref(), mode, self.kill_sgid), NewAcl { mode, stored })
        };
        if new == before {
            return Ok(HoldResult::NoChange(()));
        }
        let cost = match (new.stored, before.stored) {
            (Some(_), _) if !fs.set.pool().has(Feature::Xattr) => return Err(Errno::EOPNOTSUPP),
            (Some(value), _) => fs.set_cost(&inode, XattrPlacement::Sa, (self.kind.name(), &value))?,
            (None, Some(_)) => fs.remove_cost(&inode)?,
            (None, None) => Cost::NOTHING,
        };
        Ok(HoldResult::Held(HeldAcl { inode, cost }))
    }

    fn cost<'h>(&self, _: &'h Fs, held: &'h HeldAcl<'_>) -> Result<OperationCost<'h>, Errno> {
        Ok(OperationCost { cost: held.cost, needs: smallvec![(&held.inode.claims, Need::attrs())] })
    }

    fn record_bytes_max(&self) -> usize {
        NAMES_RECORD_BYTES_MAX + ACL_BYTES_MAX
    }

    fn locks<'h>(held: &'h HeldAcl<'_>) -> Locks<'h> {
        to_lock([&held.inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, held: &HeldAcl<'f>) -> Result<Outcome<()>, Errno> {
        let (fs, tx, inode, now) = (change.fs, change.tx, &held.inode, change.stamp());
        reserve_late(tx, held.cost);
        let state = change.locked.get(inode.ino);
        let (mode, ctime) = (state.attrs.zpl.mode, state.attrs.zpl.ctime);
        let new = NewAcl::of(self.kind, self.acl.as_ref(), state.attrs.mode(), self.kill_sgid);
        state.attrs.set_permissions(new.mode);
        state.attrs.zpl.ctime = now;
        let done = match new.stored {
            Some(value) => {
                let set = (self.kind.name(), &value[..]);
                fs.put_xattr(tx, inode, state, XattrPlacement::Sa, set, SetXattr::default())
            }
            None => match fs.remove_xattr(tx, inode, state, self.kind.name()) {
                Err(Errno::ENODATA) => fs.save(tx, inode, state),
                taken => taken,
            },
        };
        if done.is_err() {
            (state.attrs.zpl.mode, state.attrs.zpl.ctime) = (mode, ctime);
        }
        done.map(Outcome::Saved)
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &HeldAcl<'_>, (): &()) -> Intent<'_> {
        let SetAcl { ino, kind, ref acl, kill_sgid } = *self;
        let acl = acl.as_ref().map(|acl| Cow::Owned(acl.to_bytes()));
        let is_default = kind == AclKind::Default;
        Intent::Names(Record::SetAcl { ino, is_default, acl, kill_sgid })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &HeldAcl<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

impl Fs {
    /// `EOPNOTSUPP`: the data set's properties disable ACLs.
    fn check_acls(&self) -> Result<(), Errno> {
        if self.has_acls() { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    pub(crate) fn has_acls(&self) -> bool {
        // The properties may have changed since, or were set for a mount alone.
        if self.is_replaying {
            return self.had_acls.load(Ordering::Relaxed);
        }
        self.dataset().acl_type() == AclType::Posix && self.dataset().xattr_placement() != XattrPlacement::Off
    }

    /// As [`getxattr`](Self::getxattr). Also `EOPNOTSUPP` for a symbolic link.
    pub(crate) fn get_acl(&self, ino: Ino, kind: AclKind, out: &mut Vec<u8>) -> Result<(), Errno> {
        self.check_acls()?;
        let inode = self.hold(ino)?;
        let state = inode.read();
        check_type(&state)?;
        self.value(&inode, &state, kind.name(), out)
    }

    /// Sets an ACL. A value without entries removes it. `EOPNOTSUPP`: a symbolic link. `EACCES`: a default ACL
    /// on a file that is not a directory. Other errors are those of [`Acl::parse`].
    ///
    /// An access ACL also sets the mode. A minimal one is not stored.
    pub(crate) fn set_acl(
        &self,
        ino: Ino,
        kind: AclKind,
        value: &[u8],
        kill_sgid: bool,
    ) -> Result<(), Errno> {
        self.check_acls()?;
        let acl = Acl::parse(value)?;
        self.execute(&SetAcl { ino, kind, acl, kill_sgid })
    }

    /// Upper bound of what [`chmod`](Self::chmod) dirties beside the inode's attributes.
    pub(crate) fn chmod_cost(&self, inode: &InodeRef<'_>) -> Result<Cost, Errno> {
        let access = self.stored_value(inode, &inode.read(), AclKind::Access)?;
        access
            .map_or(Ok(Cost::NOTHING), |value| self.set_cost(inode, XattrPlacement::Sa, (ACL_ACCESS, &value)))
    }

    /// Sets permission bits, in the access ACL too. `reserved` is the result of `chmod_cost`.
    pub(crate) fn chmod(
        &self,
        tx: &Tx,
        inode: &Inode,
        state: &mut State,
        bits: u32,
        reserved: Cost,
    ) -> Result<(), Errno> {
        let acl = self.stored_acl(inode, state, AclKind::Access)?;
        let mode = state.attrs.zpl.mode;
        state.attrs.set_permissions(bits);
        let Some(mut acl) = acl else { return Ok(()) };
        acl.set_permissions(bits);
        reserve_late(tx, reserved);
        let set = (ACL_ACCESS, &acl.to_bytes()[..]);
        let put = self.put_xattr(tx, inode, state, XattrPlacement::Sa, set, SetXattr::default());
        put.inspect_err(|_| state.attrs.zpl.mode = mode)
    }

    /// The default ACL that a new file with these bits inherits; it replaces the caller's umask. Cheap for a
    /// directory without extended attributes.
    pub(crate) fn default_acl(&self, dir: &Inode, state: &State, bits: u32) -> Result<Option<Acl>, Errno> {
        let is_symlink = bits & mode::S_IFMT == mode::S_IFLNK;
        if is_symlink || !Fs::may_have_xattrs(dir, state) || !self.has_acls() {
            return Ok(None);
        }
        self.stored_acl(dir, state, AclKind::Default)
    }

    /// Upper bound of what inherited ACLs and hint rules dirty in a new file.
    pub(crate) fn inherit_cost(default: Option<&Acl>, rules: Option<&[u8]>) -> Cost {
        let acl_bytes = default.map_or(0, |acl| 2 * acl.to_bytes().len() as u64 + INHERITED_OVERHEAD);
        let rules_bytes = rules.map_or(0, |rules| rules.len() as u64 + INHERITED_OVERHEAD);
        Cost { meta_bytes: acl_bytes + rules_bytes, ..Cost::NOTHING }
    }

    fn stored_acl(&self, inode: &Inode, state: &State, kind: AclKind) -> Result<Option<Acl>, Errno> {
        let Some(value) = self.stored_value(inode, state, kind)? else { return Ok(None) };
        let name = String::from_utf8_lossy(kind.name());
        Acl::parse(&value).map_err(|errno| log_eio(format_args!("object {}: {name}: {errno}", inode.ino)))
    }

    fn stored_value(&self, inode: &Inode, state: &State, kind: AclKind) -> Result<Option<Vec<u8>>, Errno> {
        let mut value = Vec::new();
        match self.value(inode, state, kind.name(), &mut value) {
            Ok(()) => Ok(Some(value)),
            Err(Errno::ENODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Reserves space for an ACL that was set after `reserved` was computed as nothing.
pub(crate) fn reserve_late(tx: &Tx, reserved: Cost) {
    if reserved.meta_bytes == 0 {
        tx.reserve_more(LATE_META_BLOCKS);
    }
}

/// Symbolic links have no ACLs, since their mode has no meaning.
fn check_type(state: &State) -> Result<(), Errno> {
    if state.attrs.file_type() == mode::S_IFLNK { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}
