//! Reading and changing attributes.

use crate::attr::{decode_time, encode_time, low32};
use crate::claims::sum;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Inode, State};
use crate::intents::Intent;
use crate::operation::{Change, Charges, HoldResult, Locks, Operation, OperationCost, Outcome, to_lock};
use crate::record::Record;
use crate::types::{Attr, Cred, Ino, SetAttr, SetTime};
use crate::write::HeldZero;
use terrane_dataset::Charge;
use terrane_object::{ObjectKind, Owners};
use terrane_txg::cost::Cost;

/// `setattr`: `chmod`, `chown`, `truncate` and `utimes` in one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetAttributes<'a> {
    pub ino: Ino,
    pub set: &'a SetAttr,
}

/// An inode, and the cost of changing its mode and its access ACL.
pub(crate) struct HeldSetattr<'f> {
    file: HeldZero<'f>,
    chmod: Cost,
}

impl Operation for SetAttributes<'_> {
    type Held<'f> = HeldSetattr<'f>;
    type Done = ();
    type Answer = Attr;

    fn hold<'f>(&self, fs: &'f Fs) -> Result<HoldResult<HeldSetattr<'f>, Attr>, Errno> {
        let inode = fs.hold(self.ino)?;
        let chmod = self.set.mode.map_or(Ok(Cost::NOTHING), |_| fs.chmod_cost(&inode))?;
        Ok(HoldResult::Held(HeldSetattr { file: HeldZero::of(inode), chmod }))
    }

    fn cost<'h>(&self, fs: &'h Fs, held: &'h HeldSetattr<'_>) -> Result<OperationCost<'h>, Errno> {
        let inode = &held.file.inode;
        let resize = self.set.size.map_or(Ok(Cost::NOTHING), |size| fs.resize_cost(inode, size))?;
        Ok(held.file.operation_cost(sum([resize, held.chmod])))
    }

    fn charges(&self, _: &Fs, held: &HeldSetattr<'_>) -> Result<Charges, Errno> {
        let before = held.file.inode.read().owners();
        let user = self.set.uid.unwrap_or(before.user);
        let after = Owners { user, group: self.set.gid.unwrap_or(before.group), ..before };
        let moved = |_| Charge::moved(before, after, held.file.inode.object().used_bytes());
        Ok((before != after).then_some(()).map(moved).into_iter().collect())
    }

    fn locks<'h>(held: &'h HeldSetattr<'_>) -> Locks<'h> {
        to_lock([&held.file.inode])
    }

    fn run<'f>(&self, change: &mut Change<'_, 'f>, held: &HeldSetattr<'f>) -> Result<Outcome<()>, Errno> {
        if held.file.has_larger_records() {
            return Ok(Outcome::Retry);
        }
        let (fs, tx, now) = (change.fs, change.tx, change.stamp());
        let (set, inode, chmod) = (self.set, &held.file.inode, held.chmod);
        let state = change.locked.get(inode.ino);
        state.check_settable(set)?;
        let before = state.attrs.mode();
        if let Some(bits) = set.mode {
            fs.chmod(tx, inode, state, bits, chmod)?;
        }
        if let Some(size) = set.size {
            let resized = fs.resize(tx, inode, state, size);
            if resized.is_err() && set.mode.is_some() {
                fs.chmod(tx, inode, state, before, chmod)?;
            }
            resized?;
            state.attrs.zpl.mtime = now;
        }
        if set.mode.is_none() && (set.kill_suidgid || set.uid.is_some() || set.gid.is_some()) {
            inode.clear_set_ids(state);
        }
        let at = |when: SetTime| match when {
            SetTime::Now => now,
            SetTime::At(time) => encode_time(time),
        };
        let zpl = &mut state.attrs.zpl;
        zpl.uid = set.uid.map_or(zpl.uid, u64::from);
        zpl.gid = set.gid.map_or(zpl.gid, u64::from);
        zpl.atime = set.atime.map_or(zpl.atime, at);
        zpl.mtime = set.mtime.map_or(zpl.mtime, at);
        zpl.ctime = set.ctime.map_or(now, encode_time);
        Ok(Outcome::Changed(()))
    }

    fn intent(&self, change: &mut Change<'_, '_>, held: &HeldSetattr<'_>, (): &()) -> Intent<'_> {
        let record = Record::SetAttributes { ino: self.ino, set: self.set.clone() };
        // The times of a file go with its contents: the new time with the old contents would tell backups that nothing has changed.
        let SetAttr { mode, uid, gid, size, kill_suidgid, .. } = self.set;
        let has_others = mode.is_some() || uid.is_some() || gid.is_some() || *kill_suidgid;
        let is_file = held.file.inode.object().kind() == ObjectKind::File;
        match size.is_some() || is_file && !has_others {
            true => change.content_intent(self.ino, record),
            false => Intent::Names(record),
        }
    }

    fn end<'f>(&self, mut change: Change<'_, 'f>, held: &HeldSetattr<'f>, (): ()) -> Result<Attr, Errno> {
        if self.set.size == Some(0) {
            change.fs.forget_loss(self.ino);
        }
        Ok(change.fs.attr(&held.file.inode, change.locked.get(self.ino)))
    }
}

impl Fs {
    /// The attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        Ok(self.attr(&inode, &state))
    }

    pub(crate) fn attr(&self, inode: &Inode, state: &State) -> Attr {
        let zpl = &state.attrs.zpl;
        let object = inode.object();
        inode.note_blocks_told();
        let occupied = object.occupied_bytes();
        Attr {
            ino: inode.ino,
            generation: zpl.generation,
            mode: state.attrs.mode(),
            nlink: low32(zpl.links),
            uid: low32(zpl.uid),
            gid: low32(zpl.gid),
            rdev: low32(zpl.rdev.unwrap_or(0)),
            size: zpl.size,
            blocks: occupied.bytes.saturating_add(self.reservations.unwritten_bytes(inode)).div_ceil(512),
            blocks_known: occupied.are_stored,
            blksize: object.block_size().max(self.set.record_size()),
            atime: decode_time(zpl.atime),
            mtime: decode_time(zpl.mtime),
            ctime: decode_time(zpl.ctime),
            btime: decode_time(zpl.crtime),
        }
    }

    /// Changes attributes, all or none. `EISDIR`, `EINVAL`: a size for an inode that is not a regular file.
    pub fn setattr(&self, ino: Ino, set: &SetAttr, _cred: &Cred) -> Result<Attr, Errno> {
        let attr = self.execute(&SetAttributes { ino, set })?;
        if (set.uid.is_some() || set.gid.is_some())
            && let Err(errno) = self.move_xattr_owners(ino)
        {
            log::warn!("object {ino}: some extended attributes still count for the old owners: {errno}");
        }
        Ok(attr)
    }

    /// Whether [`write`](Self::write), [`fallocate`](Self::fallocate), [`copy_range`](Self::copy_range) or
    /// [`setattr`](Self::setattr) cleared set-id bits since the last call. Their replies may not contain a
    /// mode. So a kernel that caches modes must be notified.
    pub fn take_set_ids_cleared(&self, ino: Ino) -> bool {
        self.hold_cached(ino).is_some_and(|inode| inode.take_set_ids_cleared())
    }

    /// Whether a change of extended attributes has changed [`Attr::blocks`] since the last call. Kernels that cache
    /// attributes do not expect that, so they must be notified.
    pub fn take_blocks_outdated(&self, ino: Ino) -> bool {
        self.hold_cached(ino).is_some_and(|inode| inode.take_blocks_outdated())
    }
}
