//! ZAPs written by a machine of the other byte order.
//!
//! Terrane writes little-endian only; OpenZFS writes the order of its machine. If block 0 is swapped, all operations
//! run on a copy of the whole ZAP in little-endian order. The first operation makes the copy. So no other module
//! handles byte order, and other ZAPs pay one comparison. The first change of a one-block ZAP rewrites it in
//! little-endian order. A change of a fat one is refused: the cost of rewriting it has no bound that a change could
//! reserve.
//!
//! The fields of a block follow from its type. Headers and pointer tables are words; leaves and slots have fields of
//! several widths; names and stored values are bytes.

use crate::bytes::{get_u64, put};
use crate::error::Error;
use crate::fat::header::{self, Geometry, Header};
use crate::fat::leaf::{self, ARRAY, ARRAY_NEXT_AT, CHUNK_BYTES, ENTRY, FREE};
use crate::slots::{self, Shape, SlotsHeader};
use crate::store::{MemStore, Store, edit};

/// Larger ZAPs of the other order are refused, because the copy is in memory.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// Whether this is block 0 of a ZAP of the other order.
pub(crate) fn is_swapped(block_0: &[u8]) -> bool {
    [slots::BLOCK_TYPE, header::BLOCK_TYPE].contains(&get_u64(block_0, 0).swap_bytes())
}

/// A copy of the whole ZAP in little-endian order.
pub(crate) fn copy<S: Store + ?Sized>(store: &S) -> Result<MemStore, Error<S::Error>> {
    let mut block_0 = store.read(0)?.to_vec();
    let block_count = store.block_count();
    let blocks = match get_u64(&block_0, 0).swap_bytes() {
        slots::BLOCK_TYPE => {
            swap_slots(&mut block_0);
            // More than one is damage, which the copy must show.
            block_count.min(2)
        }
        _ => {
            swap_words(&mut block_0);
            Header::parse(&block_0, block_count).map_err(Error::lift)?.freeblk.min(block_count)
        }
    };
    let bytes = blocks.saturating_mul(store.block_size() as u64);
    if bytes > COPY_BYTES_MAX {
        let found = format!("{bytes} bytes, maximum {COPY_BYTES_MAX}");
        return Err(Error::Unsupported { what: "a large ZAP of the other byte order", found });
    }
    let mut copy = MemStore::new();
    copy.set_block_size(store.block_size()).map_err(Error::damage)?;
    let geometry = Geometry::of_block(store.block_size());
    for block in 0..blocks {
        let mut raw = if block == 0 { std::mem::take(&mut block_0) } else { store.read(block)?.to_vec() };
        match geometry {
            _ if block == 0 => {}
            Ok(geometry) if get_u64(&raw, 0).swap_bytes() == leaf::BLOCK_TYPE => {
                swap_leaf(&mut raw, geometry)
            }
            _ => swap_words(&mut raw),
        }
        let written = edit(&mut copy, block, |place| {
            put(place, 0, &raw);
            Ok(())
        });
        written.map_err(Error::damage)?;
    }
    Ok(copy)
}

fn swap_at<const N: usize>(raw: &mut [u8], at: usize) {
    if let Some(field) = raw.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<N>) {
        field.reverse();
    }
}

fn swap_words(raw: &mut [u8]) {
    raw.chunks_exact_mut(8).for_each(<[u8]>::reverse);
}

/// An unknown shape is left for the parser to report.
fn swap_slots(raw: &mut [u8]) {
    [0, 8, 16].into_iter().for_each(|at| swap_at::<8>(raw, at));
    let Some(shape) = SlotsHeader::decode(raw).and_then(|header| Shape::of(&header).ok()) else { return };
    for slot in raw.get_mut(SlotsHeader::SIZE..).unwrap_or(&mut []).chunks_exact_mut(shape.chunk_bytes()) {
        (0..shape.value_ints()).for_each(|word| swap_at::<8>(slot, 8 * word));
        swap_at::<4>(slot, 8 * shape.value_ints());
    }
}

fn swap_leaf(raw: &mut [u8], geometry: Geometry) {
    [0, 8, 16].into_iter().for_each(|at| swap_at::<8>(raw, at));
    swap_at::<4>(raw, 24);
    [28, 30, 32, 34].into_iter().for_each(|at| swap_at::<2>(raw, at));
    (0..geometry.buckets()).for_each(|bucket| swap_at::<2>(raw, geometry.bucket_at(bucket)));
    for chunk in raw.get_mut(geometry.chunk_at(0)..).unwrap_or(&mut []).chunks_exact_mut(CHUNK_BYTES) {
        match chunk.first() {
            Some(&ENTRY) => {
                [2, 4, 6, 8, 10].into_iter().for_each(|at| swap_at::<2>(chunk, at));
                swap_at::<4>(chunk, 12);
                swap_at::<8>(chunk, 16);
            }
            Some(&(ARRAY | FREE)) => swap_at::<2>(chunk, ARRAY_NEXT_AT),
            _ => {}
        }
    }
}
