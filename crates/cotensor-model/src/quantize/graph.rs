//! A graph with codes in the place of its matrices.

use super::calibrate::{Calibration, Inputs};
use super::options::QuantizeOptions;
use super::plan::{Choice, Form};
use super::sensitivity::{Sensitivity, transposed};
use super::write::{Encoded, write_codes};
use crate::graph::{Graph, LowBits, Matrix, Weight, open_graph};
use crate::quantized::likeness;
use crate::quantized::{GraphReport, MatrixReport};
use crate::weights::read_weight;
use cotensor_core::elements::to_f32;
use cotensor_core::{Error, Result};
use cotensor_quant::{InputMoments, QuantSpec, QuantTensor, Width, quantize, quantize_for, relative_error, rotate};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// How the matrices of a model are quantized.
pub(super) struct Plan<'p> {
    pub(super) options: &'p QuantizeOptions,
    pub(super) calibration: Option<&'p Calibration>,
    /// The forms of matrices, by the file of the graph and the name of the weight; else that of the options.
    pub(super) forms: HashMap<(PathBuf, String), Form>,
}

impl<'p> Plan<'p> {
    pub(super) fn uniform(options: &'p QuantizeOptions, calibration: Option<&'p Calibration>) -> Self {
        Self { options, calibration, forms: HashMap::new() }
    }

    fn form(&self, path: &Path, name: &str) -> Form {
        self.forms.get(&(path.to_path_buf(), name.to_owned())).copied().unwrap_or_else(|| self.options.form())
    }
}

/// A matrix and how it is quantized.
struct Chosen<'c> {
    weight: &'c Weight,
    matrix: &'c Matrix,
    /// Its elements, row by row, rotated as `low` says.
    values: Vec<f32>,
    /// Those of its product.
    inputs: Option<&'c Inputs>,
    spec: QuantSpec,
    low: LowBits,
}

/// A matrix with what each form of [`Form::all`] would give.
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) elements: usize,
    /// The errors are those of the results of its products, or of its weights.
    pub(super) choices: Vec<Choice>,
    /// The loss of the outputs of the graph, for each squared error; `None` if it was not measured.
    pub(super) share: Option<f64>,
}

/// Writes the graph of the file `path` with codes in the place of its matrices to the new file `target`, and all weights to a new file
/// beside it, whose name ends with `_data`. `progress` has the name of each matrix after it was written, its number from 1 on, and the
/// number of all.
///
/// A graph without a matrix that can be quantized keeps all its weights.
///
/// # Errors
/// As [`open_graph`]; `Invalid`, with file and weight, for a weight that is not finite or beyond 65504; `Io`.
///
/// # Panics
/// When `target` does not end in a name that is UTF-8.
pub fn quantize_graph(
    path: &Path,
    target: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<GraphReport> {
    options.check()?;
    write_graph(path, target, &Plan::uniform(options, None), progress)
}

/// As [`quantize_graph`], by a plan. With a calibration, errors of a matrix compensate each other for the inputs of its products.
pub(super) fn write_graph(
    path: &Path,
    target: &Path,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<GraphReport> {
    write_codes(open_graph(path)?, target, progress, &mut |graph, matrix| {
        let one = match choose(graph, path, plan, matrix)? {
            Ok(one) => one,
            Err(reason) => return Ok(Err(reason)),
        };
        let (tensor, report) = encode(&one).map_err(|error| match one.low.rotation {
            Some(_) => error.prefixed("rotated").in_file(path),
            None => error.in_file(path),
        })?;
        let tensors = tensor.members().into_iter().map(|member| member.bytes.into_owned()).collect();
        let likeness = likeness(&one.values, matrix.columns);
        Ok(Ok(Encoded { low: one.low, tensors, report, likeness }))
    })
}

/// What each of the forms would give for each matrix of a graph, and, if the calibration has runs of the graph, how much of its error
/// reaches the outputs. `progress` has the number of finished matrices, and of all.
///
/// # Errors
/// As [`quantize_graph`]; the errors of running the graph.
pub(super) fn candidates(
    path: &Path,
    plan: &Plan<'_>,
    forms: &[Form],
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<Vec<Candidate>> {
    let graph = open_graph(path)?;
    let runs =
        plan.calibration.and_then(|calibration| calibration.of_graph(path)).map(|of_graph| of_graph.runs.as_slice());
    let runs = runs.filter(|runs| !runs.is_empty());
    let by_tokens = plan.calibration.is_some_and(|calibration| calibration.by_tokens);
    let sensitivity = runs.map(|runs| Sensitivity::open(path, runs, by_tokens)).transpose()?;
    let mut found = Vec::new();
    let matrices = graph.matrices();
    for (number, matrix) in matrices.iter().enumerate() {
        let Ok(mut one) = choose(&graph, path, plan, matrix)? else { continue };
        let elements = matrix.rows * matrix.columns;
        let (mut choices, mut share): (Vec<Choice>, _) = (Vec::new(), None);
        for form in forms {
            let spec = plan.options.spec(matrix, *form)?;
            if let Some(same) = choices.last().copied().filter(|_| spec == one.spec) {
                // The columns have no larger groups.
                choices.push(same);
                continue;
            }
            one.spec = spec;
            let (tensor, report) = encode(&one).map_err(|error| error.in_file(path))?;
            let error = report.output_error.unwrap_or(report.relative_error).powi(2);
            if let (Some(sensitivity), None, Width::Three) = (&sensitivity, share, form.width) {
                let loss = sensitivity.of(graph.weights(), matrix, &tensor, one.low.rotation)?;
                share = loss.filter(|_| error > 0.0).map(|loss| loss / error);
            }
            choices.push(Choice { bits: elements as f64 * report.bits_per_weight, error });
        }
        progress(&one.weight.name, number + 1, matrices.len());
        found.push(Candidate { name: one.weight.name.clone(), elements, choices, share });
    }
    Ok(found)
}

/// How a matrix is quantized, with its elements; or the reason why it stays as it is.
///
/// # Errors
/// Those of reading weights.
fn choose<'c>(
    graph: &'c Graph,
    path: &Path,
    plan: &Plan<'c>,
    matrix: &'c Matrix,
) -> Result<std::result::Result<Chosen<'c>, String>> {
    let weight = &graph.weights()[matrix.weights[0]];
    let names: Vec<&str> = matrix.weights.iter().map(|&weight| graph.weights()[weight].name.as_str()).collect();
    let spec = match plan.options.of_matrix(&names, matrix, plan.form(path, &weight.name)) {
        Ok(spec) => spec,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut values = rows_of(graph.weights(), matrix)?;
    let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    if let Some(reason) = plan.options.too_small(&spec, largest) {
        return Ok(Err(reason));
    }
    let low = plan.options.low_bits(&spec, matrix.columns);
    if let Some(block) = low.rotation {
        rotate(&mut values, block)?;
    }
    let inputs = plan.calibration.and_then(|calibration| calibration.of_graph(path)).filter(|_| !matrix.is_table);
    let inputs = inputs.and_then(|found| graph.factors(matrix).into_iter().find_map(|name| found.inputs.get(&name)));
    Ok(Ok(Chosen { weight, matrix, values, inputs, spec, low }))
}

fn elements(weight: &Weight) -> Result<Vec<f32>> {
    Ok(to_f32(weight.dtype, &read_weight(weight)?))
}

/// The elements of a matrix, row by row.
pub(super) fn rows_of(weights: &[Weight], matrix: &Matrix) -> Result<Vec<f32>> {
    let values = elements(&weights[matrix.weights[0]])?;
    Ok(if matrix.is_transposed { transposed(&values, matrix.rows) } else { values })
}

/// Quantizes a matrix.
fn encode(chosen: &Chosen<'_>) -> Result<(QuantTensor, MatrixReport)> {
    let (weight, &Matrix { rows, columns, .. }, values) = (chosen.weight, chosen.matrix, &chosen.values);
    let named = |error: Error| error.prefixed(&weight.name);
    let tensor = match chosen.inputs.map(Inputs::factor).transpose().map_err(named)?.flatten() {
        Some(factor) => quantize_for(values, rows, columns, &chosen.spec, &factor),
        None => quantize(values, rows, columns, &chosen.spec),
    };
    let tensor = tensor.map_err(named)?;
    let moments = chosen.inputs.map(|inputs| &inputs.moments);
    let output_error = moments.map(|moments| moments.relative_error(values, &tensor)).transpose().map_err(named)?;
    let report = MatrixReport {
        name: weight.name.clone(),
        parameter: None,
        rows,
        columns,
        bits: chosen.spec.width().bits(),
        group: chosen.spec.group(),
        scheme: chosen.spec.scheme().name().to_owned(),
        rotation: chosen.low.rotation,
        bits_per_weight: chosen.spec.bits_per_weight(),
        relative_error: relative_error(values, &tensor).map_err(named)?,
        output_error,
        inputs: moments.map_or(0, InputMoments::rows),
    };
    Ok((tensor, report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::WeightSource;
    use cotensor_core::DType;
    use cotensor_quant::Scheme;
    use std::sync::Arc;

    /// The inputs of a product may be larger than their squares have numbers for.
    #[test]
    fn errors_of_inputs_name_the_matrix() {
        let mut moments = InputMoments::new(32);
        moments.add(&[1e30; 32]);
        let source = WeightSource {
            file: PathBuf::new(),
            offset: 0,
            length: 0,
            dtype: DType::F32,
            permutation: None,
            repacks: Vec::new(),
        };
        let weight = Weight { name: "layer.weight".to_owned(), dtype: DType::F32, shape: vec![1, 32], source };
        let matrix =
            Matrix { weights: vec![0], rows: 1, columns: 32, is_transposed: false, is_table: false, dtype: DType::F32 };
        let spec = QuantSpec::new(Width::Four, 32, Scheme::Search).unwrap();
        let low = LowBits { bits: 4, group: 32, scales: DType::F16, offsets: None, rotation: None, accuracy_level: 0 };
        let inputs = Inputs::new(moments, 0, &Arc::default());
        let chosen =
            Chosen { weight: &weight, matrix: &matrix, values: vec![0.5; 32], inputs: Some(&inputs), spec, low };
        let error = encode(&chosen).unwrap_err();
        assert!(error.message().starts_with("layer.weight: ") && error.field() == Some("inputs"), "{error}");
    }
}
