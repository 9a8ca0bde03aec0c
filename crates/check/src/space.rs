//! Compares reachable with accounted space: the trees, the zone tables, and the zones' own directories.

use crate::ahead::{WINDOW, each_of};
use crate::report::{Stage, kind};
use crate::walk::{Reached, Walk};
use std::sync::Arc;
use terrane_format::directory::Entry;
use terrane_format::rows;
use terrane_format::{Addr, granule_bytes};
use terrane_object::shared::{SharedTable, SharedTotals};
use terrane_pool::Pool;
use terrane_pool::inspect::ZoneView;
use terrane_store::explain::EntryState;

/// Zones whose directories are read at a time. The parts of each name each other.
const ZONES_AHEAD: usize = 8;

/// Compares the walked blocks with zone tables and zone directories.
pub(crate) fn check_space(pool: &Arc<Pool>, shared: &SharedTable, walk: &mut Walk<'_>) {
    for corrupt in pool.check_tables() {
        walk.report.damage(kind::TABLES, &corrupt);
    }
    // The pointer that knows the owner comes first.
    walk.reached.sort_unstable_by_key(|reached| (reached.addr(), reached.is_clone(), reached.is_rounded()));
    check_references(pool, shared, walk);
    walk.reached.dedup_by(|other, first| other.addr() == first.addr() && other.is_clone());
    check_overlaps(walk);
    let zones = pool.zones();
    let total = zones.iter().map(|zone| zone.live).fold(0, u64::saturating_add);
    let mut done = 0u64;
    for (number, zone) in zones.iter().enumerate() {
        if number.is_multiple_of(ZONES_AHEAD) {
            let coming: Vec<_> = zones.iter().skip(number).take(ZONES_AHEAD).collect();
            each_of(pool, &coming, |zone| pool.read_directory_ahead(zone.seq));
        }
        let findings_before = walk.report.findings_count;
        let found = walk.by_zone.get(&zone.seq).copied().unwrap_or(0);
        walk.report.expect(
            kind::LIVE,
            format_args!("zone {} ({:?})", zone.seq, zone.class),
            found,
            zone.live,
        );
        if zone.phase != rows::Phase::Reclaimed {
            check_zone_directory(pool, walk, zone);
        }
        if zone.phase == rows::Phase::Suspect {
            if walk.report.findings_count == findings_before {
                walk.report.explained_zones += 1;
            } else {
                let at = format!("zone {}", zone.seq);
                walk.report.add(kind::SUSPECT, at, "explained by the tables", "suspect");
            }
        }
        done = done.saturating_add(zone.live);
        walk.report_progress(Stage::Zones, done, total);
    }
    for reached in walk.reached.iter().filter(|reached| !reached.is_listed()) {
        let at = format!("block born at {}", reached.addr());
        walk.report.add(kind::UNLISTED, at, format_args!("one, of {} bytes", reached.psize()), "none");
    }
}

/// Checks that each block has as many pointers as the table of shared blocks says, and counts clones.
fn check_references(pool: &Pool, shared: &SharedTable, walk: &mut Walk<'_>) {
    let mut entries = Vec::new();
    let failed = shared.for_each(&mut |addr, extra| entries.push((addr, extra)));
    let failed: Vec<String> = failed.iter().map(ToString::to_string).collect();
    let failed = [shared.unusable().into_iter().map(str::to_owned).collect(), failed].concat();
    for error in &failed {
        walk.report.add(kind::UNREADABLE, "table of shared blocks", "readable", error);
    }
    let mut entries = entries.into_iter().peekable();
    let unreached = |walk: &mut Walk<'_>, (addr, extra): (Addr, u64)| {
        let (at, expected) =
            (format!("block born at {addr}"), format!("{} references", extra.saturating_add(1)));
        walk.report.add(kind::SHARED, at, expected, "none");
    };
    let granules = |psize: u32| granule_bytes(u64::from(psize));
    let mut found = SharedTotals::default();
    let reached = std::mem::take(&mut walk.reached);
    for pointers in reached.chunk_by(|a, b| a.addr() == b.addr()) {
        let Some(first) = pointers.first() else { continue };
        let (addr, psize, count) = (first.addr(), first.psize(), pointers.len() as u64);
        while let Some(entry) = entries.next_if(|(of, _)| *of < addr) {
            unreached(walk, entry);
        }
        let extra = entries.next_if(|(of, _)| *of == addr).map_or(0, |(_, extra)| extra);
        if count != extra.saturating_add(1) && failed.is_empty() {
            let at = format!("block born at {addr}");
            let expected = match extra {
                0 => "once".to_owned(),
                _ => format!("{} references, by the table of shared blocks", extra.saturating_add(1)),
            };
            let found =
                if count == 2 && extra == 0 { "twice".to_owned() } else { format!("{count} references") };
            walk.report.add(kind::SHARED, at, expected, found);
        }
        if let Some(other) = pointers.iter().find(|other| granules(other.psize()) != granules(psize)) {
            let at = format!("block born at {addr}");
            walk.report.add(kind::SHARED, at, format_args!("{psize} bytes"), other.psize());
        }
        if first.is_clone() {
            walk.count_copy(psize);
            // Not in a zone: reported for each pointer.
            if let Ok((zone, _, _)) = pool.locate(addr, psize) {
                walk.count_in_zone(zone, psize);
            }
        }
        if extra > 0 {
            let bytes = granule_bytes(u64::from(psize));
            found.blocks += 1;
            found.references = found.references.saturating_add(extra);
            found.block_bytes = found.block_bytes.saturating_add(bytes);
            found.saved_bytes = found.saved_bytes.saturating_add(bytes.saturating_mul(extra));
        }
    }
    walk.reached = reached;
    entries.for_each(|entry| unreached(walk, entry));
    if failed.is_empty() {
        let show = |all: SharedTotals| {
            format!("{}, {}, {}, {}", all.blocks, all.references, all.block_bytes, all.saved_bytes)
        };
        walk.report.expect(
            kind::SHARED,
            "sums of the table of shared blocks",
            show(found),
            show(shared.totals()),
        );
    }
}

/// Checks that no two blocks share bytes.
fn check_overlaps(walk: &mut Walk<'_>) {
    let mut last: Option<Reached> = None;
    for reached in &walk.reached {
        let at = || format!("block born at {}", reached.addr());
        if let Some(last) = last.filter(|last| last.addr().seq() == reached.addr().seq()) {
            let end = last.addr().offset() + granule_bytes(u64::from(last.psize()));
            // More pointers than references are reported already.
            if last.addr() != reached.addr() && end > reached.addr().offset() {
                let found = format!("overlapping the block born at {}", last.addr());
                walk.report.add(kind::SHARED, at(), "disjoint from other blocks", found);
            }
        }
        last = Some(*reached);
    }
}

/// Checks that every live entry is a reachable block of the same owner, and intact.
fn check_zone_directory(pool: &Arc<Pool>, walk: &mut Walk<'_>, zone: &ZoneView) {
    let seq = zone.seq;
    let entries = match pool.zone_directory(seq) {
        Ok(entries) => entries,
        // Nothing is live there. It may have been reset already, and the record of that was lost in a crash.
        Err(_) if matches!(zone.phase, rows::Phase::Emptied(_)) && zone.live == 0 => return,
        Err(error) => {
            walk.report.add(kind::ZONE_DIRECTORY, format_args!("zone {seq}"), "readable", error);
            return;
        }
    };
    let windows = entries.chunks(WINDOW).flat_map(|window| {
        let is_intact = |(entry, standing): &(Entry, EntryState)| {
            *standing != EntryState::Live || pool.entry_matches_crc(seq, entry)
        };
        window.iter().zip(each_of(pool, window, is_intact))
    });
    for ((entry, standing), is_intact) in windows {
        let at = || format!("zone {seq} offset {}, block born at {}", entry.offset, entry.identity);
        match standing {
            EntryState::Dead | EntryState::Moved => continue,
            EntryState::Unexplained => {
                walk.report.add(kind::ZONE_DIRECTORY, at(), "dead, moved or alive", "none of these");
                continue;
            }
            EntryState::Live => {}
        }
        let from = walk.reached.partition_point(|reached| reached.addr() < entry.identity);
        let same = walk.reached.get_mut(from).filter(|reached| reached.addr() == entry.identity);
        let Some(reached) = same else {
            walk.report.add(kind::LEAKED, at(), "reachable", format_args!("{:?}, unreachable", entry.owner));
            continue;
        };
        reached.mark_listed();
        let (psize, ours) = (reached.psize_like(entry.psize), reached.may_be_owned_by(entry.owner));
        walk.report.expect(kind::UNLISTED, at(), psize, entry.psize);
        if !ours {
            walk.report.add(kind::OWNER, at(), "the object above it", format_args!("{:?}", entry.owner));
        }
        if !is_intact {
            walk.report.add(kind::CRC, at(), format_args!("{:#010x}", entry.crc), "another");
        }
    }
}
