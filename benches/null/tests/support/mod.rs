//! A null server, mounted, with its session in the background.

use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use terrane_fuse::proto::Opcode;
use terrane_fuse::reply::Reply;
use terrane_fuse::session::{Call, Handler};
use terrane_fuse::{MountOptions, Session, UnmountHandle};
use terrane_null::Memory;
use terrane_posix::Errno;

/// Records each request before it is answered.
pub struct Counted {
    pub memory: Memory,
    asked: Mutex<Vec<Opcode>>,
}

impl Handler for Counted {
    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let opcode = Opcode::from_number(call.header.opcode).expect("the session refuses unknown ones");
        // These come at any time, and no caller waits for them.
        if !matches!(opcode, Opcode::Forget | Opcode::BatchForget) {
            self.asked.lock().push(opcode);
        }
        self.memory.handle(call, reply)
    }
}

pub struct Running {
    pub dir: PathBuf,
    pub server: Arc<Counted>,
    handle: UnmountHandle,
    session: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Running {
    /// `None`, with a message, where this machine has no FUSE.
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
        let server = Arc::new(Counted { memory: Memory::new(&options), asked: Mutex::default() });
        let handler = Arc::clone(&server);
        let session = std::thread::spawn(move || session.run(&*handler));
        Some(Running { dir, server, handle, session: Some(session) })
    }

    /// The requests of the kernel during this call.
    #[allow(dead_code, reason = "each test file is a program of its own, and not every one counts")]
    pub fn asked<R>(&self, what: impl FnOnce() -> R) -> (R, Vec<Opcode>) {
        self.server.asked.lock().clear();
        let result = what();
        (result, std::mem::take(&mut *self.server.asked.lock()))
    }

    /// Aborts the connection while in use.
    #[allow(dead_code, reason = "each test file is a program of its own, and not every one aborts")]
    pub fn abort(mut self) {
        self.handle.abort().unwrap();
        self.session.take().unwrap().join().unwrap().unwrap();
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
