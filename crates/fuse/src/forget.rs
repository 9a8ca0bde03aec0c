//! Having the kernel forget what it holds of files, in a process of its own.
//!
//! After a crash the kernel may remember contents that were lost with the server ([`crate::Session::resume`]). To forget them it
//! waits, inside our write, for pages that are locked until a READ of them is answered; and no signal ends that wait, SIGKILL neither. A
//! thread of the server that waits so keeps the server from ending when it is killed: its holder does not hear of it, and the
//! successor is not started, for whose answer the thread waits. So another process waits. When its server dies it stays behind,
//! until the next one has answered or the mount is gone.
//!
//! Invariant: that process has the connection and the list of nodes, and nothing else that a successor needs.

use crate::handover;
use crate::launder::{self, CONNECTION, ORDERS};
use crate::notify::Notifier;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

const NODES: &str = "nodes";

/// Starts `program`, which is to call [`run`]. What it says on standard error is for who waits for it.
pub(crate) fn start(mut program: Command, connection: File, nodes: &[u64]) -> io::Result<Child> {
    let list = handover::memory_file("terrane-forget")?;
    let raw: Vec<u8> = nodes.iter().flat_map(|node| node.to_le_bytes()).collect();
    list.write_all_at(&raw, 0)?;
    let files = [(CONNECTION.to_owned(), connection), (NODES.to_owned(), list)];
    handover::give(&mut program, &files);
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
}

/// What the program does that [`crate::Session::resume`] or a [`launder::Launderer`] starts: returns when the kernel has forgotten
/// all it was to forget, or the server that gives orders has gone.
///
/// # Errors
/// When this process was given nothing; and the first of those that the kernel answered with, after it was asked for every node.
pub fn run() -> io::Result<()> {
    let mut given = handover::take_given();
    let mut take = |name: &str| {
        let at = given.iter().position(|(given, _)| given == name)?;
        Some(given.swap_remove(at).1)
    };
    let (connection, list, orders) = (take(CONNECTION), take(NODES), take(ORDERS));
    drop(given);
    match (connection.map(Notifier::new), list, orders) {
        (Some(notifier), Some(list), _) => forget_all(&notifier, &list),
        (Some(notifier), None, Some(orders)) => launder::serve(&notifier, orders),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "only the server of a mount starts this")),
    }
}

fn forget_all(notifier: &Notifier, list: &File) -> io::Result<()> {
    let mut raw = vec![0; usize::try_from(list.metadata()?.len()).map_err(io::Error::other)?];
    list.read_exact_at(&mut raw, 0)?;
    let (mut count, mut first) = (0u64, None);
    for node in raw.as_chunks().0.iter().map(|node| u64::from_le_bytes(*node)) {
        match notifier.forget_contents(node) {
            Ok(_) => {}
            // The mount went away meanwhile.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENODEV | libc::ECONNABORTED | libc::ENOTCONN | libc::EPERM)
                ) =>
            {
                break;
            }
            Err(error) => {
                count += 1;
                first.get_or_insert((node, error));
            }
        }
    }
    match first {
        Some((node, error)) => Err(io::Error::other(format!("{count} nodes, the first is {node}: {error}"))),
        None => Ok(()),
    }
}
