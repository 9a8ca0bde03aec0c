//! `FSYNC` requests that wait for the intent log together.
//!
//! A thread that receives one hands its records to the log ([`super::Handler::begin_sync`]) and goes on receiving. One thread, the
//! *leader*, waits for all of them and sends the answers. So no thread sleeps for a request of its own, and none has to be woken.
//!
//! Invariant: while a request waits here, a leader is about to look for it. The leader's own request is under way until then, so a
//! drain waits for all.

use super::PendingAnswer;
use crate::proto::{Header, Request};
use parking_lot::Mutex;

/// A request that waits.
pub(super) struct WaitingSync<'h> {
    pub header: Header,
    pub request: Request<'static>,
    /// When its handler was called.
    pub began_ns: u64,
    pub pending: PendingAnswer<'h>,
}

/// A copy of a request that may wait here.
pub(super) fn detached(request: &Request<'_>) -> Option<Request<'static>> {
    match *request {
        Request::Fsync { data_only } => Some(Request::Fsync { data_only }),
        Request::Fsyncdir { data_only } => Some(Request::Fsyncdir { data_only }),
        _ => None,
    }
}

#[derive(Default)]
struct Waiting<'h> {
    list: Vec<WaitingSync<'h>>,
    has_leader: bool,
}

impl Waiting<'_> {
    fn lead(&mut self) -> bool {
        let leads = !self.has_leader && !self.list.is_empty();
        self.has_leader |= leads;
        leads
    }
}

/// The requests of a session that wait.
#[derive(Default)]
pub(super) struct Syncs<'h> {
    waiting: Mutex<Waiting<'h>>,
}

impl<'h> Syncs<'h> {
    /// True: the caller is the leader now.
    pub fn add(&self, sync: WaitingSync<'h>) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.list.push(sync);
        waiting.lead()
    }

    /// All that wait, for the leader.
    pub fn take(&self) -> Vec<WaitingSync<'h>> {
        std::mem::take(&mut self.waiting.lock().list)
    }

    /// The leader has answered what it took. True: others came meanwhile, and it goes on.
    pub fn lead_on(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.has_leader = false;
        waiting.lead()
    }
}
