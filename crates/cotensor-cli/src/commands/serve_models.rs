//! `serve-models`: offers models as functions, in a separate process, so that a failing engine cannot affect the
//! daemon.

use super::connection::connect;
use super::local::client_cache;
use crate::args::ServeModelsArgs;
use crate::launch::Program;
use crate::output::{print_json, report};
use crate::signals;
use cotensor::LocalOptions;
use cotensor::core::Result;
use cotensor_functions::{Functions, Limits, Provider};
use cotensor_serving::model_functions;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Read;
use std::sync::Arc;

/// The JSON object that `--json` prints when the functions are registered.
#[derive(Serialize)]
struct Started {
    pid: u32,
    functions: Vec<String>,
}

pub(crate) fn serve_models(args: &ServeModelsArgs, program: &Program) -> Result<()> {
    let mut stop = signals::bytes(&[SIGTERM, SIGINT])?;
    let store = connect(&args.client, program, "models")?;
    let options = LocalOptions {
        cache: client_cache(args.cache.as_deref()),
        threads: args.threads.map(usize::from),
        engine: args.engine.engine.clone(),
        ..LocalOptions::default()
    };
    let runtime = options.runtime_over(Arc::clone(&store) as Arc<_>)?;
    let limits = Limits { workers: usize::from(args.workers), ..Limits::default() };
    let provider = model_functions(Provider::builder(Arc::clone(&store)), runtime).limits(limits).start()?;
    let offered = Functions::new(store).list("")?;
    let own = offered.into_iter().filter(|found| found.provider.epoch == provider.epoch());
    let functions: Vec<String> = own.map(|found| found.function.name).collect();
    if args.client.json {
        print_json(&Started { pid: std::process::id(), functions })?;
    } else {
        report(&format!("offering {}; SIGTERM or Ctrl-C ends it", functions.join(", ")));
    }
    // Returns when a signal arrives or the socket fails.
    let _ = stop.read(&mut [0]);
    drop(provider);
    Ok(())
}
