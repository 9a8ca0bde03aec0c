//! Intents: what has changed since the last commit, as records in memory.
//!
//! An `fsync` hands records to the pool's intent log, which is cheaper than a commit. There are two kinds of lists. The
//! *names* are all changes of names and attributes in their order. The *contents* are one list for each inode: writes,
//! sizes, ranges. An `fsync` logs all names, and the contents of its inode. So a log never has a change of names
//! without all changes of names before it, nor one of an inode's contents without all contents of that inode before it.
//! No other dependency between changes matters: a renamed file takes its contents along to the names.
//!
//! Records are kept by txg, and vanish with the commit of their txg. What has no record, or too many bytes of records,
//! needs a commit. It is *marked*: an inode in its txg, or the whole file system in [`Intents::lost_txg`].
//!
//! Invariant: for each txg that is not durable, a list without a mark, together with the frames that were handed to the
//! log, has all changes of that txg that belong into it.

use crate::errno::Errno;
use crate::record::Record;
use crate::types::{Ino, Time};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_format::log::Frame;
use terrane_pool::Pool;
use terrane_store::log::{LogFailed, LogTicket};
use terrane_wire::{IdMap, ObjsetId, Txg, Writer};

/// How long a change waits before it asks again for space that is promised to others.
const PROMISE_WAIT_NS: u64 = 1_000_000;
/// Most bytes of all lists together.
pub(crate) const LISTS_BYTES_MAX: usize = 16 << 20;

thread_local! {
    /// The record that this thread encodes.
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What an operation says about its change, once it is made.
pub(crate) enum Intent<'a> {
    /// A crash may undo it, or nobody can see it.
    Nothing,
    /// Names and attributes.
    Names(Record<'a>),
    /// Names and attributes, where inodes get or lose names.
    Renamed {
        record: Record<'a>,
        /// They have a new name, so their contents go along.
        moved: [Option<Ino>; 2],
        /// It has no name any more and never gets one again, so its contents do not matter.
        unlinked: Option<Ino>,
    },
    /// The contents of this inode, and with them its attributes.
    Content(Ino, Record<'a>),
    /// Contents of this inode, without a record.
    Unrecorded(Ino),
    /// Contents of this inode, with a record that fits only if all changes before it are repeated, of whatever inode.
    Kept(Ino, Record<'a>),
    /// Contents of an inode that a crash of the machine ends.
    Nameless(Record<'a>),
}

impl Intent<'_> {
    fn record(&self) -> Option<&Record<'_>> {
        match self {
            Intent::Nothing | Intent::Unrecorded(_) => None,
            Intent::Names(record)
            | Intent::Renamed { record, .. }
            | Intent::Content(_, record)
            | Intent::Kept(_, record)
            | Intent::Nameless(record) => Some(record),
        }
    }
}

/// Keeps all changes that no commit contains, in memory that outlives the process.
pub trait ChangeKeeper: Send + Sync {
    /// Promises space for a change of so many bytes. False: there is none until older changes are durable.
    fn reserve(&self, bytes: usize) -> bool;

    /// Whether at least half of the space is taken or promised.
    fn is_half_taken(&self) -> bool {
        false
    }

    /// Gives a promise back.
    fn unreserve(&self, bytes: usize);

    /// Keeps a change of this txg and with this number, in its pieces one behind the other. It does not wait.
    fn keep(&self, txg: Txg, change: u64, pieces: &[&[u8]]);

    /// Changes up to this txg are durable.
    fn release(&self, durable: Txg);
}

/// Space that is promised for a change.
pub(crate) struct Promise<'i> {
    keeper: Option<&'i dyn ChangeKeeper>,
    bytes: usize,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper {
            keeper.unreserve(self.bytes);
        }
    }
}

/// The log that takes the records.
pub(crate) trait IntentLog: Send + Sync {
    /// See [`Pool::next_change`].
    fn next_change(&self) -> u64;
    /// See [`Pool::log_bytes_max`].
    fn bytes_max(&self) -> usize;
    /// Most bytes of all lists together. Tests have less.
    fn lists_bytes_max(&self) -> usize {
        LISTS_BYTES_MAX
    }
    /// See [`Pool::log`].
    fn log(&self, frames: Vec<u8>, newest: Txg) -> Option<Ticket>;
    /// See [`Pool::log_full_until`].
    fn full_until(&self, _bytes: usize) -> Option<Ticket> {
        None
    }
    /// See [`Pool::want_log`].
    fn want(&self) {}
    /// See [`Pool::request_commit`].
    fn request_commit(&self) {}
    /// See [`Pool::has_log_failed`].
    fn has_failed(&self, ticket: Ticket) -> bool;
    /// See [`Pool::wait_logged`].
    fn wait(&self, ticket: Ticket) -> Result<(), LogFailed>;
    /// The newest durable txg.
    fn synced_txg(&self) -> u64;
}

/// Names all frames that were logged until then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ticket {
    Pool(LogTicket),
    #[cfg(test)]
    Test(u64),
}

/// Records that were logged, and may not be durable yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWait {
    ticket: Ticket,
    /// The newest txg of them.
    txg: u64,
}

/// What makes the changes of an inode durable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Logged {
    /// They are.
    Durable,
    /// [`Intents::wait_logged`].
    Waits(LogWait),
    /// Nothing was logged, because the log is full until these records are written.
    Full(LogWait),
    NeedsCommit,
}

/// The pool's log.
pub(crate) struct PoolLog(pub Arc<Pool>);

impl IntentLog for PoolLog {
    fn next_change(&self) -> u64 {
        self.0.next_change()
    }

    fn bytes_max(&self) -> usize {
        self.0.log_bytes_max()
    }

    fn full_until(&self, bytes: usize) -> Option<Ticket> {
        self.0.log_full_until(bytes).map(Ticket::Pool)
    }

    fn want(&self) {
        self.0.want_log();
    }

    fn request_commit(&self) {
        self.0.request_commit();
    }

    fn log(&self, frames: Vec<u8>, newest: Txg) -> Option<Ticket> {
        self.0.log(&frames, newest).map(Ticket::Pool)
    }

    fn has_failed(&self, ticket: Ticket) -> bool {
        match ticket {
            Ticket::Pool(ticket) => self.0.has_log_failed(ticket),
            #[cfg(test)]
            Ticket::Test(_) => false,
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<(), LogFailed> {
        match ticket {
            Ticket::Pool(ticket) => self.0.wait_logged(ticket),
            #[cfg(test)]
            Ticket::Test(_) => Err(LogFailed),
        }
    }

    fn synced_txg(&self) -> u64 {
        self.0.synced_txg().0
    }
}

/// No log: all changes need a commit.
pub(crate) struct NoLog;

impl IntentLog for NoLog {
    fn next_change(&self) -> u64 {
        0
    }

    fn bytes_max(&self) -> usize {
        0
    }

    fn log(&self, _: Vec<u8>, _: Txg) -> Option<Ticket> {
        None
    }

    fn has_failed(&self, _: Ticket) -> bool {
        false
    }

    fn wait(&self, _: Ticket) -> Result<(), LogFailed> {
        Err(LogFailed)
    }

    fn synced_txg(&self) -> u64 {
        0
    }
}

/// Frames of an inode's contents.
#[derive(Default)]
struct Contents {
    frames: Vec<u8>,
    /// There were more, or some without a record. Then there are no frames.
    is_marked: bool,
}

/// The records of one txg.
#[derive(Default)]
struct TxgIntents {
    txg: u64,
    /// Frames.
    names: Vec<u8>,
    contents: IdMap<Ino, Contents>,
}

#[derive(Default)]
struct Lists {
    /// Oldest first. Only the last one gets records.
    txgs: VecDeque<TxgIntents>,
    /// Bytes of all frames.
    bytes: usize,
    /// The newest frames that were logged, and their txg.
    logged: Option<(Ticket, u64)>,
}

impl Lists {
    /// Forgets what a commit has made durable. The caller drops it after the lock.
    fn take_durable(&mut self, synced: u64) -> Vec<TxgIntents> {
        let mut durable = Vec::new();
        while let Some(oldest) = self.txgs.pop_front_if(|oldest| oldest.txg <= synced) {
            durable.push(oldest);
        }
        if !durable.is_empty() {
            self.count();
        }
        durable
    }

    fn count(&mut self) {
        let contents = |txg: &TxgIntents| txg.contents.values().map(|own| own.frames.len()).sum::<usize>();
        self.bytes = self.txgs.iter().map(|txg| txg.names.len() + contents(txg)).sum();
    }

    fn of_txg(&mut self, txg: u64) -> &mut TxgIntents {
        if self.txgs.back().is_none_or(|newest| newest.txg != txg) {
            self.txgs.push_back(TxgIntents { txg, ..TxgIntents::default() });
        }
        self.txgs.back_mut().expect("added above")
    }

    fn names_bytes(&self) -> usize {
        self.txgs.iter().map(|txg| txg.names.len()).sum()
    }

    fn contents_bytes(&self, ino: Ino) -> usize {
        self.txgs.iter().filter_map(|txg| txg.contents.get(&ino)).map(|own| own.frames.len()).sum()
    }

    fn is_marked(&self, ino: Ino) -> bool {
        self.txgs.iter().any(|txg| txg.contents.get(&ino).is_some_and(|own| own.is_marked))
    }

    /// Forgets an inode's contents, and its mark.
    fn drop_contents(&mut self, ino: Ino) {
        for txg in &mut self.txgs {
            self.bytes -= txg.contents.remove(&ino).map_or(0, |own| own.frames.len());
        }
    }

    /// The contents of an inode need a commit of this txg.
    fn mark(&mut self, txg: u64, ino: Ino) {
        self.drop_contents(ino);
        self.of_txg(txg).contents.insert(ino, Contents { frames: Vec::new(), is_marked: true });
    }

    /// The contents of all inodes need a commit of this txg. Returns their frames.
    fn mark_all(&mut self, newest: u64) -> Vec<TxgIntents> {
        let mut marked = Vec::new();
        for txg in &mut self.txgs {
            let contents = std::mem::take(&mut txg.contents);
            marked.push(TxgIntents { txg: txg.txg, names: Vec::new(), contents });
        }
        let marks = &mut self.of_txg(newest).contents;
        for ino in marked.iter().flat_map(|txg| txg.contents.keys()) {
            marks.insert(*ino, Contents { frames: Vec::new(), is_marked: true });
        }
        self.count();
        marked
    }

    /// Puts an inode's contents to the names. False: they need a commit.
    fn move_to_names(&mut self, ino: Ino) -> bool {
        if self.is_marked(ino) {
            return false;
        }
        for txg in &mut self.txgs {
            if let Some(own) = txg.contents.remove(&ino) {
                txg.names.extend_from_slice(&own.frames);
            }
        }
        true
    }

    /// Takes all names, and an inode's contents.
    fn take(&mut self, ino: Ino) -> Vec<u8> {
        let mut taken = Vec::new();
        let mut append = |frames: Vec<u8>| match taken.is_empty() {
            true => taken = frames,
            false => taken.extend_from_slice(&frames),
        };
        for txg in &mut self.txgs {
            append(std::mem::take(&mut txg.names));
            txg.contents.remove(&ino).into_iter().for_each(|own| append(own.frames));
        }
        self.bytes -= taken.len();
        taken
    }
}

/// The records of a file system.
pub(crate) struct Intents {
    log: Box<dyn IntentLog>,
    set: ObjsetId,
    lists: Mutex<Lists>,
    keeper: OnceLock<Box<dyn ChangeKeeper>>,
    /// Newest txg of a change whose record is lost: until it is durable, no record may be logged. Changes under the lock of
    /// `lists`, except where nothing is recorded.
    lost_txg: AtomicU64,
    /// The durable txg when a commit was last requested because half of the keeper's space was taken.
    requested_at: AtomicU64,
}

impl Intents {
    pub fn new(log: Box<dyn IntentLog>, set: ObjsetId) -> Self {
        let (lists, keeper, lost_txg) = (Mutex::default(), OnceLock::new(), AtomicU64::new(0));
        Intents { log, set, lists, keeper, lost_txg, requested_at: AtomicU64::new(u64::MAX) }
    }

    /// From now on all changes are kept.
    pub fn set_keeper(&self, keeper: Box<dyn ChangeKeeper>) {
        // The first one stays: another one would lack what came before.
        let _ = self.keeper.set(keeper);
    }

    fn keeper(&self) -> Option<&dyn ChangeKeeper> {
        self.keeper.get().map(AsRef::as_ref)
    }

    /// Whether all changes are kept.
    pub fn keeps_changes(&self) -> bool {
        self.keeper.get().is_some()
    }

    /// Promises space for a change. It may wait for `commit`, or by `wait` for some nanoseconds. So the caller has joined no txg and
    /// holds no lock.
    pub fn promise(
        &self,
        bytes: usize,
        commit: &dyn Fn() -> Result<(), Errno>,
        wait: &dyn Fn(u64),
    ) -> Result<Promise<'_>, Errno> {
        let keeper = self.keeper();
        if let Some(keeper) = keeper {
            while !keeper.reserve(bytes) {
                keeper.release(Txg(self.log.synced_txg()));
                if keeper.reserve(bytes) {
                    break;
                }
                let before = self.log.synced_txg();
                commit()?;
                let synced = self.log.synced_txg();
                keeper.release(Txg(synced));
                if synced == before {
                    // The space is promised to others, which wait to join a txg.
                    wait(PROMISE_WAIT_NS);
                }
            }
        }
        if let Some(keeper) = keeper.filter(|keeper| keeper.is_half_taken()) {
            self.free_half(keeper);
        }
        Ok(Promise { keeper, bytes })
    }

    /// Begins a commit, so that the other half of the keeper's space is taken while it runs. Until a txg is durable, no other one is
    /// requested.
    #[cold]
    fn free_half(&self, keeper: &dyn ChangeKeeper) {
        let synced = self.log.synced_txg();
        keeper.release(Txg(synced));
        if keeper.is_half_taken() && self.requested_at.swap(synced, Ordering::Relaxed) != synced {
            self.log.request_commit();
        }
    }

    /// Whether a change of this txg is to be recorded, for the log or because it is kept.
    pub fn wants(&self, txg: Txg) -> bool {
        self.records(txg) || self.keeps_changes()
    }

    /// Whether a change of this txg should be recorded for the log. If not, it has been noted that it needs a commit.
    fn records(&self, txg: Txg) -> bool {
        if self.lost_txg.load(Ordering::Acquire) >= txg.0 {
            return false;
        }
        if self.log.bytes_max() == 0 {
            self.lost_txg.fetch_max(txg.0, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// A change of this txg has no record: all changes until then need a commit.
    pub fn lose(&self, txg: Txg) {
        let lost = self.lose_all(&mut self.lists.lock(), txg.0);
        drop(lost);
    }

    /// Returns the records, for the caller to drop after the lock.
    fn lose_all(&self, lists: &mut Lists, txg: u64) -> VecDeque<TxgIntents> {
        self.lost_txg.fetch_max(txg, Ordering::AcqRel);
        lists.bytes = 0;
        std::mem::take(&mut lists.txgs)
    }

    /// Records a change. The caller is in the txg and has locked the inodes that it has changed.
    pub fn add(&self, txg: Txg, (now, has_acls): (Time, bool), intent: &Intent<'_>) {
        let Some(record) = intent.record() else {
            return if let Intent::Unrecorded(ino) = intent {
                self.lists.lock().mark(txg.0, *ino)
            };
        };
        let bytes_max = self.log.bytes_max();
        let is_small = record.bytes_min() <= bytes_max;
        let is_logged = self.records(txg)
            && match intent {
                Intent::Kept(ino, _) => {
                    self.lists.lock().mark(txg.0, *ino);
                    false
                }
                Intent::Nameless(_) => false,
                _ if !is_small => {
                    self.drop_large(txg, intent);
                    false
                }
                _ => true,
            };
        if !is_logged && self.keeper.get().is_none() {
            return;
        }
        BODY.with_borrow_mut(|body| {
            body.clear();
            let mut writer = Writer::from(std::mem::take(body));
            record.write_head(now, &mut writer);
            *body = writer.into_bytes();
            if !has_acls {
                Record::mark_without_acls(body);
            }
            let change = self.log.next_change();
            if let Some(keeper) = self.keeper() {
                keeper.keep(txg, change, &[body, record.tail()]);
            }
            if is_logged {
                body.extend_from_slice(record.tail());
                let unused = self.append((txg, change), intent, body, bytes_max);
                drop(unused);
            }
            if body.capacity() > bytes_max {
                *body = Vec::new();
            }
        });
    }

    fn drop_large(&self, txg: Txg, intent: &Intent<'_>) {
        match intent {
            Intent::Content(ino, _) => self.lists.lock().mark(txg.0, *ino),
            _ => self.lose(txg),
        }
    }

    /// Returns records that are durable or lost, for the caller to drop after the lock.
    fn append(
        &self,
        (txg, change): (Txg, u64),
        intent: &Intent<'_>,
        body: &[u8],
        bytes_max: usize,
    ) -> Vec<TxgIntents> {
        let lists = &mut *self.lists.lock();
        if self.lost_txg.load(Ordering::Acquire) >= txg.0 {
            return Vec::new();
        }
        let is_new_txg = lists.txgs.back().is_none_or(|newest| newest.txg != txg.0);
        let mut unused = if is_new_txg { lists.take_durable(self.log.synced_txg()) } else { Vec::new() };
        let frame = Frame { set: self.set, change, txg, body };
        let newest = lists.of_txg(txg.0);
        let (list, owner) = match intent {
            Intent::Content(ino, _) => {
                let own = newest.contents.entry(*ino).or_default();
                if own.is_marked {
                    return unused;
                }
                (&mut own.frames, Some(*ino))
            }
            _ => (&mut newest.names, None),
        };
        let before = list.len();
        frame.append_to(list);
        lists.bytes += list.len() - before;
        if let Intent::Renamed { moved, unlinked, .. } = intent {
            unlinked.iter().for_each(|ino| lists.drop_contents(*ino));
            for ino in moved.iter().flatten() {
                if !lists.move_to_names(*ino) {
                    unused.extend(self.lose_all(lists, txg.0));
                    return unused;
                }
            }
        }
        let is_too_large = |lists: &Lists| {
            let own = owner.map_or_else(|| lists.names_bytes(), |ino| lists.contents_bytes(ino));
            (own > bytes_max, lists.bytes > self.log.lists_bytes_max())
        };
        if is_too_large(lists) != (false, false) {
            unused.append(&mut lists.take_durable(self.log.synced_txg()));
        }
        match (is_too_large(lists), owner) {
            ((true, false), Some(ino)) => lists.mark(txg.0, ino),
            ((false, false), _) => {}
            // Many files were written and not synced. Names stay, and so does what other files get from now on.
            ((_, true), Some(_)) => unused.extend(lists.mark_all(txg.0)),
            _ => unused.extend(self.lose_all(lists, txg.0)),
        }
        unused
    }

    /// All frames that no `fsync` has taken.
    #[cfg(test)]
    pub fn all_frames(&self) -> Vec<u8> {
        let lists = self.lists.lock();
        let contents =
            |txg: &TxgIntents| txg.contents.values().map(|own| own.frames.clone()).collect::<Vec<_>>();
        lists
            .txgs
            .iter()
            .flat_map(|txg| [vec![txg.names.clone()], contents(txg)].concat())
            .flatten()
            .collect()
    }

    /// Logs all names and the contents of an inode, and does not wait.
    pub fn log_changes(&self, ino: Ino) -> Logged {
        let synced = self.log.synced_txg();
        let is_lost = || self.lost_txg.load(Ordering::Acquire) > synced;
        let mut locked = self.lists.lock();
        let lists = &mut *locked;
        let durable = lists.take_durable(synced);
        let bytes = lists.names_bytes() + lists.contents_bytes(ino);
        let bytes_max = self.log.bytes_max();
        if bytes_max == 0 {
            self.log.want();
        }
        if bytes_max == 0 || is_lost() || lists.is_marked(ino) || bytes > bytes_max {
            return Logged::NeedsCommit;
        }
        // Another caller's wait has failed, and perhaps it does not know yet. The log may go on meanwhile.
        if let Some((ticket, txg)) = lists.logged.filter(|(_, txg)| *txg > synced)
            && self.log.has_failed(ticket)
        {
            let newest = lists.txgs.back().map_or(txg, |newest| newest.txg.max(txg));
            let lost = self.lose_all(lists, newest);
            drop(locked);
            drop(lost);
            return Logged::NeedsCommit;
        }
        if let (1.., Some(newest)) = (bytes, lists.txgs.back().map(|newest| newest.txg)) {
            // Many callers have large records, perhaps of another data set.
            if let Some(ticket) = self.log.full_until(bytes) {
                return Logged::Full(LogWait { ticket, txg: newest });
            }
            match self.log.log(lists.take(ino), Txg(newest)) {
                Some(ticket) => lists.logged = Some((ticket, newest)),
                None => {
                    let lost = self.lose_all(lists, newest);
                    drop(locked);
                    drop(lost);
                    return Logged::NeedsCommit;
                }
            }
        }
        // Records that were logged before this call may concern the inode too.
        lists.logged = lists.logged.filter(|(_, txg)| *txg > synced);
        let logged = lists.logged;
        drop(locked);
        drop(durable);
        logged.map_or(Logged::Durable, |(ticket, txg)| Logged::Waits(LogWait { ticket, txg }))
    }

    /// Waits until logged records are durable. False: they need a commit.
    pub fn wait_logged(&self, LogWait { ticket, txg }: LogWait) -> bool {
        let waited = self.log.wait(ticket);
        // Their failure need not make others commit once more.
        if waited.is_err() && self.log.synced_txg() >= txg {
            return true;
        }
        if waited.is_err() {
            let mut lists = self.lists.lock();
            let newest = lists.txgs.back().map_or(txg, |newest| newest.txg.max(txg));
            let lost = self.lose_all(&mut lists, newest);
            drop(lists);
            drop(lost);
        }
        waited.is_ok()
    }

    /// Both, for tests.
    #[cfg(test)]
    pub fn make_durable(&self, ino: Ino) -> bool {
        match self.log_changes(ino) {
            Logged::Durable => true,
            Logged::Waits(wait) => self.wait_logged(wait),
            Logged::Full(_) | Logged::NeedsCommit => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A pool that commits when a test says so, and counts requests.
    #[derive(Default)]
    struct Counted {
        synced: AtomicU64,
        requests: AtomicUsize,
        waits: AtomicUsize,
    }

    impl IntentLog for Arc<Counted> {
        fn next_change(&self) -> u64 {
            1
        }

        fn bytes_max(&self) -> usize {
            0
        }

        fn log(&self, _: Vec<u8>, _: Txg) -> Option<Ticket> {
            None
        }

        fn request_commit(&self) {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }

        fn has_failed(&self, _: Ticket) -> bool {
            false
        }

        fn wait(&self, _: Ticket) -> Result<(), LogFailed> {
            Err(LogFailed)
        }

        fn synced_txg(&self) -> u64 {
            self.synced.load(Ordering::Relaxed)
        }
    }

    /// Space for so many changes, whose txgs it remembers.
    struct Slots(Mutex<Vec<u64>>, usize);

    impl ChangeKeeper for Arc<Slots> {
        fn reserve(&self, _: usize) -> bool {
            self.0.lock().len() < self.1
        }

        fn is_half_taken(&self) -> bool {
            self.0.lock().len() >= self.1 / 2
        }

        fn unreserve(&self, _: usize) {}

        fn keep(&self, txg: Txg, _: u64, _: &[&[u8]]) {
            self.0.lock().push(txg.0);
        }

        fn release(&self, durable: Txg) {
            self.0.lock().retain(|txg| *txg > durable.0);
        }
    }

    #[test]
    fn a_commit_is_requested_once_when_half_of_the_space_is_taken() {
        let pool = Arc::new(Counted::default());
        let slots = Arc::new(Slots(Mutex::default(), 100));
        let intents = Intents::new(Box::new(Arc::clone(&pool)), ObjsetId(1));
        intents.set_keeper(Box::new(Arc::clone(&slots)));
        let commit = || -> Result<(), Errno> {
            pool.waits.fetch_add(1, Ordering::Relaxed);
            pool.synced.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let change = |txg| {
            drop(intents.promise(10, &commit, &|_| panic!("no other caller has a promise")).unwrap());
            slots.keep(Txg(txg), 0, &[]);
        };
        let counts = || (pool.requests.load(Ordering::Relaxed), pool.waits.load(Ordering::Relaxed));
        (0..50).for_each(|_| change(1));
        assert_eq!(counts(), (0, 0), "less than half was taken");
        (0..25).for_each(|_| change(1));
        assert_eq!(counts(), (1, 0), "once");
        // Writers went on in the next txg while that commit ran.
        (0..20).for_each(|_| change(2));
        pool.synced.store(1, Ordering::Relaxed);
        (0..30).for_each(|_| change(2));
        assert_eq!((counts(), slots.0.lock().len()), ((1, 0), 50), "the first half was given back");
        (0..10).for_each(|_| change(2));
        assert_eq!(counts(), (2, 0), "once for each half");
        // The commit is slow: writers use all that is left, and wait at the end.
        (0..40).for_each(|_| change(3));
        assert_eq!(counts(), (2, 0));
        change(3);
        assert_eq!(counts().1, 1);
    }
}
