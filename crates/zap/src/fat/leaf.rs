//! Reading a leaf: the entries whose hashes begin with its prefix.
//!
//! A leaf is a small hash table of 16-bit chunk numbers and an array of 24-byte chunks. An entry has an ENTRY chunk,
//! and ARRAY chunks with 21 bytes each of its name and value; FREE chunks form a list. All are linked by number, so a
//! damaged leaf can point anywhere and in cycles. So every number is compared with the chunk count before use, every
//! chunk's type is verified, and every walk is bounded.

use crate::bytes::{get_u16, get_u32, get_u64};
use crate::fat::header::{Geometry, Header};
use crate::hash::HashBits;
use crate::key::{Key, KeyRef};
use crate::value::Value;
use terrane_wire::{Corrupt, layout};

pub(crate) const BLOCK_TYPE: u64 = 0x8000_0000_0000_0000;
pub(crate) const MAGIC: u32 = 0x2AB_1EAF;
/// So few chunks are compared with each other to find one that is named twice.
pub(crate) const FEW_CHUNKS: usize = 16;
/// Ends every chain.
pub(crate) const NONE: u16 = 0xFFFF;

pub(crate) const CHUNK_BYTES: usize = 24;
/// Data bytes of an ARRAY chunk.
pub(crate) const ARRAY_BYTES: usize = 21;
pub(crate) const ARRAY: u8 = 251;
pub(crate) const ENTRY: u8 = 252;
pub(crate) const FREE: u8 = 253;

/// Offset of a chunk's link to the next one: in ENTRY chunks, and in ARRAY and FREE chunks.
pub(crate) const ENTRY_NEXT_AT: usize = 2;
pub(crate) const ARRAY_NEXT_AT: usize = 22;

layout! {
    /// The first 48 bytes of a leaf.
    LeafHeader, 48 bytes {
        0  block_type: u64,
        8  pad: u64,
        16 prefix: u64,
        24 magic: u32,
        28 nfree: u16,
        30 nentries: u16,
        32 prefix_len: u16,
        34 freelist: u16,
        36 flags: u8,
        37 pad2: [u8; 11],
    }
}

/// Chunks for `bytes` bytes of a name or a value.
pub(crate) fn array_chunks(bytes: usize) -> usize {
    bytes.div_ceil(ARRAY_BYTES)
}

impl Geometry {
    /// Offset of a chunk in its block. The chunk number must be below [`Geometry::chunks`].
    pub fn chunk_at(self, chunk: u16) -> usize {
        LeafHeader::SIZE + 2 * self.buckets() + CHUNK_BYTES * usize::from(chunk)
    }

    /// Offset of a bucket's link.
    pub fn bucket_at(self, bucket: usize) -> usize {
        LeafHeader::SIZE + 2 * (bucket & (self.buckets() - 1))
    }

    /// The bucket of a hash in a leaf whose prefix has `prefix_len` of its bits.
    pub fn bucket(self, hash: u64, prefix_len: u32) -> usize {
        let shift = 64u32.saturating_sub(self.bucket_bits()).saturating_sub(prefix_len);
        let low = hash.checked_shr(shift).unwrap_or(0) & (self.buckets() as u64 - 1);
        usize::try_from(low).unwrap_or(0)
    }
}

/// A decoded ENTRY chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryChunk {
    pub chunk: u16,
    pub next: u16,
    pub value_int_size: u8,
    pub name_chunk: u16,
    pub name_ints: u16,
    pub value_chunk: u16,
    pub value_ints: u16,
    pub cd: u32,
    pub hash: u64,
}

impl EntryChunk {
    pub fn value_len(&self) -> usize {
        usize::from(self.value_int_size) * usize::from(self.value_ints)
    }
}

/// An entry, and the offset of the link to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub entry: EntryChunk,
    pub link_at: usize,
}

/// A leaf, its header validated. Chunks are validated when they are reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf<'a> {
    pub raw: &'a [u8],
    pub block: u64,
    pub geometry: Geometry,
    pub prefix: u64,
    pub prefix_len: u32,
    pub nfree: usize,
    pub nentries: usize,
    pub freelist: u16,
    pub hash_bits: HashBits,
    /// Width of each integer of a name in bytes: 1, or 8 if keys are words.
    pub name_int_size: usize,
}

impl<'a> Leaf<'a> {
    pub fn parse(raw: &'a [u8], block: u64, header: &Header) -> Result<Self, Corrupt> {
        let geometry = header.geometry;
        let damage =
            |what, expected: String, found: String| Corrupt::new(leaf_name(block), what, expected, found);
        let phys = LeafHeader::decode(raw).filter(|_| raw.len() == geometry.block_bytes());
        let phys = phys
            .ok_or_else(|| damage("block size", geometry.block_bytes().to_string(), raw.len().to_string()))?;
        if phys.block_type != BLOCK_TYPE {
            return Err(damage("block type", format!("{BLOCK_TYPE:#x}"), format!("{:#x}", phys.block_type)));
        }
        if phys.magic != MAGIC {
            return Err(damage("magic", format!("{MAGIC:#x}"), format!("{:#x}", phys.magic)));
        }
        let prefix_len = u32::from(phys.prefix_len);
        if prefix_len > header.table_shift {
            return Err(damage(
                "prefix length",
                format!("at most {}", header.table_shift),
                prefix_len.to_string(),
            ));
        }
        if phys.prefix >> prefix_len != 0 {
            return Err(damage("prefix", format!("below 2^{prefix_len}"), phys.prefix.to_string()));
        }
        // The flag for sorted chains must be set if names are normalized, and only then.
        if phys.flags != header.leaf_flags() {
            let expected = format!("{:#x} for the normalization in the header", header.leaf_flags());
            return Err(damage("flags", expected, format!("{:#x}", phys.flags)));
        }
        let (nfree, nentries) = (usize::from(phys.nfree), usize::from(phys.nentries));
        if nfree.saturating_add(nentries) > geometry.chunks() {
            let expected = format!("at most {} together with the entries", geometry.chunks());
            return Err(damage("free chunks", expected, format!("{nfree} and {nentries} entries")));
        }
        Ok(Leaf {
            raw,
            block,
            geometry,
            prefix: phys.prefix,
            prefix_len,
            nfree,
            nentries,
            freelist: phys.freelist,
            hash_bits: header.hash_bits(),
            name_int_size: if header.flags.has(crate::hash::Flags::UINT64_KEY) { 8 } else { 1 },
        })
    }

    /// Parses a leaf that was reached through a hash, so it must own that hash.
    pub fn parse_for(raw: &'a [u8], block: u64, header: &Header, hash: u64) -> Result<Self, Corrupt> {
        let leaf = Self::parse(raw, block, header)?;
        let expected = top_bits(hash, leaf.prefix_len);
        if leaf.prefix != expected {
            return Err(leaf.damage(
                "prefix",
                format_args!("{expected:#x}"),
                format_args!("{:#x}", leaf.prefix),
            ));
        }
        Ok(leaf)
    }

    /// A finding of damage in this leaf.
    pub fn damage(
        &self,
        what: &'static str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Corrupt {
        Corrupt::new(leaf_name(self.block), what, expected, found)
    }

    fn chunk_damage(
        &self,
        chunk: u16,
        what: &'static str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Corrupt {
        Corrupt::new(format_args!("{} chunk {chunk}", leaf_name(self.block)), what, expected, found)
    }

    /// The type of a chunk; 0, which is no type, if the chunk does not exist.
    pub fn kind(&self, chunk: u16) -> u8 {
        if usize::from(chunk) >= self.geometry.chunks() {
            return 0;
        }
        self.raw.get(self.geometry.chunk_at(chunk)).copied().unwrap_or(0)
    }

    /// Offset of a chunk, which must exist and have this type.
    pub fn chunk(&self, chunk: u16, kind: u8) -> Result<usize, Corrupt> {
        if usize::from(chunk) >= self.geometry.chunks() {
            return Err(self.damage("chunk number", format_args!("below {}", self.geometry.chunks()), chunk));
        }
        let found = self.kind(chunk);
        if found != kind {
            return Err(self.chunk_damage(chunk, "chunk type", kind, found));
        }
        Ok(self.geometry.chunk_at(chunk))
    }

    pub fn entry(&self, chunk: u16) -> Result<EntryChunk, Corrupt> {
        let at = self.chunk(chunk, ENTRY)?;
        let field = |offset: usize| at + offset;
        let entry = EntryChunk {
            chunk,
            next: get_u16(self.raw, field(ENTRY_NEXT_AT)),
            value_int_size: self.raw.get(field(1)).copied().unwrap_or(0),
            name_chunk: get_u16(self.raw, field(4)),
            name_ints: get_u16(self.raw, field(6)),
            value_chunk: get_u16(self.raw, field(8)),
            value_ints: get_u16(self.raw, field(10)),
            cd: get_u32(self.raw, field(12)),
            hash: get_u64(self.raw, field(16)),
        };
        if !matches!(entry.value_int_size, 1 | 2 | 4 | 8) {
            return Err(self.chunk_damage(chunk, "integer size", "1, 2, 4 or 8", entry.value_int_size));
        }
        if entry.cd >= self.hash_bits.cd_end() {
            let expected = format_args!("below {}", self.hash_bits.cd_end());
            return Err(self.chunk_damage(chunk, "differentiator", expected, entry.cd));
        }
        Ok(entry)
    }

    /// Entries of one bucket, in chain order.
    pub fn chain(&self, bucket: usize) -> Chain<'a> {
        let link_at = self.geometry.bucket_at(bucket);
        Chain { leaf: *self, link_at, next: get_u16(self.raw, link_at), steps_left: self.nentries }
    }

    pub fn bucket(&self, hash: u64) -> usize {
        self.geometry.bucket(hash, self.prefix_len)
    }

    pub fn find(&self, hash: u64, key: KeyRef<'_>) -> Result<Option<Found>, Corrupt> {
        for found in self.chain(self.bucket(hash)) {
            let found = found?;
            if found.entry.hash == hash && self.is_named(&found.entry, key)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The lowest differentiator that no entry with this hash has.
    pub fn lowest_cd(&self, hash: u64) -> Result<u32, Corrupt> {
        let mut used = Vec::new();
        for found in self.chain(self.bucket(hash)) {
            let entry = found?.entry;
            if entry.hash == hash {
                used.push(entry.cd);
            }
        }
        // Chains are sorted by it already, but a damaged one must not lead to a duplicate.
        used.sort_unstable();
        let mut lowest = 0;
        for cd in used {
            if cd > lowest {
                break;
            }
            lowest = cd.saturating_add(1);
        }
        Ok(lowest)
    }

    /// Chunks that are not free.
    pub fn used_chunks(&self) -> usize {
        self.geometry.chunks().saturating_sub(self.nfree)
    }

    /// Chunks of an entry, by its lengths.
    pub fn chunks_of(&self, entry: &EntryChunk) -> usize {
        1 + array_chunks(self.name_len(entry)) + array_chunks(entry.value_len())
    }

    /// Size of an entry's stored name in bytes.
    pub fn name_len(&self, entry: &EntryChunk) -> usize {
        usize::from(entry.name_ints) * self.name_int_size
    }

    fn is_named(&self, entry: &EntryChunk, key: KeyRef<'_>) -> Result<bool, Corrupt> {
        if self.name_len(entry) != key.stored_len() {
            return Ok(false);
        }
        let mut offset = 0;
        for piece in self.array(entry.name_chunk, self.name_len(entry)) {
            let (_, data) = piece?;
            if !key.matches_at(offset, data) {
                return Ok(false);
            }
            offset += data.len();
        }
        Ok(true)
    }

    /// The chunks of a name or value of `len` bytes, each with its data bytes.
    pub fn array(&self, first: u16, len: usize) -> Array<'a> {
        Array { leaf: *self, next: first, left: len, done: false }
    }

    fn array_bytes(&self, first: u16, len: usize) -> Result<Vec<u8>, Corrupt> {
        self.validate_array_len(len)?;
        let mut bytes = Vec::with_capacity(len);
        for piece in self.array(first, len) {
            bytes.extend_from_slice(piece?.1);
        }
        Ok(bytes)
    }

    pub fn array_chunk_numbers(&self, first: u16, len: usize) -> Result<Vec<u16>, Corrupt> {
        let mut numbers = Vec::new();
        self.read_chunk_numbers(first, len, &mut numbers)?;
        Ok(numbers)
    }

    /// As [`array_chunk_numbers`](Leaf::array_chunk_numbers), into `numbers`, whose content is replaced.
    pub fn read_chunk_numbers(&self, first: u16, len: usize, numbers: &mut Vec<u16>) -> Result<(), Corrupt> {
        self.validate_array_len(len)?;
        numbers.clear();
        for piece in self.array(first, len) {
            numbers.push(piece?.0);
        }
        Ok(())
    }

    /// The data of an ARRAY chunk, if `left` bytes of the name or value remain from there on.
    pub fn array_data(&self, chunk: u16, left: usize) -> &'a [u8] {
        let at = self.geometry.chunk_at(chunk) + 1;
        self.raw.get(at..).and_then(|rest| rest.get(..left.min(ARRAY_BYTES))).unwrap_or(&[])
    }

    /// A length that no leaf can hold is refused before memory is allocated for it.
    fn validate_array_len(&self, len: usize) -> Result<(), Corrupt> {
        let len_max = self.geometry.chunks() * ARRAY_BYTES;
        if len > len_max {
            return Err(self.damage("bytes of a name or value", format_args!("at most {len_max}"), len));
        }
        Ok(())
    }

    pub fn name_bytes(&self, entry: &EntryChunk) -> Result<Vec<u8>, Corrupt> {
        self.array_bytes(entry.name_chunk, self.name_len(entry))
    }

    pub fn value_bytes(&self, entry: &EntryChunk) -> Result<Vec<u8>, Corrupt> {
        self.array_bytes(entry.value_chunk, entry.value_len())
    }

    pub fn key(&self, entry: &EntryChunk) -> Result<Key, Corrupt> {
        let mut bytes = self.name_bytes(entry)?;
        if self.name_int_size == 8 {
            let words = bytes.chunks_exact(8).filter_map(<[u8]>::first_chunk);
            return Ok(Key::U64s(words.map(|w| u64::from_be_bytes(*w)).collect()));
        }
        if bytes.pop() != Some(0) || bytes.contains(&0) {
            return Err(self.chunk_damage(
                entry.chunk,
                "name",
                "terminated by its only NUL",
                "a missing or early NUL",
            ));
        }
        Ok(Key::Name(bytes))
    }

    pub fn value(&self, entry: &EntryChunk) -> Result<Value, Corrupt> {
        match self.first_integer(entry) {
            Some(one) if entry.value_int_size == 8 && entry.value_ints == 1 => Ok(Value::U64(one)),
            _ => Ok(Value::from_stored(entry.value_int_size, self.value_bytes(entry)?)),
        }
    }

    /// The first integer, which never straddles chunks. A directory lookup needs no more.
    pub fn first_integer(&self, entry: &EntryChunk) -> Option<u64> {
        let (_, data) = self.array(entry.value_chunk, entry.value_len()).next()?.ok()?;
        let big_endian = data.get(..usize::from(entry.value_int_size))?;
        Some(big_endian.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// The lowest hash above this leaf's range; `None` for the last leaf.
    pub fn first_hash_after(&self) -> Option<u64> {
        if self.prefix_len == 0 {
            return None;
        }
        let next = self.prefix.checked_add(1)?;
        if next >> self.prefix_len != 0 { None } else { next.checked_shl(64 - self.prefix_len) }
    }

    /// Verifies that an entry lies in the bucket where a lookup would search it.
    pub fn validate_bucket(&self, entry: &EntryChunk, bucket: usize) -> Result<(), Corrupt> {
        if entry.hash & !self.hash_bits.mask() != 0 {
            let expected = format_args!("{} bits", self.hash_bits.count());
            return Err(self.chunk_damage(entry.chunk, "hash", expected, format_args!("{:#x}", entry.hash)));
        }
        if top_bits(entry.hash, self.prefix_len) != self.prefix {
            let expected = format_args!("with prefix {:#x}/{}", self.prefix, self.prefix_len);
            return Err(self.chunk_damage(entry.chunk, "hash", expected, format_args!("{:#x}", entry.hash)));
        }
        if self.bucket(entry.hash) != bucket {
            return Err(self.chunk_damage(entry.chunk, "bucket", self.bucket(entry.hash), bucket));
        }
        Ok(())
    }

    /// The next `count` chunks of the free list in the order of allocation, and the chunk after them.
    pub fn peek_free_chunks(&self, count: usize) -> Result<(Vec<u16>, u16), Corrupt> {
        if count > self.nfree {
            return Err(self.damage("free chunks", format_args!("at least {count}"), self.nfree));
        }
        let mut taken = Vec::with_capacity(count);
        // A set would have to be allocated.
        let (few, mut seen) = (count <= FEW_CHUNKS, ChunkSet::new());
        let mut next = self.freelist;
        for _ in 0..count {
            let at = self.chunk(next, FREE)?;
            let is_new = if few { !taken.contains(&next) } else { seen.insert(next) };
            if !is_new {
                return Err(self.chunk_damage(next, "free list", "no chunk twice", "a cycle"));
            }
            taken.push(next);
            next = get_u16(self.raw, at + ARRAY_NEXT_AT);
        }
        Ok((taken, next))
    }
}

/// The top `bits` bits of a hash.
pub(crate) fn top_bits(hash: u64, bits: u32) -> u64 {
    hash.checked_shr(64u32.saturating_sub(bits)).unwrap_or(0)
}

fn leaf_name(block: u64) -> String {
    format!("block {block} (leaf)")
}

/// A set of chunks of a leaf.
#[derive(Clone, Debug)]
pub(crate) struct ChunkSet {
    bits: Vec<u64>,
}

impl ChunkSet {
    pub fn new() -> Self {
        ChunkSet { bits: Vec::new() }
    }

    /// Adds a chunk; returns whether it is new.
    pub fn insert(&mut self, chunk: u16) -> bool {
        let (word, bit) = (usize::from(chunk / 64), 1u64 << (chunk % 64));
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        match self.bits.get_mut(word) {
            Some(bits) if *bits & bit == 0 => {
                *bits |= bit;
                true
            }
            _ => false,
        }
    }
}

/// Walks the entries of a bucket; ends with an error after more steps than the leaf has entries.
pub(crate) struct Chain<'a> {
    leaf: Leaf<'a>,
    link_at: usize,
    next: u16,
    steps_left: usize,
}

impl Iterator for Chain<'_> {
    type Item = Result<Found, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == NONE {
            return None;
        }
        let chunk = std::mem::replace(&mut self.next, NONE);
        if self.steps_left == 0 {
            let expected = format_args!("at most {} entries", self.leaf.nentries);
            return Some(Err(self.leaf.damage(
                "bucket chain",
                expected,
                format_args!("another at chunk {chunk}"),
            )));
        }
        self.steps_left -= 1;
        let entry = match self.leaf.entry(chunk) {
            Ok(entry) => entry,
            Err(damage) => return Some(Err(damage)),
        };
        let found = Found { entry, link_at: self.link_at };
        self.link_at = self.leaf.geometry.chunk_at(chunk) + ENTRY_NEXT_AT;
        self.next = entry.next;
        Some(Ok(found))
    }
}

/// Walks the chunks of a name or value, which must end exactly after its length.
pub(crate) struct Array<'a> {
    leaf: Leaf<'a>,
    next: u16,
    left: usize,
    done: bool,
}

impl<'a> Iterator for Array<'a> {
    type Item = Result<(u16, &'a [u8]), Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.left == 0 {
            self.done = true;
            if self.next != NONE {
                let damage =
                    self.leaf.damage("link after a name or value", "the end of its chain", self.next);
                return Some(Err(damage));
            }
            return None;
        }
        let chunk = self.next;
        let at = match self.leaf.chunk(chunk, ARRAY) {
            Ok(at) => at,
            Err(damage) => {
                self.done = true;
                return Some(Err(damage));
            }
        };
        let data = self.leaf.array_data(chunk, self.left);
        self.left = self.left.saturating_sub(ARRAY_BYTES);
        self.next = get_u16(self.leaf.raw, at + ARRAY_NEXT_AT);
        Some(Ok((chunk, data)))
    }
}
