//! The sockets of all callers in one epoll instance, and an eventfd that wakes a waiting thread.

use cotensor_core::{Error, Result};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// The event data of the eventfd. Sockets have numbers from 1.
const WAKE: u64 = 0;
/// More wake-ups than a provider has threads.
const WAKE_ALL: u64 = 1 << 32;

/// Reports readable sockets. An armed socket is reported once, to one thread, and is then disarmed.
pub(super) struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
}

/// The reason why [`Poller::wait`] returned.
pub(super) enum Ready {
    /// The socket with this number is readable, or its connection has ended.
    Socket(u64),
    /// Another thread called [`Poller::wake`].
    Wake,
}

impl Poller {
    /// # Errors
    /// `Io` when the process has no free descriptors.
    pub(super) fn new() -> Result<Self> {
        let failed = |error: Errno| Error::io("creating an epoll instance", &error.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let wake = eventfd(0, flags).map_err(failed)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).map_err(failed)?;
        Ok(Self { epoll, wake })
    }

    /// Adds an armed socket.
    ///
    /// # Errors
    /// `Io` when the kernel has no memory for it.
    pub(super) fn add(&self, socket: impl AsFd, number: u64) -> Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(number), EventFlags::IN | EventFlags::ONESHOT)
            .map_err(|error| Error::io("adding a socket to an epoll instance", &error.into()))
    }

    /// Arms a socket. It is reported at once when it is readable already.
    pub(super) fn arm(&self, socket: impl AsFd, number: u64) {
        self.modify(socket, number, EventFlags::IN | EventFlags::ONESHOT);
    }

    /// Disarms a socket. A thread may have received its event already.
    pub(super) fn disarm(&self, socket: impl AsFd, number: u64) {
        self.modify(socket, number, EventFlags::ONESHOT);
    }

    fn modify(&self, socket: impl AsFd, number: u64, flags: EventFlags) {
        // Fails only for a socket that was not added.
        let modified = epoll::modify(&self.epoll, socket, EventData::new_u64(number), flags);
        debug_assert!(modified.is_ok(), "{modified:?}");
    }

    /// Waits for a socket or a wake-up.
    pub(super) fn wait(&self) -> Ready {
        let mut events = [MaybeUninit::<Event>::uninit(); 1];
        loop {
            // Fails only when a signal interrupts it.
            let Ok(([event], _)) = epoll::wait(&self.epoll, &mut events, None) else { continue };
            let data = event.data;
            match data.u64() {
                WAKE => {
                    // Another thread may have read the wake-up.
                    if rustix::io::read(&self.wake, &mut [0; 8]).is_ok() {
                        return Ready::Wake;
                    }
                }
                number => return Ready::Socket(number),
            }
        }
    }

    /// Wakes one thread.
    pub(super) fn wake(&self) {
        self.add_wakes(1);
    }

    /// Wakes all threads, now and whenever they wait again.
    pub(super) fn wake_all(&self) {
        self.add_wakes(WAKE_ALL);
    }

    fn add_wakes(&self, count: u64) {
        // Fails only when the counter is full, and then all threads wake.
        let _ = rustix::io::write(&self.wake, &count.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn armed_socket_is_reported_once() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&ours, 7).unwrap();
        theirs.write_all(b"x").unwrap();
        assert!(matches!(poller.wait(), Ready::Socket(7)));
        poller.wake();
        assert!(matches!(poller.wait(), Ready::Wake), "the socket is disarmed");
        poller.arm(&ours, 7);
        assert!(matches!(poller.wait(), Ready::Socket(7)), "the byte was not read");
        (&ours).read_exact(&mut [0]).unwrap();
        poller.arm(&ours, 7);
        poller.disarm(&ours, 7);
        theirs.write_all(b"x").unwrap();
        poller.wake_all();
        for _ in 0..3 {
            assert!(matches!(poller.wait(), Ready::Wake));
        }
    }

    #[test]
    fn end_of_a_connection_is_reported() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&ours, 1).unwrap();
        drop(theirs);
        assert!(matches!(poller.wait(), Ready::Socket(1)));
    }
}
