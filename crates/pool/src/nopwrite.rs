//! nopwrite: an overwrite that changes nothing keeps the old block and its pointer.
//!
//! A request may name the pointer that it replaces. If the pointer's checksum says that the new block would
//! be stored in the same bytes, nothing is appended. The pointer is returned as is, so nothing above it
//! changes either.
//!
//! A checksum tells what was stored, not what is left of it. A user may rewrite a file because it was
//! damaged. So a block that is not in memory is read from its device first. That is one read instead of a
//! write and all that follows from it.
//!
//! Another level, or another compressor version, stores the same content in other bytes. If the algorithm is
//! the requested one, the old block may be read, verified and compared
//! ([`Looks`](terrane_space::policy::Looks) decides when). With another algorithm it is not: a user who
//! changes `compression` and rewrites a file wants it stored in the new form.
//!
//! Invariant: a pointer is kept only if its checksum is cryptographic and of the requested kind. A checksum
//! that can be forged, or can collide by accident, never stands for content. The block was written or
//! verified since the import, and is not known to be damaged.

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
    /// Nothing: the old block was compared, and holds the same content.
    Same(BlockPtr),
    /// `differs`: the old block was compared, and holds other content. `stands`: it is stored in the same
    /// bytes and can be read.
    New { ready: Ready, differs: bool, stands: bool },
}

/// Result for a block.
pub(crate) enum Judged {
    /// Nothing changed: this pointer is kept.
    Stays(BlockPtr),
    New(Ready),
}

/// A comparison with the block that a request replaces, for a worker.
pub(crate) struct Look {
    reader: Arc<BlockReader>,
    old: BlockPtr,
    owner: Owner,
}

impl Look {
    /// The old pointer, if its block can be read and holds `data`.
    pub fn take(self, data: &[u8]) -> Option<BlockPtr> {
        self.finds(data).then_some(self.old)
    }

    fn finds(&self, data: &[u8]) -> bool {
        // Zeros become a hole, whatever the old block holds.
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
            // If the block cannot be read, the reader has logged it, and it is rewritten.
            old => self.reader.read_into(old, self.owner, &mut held).is_ok(),
        };
        is_read && held == data
    }
}

/// The old block of a request, if its checksum is trusted, for a worker.
pub(crate) struct Standing {
    reader: Arc<BlockReader>,
    old: Normal,
    owner: Owner,
}

impl Standing {
    /// Whether the old block is stored in the bytes that were made, and can be read.
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

    /// Whether this request would produce exactly the pointer `old`.
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

    /// Whether a block in other bytes may be kept if its content is the same.
    fn may_keep(&self, old: &BlockPtr) -> bool {
        let (is_alike, made_by) = match old {
            BlockPtr::Hole(_) => return false,
            BlockPtr::Embedded(old) => ((old.kind, old.level) == (self.kind, 0), old.compression),
            BlockPtr::Normal(old) => (self.trusts(old), old.compression),
        };
        let is_asked_for = match &self.compression {
            // Uncompressed content has one form only.
            Method::As(Compression::Off) => false,
            Method::As(compression) => is_same_algorithm(compression.id(), made_by),
            Method::Auto(_) => matches!(made_by, ID_LZ4 | ID_ZSTD),
            // The caller wants exactly this form.
            Method::Made(_) => false,
        };
        is_alike && is_asked_for && old.lsize() as usize == self.data.len()
    }
}

impl Group<'_> {
    /// The pointer that a request replaces, if its block may be kept.
    fn replaced<'r>(&self, request: &'r WriteRequest) -> Option<&'r BlockPtr> {
        // Rewriting a damaged block repairs it.
        request.replaces.as_ref().filter(|_| !self.pool.reports.log.may_be_damaged(request.owner))
    }

    /// A comparison before compression, if it will probably find equal content and so save compressing.
    pub(crate) fn look_first(&self, request: &WriteRequest) -> Option<Look> {
        let old = self.replaced(request)?;
        let is_likely = self.st.looks.trusts(request.file()) && request.may_keep(old);
        is_likely.then(|| self.look(request, old))
    }

    /// The block to keep if the new one is stored in the same bytes.
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

    /// Decides whether an encoded block is stored, or the old pointer kept.
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
        // A kept hole is not counted: it would have stored nothing.
        if !old.is_hole() {
            self.pool.store.counters.nopwrite_blocks.add(1);
            self.pool.store.counters.nopwrite_bytes.add(request.data.len() as u64);
        }
        Judged::Stays(old)
    }
}
