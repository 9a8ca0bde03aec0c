//! A mount that shows one state of a data set after another.
//!
//! Another process writes the pool. Each state has a file system of its own, and the kernel is answered by the newest
//! one. Inodes keep their numbers, so open files and directories go on. The kernel caches names and attributes for a
//! moment only ([`CachePolicy::follows`](crate::cache_policy::CachePolicy)).
//!
//! Invariant: an answer comes from one state alone.

use crate::dispatch::Dispatch;
use crate::proto::Request;
use crate::reply::Reply;
use crate::session::{Call, Handler};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use terrane_posix::Errno;

/// Answers by the newest state.
pub struct Following {
    current: RwLock<Arc<Dispatch>>,
}

impl Following {
    /// Begins with a state. The mount is read-only.
    pub fn new(first: Dispatch) -> Following {
        Following { current: RwLock::new(Arc::new(first)) }
    }

    /// Answers by another state from now on. Returns the one before, which may still answer earlier requests.
    pub fn replace(&self, next: Dispatch) -> Arc<Dispatch> {
        std::mem::replace(&mut *self.current.write(), Arc::new(next))
    }

    fn current(&self) -> Arc<Dispatch> {
        Arc::clone(&self.current.read())
    }
}

impl Handler for Arc<Following> {
    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        loop {
            let state = self.current();
            let answer = state.handle(call, reply);
            let is_forget = matches!(call.request, Request::Forget { .. } | Request::BatchForget(_));
            // The kernel would take inodes that an older state names for those of this one.
            if is_forget || Arc::ptr_eq(&state, &self.current.read()) {
                return answer;
            }
            reply.clear();
        }
    }

    fn on_answered(&self, call: &Call<'_>, outcome: Result<(), Errno>, reply: &Reply, time: Duration) {
        self.current().on_answered(call, outcome, reply, time);
    }

    fn on_sent(&self, call: &Call<'_>) {
        self.current().on_sent(call);
    }

    fn monotonic_ns(&self) -> u64 {
        self.current.read().monotonic_ns()
    }

    fn on_parked(&self, time: Duration) {
        self.current().on_parked(time);
    }

    fn on_unmounted(&self) {
        self.current().on_unmounted();
    }
}
