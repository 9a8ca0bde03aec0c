//! Splitting a leaf, and the growth of the table that it may need.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::{Leaf, top_bits};
use crate::fat::{blocks, leaf_build, store_header, table};
use crate::store::{Store, edit};
use terrane_wire::Corrupt;

/// If a leaf with as many prefix bits as the table has fewer free chunks, the table starts to grow early.
const GROW_BELOW_FREE_CHUNKS: usize = 20;
/// Any table may have 2 to this power pointers (1 MiB).
pub(crate) const SHIFT_ALWAYS_ALLOWED: u32 = 17;
/// Beyond that, each leaf justifies so many pointers.
const POINTERS_PER_LEAF: u64 = 64;

/// Refuses an entry for which no number of splits makes space.
///
/// Entries that agree in as many bits as a prefix may have stay in one leaf for ever. OpenZFS finds out by growing
/// the table to 512 MiB for each such insert. Here a ZAP flooded with names that collide, or nearly do, refuses the
/// next one and stays as it was.
pub(crate) fn validate_fits<E: From<Corrupt>>(
    leaf: &Leaf<'_>,
    header: &Header,
    hash: u64,
    needed: usize,
) -> Result<(), Error<E>> {
    // Bits that the table has already need no justification.
    let bits = header.table_shift.max(table_shift_limit(header));
    let mut chunks = needed;
    // Buckets are in the order of the hashes, so entries that agree in so many bits lie side by side.
    let below = u64::MAX.checked_shr(bits).unwrap_or(0);
    for bucket in leaf.bucket(hash & !below)..=leaf.bucket(hash | below) {
        for found in leaf.chain(bucket) {
            let entry = found.map_err(Error::damage)?.entry;
            if top_bits(entry.hash, bits) == top_bits(hash, bits) {
                chunks += leaf.chunks_of(&entry);
            }
        }
    }
    if chunks > leaf.geometry.chunks() { Err(Error::Full) } else { Ok(()) }
}

/// The largest table, as a power of two, that a ZAP with so many leaves may have.
///
/// Randomly hashed names need 4 to 16 pointers per leaf. Only names made to agree in many bits need more: a leaf full
/// of them, split only by its last bit, would double the table each time. So a table is limited to [`SHIFT_ALWAYS_ALLOWED`],
/// because few names with very long values can agree by chance, and beyond it to [`POINTERS_PER_LEAF`].
///
/// A leaf that is split in vain leaves an empty leaf at each bit, but to fill it again takes a leaf of names. So
/// 200,000 names, made to agree in sets that just exceed a leaf, lead to 2^19 pointers (4 MiB). In OpenZFS they would
/// lead to 2^26.
fn table_shift_limit(header: &Header) -> u32 {
    let pointers = header.num_leafs.saturating_mul(POINTERS_PER_LEAF).max(1 << SHIFT_ALWAYS_ALLOWED);
    pointers.ilog2().min(header.hash_bits().table_shift_max())
}

/// After every add and update: one step of a doubling in progress, or its first step if it is due early. Returns
/// whether the header changed. Errors are dropped: the entry is stored, and the next operation that needs the table
/// meets them.
pub(crate) fn grow_if_due<S: Store + ?Sized>(
    store: &mut S,
    header: &mut Header,
    prefix_len: u32,
    nfree: usize,
) -> bool {
    let early = || {
        let is_near = prefix_len == header.table_shift && nfree < GROW_BELOW_FREE_CHUNKS;
        is_near && header.table_shift < table_shift_limit(header)
    };
    if !header.is_growing() && !early() {
        return false;
    }
    table::grow_step(store, header).is_ok()
}

/// Splits the leaf in `block` by the next bit of its hashes, and stores the header.
pub(crate) fn split<S: Store + ?Sized>(
    store: &mut S,
    header: &mut Header,
    block: u64,
    raw: &[u8],
) -> Result<(), Error<S::Error>> {
    let leaf = Leaf::parse(raw, block, header).map_err(Error::damage)?;
    let (prefix, prefix_len) = (leaf.prefix, leaf.prefix_len);
    // A leaf that does not own the range of its prefix would take pointers from others.
    let owned = table::range_of(header, prefix, prefix_len);
    for index in [owned.start, owned.end.saturating_sub(1)] {
        let found = table::pointer(store, header, index)?;
        if found != block {
            let at = format_args!("pointer table entry {index}");
            return Err(Error::damage(Corrupt::new(at, "leaf block", block, found)));
        }
    }
    // Before anything grows: a damaged leaf changes nothing.
    let (low, high) = leaf_build::split(&leaf, header).map_err(Error::damage)?;
    while prefix_len >= header.table_shift {
        table::grow_step(store, header)?;
    }
    // From here on, every block that is needed is known to be readable.
    let moved = table::range_of(header, prefix << 1 | 1, prefix_len + 1);
    table::read_range(store, header, &moved)?;
    let high_block = blocks::allocate_leaf(store, header)?;
    store.read(high_block)?;
    header.num_leafs = header.num_leafs.saturating_add(1);
    let write = |store: &mut S, block, from: &[u8]| {
        edit(store, block, |raw| {
            raw.copy_from_slice(from);
            Ok(())
        })
    };
    write(store, high_block, &high)?;
    store_header(store, header)?;
    // The old leaf comes last. It keeps the moved entries until no pointer leads to it for them.
    let done = table::set_range(store, header, moved.clone(), high_block)
        .and_then(|()| Ok(write(store, block, &low)?));
    if done.is_err() {
        // A leaf that does not own the range of its prefix could not be split again. If this fails too, names are
        // still found.
        table::set_range(store, header, moved, block)?;
        header.num_leafs = header.num_leafs.saturating_sub(1);
        blocks::lower_freeblk(store, header, |block| block == high_block);
        store_header(store, header)?;
        store.free(high_block)?;
    }
    done
}
