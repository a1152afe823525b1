//! The `cotensor` command: arguments and wiring. It is a library, so that other programs can embed the command.

mod args;
mod commands;
mod completion;
mod config_file;
mod environment;
mod launch;
mod log;
mod output;
mod panics;
mod parse;
mod signals;
mod table;
mod terminal;

pub use launch::Launch;

use args::{Cli, Command};
use cotensor::core::Result;
use cotensor::core::waiting::{WaitReport, set_wait_reporter};
use cotensor::{Error, ErrorKind};
use cotensor_client::settings::ConfigFile;
use launch::Program;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// The exit code of success.
const DONE: u8 = 0;

/// Runs the command and returns its exit code, for use in `main`.
///
/// `arguments` are the arguments of the command line, starting with the program's name. `launch` describes how further
/// processes of the program are started. The function blocks, uses the standard streams, and does not exit the process.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>, launch: Launch) -> ExitCode {
    ExitCode::from(run_with(arguments, launch))
}

/// As [`main_with`], with the exit code as a number: 0 success, 1 failure of the system or the engine, 2 bad input or
/// usage.
pub fn run_with(arguments: impl IntoIterator<Item = OsString>, launch: Launch) -> u8 {
    let started = Instant::now();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if panics::catch(|| Ok(completion::complete(&arguments))).unwrap_or(true) {
        return DONE;
    }
    output::set_json(parse::wants_json(&arguments));
    let cli = match parse::parse(&arguments, &ConfigFile::default()) {
        Ok(cli) => cli,
        Err(shown) => {
            if shown.use_stderr() && output::is_json() {
                output::report_exactly(&output::error_line(&parse::usage_error(&shown)));
            } else {
                // Errors, help and version. When standard error is closed, only the exit code remains.
                let _ = shown.print();
            }
            return u8::try_from(shown.exit_code()).unwrap_or(u8::MAX);
        }
    };
    let is_daemon = matches!(cli.command, Command::Serve(_));
    set_wait_reporter(Some(Arc::new(|wait: &WaitReport| output::report(&output::printable(&wait.text)))));
    let configured = panics::catch(|| configured(cli, &arguments));
    let outcome = configured.and_then(|(cli, variables)| {
        let program = Program { launch, arguments: arguments.into_iter().skip(1).collect(), variables };
        panics::catch(|| command(cli.command, &program, started))
    });
    match outcome {
        Ok(()) => DONE,
        Err(error) => {
            complain(output::error_line(&error), is_daemon);
            exit_code(&error)
        }
    }
}

/// Writes the line of an error or a warning to standard error.
fn complain(line: String, is_daemon: bool) {
    // A full pipe must not block a daemon.
    if is_daemon { log::write_last(line) } else { output::report_exactly(&line) }
}

/// The command line with the configuration file's values as defaults; and the variables with which further processes of a daemon
/// keep these values when the file changes.
///
/// # Errors
/// As [`ConfigFile::load`] and [`config_file::check`].
fn configured(cli: Cli, arguments: &[OsString]) -> Result<(Cli, Vec<(OsString, OsString)>)> {
    // These have no settings, or show a file with errors.
    if matches!(cli.command, Command::Config(_) | Command::Version(_) | Command::Completions { .. }) {
        return Ok((cli, Vec::new()));
    }
    let file = ConfigFile::load().map_err(config_file::with_way_out)?;
    for warning in file.warnings() {
        complain(output::warning_line(&warning), matches!(cli.command, Command::Serve(_)));
    }
    if file.settings.is_empty() && file.unknown.is_empty() {
        return Ok((cli, Vec::new()));
    }
    config_file::check(&file).map_err(config_file::with_way_out)?;
    let cli = parse::parse(arguments, &file).map_err(|error| parse::usage_error(&error))?;
    Ok((cli, config_file::variables(&file)))
}

fn command(command: Command, program: &Program, started: Instant) -> Result<()> {
    match command {
        Command::Demo(args) => commands::demo(&args, program),
        Command::Run(args) => commands::run(&args, program),
        Command::Stream(args) => commands::stream(&args, program),
        Command::Pull(args) => commands::pull(&args),
        Command::Explain(args) => commands::explain(&args),
        Command::Embed(args) => commands::embed(&args, program),
        Command::Models(args) => commands::models(&args, program),
        Command::DemoWorker(args) => commands::demo_worker(args, started),
        Command::DemoProcess(args) => commands::demo_process(args),
        Command::Completions { shell } => commands::completions(shell),
        Command::Quantize(args) => commands::quantize(&args),
        Command::FitAdapter(args) => commands::fit_adapter(&args, program),
        Command::Plan(args) => commands::plan(&args),
        Command::Trace(args) => commands::trace(&args, program),
        Command::Serve(args) => commands::serve(&args, program),
        Command::Status(args) => commands::status(&args),
        Command::Stop(args) => commands::stop(&args),
        Command::Logs(args) => commands::logs(&args),
        Command::Service(args) => commands::service(&args, program),
        Command::Put(args) => commands::put(&args, program),
        Command::Get(args) => commands::get(&args, program),
        Command::Ls(args) => commands::ls(&args, program),
        Command::Stat(args) => commands::stat(&args, program),
        Command::Who(args) => commands::who(&args, program),
        Command::Rm(args) => commands::rm(&args, program),
        Command::Top(args) => commands::top(&args),
        Command::Token(args) => commands::token(&args, program),
        Command::Dashboard(args) => commands::dashboard(&args, program),
        Command::Call(args) => commands::call(&args, program),
        Command::Tasks(args) => commands::tasks(&args, program),
        Command::Channel(args) => commands::channel(&args, program),
        Command::ServeModels(args) => commands::serve_models(&args, program),
        Command::Doctor(args) => commands::doctor(&args, program),
        Command::Scan(args) => commands::scan(&args),
        Command::Cache(args) => commands::cache(&args),
        Command::Version(args) => commands::version(&args),
        Command::Config(args) => commands::config(&args),
        Command::Env(args) => commands::env(&args, program),
    }
}

/// 2 for errors that the caller can correct (input, files, budget), 1 for failures of the system or the engine.
fn exit_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Engine | ErrorKind::TimedOut | ErrorKind::Unreachable => 1,
        _ => 2,
    }
}
