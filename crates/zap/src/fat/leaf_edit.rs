//! Changing a leaf.
//!
//! Each change first reads all that it will touch, and only then writes, so damage found on the way leaves the block
//! as it was. The order in which chunks are allocated and freed decides the bytes, which must equal OpenZFS's. An
//! entry takes its ENTRY chunk, then the name's, then the value's, each from the head of the free list. A freed chain
//! is put before the head and keeps its inner order.

use crate::bytes::{get_u16, put, put_u16, put_u64};
use crate::fat::header::{Geometry, Header};
use crate::fat::leaf::{
    ARRAY, ARRAY_BYTES, ARRAY_NEXT_AT, BLOCK_TYPE, CHUNK_BYTES, ChunkSet, ENTRY, ENTRY_NEXT_AT, EntryChunk,
    FEW_CHUNKS, FREE, Found, Leaf, LeafHeader, MAGIC, NONE, array_chunks,
};
use terrane_wire::{Corrupt, Field};

const NFREE_AT: usize = 28;
const NENTRIES_AT: usize = 30;
const FREELIST_AT: usize = 34;

/// A new entry in stored form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry<'a> {
    pub hash: u64,
    pub cd: u32,
    pub name: &'a [u8],
    pub name_ints: usize,
    pub value: &'a [u8],
    pub value_int_size: u8,
    pub value_ints: usize,
}

impl NewEntry<'_> {
    pub fn chunks(&self) -> usize {
        1 + array_chunks(self.name.len()) + array_chunks(self.value.len())
    }
}

/// Makes the block an empty leaf: all chunks free, linked in order.
pub(crate) fn init(raw: &mut [u8], header: &Header, prefix: u64, prefix_len: u32) {
    let geometry = header.geometry;
    raw.fill(0);
    let chunks = to_u16(geometry.chunks());
    let head = LeafHeader {
        block_type: BLOCK_TYPE,
        pad: 0,
        prefix,
        magic: MAGIC,
        nfree: chunks,
        nentries: 0,
        prefix_len: u16::try_from(prefix_len).unwrap_or(u16::MAX),
        freelist: 0,
        flags: header.leaf_flags(),
        pad2: [0; 11],
    };
    put(raw, 0, &head.encode());
    clear_buckets(raw, geometry);
    for chunk in 0..chunks {
        let next = if chunk + 1 == chunks { NONE } else { chunk + 1 };
        put_free(raw, geometry, chunk, next);
    }
}

pub(crate) fn clear_buckets(raw: &mut [u8], geometry: Geometry) {
    for bucket in 0..geometry.buckets() {
        put_u16(raw, geometry.bucket_at(bucket), NONE);
    }
}

/// Changes the prefix of the leaf.
pub(crate) fn put_prefix(raw: &mut [u8], prefix: u64, prefix_len: u32) {
    put_u64(raw, 16, prefix);
    put_u16(raw, 32, u16::try_from(prefix_len).unwrap_or(u16::MAX));
}

/// Adds an entry. The caller has checked that enough chunks are free.
pub(crate) fn insert(raw: &mut [u8], block: u64, header: &Header, new: &NewEntry<'_>) -> Result<(), Corrupt> {
    let leaf = Leaf::parse(raw, block, header)?;
    let (taken, freelist) = leaf.peek_free_chunks(new.chunks())?;
    let (link_at, next) = place_in_chain(&leaf, new.hash, new.cd)?;
    let (nfree, nentries, geometry) = (leaf.nfree, leaf.nentries, leaf.geometry);
    let Some((&entry_chunk, arrays)) = taken.split_first() else { return Ok(()) };
    let (name, value) = arrays.split_at(array_chunks(new.name.len()).min(arrays.len()));
    put_array(raw, geometry, name, new.name);
    put_array(raw, geometry, value, new.value);
    let entry = EntryChunk {
        chunk: entry_chunk,
        next,
        value_int_size: new.value_int_size,
        name_chunk: name.first().copied().unwrap_or(NONE),
        name_ints: to_u16(new.name_ints),
        value_chunk: value.first().copied().unwrap_or(NONE),
        value_ints: to_u16(new.value_ints),
        cd: new.cd,
        hash: new.hash,
    };
    put_entry(raw, geometry, &entry);
    put_u16(raw, link_at, entry_chunk);
    put_counts(raw, nfree - taken.len(), nentries + 1, freelist);
    Ok(())
}

/// Removes an entry that [`Leaf::find`] found in these bytes.
pub(crate) fn remove(raw: &mut [u8], block: u64, header: &Header, found: &Found) -> Result<(), Corrupt> {
    let leaf = Leaf::parse(raw, block, header)?;
    let (name, value) = chains_of(&leaf, &found.entry)?;
    let nentries = leaf.nentries.checked_sub(1).ok_or_else(|| leaf.damage("entries", "at least 1", 0))?;
    let mut list = FreeList::of(&leaf);
    let geometry = leaf.geometry;
    list.fits(&leaf, name.len() + value.len() + 1, nentries)?;
    put_u16(raw, found.link_at, found.entry.next);
    list.free_chunks(raw, geometry, &value);
    list.free_chunks(raw, geometry, &name);
    list.free_chunks(raw, geometry, &[found.entry.chunk]);
    put_counts(raw, list.nfree, nentries, list.head);
    Ok(())
}

/// Replaces the value of an entry, which stays in its chunk and keeps its differentiator.
pub(crate) fn replace_value(
    raw: &mut [u8],
    block: u64,
    header: &Header,
    found: &Found,
    new: &NewEntry<'_>,
) -> Result<(), Corrupt> {
    let leaf = Leaf::parse(raw, block, header)?;
    let old = leaf.array_chunk_numbers(found.entry.value_chunk, found.entry.value_len())?;
    validate_distinct(&leaf, &old, &[])?;
    let needed = array_chunks(new.value.len());
    let more = needed.saturating_sub(old.len());
    // The old chain goes to the head of the free list first, and the new one is taken from there.
    let (fresh, _) = leaf.peek_free_chunks(more)?;
    let mut list = FreeList::of(&leaf);
    let (geometry, nentries) = (leaf.geometry, leaf.nentries);
    list.fits(&leaf, old.len(), nentries)?;
    let taken: Vec<u16> = old.iter().chain(&fresh).copied().take(needed).collect();
    list.free_chunks(raw, geometry, &old);
    if let Some(last) = taken.last() {
        list.head = get_u16(raw, geometry.chunk_at(*last) + ARRAY_NEXT_AT);
        list.nfree = list.nfree.saturating_sub(taken.len());
    }
    put_array(raw, geometry, &taken, new.value);
    let entry = EntryChunk {
        value_int_size: new.value_int_size,
        value_chunk: taken.first().copied().unwrap_or(NONE),
        value_ints: to_u16(new.value_ints),
        ..found.entry
    };
    put_entry(raw, geometry, &entry);
    put_counts(raw, list.nfree, nentries, list.head);
    Ok(())
}

/// The offset of the link to change, and its present target. The new entry goes before the first one with a greater
/// differentiator.
fn place_in_chain(leaf: &Leaf<'_>, hash: u64, cd: u32) -> Result<(usize, u16), Corrupt> {
    let bucket = leaf.bucket(hash);
    let mut place = (leaf.geometry.bucket_at(bucket), get_u16(leaf.raw, leaf.geometry.bucket_at(bucket)));
    for found in leaf.chain(bucket) {
        let entry = found?.entry;
        if entry.cd > cd {
            break;
        }
        place = (leaf.geometry.chunk_at(entry.chunk) + ENTRY_NEXT_AT, entry.next);
    }
    Ok(place)
}

/// The chunk numbers of an entry's name and value; refused if they share one.
fn chains_of(leaf: &Leaf<'_>, entry: &EntryChunk) -> Result<(Vec<u16>, Vec<u16>), Corrupt> {
    let name = leaf.array_chunk_numbers(entry.name_chunk, leaf.name_len(entry))?;
    let value = leaf.array_chunk_numbers(entry.value_chunk, entry.value_len())?;
    validate_distinct(leaf, &name, &value)?;
    Ok((name, value))
}

/// A chunk freed twice would make the free list a cycle.
fn validate_distinct(leaf: &Leaf<'_>, name: &[u16], value: &[u16]) -> Result<(), Corrupt> {
    let (few, mut seen) = (name.len() + value.len() <= FEW_CHUNKS, ChunkSet::new());
    for (at, chunk) in name.iter().chain(value).enumerate() {
        let is_new = match few {
            true => !name.iter().chain(value).take(at).any(|before| before == chunk),
            false => seen.insert(*chunk),
        };
        if !is_new {
            return Err(leaf.damage("chain of a name or value", "no chunk twice", chunk));
        }
    }
    Ok(())
}

/// The free list while chains are added to it.
pub(crate) struct FreeList {
    pub head: u16,
    pub nfree: usize,
}

impl FreeList {
    pub fn of(leaf: &Leaf<'_>) -> Self {
        FreeList { head: leaf.freelist, nfree: leaf.nfree }
    }

    /// Whether `more` chunks can be freed. The chunks that `nentries` entries need at least cannot be free.
    pub fn fits(&self, leaf: &Leaf<'_>, more: usize, nentries: usize) -> Result<(), Corrupt> {
        let (nfree, nfree_max) =
            (self.nfree.saturating_add(more), leaf.geometry.chunks().saturating_sub(nentries));
        if nfree > nfree_max {
            return Err(leaf.damage("free chunks", format_args!("at most {nfree_max}"), nfree));
        }
        Ok(())
    }

    pub fn free_chunks(&mut self, raw: &mut [u8], geometry: Geometry, chunks: &[u16]) {
        for chunk in chunks.iter().rev() {
            put_free(raw, geometry, *chunk, self.head);
            self.head = *chunk;
        }
        self.nfree += chunks.len();
    }
}

fn put_free(raw: &mut [u8], geometry: Geometry, chunk: u16, next: u16) {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0] = FREE;
    next.put(&mut bytes[ARRAY_NEXT_AT..]);
    put(raw, geometry.chunk_at(chunk), &bytes);
}

fn put_array(raw: &mut [u8], geometry: Geometry, chunks: &[u16], data: &[u8]) {
    let nexts = chunks.iter().skip(1).copied().chain([NONE]);
    for ((chunk, next), piece) in chunks.iter().zip(nexts).zip(data.chunks(ARRAY_BYTES)) {
        put_array_chunk(raw, geometry, *chunk, next, piece);
    }
}

/// Writes up to 21 bytes of a name or a value; the rest of the chunk is zeros.
pub(crate) fn put_array_chunk(raw: &mut [u8], geometry: Geometry, chunk: u16, next: u16, piece: &[u8]) {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0] = ARRAY;
    put(&mut bytes, 1, piece);
    next.put(&mut bytes[ARRAY_NEXT_AT..]);
    put(raw, geometry.chunk_at(chunk), &bytes);
}

pub(crate) fn put_entry(raw: &mut [u8], geometry: Geometry, entry: &EntryChunk) {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0] = ENTRY;
    bytes[1] = entry.value_int_size;
    entry.next.put(&mut bytes[2..4]);
    entry.name_chunk.put(&mut bytes[4..6]);
    entry.name_ints.put(&mut bytes[6..8]);
    entry.value_chunk.put(&mut bytes[8..10]);
    entry.value_ints.put(&mut bytes[10..12]);
    entry.cd.put(&mut bytes[12..16]);
    entry.hash.put(&mut bytes[16..24]);
    put(raw, geometry.chunk_at(entry.chunk), &bytes);
}

pub(crate) fn put_counts(raw: &mut [u8], nfree: usize, nentries: usize, freelist: u16) {
    put_u16(raw, NFREE_AT, to_u16(nfree));
    put_u16(raw, NENTRIES_AT, to_u16(nentries));
    put_u16(raw, FREELIST_AT, freelist);
}

/// A count or a chunk number as 16 bits. All of them are bounded by a leaf's chunks, or were compared with much lower
/// limits.
pub(crate) fn to_u16(value: usize) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}
