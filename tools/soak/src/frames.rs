//! The channels of a worker: one whose frames it publishes, and those of other workers whose frames it checks.

use crate::content::{Random, fill, is_whole};
use cotensor_client::{Channel, ChannelPolicy, ChannelReader, ChannelSpec, ClientStore, Frame};
use cotensor_core::{DType, Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

/// The length of a frame.
const FRAME_BYTES: usize = 16 << 10;
/// Readers of each channel. Each takes a descriptor of the daemon.
const READERS: u32 = 2;
/// The most channels that a worker reads at a time.
const SOURCES_MAX: usize = 4;

/// The channels of one worker. They belong to one store.
#[derive(Default)]
pub(crate) struct Frames {
    own: Option<Channel>,
    sources: Vec<Source>,
    /// The number of frames that were checked.
    pub(crate) checked: usize,
}

/// A channel of another worker.
struct Source {
    worker: usize,
    reader: ChannelReader,
    /// The last frame. Its bytes must not change while the next ones are published.
    held: Option<Frame>,
}

impl Frames {
    /// Publishes a frame, and opens the channel before the first one.
    ///
    /// # Errors
    /// Those that the kill of another process cannot cause.
    pub(crate) fn publish(&mut self, store: &Arc<ClientStore>, worker: usize, random: &mut Random) -> Result<()> {
        unless_unavailable(self.try_publish(store, worker, random)).map(drop)
    }

    fn try_publish(&mut self, store: &Arc<ClientStore>, worker: usize, random: &mut Random) -> Result<()> {
        let channel = match &self.own {
            Some(channel) => channel,
            None => {
                let spec = ChannelSpec {
                    slots: 2,
                    readers: READERS,
                    ..ChannelSpec::new(&name(worker), DType::U8, &[FRAME_BYTES])
                };
                self.own.insert(store.channel(spec)?)
            }
        };
        let mut loan = channel.loan()?;
        fill(loan.bytes_mut(), random.next());
        loan.publish().map(drop)
    }

    /// Checks the newest frame of a worker, and the one before it once more.
    ///
    /// # Errors
    /// `Corrupt` for wrong bytes; those that the kill of another process cannot cause.
    pub(crate) fn check(&mut self, store: &Arc<ClientStore>, worker: usize) -> Result<()> {
        let Some(source) = unless_unavailable(self.source(store, worker))? else { return Ok(()) };
        let taken = unless_unavailable(source.reader.try_next())?.flatten();
        let is_open = source.reader.is_open().unwrap_or(false);
        if let Some(frame) = taken {
            let before = source.held.replace(frame);
            source.held.iter().chain(&before).try_for_each(check)?;
            self.checked += 1;
        } else if !is_open {
            // The worker was killed. Its successor opens the channel again.
            self.end(worker)?;
        }
        Ok(())
    }

    /// Checks the frames that are held, and closes all channels.
    ///
    /// # Errors
    /// `Corrupt` for wrong bytes.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.own = None;
        std::mem::take(&mut self.sources).iter().filter_map(|source| source.held.as_ref()).try_for_each(check)
    }

    fn source(&mut self, store: &Arc<ClientStore>, worker: usize) -> Result<&mut Source> {
        let known = self.sources.iter().position(|source| source.worker == worker);
        let at = match known {
            Some(at) => at,
            None => {
                let reader = store.read_channel(&name(worker), ChannelPolicy::Newest, Duration::ZERO)?;
                if self.sources.len() == SOURCES_MAX {
                    let oldest = self.sources[0].worker;
                    self.end(oldest)?;
                }
                self.sources.push(Source { worker, reader, held: None });
                self.sources.len() - 1
            }
        };
        Ok(&mut self.sources[at])
    }

    fn end(&mut self, worker: usize) -> Result<()> {
        let ended: Vec<_> = self.sources.extract_if(.., |source| source.worker == worker).collect();
        ended.iter().filter_map(|source| source.held.as_ref()).try_for_each(check)
    }
}

fn name(worker: usize) -> String {
    format!("frames {worker}")
}

/// None while the daemon has no descriptors left, a killed process has the channel, or no process has it.
fn unless_unavailable<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::OverBudget | ErrorKind::Conflict | ErrorKind::NotFound) => {
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

fn check(frame: &Frame) -> Result<()> {
    if frame.lease().bytes().is_some_and(is_whole) {
        Ok(())
    } else {
        Err(Error::corrupt(format!("frame {} of {:?} has wrong bytes", frame.number(), frame.lease().name())))
    }
}
