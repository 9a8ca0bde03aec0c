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

#[derive(Default)]
pub struct Recorder {
    pub on: AtomicBool,
    pub recording: Mutex<Option<Recording>>,
}

pub struct Recording {
    pub sink: Box<dyn Write + Send>,
    /// Lines of committed txgs.
    pub lines: String,
    /// Lines of the syncing txg.
    pub group: String,
    pub placement: Option<Placement>,
}

impl Recording {
    pub fn flush(&mut self) -> std::io::Result<()> {
        let lines = std::mem::take(&mut self.lines);
        self.sink.write_all(lines.as_bytes())?;
        self.sink.flush()
    }

    pub fn placed(&mut self, placement: &Placement) {
        let file = Placement { replaces: Txg(0), ..*placement };
        if self.placement == Some(file) {
            return;
        }
        self.placement = Some(file);
        let Placement { file, hint, burst_bytes, closed, expected_life_bytes, .. } = file;
        let life = expected_life_bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        self.line(format_args!("p {file} {} {burst_bytes} {} {life}", hint.name(), u8::from(closed)));
    }

    pub fn line(&mut self, words: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.group, "{words}");
    }
}

impl Recorder {
    /// Called for each block, so it costs one load while no recording runs.
    pub fn with(&self, tell: impl FnOnce(&mut Recording)) {
        if self.on.load(Ordering::Relaxed)
            && let Some(recording) = self.recording.lock().as_mut()
        {
            tell(recording);
        }
    }

    pub fn data(&self, addr: Addr, bytes: usize, placement: &Placement) {
        self.with(|recording| {
            recording.placed(placement);
            recording.line(format_args!("b {} {bytes} {}", addr.raw(), placement.replaces));
        });
    }

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
            recording.lines += &std::mem::take(&mut recording.group);
            if recording.lines.len() >= BUFFER_BYTES {
                broken = recording.flush().err();
            }
        });
        if let Some(error) = broken {
            log::error!("{error}; the recording of what is born and dies ends here");
            self.on.store(false, Ordering::Relaxed);
            *self.recording.lock() = None;
        }
    }
}
