//! The thread that reads a caller's socket runs short functions itself: to hand each to another thread, and to wake that,
//! takes longer than most of them. When one takes longer than that, another thread goes on reading.

use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_rpc::server::Reader;
use cotensor_rpc::{Frame, FrameBudget};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a socket may stay unread because its reader runs a function.
pub(super) const UNREAD_MAX: Duration = Duration::from_millis(2);
/// A reader that let other calls wait leaves so many to the workers: threads of one caller do not wait for each other.
const BUSY_CALLS: u32 = 64;
/// How long to look for the next call after one that was run here.
const SPIN: Duration = Duration::from_micros(750);

/// How long a reader that was relieved waits for its turn.
const STAND_BY: Duration = Duration::from_secs(10);

/// The longest time from a message's first byte to its last.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The reader of a caller's socket.
pub(super) struct CallReader {
    reader: Reader,
    /// Calls that are left to the workers.
    leave: u32,
    /// Whether the last call was run here.
    ran: bool,
}

impl CallReader {
    /// A reader whose messages share `budget` with those of the provider's other callers.
    pub(super) fn new(budget: Arc<FrameBudget>) -> Self {
        Self { reader: Reader::new(budget, MESSAGE_TIMEOUT, SPIN), leave: 0, ran: false }
    }

    /// The next message, and whether its call may be run by whoever read it. None at the end.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub(super) fn next(&mut self, socket: &UnixStream) -> Result<Option<(Frame, bool)>> {
        let ran = std::mem::take(&mut self.ran);
        let Some(frame) = self.reader.next(socket, ran)? else { return Ok(None) };
        self.leave = self.leave.saturating_sub(1);
        Ok(Some((frame, self.leave == 0 && !self.reader.is_midway())))
    }

    /// Its thread ran the last call; whether others waited meanwhile.
    pub(super) fn ran(&mut self, waited: bool) {
        self.ran = true;
        if waited {
            self.leave = BUSY_CALLS;
        }
    }
}

/// Whether something waits to be read, or the end.
pub(super) fn has_more(socket: &UnixStream) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Since when the reader of a socket runs a function: whoever looks after it, and whoever relieves it, agree by this.
#[derive(Default)]
pub(super) struct Away(AtomicU64);

const HERE: u64 = 0;
const RELIEVED: u64 = u64::MAX;

impl Away {
    /// The reader goes; when, for [`back`](Self::back).
    pub(super) fn go(&self, since: Instant) -> u64 {
        let at = u64::try_from(since.elapsed().as_micros()).map_or(RELIEVED - 1, |at| at + 1);
        self.0.store(at, Ordering::SeqCst);
        at
    }

    /// The reader is back; false when it was relieved.
    pub(super) fn back(&self, at: u64) -> bool {
        self.0.compare_exchange(at, HERE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the reader has been away for too long.
    pub(super) fn is_late(&self, since: Instant) -> bool {
        self.late(since).is_some()
    }

    /// Relieves a reader that has been away for too long: true if who asks reads on.
    pub(super) fn relieve(&self, since: Instant) -> bool {
        let late = self.late(since);
        late.is_some_and(|at| self.0.compare_exchange(at, RELIEVED, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }

    fn late(&self, since: Instant) -> Option<u64> {
        let at = self.0.load(Ordering::SeqCst);
        let now = u64::try_from(since.elapsed().as_micros()).unwrap_or(RELIEVED - 1);
        let late = at != HERE && at != RELIEVED && now.saturating_sub(at) >= UNREAD_MAX.as_micros() as u64;
        late.then_some(at)
    }
}

/// Readers that were relieved, and are done with what kept them: the next relief is one of them. A thread that computes has
/// threads of its own with some libraries, so that new ones all the time would be dear.
#[derive(Default)]
pub(super) struct Relief {
    state: Mutex<Waiting>,
    called: Condvar,
}

#[derive(Default)]
struct Waiting {
    waiting: usize,
    called: usize,
    ended: bool,
}

impl Relief {
    /// Waits until another reader may have to be relieved; false at the end, and when none had to be for long.
    pub(super) fn stand_by(&self) -> bool {
        let mut state = lock(&self.state);
        state.waiting += 1;
        let until = Instant::now() + STAND_BY;
        while state.called == 0 && !state.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.called.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
        let called = state.called > 0;
        state.called = state.called.saturating_sub(1);
        called && !state.ended
    }

    /// Calls one that waits, if one does.
    pub(super) fn call(&self) -> bool {
        let mut state = lock(&self.state);
        let free = state.waiting > state.called;
        state.called += usize::from(free);
        drop(state);
        self.called.notify_one();
        free
    }

    pub(super) fn end(&self) {
        lock(&self.state).ended = true;
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_rpc::send_all;
    use std::os::fd::AsFd;

    #[test]
    fn calls_that_had_to_wait_are_left_to_the_workers_for_a_while() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let say = |text: &str| send_all(theirs.as_fd(), &Frame::new(text.into())).unwrap();
        let mut reader = CallReader::new(FrameBudget::of_server());
        let mut alone = || reader.next(&ours).unwrap().unwrap().1;
        say("1");
        assert!(alone());
        say("2");
        say("3");
        assert!(!alone(), "another is here already");
        assert!(alone());
        assert!(!has_more(&ours));
        reader.ran(false);
        say("4");
        let mut alone = || reader.next(&ours).unwrap().unwrap().1;
        assert!(alone());
        say("4");
        assert!(has_more(&ours));
        reader.ran(true);
        let mut alone = || reader.next(&ours).unwrap().unwrap().1;
        assert!(!alone(), "it came while the third ran");
        for _ in 0..BUSY_CALLS {
            say("5");
            alone();
        }
        say("6");
        assert!(alone());
        drop(theirs);
        assert!(reader.next(&ours).unwrap().is_none());
    }

    #[test]
    fn a_reader_is_relieved_once_and_only_if_it_is_late() {
        let (since, away) = (Instant::now(), Away::default());
        assert!(!away.relieve(since), "it is here");
        let at = away.go(since);
        assert!(away.back(at));
        let at = away.go(Instant::now() - Duration::from_micros(5));
        std::thread::sleep(UNREAD_MAX * 2);
        assert!(away.is_late(since));
        assert!(away.relieve(since) && !away.relieve(since), "by one");
        assert!(!away.is_late(since));
        assert!(!away.back(at));
    }
}
