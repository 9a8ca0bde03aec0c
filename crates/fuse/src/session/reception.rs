//! Which threads receive requests.
//!
//! A thread that sleeps in a read of `/dev/fuse` has to be woken for each request. Between two processors that takes longer than
//! most requests. So only as many threads *receive* as there is work for: they have *seats*. The others sleep here, where the
//! kernel wakes none of them. If there is one seat, its owner *polls* for some microseconds before it sleeps in the kernel.
//!
//! * When a request was received, others are waiting or it will take long, and no thread is left to receive, one more seat is given
//!   out. So requests of many callers are answered in parallel, in the end by all threads.
//! * If requests come one at a time, seats are given up until one is left.
//! * One of the sleeping threads is the *deputy*. While requests come, it looks at the clock twice in a millisecond. If no thread
//!   has received for that long, it takes a seat.
//! * Polling must pay: each request that came while a thread polled, or soon after one went to sleep, counts for it. A vain poll
//!   counts against it, and a thread that lost its processor while it polled against it most. On one processor no thread polls.
//!
//! Invariants:
//! * While threads sleep here, one of them is the deputy, or the one that was woken becomes it.
//! * When the session ends, each thread is woken and receives once more, so that it sees the end.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a thread polls. About twice what it takes to wake it.
const POLL_NS: u64 = 50_000;
/// How much later a thread that sleeps notices a request than one that polls.
const WAKE_NS: u64 = 30_000;
/// Two looks of a polling thread are further apart than that only if another thread got its processor.
const PREEMPTED_NS: u64 = 60_000;
const WATCH_NS: u64 = 500_000;
/// The deputy goes on looking for so long after the last request.
const WATCH_AFTER_NS: u64 = 20_000_000;
/// Requests that came one at a time are counted. From so many on, one seat is enough.
const ALONE_MIN: u32 = 64;
const ALONE_MAX: u32 = 128;
/// What a request costs that came beside another one. Even one caller brings some, because no program waits for a FORGET.
const NOT_ALONE: u32 = 16;

/// Bounds of what polling has earned, and what it costs.
const SCORE_MAX: i64 = 64;
const VAIN_POLL: i64 = 4;
const PREEMPTED: i64 = 128;

/// What a request is to those who wait for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A caller waits, usually for some microseconds.
    Soon,
    /// A caller waits, and may wait longer.
    Long,
    /// No caller waits. Its sender may have asked for the next thing already.
    Unawaited,
}

#[derive(Debug, Default)]
struct Sleepers {
    /// Seats that were given out and not taken yet.
    given: usize,
    has_deputy: bool,
    /// Threads that wait for a seat, without the deputy.
    waiting: usize,
    ended: bool,
}

/// Where the threads of a session meet.
#[derive(Debug)]
pub(super) struct Reception {
    began: Instant,
    may_poll: bool,
    /// How often the deputy looks.
    watch_ns: u64,
    sleepers: Mutex<Sleepers>,
    seat_given: Condvar,
    deputy_wanted: Condvar,
    /// The deputy sleeps until it is wanted.
    deputy_sleeps: AtomicBool,
    /// Seats that are taken or given out.
    seats: AtomicUsize,
    /// Threads that receive, and threads that answer.
    receiving: AtomicUsize,
    answering: AtomicUsize,
    /// When the last request was received.
    received_ns: AtomicU64,
    /// How many requests of late came one at a time.
    alone: AtomicU32,
    /// Above 0: polling pays.
    score: AtomicI64,
}

impl Reception {
    pub fn new() -> Reception {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Reception {
            began: Instant::now(),
            may_poll: processors > 1,
            watch_ns: WATCH_NS,
            sleepers: Mutex::new(Sleepers { given: 1, ..Sleepers::default() }),
            seat_given: Condvar::new(),
            deputy_wanted: Condvar::new(),
            deputy_sleeps: AtomicBool::new(false),
            seats: AtomicUsize::new(1),
            receiving: AtomicUsize::new(0),
            answering: AtomicUsize::new(0),
            received_ns: AtomicU64::new(0),
            alone: AtomicU32::new(0),
            score: AtomicI64::new(0),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Waits until this thread may receive. `has_seat`: it has received before, and was not here since.
    pub fn take_seat(&self, has_seat: bool) {
        if has_seat && !self.gives_up_seat() {
            return;
        }
        let mut sleepers = self.sleepers.lock();
        loop {
            if sleepers.ended {
                return;
            }
            if sleepers.given > 0 {
                sleepers.given -= 1;
                return;
            }
            if sleepers.has_deputy {
                sleepers.waiting += 1;
                self.seat_given.wait(&mut sleepers);
                sleepers.waiting -= 1;
                continue;
            }
            sleepers.has_deputy = true;
            while sleepers.given == 0 && !sleepers.ended {
                let idle_ns = self.now_ns().saturating_sub(self.received_ns.load(Ordering::Acquire));
                let is_watched = self.receiving.load(Ordering::SeqCst) == 0;
                if is_watched && idle_ns >= self.watch_ns {
                    self.seats.fetch_add(1, Ordering::AcqRel);
                    sleepers.given += 1;
                } else if is_watched || idle_ns < WATCH_AFTER_NS {
                    self.deputy_wanted.wait_for(&mut sleepers, Duration::from_nanos(self.watch_ns));
                } else {
                    self.deputy_sleeps.store(true, Ordering::SeqCst);
                    // The last thread may have received a request before it could see that.
                    if self.receiving.load(Ordering::SeqCst) > 0 {
                        self.deputy_wanted.wait(&mut sleepers);
                    }
                    self.deputy_sleeps.store(false, Ordering::SeqCst);
                }
            }
            sleepers.has_deputy = false;
            // Another one watches from now on.
            self.seat_given.notify_one();
        }
    }

    /// Whether there are more seats than the requests of late have needed, and the caller's is given up.
    fn gives_up_seat(&self) -> bool {
        if self.alone.load(Ordering::Relaxed) < ALONE_MIN {
            return false;
        }
        let fewer = |seats: usize| (seats > 1).then(|| seats - 1);
        let given_up = self.seats.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok();
        if given_up {
            self.alone.store(ALONE_MIN / 2, Ordering::Relaxed);
        }
        given_up
    }

    /// Gives out one more seat, if a thread is there to take it.
    fn give_seat(&self) {
        let mut sleepers = self.sleepers.lock();
        if sleepers.given > 0 || sleepers.waiting == 0 && !sleepers.has_deputy {
            return;
        }
        sleepers.given = 1;
        self.seats.fetch_add(1, Ordering::AcqRel);
        // The deputy goes on watching if there are others.
        match sleepers.waiting {
            0 => self.deputy_wanted.notify_one(),
            _ => self.seat_given.notify_one(),
        };
    }

    /// Calls `receive`. If there is no other seat, it polls before, until a request is there or for as long as it pays.
    pub fn receive<R>(&self, is_pending: &dyn Fn() -> bool, receive: impl FnOnce() -> R) -> R {
        self.receiving.fetch_add(1, Ordering::SeqCst);
        let is_only = self.may_poll && self.seats.load(Ordering::Acquire) == 1;
        let began = self.now_ns();
        let polls = is_only && self.score.load(Ordering::Relaxed) > 0;
        let found = polls && self.poll(began, is_pending);
        let received = receive();
        let now = self.now_ns();
        if found || is_only && !polls && now.saturating_sub(began) < POLL_NS + WAKE_NS {
            self.earn(1);
        }
        self.received_ns.store(now, Ordering::Release);
        received
    }

    /// What [`receive`](Self::receive) has received is answered next. `is_pending`: others wait to be received.
    pub fn begin_answer(&self, urgency: Urgency, is_pending: bool) {
        if urgency != Urgency::Unawaited {
            let is_alone = self.answering.fetch_add(1, Ordering::AcqRel) == 0 && !is_pending;
            let alone = self.alone.load(Ordering::Relaxed);
            let alone = if is_alone { alone + 1 } else { alone.saturating_sub(NOT_ALONE) };
            self.alone.store(alone.min(ALONE_MAX), Ordering::Relaxed);
        }
        if self.receiving.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let needs_another = urgency == Urgency::Long || is_pending && urgency == Urgency::Soon;
        // If requests came one at a time until now, the deputy decides.
        if needs_another && self.alone.load(Ordering::Relaxed) < ALONE_MIN {
            self.give_seat();
        } else if self.deputy_sleeps.load(Ordering::SeqCst) {
            let _sleepers = self.sleepers.lock();
            self.deputy_wanted.notify_one();
        }
    }

    /// It is answered.
    pub fn end_answer(&self, urgency: Urgency) {
        if urgency != Urgency::Unawaited {
            self.answering.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The session has ended: no thread waits for a seat any more.
    pub fn end(&self) {
        self.sleepers.lock().ended = true;
        self.seat_given.notify_all();
        self.deputy_wanted.notify_all();
    }

    /// Whether a request came.
    fn poll(&self, began: u64, is_pending: &dyn Fn() -> bool) -> bool {
        let mut before = began;
        while !is_pending() {
            let now = self.now_ns();
            let is_preempted = now.saturating_sub(before) > PREEMPTED_NS;
            if is_preempted || now.saturating_sub(began) > POLL_NS {
                self.earn(if is_preempted { -PREEMPTED } else { -VAIN_POLL });
                return false;
            }
            before = now;
            std::hint::spin_loop();
        }
        true
    }

    fn earn(&self, points: i64) {
        // Only the owner of the one seat changes it.
        let score = self.score.load(Ordering::Relaxed) + points;
        self.score.store(score.clamp(-SCORE_MAX, SCORE_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for something that another thread is about to do.
    fn until(done: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        while !done() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        done()
    }

    struct End<'r>(&'r Reception);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }

    /// Starts threads that take a seat each, and nothing else. One thread counts as one that receives.
    fn with_threads(count: usize, watch_ns: u64, test: impl FnOnce(&Reception, &AtomicUsize)) {
        let reception = Reception { may_poll: false, watch_ns, ..Reception::new() };
        reception.receiving.store(1, Ordering::SeqCst);
        let seated = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..count {
                scope.spawn(|| {
                    reception.take_seat(false);
                    seated.fetch_add(1, Ordering::SeqCst);
                });
            }
            // Also after a panic, which would wait for the threads.
            let _end = End(&reception);
            test(&reception, &seated);
        });
        assert_eq!(seated.load(Ordering::SeqCst), count, "each was woken at the end");
    }

    /// The only thread that receives answers a request.
    fn answer(reception: &Reception, urgency: Urgency, is_pending: bool) {
        reception.receiving.store(0, Ordering::SeqCst);
        reception.receive(&|| true, || ());
        reception.begin_answer(urgency, is_pending);
        reception.end_answer(urgency);
        reception.receiving.store(1, Ordering::SeqCst);
    }

    #[test]
    fn one_thread_receives_until_there_is_more_to_do() {
        // The deputy never finds that no thread receives.
        with_threads(6, 3_600_000_000_000, |reception, seated| {
            let seats = |count| until(|| seated.load(Ordering::SeqCst) == count);
            assert!(seats(1));
            assert!(until(|| reception.sleepers.lock().waiting == 4), "the fifth of them is the deputy");
            // That thread answers one request after the other.
            for _ in 0..200 {
                answer(reception, Urgency::Soon, false);
                answer(reception, Urgency::Unawaited, true);
            }
            assert!(seats(1));
            // Some come beside others: no more is needed at first.
            (0..4).for_each(|_| answer(reception, Urgency::Soon, true));
            assert!(seats(1));
            // Others wait, or will.
            answer(reception, Urgency::Soon, true);
            assert!(seats(2));
            answer(reception, Urgency::Long, false);
            assert!(seats(3));
            assert_eq!(reception.seats.load(Ordering::SeqCst), 3);
            // Where another thread receives, none is needed.
            reception.receive(&|| true, || ());
            reception.begin_answer(Urgency::Long, true);
            reception.end_answer(Urgency::Long);
            assert!(seats(3));
            assert_eq!(reception.seats.load(Ordering::SeqCst), 3);
            // Requests come one at a time again.
            let mut given_up = 0;
            for _ in 0..400 {
                answer(reception, Urgency::Soon, false);
                answer(reception, Urgency::Unawaited, true);
                given_up += usize::from(reception.gives_up_seat());
            }
            assert_eq!((given_up, reception.seats.load(Ordering::SeqCst)), (2, 1));
        });
    }

    #[test]
    fn the_deputy_takes_a_seat_when_no_thread_has_received_for_long() {
        with_threads(4, WATCH_NS, |reception, seated| {
            assert!(until(|| seated.load(Ordering::SeqCst) == 1));
            // It receives, and nothing comes.
            assert!(
                until(|| reception.deputy_sleeps.load(Ordering::SeqCst)),
                "it looks at no clock for ever"
            );
            reception.alone.store(ALONE_MIN, Ordering::SeqCst);
            // A request comes that is expected to be short, and is not. The threads of this test that take a seat do not receive, so
            // it goes on until all have one.
            reception.begin_answer(Urgency::Soon, false);
            assert!(until(|| seated.load(Ordering::SeqCst) == 4));
            assert_eq!(reception.seats.load(Ordering::SeqCst), 4);
        });
    }

    /// Many threads with requests of all kinds: each is received once, and none is left waiting.
    #[test]
    fn no_request_waits_while_threads_sleep() {
        let reception = Reception::new();
        let (waiting, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (reception, waiting, answered, ended) = (&reception, &waiting, &answered, &ended);
                scope.spawn(move || {
                    let (mut has_seat, mut turn) = (false, thread);
                    loop {
                        reception.take_seat(has_seat);
                        has_seat = true;
                        let take = |count: usize| count.checked_sub(1);
                        let is_pending =
                            || waiting.load(Ordering::SeqCst) > 0 || ended.load(Ordering::SeqCst);
                        reception.receive(&is_pending, || {
                            while waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
                                if ended.load(Ordering::SeqCst) {
                                    break;
                                }
                                std::thread::yield_now();
                            }
                        });
                        if ended.load(Ordering::SeqCst) {
                            return;
                        }
                        turn += 1;
                        let urgency = match turn % 7 {
                            0 => Urgency::Long,
                            1 => Urgency::Unawaited,
                            _ => Urgency::Soon,
                        };
                        reception.begin_answer(urgency, is_pending());
                        if turn % 50 == 0 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        answered.fetch_add(1, Ordering::SeqCst);
                        reception.end_answer(urgency);
                    }
                });
            }
            for sent in 1..=3000 {
                waiting.fetch_add(1, Ordering::SeqCst);
                // First many at a time, then one.
                if sent % 8 == 0 || sent > 2000 {
                    assert!(until(|| answered.load(Ordering::SeqCst) >= sent), "request {sent} was left");
                }
            }
            assert_eq!(answered.load(Ordering::SeqCst), 3000);
            assert!(reception.seats.load(Ordering::SeqCst) < 6, "those that nothing needs are given up");
            ended.store(true, Ordering::SeqCst);
            reception.end();
        });
    }

    #[test]
    fn polling_stops_when_it_is_vain_and_begins_when_requests_come_soon() {
        let reception = Reception { may_poll: true, ..Reception::new() };
        let score = || reception.score.load(Ordering::Relaxed);
        let polls = AtomicUsize::new(0);
        let never = || {
            polls.fetch_add(1, Ordering::Relaxed);
            false
        };
        reception.receive(&never, || ());
        assert_eq!((polls.load(Ordering::Relaxed), score()), (0, 1), "the first one came at once");
        reception.receive(&never, || ());
        assert!(polls.load(Ordering::Relaxed) > 0 && score() < 0, "{}", score());
        let before = polls.load(Ordering::Relaxed);
        reception.receive(&never, || std::thread::sleep(Duration::from_millis(2)));
        assert_eq!(polls.load(Ordering::Relaxed), before, "none until requests come soon again");
        let earned = score();
        reception.receive(&never, || std::thread::sleep(Duration::from_millis(2)));
        assert_eq!(score(), earned);
        (0..200).for_each(|_| reception.receive(&|| true, || ()));
        assert_eq!(score(), SCORE_MAX);
        // Beside others that receive it is of no use.
        reception.seats.store(2, Ordering::SeqCst);
        reception.receive(&never, || ());
        assert_eq!((polls.load(Ordering::Relaxed), score()), (before, SCORE_MAX));
        reception.seats.store(1, Ordering::SeqCst);
        // Another thread has the processor for a while.
        let slow = || {
            std::thread::sleep(Duration::from_millis(1));
            false
        };
        reception.receive(&slow, || ());
        assert_eq!(score(), -SCORE_MAX);
    }
}
