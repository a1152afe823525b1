//! The thread that reads a caller's socket runs short functions itself: to hand each to another thread, and to wake that,
//! takes longer than most of them. When one takes longer than that, another thread goes on reading.

use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::{Decoder, Frame, FrameRoom, Spin};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::fd::AsFd;
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

/// How long a message of a caller may take from its first byte to its last.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is read of a socket.
pub(super) struct Reader {
    decoder: Decoder,
    patience: Duration,
    spin: Spin,
    /// Calls that are left to the workers.
    leave: u32,
    /// Whether the last call was run here.
    ran: bool,
}

impl Reader {
    /// For a socket of a provider that reads all its callers' messages into one room.
    pub(super) fn new(room: Arc<FrameRoom>) -> Self {
        Self { decoder: Decoder::sharing(room), patience: PATIENCE, spin: Spin::new(SPIN), leave: 0, ran: false }
    }

    /// The next message, and whether its call may be run by whoever read it. None at the end.
    ///
    /// # Errors
    /// For what is no message, when the socket cannot be read, and `TimedOut` when the rest of a message does not come.
    pub(super) fn next(&mut self, socket: &UnixStream) -> Result<Option<(Frame, bool)>> {
        let mut ran = std::mem::take(&mut self.ran);
        // When a message that has begun has to have ended; silence is allowed between messages only.
        let mut due: Option<Instant> = None;
        loop {
            if let Some(frame) = self.decoder.take()? {
                if due.is_some() {
                    limit(socket, None)?;
                }
                self.leave = self.leave.saturating_sub(1);
                let alone = self.leave == 0 && !self.decoder.is_midway();
                return Ok(Some((frame, alone)));
            }
            if self.decoder.is_midway() {
                let patience = self.patience;
                limit(socket, Some(*due.get_or_insert_with(|| Instant::now() + patience)))?;
            }
            let now = || match self.decoder.fill_now(socket.as_fd()) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                found => Some(found),
            };
            let found = if std::mem::take(&mut ran) { self.spin.until_found(now) } else { None };
            match found.unwrap_or_else(|| self.decoder.fill(socket.as_fd())) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // The time is up, or there is no room yet: the next turn sees which.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("reading from a caller", &error)),
            }
        }
    }

    /// Its thread ran the last call; whether others waited meanwhile.
    pub(super) fn ran(&mut self, waited: bool) {
        self.ran = true;
        if waited {
            self.leave = BUSY_CALLS;
        }
    }
}

/// Lets reads wait until `due` and no longer.
fn limit(socket: &UnixStream, due: Option<Instant>) -> Result<()> {
    let left = due.map(|due| due.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Err(Error::new(ErrorKind::TimedOut, "the rest of a caller's message did not come"));
    }
    socket.set_read_timeout(left).map_err(|error| Error::io("reading from a caller", &error))
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

    #[test]
    fn calls_that_had_to_wait_are_left_to_the_workers_for_a_while() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let say = |text: &str| send_all(theirs.as_fd(), &Frame::new(text.into())).unwrap();
        let mut reader = Reader::new(FrameRoom::of_server());
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
    fn a_caller_that_stops_within_a_message_is_given_up_and_its_room_is_free() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let room = FrameRoom::new(0, 0);
        let mut reader = Reader { patience: Duration::from_millis(300), ..Reader::new(Arc::clone(&room)) };
        std::io::Write::write_all(&mut &theirs, &[&(1u32 << 20).to_le_bytes()[..], &[0; 1000]].concat()).unwrap();
        assert_eq!(reader.next(&ours).err().unwrap().kind(), ErrorKind::TimedOut);
        assert_eq!(room.bytes(), 1 << 20);
        drop(reader);
        assert_eq!(room.bytes(), 0);
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
