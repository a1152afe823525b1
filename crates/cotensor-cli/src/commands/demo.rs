use super::{budget_bytes, cache_folder, print, print_json};
use crate::args::{DemoArgs, WorkerArgs};
use crate::output::Steps;
use cotensor::core::{Error, Result};
use cotensor::model::pool::HardwarePreferences;
use cotensor_demo::{DemoOptions, SCENARIOS, WorkerOptions, html, run_demo, run_worker, text};
use std::time::Instant;

pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    let hardware = HardwarePreferences { priority_list: vec![args.hardware.clone()] };
    hardware.choose().map_err(|error| Error::new(error.kind(), error.message()).in_field("--hardware"))?;
    let scenarios = match args.scenario.as_slice() {
        [] => SCENARIOS.iter().map(|scenario| scenario.name.to_owned()).collect(),
        chosen => chosen.to_vec(),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = DemoOptions {
        program: std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?,
        scenarios,
        cache: cache_folder(&args.common)?,
        models: args.models.clone(),
        threads: args.common.threads.map_or(cores, usize::from),
        repeats: usize::from(args.repeats),
        max_memory_bytes: budget_bytes(&args.common)?,
    };
    let comparison = {
        let steps = Steps::new();
        run_demo(&options, &steps)?
    };
    if let Some(path) = &args.report {
        std::fs::write(path, html(&comparison))
            .map_err(|error| Error::io("cannot write the report", &error).in_file(path))?;
    }
    if args.common.json { print_json(&comparison) } else { print(&text(&comparison)) }
}

pub(crate) fn demo_worker(args: WorkerArgs, started: Instant) -> Result<()> {
    let options = WorkerOptions {
        scenario: args.scenario,
        mode: args.mode.parse()?,
        model: args.model,
        cache: args.cache,
        threads: args.threads,
        max_memory_bytes: args.max_memory_bytes,
    };
    print_json(&run_worker(&options, started)?)
}
