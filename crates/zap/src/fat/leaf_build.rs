//! Building leaves: the two results of a split, and the result of a merge.
//!
//! Entries are taken in the order of their chunk numbers, not by bucket: that fixes the order of links. Source leaves
//! are validated as everywhere. A leaf built here is known to be sound, so its links are not validated again for each
//! of its hundreds of entries.

use crate::bytes::{get_u16, get_u32, put_u16};
use crate::fat::header::{Geometry, Header};
use crate::fat::leaf::{ChunkSet, ENTRY, ENTRY_NEXT_AT, EntryChunk, Leaf, NONE};
use crate::fat::leaf_edit::{
    FreeList, clear_buckets, init, put_array_chunk, put_counts, put_entry, put_prefix, to_u16,
};
use terrane_wire::Corrupt;

/// Offset of the differentiator in an ENTRY chunk.
const ENTRY_CD_AT: usize = 12;

/// Splits a leaf by the next bit of its hashes into the old leaf and a new one. Entries that stay keep their chunks.
/// The chunks of the others are freed as if removed one by one.
pub(crate) fn split(leaf: &Leaf<'_>, header: &Header) -> Result<(Vec<u8>, Vec<u8>), Corrupt> {
    let (geometry, prefix_len) = (leaf.geometry, leaf.prefix_len + 1);
    let high_bit = 1u64.checked_shl(64 - prefix_len).unwrap_or(0);
    let mut low = leaf.raw.to_vec();
    put_prefix(&mut low, leaf.prefix << 1, prefix_len);
    clear_buckets(&mut low, geometry);
    let mut high = LeafBuilder::new(header, leaf.prefix << 1 | 1, prefix_len);
    let mut list = FreeList::of(leaf);
    let (mut chains, mut given_back) = (Chains::default(), ChunkSet::new());
    for_each_entry(leaf, |entry| {
        if entry.hash & high_bit == 0 {
            link(&mut low, geometry, geometry.bucket(entry.hash, prefix_len), entry.chunk, entry.cd);
            return Ok(());
        }
        chains.read(leaf, entry)?;
        high.push(leaf, entry, &chains)?;
        for chunk in chains.name.iter().chain(&chains.value) {
            if !given_back.insert(*chunk) {
                return Err(leaf.damage("chain of a name or value", "no chunk twice", chunk));
            }
        }
        list.free_chunks(&mut low, geometry, &chains.value);
        list.free_chunks(&mut low, geometry, &chains.name);
        list.free_chunks(&mut low, geometry, &[entry.chunk]);
        Ok(())
    })?;
    let stay = leaf.nentries - high.entries;
    list.fits(leaf, 0, stay)?;
    put_counts(&mut low, list.nfree, stay, list.head);
    Ok((low, high.finish()))
}

/// Merges two siblings: the first one's entries, then the other's. An entry that does not belong there is refused.
pub(crate) fn merge(siblings: [&Leaf<'_>; 2], header: &Header) -> Result<Vec<u8>, Corrupt> {
    let [first, _] = siblings;
    let mut merged = LeafBuilder::new(header, first.prefix >> 1, first.prefix_len - 1);
    let mut chains = Chains::default();
    for leaf in siblings {
        for_each_entry(leaf, |entry| {
            leaf.validate_bucket(entry, leaf.bucket(entry.hash))?;
            chains.read(leaf, entry)?;
            merged.push(leaf, entry, &chains)
        })?;
    }
    Ok(merged.finish())
}

/// Passes all ENTRY chunks to `each`, by number. There must be as many as the leaf counts.
fn for_each_entry(
    leaf: &Leaf<'_>,
    mut each: impl FnMut(&EntryChunk) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let miscounted = |found: String| leaf.damage("ENTRY chunks", "equal to the entry count", found);
    let mut entries_left = leaf.nentries;
    for chunk in 0..to_u16(leaf.geometry.chunks()) {
        if leaf.kind(chunk) == ENTRY {
            entries_left = entries_left.checked_sub(1).ok_or_else(|| miscounted("more".into()))?;
            each(&leaf.entry(chunk)?)?;
        }
    }
    if entries_left != 0 { Err(miscounted(format!("{entries_left} fewer"))) } else { Ok(()) }
}

/// The chunk numbers of one entry's name and value; reused for the next entry to save allocations.
#[derive(Default)]
struct Chains {
    name: Vec<u16>,
    value: Vec<u16>,
}

impl Chains {
    fn read(&mut self, leaf: &Leaf<'_>, entry: &EntryChunk) -> Result<(), Corrupt> {
        leaf.read_chunk_numbers(entry.name_chunk, leaf.name_len(entry), &mut self.name)?;
        leaf.read_chunk_numbers(entry.value_chunk, entry.value_len(), &mut self.value)
    }
}

/// A leaf that is filled from its first chunk on.
struct LeafBuilder {
    raw: Vec<u8>,
    geometry: Geometry,
    prefix_len: u32,
    chunks: usize,
    entries: usize,
}

impl LeafBuilder {
    fn new(header: &Header, prefix: u64, prefix_len: u32) -> LeafBuilder {
        let geometry = header.geometry;
        let mut raw = vec![0; geometry.block_bytes()];
        init(&mut raw, header, prefix, prefix_len);
        LeafBuilder { raw, geometry, prefix_len, chunks: 0, entries: 0 }
    }

    fn push(&mut self, from: &Leaf<'_>, entry: &EntryChunk, chains: &Chains) -> Result<(), Corrupt> {
        let end = self.chunks + 1 + chains.name.len() + chains.value.len();
        if end > self.geometry.chunks() {
            // Chains that share chunks have together more chunks than the leaf.
            let expected = format_args!("at most {}", self.geometry.chunks());
            return Err(from.damage("chunks of all entries", expected, end));
        }
        let chunk = to_u16(self.chunks);
        let (name, value) = (chunk + 1, chunk + 1 + to_u16(chains.name.len()));
        self.copy_array(from, &chains.name, name, from.name_len(entry));
        self.copy_array(from, &chains.value, value, entry.value_len());
        let copy = EntryChunk {
            chunk,
            next: NONE,
            name_chunk: if chains.name.is_empty() { NONE } else { name },
            value_chunk: if chains.value.is_empty() { NONE } else { value },
            ..*entry
        };
        put_entry(&mut self.raw, self.geometry, &copy);
        let bucket = self.geometry.bucket(entry.hash, self.prefix_len);
        link(&mut self.raw, self.geometry, bucket, chunk, entry.cd);
        self.chunks = end;
        self.entries += 1;
        Ok(())
    }

    /// Copies chunks into consecutive ones from `first` on.
    fn copy_array(&mut self, from: &Leaf<'_>, chunks: &[u16], first: u16, len: usize) {
        let mut left = len;
        for (chunk, to) in chunks.iter().zip(first..) {
            let piece = from.array_data(*chunk, left);
            left -= piece.len();
            let next = if left == 0 { NONE } else { to + 1 };
            put_array_chunk(&mut self.raw, self.geometry, to, next, piece);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let nfree = self.geometry.chunks() - self.chunks;
        let head = if nfree == 0 { NONE } else { to_u16(self.chunks) };
        put_counts(&mut self.raw, nfree, self.entries, head);
        self.raw
    }
}

/// Links an entry into a chain built here, before the first one with a greater differentiator.
fn link(raw: &mut [u8], geometry: Geometry, bucket: usize, chunk: u16, cd: u32) {
    let mut link_at = geometry.bucket_at(bucket);
    let mut next = get_u16(raw, link_at);
    while next != NONE && get_u32(raw, geometry.chunk_at(next) + ENTRY_CD_AT) <= cd {
        link_at = geometry.chunk_at(next) + ENTRY_NEXT_AT;
        next = get_u16(raw, link_at);
    }
    put_u16(raw, geometry.chunk_at(chunk) + ENTRY_NEXT_AT, next);
    put_u16(raw, link_at, chunk);
}
