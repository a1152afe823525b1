//! `cotensor-soak`: long runs of the daemon. The integration tests perform short forms of them.
//!
//! Progress is printed to standard error, the outcome as JSON to standard output. A run that finds an error fails.

mod bert;
mod chaos;
mod content;
mod cycles;
mod daemon;
mod figures;
mod frames;
mod metadata;
mod worker;

use clap::{Parser, Subcommand};
use cotensor_core::{Error, Result};
use cotensor_daemon::Role;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Perform long runs of the Cotensor daemon")]
struct Arguments {
    #[command(subcommand)]
    run: Run,
}

#[derive(Subcommand)]
enum Run {
    /// Kill clients and the daemon at random.
    Chaos(chaos::Options),
    /// Put, get and release many tensors, and check that nothing grows.
    Cycles(cycles::Options),
    /// Measure the memory of BERT-base in several processes over one.
    Bert(bert::Options),
    /// Measure the metadata of many small tensors, and the time of a takeover.
    Metadata(metadata::Options),
    /// Perform all runs and print a table.
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
    /// Role of the process; set by the daemon for the processes that it starts.
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

/// Returns whether the run found no error.
fn run(run: Run) -> Result<bool> {
    match run {
        Run::Chaos(options) => report(&chaos::run(&options)?, chaos::Outcome::is_right),
        Run::Cycles(options) => report(&cycles::run(&options)?, cycles::Outcome::is_right),
        Run::Bert(options) => report(&bert::run(&options)?, |_| true),
        Run::Metadata(options) => report(&metadata::run(&options)?, metadata::Outcome::is_right),
        Run::Figures(options) => figures::run(&options),
        Run::Daemon(Daemon { socket, max_memory, role }) => daemon::run(role, socket, max_memory).map(|()| true),
        Run::Worker(options) => worker::run(&options).map(|()| true),
        Run::Model(options) => bert::run_model(options).map(|()| true),
    }
}

fn report<T: Serialize>(outcome: &T, is_right: impl FnOnce(&T) -> bool) -> Result<bool> {
    let text = serde_json::to_string_pretty(outcome).map_err(|error| Error::invalid(error.to_string()))?;
    println!("{text}");
    Ok(is_right(outcome))
}
