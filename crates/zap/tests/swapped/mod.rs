//! ZAPs of the other byte order: which bytes of a block are swapped.

/// Swaps the fields of a structure, given their widths in order; 1 is a byte.
fn swap_fields(raw: &mut [u8], widths: &[usize]) {
    let mut at = 0;
    for width in widths {
        raw[at..at + width].reverse();
        at += width;
    }
}

fn swap_slots(raw: &mut [u8]) {
    let (chunk, words) = if raw[24] == 1 { (1 << raw[25], usize::from(raw[26])) } else { (64, 1) };
    swap_fields(raw, &[8, 8, 8]);
    for slot in raw[64..].chunks_exact_mut(chunk) {
        swap_fields(slot, &vec![8; words]);
        swap_fields(&mut slot[8 * words..], &[4]);
    }
}

fn swap_leaf(raw: &mut [u8]) {
    let buckets = raw.len() / 32;
    swap_fields(raw, &[8, 8, 8, 4, 2, 2, 2, 2]);
    swap_fields(&mut raw[48..], &vec![2; buckets]);
    for chunk in raw[48 + 2 * buckets..].chunks_exact_mut(24) {
        match chunk[0] {
            252 => swap_fields(chunk, &[1, 1, 2, 2, 2, 2, 2, 4, 8]),
            _ => swap_fields(&mut chunk[22..], &[2]),
        }
    }
}

/// An image as a machine of the other byte order would have written it.
pub fn swapped(mut image: Vec<u8>, block_size: usize) -> Vec<u8> {
    let is_fat = image[0] == 1;
    for (number, block) in image.chunks_exact_mut(block_size).enumerate() {
        match block[..8] {
            _ if !is_fat => swap_slots(block),
            [0, 0, 0, 0, 0, 0, 0, 0x80] if number > 0 => swap_leaf(block),
            _ => block.chunks_exact_mut(8).for_each(<[u8]>::reverse),
        }
    }
    image
}
