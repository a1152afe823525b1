//! What an answer gives to the client of a session: leases, descriptors, a reservation, a claim and a pack to upload. They are the client's once
//! the answer is sent.

use super::resources::Reserved;
use super::session::Session;
use cotensor_client::protocol::Descriptor;
use cotensor_core::Result;
use cotensor_store::backend::Charge;
use cotensor_store::{BlobPack, Holder, Lease, TensorId, Ticket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Leases, descriptors and a handle for one answer. Dropping them takes them back, because the client has an error instead of the answer.
pub(crate) struct Granted {
    session: Arc<Session>,
    leases: Vec<(TensorId, Holder)>,
    /// The segments whose descriptors the answer brings, by their numbers in the session.
    segments: Vec<u64>,
    handle: Option<Handle>,
    fds: Vec<OwnedFd>,
}

/// The number by which the client ends what it was given.
enum Handle {
    Pack(u64),
    Reservation(u64),
    Ticket(u64),
}

impl Granted {
    pub(crate) fn new(session: &Arc<Session>) -> Self {
        let session = Arc::clone(session);
        Self { session, leases: Vec::new(), segments: Vec::new(), handle: None, fds: Vec::new() }
    }

    /// Adds a lease and describes the tensor to the client.
    ///
    /// # Errors
    /// As [`Session::grant`].
    pub(crate) fn lease(&mut self, lease: Lease, holder: &Holder) -> Result<Descriptor> {
        let id = lease.id();
        let descriptor = self.session.grant(lease, holder, &mut self.fds)?;
        self.leases.push((id, holder.clone()));
        self.segments.extend(descriptor.fd.then_some(descriptor.segment.id));
        Ok(descriptor)
    }

    /// Adds the descriptor of a segment in which the session leases a tensor.
    ///
    /// # Errors
    /// As [`Session::segment_fd`].
    pub(crate) fn segment(&mut self, segment: u64) -> Result<()> {
        self.fds.push(self.session.segment_fd(segment)?);
        self.segments.push(segment);
        Ok(())
    }

    /// Adds a pack that the client uploads, with its part of the session's budget. Returns its handle.
    ///
    /// # Errors
    /// `Conflict` when the session has too many of them.
    pub(crate) fn pack(&mut self, pack: BlobPack, own: Arc<Charge>) -> Result<u64> {
        let handle = self.session.lock().packs.add((pack, own))?;
        self.handle = Some(Handle::Pack(handle));
        Ok(handle)
    }

    /// Adds memory that the client makes. Returns its handle.
    ///
    /// # Errors
    /// `Conflict` when the session has too many of them.
    pub(crate) fn reservation(&mut self, reserved: Reserved) -> Result<u64> {
        let handle = self.session.lock().reservations.add(reserved)?;
        self.handle = Some(Handle::Reservation(handle));
        Ok(handle)
    }

    /// Adds a claim whose results the client computes. Returns its handle.
    ///
    /// # Errors
    /// `Conflict` when the session has too many of them.
    pub(crate) fn ticket(&mut self, ticket: Ticket) -> Result<u64> {
        let handle = self.session.lock().tickets.add(ticket)?;
        self.handle = Some(Handle::Ticket(handle));
        Ok(handle)
    }

    /// Takes out the descriptors of the answer.
    pub(crate) fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// The answer is sent: all is the client's.
    pub(crate) fn keep(mut self) {
        self.leases.clear();
        self.segments.clear();
        self.handle = None;
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        for segment in self.segments.drain(..) {
            self.session.forget_sent(segment);
        }
        for (id, holder) in self.leases.drain(..) {
            // The session may have ended.
            let _ = self.session.release(id, &holder);
        }
        // What is taken out is dropped without the lock.
        match self.handle.take() {
            Some(Handle::Pack(handle)) => {
                let pack = self.session.lock().packs.take(handle, "reservation");
                drop(pack);
            }
            Some(Handle::Reservation(handle)) => {
                let reserved = self.session.lock().reservations.take(handle, "reservation");
                drop(reserved);
            }
            Some(Handle::Ticket(handle)) => {
                let ticket = self.session.lock().tickets.take(handle, "ticket");
                drop(ticket);
            }
            None => {}
        }
    }
}
