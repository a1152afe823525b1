//! `serve-models`: models as functions of the daemon, in a process of their own, so that an engine that fails takes no
//! tensor with it.

use super::{connect, print_json};
use crate::args::ServeModelsArgs;
use crate::output::tell;
use crate::signals;
use cotensor::Runtime;
use cotensor::core::Result;
use cotensor_functions::{Functions, Limits, Provider};
use cotensor_serving::model_functions;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Read;
use std::sync::Arc;

/// What a program that started this wants to know.
#[derive(Serialize)]
struct Started {
    pid: u32,
    functions: Vec<String>,
}

pub(crate) fn serve_models(args: &ServeModelsArgs) -> Result<()> {
    let mut stop = signals::bytes(&[SIGTERM, SIGINT])?;
    let store = connect(&args.client, "models")?;
    let runtime = Runtime::over(Arc::clone(&store) as Arc<_>, args.threads.map(usize::from));
    let limits = Limits { workers: usize::from(args.workers), ..Limits::default() };
    let provider = model_functions(Provider::builder(Arc::clone(&store)), runtime).limits(limits).start()?;
    let offered = Functions::new(store).list("")?;
    let own = offered.into_iter().filter(|found| found.provider.epoch == provider.epoch());
    let functions: Vec<String> = own.map(|found| found.function.name).collect();
    if args.client.json {
        print_json(&Started { pid: std::process::id(), functions })?;
    } else {
        tell(&format!("offering {}; SIGTERM or Ctrl-C ends it", functions.join(", ")));
    }
    // A signal's byte, or nothing any more: either is the end.
    let _ = stop.read(&mut [0]);
    drop(provider);
    Ok(())
}
