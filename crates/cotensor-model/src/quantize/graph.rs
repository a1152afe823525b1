//! A graph with codes in the place of its matrices.

use super::calibrate::{Calibration, Inputs};
use super::options::QuantizeOptions;
use super::plan::Choice;
use super::report::{GraphReport, MatrixReport};
use super::sensitivity::{Sensitivity, transposed};
use super::write::{Encoded, Reasons, reasons_of, write_codes};
use crate::graph::{Graph, LowBits, Matrix, Weight, open_graph};
use crate::weights::read_weight;
use cotensor_core::Result;
use cotensor_core::elements::to_f32;
use cotensor_quant::{InputMoments, QuantSpec, QuantTensor, Width, quantize, quantize_for, relative_error, rotate};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// How the matrices of a model are quantized.
pub(super) struct Plan<'p> {
    pub(super) options: &'p QuantizeOptions,
    pub(super) calibration: Option<&'p Calibration>,
    /// The widths of matrices, by the file of the graph and the name of the weight; else that of the options.
    pub(super) widths: HashMap<(PathBuf, String), Width>,
}

impl<'p> Plan<'p> {
    pub(super) fn uniform(options: &'p QuantizeOptions, calibration: Option<&'p Calibration>) -> Self {
        Self { options, calibration, widths: HashMap::new() }
    }

    fn width(&self, path: &Path, name: &str) -> Width {
        self.widths.get(&(path.to_path_buf(), name.to_owned())).copied().unwrap_or(self.options.width)
    }
}

/// A matrix and how it is quantized.
struct Chosen<'c> {
    matrix: Matrix,
    /// Those of its product.
    inputs: Option<&'c Inputs>,
    spec: QuantSpec,
    low: LowBits,
}

/// A matrix with what each width of [`Width::ALL`] would give.
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) elements: usize,
    pub(super) choices: Vec<Choice>,
}

/// Writes the graph of the file `path` with codes in the place of its matrices to the new file `target`, and all weights to a new file
/// beside it, whose name ends with `_data`. `progress` has each matrix after it was written, its number from 1 on, and the number
/// of all.
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
    progress: &mut dyn FnMut(&MatrixReport, usize, usize),
) -> Result<GraphReport> {
    options.check()?;
    write_graph(path, target, &Plan::uniform(options, None), progress)
}

/// As [`quantize_graph`], by a plan. With a calibration, errors of a matrix compensate each other for the inputs of its products.
pub(super) fn write_graph(
    path: &Path,
    target: &Path,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(&MatrixReport, usize, usize),
) -> Result<GraphReport> {
    let graph = open_graph(path)?;
    let mut reasons = reasons_of(&graph);
    let chosen = choose(&graph, path, plan, &mut reasons)?;
    let pairs: Vec<_> = chosen.iter().map(|one| (one.matrix.clone(), one.low)).collect();
    write_codes(graph, target, &pairs, reasons, progress, &mut |weights, number| {
        let one = &chosen[number];
        let encoded = turned(rows_of(weights, &one.matrix)?, one).and_then(|values| encode(&values, weights, one));
        let (tensor, report) = encoded.map_err(|error| match one.low.rotation {
            Some(_) => error.prefixed("rotated").in_file(path),
            None => error.in_file(path),
        })?;
        let mut encoded = Encoded::default();
        for member in tensor.members() {
            let bytes = member.bytes.into_owned();
            match member.name {
                "codes" => encoded.codes = bytes,
                "scales" => encoded.scales = bytes,
                "offsets" => encoded.offsets = bytes,
                // Of two levels, which the options refuse.
                _ => {}
            }
        }
        Ok((encoded, report))
    })
}

/// What each width would give for each matrix of a graph. The error of a matrix counts as much as it changes the outputs of the graph, if
/// the calibration has runs of it. `progress` has the number of finished matrices, and of all.
///
/// # Errors
/// As [`quantize_graph`]; the errors of running the graph.
pub(super) fn candidates(
    path: &Path,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<Vec<Candidate>> {
    let graph = open_graph(path)?;
    let chosen = choose(&graph, path, plan, &mut reasons_of(&graph))?;
    let runs =
        plan.calibration.and_then(|calibration| calibration.of_graph(path)).map(|of_graph| of_graph.runs.as_slice());
    let sensitivity = runs.filter(|runs| !runs.is_empty()).map(|runs| Sensitivity::open(path, runs)).transpose()?;
    let mut found = Vec::with_capacity(chosen.len());
    for (number, mut one) in chosen.into_iter().enumerate() {
        let elements = one.matrix.rows * one.matrix.columns;
        let weight = &graph.weights()[one.matrix.weights[0]];
        let (group, scheme) = (one.spec.group(), one.spec.scheme());
        let values = turned(rows_of(graph.weights(), &one.matrix)?, &one)?;
        let (mut choices, mut share) = (Vec::new(), 1.0);
        for width in Width::ALL {
            one.spec = QuantSpec::new(width, group, scheme)?;
            let (tensor, report) = encode(&values, graph.weights(), &one).map_err(|error| error.in_file(path))?;
            let error = report.output_error.unwrap_or(report.relative_error);
            if let (Some(sensitivity), Width::Three) = (&sensitivity, width) {
                let of_outputs = sensitivity.of(weight, &one.matrix, &tensor, one.low.rotation)?;
                share = of_outputs.filter(|_| error > 0.0).map_or(1.0, |of_outputs| of_outputs / error);
            }
            choices.push(Choice { bits: elements as f64 * report.bits_per_weight, error });
        }
        for choice in &mut choices {
            choice.error = (share * choice.error).powi(2);
        }
        progress(&weight.name, number + 1, found.capacity());
        found.push(Candidate { name: weight.name.clone(), elements, choices });
    }
    Ok(found)
}

/// The matrices that are quantized; `reasons` gets why others stay.
///
/// # Errors
/// Those of reading weights.
fn choose<'c>(graph: &Graph, path: &Path, plan: &Plan<'c>, reasons: &mut Reasons) -> Result<Vec<Chosen<'c>>> {
    let inputs = plan.calibration.and_then(|calibration| calibration.of_graph(path)).map(|of_graph| &of_graph.inputs);
    let mut chosen = Vec::new();
    for matrix in graph.matrices() {
        let name = &graph.weights()[matrix.weights[0]].name;
        let names: Vec<&str> = matrix.weights.iter().map(|&weight| graph.weights()[weight].name.as_str()).collect();
        let mut found = plan.options.of_matrix(&names, &matrix, plan.width(path, name));
        if let Ok(spec) = &found
            && let Some(reason) = plan.options.too_small(spec, largest(&graph.weights()[matrix.weights[0]])?)
        {
            found = Err(reason);
        }
        for &weight in &matrix.weights {
            reasons[weight] = found.as_ref().err().map(|reason| Some(reason.clone()));
        }
        if let Ok(spec) = found {
            let inputs = inputs
                .filter(|_| !matrix.is_table)
                .and_then(|inputs| graph.factors(&matrix).into_iter().find_map(|name| inputs.get(&name)));
            chosen.push(Chosen { low: plan.options.low_bits(&spec, matrix.columns), matrix, inputs, spec });
        }
    }
    Ok(chosen)
}

/// The largest magnitude of a weight.
fn largest(weight: &Weight) -> Result<f32> {
    Ok(elements(weight)?.iter().fold(0.0, |most, value| most.max(value.abs())))
}

fn elements(weight: &Weight) -> Result<Vec<f32>> {
    Ok(to_f32(weight.dtype, &read_weight(weight)?))
}

/// The elements of a matrix, row by row.
pub(super) fn rows_of(weights: &[Weight], matrix: &Matrix) -> Result<Vec<f32>> {
    let values = elements(&weights[matrix.weights[0]])?;
    Ok(if matrix.is_transposed { transposed(&values, matrix.rows) } else { values })
}

/// The rows of a matrix as they are quantized.
fn turned(mut values: Vec<f32>, chosen: &Chosen<'_>) -> Result<Vec<f32>> {
    if let Some(block) = chosen.low.rotation {
        rotate(&mut values, block)?;
    }
    Ok(values)
}

/// Quantizes a matrix with these elements.
fn encode(values: &[f32], weights: &[Weight], chosen: &Chosen<'_>) -> Result<(QuantTensor, MatrixReport)> {
    let Matrix { rows, columns, .. } = chosen.matrix;
    let weight = &weights[chosen.matrix.weights[0]];
    let tensor = match chosen.inputs.map(Inputs::factor).transpose()?.flatten() {
        Some(factor) => quantize_for(values, rows, columns, &chosen.spec, factor),
        None => quantize(values, rows, columns, &chosen.spec),
    };
    let tensor = tensor.map_err(|error| error.prefixed(&weight.name))?;
    let moments = chosen.inputs.map(|inputs| &inputs.moments);
    let output_error = moments.map(|moments| moments.relative_error(values, &tensor)).transpose()?;
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
        relative_error: relative_error(values, &tensor)?,
        output_error,
        inputs: moments.map_or(0, InputMoments::rows),
    };
    Ok((tensor, report))
}
