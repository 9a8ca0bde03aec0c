//! A null server, mounted, with its session in the background.

use std::path::PathBuf;
use std::sync::Arc;
use terrane_fuse::{MountOptions, Session, UnmountHandle};
use terrane_null::Memory;

pub struct Running {
    pub dir: PathBuf,
    pub memory: Arc<Memory>,
    handle: UnmountHandle,
    session: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Running {
    /// `None`, loudly, where this machine has no FUSE to offer.
    pub fn start(name: &str, words: &str) -> Option<Running> {
        let dir = std::env::temp_dir().join(format!("terrane-null-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut options = MountOptions::default();
        options.apply(words).unwrap();
        let session = match Session::mount(&dir, &options) {
            Ok(session) => session,
            Err(error) => {
                eprintln!("SKIPPED {name}: this machine cannot mount FUSE: {error}");
                std::fs::remove_dir(&dir).unwrap();
                return None;
            }
        };
        let handle = session.unmount_handle();
        let memory = Arc::new(Memory::new(&options));
        let handler = Arc::clone(&memory);
        let session = std::thread::spawn(move || session.run(&*handler));
        Some(Running { dir, memory, handle, session: Some(session) })
    }

    pub fn end(mut self) {
        self.handle.unmount().unwrap();
        self.session.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Also after a failed assertion: nothing may be left mounted.
        let _ = self.handle.abort();
        let _ = std::fs::remove_dir(&self.dir);
    }
}
