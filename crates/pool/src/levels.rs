//! `zstd-auto` in a pool: input and results of the controller in [`terrane_codec::auto`].
//!
//! Each data set that uses it has one controller. With every block, the txg reports the dirty bytes, the rate
//! of new ones, and whether a caller waits. The worker that compressed the block reports the time.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_codec::Compression;
use terrane_codec::auto::{BlockTime, Load};
use terrane_store::env::Env;
use terrane_store::pipeline::EncodedBlock;
use terrane_txg::admission::Admission;
use terrane_txg::levels::{Backlog, Levels};
use terrane_wire::Txg;

/// A queued block, whose level is not chosen yet.
pub(crate) struct CompressionTicket {
    levels: Arc<Levels>,
    admission: Arc<Admission>,
    env: Arc<dyn Env>,
    txg: Txg,
    written_bytes: u64,
}

impl CompressionTicket {
    /// A block of `txg`, of which `written_bytes` were compressed before it was handed to the workers.
    pub fn new(levels: &Arc<Levels>, pool: &Arc<Pool>, txg: Txg, written_bytes: u64) -> CompressionTicket {
        let (admission, env) = (pool.admission.clone(), pool.env.clone());
        CompressionTicket { levels: levels.clone(), admission, env, txg, written_bytes }
    }

    /// Chooses the level now, and encodes a block of `bytes` with it.
    pub fn encode(self, bytes: u64, encode: impl FnOnce(Compression) -> EncodedBlock) -> EncodedBlock {
        let CompressionTicket { levels, admission, env, txg, written_bytes } = self;
        let compression =
            levels.auto.lock().choose(&auto_load(&admission, env.as_ref(), txg, written_bytes), bytes);
        let (wall_ns, processor_ns) = (env.monotonic_ns(), env.thread_ns());
        let ready = encode(compression);
        let took = BlockTime {
            processor_ns: env.thread_ns().saturating_sub(processor_ns),
            wall_ns: env.monotonic_ns().saturating_sub(wall_ns),
        };
        if let Some(stored_bytes) = ready.stored_bytes() {
            levels.measured(compression, (bytes, stored_bytes), took);
        }
        ready
    }
}

fn auto_load(admission: &Admission, env: &dyn Env, txg: Txg, written_bytes: u64) -> Load {
    let (_, limit_bytes) = admission.dirty();
    let Backlog { bytes, awaited_bytes, inflow_bytes_per_s } =
        admission.backlog(txg, written_bytes, env.monotonic_ns());
    Load {
        backlog_bytes: bytes,
        limit_bytes,
        inflow_bytes_per_s,
        awaited_bytes,
        workers: u32::try_from(env.workers()).unwrap_or(u32::MAX),
    }
}
