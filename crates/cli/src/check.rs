//! The bridge to `terrane_check`: from a device to a report in JSON.
//!
//! A check compares everything with everything, so nothing may change under it. A pool that is not mounted is imported
//! read-only. Of one that is mounted, everything is committed first, and the committed state is imported a second time, beside the
//! pool that is in use. That state stays whole until zones that died since are reset, and none is while the check holds them, unless
//! writers run out of room. So a clean report is right whatever happened meanwhile. Findings are believed if no group was
//! committed meanwhile; if one was, the check begins again, and only what the last try still finds, over zones that were held
//! throughout, is told.

use crate::failure::{Failure, Outcome};
use crate::live::{self, Live};
use crate::query::Progress;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use terrane_check::{Phase, Report};
use terrane_device::{Device, DeviceError, DeviceInfo, OpenMode, ZoneReport};
use terrane_object::Objects;
use terrane_pool::{Pool, SystemEnv};
use terrane_wire::ZoneIdx;

/// How often a check of a busy pool begins before it is given up.
const TRIES: usize = 3;
/// With fewer empty zones than this a check lets go of those that wait to be reset.
const EMPTY_MIN: u64 = 16;

/// A device that somebody else writes: to be read only, and not to be told anything.
struct Beside(Arc<dyn Device>);

impl Beside {
    fn refuse<T>(zone: ZoneIdx, op: &'static str) -> Result<T, DeviceError> {
        let (expected, found) = ("a pool that is only read".to_owned(), op.to_owned());
        Err(DeviceError::Rule { zone, op, expected, found })
    }
}

impl Device for Beside {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.0.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, _offset: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Self::refuse(zone, "write")
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        Self::refuse(zone, "reset")
    }

    fn keep_space(&self) {}

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        Self::refuse(zone, "finish")
    }

    // The writer knows where writing goes on.
    fn resume(&self, _zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        Ok(pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Checks a pool that is mounted by this process.
pub fn beside(live: &Live, progress: Progress<'_>) -> Outcome<Value> {
    for attempt in 1..=TRIES {
        live.pool.commit()?;
        let before = live.pool.synced_txg();
        // What is committed now stays on the device, while writers go on.
        let hold = Mutex::new(Some(live.pool.hold_zones()));
        let report = check(Arc::new(Beside(live.device.clone())), &|what, done, total| {
            let zones = live.pool.stats().zones;
            if zones.empty < EMPTY_MIN && zones.emptied > 0 {
                // Writers need the room more than a check does.
                hold.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
            progress(what, done, total);
        })?;
        let was_held = hold.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let is_sure = live.pool.synced_txg() == before || (was_held && attempt == TRIES);
        if report.is_clean() || is_sure {
            return Ok(to_json(&report));
        }
    }
    let name = live.pool.name();
    Err(Failure(format!(
        "pool {name} is too full and too busy: zones were reset while they were checked; unmount it, or try again later"
    )))
}

/// Checks the pool on a device that nobody writes.
pub fn alone(device: Arc<dyn Device>, progress: Progress<'_>) -> Outcome<Value> {
    Ok(to_json(&check(device, progress)?))
}

fn check(device: Arc<dyn Device>, progress: Progress<'_>) -> Outcome<Report> {
    let options = live::tool_options(OpenMode::ReadOnly);
    let pool = Pool::import(vec![device], Arc::new(SystemEnv::new()), &options)?;
    let report = Objects::open(Arc::clone(&pool)).map(|objects| {
        terrane_check::check(&objects, &mut |now| progress(phase_text(now.phase), now.done, now.total))
    });
    // Not exported: there is nothing to commit.
    pool.abandon();
    Ok(report?)
}

fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Blocks => "reading blocks",
        Phase::Zones => "reading zones",
        Phase::Names => "following names",
    }
}

fn to_json(report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "kind": finding.kind,
                "place": finding.place,
                "expected": finding.expected,
                "found": finding.found,
                "text": finding.to_string(),
            })
        })
        .collect();
    json!({
        "findings": findings,
        "findings_count": report.findings_count,
        "seen": {
            "blocks": report.counts.blocks,
            "bytes": report.counts.bytes,
            "objects": report.counts.objects,
            "directories": report.counts.directories,
        },
    })
}
