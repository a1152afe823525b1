//! Connecting a client.

use super::client_store::ClientStore;
use super::connection::DaemonConnection;
use super::copies::UnreportedCopies;
use super::lease_table::LeaseTable;
use super::memories::Memories;
use super::port_health::connect_at_port;
use super::reconnect::{self, Reconnector};
use super::reopened::Reopenings;
use super::session::ANSWER_TIMEOUT;
use super::slabs::Slabs;
use super::tickets::Tickets;
use crate::socket_path::{own_socket, socket_of_port};
use crate::start::{DaemonProgram, Starter, autostart_allowed};
use cotensor_core::{Error, ErrorKind, Memory, Result};
use cotensor_memory::process::raise_fd_limit;
use cotensor_store::SharingConfig;
use cotensor_store::backend::Budget;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The most attempts to connect, while daemons end before they answer.
const ATTEMPTS_MAX: u32 = 10;

/// Builds a [`ClientStore`].
#[derive(Clone)]
pub struct ClientStoreBuilder {
    client: String,
    socket: Option<PathBuf>,
    port: Option<u16>,
    timeout: Duration,
    memories: Vec<Arc<dyn Memory>>,
    program: Option<DaemonProgram>,
    /// Whether the program is only started after a first daemon has ended.
    only_again: bool,
}

impl ClientStoreBuilder {
    /// The daemon's socket. [`configured_socket`](crate::configured_socket) without it.
    #[must_use]
    pub fn socket(mut self, socket: impl Into<PathBuf>) -> Self {
        self.socket = Some(socket.into());
        self
    }

    /// The daemon of a port, unless a socket is named: the one at [`socket_of_port`], else the one of this user that serves
    /// HTTP at the port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// The program that is started as daemon when none answers, unless [`AUTOSTART`](crate::settings::AUTOSTART) forbids it. The
    /// daemon outlives this process; it ends after ten minutes (`COTENSOR_IDLE_EXIT`) without clients and tensors.
    #[must_use]
    pub fn start(mut self, program: DaemonProgram) -> Self {
        self.program = Some(program);
        self
    }

    /// As [`start`](Self::start), but only calls of the connected client start the program, once its daemon has ended.
    #[must_use]
    pub fn start_again(mut self, program: DaemonProgram) -> Self {
        self.only_again = true;
        self.start(program)
    }

    /// The time in which the daemon starts, and answers the first call; 30 s by default, which is the most.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(ANSWER_TIMEOUT);
        self
    }

    /// The memory of one device, which [`Memory::device`] names. Processes share its segments by their descriptors
    /// ([`Memory::import`]). By default it is a pool of memfds for the host, and for CUDA devices the memory of the installed
    /// driver, which the first use of such a device loads.
    #[must_use]
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memories.push(memory);
        self
    }

    /// Connects to the daemon.
    ///
    /// # Errors
    /// `Unreachable` when no daemon answers at the socket, or when the one that was started ended; `Unsupported` when its
    /// protocol version differs, `Refused` when it belongs to another user, `TimedOut` when it does not answer in time;
    /// `Conflict` when only another program answers at the port, and none is to be started.
    pub fn connect(self) -> Result<Arc<ClientStore>> {
        let (socket, port) = self.place()?;
        let Some(port) = port else { return self.connect_at(socket) };
        // The own socket first. Only without a daemon there, the program at the port is asked, and believed once the daemon
        // itself has confirmed it.
        let starting = self.program.is_some() && !self.only_again && autostart_allowed()?;
        let (client, timeout, began) = (self.client.clone(), self.timeout, Instant::now());
        let left = || timeout.saturating_sub(began.elapsed());
        let own = Self { only_again: true, ..self.clone() };
        match own.connect_at(socket.clone()) {
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            outcome => return outcome,
        }
        match connect_at_port(port, &client, left()) {
            Ok(store) => return Ok(store),
            // A daemon is started at the own socket, whatever runs at the port.
            Err(_) if starting => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message =
                    format!("no daemon answers at port {port}, nor at its socket; `cotensor serve` starts one");
                return Err(Error::new(ErrorKind::Unreachable, message).in_file(socket));
            }
            Err(error) => return Err(error),
        }
        let timeout = left();
        Self { timeout, ..self }.connect_at(socket)
    }

    /// The socket at which the daemon is expected, and the port at which it is searched if no socket is named.
    fn place(&self) -> Result<(PathBuf, Option<u16>)> {
        let socket = own_socket(self.socket.as_deref(), self.port)?;
        let by_port = self.port.filter(|port| socket == socket_of_port(*port) && self.socket.is_none());
        Ok((socket, by_port))
    }

    fn connect_at(self, socket: PathBuf) -> Result<Arc<ClientStore>> {
        let Self { client, timeout, memories, program, only_again, .. } = self;
        let began = Instant::now();
        raise_fd_limit();
        let (slabs, memories) = (Slabs::default(), Arc::new(Memories::new(memories)));
        let greet = || {
            let left = timeout.saturating_sub(began.elapsed());
            DaemonConnection::greet_first(&socket, &client, &slabs.freed(), left)
        };
        // Without a program, the configuration file has no effect here and is not read.
        let starter = match program {
            Some(program) if autostart_allowed()? => Some(Starter { program, socket: socket.clone() }),
            _ => None,
        };
        let mut attempts = 0;
        let greeted = loop {
            attempts += 1;
            match (greet(), &starter) {
                (Ok(greeted), _) => break greeted,
                (Err(error), Some(starter)) if attempts < ATTEMPTS_MAX && !only_again => match error.kind() {
                    ErrorKind::Unreachable => starter.start(timeout.saturating_sub(began.elapsed()))?,
                    // The daemon ended before it answered.
                    ErrorKind::Io => {}
                    _ => return Err(error),
                },
                (Err(error), _) => return Err(error),
            }
        };
        let hello = greeted.hello.clone();
        let connection = Arc::new(DaemonConnection::new(&socket, &client, slabs.freed(), greeted.into_session(0)));
        let leases = LeaseTable::new(Arc::clone(&connection), Arc::clone(&memories));
        let daemon = Reconnector {
            connection,
            leases,
            memories,
            slabs,
            tickets: Tickets::default(),
            reopened: Reopenings::default(),
            ready: Default::default(),
            starter,
        };
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
            block_bytes_max: usize::try_from(hello.block_bytes_max).unwrap_or(usize::MAX),
            copies: UnreportedCopies::default(),
            private: Budget::new(u64::MAX),
            me: me.clone(),
            offered: Mutex::default(),
        });
        store.keep_own_memory();
        reconnect::watch(&store.daemon.connection, store.me.clone(), |store| &store.daemon)?;
        Ok(store)
    }
}

impl ClientStore {
    /// A builder of a client that can use host memory and CUDA devices. `client` names this process for display.
    pub fn builder(client: &str) -> ClientStoreBuilder {
        ClientStoreBuilder {
            client: client.to_owned(),
            socket: None,
            port: None,
            timeout: ANSWER_TIMEOUT,
            memories: Vec::new(),
            program: None,
            only_again: false,
        }
    }

    /// Connects to the daemon at `socket`, or at [`configured_socket`](crate::configured_socket); starts the command `cotensor` beside this executable
    /// ([`DaemonProgram::beside_this_executable`]) as daemon when none answers.
    ///
    /// # Errors
    /// As [`ClientStoreBuilder::connect`].
    pub fn connect_or_start(socket: Option<&Path>, client: &str) -> Result<Arc<Self>> {
        let mut builder = Self::builder(client);
        builder.socket = socket.map(Path::to_path_buf);
        builder.program = DaemonProgram::beside_this_executable();
        builder.connect()
    }

    /// Connects to the daemon at `socket`, or at [`configured_socket`](crate::configured_socket). `client` names this process for display.
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
