//! Small ONNX files and stores for the tests of graphs and engines.

use cotensor_core::{ContentHash, DerivedFiles, Hold, Result};
use cotensor_model::engine::{self, Engine, EngineOptions, FileMode, LoadedGraph, RtenEngine};
use cotensor_model::graph::{Graph, open_graph};
use cotensor_model::tensor::{Array, TensorRef};
use cotensor_model::weights::{HashedWeights, LoadedWeights, load_weights};
use cotensor_store::{LocalStore, Store};
use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataLocation, DataType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor,
    ValueInfoProto,
};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows and columns of the test model's weight; 4 KiB of `float32`.
pub(crate) const SIZE: usize = 32;

pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// `count` numbers that look like noise in -1..1 and are always the same.
pub(crate) fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

pub(crate) fn raw_tensor(name: &str, dtype: DataType, dims: &[i64], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(dtype),
        raw_data: Some(RefCell::new(bytes)),
        ..TensorProto::default()
    }
}

pub(crate) fn f32_tensor(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    raw_tensor(name, DataType::FLOAT, dims, f32_bytes(values))
}

/// An initializer whose bytes are in another file.
pub(crate) fn external_tensor(name: &str, dims: &[i64], entries: &[(&str, &str)]) -> TensorProto {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(DataType::FLOAT),
        data_location: Some(DataLocation::EXTERNAL),
        external_data: entries.iter().map(entry).collect(),
        ..TensorProto::default()
    }
}

pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(format!("{op} node")),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: outputs.iter().map(|&name| name.to_owned()).collect(),
        attribute: attributes,
        ..NodeProto::default()
    }
}

pub(crate) fn int_attribute(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        r#type: Some(AttributeType::INT),
        ..AttributeProto::default()
    }
}

pub(crate) fn string_attribute(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        s: Some(value.to_owned()),
        r#type: Some(AttributeType::STRING),
        ..AttributeProto::default()
    }
}

/// A `None` dimension may vary.
pub(crate) fn value(name: &str, dtype: DataType, dims: &[Option<i64>]) -> ValueInfoProto {
    let dim = |&dim: &Option<i64>| match dim {
        Some(size) => Dimension { dim_value: Some(size), dim_param: None },
        None => Dimension { dim_value: None, dim_param: Some("n".to_owned()) },
    };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            tensor_type: Some(TypeProtoTensor {
                elem_type: Some(dtype),
                shape: Some(TensorShapeProto { dim: dims.iter().map(dim).collect() }),
            }),
            sequence: None,
        }),
    }
}

pub(crate) fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// `y = softmax(relu(x · w + b))`, x and y [n, SIZE].
pub(crate) fn linear(weight: TensorProto) -> GraphProto {
    let name = weight.name.clone().unwrap();
    GraphProto {
        node: vec![
            node("MatMul", &["x", &name], &["product"], vec![]),
            node("Add", &["product", "b"], &["sum"], vec![]),
            node("Relu", &["sum"], &["positive"], vec![]),
            node("Softmax", &["positive"], &["y"], vec![int_attribute("axis", -1)]),
        ],
        initializer: vec![weight, f32_tensor("b", &[SIZE as i64], &noise(SIZE, 2))],
        input: vec![value("x", DataType::FLOAT, &[None, Some(SIZE as i64)])],
        output: vec![value("y", DataType::FLOAT, &[None, Some(SIZE as i64)])],
        value_info: vec![],
    }
}

/// [`linear`] with its weight inside the file.
pub(crate) fn embedded_linear() -> ModelProto {
    model(linear(f32_tensor("w", &[SIZE as i64, SIZE as i64], &noise(SIZE * SIZE, 1))))
}

/// [`linear`] with its weight in `weights.data`, as given by `entries`.
pub(crate) fn external_linear(entries: &[(&str, &str)]) -> ModelProto {
    model(linear(external_tensor("w", &[SIZE as i64, SIZE as i64], entries)))
}

pub(crate) fn save(folder: &Path, name: &str, model: &ModelProto) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, model.write_buf().unwrap()).unwrap();
    path
}

pub(crate) fn store() -> Arc<LocalStore> {
    LocalStore::builder().build()
}

pub(crate) fn weights(graph: &Graph, store: &dyn Store) -> LoadedWeights {
    load_weights(graph, store, &store.holder("test"), "test").unwrap()
}

/// The engines of this build that can be used on this machine. An engine whose library is missing is skipped, unless
/// ORT_DYLIB_PATH names the library.
pub(crate) fn engines() -> Vec<Arc<dyn Engine>> {
    let derived = Arc::new(TemporaryFiles(tempfile::tempdir().unwrap()));
    let options = EngineOptions { threads: Some(1), derived: Some(derived) };
    let opened = engine::names().filter_map(|name| match engine::open(name, options.clone()) {
        Ok(engine) => Some(engine),
        Err(error) => {
            assert!(std::env::var_os("ORT_DYLIB_PATH").is_none(), "{error}");
            println!("skipped: {name}: {error}");
            None
        }
    });
    let engines: Vec<_> = opened.collect();
    assert!(engines.iter().any(|engine| engine.name() == RtenEngine::NAME));
    engines
}

/// Opens the graph over `store`.
pub(crate) fn load(path: &Path, store: &dyn Store) -> Arc<dyn LoadedGraph> {
    load_on(&RtenEngine::new(Some(1)), path, store)
}

/// Opens the graph on `engine` over `store`, as a runtime does.
pub(crate) fn load_on(engine: &dyn Engine, path: &Path, store: &dyn Store) -> Arc<dyn LoadedGraph> {
    load_graph(engine, &open_for(engine, path), store)
}

/// Loads the graph on `engine` over `store`, as a runtime does.
pub(crate) fn load_graph(engine: &dyn Engine, graph: &Graph, store: &dyn Store) -> Arc<dyn LoadedGraph> {
    let weights = HashedWeights::of(graph, store).unwrap();
    engine
        .load_derived(graph, &weights, &graph.fingerprint(weights.hashes()))
        .ok()
        .flatten()
        .unwrap_or_else(|| engine.load(graph, weights.lease(&store.holder("test"), "test").unwrap()).unwrap())
}

/// Derived files in a folder of one process.
pub(crate) struct TemporaryFiles(pub(crate) tempfile::TempDir);

impl DerivedFiles for TemporaryFiles {
    fn find_files(&self, key: &ContentHash) -> Option<PathBuf> {
        Some(self.0.path().join(key.to_string())).filter(|folder| folder.is_dir())
    }

    fn hold_files(&self, key: &ContentHash) -> Option<Hold> {
        self.find_files(key).map(|_| Box::new(()) as Hold)
    }

    fn remove_files(&self, key: &ContentHash) {
        std::fs::remove_dir_all(self.0.path().join(key.to_string())).unwrap();
    }

    fn make_files(&self, key: &ContentHash, fill: &mut dyn FnMut(&Path) -> Result<()>) -> Result<PathBuf> {
        if let Some(folder) = self.find_files(key) {
            return Ok(folder);
        }
        let folder = self.0.path().join(key.to_string());
        std::fs::create_dir(&folder).unwrap();
        fill(&folder)?;
        Ok(folder)
    }
}

pub(crate) fn open_for(engine: &dyn Engine, path: &Path) -> Graph {
    let mut graph = open_graph(path).unwrap();
    engine.capabilities().fit(&mut graph);
    graph
}

/// Opens the graph as the engine does by itself.
pub(crate) fn load_plain(path: &Path) -> Arc<dyn LoadedGraph> {
    RtenEngine::new(Some(1)).plain().load_file(path, FileMode::Read).unwrap()
}

/// Runs [`linear`] on two rows.
pub(crate) fn run_linear(graph: &dyn LoadedGraph) -> Array {
    let x = noise(2 * SIZE, 3);
    graph.run_alone(&[("x", TensorRef::f32(&[2, SIZE], &x).unwrap())], &["y"]).unwrap().remove(0)
}
