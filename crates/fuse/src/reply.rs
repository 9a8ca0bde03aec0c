//! The buffer in which an answer is built.
//!
//! Each thread has one [`Reply`] and uses it for every request. Space for the header stays at its front, so
//! an answer leaves in a single write, and READ's data is never copied.
//!
//! Invariant: the buffer holds at least the header, and a sent message announces exactly its own length.

pub mod attr;

use crate::proto::{self, OutHeader};
use terrane_posix::Errno;

/// An answer under construction.
#[derive(Debug)]
pub struct Reply {
    raw: Vec<u8>,
    outdated: Option<u64>,
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply {
    /// An empty answer.
    pub fn new() -> Self {
        Reply { raw: vec![0; OutHeader::SIZE], outdated: None }
    }

    /// Drops the last answer; its memory is kept.
    pub fn clear(&mut self) {
        self.raw.truncate(OutHeader::SIZE);
    }

    /// Marks the attributes that the kernel caches of this node as outdated. The answer does not carry them,
    /// so the kernel must drop them before it sees the answer.
    pub fn mark_outdated(&mut self, nodeid: u64) {
        self.outdated = Some(nodeid);
    }

    /// The node for which [`mark_outdated`](Self::mark_outdated) was called since the last call of this function.
    pub fn take_outdated(&mut self) -> Option<u64> {
        self.outdated.take()
    }

    /// Bytes of the answer so far, without its header.
    pub fn len(&self) -> usize {
        self.raw.len().saturating_sub(OutHeader::SIZE)
    }

    /// Whether the answer has no bytes yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The answer so far, without its header.
    pub fn payload(&self) -> &[u8] {
        self.raw.get(OutHeader::SIZE..).unwrap_or(&[])
    }

    /// Appends bytes to the answer.
    pub fn bytes(&mut self, raw: &[u8]) {
        self.raw.extend_from_slice(raw);
    }

    /// For calls that append by themselves. Existing bytes must stay: the header's space is among them.
    pub fn raw_mut(&mut self) -> &mut Vec<u8> {
        &mut self.raw
    }

    /// The whole message, with its header. An error carries no payload.
    pub fn seal(&mut self, unique: u64, outcome: Result<(), Errno>) -> &[u8] {
        let error = match outcome {
            Ok(()) => 0,
            Err(Errno(number)) => {
                self.clear();
                // The kernel accepts -511..=-1 and refuses the whole message otherwise, which would leave the
                // caller waiting for ever.
                if (1..512).contains(&number) { -number } else { -libc::EIO }
            }
        };
        self.raw.resize(self.raw.len().max(OutHeader::SIZE), 0);
        let len = u32::try_from(self.raw.len()).expect("replies are bounded by the negotiated 1 MiB");
        let header = OutHeader { len, error: error.cast_unsigned(), unique }.encode();
        if let Some(front) = self.raw.get_mut(..OutHeader::SIZE) {
            front.copy_from_slice(&header);
        }
        &self.raw
    }
}

/// A notification: `unique` 0, and the code in place of an error.
pub fn notification(code: i32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(OutHeader::SIZE + payload.len()).expect("notifications hold a name at most");
    let mut raw = OutHeader { len, error: code.cast_unsigned(), unique: 0 }.encode().to_vec();
    raw.extend_from_slice(payload);
    raw
}

/// The answers of READDIR and READDIRPLUS: as many entries as fit.
#[derive(Debug)]
pub struct DirReply<'a> {
    reply: &'a mut Reply,
    bytes_max: usize,
    end: u64,
}

/// Entries start at multiples of this.
const DIRENT_ALIGN: usize = 8;

impl<'a> DirReply<'a> {
    /// At most `bytes_max` bytes, the size of the caller's buffer.
    pub fn new(reply: &'a mut Reply, bytes_max: usize) -> Self {
        DirReply { reply, bytes_max, end: 0 }
    }

    /// The offset behind the last name. 0: there is none.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of an entry with a name of this length, with its attributes (`plus`) or without.
    pub const fn entry_bytes(name_len: usize, plus: bool) -> usize {
        let head = proto::Dirent::SIZE + if plus { proto::EntryOut::SIZE } else { 0 };
        (head + name_len).next_multiple_of(DIRENT_ALIGN)
    }

    /// Adds a name. `next` is the offset at which a listing continues after it. `false`: it did not fit, and
    /// nothing was added.
    pub fn entry(&mut self, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        self.push(None, ino, next, kind, name)
    }

    /// Adds a name with what LOOKUP would have answered. An `entry` with node 0 gives the name alone.
    pub fn entry_plus(
        &mut self,
        entry: &proto::EntryOut,
        ino: u64,
        next: u64,
        kind: u8,
        name: &[u8],
    ) -> bool {
        self.push(Some(entry), ino, next, kind, name)
    }

    fn push(&mut self, entry: Option<&proto::EntryOut>, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        let Ok(namelen) = u32::try_from(name.len()) else { return false };
        if self.reply.len() + Self::entry_bytes(name.len(), entry.is_some()) > self.bytes_max {
            return false;
        }
        if let Some(entry) = entry {
            self.reply.bytes(&entry.encode());
        }
        self.reply.bytes(&proto::Dirent { ino, off: next, namelen, kind: u32::from(kind) }.encode());
        self.reply.bytes(name);
        // Padding counts from the start of the entry; that is aligned, and so is the header before it.
        let padded = self.reply.len().next_multiple_of(DIRENT_ALIGN);
        self.reply.raw.resize(OutHeader::SIZE + padded, 0);
        self.end = next;
        true
    }
}
