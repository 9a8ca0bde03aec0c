//! Zones that are in use, and their directories.

use super::{ROWS_MAX, addr_text};
use crate::failure::{Failure, Outcome};
use serde::Serialize;
use terrane_format::record::Run;
use terrane_format::rows::Phase;
use terrane_pool::Pool;
use terrane_pool::inspect::ZoneView;
use terrane_store::explain::EntryState;
use terrane_wire::ZoneSeq;

pub(super) fn phase_text(phase: Phase) -> String {
    match phase {
        Phase::Open => "open".to_owned(),
        Phase::Full => "full".to_owned(),
        Phase::Emptied(txg) => format!("emptied in {txg}"),
        Phase::Reclaimed => "reclaimed".to_owned(),
        Phase::Suspect => "suspect".to_owned(),
    }
}

/// A zone that is in use; sizes are bytes.
#[derive(Serialize)]
pub struct ZoneRow {
    seq: u64,
    class: &'static str,
    device: u16,
    zone: u32,
    phase: String,
    capacity: u64,
    claimed: u64,
    live: u64,
    opened: u64,
    moved_runs: usize,
    runs: Vec<RunRow>,
}

/// Survivors that moved together.
#[derive(Serialize)]
struct RunRow {
    first: u32,
    last: u32,
    zone: u64,
    part_end: u64,
    live: u64,
}

pub fn zones(pool: &Pool) -> Vec<ZoneRow> {
    let row = |zone: ZoneView| {
        let run = |run: &Run| RunRow {
            first: run.first,
            last: run.last,
            zone: run.dest.0,
            part_end: run.part_end(),
            live: run.live(),
        };
        let runs: Vec<RunRow> = zone.runs.iter().map(run).collect();
        ZoneRow {
            seq: zone.seq.0,
            class: zone.class.name(),
            device: zone.home.device.0,
            zone: zone.home.zone.0,
            phase: phase_text(zone.phase),
            capacity: zone.capacity,
            claimed: zone.claimed,
            live: zone.live,
            opened: zone.opened.0,
            moved_runs: runs.len(),
            runs,
        }
    };
    pool.zones().into_iter().map(row).collect()
}

/// A block that was written into a zone.
#[derive(Serialize)]
pub struct EntryRow {
    offset: u64,
    birthplace: String,
    psize: u32,
    crc: String,
    birth: u64,
    owner: String,
    siblings: String,
    standing: &'static str,
}

/// The directory of a zone: what was written into it, and what became of it.
pub fn zone(pool: &Pool, seq: u64) -> Outcome<Vec<EntryRow>> {
    let seq = ZoneSeq(seq);
    if !pool.zones().iter().any(|zone| zone.seq == seq) {
        return Err(Failure::refused(
            format_args!("zone {seq}"),
            "a zone of this pool",
            "none of that number",
            "`terrane debug zone POOL` lists them",
        ));
    }
    let rows = pool.zone_directory(seq)?.into_iter().take(ROWS_MAX).map(|(entry, standing)| {
        let siblings: Vec<String> = entry.other_copies.iter().map(|addr| addr_text(*addr)).collect();
        EntryRow {
            offset: entry.offset,
            birthplace: addr_text(entry.identity),
            psize: entry.psize,
            crc: format!("{:08x}", entry.crc),
            birth: entry.birth.0,
            owner: terrane_store::reports::owner_text(entry.owner),
            siblings: siblings.join(" "),
            standing: standing_text(standing),
        }
    });
    Ok(rows.collect())
}

/// The state of a block as `debug zone` shows it.
pub fn standing_text(state: EntryState) -> &'static str {
    match state {
        EntryState::Live => "live",
        EntryState::Dead => "dead",
        EntryState::Moved => "moved",
        EntryState::Unexplained => "unexplained",
    }
}
