//! Changes of a pool that are nothing but records of the intent log.

use std::sync::Arc;
use terrane_format::log::{Frame, OwnedFrame};
use terrane_pool::Pool;
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjsetId, Txg};

/// Joins the open txg with a change, and returns its frame.
pub fn change(pool: &Arc<Pool>, bytes: usize) -> (u64, Txg, Vec<u8>) {
    try_change(pool, bytes).unwrap()
}

fn try_change(pool: &Arc<Pool>, bytes: usize) -> Result<(u64, Txg, Vec<u8>), PoolError> {
    let tx = pool.begin(Cost { write_bytes: 4096, ..Cost::NOTHING })?;
    let number = pool.next_change();
    let body: Vec<u8> = (0..bytes).map(|at| (number as usize * 31 + at) as u8).collect();
    let mut frames = Vec::new();
    Frame { set: ObjsetId(9), change: number, txg: tx.txg(), body: &body }.append_to(&mut frames);
    Ok((number, tx.txg(), frames))
}

/// Makes a change and logs it. `false`: the log did not take it, so it was committed.
pub fn change_and_log(pool: &Arc<Pool>, bytes: usize) -> Result<(u64, bool), PoolError> {
    let (number, txg, frames) = try_change(pool, bytes)?;
    let logged = pool.log(&frames, txg).is_some_and(|ticket| pool.wait_logged(ticket).is_ok());
    if !logged {
        pool.want_log();
        pool.commit()?;
    }
    Ok((number, logged))
}

pub fn open_log(pool: &Arc<Pool>) {
    pool.want_log();
    change(pool, 0);
    pool.commit().unwrap();
    assert!(pool.log_bytes_max() > 0, "no log was opened");
}

/// The numbers of the changes that a replay repeats.
pub fn replayed(pool: &Arc<Pool>) -> Vec<u64> {
    let mut found = Vec::new();
    let check = |records: &[OwnedFrame]| {
        for record in records {
            assert_eq!(record.set, ObjsetId(9));
            let right: Vec<u8> =
                (0..record.body.len()).map(|at| (record.change as usize * 31 + at) as u8).collect();
            assert_eq!(record.body, right);
            found.push(record.change);
        }
        Ok::<(), PoolError>(())
    };
    pool.replay_log(check).unwrap();
    found
}
