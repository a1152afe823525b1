//! Runs the `cotensor` command in separate processes, with real daemons.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod autostart;
mod cache;
mod calls;
mod channels;
mod cli;
mod completion;
mod config;
mod daemon;
mod decoding;
mod demo;
mod embed;
mod embedded;
mod engines;
mod hostile;
mod hub;
mod keep;
mod messages;
mod mistakes;
mod models;
mod models_kept;
mod openai;
mod plan;
mod quantize;
mod serve;
mod service;
mod sharing;
mod stream;
mod support;
mod tensors;
mod terminal;
mod waits;
