//! The state of a daemon: sessions, leases, slabs, functions, channels, the broker and spilled files. It imports nothing of the handlers and
//! the transports above it; HTTP comes in as an [`HttpService`].

pub(crate) mod broker;
pub(crate) mod channels;
mod end_mark;
pub(crate) mod functions;
mod http_service;
pub(crate) mod index;
mod keys;
mod orphans;
pub(crate) mod segment;
pub(crate) mod session;
pub(crate) mod spill;
mod store_events;

pub(crate) use end_mark::EndMark;
pub(crate) use http_service::HttpService;
pub(crate) use keys::{claim_key, content_hash};
pub(crate) use orphans::{EndedWait, Orphans};
pub(crate) use store_events::StoreEvents;
