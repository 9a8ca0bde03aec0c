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
//! the requested one, the old block may be read, verified and compared. When,
//! [`NopwriteSampling`](terrane_space::policy::NopwriteSampling) decides. With another algorithm it is not: a
//! user who changes `compression` and rewrites a file wants it stored in the new form.
//!
//! Invariant: a pointer is kept only if its checksum is cryptographic and of the requested kind. A checksum
//! that can be forged, or can collide by accident, never proves equal content. The block was written or
//! verified since the import, and is not known to be damaged.

use crate::pool::{Stream, TxgSync, WriteRequest};
use std::sync::Arc;
use terrane_codec::compress::algorithm::{ID_LZ4, ID_ZSTD};
use terrane_codec::{Compression, is_same_algorithm, is_zero};
use terrane_format::block_ptr::Key;
use terrane_format::block_ptr::{BlockPtr, Normal};
use terrane_format::directory::Owner;
use terrane_space::policy::nopwrite_sampling::File;
use terrane_store::pipeline::{DecodeContext, EncodedBlock};
use terrane_store::reader::BlockReader;
use terrane_txg::levels::Method;

/// What a worker made of a block.
pub(crate) enum EncodeOutcome {
    /// Nothing: the old block was compared, and holds the same content.
    Same(BlockPtr),
    /// `differs`: the old block was compared, and holds other content. `is_same`: it is stored in the same
    /// bytes and can be read.
    New { ready: EncodedBlock, differs: bool, is_same: bool },
}

/// Result for a block.
pub(crate) enum WriteDecision {
    /// Nothing changed: this pointer is kept.
    Keep(BlockPtr),
    New(EncodedBlock),
}

/// A comparison with the block that a request replaces, for a worker.
pub(crate) struct Comparison {
    reader: Arc<BlockReader>,
    old: BlockPtr,
    owner: Owner,
}

impl Comparison {
    /// The old pointer, if its block can be read and holds `data`.
    pub fn into_match(self, data: &[u8]) -> Option<BlockPtr> {
        self.matches(data).then_some(self.old)
    }

    fn matches(&self, data: &[u8]) -> bool {
        // Zeros become a hole, whatever the old block holds.
        if is_zero(data) {
            return false;
        }
        let mut held = vec![0; data.len()];
        let is_read = match &self.old {
            BlockPtr::Normal(old) if !self.reader.cache.holds_from_pool(Key::of(old)) => {
                let stored = self.reader.read_all_copies(old, self.owner);
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
pub(crate) struct OldBlock {
    reader: Arc<BlockReader>,
    old: Normal,
    owner: Owner,
}

impl OldBlock {
    /// Whether the old block is stored in these encoded bytes, and can be read.
    pub fn is_same_as(&self, encoded: &EncodedBlock) -> bool {
        let EncodedBlock::Stored { compression, bytes, checksum, .. } = encoded else { return false };
        (*compression, *checksum) == (self.old.compression, self.old.checksum)
            && self.old.psize as usize == bytes.len()
            && (self.reader.cache.holds_from_pool(Key::of(&self.old))
                || self.reader.read_all_copies(&self.old, self.owner).is_some())
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
    fn produces(&self, ready: &EncodedBlock, old: &BlockPtr) -> bool {
        match (ready, old) {
            (EncodedBlock::Zero, BlockPtr::Hole(_)) => true,
            (EncodedBlock::Embedded { compression, payload }, BlockPtr::Embedded(old)) => {
                (*compression, payload) == (old.compression, &old.payload)
                    && (old.kind, old.level) == (self.kind, 0)
                    && old.lsize as usize == self.data.len()
            }
            _ => false,
        }
    }

    /// Whether a block in other bytes may be kept if its content is the same.
    fn may_keep(&self, old: &BlockPtr) -> bool {
        let (is_comparable, made_by) = match old {
            BlockPtr::Hole(_) => return false,
            BlockPtr::Embedded(old) => ((old.kind, old.level) == (self.kind, 0), old.compression),
            BlockPtr::Normal(old) => (self.trusts(old), old.compression),
        };
        let is_asked_for = match &self.compression {
            // Uncompressed content has one form only.
            Method::Fixed(Compression::Off) => false,
            Method::Fixed(compression) => is_same_algorithm(compression.id(), made_by),
            Method::Auto(_) => matches!(made_by, ID_LZ4 | ID_ZSTD),
            // The caller wants exactly this form.
            Method::PreEncoded(_) => false,
        };
        is_comparable && is_asked_for && old.lsize() as usize == self.data.len()
    }
}

impl TxgSync<'_> {
    /// The pointer that a request replaces, if its block may be kept.
    fn replaced<'r>(&self, request: &'r WriteRequest) -> Option<&'r BlockPtr> {
        // Rewriting a damaged block repairs it.
        request.replaces.as_ref().filter(|_| !self.pool.reports.log.may_be_damaged(request.owner))
    }

    /// A comparison before compression, if it will probably find equal content and so save compressing.
    pub(crate) fn compare_first(&self, request: &WriteRequest) -> Option<Comparison> {
        let old = self.replaced(request)?;
        let is_likely = self.st.nopwrite_sampling.expects_match(request.file()) && request.may_keep(old);
        is_likely.then(|| self.comparison(request, old))
    }

    /// The block to keep if the new one is stored in the same bytes.
    pub(crate) fn old_block(&self, request: &WriteRequest) -> Option<OldBlock> {
        let Some(BlockPtr::Normal(old)) = self.replaced(request) else { return None };
        let may_keep = request.trusts(old) && old.lsize as usize == request.data.len();
        may_keep.then(|| OldBlock {
            reader: self.pool.reader.clone(),
            old: old.clone(),
            owner: request.owner,
        })
    }

    fn comparison(&self, request: &WriteRequest, old: &BlockPtr) -> Comparison {
        Comparison { reader: self.pool.reader.clone(), old: old.clone(), owner: request.owner }
    }

    /// Decides whether an encoded block is stored, or the old pointer kept.
    pub(crate) fn decide(&mut self, request: &WriteRequest, tried: EncodeOutcome) -> WriteDecision {
        let file = request.file();
        let (ready, differs, is_same) = match tried {
            EncodeOutcome::Same(old) => {
                self.st.nopwrite_sampling.note_result(file, true);
                return self.keep(request, old);
            }
            EncodeOutcome::New { ready, differs, is_same } => (ready, differs, is_same),
        };
        if differs {
            self.st.nopwrite_sampling.note_result(file, false);
        }
        let Some(old) = self.replaced(request) else { return WriteDecision::New(ready) };
        if is_same || request.produces(&ready, old) {
            return self.keep(request, old.clone());
        }
        let may_be_same = !differs && !matches!(ready, EncodedBlock::Zero) && request.may_keep(old);
        if may_be_same && self.st.nopwrite_sampling.is_due(file) {
            let is_same = self.comparison(request, old).matches(&request.data);
            self.st.nopwrite_sampling.note_result(file, is_same);
            if is_same {
                return self.keep(request, old.clone());
            }
        }
        WriteDecision::New(ready)
    }

    fn keep(&self, request: &WriteRequest, old: BlockPtr) -> WriteDecision {
        // A kept hole is not counted: it would have stored nothing.
        if !old.is_hole() {
            self.pool.store.counters.nopwrite_blocks.add(1);
            self.pool.store.counters.nopwrite_bytes.add(request.data.len() as u64);
        }
        WriteDecision::Keep(old)
    }
}
