//! The `cotensor` command: flags and wiring only.

mod args;
mod commands;
mod environment;
mod output;
mod table;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use cotensor::{Error, ErrorKind};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let started = Instant::now();
    let result = match Cli::parse().command {
        Command::Demo(args) => commands::demo(&args),
        Command::Run(args) => commands::run(&args),
        Command::Explain(args) => commands::explain(&args),
        Command::Models(args) => commands::models(&args),
        Command::DemoWorker(args) => commands::demo_worker(args, started),
        Command::Serve(args) => commands::serve(&args),
        Command::Put(args) => commands::put(&args),
        Command::Get(args) => commands::get(&args),
        Command::Ls(args) => commands::ls(&args),
        Command::Stat(args) => commands::stat(&args),
        Command::Who(args) => commands::who(&args),
        Command::Rm(args) => commands::rm(&args),
        Command::Top(args) => commands::top(&args),
        Command::Doctor(args) => commands::doctor(&args),
        Command::Scan(args) => commands::scan(&args),
        Command::Env(args) => commands::env(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "cotensor", &mut std::io::stdout());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            exit_code(&error)
        }
    }
}

/// 2 for what the caller can mend (input, files, budget), 1 for what the machine or the engine did.
fn exit_code(error: &Error) -> ExitCode {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Engine | ErrorKind::TimedOut => ExitCode::from(1),
        _ => ExitCode::from(2),
    }
}
