//! Graphs that are trunk and head in one file, as most hubs have them: the trunk is shared, the answers stay the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use cotensor_core::ErrorKind;
use cotensor_model::engine::{FileMode, RtenEngine};
use cotensor_model::graph::Graph;
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::{Inputs, Pipeline, User, UserReport, explain, run_user};
use cotensor_model::runtime::Runtime;
use cotensor_store::Holder;
use engine_support::*;
use rten_onnx::onnx::{AttributeProto, DataType, GraphProto, ModelProto};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn tiny_bert() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert")
}

fn read(path: &Path) -> ModelProto {
    ModelProto::parse_buf(&fs::read(path).unwrap()).unwrap()
}

/// The tiny BERT and one of its heads as a single graph that gives logits only.
fn whole_bert(folder: &Path, head: &str) {
    let (from, onnx) = (tiny_bert(), folder.join("onnx"));
    fs::create_dir_all(&onnx).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx_data"] {
        fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    let mut model = read(&from.join("onnx/model.onnx"));
    let mut head = read(&from.join(format!("onnx/{head}.onnx"))).graph.unwrap();
    let (input, output) = (head.input[0].name.clone().unwrap(), head.output[0].name.clone().unwrap());
    let inner = |name: &mut String| {
        *name = match &*name {
            name if name.is_empty() || **name == output => name.clone(),
            name if **name == input => "last_hidden_state".to_owned(),
            name => format!("head/{name}"),
        };
    };
    head.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)).for_each(inner);
    head.initializer.iter_mut().filter_map(|tensor| tensor.name.as_mut()).for_each(inner);
    head.value_info.iter_mut().filter_map(|value| value.name.as_mut()).for_each(inner);
    let graph = model.graph.as_mut().unwrap();
    let trunk_output = std::mem::replace(&mut graph.output, head.output);
    graph.value_info.extend(trunk_output);
    graph.value_info.extend(head.value_info);
    graph.node.extend(head.node);
    graph.initializer.extend(head.initializer);
    save(&onnx, "model.onnx", &model);
}

fn user(name: &str, task: &str) -> User {
    let toml = format!("[[user]]\nname = '{name}'\nmodel = '{name}'\ntask = '{task}'\n");
    Pipeline::parse(&toml).unwrap().users.remove(0)
}

fn run(model: &Model, user: &User, holder: &Holder) -> cotensor_core::Result<UserReport> {
    run_user(model, user, &Inputs::default().with_text("The harbour wakes before the city does."), holder)
}

#[test]
fn two_checkpoints_with_one_trunk_compute_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let users = [user("sentiment", "text-classification"), user("entities", "token-classification")];
    whole_bert(&folder.path().join("sentiment"), "head");
    whole_bert(&folder.path().join("entities"), "head.entities");
    let engine = Arc::new(RtenEngine::new(Some(1)));
    let runtime = Runtime::new(store(), Arc::<RtenEngine>::clone(&engine));
    let holder = runtime.store().holder("test");
    for (index, user) in users.iter().enumerate() {
        let path = folder.path().join(&user.model);
        let report = run(&runtime.open(&path).unwrap(), user, &holder).unwrap();
        let ran: Vec<_> = report.stages.iter().map(|stage| (stage.role.as_str(), stage.computed)).collect();
        assert_eq!(ran, [("encoder", index == 0), ("head", true)]);

        let alone =
            Model::open(&path, StageSource::Private(Arc::<RtenEngine>::clone(&engine), FileMode::Read)).unwrap();
        let alone = run(&alone, user, &holder).unwrap();
        assert_eq!(alone.stages.len(), 1, "a private copy runs to its end");
        assert_eq!(alone.answer, report.answer);
        assert_eq!(alone.outputs[0].max_abs_diff(&report.outputs[0]), 0.0);
    }
    let pipeline = Pipeline { name: String::new(), users: users.to_vec() };
    let explanation = explain(&pipeline, folder.path(), &runtime).unwrap();
    let shared: Vec<_> =
        explanation.stages.iter().map(|stage| (stage.role.as_str(), stage.shared_with.len())).collect();
    assert_eq!(shared, [("encoder", 1), ("head", 0), ("encoder", 1), ("head", 0)]);
}

#[test]
fn hidden_states_come_from_the_trunk_and_from_no_private_whole_graph() {
    let folder = tempfile::tempdir().unwrap();
    whole_bert(folder.path(), "head");
    let engine = Arc::new(RtenEngine::new(Some(1)));
    let runtime = Runtime::new(store(), Arc::<RtenEngine>::clone(&engine));
    let holder = runtime.store().holder("test");
    let user = user("embedding", "sentence-embedding");
    let of_whole = run(&runtime.open(folder.path()).unwrap(), &user, &holder).unwrap();
    let of_trunk = run(&runtime.open(&tiny_bert()).unwrap(), &user, &holder).unwrap();
    assert_eq!(of_whole.outputs[0].max_abs_diff(&of_trunk.outputs[0]), 0.0);
    let private = Model::open(folder.path(), StageSource::Private(engine, FileMode::Read)).unwrap();
    let error = run(&private, &user, &holder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("last_hidden_state"), "{error}");
}

/// `y = pooled(scale * (x - mean) / sqrt(mean((x - mean)^2) + epsilon) + shift)`, spelt out as before operator set 17.
fn spelt_out(rest: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let axes = || AttributeProto { name: Some("axes".to_owned()), ints: vec![-1], ..AttributeProto::default() };
    let width = SIZE as i64;
    let mut graph = GraphProto {
        node: vec![
            node("MatMul", &["x", "w"], &["sum"], vec![]),
            node("ReduceMean", &["sum"], &["mean"], vec![axes()]),
            node("Sub", &["sum", "mean"], &["centred"], vec![]),
            node("Mul", &["centred", "centred"], &["square"], vec![]),
            node("ReduceMean", &["square"], &["variance"], vec![axes()]),
            node("Add", &["variance", "epsilon"], &["safe"], vec![]),
            node("Sqrt", &["safe"], &["deviation"], vec![]),
            node("Div", &["centred", "deviation"], &["normal"], vec![]),
            node("Mul", &["normal", "scale"], &["scaled"], vec![]),
            node("Add", &["scaled", "shift"], &["hidden"], vec![]),
            node("MatMul", &["hidden", "v"], &["y"], vec![]),
        ],
        initializer: vec![
            f32_tensor("w", &[width, width], &noise(SIZE * SIZE, 1)),
            f32_tensor("v", &[width, width], &noise(SIZE * SIZE, 2)),
            f32_tensor("epsilon", &[], &[1e-6]),
            f32_tensor("scale", &[width], &noise(SIZE, 3)),
            f32_tensor("shift", &[width], &noise(SIZE, 4)),
        ],
        input: vec![value("x", DataType::FLOAT, &[None, None, Some(width)])],
        output: vec![value("y", DataType::FLOAT, &[None, None, Some(width)])],
        value_info: vec![],
    };
    rest(&mut graph);
    model(graph)
}

#[test]
fn a_normalization_is_found_when_it_is_spelt_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), "model.onnx", &spelt_out(|_| ()));
    let halves = || (Graph::open(&path).unwrap().trunk("h").unwrap(), Graph::open(&path).unwrap().rest("h").unwrap());
    let names = |graph: &Graph| graph.weights().iter().map(|weight| weight.name.clone()).collect::<Vec<_>>();
    let (trunk, rest) = halves();
    assert_eq!((names(&trunk), names(&rest)), (vec!["w".to_owned()], vec!["v".to_owned()]));
    assert_eq!((trunk.outputs()[0].name.as_str(), rest.inputs()[0].name.as_str()), ("h", "h"));
    assert_eq!(rest.inputs()[0].dims, Some(vec![None, None, Some(SIZE)]));
    assert_eq!(rest.operators().into_iter().collect::<Vec<_>>(), ["MatMul"]);
    // Whatever follows, the trunk stays the same.
    let other = save(folder.path(), "other.onnx", &spelt_out(|graph| graph.node[10].op_type = Some("Add".to_owned())));
    let hashes = weights(&trunk, &*store()).hashes;
    assert_eq!(trunk.fingerprint(&hashes), Graph::open(&other).unwrap().trunk("h").unwrap().fingerprint(&hashes));
}

#[test]
fn a_graph_stays_whole_where_more_than_one_value_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let whole = |name: &str, change: fn(&mut GraphProto)| {
        let path = save(folder.path(), name, &spelt_out(change));
        assert!(Graph::open(&path).unwrap().trunk("h").is_none(), "{name}");
        assert!(Graph::open(&path).unwrap().rest("h").is_none(), "{name}");
    };
    whole("input.onnx", |graph| graph.node[10].input[1] = "x".to_owned());
    whole("earlier.onnx", |graph| graph.node[10].input[1] = "sum".to_owned());
    whole("output.onnx", |graph| graph.output.push(value("mean", DataType::FLOAT, &[None])));
    whole("nothing after.onnx", |graph| {
        graph.node.pop();
        graph.output[0].name = Some("hidden".to_owned());
    });
    whole("no normalization.onnx", |graph| {
        graph.node.drain(1..10);
        graph.node[1].input[0] = "sum".to_owned();
    });
    whole("out of order.onnx", |graph| graph.node.swap(1, 2));
    whole("taken.onnx", |graph| {
        graph.node[0].output[0] = "h".to_owned();
        graph.node[1].input[0] = "h".to_owned();
        graph.node[2].input[0] = "h".to_owned();
    });
}
