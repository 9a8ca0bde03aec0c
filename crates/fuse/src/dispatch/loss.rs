//! Telling programs what a dead server lost.
//!
//! Opens are not sent to us, so nobody knows which program had a file open before the crash. The first request that changes the file,
//! gives it attributes or publishes it under a name is refused, whoever sends it: see [`terrane_posix::Fs::refuse_change`]. What takes
//! the content or the name away needs nothing of what was lost.
//!
//! What the page cache writes was accepted already, and would be lost on top of the rest: it is carried out, and answered with an error all
//! the same. The kernel then tells whoever maps or closes the file.

use super::{Answer, Dispatch};
use crate::proto::{self, Header, Request, WriteIn, fattr};
use crate::session::Call;
use terrane_posix::{Ino, RENAME_EXCHANGE, Reading};

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    AsAsked,
    AtEnd,
    /// A dead server has carried it out.
    There,
}

impl Dispatch {
    /// Before anything is done.
    pub(super) fn refuse_where_lost(&self, call: &Call<'_>) -> Answer {
        if !self.fs.has_losses() {
            return Ok(());
        }
        let node = self.ino(call.header.nodeid);
        match *call.request {
            Request::Write(write) if write.write_flags & proto::write::CACHE == 0 => {
                self.fs.refuse_change(node)
            }
            // Change times come from a cache that writes back, and nobody hears of an error.
            Request::Setattr(set) if set.valid & fattr::CTIME == 0 && !cuts_to_nothing(&set) => {
                self.fs.refuse_change(node)
            }
            Request::Fallocate(_) | Request::Setxattr(_) | Request::Removexattr { .. } => {
                self.fs.refuse_change(node)
            }
            Request::CopyFileRange { copy, .. } => self.fs.refuse_change(self.ino(copy.nodeid_out)),
            Request::Link { nodeid, .. } => self.fs.refuse_change(self.ino(nodeid)),
            Request::Rename { name, new_dir, new_name, flags } => {
                self.refuse_name(node, name)?;
                if flags & RENAME_EXCHANGE == 0 {
                    Ok(())
                } else {
                    self.refuse_name(self.ino(new_dir), new_name)
                }
            }
            _ => Ok(()),
        }
    }

    /// After it was done.
    pub(super) fn tell_cache_of_loss(&self, call: &Call<'_>) -> Answer {
        match *call.request {
            Request::Write(write) if write.write_flags & proto::write::CACHE != 0 && self.fs.has_losses() => {
                self.fs.refuse_change(self.ino(call.header.nodeid))
            }
            _ => Ok(()),
        }
    }

    /// The kernel appends where it believes the end of a file to be, and looks at a size that was taken back only when a program asks for
    /// it or reads there. So what is to be appended to such a file is, wherever the kernel says; the pages that it then holds at the wrong
    /// place are dropped.
    ///
    /// Asked again, it may be there: a dead server appended it and a commit has it. The place that the kernel says tells nothing of that,
    /// so the end of the file is looked at. After a server that stepped back it is not there, whatever the end looks like.
    pub(super) fn place_of(&self, header: &Header, node: Ino, write: &WriteIn<'_>) -> Place {
        const O_APPEND: u32 = libc::O_APPEND.cast_unsigned();
        // The flags of what comes from the page cache are a guess.
        let appends = write.flags & O_APPEND != 0 && write.write_flags & proto::write::CACHE == 0;
        if !appends || !self.fs.has_losses() || !self.fs.is_lost(node) {
            return Place::AsAsked;
        }
        let Ok(attr) = self.fs.getattr(node) else { return Place::AsAsked };
        if write.offset == attr.size {
            return Place::AsAsked;
        }
        if let Some(launderer) = &self.launderer {
            launderer.launder_later(header.nodeid, write.offset.min(attr.size)..u64::MAX);
        }
        if header.resent() && self.fs.may_be_done() && self.ends_with(node, attr.size, write.data) {
            Place::There
        } else {
            Place::AtEnd
        }
    }

    fn ends_with(&self, node: Ino, size: u64, data: &[u8]) -> bool {
        let (Some(start), Ok(len)) = (size.checked_sub(data.len() as u64), u32::try_from(data.len())) else {
            return false;
        };
        let mut there = Vec::new();
        let how = Reading { alone: true, quiet: true };
        self.fs.read_as(node, start, len, how, &mut there).is_ok() && there == data
    }

    fn refuse_name(&self, dir: Ino, name: &[u8]) -> Answer {
        // What is not there is the answer's own matter.
        let Ok(found) = self.fs.lookup(dir, name) else { return Ok(()) };
        // It was only looked at: the kernel is not told of it.
        self.fs.forget(found.ino, 1);
        self.fs.refuse_change(found.ino)
    }
}

fn cuts_to_nothing(set: &proto::SetattrIn) -> bool {
    set.valid & fattr::SIZE != 0 && set.size == 0
}

#[cfg(test)]
mod tests;
