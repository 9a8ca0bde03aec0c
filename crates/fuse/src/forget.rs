//! Has the kernel forget what it caches of files, from a helper process.
//!
//! After a crash the kernel may cache contents that were lost with the server ([`crate::Session::resume`]).
//! To drop them, the kernel waits inside our write of the notification. It waits for locked pages, until a
//! READ of them is answered, and no signal ends that wait, not even SIGKILL. A server thread that waited
//! there would keep a killed server from exiting. The supervisor would not see the exit and would not start the
//! successor, whose answer the thread waits for. So another process waits. When its server dies, it stays
//! until the next server has answered or the mount is gone.
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

/// Starts `program`, which must call [`run`]. It tells the kernel to drop its cached pages of these nodes. `connection` is
/// the mount's `/dev/fuse`. The caller must wait for the process, whose standard error says what failed.
pub fn start(mut program: Command, connection: File, nodes: &[u64]) -> io::Result<Child> {
    let list = handover::memory_file("terrane-forget")?;
    let raw: Vec<u8> = nodes.iter().flat_map(|node| node.to_le_bytes()).collect();
    list.write_all_at(&raw, 0)?;
    let files = [(CONNECTION.to_owned(), connection), (NODES.to_owned(), list)];
    handover::pass_descriptors(&mut program, &files)?;
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
}

/// The body of the program that [`crate::Session::resume`] or a [`launder::Launderer`] starts. Returns when
/// the kernel has forgotten everything in the list, or when the server that gives orders has gone.
///
/// # Errors
/// If this process was given nothing; or the first error of the kernel, after every node was tried.
pub fn run() -> io::Result<()> {
    let mut given = handover::take_passed();
    let mut take = |name: &str| {
        let at = given.iter().position(|(given, _)| given == name)?;
        Some(given.swap_remove(at).1)
    };
    let (connection, list, orders) = (take(CONNECTION), take(NODES), take(ORDERS));
    drop(given);
    match (connection.map(Notifier::new), list, orders) {
        (Some(notifier), Some(list), _) => invalidate_all(&notifier, &list),
        (Some(notifier), None, Some(orders)) => launder::serve(&notifier, orders),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "refused: expected to be started by the server of a mount",
        )),
    }
}

fn invalidate_all(notifier: &Notifier, list: &File) -> io::Result<()> {
    let mut raw = vec![0; usize::try_from(list.metadata()?.len()).map_err(io::Error::other)?];
    list.read_exact_at(&mut raw, 0)?;
    let (mut count, mut first) = (0u64, None);
    for node in raw.as_chunks().0.iter().map(|node| u64::from_le_bytes(*node)) {
        match notifier.invalidate_contents(node) {
            Ok(_) => {}
            // The mount has gone meanwhile.
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
        Some((node, error)) => {
            Err(io::Error::other(format!("invalidating {count} nodes failed, first node {node}: {error}")))
        }
        None => Ok(()),
    }
}
