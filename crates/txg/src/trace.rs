//! Recorder of births and frees of blocks.

use parking_lot::Mutex;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use terrane_format::addr::Addr;
use terrane_format::record::Free;
use terrane_space::policy::Placement;
use terrane_wire::Txg;

/// Lines of small txgs are gathered up to this many bytes before they are written to the file.
pub const BUFFER_BYTES: usize = 256 << 10;

/// The recording of a pool, if one runs.
#[derive(Default)]
pub struct Recorder {
    /// A recording runs.
    pub is_on: AtomicBool,
    /// The recording. `None`: none runs.
    pub recording: Mutex<Option<Recording>>,
}

/// A recording that runs. The formats of its lines are in `crates/pool/src/trace.rs`.
pub struct Recording {
    /// The destination of the lines.
    pub sink: Box<dyn Write + Send>,
    /// Lines of committed txgs.
    pub lines: String,
    /// Lines of the syncing txg.
    pub txg_lines: String,
    /// The placement of the last `p` line.
    pub placement: Option<Placement>,
}

impl Recording {
    /// Writes the lines of committed txgs to the destination.
    pub fn flush(&mut self) -> std::io::Result<()> {
        let lines = std::mem::take(&mut self.lines);
        self.sink.write_all(lines.as_bytes())?;
        self.sink.flush()
    }

    /// Adds a `p` line if the placement differs from that of the last one.
    pub fn placed(&mut self, placement: &Placement) {
        let file = Placement { replaced_birth: Txg(0), ..*placement };
        if self.placement == Some(file) {
            return;
        }
        self.placement = Some(file);
        let Placement { file, hint, burst_bytes, is_closed: closed, expected_life_bytes, .. } = file;
        let life = expected_life_bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        self.line(format_args!("p {file} {} {burst_bytes} {} {life}", hint.name(), u8::from(closed)));
    }

    /// Adds a line to the syncing txg.
    pub fn line(&mut self, words: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.txg_lines, "{words}");
    }
}

impl Recorder {
    /// Called for each block, so it costs one load while no recording runs.
    pub fn with(&self, record: impl FnOnce(&mut Recording)) {
        if self.is_on.load(Ordering::Relaxed)
            && let Some(recording) = self.recording.lock().as_mut()
        {
            record(recording);
        }
    }

    /// A data block of `bytes` stored bytes is born.
    pub fn data(&self, addr: Addr, bytes: usize, placement: &Placement) {
        self.with(|recording| {
            recording.placed(placement);
            recording.line(format_args!("b {} {bytes} {}", addr.raw(), placement.replaced_birth));
        });
    }

    /// Both copies of a metadata block of `bytes` stored bytes are born.
    pub fn metadata(&self, copies: [Addr; 2], bytes: usize) {
        self.with(|recording| {
            for (copy, addr) in copies.into_iter().enumerate() {
                recording.line(format_args!("m {} {bytes} {copy}", addr.raw()));
            }
        });
    }

    /// The txg is durable.
    pub fn committed(&self, txg: Txg, written_bytes: u64, frees: &[Free]) {
        let mut broken = None;
        self.with(|recording| {
            for free in frees {
                recording.line(format_args!("f {}", free.addr.raw()));
            }
            recording.line(format_args!("g {txg} {written_bytes}"));
            recording.lines += &std::mem::take(&mut recording.txg_lines);
            if recording.lines.len() >= BUFFER_BYTES {
                broken = recording.flush().err();
            }
        });
        if let Some(error) = broken {
            log::error!("recording of block births and frees stopped: {error}");
            self.is_on.store(false, Ordering::Relaxed);
            *self.recording.lock() = None;
        }
    }
}
