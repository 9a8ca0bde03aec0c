//! A recording of the input of placement and GC: which blocks are born, what is known of them then, and when
//! they are freed.
//!
//! `terrane-sim gc` replays it on a pool of any shape, under any policy, without data. The places of blocks
//! are not recorded, because a replay chooses them anew. Names and contents are not recorded either: a
//! lifetime inferred from similar files is already a number.
//!
//! The recording is text, one event per line. Words are separated by single spaces, and all numbers are
//! decimal:
//!
//! ```text
//! pool ZONES BYTES SLOTS AGES            shape of the pool: zones, bytes of one, open slots, of which for survivors
//! p FILE HINT BURST CLOSED LIFE          what is known of the file of the data that follows (`Placement`; LIFE in bytes, or -)
//! b NAME BYTES REPLACED                  data is born; REPLACED: the txg in which the previous version was born, or 0
//! m NAME BYTES COPY                      a copy of a metadata block is born, the first (0) or the second (1)
//! f NAME                                 the block of this name is freed
//! g TXG WRITTEN                          commit; bytes that users had written by then, metadata included
//! ```
//!
//! Names are addresses, which never repeat in a pool. Births of bootstrap blocks are not recorded, but their
//! frees are. So are frees of blocks that were born before the recording began. A replay ignores such names.
//!
//! Lock: a leaf, held while lines are written to the file. If a write fails, the recording ends and the pool
//! goes on.
//!
//! Invariant: the lines between two `g` are exactly one txg.

use crate::pool::Pool;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::Ordering;
use terrane_space::policy::Age;
use terrane_txg::trace::Recording;

impl Pool {
    /// Records births and frees of blocks from the next txg on, in the form that `terrane-sim gc` replays
    /// (see the module `trace`). A running recording ends. Older blocks are not in it, so it should begin
    /// when the pool is new.
    pub fn record(&self, mut sink: Box<dyn Write + Send>) -> std::io::Result<()> {
        let label = self.label();
        let zones: u64 = label.members().map(|(_, row)| u64::from(row.block_zones())).sum();
        // The sync lock: recording begins between two txgs.
        let st = self.sync.lock();
        let layout = st.streams.layout();
        let ages: BTreeSet<usize> = Age::ALL.into_iter().map(|age| layout.survivors(age)).collect();
        writeln!(sink, "pool {zones} {} {} {}", label.zone_size, layout.kept_slots(), ages.len())?;
        let recording = Recording { sink, lines: String::new(), txg_lines: String::new(), placement: None };
        *self.recorder.recording.lock() = Some(recording);
        self.recorder.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a recording, if there is one. On an error its last lines are lost.
    pub fn end_recording(&self) -> std::io::Result<()> {
        self.recorder.is_on.store(false, Ordering::Relaxed);
        let recording = self.recorder.recording.lock().take();
        recording.map_or(Ok(()), |mut recording| recording.flush())
    }
}
