//! The channels of all sessions: where a reader finds the files of a producer. Frames pass by the daemon.

use crate::state::segment::{Inode, inode};
use crate::state::session::Session;
use cotensor_client::ChannelSpec;
use cotensor_client::protocol::{ChannelInfo, OpenChannelParams};
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, ErrorKind, Result};
use cotensor_memory::process::is_alive;
use cotensor_memory::{
    ChannelFiles, ChannelSize, frame_count, is_page_taken, is_ring_closed, is_ring_open, reader_lock, wake_readers,
};
use cotensor_store::backend::Charge;
use cotensor_store::{LocalStore, SegmentCharge, check_name};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// The most channels of one session.
const OF_SESSION_MAX: usize = 64;

/// Open channels by their names.
#[derive(Default)]
pub(crate) struct Channels(Mutex<BTreeMap<String, Channel>>);

struct Channel {
    params: OpenChannelParams,
    size: ChannelSize,
    files: ChannelFiles,
    ring: Inode,
    /// The producer's session, its client and its process.
    session: u64,
    client: String,
    pid: Option<i32>,
    /// The store counts the memory as long as the channel is open.
    _share: SegmentCharge,
    /// Its part of the session's budget.
    _own: Arc<Charge>,
}

/// A channel for a reader: memory, ring, the reader's page and its lock.
pub(crate) struct Joined {
    pub(crate) info: ChannelInfo,
    pub(crate) pid: Option<i32>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The size that the parameters give.
///
/// # Errors
/// `Invalid`, with the field.
fn size_of(params: &OpenChannelParams) -> Result<ChannelSize> {
    check_name(&params.name, "name")?;
    if params.name.is_empty() {
        return Err(Error::invalid("a channel without a name").in_field("name"));
    }
    let size = ChannelSpec::of(params)?.size()?;
    size.check()?;
    Ok(size)
}

impl Channels {
    /// Opens a channel for readers. A producer that has lost its connection opens its channel again.
    ///
    /// # Errors
    /// `Invalid` for sizes that are not possible; `Refused` for other files than those of such a channel; `Conflict` while another
    /// producer that lives has the name, when the session has too many, or when it has ended; `OverBudget`.
    pub(crate) fn open(
        &self,
        store: &LocalStore,
        session: &Session,
        params: OpenChannelParams,
        files: ChannelFiles,
    ) -> Result<()> {
        let size = size_of(&params)?;
        files.check(&size)?;
        let ring = inode(&files.ring)?;
        let (_own, _share) = self.admit(store, session, &params.name, &size, Some(ring))?;
        let (client, pid, name) = (session.client().to_owned(), session.pid, params.name.clone());
        let channel = Channel { params, size, files, ring, session: session.id, client, pid, _share, _own };
        let mut channels = self.lock();
        check_free(&channels, &name, Some(ring), session)?;
        let before = channels.insert(name, channel);
        drop(channels);
        drop(before);
        Ok(())
    }

    /// Checks that a channel can be opened, before its producer makes the memory.
    ///
    /// # Errors
    /// As [`open`](Self::open), without `Refused`.
    pub(crate) fn check(&self, store: &LocalStore, session: &Session, params: &OpenChannelParams) -> Result<()> {
        self.admit(store, session, &params.name, &size_of(params)?, None).map(drop)
    }

    /// Counts the memory of a channel that the session may open. `ring` is known after its memory was made.
    fn admit(
        &self,
        store: &LocalStore,
        session: &Session,
        name: &str,
        size: &ChannelSize,
        ring: Option<Inode>,
    ) -> Result<(Arc<Charge>, SegmentCharge)> {
        let bytes = size.total_bytes()? as u64;
        let replaced = {
            let mut channels = self.lock();
            check_free(&channels, name, ring, session)?;
            if channels.values().filter(|channel| channel.session == session.id).count() >= OF_SESSION_MAX {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("{OF_SESSION_MAX} channels are open in this session"),
                ));
            }
            channels.remove(name)
        };
        // It counts once.
        drop(replaced);
        let own = session.charge(bytes)?;
        // This may spill tensors, which takes long. Nothing is locked meanwhile.
        Ok((own, store.charge_segment(Device::Cpu, bytes)?))
    }

    /// Takes a channel of the session off the list after its producer has closed it: it takes no more readers.
    ///
    /// # Errors
    /// `NotFound` for one that the session does not have, and for one that is open: the producer may have opened the name again.
    pub(crate) fn close(&self, session: u64, name: &str) -> Result<()> {
        let mut channels = self.lock();
        let is_closed = |channel: &Channel| channel.session == session && is_ring_closed(&channel.files.ring);
        let closed = if channels.get(name).is_some_and(is_closed) { channels.remove(name) } else { None };
        drop(channels);
        closed.map(drop).ok_or_else(|| not_found(name))
    }

    /// Closes all channels of a session that has ended, and wakes their readers, which look whether the producer lives.
    pub(crate) fn remove_session(&self, session: u64) {
        let ended: Vec<Channel> =
            self.lock().extract_if(.., |_, channel| channel.session == session).map(|(_, channel)| channel).collect();
        for channel in &ended {
            if let Err(error) = wake_readers(&channel.files.ring) {
                tracing::debug!("readers of channel {:?} were not woken: {error}", channel.params.name);
            }
        }
    }

    /// A page of the channel for a new reader.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when all pages have readers; `OverBudget` at the limit of descriptors; `Io` where the system has no locks.
    pub(crate) fn join(&self, name: &str) -> Result<Joined> {
        // Locked until the reader has its lock: two readers must not get one page.
        let channels = self.lock();
        let channel = channels.get(name).ok_or_else(|| not_found(name))?;
        let ChannelFiles { memory, ring, pages } = channel.files.try_clone()?;
        for (number, page) in (0..).zip(pages) {
            if let Some(lock) = reader_lock(&ring, number)? {
                let info = channel.info();
                return Ok(Joined { info, pid: channel.pid, fds: vec![memory, ring, page, lock] });
            }
        }
        let message = format!("channel {name:?} of {} has its {} readers", channel.client, channel.size.readers);
        Err(Error::new(ErrorKind::Conflict, message))
    }

    /// All channels, ordered by name.
    pub(crate) fn list(&self) -> Vec<ChannelInfo> {
        self.lock().values().map(Channel::info).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Channel>> {
        lock(&self.0)
    }
}

/// Checks that the session may open a channel under this name: it has not ended, and the name is free, its producer has ended, or the channel is the same.
fn check_free(channels: &BTreeMap<String, Channel>, name: &str, ring: Option<Inode>, session: &Session) -> Result<()> {
    session.end_mark().check()?;
    match channels.get(name) {
        // Readers have the ring, too.
        Some(known) if (Some(known.ring), known.pid) != (ring, session.pid) && known.is_open() => {
            let message = format!("channel {name:?} belongs to {}", known.client);
            Err(Error::new(ErrorKind::Conflict, message).in_field("name"))
        }
        _ => Ok(()),
    }
}

impl Channel {
    /// Whether its producer may still publish.
    fn is_open(&self) -> bool {
        // A forked child of a dead producer has its lock and its connection.
        let pid = self.pid.filter(|pid| *pid > 0).and_then(|pid| u32::try_from(pid).ok());
        is_ring_open(&self.files.ring) && pid.is_none_or(is_alive)
    }

    fn info(&self) -> ChannelInfo {
        let is_taken = |page: &u32| is_page_taken(&self.files.ring, *page);
        ChannelInfo {
            opened: self.params.clone(),
            bytes: self.size.total_bytes().map_or(0, |bytes| bytes as u64),
            client: self.client.clone(),
            open_readers: (0..self.size.readers).filter(is_taken).count() as u32,
            frames: frame_count(&self.files.ring).unwrap_or(0),
        }
    }
}

fn not_found(name: &str) -> Error {
    Error::not_found(format!("channel {name:?} not found")).in_field("name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Daemon};
    use cotensor_core::DType;
    use cotensor_memory::ChannelWriter;

    /// A request of a lost connection waits for memory meanwhile, and is done after the client has opened its channel again.
    #[test]
    fn late_call_of_a_replaced_session_leaves_the_channel_of_the_next_one() {
        let daemon = Daemon::new(Config::default()).unwrap();
        let spec = ChannelSpec::new("camera", DType::U8, &[1000]);
        let writer = ChannelWriter::create(spec.size().unwrap()).unwrap();
        let pid = i32::try_from(std::process::id()).ok();
        let [former, next] = [(); 2].map(|()| daemon.begin_session(pid, None));
        let open = |session: &Session| {
            let params = OpenChannelParams {
                name: spec.name.clone(),
                dtype: spec.dtype.name().to_owned(),
                shape: spec.shape.clone(),
                slots: spec.slots,
                readers: spec.readers,
                holds: spec.holds,
            };
            daemon.channels.open(&daemon.store, session, params, writer.files().unwrap())
        };
        open(&former).unwrap();
        drop(daemon.end_session(&former));
        open(&next).unwrap();
        assert_eq!(open(&former).unwrap_err().kind(), ErrorKind::Conflict);
        // At the end of the thread of the former connection.
        drop(daemon.end_session(&former));
        assert_eq!(daemon.channels.list().len(), 1);
    }
}
