//! The check of a whole ZAP.
//!
//! Operations validate only what they touch. The check reads everything, recomputes what can be recomputed, and goes
//! on after damage, so that it reports as much as can be read. `terrane check` runs it on every directory, and the
//! model tests after every step.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::{ARRAY, ChunkSet, ENTRY, FREE, Leaf, NONE};
use crate::fat::table;
use crate::index::Index;
use crate::key::{Key, KeyRef};
use crate::slots::{self, BlockKind, Slots};
use crate::store::Store;
use std::collections::BTreeSet;
use terrane_wire::Corrupt;

/// Further damage is counted and not kept: a report must not need more memory than the ZAP.
const DAMAGE_KEPT: usize = 1000;

/// The findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries found: valid slots that are in use, or the entries of leaves that parsed.
    pub entries: u64,
    /// Leaf blocks of a fat ZAP that parsed; 0 for micro and tiny.
    pub leaves: u64,
    /// The first thousand findings.
    pub damage: Vec<Corrupt>,
    /// The number of all findings.
    pub damage_count: u64,
    /// A structure that only a later version reads; it was not checked.
    pub unsupported: Option<String>,
}

impl Report {
    /// Whether the whole ZAP was checked and no damage found.
    pub fn is_clean(&self) -> bool {
        self.damage_count == 0 && self.unsupported.is_none()
    }

    fn add(&mut self, damage: Corrupt) {
        self.damage_count = self.damage_count.saturating_add(1);
        if self.damage.len() < DAMAGE_KEPT {
            self.damage.push(damage);
        }
    }

    fn expect<T: PartialEq + std::fmt::Display>(
        &mut self,
        at: impl std::fmt::Display,
        what: &'static str,
        expected: T,
        found: T,
    ) {
        if expected != found {
            self.add(Corrupt::new(at, what, expected, found));
        }
    }

    /// Returns a good value, and reports a bad one.
    fn note<T>(&mut self, result: Result<T, Corrupt>) -> Option<T> {
        result.map_err(|damage| self.add(damage)).ok()
    }

    fn note_header<T>(&mut self, result: Result<T, Error<Corrupt>>) -> Option<T> {
        match result {
            Ok(good) => Some(good),
            Err(Error::Store(damage)) => {
                self.add(damage);
                None
            }
            Err(other) => {
                self.unsupported = Some(other.to_string());
                None
            }
        }
    }
}

pub(crate) fn check<S: Store + ?Sized>(store: &S, index: Option<&Index>) -> Result<Report, Error<S::Error>> {
    let mut report = Report::default();
    if store.block_count() == 0 {
        return Ok(report);
    }
    let block_0 = store.read(0)?;
    match report.note_header(slots::block_kind(&block_0)) {
        Some(BlockKind::Slots) => check_slots(&mut report, &block_0, store.block_count(), index),
        Some(BlockKind::Fat) => {
            if let Some(header) = report.note_header(Header::parse(&block_0, store.block_count())) {
                check_fat(&mut report, store, &header)?;
            }
        }
        None => {}
    }
    Ok(report)
}

fn check_slots(report: &mut Report, raw: &[u8], block_count: u64, index: Option<&Index>) {
    let Some(slots) = report.note_header(Slots::parse(raw, block_count)) else { return };
    let (mut places, mut names) = (BTreeSet::new(), BTreeSet::new());
    for used in slots.used_slots() {
        let Some((number, slot)) = report.note(used) else { continue };
        let at = format!("block 0 slot {number}");
        report.entries += 1;
        let hash = slots.hash(slot.name());
        if slots.norm.validate(KeyRef::Name(slot.name())).is_err() {
            report.add(Corrupt::new(&at, "name", "UTF-8 (names are normalized)", "invalid UTF-8"));
        }
        if !places.insert((hash, slot.cd())) {
            report.add(Corrupt::new(&at, "differentiator", "unique for its hash", slot.cd()));
        }
        if !names.insert(slot.name()) {
            report.add(Corrupt::new(&at, "name", "unique", String::from_utf8_lossy(slot.name())));
        }
    }
    for (number, slot) in slots.slots().enumerate() {
        let at = format_args!("block 0 slot {number}");
        report.expect(at, "nonzero padding bytes", 0, slot.stray_bytes());
    }
    let stray = slots.tail().iter().filter(|b| **b != 0).count();
    report.expect("block 0", "nonzero bytes after the last slot", 0, stray);
    let (Some(index), Ok(built)) = (index, Index::build(&slots)) else { return };
    if let Err(damage) = index.check() {
        report.add(damage);
    }
    if *index != built {
        report.add(Corrupt::new("index", "elements", "the entries of the block", "others"));
    }
}

/// A run of equal pointers. A leaf must have exactly one.
#[derive(Clone, Copy)]
struct PointerRun {
    first: u64,
    count: u64,
    leaf: u64,
}

fn check_fat<S: Store + ?Sized>(
    report: &mut Report,
    store: &S,
    header: &Header,
) -> Result<(), Error<S::Error>> {
    let mut seen = BTreeSet::new();
    let mut run: Option<PointerRun> = None;
    table::for_each_pointer(store, header, |first, leaf| {
        match &mut run {
            Some(run) if run.leaf == leaf => run.count += 1,
            _ => {
                if let Some(complete) = run.replace(PointerRun { first, count: 1, leaf }) {
                    check_run(report, store, header, complete, &mut seen)?;
                }
            }
        }
        Ok(())
    })?;
    if let Some(last) = run {
        check_run(report, store, header, last, &mut seen)?;
    }
    report.expect("block 0", "leaf count", report.leaves, header.num_leafs);
    report.expect("block 0", "entry count", report.entries, header.num_entries);
    check_next_table(report, store, header)
}

fn check_run<S: Store + ?Sized>(
    report: &mut Report,
    store: &S,
    header: &Header,
    run: PointerRun,
    seen: &mut BTreeSet<u64>,
) -> Result<(), Error<S::Error>> {
    let at = format!("pointer table entry {}", run.first);
    let result = table::validate_pointer(header, store.block_count(), run.first, run.leaf);
    let Some(block) = report.note(result) else { return Ok(()) };
    if !seen.insert(block) {
        report.add(Corrupt::new(&at, "leaf block", "in one range of pointers", block));
        return Ok(());
    }
    // It may still be a leaf: the next steps of the doubling would overwrite it.
    if header.is_next_table(block) {
        report.add(Corrupt::new(&at, "leaf block", "outside of the next table", block));
    }
    let raw = store.read(block)?;
    let Some(leaf) = report.note(Leaf::parse(&raw, block, header)) else { return Ok(()) };
    let owned = table::range_of(header, leaf.prefix, leaf.prefix_len);
    report.expect(&at, "first pointer of a leaf", owned.start, run.first);
    report.expect(&at, "pointers to a leaf", owned.end - owned.start, run.count);
    report.leaves += 1;
    check_leaf(report, &leaf, header);
    Ok(())
}

/// Blocks copied so far must equal their source, with each pointer twice.
fn check_next_table<S: Store + ?Sized>(
    report: &mut Report,
    store: &S,
    header: &Header,
) -> Result<(), Error<S::Error>> {
    if !header.is_growing() {
        return Ok(());
    }
    for copied in 0..header.table_blks_copied {
        let old = store.read(header.table_blk + copied)?;
        let next = header.table_nextblk + 2 * copied;
        let new = [store.read(next)?, store.read(next + 1)?];
        let doubled = old.chunks_exact(8).flat_map(|p| [p, p]);
        if !doubled.eq(new.iter().flat_map(|block| block.chunks_exact(8))) {
            let at = format_args!("blocks {next} and {} (next pointer table)", next + 1);
            report.add(Corrupt::new(at, "pointers", "each table pointer twice", "others"));
        }
    }
    Ok(())
}

fn check_leaf(report: &mut Report, leaf: &Leaf<'_>, header: &Header) {
    let mut seen = ChunkSet::new();
    let (mut entries, mut arrays) = (0usize, 0usize);
    for bucket in 0..leaf.geometry.buckets() {
        let mut cd_before = 0;
        let (mut places, mut keys) = (BTreeSet::new(), BTreeSet::<Key>::new());
        for found in leaf.chain(bucket) {
            let Some(found) = report.note(found) else { break };
            let entry = found.entry;
            if !seen.insert(entry.chunk) {
                report.add(leaf.damage("ENTRY chunk", "in one chain", entry.chunk));
                break;
            }
            entries += 1;
            report.note(leaf.validate_bucket(&entry, bucket));
            if entry.cd < cd_before {
                report.add(leaf.damage(
                    "differentiators of a chain",
                    format_args!("{cd_before} or more"),
                    entry.cd,
                ));
            }
            cd_before = entry.cd;
            if !places.insert((entry.hash, entry.cd)) {
                report.add(leaf.damage("differentiator", "unique for its hash", entry.cd));
            }
            let chains = [
                leaf.array_chunk_numbers(entry.name_chunk, leaf.name_len(&entry)),
                leaf.array_chunk_numbers(entry.value_chunk, entry.value_len()),
            ];
            for chain in chains {
                for chunk in report.note(chain).unwrap_or_default() {
                    arrays += 1;
                    if !seen.insert(chunk) {
                        report.add(leaf.damage("ARRAY chunk", "in one chain", chunk));
                    }
                }
            }
            let Some(key) = report.note(leaf.key(&entry)) else { continue };
            let hash = header.hash(key.as_ref());
            if header.norm.validate(key.as_ref()).is_err() {
                report.add(leaf.damage("name", "UTF-8 (names are normalized)", "invalid UTF-8"));
            }
            if hash != entry.hash {
                let (expected, found) = (format!("{hash:#x}"), format!("{:#x}", entry.hash));
                report.add(leaf.damage("hash of a name", expected, found));
            }
            if !keys.insert(key) {
                report.add(leaf.damage("name", "unique", format_args!("chunk {}", entry.chunk)));
            }
        }
    }
    report.entries += entries as u64;
    let at = format!("block {} (leaf)", leaf.block);
    report.expect(&at, "entries", entries, leaf.nentries);
    if let Some((free, next)) = report.note(leaf.peek_free_chunks(leaf.nfree)) {
        if next != NONE {
            report.add(leaf.damage("link of the last free chunk", "the end of the list", next));
        }
        for chunk in free {
            if !seen.insert(chunk) {
                report.add(leaf.damage("FREE chunk", "in no other chain", chunk));
            }
        }
    }
    let all = leaf.geometry.chunks();
    report.expect(&at, "chunks in chains and free", all, entries + arrays + leaf.nfree);
    let kinds =
        |kind| (0..all).filter_map(|c| u16::try_from(c).ok()).filter(|c| leaf.kind(*c) == kind).count();
    report.expect(&at, "ENTRY chunks", entries, kinds(ENTRY));
    report.expect(&at, "ARRAY chunks", arrays, kinds(ARRAY));
    report.expect(&at, "FREE chunks", leaf.nfree, kinds(FREE));
}
