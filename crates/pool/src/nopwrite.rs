//! Overwrites that change nothing: the block that is there stays, with its pointer.
//!
//! A request may name the pointer that it replaces. If the new block would be stored in the very same bytes, by what the pointer's
//! checksum says, nothing is appended, the pointer is handed back as it was, and so nothing above it changes either. A checksum tells what
//! was stored, not what is left of it, and who writes a file anew may do so because it was damaged: so a block that is not in memory is
//! read from its device first. That is one read instead of a write and all that follows from it.
//!
//! Another level, or another version of the compressor, makes other bytes of the same content. Where the algorithm is the one that the
//! request asks for, the old block may be looked at: read, verified and compared ([`Looks`](terrane_space::policy::Looks) says which). What
//! another algorithm made is not: who sets another `compression` and writes a file over itself wants it stored anew.
//!
//! Invariant: a pointer stays only if its checksum is a cryptographic one, of the kind that is asked for. A sum that somebody can forge,
//! or that meets by accident, never stands for content. Its block was written or verified since the pool was imported, and is not known to
//! be damaged.

use crate::pool::{Group, Stream, WriteRequest};
use std::sync::Arc;
use terrane_codec::compress::algorithm::{ID_LZ4, ID_ZSTD};
use terrane_codec::{Compression, is_same_algorithm, is_zero};
use terrane_format::block_ptr::Key;
use terrane_format::block_ptr::{BlockPtr, Normal};
use terrane_format::directory::Owner;
use terrane_space::policy::looks::File;
use terrane_store::pipeline::{DecodeContext, Ready};
use terrane_store::reader::BlockReader;
use terrane_txg::levels::Method;

/// What a worker made of a block.
pub(crate) enum Tried {
    /// Nothing: what it replaces was looked at, and holds the same.
    Same(BlockPtr),
    /// `differs`: what it replaces was looked at, and holds something else. `stands`: it is stored in the same bytes, and they are there.
    New { ready: Ready, differs: bool, stands: bool },
}

/// What becomes of a block.
pub(crate) enum Judged {
    /// Nothing changed: this pointer stays.
    Stays(BlockPtr),
    New(Ready),
}

/// A look at the block that a request replaces, for a worker.
pub(crate) struct Look {
    reader: Arc<BlockReader>,
    old: BlockPtr,
    owner: Owner,
}

impl Look {
    /// The old block, if it can be read and holds `data`.
    pub fn take(self, data: &[u8]) -> Option<BlockPtr> {
        self.finds(data).then_some(self.old)
    }

    fn finds(&self, data: &[u8]) -> bool {
        // Zeros are a hole, whatever was there.
        if is_zero(data) {
            return false;
        }
        let mut held = vec![0; data.len()];
        let is_read = match &self.old {
            BlockPtr::Normal(old) if !self.reader.cache.holds_own(Key::of(old)) => {
                let stored = self.reader.stored_whole(old, self.owner);
                let context = DecodeContext::stored(self.owner, old);
                let mut unpack =
                    |stored: &[u8]| self.reader.pipeline.decode_into(&context, stored, &mut held).is_ok();
                stored.is_some_and(|stored| unpack(&stored))
            }
            // What cannot be read was named by who tried, and is written anew.
            old => self.reader.read_into(old, self.owner, &mut held).is_ok(),
        };
        is_read && held == data
    }
}

/// The block that a request replaces, and trusts, for a worker.
pub(crate) struct Standing {
    reader: Arc<BlockReader>,
    old: Normal,
    owner: Owner,
}

impl Standing {
    /// Whether it is stored in the bytes that were made, and can be read.
    pub fn is(&self, made: &Ready) -> bool {
        let Ready::Stored { compression, bytes, checksum, .. } = made else { return false };
        (*compression, *checksum) == (self.old.compression, self.old.checksum)
            && self.old.psize as usize == bytes.len()
            && (self.reader.cache.holds_own(Key::of(&self.old))
                || self.reader.stored_whole(&self.old, self.owner).is_some())
    }
}

impl WriteRequest {
    fn file(&self) -> File {
        match self.owner {
            Owner::Block { objset, object, .. } => (objset, object),
            Owner::Pool { .. } => (0, 0),
        }
    }

    /// Whether an equal checksum of `old` means an equal block, stored as this one would be.
    fn trusts(&self, old: &Normal) -> bool {
        let copies = match self.stream {
            Stream::Data(_) => 1,
            Stream::Metadata => 2,
        };
        old.checksum_kind.is_cryptographic()
            && old.checksum_kind == self.checksum
            && old.copies().count() == copies
            && (old.kind, old.level) == (self.kind, 0)
    }

    /// Whether `old` is what this request would put into its pointer.
    fn makes(&self, ready: &Ready, old: &BlockPtr) -> bool {
        match (ready, old) {
            (Ready::Zero, BlockPtr::Hole(_)) => true,
            (Ready::Embedded { compression, payload }, BlockPtr::Embedded(old)) => {
                (*compression, payload) == (old.compression, &old.payload)
                    && (old.kind, old.level) == (self.kind, 0)
                    && old.lsize as usize == self.data.len()
            }
            _ => false,
        }
    }

    /// Whether a block that is stored otherwise may stay all the same, if it holds the same.
    fn may_keep(&self, old: &BlockPtr) -> bool {
        let (is_alike, made_by) = match old {
            BlockPtr::Hole(_) => return false,
            BlockPtr::Embedded(old) => ((old.kind, old.level) == (self.kind, 0), old.compression),
            BlockPtr::Normal(old) => (self.trusts(old), old.compression),
        };
        let is_asked_for = match &self.compression {
            // Content that is stored as it is has one form only.
            Method::As(Compression::Off) => false,
            Method::As(compression) => is_same_algorithm(compression.id(), made_by),
            Method::Auto(_) => matches!(made_by, ID_LZ4 | ID_ZSTD),
            // This form and no other.
            Method::Made(_) => false,
        };
        is_alike && is_asked_for && old.lsize() as usize == self.data.len()
    }
}

impl Group<'_> {
    /// The pointer that a request replaces, if its block may stay.
    fn replaced<'r>(&self, request: &'r WriteRequest) -> Option<&'r BlockPtr> {
        // Who writes a damaged block anew mends it.
        request.replaces.as_ref().filter(|_| !self.pool.reports.log.may_be_damaged(request.owner))
    }

    /// A look that is likely to find the same, and then saves compressing.
    pub(crate) fn look_first(&self, request: &WriteRequest) -> Option<Look> {
        let old = self.replaced(request)?;
        let is_likely = self.st.looks.trusts(request.file()) && request.may_keep(old);
        is_likely.then(|| self.look(request, old))
    }

    /// The block that stays if the new one is stored in the same bytes.
    pub(crate) fn standing(&self, request: &WriteRequest) -> Option<Standing> {
        let Some(BlockPtr::Normal(old)) = self.replaced(request) else { return None };
        let may_stay = request.trusts(old) && old.lsize as usize == request.data.len();
        may_stay.then(|| Standing {
            reader: self.pool.reader.clone(),
            old: old.clone(),
            owner: request.owner,
        })
    }

    fn look(&self, request: &WriteRequest, old: &BlockPtr) -> Look {
        Look { reader: self.pool.reader.clone(), old: old.clone(), owner: request.owner }
    }

    /// What becomes of a block that is ready.
    pub(crate) fn judge(&mut self, request: &WriteRequest, tried: Tried) -> Judged {
        let file = request.file();
        let (ready, differs, stands) = match tried {
            Tried::Same(old) => {
                self.st.looks.found(file, true);
                return self.keep(request, old);
            }
            Tried::New { ready, differs, stands } => (ready, differs, stands),
        };
        if differs {
            self.st.looks.found(file, false);
        }
        let Some(old) = self.replaced(request) else { return Judged::New(ready) };
        if stands || request.makes(&ready, old) {
            return self.keep(request, old.clone());
        }
        let may_be_same = !differs && !matches!(ready, Ready::Zero) && request.may_keep(old);
        if may_be_same && self.st.looks.is_due(file) {
            let is_same = self.look(request, old).finds(&request.data);
            self.st.looks.found(file, is_same);
            if is_same {
                return self.keep(request, old.clone());
            }
        }
        Judged::New(ready)
    }

    fn keep(&self, request: &WriteRequest, old: BlockPtr) -> Judged {
        // A hole saves nothing that would have been stored.
        if !old.is_hole() {
            self.pool.store.counters.nopwrite_blocks.add(1);
            self.pool.store.counters.nopwrite_bytes.add(request.data.len() as u64);
        }
        Judged::Stays(old)
    }
}
