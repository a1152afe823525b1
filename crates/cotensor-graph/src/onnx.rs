use super::constants::Constants;
use super::files::GraphFiles;
use super::proto::{normal_domain, port, visit_nodes};
use super::types::{Port, Weight, WeightPlace};
use super::{casts, coded_product, declared, fingerprint, initializer, shapes, ties, transpose, wire};
use cotensor_core::{ContentHash, DType, Error, Result};
use rten_onnx::onnx::{DataLocation, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use std::collections::{BTreeSet, HashSet};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

/// The first version of the format in which constants need not be inputs.
pub(super) const IR_VERSION_MIN: i64 = 4;

/// A graph whose large weights are not loaded.
pub struct Graph {
    pub(super) path: PathBuf,
    /// The initializer of each weight names `<index>.data` as its external file; all other constants are embedded.
    pub(super) model: ModelProto,
    pub(super) weights: Vec<Weight>,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    pub(super) structure_hash: ContentHash,
}

impl Clone for Graph {
    fn clone(&self) -> Self {
        let ModelProto { ir_version, graph, opset_import, .. } = &self.model;
        let (graph, opset_import) = (graph.clone(), opset_import.clone());
        Self {
            path: self.path.clone(),
            model: ModelProto { ir_version: *ir_version, graph, opset_import, ..ModelProto::default() },
            weights: self.weights.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            structure_hash: self.structure_hash,
        }
    }
}

impl Graph {
    /// Reads an ONNX file from `reader`. Finds external data in `files` but does not read it. `path` names the file in
    /// messages.
    ///
    /// # Errors
    /// `Corrupt` for another format or an inconsistent file, `Unsupported` for unsupported parts of ONNX, and the errors
    /// of `files`. They name the initializer, if any.
    pub fn read(mut reader: impl Read + Seek, path: &Path, files: &mut dyn GraphFiles) -> Result<Self> {
        let structure = wire::read_structure(&mut reader)?;
        let structure_hash = ContentHash::of(&structure.proto);
        let mut model = ModelProto::parse_buf(&structure.proto).map_err(|error| Error::corrupt(error.to_string()))?;
        if model.opset_import.is_empty() {
            return Err(Error::corrupt("no operator set is imported").in_field("opset_import"));
        }
        let graph = model.graph.as_mut().ok_or_else(|| Error::corrupt("the file has no graph").in_field("graph"))?;

        let (names, mut weights) = initializer::collect(graph, structure.spans, files)?;
        transpose::fold(graph, &mut weights);
        initializer::detach(graph, &weights);
        refuse_nested_external_data(graph)?;
        shapes::refuse_enormous(graph)?;
        coded_product::check(graph)?;

        let ports = |values: &[ValueInfoProto]| values.iter().map(port).collect::<Result<Vec<_>>>();
        let mut inputs = ports(&graph.input)?;
        // Before version 4 of the format, the inputs include the initializers.
        inputs.retain(|input| !names.contains(&input.name));
        let outputs = ports(&graph.output)?;
        Ok(Self { path: path.to_path_buf(), model, weights, inputs, outputs, structure_hash })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The weights, in the order of the leases that an engine takes.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// The operators of the graph and its subgraphs: `MatMul`, or `domain::Name` outside ONNX's own domain.
    pub fn operators(&self) -> BTreeSet<String> {
        let mut operators = BTreeSet::new();
        visit_nodes(self.graph(), &mut |node| {
            let name = node.op_type.as_deref().unwrap_or_default();
            operators.insert(match normal_domain(node.domain.as_deref()) {
                "" => name.to_owned(),
                domain => format!("{domain}::{name}"),
            });
        });
        operators
    }

    /// The identity of the computation, given the content hash of each of [`weights`](Graph::weights), in order. It
    /// depends on operators, attributes, constants and connections, and on names and order of inputs and outputs.
    /// It does not depend on internal names, the order of initializers or documentation.
    ///
    /// # Panics
    /// When the number of hashes is not the number of weights.
    pub fn fingerprint(&self, weights: &[ContentHash]) -> ContentHash {
        assert_eq!(weights.len(), self.weights.len(), "one content hash per weight");
        fingerprint::fingerprint(&self.model, &self.weights, [&self.inputs, &self.outputs], weights)
    }

    /// The precision of an engine that computes with the types of the graph: `float16` if a weight has this type.
    pub fn precision(&self) -> DType {
        let half = self.weights.iter().any(|weight| weight.dtype == DType::F16);
        if half { DType::F16 } else { DType::F32 }
    }

    /// The hash of the file without its large tensors.
    pub fn structure_hash(&self) -> ContentHash {
        self.structure_hash
    }

    /// Calls `visit` with every node, including the nodes of subgraphs.
    pub fn visit_nodes(&self, visit: &mut dyn FnMut(&NodeProto)) {
        visit_nodes(self.graph(), visit);
    }

    /// The constants of the main graph, with their copies.
    pub fn constants(&self) -> Constants<'_> {
        Constants::of(self.graph())
    }

    /// The graph as an ONNX file for rten. Weight number `i` is the whole external file
    /// [`weight_location`](super::weight_location)`(i)`.
    ///
    /// rten gives the last of equal elements for `ArgMax` and `ArgMin`, and takes sizes from the shapes that a file declares. The
    /// results of this file are those that ONNX requires; with `keeps_names`, if axes of the inputs that have one name have one size.
    ///
    /// # Errors
    /// `Corrupt` when the graph cannot be encoded.
    pub fn encode_for_rten(&self, keeps_names: bool) -> Result<Vec<u8>> {
        let mut graph = self.graph().clone();
        declared::remove(&mut graph, keeps_names);
        let mut model = ModelProto {
            ir_version: self.model.ir_version,
            graph: Some(graph),
            opset_import: self.model.opset_import.clone(),
            ..ModelProto::default()
        };
        ties::reverse(&mut model);
        model.write_buf().map_err(|error| Error::corrupt(error.to_string()).in_file(&self.path))
    }

    /// The graph as an ONNX file for onnxruntime. The weights are inputs of the graph, after the true ones. An engine gives them
    /// values when it loads the graph. Repeated names of nodes are removed: onnxruntime refuses them.
    ///
    /// # Errors
    /// As [`encode_for_rten`](Self::encode_for_rten).
    pub fn encode_with_weights_as_inputs(&self) -> Result<Vec<u8>> {
        let mut graph = self.graph().clone();
        let names: HashSet<&str> = self.weights.iter().map(|weight| weight.name.as_str()).collect();
        graph.initializer.retain(|tensor| !tensor.name.as_deref().is_some_and(|name| names.contains(name)));
        self.retain_inputs(&mut graph);
        graph.input.extend(self.weights.iter().map(initializer::as_input));
        self.portable(graph)
    }

    /// The graph as an ONNX file for onnxruntime. Weight number `i` is at `places[i]`. Repeated names of nodes are removed:
    /// onnxruntime refuses them.
    ///
    /// # Errors
    /// As [`encode_for_rten`](Self::encode_for_rten).
    ///
    /// # Panics
    /// When the number of places is not the number of weights.
    pub fn encode_with_weights_at(&self, places: &[WeightPlace]) -> Result<Vec<u8>> {
        assert_eq!(places.len(), self.weights.len(), "one place per weight");
        let mut graph = self.graph().clone();
        initializer::place(&mut graph, &self.weights, places);
        self.retain_inputs(&mut graph);
        self.portable(graph)
    }

    /// Old files list constants as inputs.
    fn retain_inputs(&self, graph: &mut GraphProto) {
        let is_input = |input: &ValueInfoProto| self.inputs.iter().any(|port| input.name.as_ref() == Some(&port.name));
        graph.input.retain(is_input);
    }

    /// A form of this graph as a file that onnxruntime reads.
    fn portable(&self, mut graph: GraphProto) -> Result<Vec<u8>> {
        name_nodes_once(&mut graph);
        let model = ModelProto {
            // From this version on, constants are not inputs.
            ir_version: Some(self.model.ir_version.unwrap_or_default().max(IR_VERSION_MIN)),
            graph: Some(graph),
            opset_import: self.model.opset_import.clone(),
            ..ModelProto::default()
        };
        let encoded = model.write_buf().map_err(|error| Error::corrupt(error.to_string()).in_file(&self.path))?;
        wire::name_graphs(&encoded).ok_or_else(|| Error::corrupt("not a model").in_file(&self.path))
    }

    /// A product by codes whose tensors are not constants, so that reading the graph did not check that they fit its attributes.
    pub fn unchecked_product(&self) -> Option<String> {
        coded_product::unchecked(self.graph())
    }

    /// The imported operator sets: domain (empty for ONNX's own) and version.
    pub fn operator_sets(&self) -> Vec<(String, u32)> {
        let sets = self.model.opset_import.iter().map(|set| {
            let version = u32::try_from(set.version.unwrap_or_default()).unwrap_or_default();
            (normal_domain(set.domain.as_deref()).to_owned(), version)
        });
        sets.collect()
    }

    /// Makes loading convert `float16` and `float64` weights to `float32`, for an engine that computes with nothing
    /// else. The converted weights are shared like any others.
    pub fn widen(&mut self) {
        for weight in self.weights.iter_mut().filter(|weight| matches!(weight.dtype, DType::F16 | DType::F64)) {
            weight.dtype = DType::F32;
        }
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        casts::drop(graph, &self.weights);
        initializer::detach(graph, &self.weights);
    }

    pub(super) fn graph(&self) -> &GraphProto {
        self.model.graph.as_ref().expect("an opened model has a graph")
    }
}

fn name_nodes_once(graph: &mut GraphProto) {
    let mut names = HashSet::new();
    for node in &mut graph.node {
        node.name = node.name.take().filter(|name| names.insert(name.clone()));
        node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()).for_each(name_nodes_once);
    }
}

/// Only initializers of the main graph may name other files: an engine must not open files itself.
fn refuse_nested_external_data(graph: &GraphProto) -> Result<()> {
    let mut found = None;
    visit_nodes(graph, &mut |node| {
        for attribute in &node.attribute {
            let inner = attribute.g.iter().flat_map(|graph| &graph.initializer);
            if inner.chain(&attribute.t).any(|tensor| tensor.data_location == Some(DataLocation::EXTERNAL)) {
                found = Some(node.name.clone().unwrap_or_default());
            }
        }
    });
    match found {
        Some(node) => {
            Err(Error::unsupported("external data inside a node is not supported").in_field(format!("node {node:?}")))
        }
        None => Ok(()),
    }
}
