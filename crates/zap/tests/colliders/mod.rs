//! Names whose hashes agree.
//!
//! The hash of a name is affine in the name's bits, and so are its top bits. So names of one length whose
//! *differences* hash to 0 from salt 0 share these bits under every salt. Such differences are the kernel of a matrix
//! over GF(2).

use terrane_zap::hash::crc64;

/// The high nibble of every byte; any low nibble makes it printable.
const LETTERS: u8 = 0x60;

/// Different names of `len` bytes whose hashes agree in the top `bits` bits. There are at least 2^(4 `len` - `bits`)
/// of them, more if columns are dependent.
pub fn colliders(bits: u32, len: usize) -> impl Iterator<Item = Vec<u8>> {
    let kernel = kernel(bits, len);
    assert!(kernel.len() < 64 && !kernel.is_empty(), "{len} bytes give {} names", kernel.len());
    (0..1u64 << kernel.len()).map(move |which| {
        let picked = kernel.iter().enumerate().filter(|(k, _)| which >> k & 1 == 1);
        picked.fold(vec![LETTERS; len], |mut name, (_, difference)| {
            name.iter_mut().zip(difference).for_each(|(letter, flip)| *letter ^= flip);
            name
        })
    })
}

/// Differences that do not change the top `bits` bits of a hash; they are linearly independent.
fn kernel(bits: u32, len: usize) -> Vec<Vec<u8>> {
    // Rows in echelon form: the effect of a difference on the hash's top bits, and the difference.
    let mut rows: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut kernel = Vec::new();
    for bit in 0..4 * len {
        let mut difference = vec![0; len];
        difference[bit / 4] = 1u8 << (bit % 4);
        let mut effect = crc64(0, &difference) & !(u64::MAX >> bits);
        for (row, made_by) in &rows {
            if effect ^ row < effect {
                effect ^= row;
                difference.iter_mut().zip(made_by).for_each(|(a, b)| *a ^= b);
            }
        }
        if effect == 0 {
            kernel.push(difference);
        } else {
            let place = rows.partition_point(|(row, _)| *row > effect);
            rows.insert(place, (effect, difference));
        }
    }
    kernel
}

#[test]
fn colliders_collide_under_every_salt() {
    for (bits, len) in [(28, 8), (28, 12), (48, 15), (26, 9)] {
        let names: Vec<_> = colliders(bits, len).take(2000).collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len().max(16), "{bits} bits of {len} bytes");
        for salt in [1, 0xfeed_5eed_u64, u64::MAX] {
            let top = |name: &Vec<u8>| crc64(salt, name) >> (64 - bits);
            assert!(names.iter().all(|name| top(name) == top(&names[0])));
        }
        assert!(names.iter().flatten().all(|letter| letter.is_ascii_graphic()));
    }
}
