//! Writes a graph with codes in the place of its matrices.

use super::report::{GraphReport, Kept, MatrixReport};
use super::writer::Writer;
use crate::graph::{Content, Graph, LowBits, Matrix, Weight};
use crate::weights::read_weight;
use cotensor_core::{DType, Error, Result};
use std::path::Path;

/// The tensors of a matrix.
#[derive(Default)]
pub(super) struct Encoded {
    pub(super) codes: Vec<u8>,
    pub(super) scales: Vec<u8>,
    /// Empty without offsets.
    pub(super) offsets: Vec<u8>,
}

/// Gives the codes of a matrix, by its number among those that are replaced.
pub(super) type Encode<'e> = dyn FnMut(&[Weight], usize) -> Result<(Encoded, MatrixReport)> + 'e;

/// For each weight, why it stays: `None` if codes replace it, `Some(None)` if it is no matrix.
pub(super) type Reasons = Vec<Option<Option<String>>>;

/// Why each weight stays if no matrix is replaced.
pub(super) fn reasons_of(graph: &Graph) -> Reasons {
    graph.weights().iter().map(|weight| Some(no_matrix(weight))).collect()
}

/// Why a weight is no matrix that codes can replace; `None` for one that has no two dimensions.
fn no_matrix(weight: &Weight) -> Option<String> {
    if weight.shape.len() != 2 {
        return None;
    }
    Some(match weight.dtype {
        DType::F32 | DType::F16 => "something else than a product by it or a table reads it".to_owned(),
        other => format!("its elements are {other}"),
    })
}

/// Writes a graph with codes in the place of `chosen` to the new file `target`, and all weights to a new file beside it, whose name ends with
/// `_data`. `progress` has each matrix after it was written, its number from 1 on, and the number of all.
///
/// # Errors
/// Those of `encode` and of reading weights; `Io`.
///
/// # Panics
/// When `target` does not end in a name that is UTF-8.
pub(super) fn write_codes(
    graph: Graph,
    target: &Path,
    chosen: &[(Matrix, LowBits)],
    reasons: Reasons,
    progress: &mut dyn FnMut(&MatrixReport, usize, usize),
    encode: &mut Encode<'_>,
) -> Result<GraphReport> {
    let kept = graph.weights().iter().zip(reasons).filter_map(|(weight, reason)| {
        let is_float16 = weight.dtype == DType::F16;
        Some(Kept { name: weight.name.clone(), bytes: weight.size_bytes() as u64, is_float16, reason: reason? })
    });
    let mut report = GraphReport {
        bytes_before: graph.weights().iter().map(|weight| weight.source.length).sum(),
        kept: kept.collect(),
        opens_in_onnxruntime: chosen.iter().all(|(matrix, low)| low.bits != 3 || matrix.is_table),
        ..GraphReport::default()
    };
    let name = target.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    let data = target.with_file_name(format!("{name}_data"));
    let low = graph.with_low_bits(chosen);
    let mut writer = Writer::create(&data, format!("{name}_data"))?;
    let mut encoded: Option<(usize, Encoded)> = None;
    for &content in low.contents() {
        let number = match content {
            Content::Weight(number) => {
                writer.write(read_weight(&low.weights()[number])?)?;
                continue;
            }
            Content::Codes(number) | Content::Scales(number) | Content::Offsets(number) => number,
        };
        if encoded.as_ref().is_none_or(|(known, _)| *known != number) {
            let (tensors, matrix) = encode(low.weights(), number)?;
            encoded = Some((number, tensors));
            progress(&matrix, number + 1, chosen.len());
            report.matrices.push(matrix);
        }
        if let Some((_, tensors)) = &encoded {
            writer.write(match content {
                Content::Scales(_) => &tensors.scales,
                Content::Offsets(_) => &tensors.offsets,
                _ => &tensors.codes,
            })?;
        }
    }
    let places = writer.finish()?;
    report.bytes = places.end;
    let file = low.encode(&places.all)?;
    std::fs::write(target, file).map_err(|error| Error::io("writing", &error).in_file(target))?;
    Ok(report)
}
