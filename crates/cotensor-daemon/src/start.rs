//! Creating a daemon: its store and its index.

use crate::config::{Config, METADATA_BYTES};
use crate::daemon::Daemon;
use crate::log_throttle::LogThrottle;
use crate::models::Models;
use crate::provider_tasks::TaskConnections;
use crate::spill_files::{Files, SpillToFiles};
use crate::state::StoreEvents;
use crate::state::broker::Broker;
use crate::state::channels::Channels;
use crate::state::functions;
use crate::state::index::Slots;
use crate::state::segment::Slabs;
use crate::state::session::{Disconnected, SessionLocks};
use crate::transport::http::start_http;
use cotensor_client::protocol::METHODS;
use cotensor_core::{Hasher, Result};
use cotensor_memory::SharedIndex;
use cotensor_memory::process::{LockTable, has_room_for_message, random_bytes};
use cotensor_rpc::FrameBudget;
use cotensor_rpc::server::CallCounts;
use cotensor_store::{Clock, LocalStore, StoreObserver, SystemClock};
use cotensor_supervisor::{INDEX_SLOTS, SupervisorLink};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{Notify, watch};

/// The servers that one supervisor started are counted in these bits of a session's number.
const SERVERS_MASK: u64 = (1 << 20) - 1;

impl Daemon {
    /// A daemon with an empty store of sealed memory.
    ///
    /// # Errors
    /// `Io` when the system has no random numbers.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        Self::with(config, SharedIndex::create(INDEX_SLOTS)?, None)
    }

    pub(crate) fn with(config: Config, index: SharedIndex, link: Option<Arc<SupervisorLink>>) -> Result<Arc<Self>> {
        Self::with_counts(config, index, link, CallCounts::of(METHODS.iter().map(|method| method.name)))
    }

    /// `counts` are those of the methods that the daemon serves.
    pub(crate) fn with_counts(
        config: Config,
        index: SharedIndex,
        link: Option<Arc<SupervisorLink>>,
        counts: CallCounts,
    ) -> Result<Arc<Self>> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let (mut secret, epoch) = (random_bytes()?, random_bytes()?);
        // Session numbers are unique among the servers of one supervisor.
        let mut first_session = 1;
        let locks = match &link {
            None => LockTable::create()?,
            Some(link) => {
                secret = link.secret();
                first_session |= (link.servers() & SERVERS_MASK) << 32;
                link.lock_table()?
            }
        };
        let seed = Hasher::new("cotensor names v1").field(&secret).finish();
        let (seed, _) = seed.as_bytes().split_at(8);
        let spill = config.spill.as_deref();
        let files = spill.map(|folder| Files::open(folder, &config.socket, config.max_spill_bytes)).transpose()?;
        let events = Arc::new(StoreEvents {
            clock: Arc::clone(&clock),
            slots: Slots::new(index)?,
            link,
            spilled: files.as_ref().map(|files| Arc::clone(&files.table)),
            orphans: Mutex::default(),
        });
        let mut store = LocalStore::builder().clock(Arc::clone(&clock));
        if let Some(files) = &files {
            store = store.spill(Arc::new(SpillToFiles(Arc::clone(files))));
        }
        for (&device, &bytes) in &config.max_device_bytes {
            store = store.max_device_bytes(device, bytes);
        }
        let store = store
            .max_memory_bytes(config.max_memory_bytes)
            .config(config.sharing.clone())
            .metadata_bytes(METADATA_BYTES)
            .claim_wait_max(config.claim_wait_max)
            .seed(seed.iter().fold(0, |seed, &byte| seed << 8 | u64::from(byte)))
            .observer(Arc::clone(&events) as Arc<dyn StoreObserver>)
            .build();
        Ok(Arc::new(Self {
            store,
            events,
            files,
            counts,
            functions: functions::Registry::default(),
            tasks: TaskConnections::default(),
            broker: Arc::new(Broker::new(Arc::clone(&clock))),
            clock,
            slabs: Slabs::default(),
            channels: Channels::default(),
            frames: FrameBudget::of_server(has_room_for_message),
            // Numbers in JSON are exact up to 2^53.
            epoch: u64::from_le_bytes(epoch) >> 11,
            secret,
            models: Models::new(config.models.clone(), &config.socket),
            stopping: watch::Sender::new(false),
            start_http,
            http_start: tokio::sync::Mutex::default(),
            disconnected: Mutex::new(Disconnected::new(config.connections_max)),
            timers: OnceLock::new(),
            config,
            next_session: AtomicU64::new(first_session),
            sessions: Mutex::default(),
            locks: SessionLocks::new(locks),
            ended: Notify::new(),
            http: Mutex::default(),
            refused_users: LogThrottle::default(),
        }))
    }
}
