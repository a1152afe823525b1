//! Connecting a client.

use super::client_store::ClientStore;
use super::connection::DaemonConnection;
use super::copies::UnreportedCopies;
use super::lease_table::LeaseTable;
use super::memories::Memories;
use super::reconnect::{self, Reconnector};
use super::session::ANSWER_TIMEOUT;
use super::slabs::Slabs;
use super::tickets::Tickets;
use crate::socket_path::default_socket;
use cotensor_core::{Memory, Result};
use cotensor_memory::process::raise_fd_limit;
use cotensor_store::SharingConfig;
use cotensor_store::backend::Budget;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Builds a [`ClientStore`].
#[derive(Clone)]
pub struct ClientStoreBuilder {
    client: String,
    socket: Option<PathBuf>,
    timeout: Duration,
    memories: Vec<Arc<dyn Memory>>,
}

impl ClientStoreBuilder {
    /// The daemon's socket. [`default_socket`] without it.
    #[must_use]
    pub fn socket(mut self, socket: impl Into<PathBuf>) -> Self {
        self.socket = Some(socket.into());
        self
    }

    /// The time in which the daemon answers the first call; 30 s by default, which is the most.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(ANSWER_TIMEOUT);
        self
    }

    /// The memory of one device, which [`Memory::device`] names. Processes share its segments by their descriptors
    /// ([`Memory::import`]). For the host it is a pool of memfds by default.
    #[must_use]
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memories.push(memory);
        self
    }

    /// Connects to the daemon.
    ///
    /// # Errors
    /// `Unreachable` when no daemon answers at the socket, `Unsupported` when its protocol version differs, `Refused`
    /// when it belongs to another user, `TimedOut` when it does not answer in time.
    pub fn connect(self) -> Result<Arc<ClientStore>> {
        let Self { client, socket, timeout, memories } = self;
        raise_fd_limit();
        let socket = socket.unwrap_or_else(default_socket);
        let (slabs, memories) = (Slabs::default(), Arc::new(Memories::new(memories)));
        let greeted = DaemonConnection::greet_first(&socket, &client, &slabs.freed(), timeout)?;
        let hello = greeted.hello.clone();
        let connection = Arc::new(DaemonConnection::new(&socket, &client, slabs.freed(), greeted.into_session(0)));
        let leases = LeaseTable::new(Arc::clone(&connection), Arc::clone(&memories));
        let daemon = Reconnector { connection, leases, memories, slabs, tickets: Tickets::default() };
        let kinds =
            hello.sharing.allowed_types.map(|kinds| kinds.iter().filter_map(|kind| kind.parse().ok()).collect());
        let config = SharingConfig {
            enable_shared_tensors: hello.sharing.enable_shared_tensors,
            allowed_types: kinds,
            max_shared_tensor_size_bytes: hello.sharing.max_shared_tensor_size_bytes,
        };
        let store = Arc::new_cyclic(|me| ClientStore {
            daemon,
            socket,
            client,
            config,
            small_bytes_max: usize::try_from(hello.small_bytes_max).unwrap_or(usize::MAX),
            copies: UnreportedCopies::default(),
            private: Budget::new(u64::MAX),
            me: me.clone(),
        });
        reconnect::watch(&store.daemon.connection, store.me.clone(), |store| &store.daemon)?;
        Ok(store)
    }
}

impl ClientStore {
    /// A builder of a client that can use host memory. `client` names this process for display.
    pub fn builder(client: &str) -> ClientStoreBuilder {
        ClientStoreBuilder { client: client.to_owned(), socket: None, timeout: ANSWER_TIMEOUT, memories: Vec::new() }
    }

    /// Connects to the daemon at `socket`, or at [`default_socket`]. `client` names this process for display.
    ///
    /// # Errors
    /// As [`ClientStoreBuilder::connect`].
    pub fn connect(socket: Option<&Path>, client: &str) -> Result<Arc<Self>> {
        Self::connect_within(socket, client, ANSWER_TIMEOUT)
    }

    /// As [`connect`](Self::connect), for a daemon that must answer within `timeout`.
    ///
    /// # Errors
    /// As [`ClientStoreBuilder::connect`].
    pub fn connect_within(socket: Option<&Path>, client: &str, timeout: Duration) -> Result<Arc<Self>> {
        let builder = Self::builder(client).timeout(timeout);
        socket.iter().fold(builder, |builder, socket| builder.socket(*socket)).connect()
    }
}
