//! A graph with codes in the place of its matrices.

use super::calibrate::Calibration;
use super::options::QuantizeOptions;
use super::report::{GraphReport, Kept, MatrixReport};
use crate::graph::{Content, Graph, LowBits, Matrix, Weight, WeightPlace, open_graph};
use crate::weights::read_weight;
use cotensor_core::elements::to_f32;
use cotensor_core::{ContentHash, DType, Error, Result};
use cotensor_quant::{InputMoments, QuantSpec, QuantTensor, quantize, quantize_for, relative_error};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The multiple of bytes at which each tensor starts in a file.
const ALIGNMENT: u64 = 64;

/// A matrix and how it is quantized.
struct Chosen<'c> {
    matrix: Matrix,
    /// Of the inputs of its product.
    moments: Option<&'c InputMoments>,
    spec: QuantSpec,
    low: LowBits,
}

/// Writes the graph of the file `path` with codes in the place of its matrices to the new file `target`, and all weights to a new file
/// beside it, whose name ends with `_data`. `progress` has each matrix after it was written, its number from 1 on, and the number
/// of all.
///
/// With a calibration, errors of a matrix compensate each other for the inputs of its products.
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
    calibration: Option<&Calibration>,
    progress: &mut dyn FnMut(&MatrixReport, usize, usize),
) -> Result<GraphReport> {
    options.check()?;
    let graph = open_graph(path)?;
    let mut report = GraphReport { opens_in_onnxruntime: true, ..GraphReport::default() };
    report.bytes_before = graph.weights().iter().map(|weight| weight.source.length).sum();
    let moments = calibration.and_then(|calibration| calibration.of_graph(path));
    let chosen = choose(&graph, options, moments, &mut report);
    report.opens_in_onnxruntime = chosen.iter().all(|one| one.low.bits != 3 || one.matrix.is_table);

    let name = target.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    let data = target.with_file_name(format!("{name}_data"));
    let pairs: Vec<_> = chosen.iter().map(|one| (one.matrix.clone(), one.low)).collect();
    let low = graph.with_low_bits(&pairs).map_err(|error| error.in_file(path))?;
    let tensors: Vec<Content> = low.tensors().map(|(content, ..)| content).collect();
    let mut writer = Writer::create(&data, format!("{name}_data"))?;
    let mut codes: Option<(usize, QuantTensor)> = None;
    for content in tensors {
        let number = match content {
            Content::Weight(number) => {
                writer.write(read_weight(&low.weights()[number])?)?;
                continue;
            }
            Content::Codes(number) | Content::Scales(number) | Content::Offsets(number) => number,
        };
        if codes.as_ref().is_none_or(|(known, _)| *known != number) {
            let (tensor, matrix) = encode(low.weights(), &chosen[number]).map_err(|error| error.in_file(path))?;
            codes = Some((number, tensor));
            progress(&matrix, number + 1, chosen.len());
            report.matrices.push(matrix);
        }
        if let Some((_, tensor)) = &codes {
            writer.write(member(tensor, content))?;
        }
    }
    let places = writer.finish()?;
    report.bytes = places.end;
    let file = low.encode(&places.all)?;
    std::fs::write(target, file).map_err(|error| Error::io("writing", &error).in_file(target))?;
    Ok(report)
}

/// The matrices that are quantized; the report gets all other weights.
fn choose<'c>(
    graph: &Graph,
    options: &QuantizeOptions,
    moments: Option<&'c BTreeMap<String, InputMoments>>,
    report: &mut GraphReport,
) -> Vec<Chosen<'c>> {
    let mut reasons: Vec<Option<Option<String>>> =
        graph.weights().iter().map(|weight| Some(no_matrix(weight))).collect();
    let mut chosen = Vec::new();
    for matrix in graph.matrices() {
        let found = options.of_matrix(&graph.weights()[matrix.weights[0]].name, &matrix);
        for &weight in &matrix.weights {
            reasons[weight] = found.as_ref().err().map(|reason| Some(reason.clone()));
        }
        if let Ok(spec) = found {
            let moments = moments.filter(|_| !matrix.is_table).and_then(|moments| {
                let mut known = graph.factors(&matrix).into_iter().filter_map(|name| moments.get(&name));
                known.find(|moments| moments.rows() > 0)
            });
            chosen.push(Chosen { low: options.low_bits(&spec), matrix, moments, spec });
        }
    }
    let kept = graph.weights().iter().zip(reasons).filter_map(|(weight, reason)| {
        Some(Kept { name: weight.name.clone(), bytes: weight.size_bytes() as u64, reason: reason? })
    });
    report.kept = kept.collect();
    chosen
}

/// Why a weight is no matrix that codes can replace; `None` for one that has no two dimensions.
fn no_matrix(weight: &Weight) -> Option<String> {
    if weight.shape.len() != 2 {
        return None;
    }
    Some(match weight.dtype {
        DType::F32 => "something else than a product by it or a table reads it".to_owned(),
        other => format!("its elements are {other}"),
    })
}

/// Quantizes a matrix.
fn encode(weights: &[Weight], chosen: &Chosen<'_>) -> Result<(QuantTensor, MatrixReport)> {
    let Matrix { rows, columns, .. } = chosen.matrix;
    let weight = &weights[chosen.matrix.weights[0]];
    let mut values = to_f32(DType::F32, &read_weight(weight)?);
    if chosen.matrix.is_transposed {
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| column * rows + row));
        values = places.map(|at| values[at]).collect();
    }
    let tensor = match chosen.moments.map(InputMoments::factor).transpose() {
        Ok(Some(factor)) => quantize_for(&values, rows, columns, &chosen.spec, &factor),
        // Inputs of zeros only say nothing.
        Ok(None) | Err(_) => quantize(&values, rows, columns, &chosen.spec),
    };
    let tensor = tensor.map_err(|error| error.prefixed(&weight.name))?;
    let output_error = chosen.moments.map(|moments| moments.relative_error(&values, &tensor)).transpose()?;
    let report = MatrixReport {
        name: weight.name.clone(),
        rows,
        columns,
        bits: chosen.spec.width().bits(),
        group: chosen.spec.group(),
        scheme: chosen.spec.scheme().name(),
        bits_per_weight: chosen.spec.bits_per_weight(),
        relative_error: relative_error(&values, &tensor)?,
        output_error,
        inputs: chosen.moments.map_or(0, InputMoments::rows),
    };
    Ok((tensor, report))
}

/// The bytes of a tensor of a matrix.
fn member(tensor: &QuantTensor, content: Content) -> Vec<u8> {
    let name = match content {
        Content::Scales(_) => "scales",
        Content::Offsets(_) => "offsets",
        _ => "codes",
    };
    let found = tensor.members().into_iter().find(|member| member.name == name);
    found.expect("a member of the scheme").bytes.into_owned()
}

/// Writes tensors to one file.
struct Writer<'p> {
    path: &'p Path,
    location: String,
    file: BufWriter<File>,
    end: u64,
    places: Vec<WeightPlace>,
    /// Tied weights that an exporter wrote twice are written once.
    by_content: HashMap<ContentHash, u64>,
}

/// Where the tensors are, and the length of the file.
struct Places {
    all: Vec<WeightPlace>,
    end: u64,
}

impl<'p> Writer<'p> {
    fn create(path: &'p Path, location: String) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| Error::io("writing", &error).in_file(path))?;
        Ok(Self { path, location, file: BufWriter::new(file), end: 0, places: Vec::new(), by_content: HashMap::new() })
    }

    fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let bytes = bytes.as_ref();
        let start = self.end.next_multiple_of(ALIGNMENT);
        let offset = *self.by_content.entry(ContentHash::of(bytes)).or_insert(start);
        self.places.push(WeightPlace { location: self.location.clone(), offset });
        if offset == start {
            let gap = vec![0; (start - self.end) as usize];
            let written = self.file.write_all(&gap).and_then(|()| self.file.write_all(bytes));
            written.map_err(|error| Error::io("writing", &error).in_file(self.path))?;
            self.end = start + bytes.len() as u64;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Places> {
        self.file.flush().map_err(|error| Error::io("writing", &error).in_file(self.path))?;
        Ok(Places { all: self.places, end: self.end })
    }
}
