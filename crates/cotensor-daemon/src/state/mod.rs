//! The state of a daemon: sessions, leases, slabs, functions, channels, the broker, spilled files and the journal. It imports nothing of the
//! handlers and the transports above it; the supervisor comes in as a [`SupervisorClient`], HTTP as an [`HttpService`].

pub(crate) mod broker;
pub(crate) mod channels;
pub(crate) mod functions;
mod http_service;
pub(crate) mod index;
pub(crate) mod journal;
mod keys;
mod orphans;
pub(crate) mod segment;
pub(crate) mod session;
pub(crate) mod spill;
mod store_events;
mod supervisor_client;

pub(crate) use http_service::HttpService;
pub(crate) use keys::{claim_key, content_hash};
pub(crate) use orphans::{EndedWait, Orphans};
pub(crate) use store_events::StoreEvents;
pub(crate) use supervisor_client::SupervisorClient;
