//! Writes the seed corpus: small images, attribute lists and buffers, and compressed blocks made by OpenZFS, and images made here, each
//! image with a few programs. Labels, records, tables and batches of the log are made here as well.
//!
//! `seeds VECTORS... CORPUS`: directories of vectors, and the output directory, which gets one directory per target.

#[path = "../../crates/zap/tests/swapped/mod.rs"]
mod swapped;

use flate2::read::GzDecoder;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use terrane_fuzz::attributes::openzfs_table;
use terrane_fuzz::{FAT_TYPE, MICRO_TYPE, PROGRAM_BYTES, input};
use terrane_zap::{Flags, MemStore, Store, Zap, ZapOptions};

const IMAGE_BYTES_MAX: usize = 8 << 10;
/// A spill block without attributes.
const EMPTY_BUFFER: [u8; 8] = [0x5a, 0x50, 0x2f, 0, 1, 4, 0, 0];

fn main() -> std::io::Result<()> {
    let mut paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let corpus = paths.pop().expect("seeds VECTORS... CORPUS");
    let mut images = own();
    for dir in &paths {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            images.extend(vector(&path)?);
            attributes(&path, &corpus)?;
            block(&path, &corpus)?;
        }
    }
    for (name, shift, image) in &images {
        let word = |at: usize| {
            image.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
        };
        let kind = match word(0) {
            MICRO_TYPE if image[24] == 0 => "micro",
            MICRO_TYPE => "tiny",
            FAT_TYPE => "fat",
            _ => continue,
        };
        save(&corpus, kind, name, &input(*shift, [0; 3], &[], image))?;
        let block_size = if kind == "fat" { 1 << shift } else { image.len() };
        let swapped = input(*shift, [0; 3], &programs()[0], &swapped::swapped(image.clone(), block_size));
        save(&corpus, kind, &format!("{name}-turned"), &swapped)?;
        save(&corpus, "changes", &format!("{name}-turned"), &swapped)?;
        for (p, program) in programs().iter().enumerate() {
            save(
                &corpus,
                "changes",
                &format!("{name}-{p}"),
                &input(*shift, [p as u8, p as u8, 1], program, image),
            )?;
        }
    }
    let made = [
        terrane_fuzz::pool::seeds(),
        terrane_fuzz::dataset::seeds(),
        terrane_fuzz::log::seeds(),
        terrane_fuzz::bucket::seeds(),
    ];
    for (target, name, input) in made.into_iter().flatten() {
        save(&corpus, target, &name, &input)?;
    }
    println!("{} images", images.len());
    Ok(())
}

fn save(corpus: &Path, target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let dir = corpus.join(target);
    fs::create_dir_all(&dir)?;
    fs::write(dir.join(name), bytes)
}

/// An image of a manifest's directory. Its block size follows from its kind.
fn vector(path: &Path) -> std::io::Result<Option<(String, u8, Vec<u8>)>> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
    if !name.contains(".bin") {
        return Ok(None);
    }
    let mut image = Vec::new();
    match name.ends_with(".gz") {
        true => GzDecoder::new(File::open(path)?).read_to_end(&mut image)?,
        false => File::open(path)?.read_to_end(&mut image)?,
    };
    let shift = if image.first() == Some(&3) {
        0
    } else if name.contains("4k") {
        12
    } else {
        14
    };
    Ok((image.len() <= IMAGE_BYTES_MAX).then_some((name, shift, image)))
}

/// A stored block, with its content beside it.
fn block(path: &Path, corpus: &Path) -> std::io::Result<()> {
    let ending = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let Some(target) = terrane_fuzz::blocks::target_of(ending) else { return Ok(()) };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let lsize = fs::metadata(path.with_extension("in"))?.len() as usize;
    save(corpus, target, name, &terrane_fuzz::blocks::input(&fs::read(path)?, lsize))
}

/// A packed list, or a bonus area with the spill block of its file.
fn attributes(path: &Path, corpus: &Path) -> std::io::Result<()> {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let raw = fs::read(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xdr") if raw.len() <= IMAGE_BYTES_MAX => save(corpus, "nvlist", name, &raw),
        Some("bonus") => {
            // The largest spill block is truncated: it is a single value.
            let mut spill = fs::read(path.with_extension("spill")).unwrap_or(EMPTY_BUFFER.to_vec());
            spill.truncate(IMAGE_BYTES_MAX);
            for (kind, table) in [("usual", Vec::new()), ("own", openzfs_table())] {
                let input = terrane_fuzz::attributes::input(&table, &raw, &spill);
                save(corpus, "attributes", &format!("{name}-{kind}"), &input)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Fat ZAPs with blocks so small that mutations hit structures, some with external tables, and one whose table is being doubled.
fn own() -> Vec<(String, u8, Vec<u8>)> {
    let mut images = Vec::new();
    let words = Flags::HASH64.union(Flags::UINT64_KEY);
    for (flags, shift, entries) in [
        (Flags::NONE, 9, 5u64),
        (Flags::NONE, 10, 14),
        (Flags::HASH64, 9, 0),
        (Flags::HASH64, 9, 3),
        (Flags::HASH64, 9, 40),
        (Flags::HASH64, 9, 90),
        (Flags::HASH64, 9, 170),
        (Flags::HASH64, 10, 120),
        (words, 9, 12),
        (words.union(Flags::PRE_HASHED_KEY), 9, 60),
    ] {
        let mut store = MemStore::new();
        let options = ZapOptions { flags, fat_block_shift: shift, ..ZapOptions::new(0x5a17) };
        let mut zap = Zap::create(&mut store, options).expect("legal options");
        for i in 0..entries {
            let added = match flags.has(Flags::UINT64_KEY) {
                true => zap.add(&mut store, &[i.wrapping_mul(0x9e37_79b9_7f4a_7c15), i][..], &[i]),
                false => zap.add(&mut store, &format!("name {i}"), &[i, i]),
            };
            added.expect("an entry fits");
        }
        let kind = store.block_size().trailing_zeros() as u8;
        images.push((format!("own-{}-{shift}-{entries}", flags.to_u64()), kind, store.image()));
    }
    images
}

/// Adds, removes, updates with other widths, and a mix of all.
fn programs() -> [[u8; PROGRAM_BYTES]; 4] {
    let op = |k: usize, code: [u8; 4]| code.map(|c| c.wrapping_mul(k as u8 / 4 + 1));
    [[0, 1, 4, 3], [4, 129, 0, 0], [3, 17, 15, 1], [7, 73, 29, 5]]
        .map(|code| std::array::from_fn(|at| op(at, code)[at % 4]))
}
