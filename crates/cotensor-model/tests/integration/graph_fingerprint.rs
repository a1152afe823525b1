//! The fingerprint of a graph, and the sources of its weights.

use crate::support::onnx::*;
use cotensor_core::{ContentHash, DType, ErrorKind};
use cotensor_model::engine::{Engine, RtenEngine};
use cotensor_model::graph::{SHARED_BYTES_MIN, open_graph, read_graph};
use rten_onnx::onnx::{AttributeProto, DataType, GraphProto, ModelProto, OperatorSetIdProto};
use std::io::Cursor;
use std::path::Path;

/// Fingerprint with the weight's real content; the graph is self-contained.
fn fingerprint(model: &ModelProto) -> ContentHash {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", model);
    let graph = open_graph(&path).unwrap();
    let hashes = weights(&graph, &*store()).hashes;
    graph.fingerprint(&hashes)
}

fn changed(change: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut model = embedded_linear();
    change(model.graph.as_mut().unwrap());
    model
}

fn differs(change: impl FnOnce(&mut GraphProto)) -> bool {
    fingerprint(&changed(change)) != fingerprint(&embedded_linear())
}

#[test]
fn fingerprint_ignores_internal_names_and_documentation() {
    assert!(!differs(|graph| {
        for node in &mut graph.node {
            node.name = Some("renamed".to_owned());
            for name in node.input.iter_mut().chain(&mut node.output) {
                if !["x", "y"].contains(&name.as_str()) {
                    *name = format!("other/{name}");
                }
            }
        }
        for tensor in &mut graph.initializer {
            tensor.name = Some(format!("other/{}", tensor.name.as_deref().unwrap()));
        }
    }));
    let mut documented = embedded_linear();
    documented.producer_name = Some("somebody".to_owned());
    assert_eq!(fingerprint(&documented), fingerprint(&embedded_linear()));
}

#[test]
fn fingerprint_ignores_the_order_of_initializers_and_attributes() {
    assert!(!differs(|graph| graph.initializer.reverse()));
    let softmax = |reversed: bool| {
        changed(|graph| {
            let attributes = &mut graph.node[3].attribute;
            attributes.push(int_attribute("another", 1));
            if reversed {
                attributes.reverse();
            }
        })
    };
    assert_eq!(fingerprint(&softmax(true)), fingerprint(&softmax(false)));
}

#[test]
fn fingerprint_ignores_the_encoding_of_constants() {
    assert!(!differs(|graph| {
        let bias = &mut graph.initializer[1];
        bias.raw_data = None;
        bias.float_data = noise(SIZE, 2);
    }));
    assert!(!differs(|graph| {
        let weight = &mut graph.initializer[0];
        weight.raw_data = None;
        weight.float_data = noise(SIZE * SIZE, 1);
    }));
}

#[test]
fn fingerprint_depends_on_structure_attributes_and_constants() {
    assert!(differs(|graph| graph.node[3].attribute[0].i = Some(0)));
    assert!(differs(|graph| graph.node[3].attribute.clear()));
    assert!(differs(|graph| graph.node[2].op_type = Some("Sigmoid".to_owned())));
    assert!(differs(|graph| graph.node[2].domain = Some("elsewhere".to_owned())));
    assert!(differs(|graph| graph.node[3].input[0] = "sum".to_owned()));
    assert!(differs(|graph| graph.node[1].input.reverse()));
    assert!(differs(|graph| graph.initializer[1] = f32_tensor("b", &[SIZE as i64], &noise(SIZE, 9))));
    assert!(differs(|graph| graph.initializer[1].dims.insert(0, 1)));
    let mut opset = embedded_linear();
    opset.opset_import = vec![OperatorSetIdProto { domain: None, version: Some(17) }];
    assert_ne!(fingerprint(&opset), fingerprint(&embedded_linear()));
}

#[test]
fn fingerprint_depends_on_the_content_of_weights() {
    let mut values = noise(SIZE * SIZE, 1);
    values[77] += 1e-6;
    assert!(differs(|graph| graph.initializer[0] = f32_tensor("w", &[SIZE as i64, SIZE as i64], &values)));
}

#[test]
fn fingerprint_depends_on_the_names_of_inputs_and_outputs() {
    assert!(differs(|graph| {
        graph.input[0].name = Some("z".to_owned());
        graph.node[0].input[0] = "z".to_owned();
    }));
    assert!(differs(|graph| {
        graph.output[0].name = Some("z".to_owned());
        graph.node[3].output[0] = "z".to_owned();
    }));
    assert!(differs(|graph| graph.output.push(value("sum", DataType::FLOAT, &[None, None]))));
}

#[test]
fn subgraphs_read_outer_values() {
    let with_branch = |inner: &str| {
        changed(|graph| {
            let branch = |op: &str| GraphProto {
                node: vec![node(op, &[inner], &["inner"], vec![])],
                output: vec![value("inner", DataType::FLOAT, &[None, None])],
                ..GraphProto::default()
            };
            let attribute = |name: &str, op: &str| AttributeProto {
                name: Some(name.to_owned()),
                g: Some(branch(op)),
                ..AttributeProto::default()
            };
            graph.initializer.push(raw_tensor("condition", DataType::BOOL, &[], vec![1]));
            let branches = vec![attribute("then_branch", "Neg"), attribute("else_branch", "Identity")];
            graph.node.insert(3, node("If", &["condition"], &["chosen"], branches));
            graph.node[4].input[0] = "chosen".to_owned();
        })
    };
    assert_ne!(fingerprint(&with_branch("sum")), fingerprint(&with_branch("positive")));
    assert_eq!(fingerprint(&with_branch("sum")), fingerprint(&with_branch("sum")));
    let folder = tempfile::tempdir().unwrap();
    let graph = open_graph(&save(folder.path(), "m.onnx", &with_branch("sum"))).unwrap();
    let operators: Vec<_> = graph.operators().into_iter().collect();
    assert_eq!(operators, ["Add", "Identity", "If", "MatMul", "Neg", "Relu", "Softmax"]);
}

#[test]
fn embedded_weight_has_its_position_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &embedded_linear());
    let graph = open_graph(&path).unwrap();
    let [weight] = graph.weights() else { panic!("{:?}", graph.weights()) };
    assert_eq!(
        (weight.name.as_str(), weight.dtype, weight.shape.as_slice()),
        ("w", DType::F32, [SIZE, SIZE].as_slice())
    );
    let file = std::fs::read(&path).unwrap();
    let start = weight.source.offset as usize;
    assert_eq!(file[start..start + weight.size_bytes()], f32_bytes(&noise(SIZE * SIZE, 1)));
    assert_eq!(graph.inputs()[0].dims, Some(vec![None, Some(SIZE)]));
    assert_eq!(graph.outputs()[0].name, "y");
}

#[test]
fn small_external_data_is_embedded() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded_linear();
    let small = external_tensor("b", &[SIZE as i64], &[("location", "b.data")]);
    model.graph.as_mut().unwrap().initializer[1] = small;
    std::fs::write(folder.path().join("b.data"), f32_bytes(&noise(SIZE, 2))).unwrap();
    assert!(((SIZE * 4) as u64) < SHARED_BYTES_MIN);
    let path = save(folder.path(), "model.onnx", &model);
    let graph = open_graph(&path).unwrap();
    assert_eq!(graph.weights().len(), 1);
    assert_eq!(graph.fingerprint(&weights(&graph, &*store()).hashes), fingerprint(&embedded_linear()));
}

#[test]
fn float16_and_float64_weights_widen_to_float32() {
    let halves: Vec<f32> = noise(SIZE * SIZE, 1).iter().map(|value| (value * 64.0).round() / 64.0).collect();
    let doubles: Vec<u8> = halves.iter().flat_map(|&value| f64::from(value).to_le_bytes()).collect();
    let dims = [SIZE as i64, SIZE as i64];
    let single = changed(|graph| graph.initializer[0] = f32_tensor("w", &dims, &halves));
    let double = changed(|graph| graph.initializer[0] = raw_tensor("w", DataType::DOUBLE, &dims, doubles));
    let folder = tempfile::tempdir().unwrap();
    let mut graph = open_graph(&save(folder.path(), "m.onnx", &double)).unwrap();
    let store = store();
    assert_eq!(graph.weights()[0].dtype, DType::F64);
    let kept = weights(&graph, &*store);
    // rten has no such weights.
    let error = RtenEngine::new(Some(1)).load(&graph, kept.leases).err().unwrap();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("w")), "{error}");
    graph.widen();
    assert_eq!((graph.weights()[0].dtype, graph.weights()[0].source.dtype), (DType::F32, DType::F64));
    let loaded = weights(&graph, &*store);
    assert_eq!(graph.fingerprint(&loaded.hashes), fingerprint(&single));
    assert_eq!(loaded.leases[0].bytes().unwrap(), f32_bytes(&halves));
    let bits = |path: &Path| run_linear(&*load(path, &*store));
    let single = bits(&save(folder.path(), "single.onnx", &single));
    assert_eq!(bits(&folder.path().join("m.onnx")), single);
}

/// `linear` that transposes its weight, stored as `[columns, rows]`, before using it.
fn transposing() -> ModelProto {
    changed(|graph| {
        let values = noise(SIZE * SIZE, 1);
        let turned: Vec<f32> = (0..SIZE * SIZE).map(|index| values[index % SIZE * SIZE + index / SIZE]).collect();
        graph.initializer[0] = f32_tensor("turned", &[SIZE as i64, SIZE as i64], &turned);
        graph.node.insert(0, node("Transpose", &["turned"], &["w"], vec![]));
    })
}

#[test]
fn transposed_weight_is_folded_into_a_weight() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &transposing());
    let graph = open_graph(&path).unwrap();
    let [weight] = graph.weights() else { panic!("{:?}", graph.weights()) };
    assert_eq!((weight.name.as_str(), &weight.source.permutation), ("w", &Some(vec![1, 0])));
    assert!(!graph.operators().contains("Transpose"));
    let store = store();
    let loaded = weights(&graph, &*store);
    assert_eq!(loaded.leases[0].bytes().unwrap(), f32_bytes(&noise(SIZE * SIZE, 1)));
    // The result is bitwise equal to a graph with the transposed weight in its file.
    assert_eq!(graph.fingerprint(&loaded.hashes), fingerprint(&embedded_linear()));
    assert_eq!(run_linear(&*load(&path, &*store)), run_linear(&*load_plain(&path)));
}

#[test]
fn weight_with_another_use_is_kept() {
    let mut both = transposing();
    both.graph.as_mut().unwrap().node.insert(1, node("Identity", &["turned"], &["same"], vec![]));
    both.graph.as_mut().unwrap().output.push(value("same", DataType::FLOAT, &[None, None]));
    let mut bad = transposing();
    let perm = AttributeProto { name: Some("perm".to_owned()), ints: vec![0, 7], ..AttributeProto::default() };
    bad.graph.as_mut().unwrap().node[0].attribute.push(perm);
    let names = |model: &ModelProto| {
        let folder = tempfile::tempdir().unwrap();
        let graph = open_graph(&save(folder.path(), "model.onnx", model)).unwrap();
        graph.weights().iter().map(|weight| weight.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&both), ["turned", "w"]);
    assert_eq!(names(&bad), ["turned"]);
}

#[test]
fn graph_is_read_from_memory() {
    let bytes = embedded_linear().write_buf().unwrap();
    // The path is used only to find embedded or external data.
    let error = read_graph(Cursor::new(&bytes), Path::new("nowhere/model.onnx")).map(drop).unwrap_err();
    assert_eq!(error.kind(), cotensor_core::ErrorKind::NotFound, "{error}");
}
