//! Records which graph runs on which inputs, so that another engine can repeat the runs.

use cotensor::core::sync::lock;
use cotensor::core::{ContentHash, Error, Result};
use cotensor::model::tensor::{Array, TensorRef};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Name of the file with the recorded runs, in the recorder's folder.
pub(super) const PLAN_FILE: &str = "plan.json";

/// Records runs into a folder: [`PLAN_FILE`], and a file for each input that is not the output of an earlier run.
pub(crate) struct Recorder {
    folder: PathBuf,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    runs: Vec<Run>,
    /// Run and output name by the hash of the output's content.
    outputs: HashMap<ContentHash, (usize, String)>,
}

#[derive(Serialize)]
struct Run {
    graph: PathBuf,
    inputs: BTreeMap<String, Input>,
    outputs: Vec<String>,
    /// This engine's results of the outputs that answers are derived from.
    expected: BTreeMap<String, File>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input {
    Output { run: usize, output: String },
    File(File),
}

/// Elements in row-major order and native byte order.
#[derive(Serialize)]
struct File {
    file: String,
    dtype: &'static str,
    shape: Vec<usize>,
}

impl Recorder {
    /// Records into the existing folder `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), recorded: Mutex::default() }
    }

    /// Adds a run of the graph at `path`.
    ///
    /// # Errors
    /// `Io` when an input cannot be written.
    pub(crate) fn record(
        &self,
        path: &Path,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        results: &[Array],
    ) -> Result<()> {
        let mut recorded = lock(&self.recorded);
        let run = recorded.runs.len();
        let mut sources = BTreeMap::new();
        for (name, view) in inputs {
            let source = match recorded.outputs.get(&content(*view)?) {
                Some((run, output)) => Input::Output { run: *run, output: output.clone() },
                None => Input::File(self.write(&format!("{run}.in.{name}"), *view)?),
            };
            sources.insert((*name).to_owned(), source);
        }
        let mut expected = BTreeMap::new();
        for (name, result) in outputs.iter().zip(results) {
            recorded.outputs.insert(content(result.into())?, (run, (*name).to_owned()));
            if outputs.len() == 1 || *name == "logits" {
                expected.insert((*name).to_owned(), self.write(&format!("{run}.out.{name}"), result.into())?);
            }
        }
        let outputs = outputs.iter().map(|name| (*name).to_owned()).collect();
        recorded.runs.push(Run { graph: path.to_path_buf(), inputs: sources, outputs, expected });
        Ok(())
    }

    /// Writes the plan. Must be called after the last run.
    ///
    /// # Errors
    /// `Io` when the file cannot be written.
    pub(crate) fn finish(&self) -> Result<()> {
        let recorded = lock(&self.recorded);
        let path = self.folder.join(PLAN_FILE);
        let plan = serde_json::to_vec(&recorded.runs).map_err(|error| Error::invalid(error.to_string()))?;
        std::fs::write(&path, plan).map_err(|error| Error::io("cannot write", &error).in_file(&path))
    }

    fn write(&self, name: &str, view: TensorRef<'_>) -> Result<File> {
        let path = self.folder.join(name);
        std::fs::write(&path, bytes(&view)?).map_err(|error| Error::io("cannot write", &error).in_file(&path))?;
        Ok(File { file: name.to_owned(), dtype: view.dtype().name(), shape: view.shape().to_vec() })
    }
}

fn bytes<'a>(tensor: &TensorRef<'a>) -> Result<&'a [u8]> {
    tensor.bytes().ok_or_else(|| Error::unsupported("only tensors in host memory can be recorded"))
}

/// Hash of a tensor's type, shape and elements.
fn content(tensor: TensorRef<'_>) -> Result<ContentHash> {
    let mut all = format!("{} {:?} ", tensor.dtype().name(), tensor.shape()).into_bytes();
    all.extend(bytes(&tensor)?);
    Ok(ContentHash::of(&all))
}
