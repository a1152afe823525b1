use super::local::cache_folder;
use crate::args::{DemoArgs, ProcessArgs, WorkerArgs};
use crate::launch::Program;
use crate::output::{ReportFile, Steps, print, print_json};
use crate::signals::Signals;
use cotensor::core::{Error, Result};
use cotensor::model::engine::AUTO;
use cotensor::model::pool::HardwarePreferences;
use cotensor_demo::{
    About, DemoOptions, ModelProcess, SCENARIOS, Scenario, Weights, WorkerOptions, html, run_demo, run_model_process,
    run_worker, text,
};
use std::time::{Instant, SystemTime};

/// The name of all scenarios.
const ALL: &str = "all";

pub(crate) fn demo(args: &DemoArgs, own: &Program) -> Result<()> {
    let hardware = HardwarePreferences { priority_list: vec![args.hardware.clone()], ..HardwarePreferences::default() };
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
        max_memory_bytes: args.common.max_memory,
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
        let about = About { program: super::version::program(), command: own.command_line(), time: SystemTime::now() };
        report.write(&html(&comparison, &about))?;
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
