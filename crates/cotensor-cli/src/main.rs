//! The `cotensor` command: flags and wiring only.

mod args;
mod commands;
mod environment;
mod output;
mod panics;
mod silence;
mod table;

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
        Command::Serve(args) => commands::serve(&args),
        Command::Put(args) => commands::put(&args),
        Command::Get(args) => commands::get(&args),
        Command::Ls(args) => commands::ls(&args),
        Command::Stat(args) => commands::stat(&args),
        Command::Who(args) => commands::who(&args),
        Command::Rm(args) => commands::rm(&args),
        Command::Top(args) => commands::top(&args),
        Command::Call(args) => commands::call(&args),
        Command::Tasks(args) => commands::tasks(&args),
        Command::ServeModels(args) => commands::serve_models(&args),
        Command::Doctor(args) => commands::doctor(&args),
        Command::Scan(args) => commands::scan(&args),
        Command::Env(args) => commands::env(&args),
    }
}

/// 2 for what the caller can mend (input, files, budget), 1 for what the machine or the engine did.
fn exit_code(error: &Error) -> ExitCode {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Engine | ErrorKind::TimedOut => ExitCode::from(1),
        _ => ExitCode::from(2),
    }
}
