//! The Unix socket: accepting connections (`serve.rs`), one connection (`connection.rs`), and the end of an unused daemon (`idle.rs`).

mod connection;
mod idle;
mod serve;
