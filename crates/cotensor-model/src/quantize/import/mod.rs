//! Weights that other programs quantized, as codes in the graphs of a model: exactly their codes.

mod checkpoint;
mod config;
mod file;
mod gguf;
mod matching;
mod names;
mod onnx;
mod parameter;
mod source;

use super::folder::NewFolder;
use super::graph::rows_of;
use super::options::{Activations, kept_by};
use super::watch::Progress;
use super::write::{Encoded, write_codes};
use crate::graph::{Graph, LowBits, Matrix, Weight, open_graph};
use crate::quantized::likeness;
use crate::quantized::{GraphReport, MatrixReport, QuantizeReport};
use cotensor_core::{Error, Result};
use cotensor_quant::RepackedMatrix;
use matching::{Matcher, check, errors_of};
use source::Source;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// What is imported.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// A `.gguf` file, an `.onnx` file with products by codes, or a checkpoint of GPTQ or AWQ: a folder, or a `.safetensors` file with its
    /// configuration beside it.
    pub from: PathBuf,
    /// The type of the other factor.
    pub activations: Activations,
    /// Weights of the graph and tensors of the file whose names contain one of these texts are passed by.
    pub keep: Vec<String>,
}

/// Writes a copy of the model in `folder` to the new folder `target`, with the codes of a quantized file in the place of the matrices that
/// the file has: `(code − middle) · scale + offset` is what the other program computes. Weights without codes stay as the graph has
/// them. Nothing is left behind after an error.
///
/// # Errors
/// `Invalid` for a target that exists or lies in the folder, and, with the parameter as the field, for codes that are not those of the
/// graph's weight and for a parameter that no graph has; `Corrupt` or `Unsupported`, with the tensor, for a file that is damaged, and for what
/// has no exact form; `Conflict` for files that change meanwhile; the errors of reading the model, `Io`.
pub fn import_folder(
    folder: &Path,
    target: &Path,
    options: &ImportOptions,
    progress: &mut Progress<'_>,
) -> Result<QuantizeReport> {
    if options.keep.iter().any(String::is_empty) {
        return Err(Error::invalid("an empty text is in all names").in_field("keep"));
    }
    let used: RefCell<HashSet<&str>> = RefCell::default();
    let is_kept = |name: &str| {
        let text = kept_by(&options.keep, &[name]);
        used.borrow_mut().extend(text);
        text.is_some()
    };
    let source = Source::open(&options.from, &is_kept)?;
    let new = NewFolder::create(folder, target)?;
    let mut matcher = Matcher::new(&source);
    let mut matched = Vec::new();
    for file in &new.model.graphs {
        let path = new.model.folder.join(file);
        let graph = open_graph(&path)?;
        let found = matcher.of_graph(&graph).map_err(|error| error.in_file(&options.from))?;
        matched.push((file, graph, found));
    }
    if let Some(missing) = matcher.missing().next() {
        let message = format!(
            "the tensor {:?} ({}, {} × {}) has the name and the elements of no matrix of {}; --keep passes tensors by",
            missing.source,
            missing.format,
            missing.rows,
            missing.columns,
            new.model.folder.display()
        );
        return Err(Error::invalid(message).in_field(missing.name()).in_file(&options.from));
    }
    let mut report = QuantizeReport::default();
    for (file, graph, found) in matched {
        let to = new.target_of(file)?;
        let file = file.display().to_string();
        let import = Import { source: &source, options, is_kept: &is_kept };
        let written = import.write(graph, found, &to, &mut |matrix, done, all| {
            progress(&format!("{file}: {matrix}"), done, all);
        })?;
        report.graphs.push(GraphReport { file, ..written });
    }
    if let Some(text) = options.keep.iter().find(|text| !used.borrow().contains(text.as_str())) {
        return Err(Error::invalid(format!("no weight has {text:?} in its name")).in_field("keep"));
    }
    source.check_unchanged()?;
    new.finish(&mut report)?;
    Ok(report)
}

struct Import<'i> {
    source: &'i Source,
    options: &'i ImportOptions,
    is_kept: &'i dyn Fn(&str) -> bool,
}

impl Import<'_> {
    /// Writes a graph. `matched` has the numbers of parameters, by that of the first weight of a matrix.
    fn write(
        &self,
        graph: Graph,
        matched: HashMap<usize, usize>,
        target: &Path,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<GraphReport> {
        write_codes(graph, target, progress, &mut |graph, matrix| {
            let weights = graph.weights();
            let names: Vec<&str> = matrix.weights.iter().map(|&weight| weights[weight].name.as_str()).collect();
            if let Some(name) = names.iter().find(|name| (self.is_kept)(name)) {
                let text = kept_by(&self.options.keep, &[name]).unwrap_or_default();
                return Ok(Err(format!("--keep {text}")));
            }
            let Some(&number) = matched.get(&matrix.weights[0]) else {
                return Ok(Err("the file has no codes of it".to_owned()));
            };
            self.encode(weights, matrix, number).map(Ok)
        })
    }

    /// The codes of parameter number `number`, which is a matrix of the graph.
    fn encode(&self, weights: &[Weight], matrix: &Matrix, number: usize) -> Result<Encoded> {
        let name = &weights[matrix.weights[0]].name;
        let of_file = |error: Error| error.in_file(&self.options.from);
        let codes = self.source.matrix(number).map_err(of_file)?;
        let low = self.low_bits(&codes);
        let parameter = &self.source.parameters[number];
        let values = rows_of(weights, matrix)?;
        let errors = errors_of(&codes, &values);
        check(parameter, &codes, name, &errors).map_err(of_file)?;
        let report = MatrixReport {
            name: name.clone(),
            parameter: Some(parameter.name()),
            rows: matrix.rows,
            columns: matrix.columns,
            bits: codes.width().bits(),
            group: codes.group(),
            scheme: parameter.format.clone(),
            rotation: None,
            bits_per_weight: codes.bits_per_weight(),
            relative_error: errors.own,
            output_error: None,
            inputs: 0,
        };
        let mut tensors = vec![codes.codes().to_vec(), codes.scale_bytes(low.scales)];
        tensors.extend(low.offsets.and_then(|dtype| codes.offset_bytes(dtype)));
        Ok(Encoded { low, tensors, report, likeness: likeness(&values, matrix.columns) })
    }

    fn low_bits(&self, codes: &RepackedMatrix) -> LowBits {
        let stored = codes.stored_scales();
        LowBits {
            bits: codes.width().bits(),
            group: codes.group(),
            scales: stored.scales,
            offsets: stored.offsets,
            rotation: None,
            accuracy_level: self.options.activations.accuracy_level(codes.width()),
        }
    }
}
