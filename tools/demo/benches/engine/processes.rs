//! The memory of several processes with BERT-base, beside that of one.

use crate::inputs::{OUTPUT, bert};
use crate::{CHILD, ENGINE, at_most, mib, model, runtime};
use cotensor::memory::process;
use cotensor::model::tensor::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROCESSES: usize = 4;

pub(crate) fn run(cache: &Path) {
    if runtime(cache, ENGINE).is_none() {
        return;
    }
    model(cache, "bert-base");
    // Makes the files of the engine, so that each process reads them.
    together(cache, ENGINE, 1);
    let (one, all) = (together(cache, ENGINE, 1), together(cache, ENGINE, PROCESSES));
    println!("  {:9.1}  MiB of one process with BERT-base", mib(one));
    println!("  {:9.1}  MiB of {PROCESSES} processes together", mib(all));
    at_most(&format!("{PROCESSES} processes over one"), all as f64 / one as f64, 1.35);
}

/// The sum of the proportional set sizes of processes that have run the model and keep it open.
fn together(cache: &Path, engine: &str, count: usize) -> u64 {
    let mut running: Vec<(Child, _)> = (0..count).map(|index| start(cache, "use", engine, index)).collect();
    for (_, lines) in &mut running {
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
    }
    let bytes = running.iter().map(|(child, _)| process::pss_bytes(child.id()).unwrap()).sum();
    for (mut child, _) in running {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    bytes
}

/// Starts this program as a child, which runs one part.
pub(crate) fn start(
    cache: &Path,
    part: &str,
    engine: &str,
    index: usize,
) -> (Child, impl Iterator<Item = std::io::Result<String>> + use<>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([CHILD, part, engine, &index.to_string()]).env("COTENSOR_CACHE", cache);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Opens and runs the model, prints a line, and waits until standard input is closed.
pub(crate) fn child(cache: &Path, engine: &str, index: i64) {
    let runtime = runtime(cache, engine).unwrap();
    let stage = runtime.open(&model(cache, "bert-base")).unwrap().stage("encoder").unwrap();
    let inputs = bert(index);
    let inputs: Vec<(&str, &Value)> = inputs.iter().map(|(name, value)| (*name, value)).collect();
    stage.run(&inputs, &[OUTPUT], &runtime.store().holder("bench")).unwrap();
    println!("ready");
    std::io::read_to_string(std::io::stdin()).unwrap();
}
