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
#![expect(unsafe_code, reason = "descriptor passing, memfd_create and mmap have no safe form in std")]

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
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

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Space for a control message with one descriptor, aligned as its header must be.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// A message with the bytes of `iov` and space for one descriptor. It points into its arguments.
fn message(iov: &mut libc::iovec, control: &mut ControlBuffer) -> libc::msghdr {
    // SAFETY: msghdr is a plain C structure for which all zeros is a value (null pointers, no lengths).
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    message
}

fn fd_bytes() -> libc::c_uint {
    size_of::<libc::c_int>() as libc::c_uint
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
    let mut control = ControlBuffer([0; 64]);
    let mut iov = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
    let mut message = message(&mut iov, &mut control);
    match file {
        Some(file) => {
            // SAFETY: CMSG_SPACE and CMSG_LEN only compute lengths.
            let (space, len) = unsafe { (libc::CMSG_SPACE(fd_bytes()), libc::CMSG_LEN(fd_bytes())) };
            message.msg_controllen = space as usize;
            // SAFETY: the control buffer is aligned and longer than CMSG_SPACE of one descriptor, so there is a first header, and
            // room for one int behind it; both are written before anything reads them.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = len as usize;
                libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(file.as_raw_fd());
            }
        }
        None => {
            message.msg_control = std::ptr::null_mut();
            message.msg_controllen = 0;
        }
    }
    // SAFETY: `message` points to `iov` and `control`, and `iov` to `text`, with their true lengths; the call only reads them.
    match unsafe { libc::sendmsg(ours.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
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
    let mut control = ControlBuffer([0; 64]);
    let control_bytes = control.0.len();
    let mut iov = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
    let mut message = message(&mut iov, &mut control);
    // SAFETY: `message` points to `iov` and `control`, and `iov` to `text`, with their true lengths; all are alive and not
    // otherwise borrowed during the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let len = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    text.truncate(len);
    // SAFETY: recvmsg has set `msg_controllen` to what it wrote into `control`, which is still alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    let mut files = Vec::new();
    if !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR is not null, so a whole header lies in `control`, which is aligned for it; CMSG_LEN computes.
        let (level, kind, len, len_of_none) = unsafe {
            let header = &*header;
            (header.cmsg_level, header.cmsg_type, header.cmsg_len, libc::CMSG_LEN(0))
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            let count =
                len.saturating_sub(len_of_none as usize).min(control_bytes) / size_of::<libc::c_int>();
            for number in 0..count {
                // SAFETY: the kernel wrote so many ints behind the header (`len`), all of them within
                // `control`; they may be unaligned. It has just made these descriptors for us by SCM_RIGHTS,
                // and nothing else knows them: we own them.
                files.push(unsafe {
                    let descriptor = libc::CMSG_DATA(header).cast::<libc::c_int>().add(number);
                    File::from_raw_fd(descriptor.read_unaligned())
                });
            }
        }
    }
    // With several descriptors it is unclear which one is meant; all are closed.
    let file = if files.len() == 1 { files.pop() } else { None };
    Ok((String::from_utf8_lossy(&text).into_owned(), file))
}

/// Passes descriptors to the child that `command` starts; [`take_passed`] finds them there.
///
/// The files must stay open until the child has been started.
pub fn pass_descriptors(command: &mut Command, files: &[(String, File)]) {
    let list: Vec<String> = files.iter().map(|(name, file)| format!("{}:{name}", file.as_raw_fd())).collect();
    command.env(PASSED_FDS_VARIABLE, list.join(" "));
    let fds: Vec<RawFd> = files.iter().map(|(_, file)| file.as_raw_fd()).collect();
    let keep = move || {
        for fd in &fds {
            // SAFETY: F_SETFD takes an int and touches no memory. `fd` is open: the caller keeps the files until the child runs,
            // and this runs in the child, which has a copy of all descriptors.
            checked(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `keep` makes one kind, fcntl, which is; an error
    // made from errno allocates nothing.
    unsafe { command.pre_exec(keep) };
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
            let count = text("LISTEN_FDS").and_then(|count| count.parse::<RawFd>().ok()).unwrap_or(0);
            let names = text("LISTEN_FDNAMES").unwrap_or_default();
            let count = if ours { count.clamp(0, 64) } else { 0 };
            (LISTEN_FDS_START..).zip(names.split(':').map(str::to_owned)).take(count as usize).collect()
        }
    };
    let valid = pairs.into_iter().filter(|(fd, _)| {
        // SAFETY: F_SETFD takes an int and touches no memory; a number that is no open descriptor is an error.
        *fd > 2 && unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) } != -1
    });
    // SAFETY: the parent opened these descriptors for this process alone and said so in the environment,
    // which is read once. They are open, and nothing else here has them, because no other code reads that
    // variable.
    valid.map(|(fd, name)| (name, unsafe { File::from_raw_fd(fd) })).collect()
}

/// An anonymous file in memory, which lives as long as a process has it open.
pub fn memory_file(name: &str) -> io::Result<File> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the pointer is to a zero-terminated string that outlives the call, which only reads it.
    let fd = checked(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: memfd_create has just made this descriptor, and nothing else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Whether the connection behind a descriptor of `/dev/fuse` has ended by unmount or abort.
pub fn is_disconnected(device: &File) -> bool {
    let mut query = libc::pollfd { fd: device.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the pointer is to one pollfd that outlives the call; it waits for nothing.
    let found = unsafe { libc::poll(&raw mut query, 1, 0) };
    found > 0 && query.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
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
    words: *const AtomicU64,
}

// SAFETY: the mapping is shared memory that is only touched through atomics.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> io::Result<Ledger> {
        let file = memory_file("terrane-ledger")?;
        // Sparse: pages are allocated as they are written.
        file.set_len(LEDGER_BYTES as u64)?;
        Ledger::map(file)
    }

    /// The ledger of a predecessor.
    pub fn map(file: File) -> io::Result<Ledger> {
        if file.metadata()?.len() != LEDGER_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "ledger refused: wrong size"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of exactly this length that
        // nothing shortens: it has no name, and only processes of this program hold it.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), LEDGER_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ledger { file, words: start.cast_const().cast() })
    }

    /// The file of the ledger, to pass to another process.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < LEDGER_BYTES / 8, "a word of the mapping");
        // SAFETY: `at` is within the mapping, which lives as long as self, is page-aligned, and is touched by atomics only.
        unsafe { &*self.words.add(at) }
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

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and no reference into it outlives self.
        unsafe { libc::munmap(self.words.cast_mut().cast(), LEDGER_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

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
        assert!(!is_listening(path.as_os_str()), "a socket that was left behind");
        std::fs::remove_file(path).unwrap();
    }

    fn several_at_once_are_closed(path: &Path, holder: &UnixDatagram) {
        let (reader, writer) = io::pipe().unwrap();
        let theirs = UnixDatagram::unbound().unwrap();
        theirs.connect(path).unwrap();
        let mut control = ControlBuffer([0; 64]);
        let text = b"FDSTORE=1\nFDNAME=x";
        let mut iov = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
        let mut message = message(&mut iov, &mut control);
        // SAFETY: as in `send`, with space for three descriptors.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(3 * fd_bytes()) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(3 * fd_bytes()) as usize;
            let descriptors = libc::CMSG_DATA(header).cast::<libc::c_int>();
            (0..3).for_each(|number| descriptors.add(number).write_unaligned(writer.as_raw_fd()));
            assert!(libc::sendmsg(theirs.as_raw_fd(), &raw const message, 0) > 0);
        }
        drop(writer);
        assert!(receive(holder).unwrap().1.is_none());
        // The last writer has gone, so the poll returns end of file at once.
        let mut query = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one pollfd that outlives the call; it waits for nothing.
        assert_eq!(unsafe { libc::poll(&raw mut query, 1, 0) }, 1, "all were closed");
        assert!(query.revents & libc::POLLHUP != 0);
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
        pass_descriptors(&mut command, &files);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "for you");
        assert!(String::from_utf8_lossy(&output.stderr).ends_with(":name\n"));
    }

    #[test]
    fn the_ledger_knows_what_came_after_a_commit() {
        let ledger = Ledger::new().unwrap();
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
