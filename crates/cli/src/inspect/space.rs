//! What the bytes of a pool are used for: `terrane debug space`.

use crate::failure::Outcome;
use crate::open_pool::OpenPool;
use serde::Serialize;
use terrane_check::usage::{Purpose, usage};

/// Space of the blocks of one purpose, in bytes.
#[derive(Serialize)]
pub struct SpaceRow {
    what: &'static str,
    /// `None` for space that is not in blocks.
    copies: Option<u64>,
    stored: Option<u64>,
    bytes: u64,
    percent: Option<u64>,
}

/// A row for every purpose that has blocks, then garbage, then space that is not in blocks. In a pool that is
/// written meanwhile the numbers may be a txg or two apart.
///
/// # Errors
/// If the directory of a zone or a block of dnodes cannot be read.
pub fn space(open_pool: &OpenPool) -> Outcome<Vec<SpaceRow>> {
    let usage = usage(&open_pool.objects)?;
    let percent =
        |bytes: u64| (bytes as u128 * 100).checked_div(u128::from(usage.claimed)).map(|part| part as u64);
    let blocks = Purpose::ALL.iter().filter_map(|purpose| {
        let share = usage.shares.get(purpose)?;
        Some(SpaceRow {
            what: purpose.name(),
            copies: Some(share.copies),
            stored: Some(share.stored),
            bytes: share.live,
            percent: percent(share.live),
        })
    });
    let rest = [("dead blocks", usage.dead), ("zone headers, directories, padding", usage.overhead)]
        .map(|(what, bytes)| SpaceRow { what, copies: None, stored: None, bytes, percent: percent(bytes) });
    Ok(blocks.chain(rest).collect())
}
