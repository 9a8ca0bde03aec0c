//! A recording of what placement and collection decide about: which blocks are born, what is known of them then, and when they die.
//!
//! `terrane-sim gc` replays it on a pool of any shape, under any policy, without data. It says nothing of where blocks went, which
//! is what a replay decides anew, and holds no names and no contents: what siblings of a file taught is a number here already.
//!
//! It is text, one event in a line, its words separated by single spaces, all numbers decimal:
//!
//! ```text
//! pool ZONES BYTES SLOTS AGES            of which shape the pool was: zones, bytes of one, open slots, of which for survivors
//! p FILE HINT BURST CLOSED LIFE          what is known of the file of the data that follows (`Placement`; LIFE in bytes, or -)
//! b NAME BYTES REPLACED                  data is born; REPLACED: the group in which the version before was, or 0
//! m NAME BYTES COPY                      a copy of a block of metadata is born, the first (0) or the second (1)
//! f NAME                                 what was born under this name dies
//! g GROUP WRITTEN                        all this is committed; users had written so many bytes, metadata with them
//! ```
//!
//! Names are addresses, which never repeat in a pool. Blocks of the pool's own books, found by place, are not in it; that some of
//! them die is, as are deaths of what was born before the recording began: a replay knows none of these names.
//!
//! Lock: a leaf, held while lines are written to the file. A recording that cannot be written ends, and the pool goes on.
//!
//! Invariant: what stands between two `g` is one group, whole.

use crate::pool::Pool;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::Ordering;
use terrane_space::policy::Age;
use terrane_txg::trace::Recording;

impl Pool {
    /// Writes down, from the next group on, what is born and what dies, in the form that `terrane-sim gc` replays (see the module
    /// `trace`). A recording that went on before ends. What lived before is not in it, so it should begin when the pool is new.
    pub fn record(&self, mut sink: Box<dyn Write + Send>) -> std::io::Result<()> {
        let label = self.label();
        let zones: u64 = label.members().map(|(_, row)| u64::from(row.block_zones())).sum();
        // Between two groups.
        let st = self.sync.lock();
        let layout = st.streams.layout();
        let ages: BTreeSet<usize> = Age::ALL.into_iter().map(|age| layout.survivors(age)).collect();
        writeln!(sink, "pool {zones} {} {} {}", label.zone_size, layout.slots(), ages.len())?;
        let recording = Recording { sink, lines: String::new(), group: String::new(), placement: None };
        *self.recorder.recording.lock() = Some(recording);
        self.recorder.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a recording, if there is one. An error: its last lines are lost.
    pub fn end_recording(&self) -> std::io::Result<()> {
        self.recorder.on.store(false, Ordering::Relaxed);
        let recording = self.recorder.recording.lock().take();
        recording.map_or(Ok(()), |mut recording| recording.flush())
    }
}
