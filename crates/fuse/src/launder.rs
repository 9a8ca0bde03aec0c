//! Has the kernel write back stores through mappings, and drop those pages, before a request is answered.
//!
//! A store into a shared mapping changes a page of the kernel's cache. No request tells the server of the
//! mapping or of the store. Until the kernel writes the page back, the server does not have those bytes. Some
//! answers are wrong without them, above all that a range of a file is a hole: `cp` believes it, and copies
//! nothing from there.
//!
//! NOTIFY_INVAL_INODE writes back the dirty pages of a range (the kernel calls that *laundering*) and drops
//! the range. The kernel sends the WRITEs while the notification waits, and no signal ends that wait. So a
//! helper process sends the notification, for the reason given in [`crate::forget`]. The helper is started on
//! first use, and ends with its server.
//!
//! The WRITEs need a thread that answers them. Of the threads that read `/dev/fuse` only one at a time waits
//! here, but all lanes of a ring may. So every wait has a time limit, and a caller must have an answer that
//! is correct without laundering. SETATTR of a size and FALLOCATE must never wait here: meanwhile the kernel
//! sends no WRITE of that file.
//!
//! If a server without a supervisor is killed while its helper waits, the connection stays open until it is
//! aborted (`umount -f`).
//!
//! Invariant: the helper answers orders one by one, in the order in which they were sent.

use crate::handover;
use crate::notify::Notifier;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const CONNECTION: &str = "connection";
pub(crate) const ORDERS: &str = "orders";
/// Time limit for the kernel to write back a range.
const WRITE_BACK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for waiting for other threads that launder. All lanes of a ring may wait this long for the one
/// whose WRITEs need a lane.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(5);
/// Maximum number of files with deferred orders.
const DEFERRED_MAX: usize = 4096;
/// Maximum number of unanswered orders that no thread waits for. Their answers fit into the socket's buffer.
const UNANSWERED_MAX: usize = 64;
/// Time limit for a helper that missed a limit before.
const STUCK_TIMEOUT: Duration = Duration::from_millis(1);

terrane_wire::layout! {
    /// A range to launder. Passed between two processes of one machine; never
    /// stored.
    Order, 24 bytes {
        /// Node id of the file.
        0 node: u64,
        /// First byte.
        8 offset: u64,
        /// Length in bytes; 0: to the end.
        16 len: u64,
    }
}

/// Has pages of one mount laundered.
pub struct Launderer {
    connection: File,
    program: Box<dyn Fn() -> Command + Send + Sync>,
    helper: Mutex<Option<Helper>>,
    /// Deferred orders, by node; no thread waits for them. A leaf lock.
    deferred: Mutex<BTreeMap<u64, Range<u64>>>,
}

struct Helper {
    process: Child,
    orders: UnixStream,
    /// Orders without an answer so far.
    unanswered: usize,
    stuck: bool,
}

impl Launderer {
    /// `program` makes the command of a process that calls [`crate::forget::run`]; `connection` is the
    /// mount's `/dev/fuse`.
    pub fn new(connection: File, program: impl Fn() -> Command + Send + Sync + 'static) -> Self {
        Launderer {
            connection,
            program: Box::new(program),
            helper: Mutex::default(),
            deferred: Mutex::default(),
        }
    }

    /// Has the kernel write back earlier stores to this range of a file and drop the range from its cache.
    /// The end may be [`u64::MAX`]. False: it missed the time limit, or could not be asked.
    pub fn launder(&self, node: u64, range: Range<u64>) -> bool {
        let done = self.helper.try_lock_for(QUEUE_TIMEOUT).and_then(|mut slot| {
            self.send_order(&mut slot, node, &range, 0, |helper| helper.wait_for_answers(WRITE_BACK_TIMEOUT))
        });
        self.send_deferred();
        done.unwrap_or(false)
    }

    /// The same, deferred, for threads whose answer the kernel may wait for. Ranges of one file are merged.
    pub fn launder_deferred(&self, node: u64, range: Range<u64>) {
        {
            let mut deferred = self.deferred.lock();
            if deferred.len() >= DEFERRED_MAX && !deferred.contains_key(&node) {
                return log::warn!("fuse: dropping pages of node {node} skipped: queue full");
            }
            merge_range(&mut deferred, node, range);
        }
        self.send_deferred();
    }

    /// Sends the deferred orders. If another thread has the helper, that thread calls this when it is done.
    fn send_deferred(&self) {
        while !self.deferred.lock().is_empty() {
            let Some(mut slot) = self.helper.try_lock() else { return };
            let Some((node, range)) = self.deferred.lock().pop_first() else { return };
            if self.send_order(&mut slot, node, &range, UNANSWERED_MAX, |_| Ok(true)).is_none() {
                // The helper is busy or could not be started: the next caller tries again.
                merge_range(&mut self.deferred.lock(), node, range);
                return;
            }
        }
    }

    /// Sends an order if at most `unanswered_max` orders are unanswered, and calls `wait` for its answer.
    /// `None`: it was not sent.
    fn send_order(
        &self,
        slot: &mut Option<Helper>,
        node: u64,
        range: &Range<u64>,
        unanswered_max: usize,
        wait: impl Fn(&mut Helper) -> io::Result<bool>,
    ) -> Option<bool> {
        if range.is_empty() {
            return Some(true);
        }
        let len = if range.end == u64::MAX { 0 } else { range.end - range.start };
        let order = Order { node, offset: range.start, len }.encode();
        // A helper that ended is replaced, once.
        for _ in 0..2 {
            let helper = match slot.as_mut() {
                Some(helper) => helper,
                None => slot.insert(self.start().inspect_err(warn_helper_failed).ok()?),
            };
            let sent = helper.send(&order, unanswered_max).and_then(|sent| match sent {
                true => wait(helper).map(Some),
                false => Ok(None),
            });
            match sent {
                Ok(outcome) => return outcome,
                Err(error) => {
                    warn_helper_failed(&error);
                    if let Some(mut helper) = slot.take() {
                        let _ = helper.process.try_wait();
                    }
                }
            }
        }
        None
    }

    fn start(&self) -> io::Result<Helper> {
        let (ours, theirs) = UnixStream::pair()?;
        let files = [
            (CONNECTION.to_owned(), self.connection.try_clone()?),
            (ORDERS.to_owned(), File::from(OwnedFd::from(theirs))),
        ];
        let mut command = (self.program)();
        handover::pass_descriptors(&mut command, &files)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Helper { process: command.spawn()?, orders: ours, unanswered: 0, stuck: false })
    }
}

/// Merges the ranges of one file.
fn merge_range(deferred: &mut BTreeMap<u64, Range<u64>>, node: u64, range: Range<u64>) {
    let all = deferred.entry(node).or_insert(range.clone());
    *all = all.start.min(range.start)..all.end.max(range.end);
}

fn warn_helper_failed(error: &io::Error) {
    log::warn!("fuse: laundering helper failed: {error}");
}

impl Helper {
    /// Sends an order. False: more than `unanswered_max` older orders are unanswered, so it was not sent.
    fn send(&mut self, order: &[u8], unanswered_max: usize) -> io::Result<bool> {
        let timeout = if self.stuck || unanswered_max > 0 { STUCK_TIMEOUT } else { WRITE_BACK_TIMEOUT };
        if self.unanswered > unanswered_max && !self.wait_for_answers(timeout)? {
            return Ok(false);
        }
        self.orders.write_all(order)?;
        self.unanswered += 1;
        Ok(true)
    }

    /// Waits until all orders are answered. False: the time limit passed, or the kernel refused the last one.
    fn wait_for_answers(&mut self, timeout: Duration) -> io::Result<bool> {
        let until = Instant::now() + timeout;
        let mut errno = 0;
        while self.unanswered > 0 {
            let left = until.saturating_duration_since(Instant::now());
            self.orders.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let mut answer = [0; 4];
            match self.orders.read_exact(&mut answer) {
                Ok(()) => self.unanswered -= 1,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if timeout > STUCK_TIMEOUT && !self.stuck {
                        log::warn!("fuse: write-back of mapped pages timed out after {timeout:?}");
                        self.stuck = true;
                    }
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            errno = i32::from_le_bytes(answer);
        }
        self.stuck = false;
        if errno != 0 {
            log::debug!("fuse: laundering pages failed: {}", io::Error::from_raw_os_error(errno));
        }
        Ok(errno == 0)
    }
}

/// The helper's loop: carries out orders until its server has gone.
pub(crate) fn serve(notifier: &Notifier, mut orders: File) -> io::Result<()> {
    let mut raw = [0; Order::SIZE];
    loop {
        match orders.read_exact(&mut raw) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let Some(Order { node, offset, len }) = Order::decode(&raw) else { return Ok(()) };
        let outcome = notifier.invalidate_range(node, offset, len);
        let errno = outcome.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |_| 0);
        match orders.write_all(&errno.to_le_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            outcome => outcome?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper(program: &str) -> Helper {
        let (orders, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(program);
        command.stdin(OwnedFd::from(theirs.try_clone().unwrap())).stdout(OwnedFd::from(theirs));
        Helper { process: command.arg("1000").spawn().unwrap(), orders, unanswered: 0, stuck: false }
    }

    #[test]
    fn orders_that_wait_for_one_file_become_one_that_covers_them() {
        let mut deferred = BTreeMap::new();
        for range in [4096..8192, 0..100, 5000..u64::MAX] {
            merge_range(&mut deferred, 7, range);
        }
        merge_range(&mut deferred, 8, 1..2);
        assert_eq!(deferred, BTreeMap::from([(7, 0..u64::MAX), (8, 1..2)]));
    }

    #[test]
    fn a_helper_that_does_not_answer_costs_its_time_limit_once() {
        let mut silent = helper("sleep");
        assert!(silent.send(&[0; Order::SIZE], 0).unwrap());
        assert!(!silent.wait_for_answers(Duration::from_millis(20)).unwrap());
        let since = Instant::now();
        assert!(!silent.send(&[0; Order::SIZE], 0).unwrap());
        assert!(since.elapsed() < Duration::from_secs(5));
        assert_eq!(silent.unanswered, 1, "it gets no further order");
        silent.process.kill().unwrap();
        silent.process.wait().unwrap();
        assert!(silent.send(&[0; Order::SIZE], 0).is_err(), "it ended, and another is to be started");
    }
}
