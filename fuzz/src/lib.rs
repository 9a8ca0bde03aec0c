//! Shared code of the fuzz targets: how input becomes a store, and how input is mutated.
//!
//! An input of the ZAP targets is a form, a program and an image. The form has 4 bytes: how the image is split into blocks, and how the
//! ZAP may grow. The program has [`PROGRAM_BYTES`]: changes of four bytes each. Its place is fixed, so that mutations of it leave the
//! image in place, where offsets mean something. For the same reason most mutations change one of the three and keep its length.

#[path = "../../crates/zap/tests/oracle/mod.rs"]
mod oracle;

use terrane_zap::{MemStore, ZapOptions};

pub mod attributes;
pub mod blocks;
pub mod bucket;
pub mod dataset;
pub mod log;
pub mod pool;

const FORM_BYTES: usize = 4;
/// Sixteen changes: enough to convert a ZAP up and down again.
pub const PROGRAM_BYTES: usize = 64;
pub const IMAGE_AT: usize = FORM_BYTES + PROGRAM_BYTES;

pub const MICRO_TYPE: u64 = 0x8000_0000_0000_0003;
pub const FAT_TYPE: u64 = 0x8000_0000_0000_0001;

/// How a target reads its input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Micro,
    Tiny,
    Fat,
    /// As block 0 says, and the program is run.
    Changes,
}

/// Builds an input in the layout that the targets expect.
pub fn input(block_shift: u8, limits: [u8; 3], program: &[u8], image: &[u8]) -> Vec<u8> {
    let mut input = vec![block_shift, limits[0], limits[1], limits[2]];
    input.extend_from_slice(program);
    input.resize(IMAGE_AT, 0);
    input.extend_from_slice(image);
    input
}

/// Runs one input. Panics if a promise is broken.
pub fn run(reading: Reading, data: &[u8]) {
    let (Some(form), Some(program), Some(image)) =
        (data.get(..FORM_BYTES), data.get(FORM_BYTES..IMAGE_AT), data.get(IMAGE_AT..))
    else {
        return;
    };
    if image.len() < 64 {
        return;
    }
    let mut image = image.to_vec();
    // Otherwise most inputs would be of another kind, or of none. An input of the other byte order is left alone.
    let is_swapped = image[7] == (MICRO_TYPE & 0xff) as u8 || image[7] == (FAT_TYPE & 0xff) as u8;
    match reading {
        _ if is_swapped => {}
        Reading::Micro => {
            image[..8].copy_from_slice(&MICRO_TYPE.to_le_bytes());
            image[24] = 0;
        }
        Reading::Tiny => {
            image[..8].copy_from_slice(&MICRO_TYPE.to_le_bytes());
            image[24] = 1;
        }
        Reading::Fat => image[..8].copy_from_slice(&FAT_TYPE.to_le_bytes()),
        Reading::Changes => {}
    }
    let block_size = match form[0] {
        shift @ 9..=14 => 1 << shift,
        // One block, of a legal size or not.
        odd if odd & 1 == 1 => image.len(),
        _ => image.len().next_multiple_of(512),
    };
    let mut options = ZapOptions::new(0x5a17);
    options.micro_max_bytes = 512 * (1 + usize::from(form[1] % 16));
    options.name_bytes_max = 1024;
    options.tiny = form[3] & 1 == 0;
    options.fat_block_shift = 9 + u32::from(form[2] % 5);
    let program = if reading == Reading::Changes { program } else { &[] };
    oracle::exercise(MemStore::from_image(&image, block_size), options, program);
}

/// Mutates one part of an input. In three of four cases its length is kept.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    if size <= IMAGE_AT || seed % 4 == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let part = match seed / 4 % 8 {
        0 => 0..FORM_BYTES,
        1 | 2 => FORM_BYTES..IMAGE_AT,
        _ => {
            // A window of the image, so that insertions and deletions in it move little.
            let at = IMAGE_AT + (seed as usize / 32) * 8 % (size - IMAGE_AT);
            let len = 8usize << (seed / 32 % 6);
            at..size.min(at + len)
        }
    };
    let len = part.len();
    libfuzzer_sys::fuzzer_mutate(&mut data[part], len, len);
    size
}

/// Defines a target that reads its input as given.
#[macro_export]
macro_rules! target {
    ($reading:ident) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::run($crate::Reading::$reading, data));
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate(data, size, max_size, seed)
        });
    };
}
