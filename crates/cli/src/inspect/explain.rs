//! Why the blocks of a file lie where they lie: `terrane explain`.
//!
//! Zones and their live bytes are those of the last committed txg. Predictions are those of this moment.

use super::stat::{ZonePlace, type_name, zones_of};
use super::zones::phase_text;
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use crate::progress::Progress;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use terrane_format::Owner;
use terrane_posix::{Errno, mode};
use terrane_space::policy::Hint;
use terrane_store::explain::EntryState;
use terrane_wire::ZoneSeq;

/// Zones whose directories are read to count the files that share them. Each costs a read or two.
const SHARED_ZONES_MAX: usize = 16;

/// Why a file lies where it lies; sizes are bytes.
#[derive(Serialize)]
pub struct ExplainRow {
    object: u64,
    #[serde(rename = "type")]
    type_: &'static str,
    hint: &'static str,
    hint_from: Option<&'static str>,
    rule: Option<String>,
    expected_life: Option<u64>,
    similar: SimilarRow,
    placed_by: &'static str,
    zones: Vec<ZoneRow>,
    errors: Vec<String>,
}

/// What was learned from similar files.
#[derive(Serialize)]
struct SimilarRow {
    of: &'static str,
    births: u64,
    deaths: u64,
    life: Option<u64>,
}

/// A zone that holds blocks of the file.
#[derive(Serialize)]
struct ZoneRow {
    seq: u64,
    device: u16,
    zone: u32,
    class: &'static str,
    state: String,
    blocks: u64,
    bytes: u64,
    share_percent: u64,
    live: u64,
    live_percent: u64,
    other_files: Option<u64>,
}

/// `name`: a name of the file in its directory, as far as known.
pub fn explain(
    open_pool: &OpenPool,
    object: u64,
    name: Option<&[u8]>,
    progress: Progress<'_>,
) -> Outcome<ExplainRow> {
    let fs = open_pool.fs()?;
    let failed = |errno: Errno| Failure(format!("inode {object}: {errno}"));
    let attr = fs.getattr(object).map_err(failed)?;
    let is_file = attr.mode & mode::S_IFMT == mode::S_IFREG;
    let (expected_life, similar) = match is_file {
        true => fs.expected_life(object, name).map_err(failed)?,
        false => Default::default(),
    };
    let own = fs.write_hint_origin(object).ok().filter(|(hint, _)| *hint != Hint::NotSet);
    let default = open_pool.dataset().object_set().policy().write_hint;
    let (hint, hint_from) = match own {
        Some((hint, origin)) => (hint, Some(origin.name())),
        None if is_file && default != Hint::NotSet => (default, Some("property")),
        None => (Hint::NotSet, None),
    };
    let rule = match (hint_from, name) {
        (Some("rule"), Some(name)) => fs.hint_rule_of(object, name).map_err(failed)?,
        _ => None,
    };
    // The order in which placement asks.
    let placed_by = match expected_life {
        _ if !is_file => "metadata",
        _ if hint.has_lifetime() => "hint",
        Some(_) => "similar files",
        None => "replaced blocks",
    };
    let (places, errors) = zones_of(open_pool, object, progress)?;
    let views: BTreeMap<u64, _> = open_pool.pool.zones().into_iter().map(|zone| (zone.seq.0, zone)).collect();
    let zone = |(at, ((seq, device, zone), (blocks, bytes))): (usize, (ZonePlace, (u64, u64)))| {
        let view = views.get(&seq);
        let (live, capacity) = view.map_or((0, 0), |view| (view.live, view.capacity));
        ZoneRow {
            seq,
            device,
            zone,
            class: view.map_or("unknown", |view| view.class.name()),
            state: view.map_or("unknown".to_owned(), |view| phase_text(view.phase)),
            blocks,
            bytes,
            share_percent: percent(bytes, live.max(bytes)),
            live,
            live_percent: percent(live, capacity),
            other_files: if at < SHARED_ZONES_MAX { other_files(open_pool, seq, object) } else { None },
        }
    };
    let of = if similar.is_of_directory { "directory" } else { "suffix" };
    Ok(ExplainRow {
        object,
        type_: type_name(&attr),
        hint: hint.name(),
        hint_from,
        rule: rule.map(|rule| String::from_utf8_lossy(rule.pattern()).into_owned()),
        expected_life,
        similar: SimilarRow { of, births: similar.births, deaths: similar.deaths, life: similar.life_bytes },
        placed_by,
        zones: places.into_iter().enumerate().map(zone).collect(),
        errors,
    })
}

fn percent(part: u64, of: u64) -> u64 {
    part.saturating_mul(100).checked_div(of).unwrap_or(0)
}

/// Number of other files with live blocks in the zone. `None`: its directory cannot be read.
fn other_files(open_pool: &OpenPool, seq: u64, object: u64) -> Option<u64> {
    let set = open_pool.dataset().object_set().id().0;
    let entries = open_pool.pool.zone_directory(ZoneSeq(seq)).ok()?;
    let live = entries.into_iter().filter(|(_, state)| matches!(state, EntryState::Live));
    let owners: BTreeSet<u64> = live
        .filter_map(|(entry, _)| match entry.owner {
            // Object 0 is the tree of all inodes.
            Owner::Block { objset, object: owner, .. } if objset == set && owner != 0 && owner != object => {
                Some(owner)
            }
            _ => None,
        })
        .collect();
    Some(owners.len() as u64)
}
