//! What the tensors of quantized weights say about them: metadata of the blobs.

use crate::graph::{Graph, Weight};
use crate::quantized::{CodedSums, GraphReport, OutputErrors, WeightsOrigin, measured};
use cotensor_store::METADATA_BYTES_MAX;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The end of the name of codes that `cotensor quantize` wrote.
const CODES: &str = ".codes";

/// Where a tensor is in a file. What loading makes of it for an engine has the same place.
type Place = (PathBuf, u64);

fn place(weight: &Weight) -> Place {
    (weight.source.file.clone(), weight.source.offset)
}

/// The matrices of codes of a graph, before an engine got its forms.
#[derive(Default)]
pub(crate) struct StoredCodes {
    matrices: Vec<Stored>,
    /// The number of the matrix, by the place of its codes.
    by_codes: HashMap<Place, usize>,
}

/// A matrix as the file has it.
struct Stored {
    metadata: Metadata,
    elements: f64,
    /// The places of codes, scales, offsets and zero points.
    places: HashSet<Place>,
}

/// The metadata of a tensor of codes. What is not known is `null`.
#[derive(Clone, Serialize)]
struct Metadata {
    /// How scales were fitted, or the format of another program.
    scheme: Option<String>,
    /// Bits of a code in the file.
    bits: u32,
    /// Elements of a group.
    group: usize,
    /// Bits of an element in the file, with its part of scales and offsets.
    stored_bits: f64,
    /// The same in the store.
    run_bits: f64,
    /// The relative error of the weights in the L2 norm.
    relative_error: Option<f64>,
    /// That of the product's result, for the inputs of the calibration.
    #[serde(serialize_with = "measured::serialize")]
    output_error: Option<f64>,
    /// Those of the outputs of the graph.
    outputs: Option<OutputErrors>,
    /// Whether the weights of the graph are trained.
    weights: Option<WeightsOrigin>,
}

impl StoredCodes {
    /// Those of a graph as it was read. `report` is that of the program that quantized it.
    pub(crate) fn of(graph: &Graph, report: Option<&GraphReport>) -> Self {
        let weights: HashMap<&str, &Weight> =
            graph.weights().iter().map(|weight| (weight.name.as_str(), weight)).collect();
        let mut found = Self::default();
        // Tables are known by the report only.
        for matrix in report.iter().flat_map(|report| &report.matrices) {
            let parts = ["codes", "scales", "offsets"].map(|part| format!("{}.{part}", matrix.name));
            let metadata = Metadata {
                scheme: Some(matrix.scheme.clone()),
                bits: matrix.bits,
                group: matrix.group,
                stored_bits: matrix.bits_per_weight,
                run_bits: 0.0,
                relative_error: Some(matrix.relative_error),
                output_error: matrix.output_error,
                outputs: report.map(|report| report.errors),
                weights: report.and_then(|report| report.weights),
            };
            found.add(&weights, &parts, matrix.elements(), metadata);
        }
        for product in graph.coded_products() {
            let mut parts = product.tensors;
            // Scales may be converted before the product reads them, and offsets are another product.
            let stem = parts.first().and_then(|codes| codes.strip_suffix(CODES)).map(str::to_owned);
            parts.extend(stem.iter().flat_map(|stem| ["scales", "offsets"].map(|part| format!("{stem}.{part}"))));
            let elements = product.rows as f64 * product.columns as f64;
            let stored: HashMap<Place, u64> = parts
                .iter()
                .filter_map(|name| weights.get(name.as_str()))
                .map(|weight| (place(weight), weight.source.length))
                .collect();
            let metadata = Metadata {
                scheme: None,
                bits: product.bits,
                group: product.group,
                stored_bits: stored.values().sum::<u64>() as f64 * 8.0 / elements,
                run_bits: 0.0,
                relative_error: None,
                output_error: None,
                outputs: None,
                weights: None,
            };
            found.add(&weights, &parts, elements, metadata);
        }
        found
    }

    /// Adds a matrix by the names of its tensors, codes first, unless its codes are known or no weight.
    fn add(&mut self, weights: &HashMap<&str, &Weight>, parts: &[String], elements: f64, metadata: Metadata) {
        let Some(codes) = parts.first().and_then(|codes| weights.get(codes.as_str())) else { return };
        let codes = place(codes);
        if !self.by_codes.contains_key(&codes) {
            self.by_codes.insert(codes, self.matrices.len());
            let places = parts.iter().filter_map(|name| weights.get(name.as_str())).map(|weight| place(weight));
            self.matrices.push(Stored { metadata, elements, places: places.collect() });
        }
    }

    /// The metadata of each of these weights, which are those of the graph in the forms of an engine: of codes, and none of others. None,
    /// either, if they are too long for a tensor.
    pub(crate) fn describe(&self, weights: &[Weight]) -> Vec<Option<Arc<str>>> {
        if self.matrices.is_empty() {
            return vec![None; weights.len()];
        }
        let at = bytes_at(weights);
        let describe = |weight| {
            let stored = &self.matrices[*self.by_codes.get(&place(weight))?];
            let run_bytes: usize = stored.places.iter().filter_map(|place| at.get(place)).sum();
            let run_bits = run_bytes as f64 * 8.0 / stored.elements;
            let text = serde_json::to_string(&Metadata { run_bits, ..stored.metadata.clone() }).ok()?;
            (text.len() <= METADATA_BYTES_MAX).then(|| text.into())
        };
        weights.iter().map(describe).collect()
    }

    /// The sums over all matrices, of the graph with these weights in the forms of an engine. `None` without a matrix.
    pub(crate) fn sums(&self, weights: &[Weight]) -> Option<CodedSums> {
        if self.matrices.is_empty() {
            return None;
        }
        let mut sums = CodedSums::default();
        for Stored { metadata, elements, .. } in &self.matrices {
            sums.add(*elements, metadata.stored_bits, metadata.relative_error, metadata.output_error);
        }
        // Matrices may have equal scales, and these one place.
        let places: HashSet<&Place> = self.matrices.iter().flat_map(|stored| &stored.places).collect();
        let at = bytes_at(weights);
        sums.run_bytes = places.into_iter().filter_map(|place| at.get(place)).sum::<usize>() as f64;
        Some(sums)
    }
}

/// The bytes in the store of what is made of each place of a file. Equal tensors have one place: each form counts once.
fn bytes_at(weights: &[Weight]) -> HashMap<Place, usize> {
    let mut seen = HashSet::new();
    let mut found: HashMap<Place, usize> = HashMap::new();
    for weight in weights {
        let place = place(weight);
        if seen.insert((place.clone(), weight.dtype, &weight.source.permutation, &weight.source.repacks)) {
            *found.entry(place).or_default() += weight.size_bytes();
        }
    }
    found
}
