//! ONNX graphs: what they compute, which weights they need, and where those lie.
//!
//! Opening a graph reads its structure only. Weights stay in their files until a store has memory for them.

mod cut;
mod encoder;
mod external;
mod fingerprint;
mod initializer;
mod limits;
mod shapes;
mod transpose;
mod wire;

pub use encoder::EncoderSize;
pub use limits::{
    DEPTH_MAX, FIELDS_MAX, FILE_BYTES_MAX, INITIALIZERS_MAX, MADE_ELEMENTS_MAX, NODES_MAX, PRIVATE_BYTES_MAX,
    SHARED_BYTES_MIN, STRUCTURE_BYTES_MAX,
};

use cotensor_core::{ContentHash, DType, Error, Result};
use rten_onnx::onnx::{AttributeProto, DataLocation, DataType, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

/// A graph whose large weights are not loaded.
pub struct Graph {
    path: PathBuf,
    /// Every weight's initializer names `<index>.data` as its external file; all other constants are inside.
    model: ModelProto,
    weights: Vec<Weight>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    structure_hash: ContentHash,
}

/// An initializer that is large enough to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The initializer's name.
    pub name: String,
    /// Element type in the store: one that engines use in place.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// Where the elements come from.
    pub source: WeightSource,
}

/// Bytes of a file: row-major, little-endian elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSource {
    /// The graph's own file or one beside it; symbolic links resolved.
    pub file: PathBuf,
    /// From the start of the file, in bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    /// Element type in the file; where it is not the weight's, the elements are converted once, while filling.
    pub dtype: DType,
    /// Where the weight is a transposed copy of what the file holds: the file's dimension that each dimension of the weight is.
    pub permutation: Option<Vec<usize>>,
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type, where the graph says it.
    pub dtype: Option<DType>,
    /// Its dimensions, where the graph says them; `None` for one that may vary.
    pub dims: Option<Vec<Option<usize>>>,
}

impl Weight {
    /// Bytes that the elements fill in the store.
    pub fn size_bytes(&self) -> usize {
        // Checked against TENSOR_BYTES_MAX when the graph was opened.
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }
}

impl Graph {
    /// Opens an ONNX file. External data is looked up, not read.
    ///
    /// # Errors
    /// `NotFound` without the file or the external data, `Corrupt` for bytes that are no such file or that disagree
    /// with themselves, `Unsupported` for parts of ONNX that nothing here understands, `Invalid` for external data outside the folder.
    /// Errors name the file and, where there is one, the initializer.
    pub fn open(path: &Path) -> Result<Self> {
        let open = || {
            // Asked before opening: opening a pipe would wait for its writer.
            if !path.metadata().map_err(|error| Error::io("opening", &error))?.is_file() {
                return Err(Error::invalid("not a regular file"));
            }
            let file = File::open(path).map_err(|error| Error::io("opening", &error))?;
            Self::read(BufReader::new(file), path)
        };
        open().map_err(|error| error.in_file(path))
    }

    /// Reads an ONNX file from `reader`; `path` says where it lies and where its external data is to be found.
    ///
    /// # Errors
    /// As [`Graph::open`].
    pub fn read(mut reader: impl Read + Seek, path: &Path) -> Result<Self> {
        let structure = wire::read_structure(&mut reader)?;
        let structure_hash = ContentHash::of(&structure.proto);
        let mut model = ModelProto::parse_buf(&structure.proto).map_err(|error| Error::corrupt(error.to_string()))?;
        if model.opset_import.is_empty() {
            return Err(Error::corrupt("no operator set is imported").in_field("opset_import"));
        }
        let graph = model.graph.as_mut().ok_or_else(|| Error::corrupt("there is no graph in it").in_field("graph"))?;

        let (names, mut weights) = initializer::collect(graph, structure.spans, path)?;
        transpose::fold(graph, &mut weights);
        initializer::detach(graph, &weights);
        refuse_nested_external_data(graph)?;
        shapes::refuse_enormous(graph)?;

        let ports = |values: &[ValueInfoProto]| values.iter().map(port).collect::<Result<Vec<_>>>();
        let mut inputs = ports(&graph.input)?;
        // Before version 4 of the format, initializers were listed as inputs, too.
        inputs.retain(|input| !names.contains(&input.name));
        let outputs = ports(&graph.output)?;
        Ok(Self { path: path.to_path_buf(), model, weights, inputs, outputs, structure_hash })
    }

    /// The file it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The weights, in the order in which an engine wants them.
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

    /// The operators it needs, subgraphs included: `MatMul`, or `domain::Name` outside ONNX's own domain.
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

    /// What the graph computes, given the content hash of each of [`weights`](Graph::weights), in order. Internal names, the order
    /// of initializers and documentation do not matter; operators, attributes, constants and how they are connected do,
    /// and so do the names and the order of inputs and outputs.
    ///
    /// # Panics
    /// When there is not one hash for each weight.
    pub fn fingerprint(&self, weights: &[ContentHash]) -> ContentHash {
        assert_eq!(weights.len(), self.weights.len(), "one content hash per weight");
        fingerprint::fingerprint(self, weights)
    }

    /// Identity of the file's bytes except for its large tensors.
    pub(crate) fn structure_hash(&self) -> ContentHash {
        self.structure_hash
    }

    /// Calls `visit` with every node, those of subgraphs included.
    pub(crate) fn visit_nodes(&self, visit: &mut dyn FnMut(&NodeProto)) {
        visit_nodes(self.graph(), visit);
    }

    /// The graph as an ONNX file in which weight number `i` is the whole of the external file [`weight_location`]`(i)`.
    ///
    /// # Errors
    /// `Corrupt` when it cannot be encoded.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        self.model.write_buf().map_err(|error| Error::corrupt(error.to_string()).in_file(&self.path))
    }

    fn graph(&self) -> &GraphProto {
        self.model.graph.as_ref().expect("a graph without its graph is not opened")
    }
}

/// The external file that stands for weight number `index` in [`Graph::encode`].
pub(crate) fn weight_location(index: usize) -> String {
    format!("{index}.data")
}

/// Only the main graph's initializers may name other files: an engine must not open any on its own.
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

fn visit_nodes(graph: &GraphProto, visit: &mut dyn FnMut(&NodeProto)) {
    for node in &graph.node {
        visit(node);
        for subgraph in node.attribute.iter().filter_map(|attribute: &AttributeProto| attribute.g.as_ref()) {
            visit_nodes(subgraph, visit);
        }
    }
}

fn port(value: &ValueInfoProto) -> Result<Port> {
    let name = value.name.clone().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Error::corrupt("an input or output has no name").in_field("graph"))?;
    let tensor = value.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    let dtype = tensor.and_then(|tensor| tensor.elem_type).map(|dtype| dtype_of(Some(dtype))).transpose();
    let dtype = dtype.map_err(|error| error.in_field(&name))?;
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let fixed = |value: Option<i64>| value.and_then(|value| usize::try_from(value).ok());
    let dims = shape.map(|shape| shape.dim.iter().map(|dim| fixed(dim.dim_value)).collect());
    Ok(Port { name, dtype, dims })
}

fn dtype_of(dtype: Option<DataType>) -> Result<DType> {
    Ok(match dtype.ok_or_else(|| Error::corrupt("the element type is missing"))? {
        DataType::FLOAT => DType::F32,
        DataType::UINT8 => DType::U8,
        DataType::INT8 => DType::I8,
        DataType::UINT16 => DType::U16,
        DataType::INT16 => DType::I16,
        DataType::INT32 => DType::I32,
        DataType::INT64 => DType::I64,
        DataType::BOOL => DType::Bool,
        DataType::FLOAT16 => DType::F16,
        DataType::DOUBLE => DType::F64,
        DataType::UINT32 => DType::U32,
        DataType::UINT64 => DType::U64,
        DataType::BFLOAT16 => DType::BF16,
        other => return Err(Error::unsupported(format!("element type {other} is not supported"))),
    })
}

/// The domain of ONNX's own operators has two spellings.
fn normal_domain(domain: Option<&str>) -> &str {
    match domain {
        None | Some("ai.onnx") => "",
        Some(other) => other,
    }
}
