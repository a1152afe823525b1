//! A reader's end of a channel.

use super::frame::{Frame, FrameSegment};
use super::read_end::{CheckInterval, ReadEnd};
use super::ready::Ready;
use super::{ChannelPolicy, ChannelSpec};
use crate::protocol as p;
use crate::store::ClientStore;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Layout, Result};
use cotensor_memory::process::fd_limit_error;
use cotensor_memory::{Guarantee, RingReader, SealedMemfd};
use cotensor_rpc::BusyPoll;
use cotensor_store::{Holder, TensorSpec, TensorStore};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long a reader busy-polls before it sleeps, as a session does.
const BUSY_POLL: Duration = Duration::from_micros(40);
/// The first wait for a frame. After it, a reader looks whether the producer lives.
const FIRST_WAIT: Duration = Duration::from_millis(5);
/// The interval between attempts to find a channel that is not open yet.
const JOIN_INTERVAL: Duration = Duration::from_millis(20);

/// A reader's end of a channel. The daemon is asked once, when it is opened.
pub struct ChannelReader {
    pub(super) end: Arc<ReadEnd>,
    memory: Arc<SealedMemfd>,
    layout: Layout,
    policy: ChannelPolicy,
    progress: Mutex<Progress>,
    store: Arc<ClientStore>,
    holder: Holder,
    busy_poll: Mutex<BusyPoll>,
    ready: OnceLock<Ready>,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    /// The number of the last frame that was taken.
    last: u64,
    lost: u64,
}

impl ClientStore {
    /// Opens a channel as a reader. Waits up to `timeout` for a producer to open it.
    ///
    /// # Errors
    /// `NotFound` without such a channel; `Conflict` when it has its most readers; `Refused` when its files are not those of a channel;
    /// `Io` without a daemon, and where the system has no locks of open file descriptions.
    pub fn read_channel(
        self: &Arc<Self>,
        name: &str,
        policy: ChannelPolicy,
        timeout: Duration,
    ) -> Result<ChannelReader> {
        let (params, start) = (p::ChannelNameParams { name: name.to_owned() }, Instant::now());
        let (joined, fds) = loop {
            match self.reconnector().call::<p::JoinChannel>(&params) {
                Err(error) if error.kind() == ErrorKind::NotFound && start.elapsed() < timeout => {
                    std::thread::sleep(JOIN_INTERVAL.min(timeout.saturating_sub(start.elapsed())));
                }
                joined => break joined?,
            }
        };
        let spec = ChannelSpec::of(&joined.channel.opened)?;
        let [memory, ring, page, lock]: [_; 4] = fds.try_into().map_err(|_| fd_limit_error())?;
        let size = spec.size()?;
        let ring = RingReader::open(ring, page, lock, size)?;
        let memory = SealedMemfd::open_once(memory, size.memory_bytes()?, Guarantee::ProducerOnly)?;
        let layout = Layout::contiguous(spec.dtype, &spec.shape)?;
        let progress = Mutex::new(Progress { last: ring.start(policy), lost: 0 });
        let holder = self.holder("");
        let pid = joined.pid.filter(|_| self.shares_pids());
        let end = Arc::new(ReadEnd { ring, spec, client: joined.channel.client, pid });
        Ok(ChannelReader {
            end,
            memory,
            layout,
            policy,
            progress,
            store: Arc::clone(self),
            holder,
            busy_poll: Mutex::new(BusyPoll::new(BUSY_POLL)),
            ready: OnceLock::new(),
        })
    }
}

impl Drop for ChannelReader {
    fn drop(&mut self) {
        self.close();
    }
}

impl ChannelReader {
    /// The channel.
    pub fn spec(&self) -> &ChannelSpec {
        &self.end.spec
    }

    /// The producer's name and process, for display.
    pub fn producer(&self) -> &str {
        &self.end.client
    }

    /// The number of the last frame that this reader took; 0 before the first one of the channel.
    pub fn last(&self) -> u64 {
        lock(&self.progress).last
    }

    /// The number of frames that were published and that this reader did not take.
    pub fn lost(&self) -> u64 {
        lock(&self.progress).lost
    }

    /// Takes the next frame, without a wait. None while there is none, and at the end of the channel.
    ///
    /// # Errors
    /// `OverBudget` when this reader holds as many frames as it may; `Conflict` in a forked child, and after [`close`](Self::close).
    pub fn try_next(&self) -> Result<Option<Frame>> {
        if self.end.ring.is_left() {
            return Err(Error::new(ErrorKind::Conflict, "this reader is closed"));
        }
        let mut progress = lock(&self.progress);
        let Some(hold) = self.end.ring.take(self.policy, progress.last)? else { return Ok(None) };
        let (number, age) = (hold.number(), hold.age());
        let bytes = self.memory.slice(hold.range())?;
        let lost = number - progress.last - 1;
        *progress = Progress { last: number, lost: progress.lost + lost };
        drop(progress);
        let ChannelSpec { name, dtype, shape, .. } = &self.end.spec;
        let spec = TensorSpec { producer: self.end.client.clone(), ..TensorSpec::new(name, *dtype, shape) };
        let segment = Arc::new(FrameSegment { bytes, _hold: hold });
        let lease = self.store.keep_private(spec, self.layout.clone(), segment, &self.holder)?;
        Ok(Some(Frame { lease, number, lost, age }))
    }

    /// Takes the next frame. Waits for it up to `timeout`. None after the producer has closed the channel and all frames were taken.
    ///
    /// # Errors
    /// `TimedOut`; `Io` when the producer has ended without closing the channel; as [`try_next`](Self::try_next).
    pub fn next(&self, timeout: Duration) -> Result<Option<Frame>> {
        self.next_while(timeout, || Ok(()))
    }

    /// As [`next`](Self::next). Calls `check` at least every half second while it waits, and ends with its error.
    ///
    /// # Errors
    /// As [`next`](Self::next); those of `check`.
    pub fn next_while(&self, timeout: Duration, mut check: impl FnMut() -> Result<()>) -> Result<Option<Frame>> {
        let (start, mut interval) = (Instant::now(), CheckInterval::default());
        // Most frames come soon: the look whether the producer lives takes longer than such a wait.
        let seen = self.end.ring.signal();
        if let Some(frame) = self.try_next()? {
            return Ok(Some(frame));
        }
        if !timeout.is_zero() && !self.end.ring.is_closed() && !self.comes_soon(seen) {
            self.end.ring.wait(seen, timeout.min(FIRST_WAIT))?;
        }
        loop {
            let seen = self.end.ring.signal();
            if let Some(frame) = self.try_next()? {
                return Ok(Some(frame));
            }
            let is_open = self.end.is_open();
            if !matches!(is_open, Ok(true)) {
                // The producer may have published its last frame in between.
                return match self.try_next()? {
                    Some(frame) => Ok(Some(frame)),
                    None => is_open.map(|_| None),
                };
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                let message =
                    format!("no frame of channel {:?} within {} s", self.end.spec.name, timeout.as_secs_f64());
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
            check()?;
            interval.wait(&self.end.ring, seen, left)?;
        }
    }

    /// Whether the signal is not `seen` any more after a short time of polling. One thread of a reader polls at a time.
    fn comes_soon(&self, seen: u64) -> bool {
        let Ok(mut busy_poll) = self.busy_poll.try_lock() else { return false };
        busy_poll.poll(|| (self.end.ring.signal() != seen).then_some(())).is_some()
    }

    /// Closes the reader: each thread that waits for a frame gets an error. Frames that were taken stay as they are.
    pub fn close(&self) {
        self.end.ring.leave();
        if let Some(ready) = self.ready.get() {
            ready.join();
        }
    }

    /// A descriptor that becomes readable when a frame is there or the channel ends, for an event loop. Before it takes frames, the caller
    /// reads from it; afterwards it calls [`try_next`](Self::try_next) until there is none.
    ///
    /// # Errors
    /// `OverBudget` when the limit of descriptors is reached; `Io` when the system has no more threads.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        if let Some(ready) = self.ready.get() {
            return Ok(ready.fd());
        }
        // Locked until it is there: one thread follows a reader.
        let progress = lock(&self.progress);
        if let Some(ready) = self.ready.get() {
            return Ok(ready.fd());
        }
        let made = Ready::start(&self.end, progress.last)?;
        Ok(self.ready.get_or_init(|| made).fd())
    }

    /// Whether a further frame can come.
    ///
    /// # Errors
    /// `Io` when the producer has ended without closing the channel.
    pub fn is_open(&self) -> Result<bool> {
        self.end.is_open()
    }
}
