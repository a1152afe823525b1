//! Tests of the daemon: in this process, and in processes of its own.
//!
//! They need `cargo nextest`, which runs each test in a process of its own: some tests count or limit what the whole
//! process has open.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod address_space;
mod blobs;
mod blocks;
mod blocks_after_failures;
mod broker;
mod channels;
mod clients_die;
mod conformance;
mod control_groups;
mod cuda;
mod cuda_deaths;
mod cuda_slabs;
mod descriptors;
mod devices;
mod discovery;
mod ended_sessions;
mod failed_calls;
mod foreground;
mod functions_by_name;
mod functions_memory;
mod groups;
mod heap;
mod limits;
mod lost_connections;
mod metadata;
mod models;
mod namespaces;
mod protocol;
mod reconnection;
mod repeated_publications;
mod requests;
mod resident;
mod sandbox;
mod sharing;
mod signals;
mod slabs;
mod socket_files;
mod spill;
mod support;
mod systemd;
mod takeover;
mod unsent_answers;
mod upgrade;
mod version_states;
