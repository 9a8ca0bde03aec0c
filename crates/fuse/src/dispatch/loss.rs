//! Reports to programs what a dead server lost.
//!
//! Opens are not sent to the server, so it cannot know which programs had a file open before the crash. The
//! first request that changes the file, sets its attributes or links it under a name is refused, whichever
//! process sends it: see [`terrane_posix::Fs::refuse_change`]. Requests that remove the content or the name
//! are not refused: they do not depend on what was lost.
//!
//! A write-back from the page cache was already accepted, and refusing it would lose its bytes too. So it is
//! carried out and then answered with an error, which the kernel reports to programs that map or close the
//! file.

use super::{Answer, Dispatch};
use crate::proto::{self, Header, Request, WriteIn, fattr};
use crate::session::Call;
use terrane_posix::{Errno, Ino, RENAME_EXCHANGE, ReadOptions};

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppendTarget {
    RequestedOffset,
    EndOfFile,
    /// A dead server has already carried it out.
    AlreadyStored,
}

impl Dispatch {
    /// `ESTALE`: the request means an inode that a rollback removed, and whose number an older inode has.
    pub(super) fn refuse_replaced(&self, call: &Call<'_>) -> Answer {
        let other = match *call.request {
            Request::Forget { .. } | Request::BatchForget(_) => return Ok(()),
            Request::Link { nodeid, .. } => Some(nodeid),
            Request::Rename { new_dir, .. } => Some(new_dir),
            Request::CopyFileRange { copy, .. } => Some(copy.nodeid_out),
            _ => None,
        };
        let is_replaced = |nodeid: u64| self.fs.is_replaced(self.ino(nodeid));
        if is_replaced(call.header.nodeid) || other.is_some_and(is_replaced) {
            return Err(Errno::ESTALE);
        }
        Ok(())
    }

    /// Refuses a request before any of it is done.
    pub(super) fn refuse_change_after_loss(&self, call: &Call<'_>) -> Answer {
        if !self.fs.has_losses() {
            return Ok(());
        }
        let node = self.ino(call.header.nodeid);
        match *call.request {
            Request::Write(write) if write.write_flags & proto::write::CACHE == 0 => {
                self.fs.refuse_change(node)
            }
            // Change times come from a cache that writes back, and no program receives an error for them.
            Request::Setattr(set) if set.valid & fattr::CTIME == 0 && !truncates_to_zero(&set) => {
                self.fs.refuse_change(node)
            }
            Request::Fallocate(_) | Request::Setxattr(_) | Request::Removexattr { .. } => {
                self.fs.refuse_change(node)
            }
            Request::CopyFileRange { copy, .. } => self.fs.refuse_change(self.ino(copy.nodeid_out)),
            Request::Link { nodeid, .. } => self.fs.refuse_change(self.ino(nodeid)),
            Request::Rename { name, new_dir, new_name, flags } => {
                self.refuse_name_after_loss(node, name)?;
                if flags & RENAME_EXCHANGE == 0 {
                    Ok(())
                } else {
                    self.refuse_name_after_loss(self.ino(new_dir), new_name)
                }
            }
            _ => Ok(()),
        }
    }

    /// After a write-back was done: answers it with an error if the file has losses.
    pub(super) fn fail_write_back_after_loss(&self, call: &Call<'_>) -> Answer {
        match *call.request {
            Request::Write(write) if write.write_flags & proto::write::CACHE != 0 && self.fs.has_losses() => {
                self.fs.refuse_change(self.ino(call.header.nodeid))
            }
            _ => Ok(()),
        }
    }

    /// Where an append goes.
    ///
    /// The kernel appends where it believes the end of a file to be. It refreshes a size that a crash rolled
    /// back only when a program asks for it or reads there. So an append to a file with losses goes to the
    /// real end, whatever offset the kernel sends. The pages that the kernel then holds at the wrong offset
    /// are dropped.
    ///
    /// A resent append may be stored already: a dead server appended it and it was committed. The kernel's
    /// offset says nothing about that, so the end of the file is compared. After a server that stepped back
    /// the append is not stored, whatever the end looks like.
    pub(super) fn append_target(&self, header: &Header, node: Ino, write: &WriteIn<'_>) -> AppendTarget {
        const O_APPEND: u32 = libc::O_APPEND.cast_unsigned();
        // The flags of a write-back are the kernel's guess.
        let appends = write.flags & O_APPEND != 0 && write.write_flags & proto::write::CACHE == 0;
        if !appends || !self.fs.has_losses() || !self.fs.is_lost(node) {
            return AppendTarget::RequestedOffset;
        }
        let Ok(attr) = self.fs.getattr(node) else { return AppendTarget::RequestedOffset };
        if write.offset == attr.size {
            return AppendTarget::RequestedOffset;
        }
        if let Some(launderer) = &self.launderer {
            launderer.launder_deferred(header.nodeid, write.offset.min(attr.size)..u64::MAX);
        }
        if header.is_resent() && self.fs.may_be_carried_out() && self.ends_with(node, attr.size, write.data) {
            AppendTarget::AlreadyStored
        } else {
            AppendTarget::EndOfFile
        }
    }

    fn ends_with(&self, node: Ino, size: u64, data: &[u8]) -> bool {
        let (Some(start), Ok(len)) = (size.checked_sub(data.len() as u64), u32::try_from(data.len())) else {
            return false;
        };
        let mut there = Vec::new();
        let how = ReadOptions { no_prefetch: true, keeps_atime: true };
        self.fs.read_as(node, start, len, how, &mut there).is_ok() && there == data
    }

    fn refuse_name_after_loss(&self, dir: Ino, name: &[u8]) -> Answer {
        // The call itself reports a missing name.
        let Ok(found) = self.fs.lookup(dir, name) else { return Ok(()) };
        // The kernel did not do this lookup, so it is not counted.
        self.fs.forget(found.ino, 1);
        self.fs.refuse_change(found.ino)
    }
}

fn truncates_to_zero(set: &proto::SetattrIn) -> bool {
    set.valid & fattr::SIZE != 0 && set.size == 0
}

#[cfg(test)]
mod tests;
