use super::local::{budget_bytes, cache_folder};
use crate::args::{DemoArgs, ProcessArgs, WorkerArgs};
use crate::launch::Program;
use crate::output::{Steps, print, print_json};
use crate::signals::Signals;
use cotensor::core::{Error, Result};
use cotensor::model::engine::AUTO;
use cotensor::model::pool::HardwarePreferences;
use cotensor_demo::{
    DemoOptions, ModelProcess, SCENARIOS, Scenario, Weights, WorkerOptions, html, run_demo, run_model_process,
    run_worker, text,
};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The name of all scenarios.
const ALL: &str = "all";

pub(crate) fn demo(args: &DemoArgs, own: &Program) -> Result<()> {
    let hardware = HardwarePreferences { priority_list: vec![args.hardware.clone()], precision: None };
    hardware.choose().map_err(|error| Error::new(error.kind(), error.message()).in_field("--hardware"))?;
    let names = |of: fn(&Scenario) -> bool| {
        SCENARIOS.iter().filter(move |scenario| of(scenario)).map(|scenario| scenario.name.to_owned()).collect()
    };
    let scenarios = match args.scenario.as_slice() {
        [] => names(|scenario| scenario.by_default),
        [all] if all == ALL => names(|_| true),
        chosen => chosen.to_vec(),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (program, program_arguments) = own.command()?;
    // A signal ends the command after workers and folders are removed.
    let signals = Signals::deferred()?;
    let options = DemoOptions {
        program,
        program_arguments,
        scenarios,
        cache: cache_folder(&args.common)?,
        models: args.models.clone(),
        engine: args.engine.engine.clone().unwrap_or_else(|| AUTO.to_owned()),
        threads: args.common.threads.map_or(cores, usize::from),
        repeats: usize::from(args.repeats),
        processes: usize::from(args.processes),
        max_memory_bytes: budget_bytes(&args.common)?,
        stop: signals.number(),
    };
    let report = args.report.as_deref().map(ReportFile::open).transpose()?;
    let comparison = {
        let steps = Steps::new();
        run_demo(&options, &steps)
    };
    if signals.received() {
        drop(report);
        signals.raise();
        return comparison.map(drop);
    }
    let comparison = comparison?;
    if let Some(report) = report {
        report.write(&html(&comparison))?;
    }
    if args.common.json { print_json(&comparison) } else { print(&text(&comparison)) }
}

pub(crate) fn demo_worker(args: WorkerArgs, started: Instant) -> Result<()> {
    let options = WorkerOptions {
        scenario: args.scenario,
        mode: args.mode.parse()?,
        models: args.model,
        adapters: args.adapter,
        cache: args.cache,
        engine: args.engine,
        threads: usize::from(args.threads),
        max_memory_bytes: args.max_memory_bytes,
        record: args.record,
    };
    print_json(&run_worker(&options, started)?)
}

pub(crate) fn demo_process(args: ProcessArgs) -> Result<()> {
    run_model_process(&ModelProcess {
        folder: args.folder,
        index: args.index,
        engine: args.engine,
        threads: Some(usize::from(args.threads)),
        cache: args.cache,
        weights: match args.socket {
            Some(socket) => Weights::Daemon(socket),
            None if args.mapped => Weights::Mapped,
            None => Weights::Copy,
        },
    })
}

/// The file of the report, opened before minutes of measurements. Its old content stays until the report is written. A
/// file created here is removed if no report is written.
struct ReportFile<'a> {
    path: &'a Path,
    file: File,
    /// Whether the file was created here and is still empty.
    empty: bool,
}

impl<'a> ReportFile<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let new = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Self::error(path, &error))?;
        Ok(Self { path, file, empty: new })
    }

    fn write(mut self, html: &str) -> Result<()> {
        // A pipe or a terminal cannot be truncated.
        let truncated =
            if self.file.metadata().is_ok_and(|file| file.is_file()) { self.file.set_len(0) } else { Ok(()) };
        truncated
            .and_then(|()| self.file.write_all(html.as_bytes()))
            .map_err(|error| Self::error(self.path, &error))?;
        self.empty = false;
        Ok(())
    }

    fn error(path: &Path, error: &std::io::Error) -> Error {
        Error::io("cannot write the report", error).in_file(path).in_field("--report")
    }
}

impl Drop for ReportFile<'_> {
    fn drop(&mut self) {
        if self.empty {
            // Best effort: an empty file does no harm.
            let _ = std::fs::remove_file(self.path);
        }
    }
}
