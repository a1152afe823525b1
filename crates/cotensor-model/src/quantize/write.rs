//! Writes a graph with codes in the place of its matrices.

use super::writer::Writer;
use crate::graph::{Content, Graph, LowBits, Matrix, Weight, WeightPlace};
use crate::quantized::WeightsOrigin;
use crate::quantized::{GraphReport, Kept, MatrixReport};
use crate::weights::read_weight;
use cotensor_core::{DType, Error, Result};
use std::path::Path;

/// The codes of a matrix.
pub(super) struct Encoded {
    pub(super) low: LowBits,
    /// Codes, scales, and offsets if groups have them.
    pub(super) tensors: Vec<Vec<u8>>,
    pub(super) report: MatrixReport,
    /// That of its rows.
    pub(super) likeness: Option<f64>,
}

/// Gives the codes of a matrix of the graph, or the reason why it stays as it is.
pub(super) type Encode<'e> = dyn FnMut(&Graph, &Matrix) -> Result<std::result::Result<Encoded, String>> + 'e;

/// Why a weight is not a matrix that codes can replace; `None` for one that has no two dimensions.
fn no_matrix(weight: &Weight) -> Option<String> {
    if weight.shape.len() != 2 {
        return None;
    }
    Some(match weight.dtype {
        DType::F32 | DType::F16 => "something else than a product by it or a table reads it".to_owned(),
        other => format!("its elements are {other}"),
    })
}

/// Writes a graph with the codes that `encode` gives to the new file `target`, and all weights to a new file beside it, whose name ends
/// with `_data`. Each matrix is encoded once, and its codes are written before those of the next one. `progress` has the name of each
/// matrix after that, its number from 1 on, and the number of all.
///
/// # Errors
/// Those of `encode` and of reading weights; `Io`.
///
/// # Panics
/// When `target` does not end in a name that is UTF-8.
pub(super) fn write_codes(
    graph: Graph,
    target: &Path,
    progress: &mut dyn FnMut(&str, usize, usize),
    encode: &mut Encode<'_>,
) -> Result<GraphReport> {
    let name = target.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    let data = target.with_file_name(format!("{name}_data"));
    let mut writer = Writer::create(&data, format!("{name}_data"))?;
    let mut report = GraphReport {
        bytes_before: graph.weights().iter().map(|weight| weight.source.length).sum(),
        ..GraphReport::default()
    };
    // Why each weight stays. `None`: codes replace it.
    let mut reasons: Vec<_> = graph.weights().iter().map(|weight| Some(no_matrix(weight))).collect();
    let (mut chosen, mut places, mut likenesses) = (Vec::new(), Vec::new(), Vec::new());
    let matrices = graph.matrices();
    let count = matrices.len();
    for (number, matrix) in matrices.into_iter().enumerate() {
        let found = encode(&graph, &matrix)?;
        for &weight in &matrix.weights {
            reasons[weight] = found.as_ref().err().map(|reason| Some(reason.clone()));
        }
        progress(&graph.weights()[matrix.weights[0]].name, number + 1, count);
        if let Ok(encoded) = found {
            let written: Vec<_> = encoded.tensors.iter().map(|bytes| writer.write(bytes)).collect::<Result<_>>()?;
            places.push(written);
            report.matrices.push(encoded.report);
            likenesses.extend(encoded.likeness);
            chosen.push((matrix, encoded.low));
        }
    }
    let kept = graph.weights().iter().zip(reasons).filter_map(|(weight, reason)| {
        Some(Kept { name: weight.name.clone(), bytes: weight.size_bytes() as u64, reason: reason? })
    });
    report.kept = kept.collect();
    report.weights = WeightsOrigin::of(likenesses);
    report.opens_in_onnxruntime = chosen.iter().all(|(matrix, low)| low.bits != 3 || matrix.is_table);
    let low = graph.with_low_bits(&chosen);
    let mut place = |content: &Content| -> Result<WeightPlace> {
        Ok(match *content {
            Content::Weight(number) => writer.write(&read_weight(&low.weights()[number])?)?,
            Content::Codes(number) => places[number][0].clone(),
            Content::Scales(number) => places[number][1].clone(),
            Content::Offsets(number) => places[number][2].clone(),
        })
    };
    let places: Vec<_> = low.contents().iter().map(&mut place).collect::<Result<_>>()?;
    report.bytes = writer.finish()?;
    let file = low.encode(&places)?;
    std::fs::write(target, file).map_err(|error| Error::io("writing", &error).in_file(target))?;
    Ok(report)
}
