//! The producer's end of a channel.

use crate::protocol as p;
use crate::store::{ClientStore, Reopened, Session};
use cotensor_core::sync::lock;
use cotensor_core::{DType, Error, Layout, Result};
use cotensor_memory::{ChannelFiles, ChannelSize, ChannelWriter, Loan};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// A channel to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    /// The name, apart from those of tensors.
    pub name: String,
    /// The element type of each frame.
    pub dtype: DType,
    /// The dimensions of each frame, in elements.
    pub shape: Vec<usize>,
    /// Frames that a reader can be behind without a loss, 1 to 4096.
    pub slots: u32,
    /// The most readers at a time, 1 to 32.
    pub readers: u32,
    /// The most frames that one reader holds at a time, 1 to 256.
    pub holds: u32,
}

impl ChannelSpec {
    /// A channel with 4 slots, for 4 readers that hold 2 frames each.
    pub fn new(name: &str, dtype: DType, shape: &[usize]) -> Self {
        Self { name: name.to_owned(), dtype, shape: shape.to_vec(), slots: 4, readers: 4, holds: 2 }
    }

    /// The specification in a message.
    ///
    /// # Errors
    /// `Invalid` for an unknown element type.
    pub fn of(params: &p::OpenChannelParams) -> Result<Self> {
        let p::OpenChannelParams { name, dtype, shape, slots, readers, holds } = params.clone();
        let dtype = dtype.parse().map_err(|error: Error| error.in_field("dtype"))?;
        Ok(Self { name, dtype, shape, slots, readers, holds })
    }

    /// The sizes of its memory.
    ///
    /// # Errors
    /// `Invalid` for a shape that is not possible.
    pub fn size(&self) -> Result<ChannelSize> {
        let layout = Layout::contiguous(self.dtype, &self.shape).map_err(|error| error.in_field("shape"))?;
        let Self { slots, readers, holds, .. } = *self;
        Ok(ChannelSize { frame_bytes: layout.size_bytes(), slots, readers, holds })
    }

    fn params(&self) -> p::OpenChannelParams {
        let Self { name, dtype, shape, slots, readers, holds } = self.clone();
        p::OpenChannelParams { name, dtype: dtype.name().to_owned(), shape, slots, readers, holds }
    }
}

/// The producer's end of a channel. Dropping it closes the channel.
pub struct Channel(Arc<Opened>);

/// A channel that each new session opens again.
struct Opened {
    spec: ChannelSpec,
    writer: Arc<ChannelWriter>,
    store: Arc<ClientStore>,
    /// Why the daemon has not opened it in the present session.
    refusal: Mutex<Option<Error>>,
}

/// Memory for the next frame, which only this process can read.
pub struct FrameLoan {
    loan: Loan,
    opened: Arc<Opened>,
}

impl ClientStore {
    /// Opens a channel as its producer.
    ///
    /// # Errors
    /// `Invalid` for sizes beyond the limits; `Conflict` while another producer that lives has the name; `OverBudget` when the budget or
    /// the machine has too little memory; `Io` without a daemon.
    pub fn channel(self: &Arc<Self>, spec: ChannelSpec) -> Result<Channel> {
        let size = spec.size()?;
        // Before its memory is made, which can be most of the machine's.
        self.reconnector().retry(|session| session.call_long::<p::CheckChannel>(&spec.params(), Vec::new()))?;
        let writer = ChannelWriter::create(size)?;
        let channel = Channel(Arc::new(Opened { spec, writer, store: Arc::clone(self), refusal: Mutex::default() }));
        // First: another thread may reconnect as soon as the channel is open.
        self.reconnector().reopened.add(&channel.0);
        self.reconnector().retry(|session| channel.0.open_in(session))?;
        Ok(channel)
    }

    /// All channels of the daemon, ordered by name.
    ///
    /// # Errors
    /// `Io` without a daemon.
    pub fn channels(&self) -> Result<Vec<p::ChannelInfo>> {
        Ok(self.reconnector().call::<p::ListChannels>(&p::Empty {})?.0.channels)
    }
}

impl Reopened for Opened {
    fn is_closed(&self) -> bool {
        self.writer.is_closed()
    }

    fn open_in(&self, session: &Session) -> Result<()> {
        let opened = self.send_to(session);
        if !session.is_closed() {
            *lock(&self.refusal) = opened.clone().err();
        }
        opened
    }
}

impl Opened {
    fn send_to(&self, session: &Session) -> Result<()> {
        let ChannelFiles { memory, ring, pages } = self.writer.files()?;
        let fds: Vec<OwnedFd> = [memory, ring].into_iter().chain(pages).collect();
        session.call_long::<p::OpenChannel>(&self.spec.params(), fds)?;
        // Closed meanwhile, it may have been told to the daemon in the former session.
        if self.writer.is_closed() {
            session.notify::<p::CloseChannel>(&self.name());
        }
        Ok(())
    }

    fn name(&self) -> p::ChannelNameParams {
        p::ChannelNameParams { name: self.spec.name.clone() }
    }

    fn close(&self) {
        if self.writer.close() {
            self.store.notify::<p::CloseChannel>(&self.name());
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

impl Channel {
    /// What was opened.
    pub fn spec(&self) -> &ChannelSpec {
        &self.0.spec
    }

    /// Takes memory for the next frame, which has bytes of earlier frames.
    ///
    /// # Errors
    /// `Conflict` after the channel was closed, while three loans exist, and in a forked child. After a lost connection, the daemon's
    /// error if it does not open the channel again: `Conflict` when another producer has the name by now, `OverBudget`.
    pub fn loan(&self) -> Result<FrameLoan> {
        if let Some(error) = &*lock(&self.0.refusal) {
            let message = format!("the daemon has not opened channel {:?} again: {error}", self.0.spec.name);
            return Err(Error::new(error.kind(), message));
        }
        Ok(FrameLoan { loan: self.0.writer.loan()?, opened: Arc::clone(&self.0) })
    }

    /// Publishes a copy of `source`. Returns the frame's number.
    ///
    /// # Errors
    /// `Invalid` for another length than the frame's; else as [`loan`](Self::loan).
    pub fn put(&self, source: &[u8]) -> Result<u64> {
        let mut loan = self.loan()?;
        loan.write(source)?;
        loan.publish()
    }

    /// The number of the newest frame; 0 before the first one.
    pub fn newest(&self) -> u64 {
        self.0.writer.newest()
    }

    /// Closes the channel: readers get the frames that are left, and then its end. Does nothing for a closed one.
    pub fn close(&self) {
        self.0.close();
    }
}

impl FrameLoan {
    /// The bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.loan.bytes_mut()
    }

    /// Copies `source` into the frame.
    ///
    /// # Errors
    /// `Invalid` for another length than the frame's.
    pub fn write(&mut self, source: &[u8]) -> Result<()> {
        self.loan.write(source).map_err(|error| error.in_field(self.opened.spec.name.as_str()))
    }

    /// Publishes the frame. Returns its number.
    ///
    /// # Errors
    /// `Conflict` after the channel was closed, and in a forked child.
    pub fn publish(self) -> Result<u64> {
        self.loan.publish()
    }
}
