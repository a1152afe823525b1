//! Imported graphs give the results of graphs with the elements of the other program.

use super::*;
use crate::support::onnx::*;
use crate::support::{References, copy, edit, tiny};
use cotensor_core::ErrorKind;
use cotensor_model::engine::Engine;
use cotensor_model::graph::open_graph;
use cotensor_model::quantize::{QuantizeOptions, quantize_folder};
use cotensor_model::tensor::TensorRef;
use cotensor_model::weights::read_weight;
use cotensor_quant::Scheme;
use rten_onnx::onnx::{DataType, GraphProto, ModelProto};
use std::collections::{BTreeMap, HashMap};
use std::io::{Seek, SeekFrom, Write};

const GPTQ: Kind = Kind::Gptq { width: Width::Four, is_less_one: true };

fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    (0..values.len()).map(|at| values[at % rows * columns + at / rows]).collect()
}

/// Logits of the tiny llama.
fn logits(engine: &dyn Engine, folder: &Path) -> Vec<f32> {
    let graph = load_on(engine, &folder.join("onnx/model.onnx"), &*store());
    let ids = [1i64, 17, 301, 44, 479, 5];
    let positions: Vec<i64> = (0..6).collect();
    let mut inputs = vec![
        ("input_ids", TensorRef::i64(&[1, 6], &ids).unwrap()),
        ("attention_mask", TensorRef::i64(&[1, 6], &[1; 6]).unwrap()),
        ("position_ids", TensorRef::i64(&[1, 6], &positions).unwrap()),
    ];
    let names: Vec<String> = graph.inputs().iter().map(|port| port.name.clone()).collect();
    for name in names.iter().filter(|name| name.starts_with("past_key_values")) {
        inputs.push((name, TensorRef::f32(&[1, 2, 0, 8], &[]).unwrap()));
    }
    let found = graph.run_alone(&inputs, &["logits"]).unwrap().remove(0);
    found.as_f32().unwrap().to_vec()
}

fn most_different(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    found.iter().zip(wanted).map(|(found, wanted)| (found - wanted).abs()).fold(0.0, f32::max)
}

/// Puts other elements in the place of matrices of the tiny llama.
fn put(folder: &Path, matrices: &HashMap<String, (usize, Vec<f32>)>) {
    let graph = open_graph(&folder.join("onnx/model.onnx")).unwrap();
    for weight in graph.weights() {
        let Some((rows, values)) = matrices.get(&weight.name) else { continue };
        let values = if weight.shape[0] == *rows && weight.name.contains("embed") {
            values.clone()
        } else {
            transposed(values, *rows)
        };
        let mut file = fs::OpenOptions::new().write(true).open(&weight.source.file).unwrap();
        file.seek(SeekFrom::Start(weight.source.offset)).unwrap();
        file.write_all(&f32_bytes(&values)).unwrap();
    }
}

/// The matrices of the GGUF file of the tiny llama, by parameter.
fn llama_gguf() -> HashMap<String, (usize, Vec<f32>)> {
    let truth = References::open(&quantized("elements.safetensors"));
    let names = [
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    let mut found = HashMap::new();
    for (name, matrix) in gguf_matrices(&quantized("llama.gguf")) {
        let mut parameter = match name.as_str() {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            _ => name.replace("blk.", "model.layers."),
        };
        for (own, part) in names {
            parameter = parameter.replace(&format!(".{own}."), &format!(".{part}."));
        }
        let is_permuted = name.contains("attn_q") || name.contains("attn_k");
        let values = if is_permuted { truth.array(&parameter).as_f32().unwrap().to_vec() } else { elements(&matrix) };
        found.insert(parameter, (matrix.rows(), values));
    }
    found
}

fn llama_checkpoint(kind: Kind, name: &str) -> HashMap<String, (usize, Vec<f32>)> {
    let matrices = checkpoint_matrices(&quantized(name), kind, 32).into_iter();
    matrices.map(|(layer, matrix)| (format!("{layer}.weight"), (matrix.rows(), elements(&matrix)))).collect()
}

#[test]
fn a_model_gives_the_results_of_its_dequantized_weights() {
    let full = tiny("llama");
    for (from, matrices, format) in [
        ("llama.gguf", llama_gguf(), "Q8_0"),
        ("llama-gptq", llama_checkpoint(GPTQ, "llama-gptq"), "gptq"),
        ("llama-awq", llama_checkpoint(Kind::Awq, "llama-awq"), "awq"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (imported, dequantized) = (folder.path().join("imported"), folder.path().join("dequantized"));
        let report = import(&full, &quantized(from), &imported, &[]).unwrap();
        let [graph] = &report.graphs[..] else { panic!("one graph") };
        assert_eq!(graph.matrices.len(), matrices.len(), "{from}");
        let q = graph.matrices.iter().find(|one| one.name.contains("layers.1.self_attn.q_proj")).unwrap();
        assert_eq!(q.parameter.as_deref(), Some("model.layers.1.self_attn.q_proj.weight"));
        assert_eq!((q.scheme.as_str(), q.group, q.rows, q.columns), (format, 32, 32, 32));
        assert!(graph.matrices.iter().all(|one| (1e-3..0.2).contains(&one.relative_error)), "{:?}", graph.matrices);
        copy(&full, &dequantized);
        put(&dequantized, &matrices);
        for engine in engines() {
            let (found, wanted) = (logits(&*engine, &imported), logits(&*engine, &dequantized));
            let most = most_different(&found, &wanted);
            assert!(most <= 1e-5, "{} {from}: {most}", engine.name());
            assert!(most_different(&wanted, &logits(&*engine, &full)) > 1e-3, "the same weights");
        }
    }
}

/// Products by matrices of `blocks.gguf`, given with their names and the names of their nodes.
fn products(matrices: &[(&str, &str, &[f32], usize)]) -> ModelProto {
    let mut graph = GraphProto { node: vec![], initializer: vec![], input: vec![], output: vec![], value_info: vec![] };
    for (number, (weight, node_name, values, rows)) in matrices.iter().enumerate() {
        let columns = (values.len() / rows) as i64;
        let (x, y) = (format!("x{number}"), format!("y{number}"));
        let mut product = node("MatMul", &[&x, weight], &[&y], vec![]);
        product.name = Some((*node_name).to_owned());
        graph.node.push(product);
        graph.initializer.push(f32_tensor(weight, &[columns, *rows as i64], &transposed(values, *rows)));
        // Dimensions of one name would have one size.
        let port = |name: &str, columns: i64| {
            let mut port = value(name, DataType::FLOAT, &[None, Some(columns)]);
            let shape = port.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape.as_mut().unwrap();
            shape.dim[0].dim_param = Some(format!("rows{number}"));
            port
        };
        graph.input.push(port(&x, columns));
        graph.output.push(port(&y, *rows as i64));
    }
    model(graph)
}

#[test]
fn weights_are_found_by_name_by_node_and_by_elements() {
    let truth = References::open(&quantized("blocks.safetensors"));
    let near = |name: &str| {
        let wanted = truth.array(name).as_f32().unwrap().to_vec();
        let most = wanted.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let values: Vec<f32> = wanted.iter().zip(noise(wanted.len(), 7)).map(|(a, b)| a + b * most * 0.01).collect();
        (values, wanted)
    };
    let names = ["blk.0.ffn_down.weight", "blk.0.ffn_up.weight", "blk.1.ffn_down.weight", "blk.1.ffn_up.weight"];
    let all: Vec<_> = names.iter().map(|name| near(name)).collect();
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("full");
    fs::create_dir(&full).unwrap();
    save(
        &full,
        "model.onnx",
        &products(&[
            ("onnx::MatMul_1", "/model/layers.0/mlp/down_proj/MatMul", &all[0].0, 8),
            ("layers.0.mlp.up_proj.weight", "MatMul_1", &all[1].0, 8),
            // Two matrices of the same shape, without names.
            ("val_1", "node_1", &all[3].0, 8),
            ("val_2", "node_2", &all[2].0, 8),
        ]),
    );
    let target = folder.path().join("imported");
    let report = import(&full, &quantized("blocks.gguf"), &target, &[]).unwrap();
    let found: Vec<_> = report.graphs[0]
        .matrices
        .iter()
        .map(|one| (one.name.as_str(), one.parameter.as_deref().unwrap(), one.scheme.as_str(), one.bits, one.group))
        .collect();
    assert_eq!(
        found,
        [
            ("onnx::MatMul_1", "model.layers.0.mlp.down_proj.weight", "Q4_K", 4, 32),
            ("layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight", "Q6_K", 8, 16),
            ("val_1", "model.layers.1.mlp.up_proj.weight", "Q8_0", 8, 32),
            ("val_2", "model.layers.1.mlp.down_proj.weight", "Q4_0", 4, 32),
        ]
    );
    let order = [0, 1, 3, 2];
    let all_inputs: Vec<(String, usize)> =
        order.iter().enumerate().map(|(number, &at)| (format!("x{number}"), all[at].1.len() / 8)).collect();
    for engine in engines() {
        let graph = load_on(&*engine, &target.join("model.onnx"), &*store());
        for (number, at) in order.into_iter().enumerate() {
            let wanted = &all[at].1;
            let columns = wanted.len() / 8;
            let identity: Vec<f32> =
                (0..columns * columns).map(|at| f32::from(u8::from(at / columns == at % columns))).collect();
            let (x, y, shape) = (format!("x{number}"), format!("y{number}"), [columns, columns]);
            // onnxruntime wants all inputs.
            let none: Vec<(String, usize)> = all_inputs
                .iter()
                .filter(|(name, _)| *name != x)
                .map(|(name, columns)| (name.clone(), *columns))
                .collect();
            let shapes: Vec<[usize; 2]> = none.iter().map(|(_, columns)| [0, *columns]).collect();
            let mut inputs = vec![(x.as_str(), TensorRef::f32(&shape, &identity).unwrap())];
            for ((name, _), shape) in none.iter().zip(&shapes) {
                inputs.push((name, TensorRef::f32(shape, &[]).unwrap()));
            }
            let found = graph.run_alone(&inputs, &[&y]).unwrap().remove(0);
            let found = transposed(found.as_f32().unwrap(), columns);
            let largest = wanted.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let most = most_different(&found, wanted) / largest;
            // Codes of 8 bits are a sum of three.
            let is_sum = matches!(number, 1 | 2);
            assert!(most <= if is_sum { 5e-7 } else { 2.4e-7 }, "{} {}: {most}", engine.name(), names[at]);
        }
    }
}

#[test]
fn widths_of_checkpoints_are_imported() {
    let truth = References::open(&quantized("elements.safetensors"));
    for bits in [2u32, 3, 4, 8] {
        let name = format!("gptq{bits}");
        let values = truth.array(&name).as_f32().unwrap().to_vec();
        let folder = tempfile::tempdir().unwrap();
        let full = folder.path().join("full");
        fs::create_dir(&full).unwrap();
        save(&full, "model.onnx", &products(&[("val_1", "", &values, 32)]));
        let target = folder.path().join("imported");
        let report = import(&full, &quantized(&name).join("model.safetensors"), &target, &[]).unwrap();
        let [matrix] = &report.graphs[0].matrices[..] else { panic!("one matrix") };
        assert_eq!((matrix.bits, matrix.relative_error), (bits, 0.0));
        assert_eq!(report.graphs[0].opens_in_onnxruntime, bits != 3);
        let identity: Vec<f32> = (0..64 * 64).map(|at| f32::from(u8::from(at / 64 == at % 64))).collect();
        for engine in engines() {
            let graph = load_on(&*engine, &target.join("model.onnx"), &*store());
            let x = TensorRef::f32(&[64, 64], &identity).unwrap();
            let found = graph.run_alone(&[("x0", x)], &["y0"]).unwrap().remove(0);
            let most = most_different(&transposed(found.as_f32().unwrap(), 64), &values);
            assert!(most <= if bits == 8 { 1e-7 } else { 0.0 }, "{} {name}: {most}", engine.name());
        }
    }
}

#[test]
fn two_names_of_one_weight_are_imported_once() {
    // A table that is also the head: the file has both, the graph has one weight.
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("full");
    copy(&tiny("llama"), &full);
    edit(&full.join("onnx/model.onnx"), |model| {
        let graph = model.graph.as_mut().unwrap();
        let node = graph.node.iter_mut().find(|node| node.input.iter().any(|name| name == "lm_head.weight")).unwrap();
        let x = node.input[0].clone();
        let output = node.output[0].clone();
        let at = graph.node.iter().position(|node| node.output[0] == output).unwrap();
        graph.node[at] = crate::support::onnx::node("Identity", &[&x], &[&output], vec![]);
        graph.initializer.retain(|tensor| tensor.name.as_deref() != Some("lm_head.weight"));
    });
    let from = quantized("llama.gguf");
    let error = import(&full, &from, &folder.path().join("one"), &[]).unwrap_err();
    assert_eq!(error.field(), Some("lm_head.weight"), "{error}");
    assert!(error.message().contains("output.weight"), "{error}");
    let report = import(&full, &from, &folder.path().join("two"), &["lm_head.weight"]).unwrap();
    assert_eq!(report.graphs[0].matrices.len(), 15);
    // With the elements of the table, the head is the table.
    let mut bytes = fs::read(&from).unwrap();
    let gguf = Gguf::read(&mut &bytes[..], bytes.len() as u64).unwrap();
    let place = |name: &str| {
        let found = gguf.tensors().iter().find(|tensor| tensor.name == name).unwrap();
        found.offset as usize..(found.offset + found.size_bytes.unwrap()) as usize
    };
    bytes.copy_within(place("token_embd.weight"), place("output.weight").start);
    let tied = folder.path().join("tied.gguf");
    fs::write(&tied, bytes).unwrap();
    let report = import(&full, &tied, &folder.path().join("three"), &[]).unwrap();
    assert_eq!(report.graphs[0].matrices.len(), 15);
}

#[test]
fn checkpoints_of_several_files_are_read_by_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("parts");
    copy(&quantized("llama-gptq"), &from);
    fs::rename(from.join("model.safetensors"), from.join("model-1.safetensors")).unwrap();
    // The second part has no codes.
    fs::copy(quantized("blocks.safetensors"), from.join("model-2.safetensors")).unwrap();
    let index = r#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    fs::write(from.join("model.safetensors.index.json"), index).unwrap();
    let layer = "model.layers.0.mlp.up_proj.weight";
    let report = import(&tiny("llama"), &from, &folder.path().join("new"), &[layer]).unwrap();
    assert_eq!(report.graphs[0].matrices.len(), 13);
    let kept = report.graphs[0].kept.iter().find(|kept| kept.name == layer).unwrap();
    assert_eq!(kept.reason.as_deref(), Some("--keep model.layers.0.mlp.up_proj.weight"));
    fs::copy(from.join("model-1.safetensors"), from.join("model-2.safetensors")).unwrap();
    let error = import(&tiny("llama"), &from, &folder.path().join("two"), &[]).unwrap_err();
    assert!(error.message().contains("another file"), "{error}");
}

/// The graph of a folder that Cotensor wrote is one of `MatMulNBits`, with scales that are converted.
#[test]
fn products_of_onnx_files_keep_their_codes() {
    let folder = tempfile::tempdir().unwrap();
    let (own, target) = (folder.path().join("own"), folder.path().join("new"));
    for bits in [2, 4, 8] {
        let options = QuantizeOptions {
            width: Width::of(bits).unwrap(),
            group: 32,
            scheme: Scheme::Search,
            rotates: false,
            activations: Activations::Float32,
            keep: vec!["embed_tokens".to_owned()],
            mixed_bits: None,
            max_error: None,
        };
        let before = quantize_folder(&tiny("llama"), &own, &options, None, &mut |_, _, _| {}).unwrap();
        let file = own.join("onnx/model.onnx");
        let report = import(&tiny("llama"), &file, &target, &[]).unwrap();
        let codes = |path: &Path| {
            let graph = open_graph(path).unwrap();
            let weights = graph.weights().iter().filter(|weight| weight.name.ends_with(".codes"));
            weights.map(|weight| (weight.name.clone(), read_weight(weight).unwrap())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(codes(&target.join("onnx/model.onnx")), codes(&file), "{bits} bits");
        let names = |report: &QuantizeReport| -> Vec<String> {
            report.graphs[0].matrices.iter().map(|one| one.name.clone()).collect()
        };
        let matrices = &report.graphs[0].matrices;
        assert_eq!(names(&report), names(&before));
        assert!(matrices.iter().all(|one| one.scheme == "MatMulNBits" && one.bits == bits), "{matrices:?}");
        assert!(matrices.iter().all(|one| one.parameter.as_deref() == Some(&one.name)), "{matrices:?}");
        fs::remove_dir_all(&target).unwrap();
        let error = import(&tiny("qwen2"), &file, &target, &[]).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.file() == Some(&file), "{error}");
        fs::remove_dir_all(&own).unwrap();
    }
    let full = tiny("llama").join("onnx/model.onnx");
    let error = import(&tiny("llama"), &full, &target, &[]).unwrap_err();
    assert!(
        error.message().contains("no matrix of codes") && error.file() == Some(&full) && !target.exists(),
        "{error}"
    );
}
