//! One tensor and one model for two processes, through the daemon: the second process maps the tensor and reuses the
//! results of the first. The example starts a daemon if none runs. Build the command first, which runs it: `cargo build`.
//!
//! `cargo run --example share_processes`

use cotensor::client::{ClientStore, configured_socket};
use cotensor::store::{CopyReason, Retention, TensorSpec};
use cotensor::{DType, Error, Inputs, Kind, Pipeline, Result, Runtime, TensorStore, run_user};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny/bert");
const SECOND: &str = "second";

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let socket: PathBuf = arguments.next().map_or_else(configured_socket, |path| Ok(path.into()))?;
    if arguments.next().is_some_and(|part| part == SECOND) {
        let store = ClientStore::connect(Some(&socket), SECOND)?;
        let tensor = store.get("page", &store.holder(""))?;
        println!(
            "{SECOND}: the tensor has {} bytes, the last is {:?}",
            tensor.shape()[0],
            tensor.bytes().and_then(<[u8]>::last)
        );
        return embed(SECOND, store);
    }
    let store = ClientStore::connect_or_start(Some(&socket), "first")?;
    let spec = TensorSpec {
        device: cotensor_core::Device::Cpu,
        name: "page".to_owned(),
        dtype: DType::U8,
        shape: vec![8 << 20],
        kind: Kind::Other,
        space: None,
        producer: "first".to_owned(),
        retention: Retention::WhileLeased,
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    };
    let mut reservation = store.reserve(spec, &store.holder(""))?;
    reservation.write(&vec![7; 8 << 20], CopyReason::Put)?;
    let _page = reservation.publish()?;
    embed("first", Arc::clone(&store))?;
    second_process(&socket)
}

/// Runs a model over the daemon's store, which shares weights and results with all processes.
fn embed(process: &str, store: Arc<ClientStore>) -> Result<()> {
    let pipeline = Pipeline::parse("[[user]]\nname = 'search'\nmodel = 'bert'\ntask = 'sentence-embedding'\n")?;
    let runtime = Runtime::over(store, Some(1));
    let model = runtime.open(Path::new(MODEL))?;
    let inputs = Inputs::default().with_text("the harbour wakes before the city does");
    let report = run_user(&model, &pipeline.users[0], &inputs, &runtime.store().holder(process))?;
    let computed = report.stages.iter().filter(|stage| stage.computed).count();
    println!("{process}: {computed} of {} stages computed here", report.stages.len());
    Ok(())
}

fn second_process(socket: &Path) -> Result<()> {
    let io = |error: std::io::Error| Error::io("cannot start this program again", &error);
    let program = std::env::current_exe().map_err(io)?;
    let status = Command::new(program).arg(socket).arg(SECOND).status().map_err(io)?;
    if status.success() { Ok(()) } else { Err(Error::invalid("the second process failed")) }
}
