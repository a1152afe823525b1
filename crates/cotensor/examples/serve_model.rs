//! A served model: this process opens it, and another process runs it by a call. The command `cotensor serve-models`
//! does the same. The example starts a daemon if none runs. Build the
//! command first, which runs it: `cargo build`.
//!
//! `cargo run --example serve_model`

use cotensor::client::{ClientStore, configured_socket};
use cotensor::functions::{Arguments, CallError, Functions, Provider};
use cotensor::serving::{LoadedModels, ServingOptions, model_functions};
use cotensor::{Error, Runtime};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny/bert");
const CALLER: &str = "caller";

fn main() -> Result<(), CallError> {
    let mut arguments = std::env::args_os().skip(1);
    let socket: PathBuf = arguments.next().map_or_else(configured_socket, |path| Ok(path.into()))?;
    if arguments.next().is_some_and(|part| part == CALLER) {
        return call(ClientStore::connect(Some(&socket), CALLER)?);
    }
    let store = ClientStore::connect_or_start(Some(&socket), "models")?;
    let runtime = Runtime::over(Arc::clone(&store) as Arc<_>, Some(1));
    let models = LoadedModels::new(runtime, ServingOptions::default())?;
    let _provider = model_functions(Provider::builder(store), models).start()?;

    let io = |error: std::io::Error| Error::io("cannot start this program again", &error);
    let program = std::env::current_exe().map_err(io)?;
    for _ in 0..2 {
        let status = Command::new(&program).arg(&socket).arg(CALLER).status().map_err(io)?;
        if !status.success() {
            return Err(Error::invalid("the caller failed").into());
        }
    }
    Ok(())
}

/// The other process. It loads no model, and finds earlier results in the store.
fn call(store: Arc<ClientStore>) -> Result<(), CallError> {
    let functions = Functions::new(store);
    let folder = Path::new(MODEL).canonicalize().map_err(|error| Error::io("no model", &error).in_file(MODEL))?;
    let model = functions.call("model.open", &Arguments::new().arg(&*folder.to_string_lossy()))?;
    let task = Arguments::new().arg(model).arg("sentence-embedding").named("text", "hello, world");
    let report = functions.call("model.run", &task)?;
    let report = report.as_map()?;
    for (name, output) in report["outputs"].as_map()? {
        println!("{name}: {:?}", output.as_tensor()?.shape());
    }
    let computed = report["stages"].as_list()?.iter().map(|stage| Ok(format!("{:?}", stage.as_map()?["computed"])));
    println!("computed: {}", computed.collect::<Result<Vec<_>, Error>>()?.join(", "));
    Ok(())
}
