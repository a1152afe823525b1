//! Limits of connections: many for this user, few for others, so that others cannot exhaust them.

use super::config::HttpConfig;
use super::peer;
use super::turned_away::TurnedAway;
use crate::log_throttle::LogThrottle;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits for connections.
pub(super) struct Admission {
    /// For this user's connections and those with the token.
    trusted: Arc<Semaphore>,
    /// For all others.
    untrusted: Arc<Semaphore>,
    /// The answers to connections beyond these limits, of this user and of others.
    turned_away: [TurnedAway; 2],
    refusals: LogThrottle,
}

/// The client of a connection.
#[derive(Clone)]
pub(super) struct Peer {
    /// Whether it is a process of this user or of root on this machine, according to the kernel.
    pub(super) own: bool,
    permit: Arc<ConnectionPermit>,
}

/// The permit of a connection until it ends.
struct ConnectionPermit {
    trusted: Arc<Semaphore>,
    permit: Mutex<OwnedSemaphorePermit>,
}

impl Admission {
    pub(super) fn new(config: &HttpConfig) -> Self {
        Self {
            trusted: Arc::new(Semaphore::new(config.connections_max)),
            untrusted: Arc::new(Semaphore::new(config.untrusted_connections_max)),
            turned_away: [config.connections_max, config.untrusted_connections_max].map(TurnedAway::new),
            refusals: LogThrottle::default(),
        }
    }

    /// A permit for an accepted connection. When the limit is reached, the answers to those that are refused.
    pub(super) async fn admit(&self, stream: &TcpStream) -> Result<Peer, &TurnedAway> {
        let own = match (stream.peer_addr(), stream.local_addr()) {
            (Ok(peer), Ok(local)) if peer.ip().to_canonical().is_loopback() => {
                tokio::task::spawn_blocking(move || peer::is_own(peer, local)).await.unwrap_or(false)
            }
            _ => false,
        };
        let (permits, users) = if own { (&self.trusted, "this user") } else { (&self.untrusted, "other users") };
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
            if let Some(count) = self.refusals.note() {
                tracing::warn!("{count} HTTP connections were refused: the limit for {users} is reached");
            }
            return Err(&self.turned_away[usize::from(!own)]);
        };
        Ok(Peer {
            own,
            permit: Arc::new(ConnectionPermit { trusted: Arc::clone(&self.trusted), permit: Mutex::new(permit) }),
        })
    }
}

impl Peer {
    /// The client has the token: its connection no longer counts among those without it.
    pub(super) fn trust(&self) {
        let mut permit = lock(&self.permit.permit);
        if !Arc::ptr_eq(permit.semaphore(), &self.permit.trusted)
            && let Ok(better) = Arc::clone(&self.permit.trusted).try_acquire_owned()
        {
            *permit = better;
        }
    }
}
