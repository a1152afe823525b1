//! The engine over a store: results equal to the engine alone, shared weights, refused inputs.

use crate::support::onnx::*;
use cotensor_core::testing::FakeDevice;
use cotensor_core::{DType, Device, ErrorKind};
use cotensor_model::engine::{Engine, FileMode, RtenEngine};
use cotensor_model::graph::{Graph, open_graph};
use cotensor_model::tensor::{Array, TensorRef};
use cotensor_store::{CopyReason, LocalStore, StoreReports, TensorSpec, TensorStore};
use rten_onnx::onnx::{DataType, GraphProto, ModelProto};
use std::path::Path;
use std::sync::Arc;

fn imported_bytes(store: &LocalStore) -> u64 {
    let copies = store.diagnostics().copies;
    copies.iter().find(|copies| copies.reason == CopyReason::FileImport.name()).map_or(0, |copies| copies.bytes)
}

#[test]
fn results_equal_those_of_the_engine_without_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &embedded_linear());
    let mut first: Option<Vec<f32>> = None;
    for engine in engines() {
        let shared = run_linear(&*load_on(&*engine, &path, &*store()));
        assert_eq!(shared.shape(), [2, SIZE]);
        let values = shared.as_f32().unwrap();
        let sum: f32 = values[..SIZE].iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "a softmax sums to one, not {sum}");
        let plain: Arc<dyn Engine> = match engine.name() {
            RtenEngine::NAME => Arc::new(RtenEngine::new(Some(1)).plain()),
            _ => Arc::clone(&engine),
        };
        let modes = [(&engine, FileMode::Read), (&plain, FileMode::Read), (&plain, FileMode::Map)];
        for (engine, mode) in modes {
            let alone = run_linear(&*engine.load_file(&path, mode).unwrap());
            // onnxruntime uses other kernels for weights that it copies.
            let tolerance = if engine.name() == RtenEngine::NAME { 0.0 } else { 1e-6 };
            assert!(close(alone.as_f32().unwrap(), values, tolerance), "{} {mode:?}", engine.name());
        }
        // All engines agree.
        assert!(close(first.get_or_insert_with(|| values.to_vec()), values, 1e-6), "{}", engine.name());
    }
}

/// The file is sparse: its first 3 GiB take no room.
#[test]
fn weights_beyond_two_gigabytes_are_read() {
    use std::os::unix::fs::FileExt;
    const OFFSET: u64 = 3 << 30;
    let folder = tempfile::tempdir().unwrap();
    let embedded = save(folder.path(), "embedded.onnx", &embedded_linear());
    let (offset, length) = (OFFSET.to_string(), (SIZE * SIZE * 4).to_string());
    let external = external_linear(&[("location", "weights.data"), ("offset", &offset), ("length", &length)]);
    let external = save(folder.path(), "external.onnx", &external);
    let bytes: Vec<u8> = noise(SIZE * SIZE, 1).iter().flat_map(|value| value.to_le_bytes()).collect();
    let file = std::fs::File::create(folder.path().join("weights.data")).unwrap();
    file.write_all_at(&bytes, OFFSET).unwrap();
    for engine in engines() {
        let run = |path: &Path| run_linear(&*load_on(&*engine, path, &*store()));
        assert_eq!(run(&external), run(&embedded), "{}", engine.name());
    }
    // One byte less than the weight needs.
    file.set_len(OFFSET + bytes.len() as u64 - 1).unwrap();
    let error = open_graph(&external).err().unwrap();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some("initializer \"w\"")), "{error}");
}

fn close(given: &[f32], expected: &[f32], tolerance: f32) -> bool {
    given.len() == expected.len() && given.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance)
}

#[test]
fn outputs_outlive_the_graph_and_the_store() {
    for engine in engines() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), "model.onnx", &embedded_linear());
        let expected = run_linear(&*load_on(&*engine, &path, &*store()));
        let store = store();
        let graph = load_on(&*engine, &path, &*store);
        drop(folder);
        let output = run_linear(&*graph);
        drop((graph, store));
        assert_eq!(output, expected);
    }
}

/// An output that is a constant of the graph is a copy, too.
#[test]
fn constant_output_outlives_the_graph() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded_linear();
    model.graph.as_mut().unwrap().output.push(value("w", DataType::FLOAT, &[None, None]));
    let path = save(folder.path(), "model.onnx", &model);
    for engine in engines() {
        let store = store();
        let graph = load_on(&*engine, &path, &*store);
        let x = noise(SIZE, 3);
        let output = graph.run_alone(&[("x", TensorRef::f32(&[1, SIZE], &x).unwrap())], &["w"]).unwrap().remove(0);
        drop((graph, store));
        assert_eq!(output.as_f32().unwrap(), noise(SIZE * SIZE, 1));
    }
}

#[test]
fn two_loads_share_one_copy_of_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &embedded_linear());
    for engine in engines() {
        let store = store();
        let first = open_graph(&path).unwrap();
        let leases = weights(&first, &*store).leases;
        let address = leases[0].bytes().unwrap().as_ptr();
        let imported = imported_bytes(&store);
        assert_eq!(imported, (SIZE * SIZE * 4) as u64);
        // The same content in another file, with other names and as external data.
        let mut other = external_linear(&[("location", "weights.data")]);
        let graph = other.graph.as_mut().unwrap();
        graph.initializer[0].name = Some("kernel".to_owned());
        graph.node[0].input[1] = "kernel".to_owned();
        std::fs::write(folder.path().join("weights.data"), f32_bytes(&noise(SIZE * SIZE, 1))).unwrap();
        let second = open_graph(&save(folder.path(), "other.onnx", &other)).unwrap();
        let loaded = weights(&second, &*store);
        assert_eq!(loaded.leases[0].bytes().unwrap().as_ptr(), address);
        assert_eq!(imported_bytes(&store), imported);
        let [first, second] =
            [(first, leases), (second, loaded.leases)].map(|(graph, leases)| engine.load(&graph, leases).unwrap());
        assert_eq!(run_linear(&*first), run_linear(&*second));
    }
}

/// Optimizations of the graph read the true weights: an engine that folds a constant uses the weight's elements.
#[test]
fn constants_computed_from_weights_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded_linear();
    let graph = model.graph.as_mut().unwrap();
    graph.node[0].input[1] = "doubled".to_owned();
    graph.node.insert(0, node("Add", &["w", "w"], &["doubled"], vec![]));
    let path = save(folder.path(), "folded.onnx", &model);
    let mut doubled = embedded_linear();
    let weight = noise(SIZE * SIZE, 1).iter().map(|value| 2.0 * value).collect::<Vec<_>>();
    doubled.graph.as_mut().unwrap().initializer[0] = f32_tensor("w", &[SIZE as i64, SIZE as i64], &weight);
    let reference = save(folder.path(), "doubled.onnx", &doubled);
    for engine in engines() {
        let [given, expected] = [&path, &reference].map(|path| run_linear(&*load_on(&*engine, path, &*store())));
        assert!(close(given.as_f32().unwrap(), expected.as_f32().unwrap(), 1e-6), "{}", engine.name());
    }
}

/// Several threads run one graph at a time.
#[test]
fn concurrent_runs_give_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &embedded_linear());
    for engine in engines() {
        let graph = load_on(&*engine, &path, &*store());
        let expected = run_linear(&*graph);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| assert_eq!(run_linear(&*graph), expected)));
            }
        });
    }
}

#[test]
fn mismatched_inputs_and_outputs_are_refused_by_name() {
    engines().iter().for_each(|engine| refuses_mismatches(&**engine));
}

fn refuses_mismatches(engine: &dyn Engine) {
    let folder = tempfile::tempdir().unwrap();
    let graph = load_on(engine, &save(folder.path(), "model.onnx", &embedded_linear()), &*store());
    let (floats, ints) = (noise(2 * SIZE, 3), vec![0i64; SIZE]);
    assert!(TensorRef::f32(&[3, SIZE], &floats).is_err(), "too few elements");
    let good = ("x", TensorRef::f32(&[2, SIZE], &floats).unwrap());
    type Case<'a> = (&'a str, Vec<(&'a str, TensorRef<'a>)>, &'a [&'a str]);
    let cases: Vec<Case<'_>> = vec![
        ("x", vec![("x", TensorRef::i64(&[1, SIZE], &ints).unwrap())], &["y"]),
        ("x", vec![("x", TensorRef::f32(&[SIZE, 2], &floats).unwrap())], &["y"]),
        ("x", vec![("x", TensorRef::f32(&[2 * SIZE], &floats).unwrap())], &["y"]),
        ("x", vec![good, good], &["y"]),
        ("x", vec![], &["y"]),
        ("z", vec![good, ("z", TensorRef::f32(&[0], &[]).unwrap())], &["y"]),
        ("z", vec![good], &["z"]),
        ("y", vec![good], &["y", "y"]),
    ];
    for (field, inputs, outputs) in cases {
        let error = graph.run_alone(&inputs, outputs).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
    }
    assert_eq!(graph.run_alone(&[good], &[]).unwrap().len(), 0);
}

#[test]
fn empty_batch_runs() {
    let folder = tempfile::tempdir().unwrap();
    for engine in engines() {
        let graph = load_on(&*engine, &save(folder.path(), "model.onnx", &embedded_linear()), &*store());
        let output = graph.run_alone(&[("x", TensorRef::f32(&[0, SIZE], &[]).unwrap())], &["y"]);
        assert_eq!(output.unwrap()[0].shape(), [0, SIZE]);
    }
}

fn resize(mode: &str) -> ModelProto {
    model(GraphProto {
        node: vec![node("Resize", &["x", "", "scales"], &["y"], vec![string_attribute("mode", mode)])],
        initializer: vec![f32_tensor("scales", &[4], &[1.0, 1.0, 2.0, 2.0])],
        input: vec![value("x", DataType::FLOAT, &[None, None, None, None])],
        output: vec![value("y", DataType::FLOAT, &[None, None, None, None])],
        value_info: vec![],
    })
}

#[test]
fn cubic_resize_is_refused_and_linear_resize_runs() {
    let folder = tempfile::tempdir().unwrap();
    let engine = RtenEngine::new(Some(1));
    let path = save(folder.path(), "cubic.onnx", &resize("cubic"));
    let graph = open_graph(&path).unwrap();
    let errors = [
        engine.load(&graph, vec![]).map(drop).unwrap_err(),
        engine.load_file(&path, FileMode::Read).map(drop).unwrap_err(),
        engine.load_file(&path, FileMode::Map).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!((error.file(), error.field()), (Some(path.as_path()), Some("node \"Resize node\"")));
    }
    let path = save(folder.path(), "linear.onnx", &resize("linear"));
    let x = [1.0, 2.0, 3.0, 4.0];
    let output =
        load(&path, &*store()).run_alone(&[("x", TensorRef::f32(&[1, 1, 2, 2], &x).unwrap())], &["y"]).unwrap();
    assert_eq!(output[0].shape(), [1, 1, 4, 4]);
}

/// A product of integers, as dynamic quantization writes it: 255 times the sum of each column of `codes`.
fn integer_product(dtype: DataType, codes: Vec<u8>) -> ModelProto {
    let dims = [SIZE as i64, SIZE as i64];
    model(GraphProto {
        node: vec![node("MatMulInteger", &["x", "codes"], &["y"], vec![])],
        initializer: vec![raw_tensor("codes", dtype, &dims, codes)],
        input: vec![value("x", DataType::UINT8, &[None, Some(SIZE as i64)])],
        output: vec![value("y", DataType::INT32, &[None, None])],
        value_info: vec![],
    })
}

/// Kernels for processors without VNNI add two products as `int16`, which saturates for weights of 8 bits.
#[test]
fn integer_products_are_exact_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let x = [255u8; SIZE];
    for (dtype, code, weight) in [
        (DataType::INT8, 127, 127),
        (DataType::INT8, 0x80, -128),
        (DataType::INT8, 63, 63),
        (DataType::UINT8, 255, 255),
        (DataType::UINT8, 1, 1),
    ] {
        let path = save(folder.path(), "model.onnx", &integer_product(dtype, vec![code; SIZE * SIZE]));
        for engine in engines() {
            let graph = open_graph(&path).unwrap();
            let graph = match engine.load(&graph, weights(&graph, &*store()).leases) {
                Ok(graph) => graph,
                Err(error) => {
                    assert_eq!((error.kind(), engine.name()), (ErrorKind::Unsupported, RtenEngine::NAME), "{error}");
                    assert!(weight != 63, "seven bits never saturate: {error}");
                    continue;
                }
            };
            let x = TensorRef::new(DType::U8, &[1, SIZE], &x).unwrap();
            let y = graph.run_alone(&[("x", x)], &["y"]).unwrap();
            let expected = vec![SIZE as i32 * 255 * weight; SIZE];
            assert_eq!(TensorRef::from(&y[0]).typed::<i32>().unwrap(), expected, "{} {dtype} {weight}", engine.name());
        }
    }
}

#[test]
fn unknown_operator_is_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = resize("linear");
    model.graph.as_mut().unwrap().node[0].op_type = Some("Teleport".to_owned());
    let graph = open_graph(&save(folder.path(), "model.onnx", &model)).unwrap();
    for engine in engines() {
        let error = engine.load(&graph, vec![]).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Unsupported, Some(graph.path())), "{error}");
        assert!(error.message().contains("Teleport"), "{error}");
    }
}

#[test]
fn weights_must_fit_the_graph_and_be_addressable() {
    let folder = tempfile::tempdir().unwrap();
    let graph = open_graph(&save(folder.path(), "model.onnx", &embedded_linear())).unwrap();
    engines().iter().for_each(|engine| refuses_other_weights(&**engine, folder.path(), &graph));
}

fn refuses_other_weights(engine: &dyn Engine, folder: &Path, graph: &Graph) {
    assert_eq!(engine.load(graph, vec![]).map(drop).unwrap_err().kind(), ErrorKind::Invalid);

    let store = store();
    let mut wrong = embedded_linear();
    let dims = [SIZE as i64 / 2, SIZE as i64];
    wrong.graph.as_mut().unwrap().initializer[0] = f32_tensor("w", &dims, &noise(SIZE * SIZE / 2, 1));
    let wrong = open_graph(&save(folder, "wrong.onnx", &wrong)).unwrap();
    let error = engine.load(graph, weights(&wrong, &*store).leases).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("w")), "{error}");

    let device = LocalStore::builder().memory(Arc::new(FakeDevice::default())).build();
    let mut spec = TensorSpec::new("w", DType::F32, &[SIZE, SIZE]);
    spec.device = Device::Fake(0);
    let lease = device.reserve(spec, &device.holder("test")).unwrap().publish().unwrap();
    let error = engine.load(graph, vec![lease]).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("w")), "{error}");
}

#[test]
fn uint8_weights_and_outputs_keep_their_type() {
    let folder = tempfile::tempdir().unwrap();
    let codes: Vec<u8> = (0..SIZE * SIZE).map(|index| (index % 256) as u8).collect();
    let dims = [SIZE as i64, SIZE as i64];
    let model = model(GraphProto {
        node: vec![node("Gather", &["codes", "rows"], &["y"], vec![int_attribute("axis", 0)])],
        initializer: vec![raw_tensor("codes", DataType::UINT8, &dims, codes.clone())],
        input: vec![value("rows", DataType::INT64, &[None])],
        output: vec![value("y", DataType::UINT8, &[None, None])],
        value_info: vec![],
    });
    let path = save(folder.path(), "model.onnx", &model);
    assert_eq!(open_graph(&path).unwrap().weights()[0].dtype, DType::U8);
    for engine in engines() {
        let graph = load_on(&*engine, &path, &*store());
        let output = graph.run_alone(&[("rows", TensorRef::i64(&[1], &[3]).unwrap())], &["y"]).unwrap();
        assert_eq!((output[0].dtype(), output[0].bytes()), (DType::U8, &codes[3 * SIZE..4 * SIZE]));
    }
}

/// Scale, zero point and integers as ONNX defines them: halves go to the even neighbour.
#[test]
fn dynamic_quantization_gives_the_integers_of_its_definition() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(GraphProto {
        node: vec![node("DynamicQuantizeLinear", &["x"], &["y", "scale", "zero"], vec![])],
        input: vec![value("x", DataType::FLOAT, &[None])],
        output: vec![
            value("y", DataType::UINT8, &[None]),
            value("scale", DataType::FLOAT, &[]),
            value("zero", DataType::UINT8, &[]),
        ],
        ..GraphProto::default()
    });
    let path = save(folder.path(), "model.onnx", &model);
    // The range of 255/8 makes the scale 1/8, a power of two, so that the quotients are exact.
    let mut values: Vec<f32> = (-115..=392).map(|sixteenth| sixteenth as f32 / 16.0).collect();
    values.extend([-7.25, 24.625]);
    let expected: Vec<u8> = values.iter().map(|value| ((value * 8.0).round_ties_even() + 58.0) as u8).collect();
    assert!(expected.contains(&0) && expected.contains(&255));
    for engine in engines() {
        let graph = load_on(&*engine, &path, &*store());
        let shape = [values.len()];
        let x = TensorRef::f32(&shape, &values).unwrap();
        let found = graph.run_alone(&[("x", x)], &["y", "scale", "zero"]).unwrap();
        assert_eq!(found[1].as_f32().unwrap(), [0.125], "{}", engine.name());
        assert_eq!(found[2].bytes(), [58], "{}", engine.name());
        assert_eq!(found[0].bytes(), expected, "{}", engine.name());
    }
}

#[test]
fn engine_version_is_the_pinned_version() {
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")).unwrap();
    let pin = format!("rten = {{ version = \"={}\"", RtenEngine::new(None).version());
    assert!(manifest.contains(&pin), "{pin} is not in the manifest");
    assert_eq!(RtenEngine::describe(), format!("rten {}", RtenEngine::new(None).version()));
}

/// A graph of `Identity` nodes, one for each type.
fn identities(dtypes: &[DataType]) -> ModelProto {
    let name = |prefix: &str, index: usize| format!("{prefix}{index}");
    let values = |prefix: &str| {
        dtypes.iter().enumerate().map(|(index, dtype)| value(&name(prefix, index), *dtype, &[None])).collect()
    };
    let copy = |index: usize| node("Identity", &[&name("x", index)], &[&name("y", index)], vec![]);
    model(GraphProto {
        node: (0..dtypes.len()).map(copy).collect(),
        input: values("x"),
        output: values("y"),
        ..GraphProto::default()
    })
}

#[test]
fn inputs_and_outputs_have_the_types_that_the_graph_declares() {
    let folder = tempfile::tempdir().unwrap();
    let types =
        [DataType::INT64, DataType::BOOL, DataType::FLOAT16, DataType::DOUBLE, DataType::INT32, DataType::FLOAT];
    let path = save(folder.path(), "model.onnx", &identities(&types));
    let arrays = [
        Array::i64([2], vec![-5, 1 << 20]),
        Array::new(DType::Bool, [2], vec![0u8, 1]),
        Array::new(DType::F16, [2], vec![0x3c00u16, 0xc000]),
        Array::new(DType::F64, [2], vec![0.5f64, -2.0]),
        Array::i32([2], vec![7, -7]),
        Array::f32([2], vec![1.5, -1.5]),
    ]
    .map(|array| array.unwrap());
    let names: Vec<(String, String)> =
        (0..arrays.len()).map(|index| (format!("x{index}"), format!("y{index}"))).collect();
    let inputs: Vec<_> =
        names.iter().zip(&arrays).map(|((x, _), array)| (x.as_str(), TensorRef::from(array))).collect();
    let outputs: Vec<_> = names.iter().map(|(_, y)| y.as_str()).collect();
    for engine in engines() {
        let graph = load_on(&*engine, &path, &*store());
        assert_eq!(
            graph.inputs().iter().map(|port| port.dtype).collect::<Vec<_>>(),
            arrays.clone().map(|a| Some(a.dtype()))
        );
        assert_eq!(graph.run_alone(&inputs, &outputs).unwrap(), arrays);
    }

    let graph = load(&path, &*store());
    // rten computes with 32-bit integers.
    let large = Array::i64([1], vec![1 << 40]).unwrap();
    let mut too_large = inputs.clone();
    too_large[0].1 = TensorRef::from(&large);
    let error = graph.run_alone(&too_large, &outputs).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("x0")), "{error}");
}

#[test]
fn input_on_a_device_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &embedded_linear());
    let device = LocalStore::builder().memory(Arc::new(FakeDevice::default())).build();
    let mut spec = TensorSpec::new("x", DType::F32, &[1, SIZE]);
    spec.device = Device::Fake(0);
    let lease = device.reserve(spec, &device.holder("test")).unwrap().publish().unwrap();
    for engine in engines() {
        let graph = load_on(&*engine, &path, &*store());
        let error = graph.run_alone(&[("x", TensorRef::of_lease(&lease).unwrap())], &["y"]).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("x")), "{error}");
    }
}
