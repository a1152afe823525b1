//! `trace`: records the operations of a PyTorch script.

use crate::args::TraceArgs;
use crate::launch::{Launch, Program};
use cotensor::core::{Error, ErrorKind, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that the recorder needs.
const PACKAGES: [&str; 2] = ["cotensor", "torch"];
/// The module of the Python package that records.
const RECORDER: &str = "cotensor.tensorref";

pub(crate) fn trace(args: &TraceArgs, own: &Program) -> Result<()> {
    let python = match (&args.python, &own.launch) {
        (Some(python), _) => python.clone(),
        (None, Launch::Command(python, _)) => python.clone(),
        (None, Launch::ThisProgram) => PathBuf::from("python3"),
    };
    let opened = File::open(&args.script);
    drop(opened.map_err(|error| Error::io("cannot open", &error).in_file(&args.script))?);
    let mut command = Command::new(&python);
    command.args(["-m", RECORDER, "--output"]).arg(&args.output);
    command.arg(format!("--speedup={}", args.speedup)).args(args.host_times.then_some("--host-times"));
    command.arg(&args.script).args(&args.arguments);
    let status = command.status().map_err(|error| Error::io("cannot run the interpreter", &error).in_file(&python))?;
    if status.success() {
        return Ok(());
    }
    let script = args.script.display();
    if has_packages(&python) {
        // Its own message is on standard error.
        Err(Error::new(ErrorKind::Engine, format!("{script} failed ({status})")))
    } else {
        let text = format!(
            "{script}: {} does not have the Python packages {}; --python names another interpreter",
            python.display(),
            PACKAGES.join(" and ")
        );
        Err(Error::not_found(text))
    }
}

/// Whether an interpreter finds [`PACKAGES`]. Imports none of them.
fn has_packages(python: &Path) -> bool {
    let code = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))";
    Command::new(python).args(["-c", code]).args(PACKAGES).status().is_ok_and(|status| status.success())
}
