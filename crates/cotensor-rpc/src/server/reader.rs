//! The reading loop of a served connection.

use crate::busy_poll::BusyPoll;
use crate::frame::{Decoder, Frame, FrameBudget};
use cotensor_core::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a socket has for its reader.
pub enum Polled {
    /// A message.
    Message(Frame),
    /// No message yet.
    Nothing,
    /// The end of the connection.
    End,
}

/// Reads the messages of one peer. Silence between messages has no limit; a message that has begun does.
pub struct Reader {
    decoder: Decoder,
    busy_poll: BusyPoll,
    /// The time from a message's first byte to its last, however often a byte comes.
    message_timeout: Duration,
    /// The end of that time for the message that has begun.
    deadline: Option<Instant>,
}

impl Reader {
    /// Messages that share `budget` with those of other peers. Busy-polling lasts for `busy_poll` at most.
    pub fn new(budget: Arc<FrameBudget>, message_timeout: Duration, busy_poll: Duration) -> Self {
        let (decoder, busy_poll) = (Decoder::sharing(budget), BusyPoll::new(busy_poll));
        Self { decoder, busy_poll, message_timeout, deadline: None }
    }

    /// Starts the time limit of the next message now, before its first byte.
    pub fn expect_message(&mut self) {
        self.deadline = Instant::now().checked_add(self.message_timeout);
    }

    /// Whether a message has begun and not ended.
    pub fn is_midway(&self) -> bool {
        self.decoder.is_midway()
    }

    /// Returns the last message's share of the frame budget, which the next [`next`](Self::next) does as well.
    pub fn release_budget(&mut self) {
        self.decoder.release();
    }

    /// The next message, if its first byte has arrived or arrives during busy-polling. Blocks only for the rest of a
    /// message.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, socket: &UnixStream, busy_poll: bool) -> Result<Polled> {
        loop {
            if let Some(frame) = self.decoder.take()? {
                return Ok(Polled::Message(frame));
            }
            if self.decoder.is_midway() {
                return Ok(self.next(socket, false)?.map_or(Polled::End, Polled::Message));
            }
            let Self { decoder, busy_poll: poll, .. } = self;
            let received = if busy_poll {
                poll.poll(|| match decoder.fill_now(socket.as_fd()) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                    received => Some(received),
                })
            } else {
                Some(decoder.fill_now(socket.as_fd()))
            };
            match received {
                None => return Ok(Polled::Nothing),
                Some(Ok(0)) => return Ok(Polled::End),
                Some(Ok(_)) => {}
                Some(Err(error)) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(Polled::Nothing),
                Some(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Some(Err(error)) => return Err(read_error(&error)),
            }
        }
    }

    /// The next message; none at the end of the connection.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not a frame, `TimedOut` for a message that takes too long, `Io` when the socket fails.
    pub fn next(&mut self, socket: &UnixStream, busy_poll: bool) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.decoder.take()? {
                if self.deadline.take().is_some() {
                    set_read_timeout(socket, None)?;
                }
                return Ok(Some(frame));
            }
            if self.decoder.is_midway() && self.deadline.is_none() {
                self.expect_message();
            }
            if let Some(deadline) = self.deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::new(ErrorKind::TimedOut, "the rest of a message did not come in time"));
                }
                set_read_timeout(socket, Some(left))?;
            }
            let received = if busy_poll {
                self.decoder.fill_polling(socket.as_fd(), &mut self.busy_poll)
            } else {
                self.decoder.fill(socket.as_fd())
            };
            match received {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // The deadline has passed, or the budget has no room yet: the next turn of the loop decides.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_error(&error)),
            }
        }
    }
}

fn read_error(error: &std::io::Error) -> Error {
    Error::io("reading a message", error)
}

fn set_read_timeout(socket: &UnixStream, timeout: Option<Duration>) -> Result<()> {
    socket.set_read_timeout(timeout).map_err(|error| Error::io("setting a socket's timeout", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::send_all;
    use std::io::Write;

    #[test]
    fn message_that_stops_midway_times_out_and_frees_its_budget() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let budget = FrameBudget::new(0, 0);
        let mut reader = Reader::new(Arc::clone(&budget), Duration::from_millis(300), Duration::ZERO);
        (&theirs).write_all(&[&(1u32 << 20).to_le_bytes()[..], &[0; 1000]].concat()).unwrap();
        assert_eq!(reader.next(&ours, false).err().unwrap().kind(), ErrorKind::TimedOut);
        assert_eq!(budget.bytes(), 1 << 20);
        drop(reader);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn poll_returns_messages_then_nothing_then_the_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let send = |text: &str| send_all(theirs.as_fd(), &Frame::new(text.into())).unwrap();
        let mut reader = Reader::new(FrameBudget::of_server(|_| true), Duration::from_secs(60), Duration::ZERO);
        assert!(matches!(reader.poll_next(&ours, false).unwrap(), Polled::Nothing));
        send("1");
        send("2");
        assert!(matches!(reader.poll_next(&ours, false).unwrap(), Polled::Message(frame) if frame.body == b"1"));
        assert!(reader.is_midway(), "the second message was read with the first");
        assert!(matches!(reader.poll_next(&ours, true).unwrap(), Polled::Message(frame) if frame.body == b"2"));
        assert!(!reader.is_midway());
        assert!(matches!(reader.poll_next(&ours, true).unwrap(), Polled::Nothing));
        drop(theirs);
        assert!(matches!(reader.poll_next(&ours, false).unwrap(), Polled::End));
    }

    #[test]
    fn first_message_is_due_before_its_first_byte() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut reader = Reader::new(FrameBudget::of_server(|_| true), Duration::from_millis(20), Duration::ZERO);
        reader.expect_message();
        assert_eq!(reader.next(&ours, true).err().unwrap().kind(), ErrorKind::TimedOut);
    }
}
