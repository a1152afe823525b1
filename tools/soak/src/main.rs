//! `cotensor-soak`: runs of the daemon that are too long or too rough for a test, and short forms of them for one.
//!
//! Progress goes to standard error, the outcome as JSON to standard output; a run that finds something wrong fails.

mod bert;
mod chaos;
mod content;
mod cycles;
mod daemon;
mod figures;
mod metadata;
mod worker;

use clap::{Parser, Subcommand};
use cotensor_core::{Error, Result};
use cotensor_daemon::keeper::Role;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Long runs of the Cotensor daemon, measured")]
struct Arguments {
    #[command(subcommand)]
    run: Run,
}

#[derive(Subcommand)]
enum Run {
    /// Many clients, killed at random, and the daemon too.
    Chaos(chaos::Options),
    /// Tensors put, got and let go of, again and again: does anything grow?
    Cycles(cycles::Options),
    /// BERT-base in several processes: how much more memory than in one?
    Bert(bert::Options),
    /// Many tiny tensors: what is kept of each, and how long a takeover takes.
    Metadata(metadata::Options),
    /// All of these, and a table.
    Figures(figures::Options),
    #[command(hide = true)]
    Daemon(Daemon),
    #[command(hide = true)]
    Worker(worker::Options),
    #[command(hide = true)]
    Model(bert::ModelOptions),
}

#[derive(clap::Args)]
struct Daemon {
    socket: PathBuf,
    max_memory: u64,
    /// Set when the daemon starts itself again.
    #[arg(long, default_value = "foreground")]
    role: Role,
}

fn main() -> ExitCode {
    match run(Arguments::parse().run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cotensor-soak: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all was as it should be.
fn run(run: Run) -> Result<bool> {
    match run {
        Run::Chaos(options) => say(&chaos::run(&options)?, chaos::Outcome::is_right),
        Run::Cycles(options) => say(&cycles::run(&options)?, cycles::Outcome::is_right),
        Run::Bert(options) => say(&bert::run(&options)?, |_| true),
        Run::Metadata(options) => say(&metadata::run(&options)?, metadata::Outcome::is_right),
        Run::Figures(options) => figures::run(&options),
        Run::Daemon(Daemon { socket, max_memory, role }) => daemon::run(role, socket, max_memory).map(|()| true),
        Run::Worker(options) => worker::run(&options).map(|()| true),
        Run::Model(options) => bert::run_model(&options).map(|()| true),
    }
}

fn say<T: Serialize>(outcome: &T, is_right: impl FnOnce(&T) -> bool) -> Result<bool> {
    let text = serde_json::to_string_pretty(outcome).map_err(|error| Error::invalid(error.to_string()))?;
    println!("{text}");
    Ok(is_right(outcome))
}
