//! What outlives a server process: descriptors, and a little shared memory.
//!
//! The kernel's side of a mount exists for as long as a process holds its descriptor of `/dev/fuse`. So a
//! *holder* (a supervisor process, or systemd's descriptor store) keeps a copy, and gives it to the next server
//! when one dies. The protocol is that of sd_notify(3), one message per datagram: `FDSTORE=1` and
//! `FDNAME=...` with a descriptor; `READY=1`. Our own holder passes descriptors by number ([`pass_descriptors`]), systemd
//! by its own rules (`LISTEN_FDS`).
//!
//! The [`Ledger`] is a ring of (txg, inode) pairs in shared memory that the holder keeps as well. It records
//! which inodes were changed in which txg. After a crash it tells which files have lost changes. A pair is
//! written at every first change of an inode in a txg, so writing one is a few plain stores.
//!
//! Invariant: descriptors are taken from the environment once, and belong to the caller that took them.
#![expect(unsafe_code, reason = "descriptors by number, and memory that is shared with other processes")]

mod change_ring;
mod rename_notes;
mod stream_copy;

use crate::process;
pub use change_ring::{CHANGE_BYTES_MAX, ChangeRing, KeptChange, KeptChanges, RING_BYTES_MIN};
use memmap2::MmapRaw;
pub use rename_notes::{NamedBefore, RenameNotes, UnknownRename};
use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the holder listens; systemd's variable, with its meaning.
pub const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// What our own holder passes down: `NUMBER:NAME`, separated by blanks.
const PASSED_FDS_VARIABLE: &str = "TERRANE_GIVEN_FDS";
/// The first descriptor that systemd passes down.
const LISTEN_FDS_START: RawFd = 3;
/// The longest datagram; ours are short.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// Sends bytes and descriptors in one message, and returns how many bytes were sent.
fn send_message(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd]) -> io::Result<usize> {
    let rights = SendAncillaryMessage::ScmRights(files);
    let mut space = vec![MaybeUninit::uninit(); rights.size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(rights) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Sends bytes through a connection, and a descriptor with the first of them.
pub fn send_on(connection: &UnixStream, bytes: &[u8], file: &File) -> io::Result<()> {
    let sent = send_message(connection, bytes, &[file.as_fd()])?;
    (&*connection).write_all(bytes.get(sent..).unwrap_or(&[]))
}

/// Reads bytes from a connection, and the descriptor that came with them. 0 bytes: the other end was closed.
pub fn receive_on(connection: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<File>)> {
    Ok(retry_on_intr(|| crate::socket::receive(connection, bytes))?)
}

/// Sends a message to a holder, with a descriptor for it to keep.
///
/// # Errors
/// If no process listens at `socket`. That is the value of [`SOCKET_VARIABLE`]: a path, or `@` and an
/// abstract name.
pub fn send(socket: &OsStr, text: &str, file: Option<&File>) -> io::Result<()> {
    let ours = UnixDatagram::unbound()?;
    match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => ours.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => crate::socket::connect_datagram(&ours, Path::new(socket))?,
    }
    send_message(&ours, text.as_bytes(), file.map(AsFd::as_fd).as_slice()).map(drop)
}

/// Whether a holder listens there.
pub fn is_listening(socket: &OsStr) -> bool {
    let reached = UnixDatagram::unbound().and_then(|ours| match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => ours.connect_addr(&SocketAddr::from_abstract_name(name)?),
        None => crate::socket::connect_datagram(&ours, Path::new(socket)),
    });
    reached.is_ok()
}

/// The holder's side of [`send`]: receives the next message, and the descriptor that came with it.
pub fn receive(socket: &UnixDatagram) -> io::Result<(String, Option<File>)> {
    let mut text = vec![0u8; DATAGRAM_BYTES_MAX];
    let (len, file) = crate::socket::receive(socket, &mut text)?;
    text.truncate(len);
    Ok((String::from_utf8_lossy(&text).into_owned(), file))
}

/// Passes descriptors to the child that `command` starts; [`take_passed`] finds them there.
/// The command holds duplicates until it is dropped.
pub fn pass_descriptors(command: &mut Command, files: &[(String, File)]) -> io::Result<()> {
    let copies = files.iter().map(|(_, file)| Ok(OwnedFd::from(file.try_clone()?)));
    let copies = copies.collect::<io::Result<Vec<_>>>()?;
    let list = files.iter().zip(&copies).map(|((name, _), file)| format!("{}:{name}", file.as_raw_fd()));
    command.env(PASSED_FDS_VARIABLE, list.collect::<Vec<_>>().join(" "));
    process::pass_down(command, copies);
    Ok(())
}

/// The descriptors that a holder passed to this process, by name. Empty on the second call.
pub fn take_passed() -> Vec<(String, File)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let text = |variable: &str| std::env::var_os(variable).map(OsString::into_string).and_then(Result::ok);
    let pairs: Vec<(RawFd, String)> = match text(PASSED_FDS_VARIABLE) {
        Some(list) => list
            .split(' ')
            .filter_map(|pair| pair.split_once(':'))
            .filter_map(|(fd, name)| Some((fd.parse().ok()?, name.to_owned())))
            .collect(),
        None => {
            let ours = text("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
            let count = text("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
            let names = text("LISTEN_FDNAMES").unwrap_or_default();
            // There are no more than have names.
            let count: usize = if ours { count } else { 0 };
            (LISTEN_FDS_START..).zip(names.split(':').map(str::to_owned)).take(count).collect()
        }
    };
    pairs.into_iter().filter_map(|(fd, name)| Some((name, adopt(fd)?))).collect()
}

/// The descriptor with this number. `None` if it is not open.
fn adopt(fd: RawFd) -> Option<File> {
    if fd <= 2 {
        return None;
    }
    // SAFETY: the parent opened this descriptor for this process alone and said so in the environment, which is
    // read once. Nothing else here has it, because no other code reads that variable. A number that is no open
    // descriptor is given up below, so it is never closed.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    match fcntl_setfd(&file, FdFlags::CLOEXEC) {
        Ok(()) => Some(file.into()),
        Err(_) => {
            let _ = file.into_raw_fd();
            None
        }
    }
}

/// An anonymous file in memory, which lives as long as a process has it open.
pub fn memory_file(name: &str) -> io::Result<File> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

/// Whether the connection behind a descriptor of `/dev/fuse` has ended by unmount or abort.
pub fn is_disconnected(device: &File) -> bool {
    let ends = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    process::pending(device, PollFlags::empty()).intersects(ends)
}

/// Pairs in the ring. A txg that changed more inodes than this would lose some; their dirty dnodes alone
/// would take 500 MB.
const LEDGER_PAIRS: usize = 1 << 20;
const PAIR_BYTES: usize = 16;
const LEDGER_BYTES: usize = PAIR_BYTES * (1 + LEDGER_PAIRS);

/// Which inodes were changed in which txg, in memory that outlives the process.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    /// `1 + LEDGER_PAIRS` pairs of words; the first word of the first pair counts the pairs ever written.
    words: MmapRaw,
    /// `None`: the file has no more than the pairs.
    ring: Option<ChangeRing>,
}

impl Ledger {
    /// An empty ledger, with a ring for changes of so many bytes. 0, or less than [`RING_BYTES_MIN`]: without one.
    pub fn new(ring_bytes: usize) -> io::Result<Ledger> {
        let file = memory_file("terrane-ledger")?;
        // Sparse: pages are allocated as they are written.
        file.set_len((LEDGER_BYTES + ring_bytes.max(rename_notes::END)) as u64)?;
        Ledger::map(file)
    }

    /// The ledger of a predecessor.
    pub fn map(file: File) -> io::Result<Ledger> {
        if file.metadata()?.len() < LEDGER_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "ledger refused: wrong size"));
        }
        let words = MmapRaw::map_raw(&file)?;
        let ring = ChangeRing::new(MmapRaw::map_raw(&file)?, LEDGER_BYTES);
        Ok(Ledger { file, words, ring })
    }

    /// The ring for changes, if it has one.
    pub fn ring(&self) -> Option<&ChangeRing> {
        self.ring.as_ref()
    }

    /// The notes about renames. `None`: the ledger is of an older version, and has no room for them.
    ///
    /// Only the first call in a process knows whether the predecessor kept notes.
    pub fn rename_notes(&self) -> Option<RenameNotes> {
        RenameNotes::new(MmapRaw::map_raw(&self.file).ok()?, LEDGER_BYTES)
    }

    /// The file of the ledger, to pass to another process.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < LEDGER_BYTES / 8, "a word of the mapping");
        // SAFETY: `at` is within the mapping, which lives as long as self, is page-aligned, and is touched by atomics only.
        // The file has this length, and nothing shortens it: it has no name, and only processes of this program hold it.
        unsafe { AtomicU64::from_ptr(self.words.as_mut_ptr().cast::<u64>().add(at)) }
    }

    /// Records that inode `ino` is changed in `txg`.
    pub fn record(&self, txg: u64, ino: u64) {
        let slot = usize::try_from(self.word(0).fetch_add(1, Ordering::Relaxed)).unwrap_or(0) % LEDGER_PAIRS;
        self.word(2 + 2 * slot).store(txg, Ordering::Relaxed);
        self.word(3 + 2 * slot).store(ino, Ordering::Release);
    }

    /// The inodes changed in txgs after `txg`. Must not run concurrently with [`record`](Ledger::record).
    pub fn inodes_changed_after(&self, txg: u64) -> std::collections::BTreeSet<u64> {
        let pairs = usize::try_from(self.word(0).load(Ordering::Acquire)).unwrap_or(usize::MAX);
        let pair = |slot: usize| {
            (self.word(2 + 2 * slot).load(Ordering::Acquire), self.word(3 + 2 * slot).load(Ordering::Acquire))
        };
        let written = (0..pairs.min(LEDGER_PAIRS)).map(pair);
        written.filter(|(at, ino)| *at > txg && *ino != 0).map(|(_, ino)| ino).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn messages_and_descriptors_reach_the_holder() {
        let path = std::env::temp_dir().join(format!("terrane-holder-{}", std::process::id()));
        let holder = UnixDatagram::bind(&path).unwrap();
        let mut kept = memory_file("x").unwrap();
        kept.write_all(b"kept").unwrap();
        send(path.as_os_str(), "FDSTORE=1\nFDNAME=x", Some(&kept)).unwrap();
        send(path.as_os_str(), "READY=1", None).unwrap();
        assert!(is_listening(path.as_os_str()) && !is_listening(OsStr::new("@terrane/nobody")));
        drop(kept);
        let (message, file) = receive(&holder).unwrap();
        assert_eq!(message, "FDSTORE=1\nFDNAME=x");
        let (mut file, mut text) = (file.unwrap(), String::new());
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
        let (message, file) = receive(&holder).unwrap();
        assert!(message == "READY=1" && file.is_none());
        several_at_once_are_closed(&path, &holder);
        drop(holder);
        wait_until("the socket that was left behind is refused", || !is_listening(path.as_os_str()));
        std::fs::remove_file(path).unwrap();
    }

    fn several_at_once_are_closed(path: &Path, holder: &UnixDatagram) {
        let (reader, writer) = io::pipe().unwrap();
        let theirs = UnixDatagram::unbound().unwrap();
        theirs.connect(path).unwrap();
        send_message(&theirs, b"FDSTORE=1\nFDNAME=x", &[writer.as_fd(); 3]).unwrap();
        drop(writer);
        assert!(receive(holder).unwrap().1.is_none());
        // The last writer has gone, so the poll returns end of file.
        wait_until("all were closed", || process::pending(&reader, PollFlags::IN).contains(PollFlags::HUP));
    }

    /// Children that other tests start hold copies of all descriptors until their exec, so nothing that hangs
    /// on the last copy happens at once.
    fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !reached() {
            assert!(begun.elapsed().as_secs() < 10, "not within ten seconds: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_descriptor_comes_with_the_bytes_it_was_sent_with() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = memory_file("x").unwrap();
        file.write_all(b"for you").unwrap();
        send_on(&ours, b"a question", &file).unwrap();
        drop((ours, file));
        let mut buf = [0; 64];
        let (len, file) = receive_on(&theirs, &mut buf[..4]).unwrap();
        assert_eq!(&buf[..len], b"a qu");
        let (mut file, mut text) = (file.unwrap(), String::new());
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "for you");
        assert!(matches!(receive_on(&theirs, &mut buf), Ok((6, None))));
        assert!(matches!(receive_on(&theirs, &mut buf), Ok((0, None))));
    }

    #[test]
    fn a_child_finds_what_it_was_given() {
        let mut file = memory_file("x").unwrap();
        file.write_all(b"for you").unwrap();
        file.rewind().unwrap();
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("fd=${{{PASSED_FDS_VARIABLE}%%:*}}; echo ${PASSED_FDS_VARIABLE} >&2; cat <&$fd"));
        let files = [("name".to_owned(), file)];
        pass_descriptors(&mut command, &files).unwrap();
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "for you");
        assert!(String::from_utf8_lossy(&output.stderr).ends_with(":name\n"));
    }

    #[test]
    fn the_ledger_knows_what_came_after_a_commit() {
        let ledger = Ledger::new(0).unwrap();
        for (txg, ino) in [(7, 1), (8, 2), (9, 3), (9, 2)] {
            ledger.record(txg, ino);
        }
        let again = Ledger::map(ledger.file().try_clone().unwrap()).unwrap();
        drop(ledger);
        assert_eq!(again.inodes_changed_after(7).into_iter().collect::<Vec<_>>(), [2, 3]);
        assert!(again.inodes_changed_after(9).is_empty());
        // Once around the ring: old pairs are overwritten, new ones are found.
        for _ in 0..LEDGER_PAIRS {
            again.record(10, 5);
        }
        assert_eq!(again.inodes_changed_after(0).into_iter().collect::<Vec<_>>(), [5]);
        assert!(Ledger::map(memory_file("short").unwrap()).is_err());
    }

    #[test]
    fn a_descriptor_without_a_mount_has_no_connection() {
        match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            Ok(device) => assert!(is_disconnected(&device)),
            Err(error) => eprintln!("SKIPPED is_ended: /dev/fuse: {error}"),
        }
    }
}
