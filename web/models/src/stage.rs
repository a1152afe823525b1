//! The graph of one stage: its weights, its ports, its space.

use crate::bytes::{Bytes, ScriptFiles, array_of};
use crate::errors::Result;
use cotensor_core::{ContentHash, Error, Kind, Space};
use cotensor_graph::key::space_of;
use cotensor_graph::{Graph, Port, Weight, WeightPlace, WeightSource};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The hashes of a file's weights: stages of one file have weights in common.
#[derive(Default)]
pub(crate) struct Hashes(RefCell<HashMap<Source, ContentHash>>);

/// File, offset and permutation of a weight.
type Source = (PathBuf, u64, u64, Option<Vec<usize>>);

impl Hashes {
    fn of(&self, weight: &Weight, files: &ScriptFiles) -> cotensor_core::Result<ContentHash> {
        let WeightSource { file, offset, length, permutation, .. } = &weight.source;
        let source = (file.clone(), *offset, *length, permutation.clone());
        if let Some(hash) = self.0.borrow().get(&source) {
            return Ok(*hash);
        }
        let hash = match permutation {
            None => files.bytes(file)?.hash(*offset, *length)?,
            Some(_) => ContentHash::of(&turned(weight, files)?),
        };
        self.0.borrow_mut().insert(source, hash);
        Ok(hash)
    }
}

/// The content of a weight that is transposed.
fn turned(weight: &Weight, files: &ScriptFiles) -> cotensor_core::Result<Vec<u8>> {
    let mut stored = vec![0; weight.source.length as usize];
    files.bytes(&weight.source.file)?.read(weight.source.offset, &mut stored)?;
    let mut content = vec![0; weight.size_bytes()];
    weight.fill(&stored, &mut content);
    Ok(content)
}

/// The graph of a stage. Its weights stay in the arrays of the file.
#[wasm_bindgen]
pub struct StageGraph {
    role: String,
    kind: Kind,
    graph: Graph,
    hashes: Vec<ContentHash>,
    space: Space,
    continues: Option<String>,
    files: Rc<ScriptFiles>,
}

impl StageGraph {
    pub(crate) fn new(
        role: &str,
        kind: Kind,
        graph: Graph,
        preprocessing: &[ContentHash],
        continues: Option<&str>,
        files: Rc<ScriptFiles>,
        hashes: &Hashes,
    ) -> cotensor_core::Result<Self> {
        let hash = |weight: &Weight| hashes.of(weight, &files).map_err(|error| error.in_field(&weight.name));
        let hashes = graph.weights().iter().map(hash).collect::<cotensor_core::Result<Vec<_>>>()?;
        let space = space_of(graph.fingerprint(&hashes), preprocessing);
        let (role, continues) = (role.to_owned(), continues.map(str::to_owned));
        Ok(Self { role, kind, graph, hashes, space, continues, files })
    }

    pub(crate) fn space(&self) -> Space {
        self.space
    }
}

#[wasm_bindgen]
impl StageGraph {
    /// The stage as JSON: `StageGraphDescription` of `web/src/models/core.ts`.
    pub fn describe(&self) -> String {
        let weights = self.graph.weights().iter().zip(&self.hashes).map(|(weight, hash)| WeightDescription {
            name: &weight.name,
            hash: hash.to_string(),
            bytes: weight.size_bytes(),
            dtype: weight.dtype.name(),
            shape: &weight.shape,
        });
        let port = |port| PortDescription::new(port);
        let description = Description {
            role: &self.role,
            kind: self.kind.name(),
            space: self.space.0.to_string(),
            precision: self.graph.precision().name(),
            continues: self.continues.as_deref(),
            joins_rows: self.graph.joins_rows(),
            inputs: self.graph.inputs().iter().map(port).collect(),
            outputs: self.graph.outputs().iter().map(port).collect(),
            weights: weights.collect(),
        };
        serde_json::to_string(&description).unwrap_or_default()
    }

    /// The content of weight number `index`: a part of the file's array, without a copy, unless the weight is transposed.
    ///
    /// # Errors
    /// `Invalid` for another number.
    pub fn weight(&self, index: usize) -> Result<Bytes> {
        let weight = self.graph.weights().get(index);
        let count = self.graph.weights().len();
        let weight =
            weight.ok_or_else(|| Error::invalid(format!("the graph has {count} weights")).in_field("index"))?;
        let WeightSource { file, offset, length, permutation, .. } = &weight.source;
        Ok(match permutation {
            None => self.files.bytes(file)?.subarray(*offset as f64, (offset + length) as f64),
            Some(_) => array_of(&turned(weight, &self.files)?),
        })
    }

    /// The graph as an ONNX file, with each weight as external data: number `i` at byte `offsets[i]` of the file
    /// `locations[i]`.
    ///
    /// # Errors
    /// `Invalid` for lists of another length than the weights, and for an offset that is not a number of bytes.
    pub fn encode(&self, locations: Vec<String>, offsets: Vec<f64>) -> Result<Vec<u8>> {
        let count = self.hashes.len();
        if locations.len() != count || offsets.len() != count {
            let message = format!("{} locations and {} offsets for {count} weights", locations.len(), offsets.len());
            return Err(Error::invalid(message).in_field("locations").into());
        }
        let place = |(location, offset): (String, f64)| {
            let known = offset >= 0.0 && offset < (1u64 << 53) as f64 && offset.fract() == 0.0;
            let wrong = || Error::invalid(format!("{offset} is not a number of bytes")).in_field("offsets");
            known.then_some(WeightPlace { location, offset: offset as u64 }).ok_or_else(wrong)
        };
        let places = locations.into_iter().zip(offsets).map(place).collect::<cotensor_core::Result<Vec<_>>>()?;
        Ok(self.graph.encode_with_weights_at(&places)?)
    }
}

#[derive(Serialize)]
struct Description<'a> {
    role: &'a str,
    kind: &'static str,
    space: String,
    precision: &'static str,
    /// The input that reads the result of the stage before, in the same file.
    continues: Option<&'a str>,
    /// An operator by which a row of a batch depends on the other rows.
    joins_rows: Option<String>,
    inputs: Vec<PortDescription<'a>>,
    outputs: Vec<PortDescription<'a>>,
    weights: Vec<WeightDescription<'a>>,
}

#[derive(Serialize)]
struct WeightDescription<'a> {
    name: &'a str,
    hash: String,
    bytes: usize,
    dtype: &'static str,
    shape: &'a [usize],
}

#[derive(Serialize)]
struct PortDescription<'a> {
    name: &'a str,
    dtype: Option<&'static str>,
    /// `null` for a dimension that varies.
    shape: Option<&'a [Option<usize>]>,
}

impl<'a> PortDescription<'a> {
    fn new(port: &'a Port) -> Self {
        Self { name: &port.name, dtype: port.dtype.map(|dtype| dtype.name()), shape: port.dims.as_deref() }
    }
}
