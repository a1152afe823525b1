//! Reads the messages of one caller.

use cotensor_core::Result;
use cotensor_rpc::server::Reader;
use cotensor_rpc::{BusyPoll, Frame, FrameBudget};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How long to busy-poll for the next message after a run.
const BUSY_POLL: Duration = Duration::from_micros(750);
/// The time limit from a message's first byte to its last.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The reader of one caller's socket. The thread that has it is the only one that reads the socket.
pub(super) struct CallReader {
    reader: Reader,
    busy_poll: BusyPoll,
    /// Whether the thread that has the reader ran a function since the last message.
    after_run: bool,
}

/// What a socket has for its reader.
pub(super) enum Received {
    /// A message.
    Message(Frame),
    /// No message yet.
    Nothing,
    /// The end of the connection.
    End,
}

impl CallReader {
    /// A reader that shares `budget` with those of the provider's other callers.
    pub(super) fn new(budget: Arc<FrameBudget>) -> Self {
        let reader = Reader::new(budget, MESSAGE_TIMEOUT, Duration::ZERO);
        Self { reader, busy_poll: BusyPoll::new(BUSY_POLL), after_run: false }
    }

    /// The next message. Busy-polls for it after a run. Blocks only in the middle of a message.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub(super) fn next(&mut self, socket: &UnixStream) -> Result<Received> {
        if !self.reader.is_midway() && !self.is_readable(socket) {
            return Ok(Received::Nothing);
        }
        Ok(self.reader.next(socket, false)?.map_or(Received::End, Received::Message))
    }

    fn is_readable(&mut self, socket: &UnixStream) -> bool {
        match std::mem::take(&mut self.after_run) {
            true => self.busy_poll.poll(|| is_readable(socket).then_some(())).is_some(),
            false => is_readable(socket),
        }
    }

    /// Busy-polls for the next message: callers often send one soon after an answer.
    pub(super) fn set_after_run(&mut self) {
        self.after_run = true;
    }

    /// Whether bytes after the last message were read. The socket is not readable because of them.
    pub(super) fn has_buffered(&self) -> bool {
        self.reader.is_midway()
    }

    /// Returns the last message's share of the frame budget.
    pub(super) fn release_budget(&mut self) {
        self.reader.release_budget();
    }
}

/// Whether the socket has data, or has ended.
fn is_readable(socket: &UnixStream) -> bool {
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_rpc::send_all;
    use std::os::fd::AsFd;

    #[test]
    fn reader_returns_messages_then_nothing_then_the_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let send = |text: &str| send_all(theirs.as_fd(), &Frame::new(text.into())).unwrap();
        let mut reader = CallReader::new(FrameBudget::of_server());
        assert!(matches!(reader.next(&ours).unwrap(), Received::Nothing));
        send("1");
        send("2");
        assert!(matches!(reader.next(&ours).unwrap(), Received::Message(frame) if frame.body == b"1"));
        assert!(reader.has_buffered());
        assert!(matches!(reader.next(&ours).unwrap(), Received::Message(frame) if frame.body == b"2"));
        assert!(!reader.has_buffered());
        reader.set_after_run();
        assert!(matches!(reader.next(&ours).unwrap(), Received::Nothing));
        drop(theirs);
        assert!(matches!(reader.next(&ours).unwrap(), Received::End));
    }
}
