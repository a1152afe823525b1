//! The supervisor, as the state of a server sees it.

use super::journal::Event;
use super::spill::SpillFile;
use cotensor_core::Result;
use cotensor_memory::process::LockTable;
use cotensor_store::backend::Record;
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// A client of the process that keeps a server's state for the next server. It gets each event before a client can depend on the event.
pub(crate) trait SupervisorClient: Send + Sync {
    /// A secret that all servers of the supervisor have.
    fn secret(&self) -> [u8; 32];

    /// The number of servers so far, including this one.
    fn servers(&self) -> u64;

    /// The process of the supervisor; `None` between two supervisors.
    fn supervisor(&self) -> Option<u32>;

    /// The locks of the sessions of all servers.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    fn lock_table(&self) -> Result<LockTable>;

    /// Reports an event that brings no descriptor. A failure is logged.
    fn record(&self, event: Event);

    /// Reports a published tensor and, with the first tensor of a segment, the segment's descriptor.
    fn record_published(&self, record: &Record);

    /// Reports a tensor that was freed.
    fn record_freed(&self, record: &Record);

    /// Reports a tensor whose segment was written to `file`.
    fn record_spilled(&self, record: &Record, file: SpillFile);

    /// Reports that this server has made its socket at `path`, or the socket's lock, again: the next server needs them. `fds` are the
    /// listener, the lock and the socket's file.
    fn moved(&self, path: &Path, fds: [BorrowedFd<'_>; 3]);

    /// Reports that this server serves HTTP on `listener` at the request of a client: the next server does so too.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    fn started_http(&self, listener: &TcpListener) -> Result<()>;

    /// Reports that this server stops on request, so that no other one is started.
    fn stop(&self);
}
