//! Damaged and hostile files: each gives an error with the name of the file, without a panic.

use crate::support::onnx::*;
use cotensor_core::{Error, ErrorKind};
use cotensor_model::engine::Engine;
use cotensor_model::graph::{DEPTH_MAX, Graph, open_graph, read_graph};
use cotensor_model::tensor::TensorRef;
use cotensor_model::weights::load_weights;
use cotensor_store::{StoreReports, TensorStore};
use rten_onnx::onnx::{AttributeProto, DataType, GraphProto, ModelProto, TensorProto, TypeProto, TypeProtoSequence};
use std::path::Path;

const DIMS: [i64; 2] = [SIZE as i64, SIZE as i64];
const WEIGHT_BYTES: usize = SIZE * SIZE * 4;

/// Opens, loads and runs the file on every engine.
fn use_file(path: &Path) -> Result<(), Error> {
    open_graph(path)?;
    // Each engine gets the file, even if another one refuses it.
    let used: Vec<_> = engines().iter().map(|engine| use_on(&**engine, path)).collect();
    used.into_iter().collect()
}

fn use_on(engine: &dyn Engine, path: &Path) -> Result<(), Error> {
    let graph = open_graph(path)?;
    let store = store();
    let weights = load_weights(&graph, &*store, &store.holder("test"), "test")?;
    let loaded = engine.load(&graph, weights.leases)?;
    let outputs: Vec<_> = loaded.outputs().iter().map(|port| port.name.as_str()).collect();
    let x = noise(SIZE, 3);
    loaded.run_alone(&[("x", TensorRef::f32(&[1, SIZE], &x)?)], &outputs).map(drop)
}

fn open_error(model: &ModelProto) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", model);
    let error = open_graph(&path).map(drop).unwrap_err();
    assert_eq!(error.file(), Some(path.as_path()), "{error}");
    error
}

fn with_weight(weight: TensorProto) -> ModelProto {
    model(linear(weight))
}

#[test]
fn every_prefix_of_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = embedded_linear().write_buf().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, &bytes).unwrap();
    use_file(&path).unwrap();
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let error = use_file(&path).expect_err(&format!("the first {len} of {} bytes", bytes.len()));
        assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(path.as_path())), "{len}: {error}");
    }
}

#[test]
fn no_flipped_bit_panics() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = embedded_linear().write_buf().unwrap();
    let path = folder.path().join("model.onnx");
    let graph = open_graph(&save(folder.path(), "good.onnx", &embedded_linear())).unwrap();
    let weight = graph.weights()[0].source.offset as usize;
    let mut refused = 0;
    // A flipped bit of the weight only changes a number.
    for index in (0..weight).chain(weight + WEIGHT_BYTES..bytes.len()) {
        for bit in [0, 3, 7] {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1 << bit;
            std::fs::write(&path, &damaged).unwrap();
            refused += usize::from(use_file(&path).is_err());
        }
    }
    assert!(refused > 100, "only {refused} damaged files were refused");
}

#[test]
fn files_of_other_formats_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = open_graph(&folder.path().join("none.onnx")).map(drop).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(open_graph(folder.path()).map(drop).unwrap_err().kind(), ErrorKind::Invalid);
    let path = folder.path().join("model.onnx");
    for bytes in
        [&b""[..], b"not a model", &[0xff; 64], &[0x08], &[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]]
    {
        std::fs::write(&path, bytes).unwrap();
        let error = open_graph(&path).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(path.as_path())), "{bytes:?}: {error}");
    }
    let mut twice = embedded_linear().write_buf().unwrap();
    twice.extend(twice.clone());
    std::fs::write(&path, &twice).unwrap();
    assert_eq!(open_graph(&path).map(drop).unwrap_err().kind(), ErrorKind::Corrupt);
}

fn nested_branches(depth: usize) -> ModelProto {
    let leaf = GraphProto { node: vec![node("Identity", &["x"], &["y"], vec![])], ..GraphProto::default() };
    let graph = (0..depth).fold(leaf, |inner, _| {
        let branch =
            AttributeProto { name: Some("then_branch".to_owned()), g: Some(inner), ..AttributeProto::default() };
        GraphProto { node: vec![node("If", &["x"], &["y"], vec![branch])], ..GraphProto::default() }
    });
    model(graph)
}

#[test]
fn nesting_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    assert!(open_graph(&save(folder.path(), "model.onnx", &nested_branches(DEPTH_MAX - 1))).is_ok());
    for depth in [DEPTH_MAX + 2, 200] {
        let error = open_error(&nested_branches(depth));
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("nested"), "{error}");
    }
    let mut kind = TypeProto::default();
    for _ in 0..200 {
        kind = TypeProto { tensor_type: None, sequence: Some(Box::new(TypeProtoSequence { elem_type: Some(kind) })) };
    }
    let mut sequences = embedded_linear();
    sequences.graph.as_mut().unwrap().input[0].r#type = Some(kind);
    assert!(open_error(&sequences).message().contains("nested"));
}

/// Wraps `bytes` as field `number` of a protobuf message.
fn wrapped(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        message.push(len as u8 | 0x80);
        len >>= 7;
    }
    message.push(len as u8);
    message.extend_from_slice(bytes);
    message
}

/// Found by fuzzing: a string with a length of 2^56 bytes. The parser would allocate them.
#[test]
fn lengths_are_checked_in_the_smallest_messages() {
    let long_string = [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let in_operator_set = wrapped(8, &long_string);
    let dimension = wrapped(1, &long_string.map(|byte| if byte == 0x0a { 0x12 } else { byte }));
    let in_dimension = wrapped(7, &wrapped(11, &wrapped(2, &wrapped(1, &wrapped(2, &dimension)))));
    let in_external_data = wrapped(7, &wrapped(5, &wrapped(13, &long_string)));
    for bytes in [in_operator_set, in_dimension, in_external_data] {
        let error = read_graph(std::io::Cursor::new(&bytes), Path::new("x.onnx")).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("longer than"), "{error}");
    }
}

/// Found by fuzzing: the parser would loop on the last number.
#[test]
fn truncated_packed_numbers_are_refused() {
    let in_tensor = |field: u8, bytes: &[u8]| wrapped(7, &wrapped(5, &wrapped(field, bytes)));
    let in_attribute = |field: u8, bytes: &[u8]| wrapped(7, &wrapped(1, &wrapped(5, &wrapped(field, bytes))));
    for bytes in [
        in_tensor(1, &[0x80]),
        in_tensor(5, &[1, 0xff]),
        in_tensor(7, &[0xff; 11]),
        in_tensor(7, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
        in_tensor(4, &[0; 5]),
        in_tensor(10, &[0; 12]),
        in_attribute(7, &[0; 3]),
        in_attribute(8, &[2, 0x80]),
    ] {
        let error = read_graph(std::io::Cursor::new(&bytes), Path::new("x.onnx")).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn nesting_is_bounded_before_the_stack_overflows() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    // graph(7) { node(1) { attribute(5) { g(6) ... } } }; each level copies all inside it, so not too many.
    for _ in 0..3000 {
        bytes = wrapped(1, &wrapped(5, &wrapped(6, &bytes)));
    }
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, wrapped(7, &bytes)).unwrap();
    let error = open_graph(&path).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("nested"), "{error}");
}

#[test]
fn unsupported_parts_of_onnx_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let good = embedded_linear().write_buf().unwrap();
    // A field 25 of the model is its local functions.
    let functions = [good.clone(), vec![0xca, 0x01, 0x00]].concat();
    // A graph with field 15, a sparse initializer.
    let sparse = wrapped(7, &wrapped(15, &[]));
    for bytes in [functions, sparse] {
        std::fs::write(&path, bytes).unwrap();
        let error = open_graph(&path).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Unsupported, Some(path.as_path())), "{error}");
    }
    let mut nested = nested_branches(1);
    let branch = nested.graph.as_mut().unwrap().node[0].attribute[0].g.as_mut().unwrap();
    branch.initializer.push(external_tensor("w", &DIMS, &[("location", "w.data")]));
    assert_eq!(open_error(&nested).kind(), ErrorKind::Unsupported);
}

#[test]
fn hostile_shapes_are_refused() {
    let cases: [&[i64]; 6] = [
        &[-1, 32],
        &[i64::MIN, i64::MIN],
        &[i64::MAX, i64::MAX],
        &[1 << 62, 4],
        &[0, i64::MAX, i64::MAX],
        &[SIZE as i64, SIZE as i64 + 1],
    ];
    for dims in cases {
        let embedded = open_error(&with_weight(f32_tensor("w", dims, &noise(SIZE * SIZE, 1))));
        assert_eq!(
            (embedded.kind(), embedded.field()),
            (ErrorKind::Corrupt, Some("initializer \"w\"")),
            "{dims:?}: {embedded}"
        );
    }
    let many = open_error(&with_weight(f32_tensor("w", &[1; 100], &[1.0])));
    assert_eq!((many.kind(), many.field()), (ErrorKind::Corrupt, Some("initializer \"w\"")));
    let mut short = f32_tensor("w", &[2], &[1.0]);
    assert_eq!(open_error(&with_weight(short.clone())).kind(), ErrorKind::Corrupt);
    short.data_type = None;
    assert_eq!(open_error(&with_weight(short.clone())).kind(), ErrorKind::Corrupt);
    short.data_type = Some(DataType::COMPLEX64);
    assert_eq!(open_error(&with_weight(short)).kind(), ErrorKind::Unsupported);
    let mut same = embedded_linear();
    same.graph.as_mut().unwrap().initializer[1].name = Some("w".to_owned());
    assert_eq!(open_error(&same).kind(), ErrorKind::Corrupt);
}

#[test]
fn enormous_constants_are_refused_before_an_engine_folds_them() {
    let making = |op: &str, inputs: &[&str], values: &[i64]| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = raw_tensor("shape", DataType::INT64, &[values.len() as i64], bytes);
        model(GraphProto {
            node: vec![node(op, inputs, &["y"], vec![])],
            initializer: vec![shape, f32_tensor("one", &[], &[1.0])],
            output: vec![value("y", DataType::FLOAT, &[])],
            ..GraphProto::default()
        })
    };
    for (op, inputs) in
        [("ConstantOfShape", &["shape"][..]), ("Expand", &["one", "shape"]), ("Tile", &["one", "shape"])]
    {
        for values in [&[1 << 40][..], &[i64::MAX, i64::MAX], &[-5], &[0, 1 << 62]] {
            let error = open_error(&making(op, inputs, values));
            assert_eq!(
                (error.kind(), error.field()),
                (ErrorKind::Corrupt, Some(format!("node \"{op} node\"").as_str()))
            );
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &making("ConstantOfShape", &["shape"], &[2, 3]));
    let output = load(&path, &*store()).run_alone(&[], &["y"]).unwrap();
    assert_eq!(output[0].shape(), [2, 3]);
}

/// A folder with a model that names `entries`, `weights.data` of `data_bytes` bytes, and a file outside.
fn external(entries: &[(&str, &str)], data_bytes: usize) -> (tempfile::TempDir, Result<Graph, Error>) {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("model");
    std::fs::create_dir_all(inside.join("deeper")).unwrap();
    let data = vec![0; data_bytes];
    for file in ["outside.data", "model/weights.data", "model/deeper/weights.data"] {
        std::fs::write(folder.path().join(file), &data).unwrap();
    }
    std::os::unix::fs::symlink("../outside.data", inside.join("link.data")).unwrap();
    std::os::unix::fs::symlink("deeper/weights.data", inside.join("inner.data")).unwrap();
    let path = save(&inside, "model.onnx", &external_linear(entries));
    let graph = open_graph(&path);
    if let Err(error) = &graph {
        assert_eq!((error.file(), error.field()), (Some(path.as_path()), Some("initializer \"w\"")), "{error}");
    }
    (folder, graph)
}

fn external_error(entries: &[(&str, &str)], data_bytes: usize) -> ErrorKind {
    external(entries, data_bytes).1.map(drop).unwrap_err().kind()
}

#[test]
fn external_data_offset_and_length_have_defaults() {
    for entries in [
        &[("location", "weights.data")][..],
        &[("location", "./weights.data"), ("offset", "0")],
        &[("location", "deeper/weights.data"), ("length", "4096")],
        &[("location", "inner.data")],
    ] {
        let (_folder, graph) = external(entries, WEIGHT_BYTES);
        assert_eq!(graph.unwrap().weights()[0].source.offset, 0, "{entries:?}");
    }
    let (_folder, graph) =
        external(&[("location", "weights.data"), ("offset", "64"), ("checksum", "x")], WEIGHT_BYTES + 64);
    let source = graph.unwrap().weights()[0].source.clone();
    assert_eq!((source.offset, source.length), (64, WEIGHT_BYTES as u64));
}

#[test]
fn missing_or_short_external_data_is_refused() {
    assert_eq!(external_error(&[("location", "none.data")], WEIGHT_BYTES), ErrorKind::NotFound);
    assert_eq!(external_error(&[], WEIGHT_BYTES), ErrorKind::Corrupt);
    for entries in [
        &[("location", "weights.data"), ("offset", "1")][..],
        &[("location", "weights.data"), ("offset", "18446744073709551615")],
        &[("location", "weights.data"), ("offset", "-1")],
        &[("location", "weights.data"), ("length", "4092")],
        &[("location", "weights.data"), ("length", "99999999999999999999")],
        &[("location", "weights.data"), ("length", "many")],
    ] {
        assert_eq!(external_error(entries, WEIGHT_BYTES), ErrorKind::Corrupt, "{entries:?}");
    }
    assert_eq!(external_error(&[("location", "weights.data")], WEIGHT_BYTES - 1), ErrorKind::Corrupt);
}

#[test]
fn external_data_stays_inside_the_folder() {
    for location in ["../outside.data", "/etc/passwd", "deeper/../../outside.data", "link.data", "", "deeper"] {
        assert_eq!(external_error(&[("location", location)], WEIGHT_BYTES), ErrorKind::Invalid, "{location}");
    }
}

#[test]
fn hub_cache_with_linked_graph_and_data_loads() {
    let folder = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (folder.path().join("blobs"), folder.path().join("snapshots/1"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    save(&blobs, "aaaa", &external_linear(&[("location", "model.onnx_data")]));
    std::fs::write(blobs.join("bbbb"), f32_bytes(&noise(SIZE * SIZE, 1))).unwrap();
    for (name, blob) in [("model.onnx", "aaaa"), ("model.onnx_data", "bbbb")] {
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    let linked = run_linear(&*load(&snapshot.join("model.onnx"), &*store()));
    let plain = run_linear(&*load_plain(&save(folder.path(), "plain.onnx", &embedded_linear())));
    assert_eq!(linked, plain);
}

/// `huggingface_hub` keeps a file that several models have in `blobs/` of the whole cache.
#[test]
fn blobs_that_models_of_a_hub_cache_share_load() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let cache = tempfile::tempdir().unwrap();
    let model = cache.path().join("models--owner--name");
    let snapshot = model.join("snapshots").join(commit).join("onnx");
    let folders = [cache.path().join("blobs/aa"), cache.path().join("blobs/bb"), model.join("blobs"), snapshot.clone()];
    folders.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    save(&folders[0], "aaaa", &external_linear(&[("location", "model.onnx_data")]));
    std::fs::write(folders[1].join("bbbb"), f32_bytes(&noise(SIZE * SIZE, 1))).unwrap();
    for (name, blob) in [("model.onnx", "aa/aaaa"), ("model.onnx_data", "bb/bbbb")] {
        let own = model.join("blobs").join(&blob[3..]);
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), &own).unwrap();
        std::os::unix::fs::symlink(format!("../../../blobs/{}", &blob[3..]), snapshot.join(name)).unwrap();
    }
    let linked = run_linear(&*load(&snapshot.join("model.onnx"), &*store()));
    let plain = run_linear(&*load_plain(&save(cache.path(), "plain.onnx", &embedded_linear())));
    assert_eq!(linked, plain);
    // A link out of the cache is not a blob.
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("x"), f32_bytes(&noise(SIZE * SIZE, 1))).unwrap();
    std::fs::remove_file(snapshot.join("model.onnx_data")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("x"), snapshot.join("model.onnx_data")).unwrap();
    assert_eq!(open_graph(&snapshot.join("model.onnx")).map(drop).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn data_that_shrinks_after_opening_is_a_conflict() {
    let (folder, graph) = external(&[("location", "weights.data")], WEIGHT_BYTES);
    let data = folder.path().join("model/weights.data");
    std::fs::write(&data, [0; 100]).unwrap();
    let store = store();
    let error = load_weights(&graph.unwrap(), &*store, &store.holder("test"), "test").map(drop).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Conflict, Some(data.canonicalize().unwrap().as_path())));
    assert_eq!(store.stats().memory_usage_bytes, 0);
}
