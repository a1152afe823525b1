//! Graphs that hold trunk and head, as on most hubs: models share the trunk, and the answers are unchanged.

use crate::support::onnx::*;
use crate::support::tiny;
use cotensor_core::{ErrorKind, Result};
use cotensor_model::Runtime;
use cotensor_model::engine::{FileMode, RtenEngine};
use cotensor_model::graph::{EncoderSize, Graph, open_graph};
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::{Inputs, Pipeline, User, UserReport, explain, run_user};
use cotensor_model::tensor::{Array, Value};
use cotensor_store::Holder;
use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, TensorProto};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn tiny_bert() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert")
}

fn read(path: &Path) -> ModelProto {
    ModelProto::parse_buf(&fs::read(path).unwrap()).unwrap()
}

/// A model folder with the tiny BERT and a head in one graph, whose only output is logits.
fn whole_bert(folder: &Path, head: &str) -> PathBuf {
    let (from, onnx) = (tiny_bert(), folder.join("onnx"));
    for inner in ["onnx", "1_Pooling"] {
        fs::create_dir_all(folder.join(inner)).unwrap();
    }
    let files = ["config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"];
    for file in files.into_iter().chain(["onnx/model.onnx_data"]) {
        fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    save(&onnx, "model.onnx", &whole_graph(head))
}

fn whole_graph(head: &str) -> ModelProto {
    let from = tiny_bert();
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
    model
}

fn user(name: &str, task: &str) -> User {
    let toml = format!("[[user]]\nname = '{name}'\nmodel = '{name}'\ntask = '{task}'\n");
    Pipeline::parse(&toml).unwrap().users.remove(0)
}

fn run(model: &Model, user: &User, holder: &Holder) -> Result<UserReport> {
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
            Model::open(&path, StageSource::Private(Arc::<RtenEngine>::clone(&engine).into(), FileMode::Read)).unwrap();
        let alone = run(&alone, user, &holder).unwrap();
        assert_eq!(alone.stages.len(), 1, "a private copy is one stage");
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
fn hidden_states_come_from_the_shared_trunk_but_not_from_a_private_graph() {
    let folder = tempfile::tempdir().unwrap();
    whole_bert(folder.path(), "head");
    let engine = Arc::new(RtenEngine::new(Some(1)));
    let runtime = Runtime::new(store(), Arc::<RtenEngine>::clone(&engine));
    let holder = runtime.store().holder("test");
    let user = user("embedding", "sentence-embedding");
    let of_whole = run(&runtime.open(folder.path()).unwrap(), &user, &holder).unwrap();
    let of_trunk = run(&runtime.open(&tiny_bert()).unwrap(), &user, &holder).unwrap();
    assert_eq!(of_whole.outputs[0].max_abs_diff(&of_trunk.outputs[0]), 0.0);
    let private = Model::open(folder.path(), StageSource::Private(engine.into(), FileMode::Read)).unwrap();
    let error = run(&private, &user, &holder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("last_hidden_state"), "{error}");
}

/// The size of the tiny BERT, as in its config.json.
const TINY: EncoderSize = EncoderSize { layers: 2, width: 32, decoder: None };

/// The two halves of the tiny BERT with a head, changed by `change`.
fn halves(folder: &Path, size: EncoderSize, change: impl FnOnce(&mut GraphProto)) -> [Result<Graph>; 2] {
    whole_bert(folder, "head.entities");
    let mut model = whole_graph("head.entities");
    change(model.graph.as_mut().unwrap());
    let path = save(&folder.join("onnx"), "changed.onnx", &model);
    let open = || open_graph(&path).unwrap();
    [open().trunk("hidden", &size), open().rest("hidden", &size)]
}

/// The nodes of the head, which come last.
fn head_nodes(graph: &GraphProto) -> usize {
    graph.node.iter().position(|node| node.input.iter().any(|name| name == "last_hidden_state")).unwrap()
}

#[test]
fn graph_is_cut_before_a_normalization_of_the_head() {
    let folder = tempfile::tempdir().unwrap();
    // A fill-mask head has a normalization of its own.
    let [trunk, rest] = halves(folder.path(), TINY, |graph| {
        let at = head_nodes(graph);
        let scale = graph.node.iter().rev().find(|node| node.op_type.as_deref() == Some("LayerNormalization")).unwrap();
        let mut norm = scale.clone();
        norm.name = Some("transform".to_owned());
        (norm.input[0], norm.output) = ("last_hidden_state".to_owned(), vec!["transformed".to_owned()]);
        for name in graph.node[at..].iter_mut().flat_map(|node| &mut node.input) {
            if name == "last_hidden_state" {
                "transformed".clone_into(name);
            }
        }
        graph.node.insert(at, norm);
    });
    let (trunk, rest) = (trunk.unwrap(), rest.unwrap());
    assert!(rest.operators().contains("LayerNormalization"));
    let plain = halves(folder.path(), TINY, |_| ())[0].as_ref().map(|graph| weights(graph, &*store()).hashes).unwrap();
    let hashes = weights(&trunk, &*store()).hashes;
    assert_eq!(hashes, plain);
    let plain = halves(folder.path(), TINY, |_| ()).map(Result::unwrap);
    assert_eq!(trunk.fingerprint(&hashes), plain[0].fingerprint(&hashes), "the trunk is the same, the head differs");
}

/// Gives the parameters of normalizations by other nodes, as exporters do: `before` makes a node that gives `name`, and may
/// replace the initializer of this name in the list.
fn with_copied_parameters(graph: &mut GraphProto, before: CopiedBy) {
    let is_norm = |node: &&NodeProto| node.op_type.as_deref() == Some("LayerNormalization");
    let norms = graph.node.iter().filter(is_norm).flat_map(|node| node.input[1..].to_vec());
    let names: BTreeSet<String> = norms.collect();
    assert!(names.len() >= 2, "{names:?}");
    for name in names {
        let made = before(&mut graph.initializer, &name);
        graph.node.insert(0, made);
    }
}

type CopiedBy = fn(&mut Vec<TensorProto>, &str) -> NodeProto;

/// Gives the initializer another name.
fn renamed(initializers: &mut [TensorProto], name: &str) -> String {
    let tensor = initializers.iter_mut().find(|tensor| tensor.name.as_deref() == Some(name)).unwrap();
    let source = format!("{name}/source");
    tensor.name = Some(source.clone());
    source
}

#[test]
fn parameters_may_be_behind_copies_conversions_and_constant_nodes() {
    let forms: [CopiedBy; 3] = [
        |initializers: &mut Vec<TensorProto>, name: &str| {
            node("Identity", &[&renamed(initializers, name)], &[name], vec![])
        },
        |initializers: &mut Vec<TensorProto>, name: &str| {
            let to = int_attribute("to", DataType::FLOAT.0.into());
            node("Cast", &[&renamed(initializers, name)], &[name], vec![to])
        },
        |initializers: &mut Vec<TensorProto>, name: &str| {
            let at = initializers.iter().position(|tensor| tensor.name.as_deref() == Some(name)).unwrap();
            let value = AttributeProto {
                t: Some(f32_tensor(name, &initializers.remove(at).dims, &[1.0; 32])),
                ..int_attribute("value", 0)
            };
            node(
                "Constant",
                &[],
                &[name],
                vec![AttributeProto { i: None, r#type: Some(AttributeType::TENSOR), ..value }],
            )
        },
    ];
    for before in forms {
        let folder = tempfile::tempdir().unwrap();
        let [trunk, rest] = halves(folder.path(), TINY, |graph| with_copied_parameters(graph, before));
        assert!(trunk.unwrap().operators().contains("LayerNormalization"));
        assert!(!rest.unwrap().operators().contains("LayerNormalization"));
        // The copies prove nothing for another size.
        let other = EncoderSize { width: 33, ..TINY };
        let error = halves(folder.path(), other, |graph| with_copied_parameters(graph, before))[0]
            .as_ref()
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("not over 33 elements"), "{error}");
    }
}

#[test]
fn graph_without_a_provable_end_of_the_encoder_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |reason: &str, size: EncoderSize, change: fn(&mut GraphProto)| {
        for half in halves(folder.path(), size, change) {
            let error = half.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(reason), "{reason:?}: {error}");
        }
    };
    refused("3 encoder blocks", EncoderSize { layers: 3, ..TINY }, |_| ());
    refused("encoder blocks", EncoderSize { layers: usize::MAX, ..TINY }, |_| ());
    refused("not over 33 elements", EncoderSize { width: 33, ..TINY }, |_| ());
    refused("read another value", TINY, |graph| {
        let earlier = graph.node[head_nodes(graph) - 3].output[0].clone();
        graph.output.push(value(&earlier, DataType::FLOAT, &[None, None, None]));
    });
    refused("under another name", TINY, |graph| {
        graph.output.push(value("last_hidden_state", DataType::FLOAT, &[None, None, Some(32)]));
    });
    refused("out of order", TINY, |graph| {
        let at = head_nodes(graph);
        graph.node.swap(at - 1, at);
    });
    refused("residual sums", TINY, |graph| {
        // The last sum adds the feed-forward part to itself.
        let norm = graph.node.iter().rposition(|node| node.op_type.as_deref() == Some("LayerNormalization")).unwrap();
        let summed = graph.node[norm].input[0].clone();
        let sum = graph.node.iter_mut().find(|node| node.output.contains(&summed)).unwrap();
        let other = graph.initializer[0].name.clone().unwrap();
        sum.input[1] = other;
    });
    refused("for another value", TINY, |graph| {
        let at = graph.node.len() - 1;
        let name = graph.node[at].input[0].clone();
        for node in &mut graph.node {
            node.input
                .iter_mut()
                .chain(&mut node.output)
                .filter(|known| **known == name)
                .for_each(|known| "hidden".clone_into(known));
        }
    });
}

#[test]
fn classifier_of_dinov2_is_cut_at_the_end_of_its_encoder() {
    let folder = tiny("dinov2");
    let references = fs::read(folder.join("trunk.safetensors")).unwrap();
    let references = safetensors::SafeTensors::deserialize(&references).unwrap();
    let runtime = Runtime::new(store(), Arc::new(RtenEngine::new(Some(1))));
    let holder = runtime.store().holder("test");
    let model = runtime.open(&folder).unwrap();
    for case in ["b1", "b3"] {
        let tensor = |name: &str| {
            let tensor = references.tensor(&format!("{case}.{name}")).unwrap();
            let values = tensor.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            Array::f32(tensor.shape().to_vec(), values.collect()).unwrap()
        };
        let pixels = Value::from(tensor("pixel_values"));
        let stage = model.stage("encoder").unwrap();
        let run = stage.run(&[("pixel_values", &pixels)], &["last_hidden_state"], &holder).unwrap();
        let (given, wanted) = (run.outputs[0].to_f32().unwrap(), tensor("last_hidden_state"));
        assert_eq!(run.outputs[0].shape(), wanted.shape());
        let far = given.iter().zip(wanted.as_f32().unwrap()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // The layer normalization at the end makes the deviation about 1.
        assert!(far <= 1e-4, "{case}: {far}");
    }
    let of_photo = || Inputs::default().with_image(&crate::support::fixtures().join("media/photo.png")).unwrap();
    let report = run_user(&model, &user("sky", "image-classification"), &of_photo(), &holder).unwrap();
    assert_eq!(report.stages.iter().map(|stage| stage.role.as_str()).collect::<Vec<_>>(), ["encoder", "head"]);
    let private = StageSource::Private(Arc::new(RtenEngine::new(Some(1)).plain()).into(), FileMode::Read);
    let alone = Model::open(&folder, private).unwrap();
    let alone = run_user(&alone, &user("sky", "image-classification"), &of_photo(), &holder).unwrap();
    assert_eq!((alone.answer, alone.stages.len()), (report.answer, 1));
}
