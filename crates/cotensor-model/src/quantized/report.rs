use super::origin::WeightsOrigin;
use crate::folder::read_bounded;
use cotensor_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::Path;

/// The file with the report, in the folder of the model.
pub const REPORT_FILE: &str = "quantization.json";

/// The most bytes of a report.
const REPORT_BYTES_MAX: u64 = 64 << 20;
/// The most elements of a matrix, whose bits can be counted.
const ELEMENTS_MAX: usize = usize::MAX / 64;
/// The most bits of an element, with scales.
const BITS_MAX: f64 = 64.0;

/// A model whose weights were quantized.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct QuantizeReport {
    /// Its graphs.
    pub graphs: Vec<GraphReport>,
    /// Files of the model that were not copied.
    pub left_out: Vec<String>,
    /// The samples on which codes were fitted, and those on which errors of outputs were measured.
    pub samples: usize,
    /// See `samples`. No code was fitted on these.
    pub held_out: usize,
    /// The engine that ran the samples: codes were fitted for what it computes, and errors of outputs are those on it.
    #[serde(default)]
    pub engine: Option<String>,
    /// How widths were chosen; `None` for one width.
    pub mixed: Option<MixedReport>,
}

impl QuantizeReport {
    /// The report in the folder of a model; `None` without one.
    ///
    /// # Errors
    /// `Corrupt` for a report that is damaged, with the field, `Io`.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(REPORT_FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let text = read_bounded(&path, REPORT_BYTES_MAX)?;
        let report: Self =
            serde_json::from_slice(&text).map_err(|error| Error::corrupt(error.to_string()).in_file(&path))?;
        report.check().map_err(|error| error.in_file(&path))?;
        Ok(Some(report))
    }

    /// # Errors
    /// `Corrupt`, with the field, for a number that no matrix has.
    fn check(&self) -> Result<()> {
        for (graph, found) in self.graphs.iter().enumerate() {
            for (number, matrix) in found.matrices.iter().enumerate() {
                matrix.check().map_err(|(field, value)| {
                    let field = format!("graphs[{graph}].matrices[{number}].{field}");
                    Error::corrupt(format!("{value} is not possible")).in_field(field)
                })?;
            }
        }
        Ok(())
    }

    /// That of the graph `file`, relative to the model's folder.
    pub(crate) fn graph(&self, file: &Path) -> Option<&GraphReport> {
        self.graphs.iter().find(|graph| Path::new(&graph.file) == file)
    }

    /// Whether the matrices have these bits, or, with `is_mixed`, were written with widths of their own for a target of these bits and less
    /// than one bit for scales. Where one width had no larger error, that was written.
    pub fn has_bits(&self, bits: u32, is_mixed: bool) -> bool {
        let mut matrices = self.graphs.iter().flat_map(|graph| &graph.matrices).peekable();
        let is_target = |mixed: &MixedReport| (0.0..1.0).contains(&(mixed.target_bits - f64::from(bits)));
        matrices.peek().is_some()
            && if is_mixed { self.mixed.as_ref().is_some_and(is_target) } else { matrices.all(|one| one.bits == bits) }
    }

    /// The mean bits of a weight that is a code, with scales and offsets.
    pub fn bits_per_weight(&self) -> f64 {
        bits_per_weight(&self.graphs)
    }
}

/// The mean bits of a weight that is a code.
pub(crate) fn bits_per_weight(graphs: &[GraphReport]) -> f64 {
    let matrices = || graphs.iter().flat_map(|graph| &graph.matrices);
    let bits: f64 = matrices().map(|one| one.elements() * one.bits_per_weight).sum();
    bits / matrices().map(MatrixReport::elements).sum::<f64>().max(1.0)
}

/// Widths of their own against one width.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MixedReport {
    /// The most bits for a weight, with scales.
    pub target_bits: f64,
    /// The bits for a weight of the mixed widths, and of the largest single width that has at most as many. `None`: no single width has.
    pub bits: f64,
    /// See `bits`.
    pub uniform_bits: Option<f64>,
    /// The errors of the outputs on held-out samples, as the mean of all graphs.
    #[serde(default, with = "super::measured")]
    pub output_error: Option<f64>,
    /// See `output_error`.
    #[serde(default, with = "super::measured")]
    pub uniform_output_error: Option<f64>,
    /// The divergence of next tokens on held-out samples; `None` unless a decoder is the only graph.
    #[serde(default, with = "super::measured")]
    pub divergence: Option<f64>,
    /// See `divergence`.
    #[serde(default, with = "super::measured")]
    pub uniform_divergence: Option<f64>,
    /// Whether the mixed widths were written: they are if their divergence is the smaller one, or, without divergences, if their outputs
    /// have the smaller error.
    pub is_mixed: bool,
    /// The runs of graphs on which the loss of the outputs by each matrix was measured. 0: none was small enough to be kept, and the errors
    /// of the results of products alone decided.
    #[serde(default)]
    pub runs: usize,
}

/// How far the outputs of a graph are from those of full precision, on samples on which no code was fitted. What was not measured is
/// `None`: all of it without samples, and for a graph that the task of the samples does not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputErrors {
    /// The relative error in the L2 norm, for equal inputs of the graph.
    #[serde(with = "super::measured")]
    pub output_error: Option<f64>,
    /// For the next tokens of a decoder: the mean Kullback-Leibler divergence, in nats.
    #[serde(with = "super::measured")]
    pub divergence: Option<f64>,
    /// For the next tokens of a decoder: the share of equal first choices.
    #[serde(with = "super::measured")]
    pub top1: Option<f64>,
    /// For embeddings: the mean cosine to those of the full model.
    #[serde(with = "super::measured")]
    pub cosine: Option<f64>,
    /// For embeddings: how many of the ten nearest samples stay among the ten nearest.
    #[serde(with = "super::measured")]
    pub neighbours: Option<f64>,
    /// The tokens that the graph read.
    pub tokens: Option<u64>,
}

/// A graph whose weights were quantized.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GraphReport {
    /// The file, relative to the model's folder.
    pub file: String,
    /// Whether onnxruntime opens the file without Cotensor. It has no codes of 3 bits.
    pub opens_in_onnxruntime: bool,
    /// The bytes of all weights before, in the types of the file.
    pub bytes_before: u64,
    /// The bytes of all weights.
    pub bytes: u64,
    /// Whether the weights are trained; `None` if they do not say. See [`WeightsOrigin`].
    #[serde(default)]
    pub weights: Option<WeightsOrigin>,
    /// Of the outputs.
    #[serde(flatten)]
    pub errors: OutputErrors,
    /// Matrices of codes.
    pub matrices: Vec<MatrixReport>,
    /// Weights that stayed as they were.
    pub kept: Vec<Kept>,
}

/// A matrix of codes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MatrixReport {
    /// The name of the weight.
    pub name: String,
    /// For codes of another program: the name of the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// Rows.
    pub rows: usize,
    /// Columns, in elements.
    pub columns: usize,
    /// Bits of a code.
    pub bits: u32,
    /// Elements of a group.
    pub group: usize,
    /// How scales were fitted; for codes of another program, its format, such as `Q4_K` or `gptq`.
    pub scheme: String,
    /// The block by which its rows were rotated; `None` for rows as they are.
    #[serde(default)]
    pub rotation: Option<usize>,
    /// Bits of an element, with its part of scales and offsets.
    pub bits_per_weight: f64,
    /// The relative error of the weights in the L2 norm.
    pub relative_error: f64,
    /// The relative error of the product's result in the L2 norm, for the inputs of the calibration; `None` without those.
    #[serde(default, with = "super::measured")]
    pub output_error: Option<f64>,
    /// The inputs of the calibration.
    pub inputs: usize,
}

impl MatrixReport {
    /// The number of elements.
    pub(crate) fn elements(&self) -> f64 {
        self.rows as f64 * self.columns as f64
    }

    /// # Errors
    /// The field with a number that is not possible, and the number.
    fn check(&self) -> std::result::Result<(), (&'static str, String)> {
        let Self { rows, columns, bits, group, bits_per_weight, .. } = self;
        let is_matrix = |rows: usize| rows.checked_mul(*columns).is_some_and(|elements| elements <= ELEMENTS_MAX);
        let checks: [(_, bool, &dyn Display); 5] = [
            ("columns", *columns > 0 && is_matrix(1), columns),
            ("rows", *rows > 0 && is_matrix(*rows), rows),
            ("bits", (1..=8).contains(bits), bits),
            ("group", (1..=*columns).contains(group), group),
            ("bits_per_weight", (1.0..=BITS_MAX).contains(bits_per_weight), bits_per_weight),
        ];
        match checks.iter().find(|(_, is_possible, _)| !is_possible) {
            Some((field, _, value)) => Err((field, value.to_string())),
            None => Ok(()),
        }
    }
}

/// A weight that stayed as it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// The name of the weight.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Why it stayed, for a matrix; `None` for a weight that is not a matrix of a product or a table.
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn report() -> Value {
        json!({
            "graphs": [
                { "file": "a.onnx", "opens_in_onnxruntime": true, "bytes_before": 1, "bytes": 1, "matrices": [], "kept": [] },
                {
                    "file": "b.onnx", "opens_in_onnxruntime": true, "bytes_before": 1, "bytes": 1, "output_error": "NaN",
                    "matrices": [{
                        "name": "w", "rows": 8, "columns": 64, "bits": 4, "group": 32, "scheme": "search", "bits_per_weight": 4.5,
                        "relative_error": 0.1, "output_error": null, "inputs": 0,
                    }],
                    "kept": [],
                },
            ],
            "left_out": [], "samples": 0, "held_out": 0,
            "mixed": { "target_bits": 4.5, "bits": 4.4, "uniform_bits": null, "is_mixed": true },
        })
    }

    fn read(report: &Value) -> Result<QuantizeReport> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(REPORT_FILE), report.to_string()).unwrap();
        Ok(QuantizeReport::read(folder.path())?.unwrap())
    }

    #[test]
    fn impossible_numbers_are_named() {
        let found = read(&report()).unwrap();
        assert_eq!(found.bits_per_weight(), 4.5);
        assert!(found.graphs[1].errors.output_error.is_some_and(f64::is_nan));
        for (field, values) in [
            ("rows", &[json!(0), json!(u64::MAX), json!(1u64 << 60)][..]),
            ("columns", &[json!(0), json!(u64::MAX)]),
            ("bits", &[json!(0), json!(9), json!(u32::MAX)]),
            ("group", &[json!(0), json!(65)]),
            ("bits_per_weight", &[json!(0.5), json!(-4.5), json!(1e300)]),
        ] {
            for value in values {
                let mut report = report();
                report["graphs"][1]["matrices"][0][field] = value.clone();
                let error = read(&report).unwrap_err();
                assert_eq!(error.field(), Some(format!("graphs[1].matrices[0].{field}").as_str()), "{value}: {error}");
                assert!(error.file().is_some_and(|file| file.ends_with(REPORT_FILE)), "{error}");
            }
        }
    }

    #[test]
    fn mixed_widths_have_the_bits_of_their_target() {
        let mut report = read(&report()).unwrap();
        let has = |report: &QuantizeReport| [2, 3, 4, 8].map(|bits| report.has_bits(bits, true));
        for (target_bits, wanted) in [
            (4.5, [false, false, true, false]),
            (4.0, [false, false, true, false]),
            (3.99, [false, true, false, false]),
            (5.0, [false; 4]),
            (8.5, [false, false, false, true]),
            (f64::NAN, [false; 4]),
        ] {
            report.mixed.as_mut().unwrap().target_bits = target_bits;
            assert_eq!(has(&report), wanted, "{target_bits}");
        }
        assert!(report.has_bits(4, false) && !report.has_bits(8, false));
        report.mixed = None;
        assert_eq!(has(&report), [false; 4]);
    }
}
