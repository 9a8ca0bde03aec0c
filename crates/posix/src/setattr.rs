//! Attributes shown and changed.

use crate::attr::{low32, stored, time};
use crate::claims::sum;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Inode, State};
use crate::types::{Attr, Cred, Ino, SetAttr, SetTime};
use terrane_object::Cost;

impl Fs {
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        let inode = self.hold(ino)?;
        let state = inode.read();
        Ok(self.attr(&inode, &state))
    }

    pub(crate) fn attr(&self, inode: &Inode, state: &State) -> Attr {
        let zpl = &state.attrs.zpl;
        let object = inode.object();
        Attr {
            ino: inode.ino,
            generation: zpl.generation,
            mode: state.attrs.mode(),
            nlink: low32(zpl.links),
            uid: low32(zpl.uid),
            gid: low32(zpl.gid),
            rdev: low32(zpl.rdev.unwrap_or(0)),
            size: zpl.size,
            blocks: object.occupied_bytes().saturating_add(self.reservations.left(inode)).div_ceil(512),
            blksize: object.block_size().max(self.set.record_size()),
            atime: time(zpl.atime),
            mtime: time(zpl.mtime),
            ctime: time(zpl.ctime),
            btime: time(zpl.crtime),
        }
    }

    /// Changes attributes, all of them or none. `EISDIR`, `EINVAL`: a size for what is no regular file.
    pub fn setattr(&self, ino: Ino, set: &SetAttr, _cred: &Cred) -> Result<Attr, Errno> {
        let inode = self.hold(ino)?;
        let resize = || set.size.map_or(Ok(Cost::NOTHING), |size| self.resize_cost(&inode, size));
        let chmod = set.mode.map_or(Ok(Cost::NOTHING), |_| self.chmod_cost(&inode))?;
        let (tx, mut state) = self.begin_zeroing(&inode, || Ok(sum([resize()?, chmod])))?;
        state.check_settable(set)?;
        let now = stored(self.now());
        let before = state.attrs.mode();
        if let Some(bits) = set.mode {
            self.chmod(&tx, &inode, &mut state, bits, chmod)?;
        }
        if let Some(size) = set.size {
            let resized = self.resize(&tx, &inode, &mut state, size);
            if resized.is_err() && set.mode.is_some() {
                self.chmod(&tx, &inode, &mut state, before, chmod)?;
            }
            resized?;
            state.attrs.zpl.mtime = now;
        }
        if set.mode.is_none() && (set.kill_suidgid || set.uid.is_some() || set.gid.is_some()) {
            inode.lose_set_ids(&mut state);
        }
        let at = |when: SetTime| match when {
            SetTime::Now => now,
            SetTime::At(time) => stored(time),
        };
        let zpl = &mut state.attrs.zpl;
        zpl.uid = set.uid.map_or(zpl.uid, u64::from);
        zpl.gid = set.gid.map_or(zpl.gid, u64::from);
        zpl.atime = set.atime.map_or(zpl.atime, at);
        zpl.mtime = set.mtime.map_or(zpl.mtime, at);
        zpl.ctime = set.ctime.map_or(now, stored);
        self.save(&tx, &inode, &mut state)?;
        if set.size == Some(0) {
            self.forget_loss(ino);
        }
        Ok(self.attr(&inode, &state))
    }

    /// Whether [`write`](Self::write), [`fallocate`](Self::fallocate), [`copy_range`](Self::copy_range) or
    /// [`setattr`](Self::setattr) took set-id bits away since this was last asked. Their answers to the kernel hold no mode, or may
    /// not: who keeps modes must be told.
    pub fn take_set_ids_went(&self, ino: Ino) -> bool {
        self.hold_cached(ino).is_some_and(|inode| inode.take_set_ids_went())
    }
}
