//! The `cotensor` command: flags and wiring only.

mod args;
mod commands;
mod output;
mod panics;

use args::{Cli, Command};
use clap::Parser;
use cotensor::core::Result;
use cotensor::{Error, ErrorKind};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let started = Instant::now();
    panics::hold_back();
    let result = panics::told(|| command(started));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(&format!("error: {}", output::bounded(&output::printable(&error.to_string()))));
            exit_code(&error)
        }
    }
}

fn command(started: Instant) -> Result<()> {
    match Cli::parse().command {
        Command::Demo(args) => commands::demo(&args),
        Command::Run(args) => commands::run(&args),
        Command::Explain(args) => commands::explain(&args),
        Command::Models(args) => commands::models(&args),
        Command::DemoWorker(args) => commands::demo_worker(args, started),
        Command::Completions { shell } => commands::completions(shell),
    }
}

/// 2 for what the caller can mend (input, files, budget), 1 for what the machine or the engine did.
fn exit_code(error: &Error) -> ExitCode {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Engine | ErrorKind::TimedOut => ExitCode::from(1),
        _ => ExitCode::from(2),
    }
}
