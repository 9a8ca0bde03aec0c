//! Extended attributes: a list among the inode's attributes, or objects in a hidden directory.
//!
//! The place of a value is decided when it is set. It goes into the list if the property says so and it fits,
//! else into the hidden directory. Callers see one set of names. A name is in one place only: setting it
//! removes it from the other place in the same transaction. If damage leaves it in both, the list's value
//! counts.
//!
//! The kernel has checked permissions before a request arrives ([`perm`](crate::perm)). Checks that depend on
//! the file alone are repeated here, for callers without a kernel.

use crate::acl_files::AclKind;
use crate::claims::{FREES, Need, sum};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::hint::{self, WRITE_HINT};
use crate::hint_rules::{HINT_RULES, HintRules};
use crate::hold::InodeRef;
use crate::inode::{Inode, State};
use crate::intents::Intent;
use crate::operation::{
    Change, Charges, HoldResult, Locks, NAMES_RECORD_BYTES_MAX, Operation, OperationCost, Outcome, to_lock,
};
use crate::project::META_COPIES;
use crate::record::Record;
use crate::types::{Cred, Ino, NAME_MAX, SetXattr, XATTR_LIST_MAX, XATTR_SIZE_MAX, mode};
use crate::xattr_dir::XattrDir;
use smallvec::smallvec;
use terrane_dataset::{Charge, XattrPlacement};
use terrane_format::Feature;
use terrane_pool::Tx;
use terrane_sa::{Attr, AttrList, NvList, nvlist};
use terrane_txg::cost::Cost;
use terrane_wire::Corrupt;

/// A longer value in bytes never goes into the list, as in OpenZFS.
const LISTED_VALUE_MAX: usize = 32 << 10;
/// Bytes of framing around attributes in a spill block.
const SPILL_OVERHEAD: usize = 128;
const NAME_BYTES_MAX: u64 = NAME_MAX as u64 + 1;

/// The namespace given by a name's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
    System,
}

const TRUSTED: &[u8] = b"trusted.";
const PREFIXES: [(&[u8], Namespace); 4] = [
    (b"user.", Namespace::User),
    (TRUSTED, Namespace::Trusted),
    (b"security.", Namespace::Security),
    (b"system.", Namespace::System),
];

impl Namespace {
    /// `ERANGE`: the name is empty or too long. `EOPNOTSUPP`: unknown namespace. `EINVAL`: only a prefix, or a
    /// NUL in it.
    fn of(name: &[u8]) -> Result<Self, Errno> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::ERANGE);
        }
        let found = PREFIXES.into_iter().find(|(prefix, _)| name.starts_with(prefix));
        let (prefix, namespace) = found.ok_or(Errno::EOPNOTSUPP)?;
        match namespace {
            _ if name.len() == prefix.len() || name.contains(&0) => Err(Errno::EINVAL),
            Namespace::System => Err(Errno::EOPNOTSUPP),
            other => Ok(other),
        }
    }

    /// `user.` attributes exist on files and directories only, as their permission bits control data access.
    fn is_for(self, state: &State) -> bool {
        self != Namespace::User || matches!(state.attrs.file_type(), mode::S_IFREG | mode::S_IFDIR)
    }

    /// Whether an attribute may be set or removed. `EPERM`: it may not.
    fn check_change(self, state: &State) -> Result<(), Errno> {
        if self.is_for(state) { state.check_changeable() } else { Err(Errno::EPERM) }
    }
}

/// An inode's extended attributes with a validated list, and the places that have one given name.
pub(crate) struct XattrState {
    list: AttrList,
    xattr_dir: Option<XattrDir>,
    is_in_list: bool,
    is_in_xattr_dir: bool,
}

/// Parses and validates the list of extended attributes.
fn validate_list(list: &AttrList) -> Result<NvList<'_>, Corrupt> {
    list.get(Attr::DXATTR).map_or(Ok(NvList::default()), NvList::parse)
}

/// The list, validated before: validation is the most expensive step for a long one.
fn parsed_list(list: &AttrList) -> NvList<'_> {
    list.get(Attr::DXATTR).map_or(NvList::default(), NvList::from_validated)
}

impl XattrState {
    /// Whether one more name makes the list of names too long. `others` is the size of names stored elsewhere.
    /// Names are only scanned if a bound from counts is not enough.
    pub(crate) fn is_name_list_full(&self, name: &[u8], others: usize) -> Result<bool, Errno> {
        let dir_names = self.xattr_dir.as_ref().map_or(Ok(0), XattrDir::count)?;
        let listed = parsed_list(&self.list);
        // Names are scanned if this bound is too large, for example because the count is damaged.
        let at_most = dir_names.saturating_add(1).saturating_mul(NAME_BYTES_MAX);
        if at_most.saturating_add((listed.packed_bytes() + others) as u64) <= XATTR_LIST_MAX as u64 {
            return Ok(false);
        }
        let mut bytes: usize = listed.iter().map(|(name, _)| name.len() + 1).sum();
        if let Some(xattr_dir) = &self.xattr_dir {
            xattr_dir.each_name(&mut |name| bytes += name.len() + 1)?;
        }
        Ok(bytes + name.len() + 1 + others > XATTR_LIST_MAX)
    }
}

/// Removes a name from the list; an empty list is not stored.
fn remove_from_list(list: &mut AttrList, name: &[u8]) {
    let packed = parsed_list(list).without(name);
    match packed {
        Some(packed) if !NvList::from_validated(&packed).is_empty() => list.set(Attr::DXATTR, &packed),
        Some(_) => list.remove(Attr::DXATTR),
        None => {}
    }
}

/// Where a new value goes, in the worst case.
struct PutPlace {
    /// Cost of the list.
    spill: Cost,
    /// The value does not need the hidden directory.
    stays_listed: bool,
    /// The hidden directory, if there is one.
    xattr_dir: Option<XattrDir>,
}

impl PutPlace {
    /// Hidden objects that the value adds.
    fn new_objects(&self, name: &[u8]) -> Result<u64, Errno> {
        match &self.xattr_dir {
            _ if self.stays_listed => Ok(0),
            // The directory, and the value.
            None => Ok(2),
            Some(xattr_dir) => Ok(u64::from(xattr_dir.find(name)?.is_none())),
        }
    }
}

/// `setxattr`, except for ACLs and hints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutXattr<'a> {
    pub ino: Ino,
    pub name: &'a [u8],
    pub value: &'a [u8],
    pub how: SetXattr,
    /// Where the value goes if it fits the list. Never `Off`.
    pub placement: XattrPlacement,
}

impl Operation for PutXattr<'_> {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        {
            let state = inode.read();
            Namespace::of(self.name)?.check_change(&state)?;
            if self.name == HINT_RULES && !state.attrs.is_dir() {
                return Err(Errno::EINVAL);
            }
        }
        Ok(HoldResult::Held(inode))
    }

    fn cost<'h>(&self, fs: &'h Fs, inode: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        let cost = fs.set_cost(inode, self.placement, (self.name, self.value))?;
        Ok(OperationCost { cost, needs: smallvec![(&inode.claims, Need::attrs())] })
    }

    fn charges(&self, fs: &Fs, inode: &InodeRef<'_>) -> Result<Charges, Errno> {
        let bytes = self.name.len().saturating_add(self.value.len()) as u64;
        let objects = fs.put_place(inode, self.placement, (self.name, self.value))?.new_objects(self.name)?;
        Ok(smallvec![Charge::of(inode.read().owners(), bytes.saturating_mul(META_COPIES), objects)])
    }

    fn record_bytes_max(&self) -> usize {
        NAMES_RECORD_BYTES_MAX + self.value.len()
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let state = change.locked.get(inode.ino);
        let (ctime, flags) = (state.attrs.zpl.ctime, state.attrs.zpl.flags);
        state.attrs.zpl.ctime = now;
        if self.name == HINT_RULES {
            state.attrs.set_has_hint_rules(true);
        }
        let set = fs.put_xattr(tx, inode, state, self.placement, (self.name, self.value), self.how);
        if set.is_err() {
            (state.attrs.zpl.ctime, state.attrs.zpl.flags) = (ctime, flags);
        }
        set.map(Outcome::Saved)
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        let PutXattr { ino, name, value, how, placement } = *self;
        Intent::Names(Record::PutXattr { ino, name, value, how, placement })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

/// `removexattr`, except for ACLs and hints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoveXattr<'a> {
    pub ino: Ino,
    pub name: &'a [u8],
}

impl Operation for RemoveXattr<'_> {
    type Held<'f> = InodeRef<'f>;
    type Done = ();
    type Answer = ();

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<InodeRef<'f>, ()>, Errno> {
        let inode = fs.hold(self.ino)?;
        {
            let state = inode.read();
            Namespace::of(self.name)?.check_change(&state)?;
            if !Fs::may_have_xattrs(&inode, &state) {
                return Err(Errno::ENODATA);
            }
        }
        Ok(HoldResult::Held(inode))
    }

    fn cost<'h>(&self, fs: &'h Fs, inode: &'h InodeRef<'_>) -> Result<OperationCost<'h>, Errno> {
        Ok(OperationCost { cost: fs.remove_cost(inode)?, needs: smallvec![(&inode.claims, Need::attrs())] })
    }

    fn locks<'h>(inode: &'h InodeRef<'_>) -> Locks<'h> {
        to_lock([inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, inode: &InodeRef<'f>) -> Result<Outcome<()>, Errno> {
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let state = change.locked.get(inode.ino);
        let (ctime, flags) = (state.attrs.zpl.ctime, state.attrs.zpl.flags);
        state.attrs.zpl.ctime = now;
        if self.name == HINT_RULES {
            state.attrs.set_has_hint_rules(false);
        }
        let removed = fs.remove_xattr(tx, inode, state, self.name);
        if removed.is_err() {
            (state.attrs.zpl.ctime, state.attrs.zpl.flags) = (ctime, flags);
        }
        removed.map(Outcome::Saved)
    }

    fn intent(&self, _: &mut Change<'_, '_>, _: &InodeRef<'_>, (): &()) -> Intent<'_> {
        let RemoveXattr { ino, name } = *self;
        Intent::Names(Record::RemoveXattr { ino, name })
    }

    fn end<'f>(&self, _: Change<'_, 'f>, _: &InodeRef<'f>, (): ()) -> Result<(), Errno> {
        Ok(())
    }
}

impl Fs {
    /// `EOPNOTSUPP`: the data set has no extended attributes, by its property.
    fn xattr_placement(&self) -> Result<XattrPlacement, Errno> {
        match self.dataset().xattr_placement() {
            XattrPlacement::Off => Err(Errno::EOPNOTSUPP),
            placement => Ok(placement),
        }
    }

    /// False if the inode has none, without further reads.
    pub(crate) fn may_have_xattrs(inode: &Inode, state: &State) -> bool {
        let attrs = &state.attrs;
        inode.object().has_spill() || attrs.get(Attr::DXATTR).is_some() || attrs.get(Attr::XATTR).is_some()
    }

    /// Appends the value to `out`. `ENODATA`: there is no such attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8], out: &mut Vec<u8>) -> Result<(), Errno> {
        if let Some(kind) = AclKind::of(name) {
            return self.get_acl(ino, kind, out);
        }
        self.xattr_placement()?;
        let namespace = Namespace::of(name)?;
        let inode = self.hold(ino)?;
        let state = inode.read();
        if !namespace.is_for(&state) {
            return Err(Errno::ENODATA);
        }
        if name == WRITE_HINT {
            return self.get_hint(&state, out);
        }
        self.value(&inode, &state, name, out)
    }

    /// As [`getxattr`](Self::getxattr), for any name.
    pub(crate) fn value(
        &self,
        inode: &Inode,
        state: &State,
        name: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        if !Fs::may_have_xattrs(inode, state) {
            return Err(Errno::ENODATA);
        }
        let ino = inode.ino;
        let (found, xattr_dir) = self.with_all_attributes(inode, state, |all| {
            let listed = all.get(Attr::DXATTR).map_or(Ok(None), |raw| nvlist::get(raw, name));
            let found = listed.map(|value| value.map(|value| out.extend_from_slice(value)));
            (found, all.number(Attr::XATTR))
        })?;
        let found = found.map_err(|error| error.within(format_args!("object {ino}, extended attributes")))?;
        if found.is_some() {
            return Ok(());
        }
        let xattr_dir = self.open_xattr_dir(ino, xattr_dir.ok_or(Errno::ENODATA)?)?;
        let number = xattr_dir.find(name)?.ok_or(Errno::ENODATA)?;
        self.read_xattr_value(&xattr_dir, number, out)
    }

    /// Appends the names to `out`, each with a NUL. `trusted.` names are included only if `is_admin` returns
    /// true. It is called at most once, while no lock is held.
    pub fn listxattr(&self, ino: Ino, is_admin: &dyn Fn() -> bool, out: &mut Vec<u8>) -> Result<(), Errno> {
        self.xattr_placement()?;
        let inode = self.hold(ino)?;
        let state = inode.read();
        let start = out.len();
        if hint::listed_bytes(&state) > 0 {
            out.extend_from_slice(WRITE_HINT);
            out.push(0);
        }
        if !Fs::may_have_xattrs(&inode, &state) {
            return Ok(());
        }
        let mut has_trusted = false;
        let mut show = |name: &[u8]| {
            if AclKind::of(name).is_none() || self.has_acls() {
                has_trusted |= name.starts_with(TRUSTED);
                out.extend_from_slice(name);
                out.push(0);
            }
        };
        let (listed, xattr_dir) = self.with_all_attributes(&inode, &state, |all| {
            let listed = all.get(Attr::DXATTR).map_or(Ok(NvList::default()), NvList::parse);
            let listed = listed.map(|list| list.iter().for_each(|(name, _)| show(name)));
            (listed, all.number(Attr::XATTR))
        })?;
        listed.map_err(|error| error.within(format_args!("object {ino}, extended attributes")))?;
        if let Some(number) = xattr_dir {
            self.open_xattr_dir(ino, number)?.each_name(&mut show)?;
        }
        // The callback may call back here, or wait for a thread that does.
        drop(state);
        if has_trusted && !is_admin() {
            let names = out.split_off(start);
            let mine = names.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(TRUSTED));
            mine.for_each(|name| out.extend_from_slice(name));
        }
        Ok(())
    }

    /// Sets an extended attribute. `name` includes the namespace prefix, `value` has up to 64 KiB. `E2BIG`:
    /// more. `EINVAL`: no such hint, or not a list of hint rules, or rules for a file that is not a directory.
    /// `ENOSPC`: the list of names would exceed 64 KiB. `EPERM`: `user.` on an inode that is neither file
    /// nor directory. `EEXIST`, `ENODATA`: as `how` demands.
    pub fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        _cred: &Cred,
    ) -> Result<(), Errno> {
        if let Some(kind) = AclKind::of(name) {
            return self.set_acl(ino, kind, value, how.kill_sgid);
        }
        let placement = self.xattr_placement()?;
        let namespace = Namespace::of(name)?;
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        if !self.set.pool().has(Feature::Xattr) {
            return Err(Errno::EOPNOTSUPP);
        }
        if name == WRITE_HINT {
            namespace.check_change(&self.hold(ino)?.read())?;
            return self.put_hint(ino, Some(value), how);
        }
        let placement = match name == HINT_RULES {
            true => {
                HintRules::parse(value).map_err(|_| Errno::EINVAL)?;
                // Each new file of the directory is matched, so they lie beside its attributes if they fit.
                XattrPlacement::Sa
            }
            false => placement,
        };
        self.execute(&PutXattr { ino, name, value, how, placement })
    }

    /// Removes an extended attribute. `ENODATA`: it does not exist. Removing a missing ACL succeeds.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        if let Some(list) = AclKind::of(name) {
            return self.set_acl(ino, list, &[], false);
        }
        self.xattr_placement()?;
        let namespace = Namespace::of(name)?;
        if name == WRITE_HINT {
            namespace.check_change(&self.hold(ino)?.read())?;
            return self.put_hint(ino, None, SetXattr::default());
        }
        self.execute(&RemoveXattr { ino, name })
    }

    /// Upper bound of what removing an attribute dirties.
    pub(crate) fn remove_cost(&self, inode: &Inode) -> Result<Cost, Errno> {
        let state = inode.read();
        let xattr_dir = self.with_all_attributes(inode, &state, |all| all.number(Attr::XATTR))?;
        let xattr_dir = xattr_dir.map(|number| self.open_xattr_dir(inode.ino, number)).transpose()?;
        let spill = Cost { meta_bytes: self.spill_bytes(inode)?, ..FREES };
        Ok(sum([spill, xattr_dir.as_ref().map_or(FREES, Fs::xattr_dir_remove_cost)]))
    }

    fn spill_bytes(&self, inode: &Inode) -> Result<u64, Errno> {
        Ok(self.set.spill_of(inode.object())?.map_or(0, |spill| spill.len() as u64))
    }

    /// Upper bound of what setting an attribute dirties, in the inode's current state.
    pub(crate) fn set_cost(
        &self,
        inode: &InodeRef<'_>,
        placement: XattrPlacement,
        (name, value): (&[u8], &[u8]),
    ) -> Result<Cost, Errno> {
        let PutPlace { spill, stays_listed, xattr_dir } = self.put_place(inode, placement, (name, value))?;
        if stays_listed && xattr_dir.is_none() {
            return Ok(spill);
        }
        Ok(sum([spill, Fs::xattr_dir_put_cost(xattr_dir.as_ref(), name, value)]))
    }

    fn put_place(
        &self,
        inode: &InodeRef<'_>,
        placement: XattrPlacement,
        (name, value): (&[u8], &[u8]),
    ) -> Result<PutPlace, Errno> {
        // Attributes may move from the bonus area to the spill block together with the new one.
        let added = name.len() + value.len() + inode.object().bonus_max() + SPILL_OVERHEAD;
        let spill = Cost { meta_bytes: self.spill_bytes(inode)? + added as u64, ..Cost::NOTHING };
        let state = inode.read();
        let xattr_dir = match Fs::may_have_xattrs(inode, &state) {
            true => self.with_all_attributes(inode, &state, |all| all.number(Attr::XATTR))?,
            false => None,
        };
        let fits_list = spill.meta_bytes <= nvlist::PACKED_BYTES_MAX as u64;
        let stays_listed = placement == XattrPlacement::Sa && value.len() <= LISTED_VALUE_MAX && fits_list;
        let xattr_dir = xattr_dir.map(|number| self.open_xattr_dir(inode.ino, number)).transpose()?;
        Ok(PutPlace { spill, stays_listed, xattr_dir })
    }

    pub(crate) fn xattr_state(
        &self,
        inode: &Inode,
        state: &mut State,
        name: &[u8],
    ) -> Result<XattrState, Errno> {
        let list = self.attr_list(inode, state)?;
        let xattr_dir = list.get(Attr::XATTR).and_then(|raw| Some(u64::from_le_bytes(raw.try_into().ok()?)));
        let xattr_dir = xattr_dir.map(|number| self.open_xattr_dir(inode.ino, number)).transpose()?;
        let is_in_list = validate_list(&list)
            .map_err(|error| error.within(format_args!("object {}, extended attributes", inode.ino)))?
            .get(name)
            .is_some();
        let is_in_xattr_dir =
            xattr_dir.as_ref().map_or(Ok(None), |xattr_dir| xattr_dir.find(name))?.is_some();
        Ok(XattrState { list, xattr_dir, is_in_list, is_in_xattr_dir })
    }

    /// Sets an attribute. The caller has set the change time.
    pub(crate) fn put_xattr(
        &self,
        tx: &Tx,
        inode: &Inode,
        state: &mut State,
        placement: XattrPlacement,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
    ) -> Result<(), Errno> {
        let mut existing = self.xattr_state(inode, state, name)?;
        let is_there = existing.is_in_list || existing.is_in_xattr_dir;
        match is_there {
            true if how.create => return Err(Errno::EEXIST),
            false if how.replace => return Err(Errno::ENODATA),
            false if existing.is_name_list_full(name, hint::listed_bytes(state))? => {
                return Err(Errno::ENOSPC);
            }
            _ => {}
        }
        if placement == XattrPlacement::Sa && value.len() <= LISTED_VALUE_MAX {
            let packed = parsed_list(&existing.list).with(name, value);
            if let Some(packed) = packed {
                existing.list.set(Attr::DXATTR, &packed);
                match self.store_attrs(tx, inode, state, &existing.list) {
                    Ok(()) if existing.is_in_xattr_dir => {
                        let XattrState { list, xattr_dir, .. } = existing;
                        return self.remove_xattr_dir_entry(tx, inode, state, list, xattr_dir, name);
                    }
                    // The list does not even fit a spill block: this attribute goes to the hidden directory.
                    Err(Errno::EFBIG) => existing.list = self.attr_list(inode, state)?,
                    outcome => return outcome,
                }
            }
        }
        self.put_in_new_object(tx, inode, state, existing, (name, value))
    }

    fn put_in_new_object(
        &self,
        tx: &Tx,
        inode: &Inode,
        state: &mut State,
        existing: XattrState,
        (name, value): (&[u8], &[u8]),
    ) -> Result<(), Errno> {
        let XattrState { mut list, xattr_dir, is_in_list, .. } = existing;
        let is_new = xattr_dir.is_none();
        let xattr_dir = self.put_in_xattr_dir(tx, inode.ino, state, xattr_dir, (name, value))?;
        if is_new {
            list.set_u64(Attr::XATTR, xattr_dir.id());
        }
        if is_in_list {
            remove_from_list(&mut list, name);
        }
        let stored = if is_new || is_in_list {
            self.store_attrs(tx, inode, state, &list)
        } else {
            self.save(tx, inode, state)
        };
        if stored.is_err() && is_new {
            // No inode refers to it.
            let piece = self.read_xattr_dir_piece(inode.ino, xattr_dir.id())?;
            self.destroy_xattr_dir_piece(tx, inode.ino, piece)?;
        }
        stored
    }

    /// Removes a name from the hidden directory; `list` is the inode's stored list.
    fn remove_xattr_dir_entry(
        &self,
        tx: &Tx,
        inode: &Inode,
        state: &mut State,
        mut list: AttrList,
        xattr_dir: Option<XattrDir>,
        name: &[u8],
    ) -> Result<(), Errno> {
        let Some(mut xattr_dir) = xattr_dir else { return Ok(()) };
        if self.remove_from_xattr_dir(tx, &mut xattr_dir, name)? {
            list.remove(Attr::XATTR);
            self.store_attrs(tx, inode, state, &list)?;
        }
        Ok(())
    }

    /// Removes an attribute from both places, or it would reappear. The caller has set the change time.
    pub(crate) fn remove_xattr(
        &self,
        tx: &Tx,
        inode: &Inode,
        state: &mut State,
        name: &[u8],
    ) -> Result<(), Errno> {
        let XattrState { mut list, xattr_dir, is_in_list, is_in_xattr_dir } =
            self.xattr_state(inode, state, name)?;
        if !is_in_list && !is_in_xattr_dir {
            return Err(Errno::ENODATA);
        }
        if is_in_list {
            remove_from_list(&mut list, name);
        }
        self.store_attrs(tx, inode, state, &list)?;
        if is_in_xattr_dir {
            self.remove_xattr_dir_entry(tx, inode, state, list, xattr_dir, name)
        } else {
            Ok(())
        }
    }
}
