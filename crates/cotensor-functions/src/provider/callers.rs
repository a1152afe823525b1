//! The callers of a provider, and the methods that they call.

use super::caller_state::released;
use super::group::References;
use super::methods::methods;
use super::peer::Peer;
use super::state::ProviderState;
use crate::Object;
use cotensor_client::protocol::provider::ObjectRef;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_rpc::server::Registry;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub(super) struct Callers {
    pub(super) state: Arc<ProviderState>,
    pub(super) methods: Registry<Peer>,
    peers: Mutex<HashMap<u64, Arc<Peer>>>,
    next_peer: AtomicU64,
}

impl Callers {
    pub(super) fn new(state: Arc<ProviderState>) -> Arc<Self> {
        let (peers, next_peer) = (Mutex::default(), AtomicU64::new(1));
        let callers = Arc::new(Self { state, methods: methods(), peers, next_peer });
        let references = Arc::downgrade(&callers);
        callers.state.group.add(callers.state.epoch, references);
        callers
    }

    /// Adds a caller. Closes its socket when there are too many.
    pub(super) fn add(&self, client: &str, socket: UnixStream) {
        let number = self.next_peer.fetch_add(1, Ordering::Relaxed);
        let peer = Peer::new(Arc::clone(&self.state), number, client, self.state.store(), socket);
        let mut peers = lock(&self.peers);
        if self.state.is_closed() || peers.len() >= self.state.limits.callers_max {
            return;
        }
        peers.insert(number, Arc::clone(&peer));
        drop(peers);
        if peer.listen().is_err() {
            self.remove(&peer);
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<Peer>> {
        lock(&self.peers).get(&number).cloned()
    }

    /// Ends a caller's connection and releases what the caller holds.
    pub(super) fn remove(&self, peer: &Arc<Peer>) {
        peer.end();
        let removed = lock(&self.peers).remove(&peer.number);
        drop(removed);
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.peers).len()
    }

    /// Removes expired tasks and results, and gives idle memory of callers' arenas back.
    pub(super) fn sweep(&self) {
        self.state.sweep();
        let (peers, now): (Vec<_>, _) = (lock(&self.peers).values().cloned().collect(), Instant::now());
        for peer in peers {
            peer.arena().give_back(now);
        }
        self.state.store().bound_kept_memory(now);
    }

    /// Ends the provider: refuses new calls, closes the connections of callers and cancels runs. Does not wait for
    /// running functions.
    pub(super) fn close(&self) {
        self.state.end_session();
        let peers = std::mem::take(&mut *lock(&self.peers));
        peers.values().for_each(|peer| peer.end());
        self.state.end_runs();
    }
}

impl References for Callers {
    fn object_of(&self, client: &str, object: ObjectRef) -> Result<Object> {
        let mut peers: Vec<_> = lock(&self.peers).values().cloned().collect();
        peers.retain(|peer| &*peer.client == client);
        let found = peers.iter().find_map(|peer| peer.state.object(object).ok());
        found.ok_or_else(|| released(object))
    }
}
