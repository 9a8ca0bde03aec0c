//! Records of one file in another, without a copy.
//!
//! A record of the source that is stored, and that no txg is changing, is shared: the target gets a dirty record
//! with the stored block's pointer. Other records are copied: those that are not stored yet share their bytes in
//! memory until one is changed. Holes become holes.
//!
//! The source may be in another set: of another data set, or of a snapshot.
//!
//! Invariant: a pointer is given only if it is in the source's tree, and no txg before the clone's removes it. So
//! the block cannot be freed before the sync of the clone's txg, which counts references and frees together. A
//! snapshot is closed in the txg that destroys it, before any of its blocks is freed.

use super::SharedTable;
use crate::dirty::{DirtyBlock, DirtyContent};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::lifetime_hints::ReplacedPointers;
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::tree::lookup;
use std::ops::Range;
use std::sync::Arc;
use terrane_codec::compress::algorithm::{ID_LZ4, ID_ZSTD};
use terrane_codec::{Compression, CompressionPolicy, is_same_algorithm};
use terrane_format::BlockPtr;
use terrane_format::block_ptr::Normal;
use terrane_pool::Tx;
use terrane_wire::Txg;

/// How records came into the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClonedRecords {
    /// Records that share their block.
    pub shared: u64,
    /// Stored bytes of those.
    pub shared_bytes: u64,
    /// Records that were copied.
    pub copied: u64,
    /// Holes.
    pub holes: u64,
}

/// What a clone can take of a range, as of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClonableRecords {
    /// Records from the first on.
    pub count: u64,
    /// Those of them that must be copied.
    pub copies: u64,
    /// Stored bytes of those that can be shared.
    pub shared_bytes: u64,
}

/// How a record can be cloned.
enum Source {
    Hole,
    Shared(Arc<Normal>),
    /// Its bytes must be copied.
    Bytes,
}

impl ObjectSet {
    /// How many of these records of a file a clone can take, from the first on, if it copies at most
    /// `copies_max`.
    pub fn clonable_records(
        &self,
        source: &Object,
        records: Range<u64>,
        copies_max: u64,
    ) -> Result<ClonableRecords, ObjectError> {
        let mut found = ClonableRecords::default();
        for source in self.sources(source, records, self.open_txg())? {
            match source {
                Source::Bytes if found.copies == copies_max => break,
                Source::Bytes => found.copies += 1,
                Source::Shared(ptr) => found.shared_bytes += ptr.allocated_bytes(),
                Source::Hole => {}
            }
            found.count += 1;
        }
        Ok(found)
    }

    /// Whether a file has stored records that are shared.
    pub fn has_shared_records(&self, file: &Object) -> Result<bool, ObjectError> {
        if self.shared().totals().blocks == 0 {
            return Ok(false);
        }
        let block_bytes = u64::from(file.block_size());
        let mut block = 0u64;
        while let Some(at) = file.next_data(block.saturating_mul(block_bytes))? {
            block = at / block_bytes;
            if file.stored_pointer(block)?.is_some_and(|ptr| self.shared().is_shared(&ptr)) {
                return Ok(true);
            }
            block += 1;
        }
        Ok(false)
    }

    /// Puts records of `source` into `target` from record `to` on. Both have blocks of the same size, and no
    /// other thread writes them meanwhile. The transaction has reserved what is `expected`, metadata of the target's
    /// tree and of the table. `None`: more would have to be copied or shared, and nothing was changed.
    pub fn clone_records(
        &self,
        tx: &Tx,
        (source, records): (&Arc<Object>, Range<u64>),
        (target, to): (&Arc<Object>, u64),
        expected: ClonableRecords,
    ) -> Result<Option<ClonedRecords>, ObjectError> {
        let sources = self.sources(source, records.clone(), tx.txg())?;
        let mut cloned = ClonedRecords::default();
        for found in &sources {
            match found {
                Source::Hole => cloned.holes += 1,
                Source::Bytes => cloned.copied += 1,
                Source::Shared(ptr) => {
                    cloned.shared += 1;
                    cloned.shared_bytes += ptr.allocated_bytes();
                }
            }
        }
        if cloned.copied > expected.copies || cloned.shared_bytes > expected.shared_bytes {
            return Ok(None);
        }
        self.check_paths(target, to..to.saturating_add(sources.len() as u64))?;
        let mut new = Vec::with_capacity(sources.len());
        for (record, found) in records.zip(sources) {
            new.push(match found {
                Source::Hole => None,
                Source::Shared(ptr) => Some(DirtyBlock::Given(ptr)),
                Source::Bytes => source.raw_block(record)?.map(DirtyBlock::Data),
            });
        }
        if cloned.shared > 0 {
            self.shared().begin_clone(tx)?;
        }
        target.put_clones(tx, to, new)?;
        Ok(Some(cloned))
    }

    /// How each of these records can be cloned by the txg.
    fn sources(&self, source: &Object, records: Range<u64>, txg: Txg) -> Result<Vec<Source>, ObjectError> {
        let may_share = source.kind() == ObjectKind::File && SharedTable::is_in_force(self.pool());
        loop {
            source.table()?;
            let dnode = source.synced_dnode()?;
            let mut pointers = ReplacedPointers::new(self.pool(), source.tree_id(), &dnode);
            let mut stored = Vec::new();
            for record in records.clone() {
                match pointers.pointer(record) {
                    Some(ptr) => stored.push(ptr),
                    // Unreadable, or the tree was replaced and its old blocks reclaimed.
                    None => match lookup(self.pool(), source.tree_id(), &dnode, 0, record) {
                        Ok(ptr) => stored.push(ptr),
                        Err(error) if source.state.read().dnode.root == dnode.root => {
                            return Err(error.into());
                        }
                        Err(_) => break,
                    },
                }
            }
            let state = source.state.read();
            if state.destroyed
                || state.dnode.root != dnode.root
                || stored.len() as u64 != records.end - records.start
            {
                continue;
            }
            let is_new = |ptr: &Arc<Normal>, record| {
                let open = state.open.as_ref().filter(|open| open.txg == txg);
                open.and_then(|open| open.blocks.get(&record)).and_then(DirtyBlock::given) == Some(ptr)
            };
            let source_of = |(record, ptr)| match (state.dirty_content(record), ptr) {
                (DirtyContent::Zeros, _) | (DirtyContent::Unchanged, BlockPtr::Hole(_)) => Source::Hole,
                (DirtyContent::Unchanged, BlockPtr::Normal(normal))
                    if may_share && self.would_store(&normal) && normal.lsize <= dnode.block_bytes =>
                {
                    Source::Shared(Arc::new(normal))
                }
                // A clone of an earlier txg may yet be lost to damage, and its block freed.
                (DirtyContent::Given(ptr), _) if is_new(&ptr, record) => Source::Shared(ptr),
                _ => Source::Bytes,
            };
            let mut sources: Vec<Source> = records.clone().zip(stored).map(source_of).collect();
            drop(state);
            let mut countable = self.shared().countable();
            for source in &mut sources {
                if matches!(source, Source::Shared(ptr) if !countable.contains(ptr.addrs[0])) {
                    *source = Source::Bytes;
                }
            }
            return Ok(sources);
        }
    }

    /// Whether a copy of the block would be stored in the same form under today's policy.
    fn would_store(&self, block: &Normal) -> bool {
        let policy = self.policy();
        let is_same_compression = match policy.compression {
            CompressionPolicy::Fixed(Compression::Off) => block.compression == Compression::Off.id(),
            // What does not compress is stored as it is.
            _ if block.compression == Compression::Off.id() => true,
            CompressionPolicy::Fixed(compression) => is_same_algorithm(compression.id(), block.compression),
            CompressionPolicy::Auto(_) => matches!(block.compression, ID_LZ4 | ID_ZSTD),
        };
        let of_file = (block.kind, block.level) == (ObjectKind::File as u8, 0) && block.copies().count() == 1;
        is_same_compression && of_file && block.checksum_kind == policy.checksum
    }

    /// The sync needs the path to each block. So an unreadable one fails here.
    fn check_paths(&self, target: &Object, records: Range<u64>) -> Result<(), ObjectError> {
        let dnode = target.synced_dnode()?;
        let mut pointers = ReplacedPointers::new(self.pool(), target.tree_id(), &dnode);
        for record in records {
            if pointers.pointer(record).is_none() {
                lookup(self.pool(), target.tree_id(), &dnode, 0, record)?;
            }
        }
        Ok(())
    }
}
