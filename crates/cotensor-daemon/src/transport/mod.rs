//! How calls of clients arrive: on the Unix socket, and over HTTP.

pub mod http;
mod socket;
