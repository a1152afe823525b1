//! One process of a fleet: opens a model, answers, and keeps it open.

use crate::assets;
use crate::engine::plain;
use crate::scenario::{PROCESSES, Scenario};
use cotensor::LocalOptions;
use cotensor::client::ClientStore;
use cotensor::core::{Error, Result};
use cotensor::model::engine::FileMode;
use cotensor::model::model::{Model, StageSource};
use cotensor::model::pipeline::{Inputs, UserReport, run_user};
use cotensor::store::{LocalStore, Store};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The most characters of the text that a process embeds.
const TEXT_CHARACTERS: usize = 500;

/// Options of one process of a fleet.
#[derive(Clone, Debug)]
pub struct ModelProcess {
    /// Folder of the model.
    pub folder: PathBuf,
    /// Index of the process: processes have different texts.
    pub index: usize,
    /// Name of the engine.
    pub engine: String,
    /// Number of engine threads; `None` lets the engine choose.
    pub threads: Option<usize>,
    /// Folder of the weight cache.
    pub cache: PathBuf,
    /// Where the weights are.
    pub weights: Weights,
}

/// Where a process has its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// In memory of its own, as the engine loads by default.
    Copy,
    /// In the engine's mapping of the model's files.
    Mapped,
    /// In the daemon with this socket; in the layout of the engine's kernels, in the cache, if the engine has one.
    Daemon(PathBuf),
}

/// What a process prints: its first answer, then the times of those that it was told to compute.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The first answer.
    First(Box<UserReport>),
    /// Milliseconds of each further answer.
    TimesMs(Vec<f64>),
}

/// Opens the model, answers, prints the answer as one line of JSON, and waits. For each number on a line of standard input,
/// it computes as many further answers and prints their times. It ends when standard input is closed.
///
/// # Errors
/// The errors of opening and running the model; `Corrupt` when another process has computed an answer.
pub fn run_model_process(options: &ModelProcess) -> Result<()> {
    let (store, model) = open(options)?;
    let mut users = Scenario::named(PROCESSES)?.pipeline()?.users;
    let user = users.pop().ok_or_else(|| Error::invalid("a pipeline without users"))?;
    let holder = store.holder("process");
    let mut answered = 0;
    let mut answer = || -> Result<(UserReport, f64)> {
        let start = Instant::now();
        let inputs = Inputs::default().with_text(text(options.index, answered));
        answered += 1;
        let report = run_user(&model, &user, &inputs, &holder)?;
        if report.stages.iter().any(|stage| !stage.computed) {
            return Err(Error::corrupt("another process has run this input"));
        }
        let time_ms = start.elapsed().as_secs_f64() * 1e3 - report.report_ms;
        Ok((report, time_ms))
    };
    print(&Line::First(Box::new(answer()?.0)))?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| Error::io("reading standard input", &error))?;
        let count: usize = line.trim().parse().map_err(|_| Error::invalid(format!("{line:?} is not a number")))?;
        let times = (0..count).map(|_| Ok(answer()?.1)).collect::<Result<Vec<_>>>()?;
        print(&Line::TimesMs(times))?;
    }
    Ok(())
}

fn open(options: &ModelProcess) -> Result<(Arc<dyn Store>, Arc<Model>)> {
    let private = |mode: FileMode| -> Result<(Arc<dyn Store>, Arc<Model>)> {
        let engine = plain(&options.engine, options.threads, &options.cache, mode)?;
        let model = Model::open(&options.folder, StageSource::Private(engine.into(), mode))?;
        Ok((LocalStore::builder().build(), Arc::new(model)))
    };
    match &options.weights {
        Weights::Copy => private(FileMode::Read),
        Weights::Mapped => private(FileMode::Map),
        Weights::Daemon(socket) => {
            let name = format!("process {}", options.index);
            let store: Arc<dyn Store> = ClientStore::connect(Some(socket), &name)?;
            let local = LocalOptions {
                cache: Some(options.cache.clone()),
                threads: options.threads,
                engine: Some(options.engine.clone()),
                ..LocalOptions::default()
            };
            let model = local.runtime_over(Arc::clone(&store))?.open(&options.folder)?;
            Ok((store, model))
        }
    }
}

/// The text of an answer; no two processes and answers have the same.
fn text(index: usize, answer: usize) -> String {
    let start: String = assets::TEXT.trim().chars().take(TEXT_CHARACTERS).collect();
    format!("{index} {answer}: {start}")
}

fn print(line: &Line) -> Result<()> {
    let text = serde_json::to_string(line).map_err(|error| Error::invalid(error.to_string()))?;
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|error| Error::io("writing an answer", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_differ_between_processes_and_answers() {
        let texts: std::collections::HashSet<String> =
            (0..4).flat_map(|index| (0..20).map(move |answer| text(index, answer))).collect();
        assert_eq!(texts.len(), 80);
    }
}
