//! `quantize`: a copy of a model whose weights have few bits.

use crate::support::{BERT, Workspace};
use std::fs;

const TEXT: &str = "The harbour wakes before the city does.";

/// The outputs of three users of the model in a folder of the workspace.
fn answer(workspace: &Workspace, model: &str) -> Vec<f64> {
    let pipeline = BERT.replace("\"bert\"", &format!("\"{model}\""));
    fs::write(workspace.path("pipeline.toml"), pipeline).unwrap();
    let ran = workspace.json(&["run", "pipeline.toml", "--text", TEXT, "--json"]);
    let outputs = ran["users"].as_array().unwrap().iter().flat_map(|user| user["outputs"].as_array().unwrap());
    let values = outputs.flat_map(|output| output["values"].as_array().unwrap());
    values.map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn a_quantized_model_answers_nearly_as_before() {
    let workspace = Workspace::with("bert");
    let before = answer(&workspace, "bert");
    for bits in ["8", "4", "3", "2"] {
        let out = format!("bert{bits}");
        let report = workspace.json(&["quantize", "bert", "--out", &out, "--bits", bits, "--group", "16", "--json"]);
        let graphs = report["graphs"].as_array().unwrap();
        let encoder = graphs.iter().find(|graph| graph["file"] == "onnx/model.onnx").unwrap();
        assert!(encoder["bytes"].as_u64().unwrap() * 2 < encoder["bytes_before"].as_u64().unwrap(), "{encoder}");
        assert_eq!(encoder["opens_in_onnxruntime"], bits != "3");
        let matrix = &encoder["matrices"][0];
        assert_eq!((&matrix["name"], &matrix["group"]), (&"embeddings.word_embeddings.weight".into(), &16.into()));
        let kept: serde_json::Value =
            serde_json::from_slice(&fs::read(workspace.path(&out).join("quantization.json")).unwrap()).unwrap();
        assert_eq!(kept, report);
        assert!(workspace.path(&out).join("tokenizer.json").is_file());
        let after = answer(&workspace, &out);
        assert_eq!(after.len(), before.len());
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
        let wrong = square(&mut after.iter().zip(&before).map(|(a, b)| a - b));
        let error = (wrong / square(&mut before.iter().copied())).sqrt();
        println!("{bits} bits: {error}");
        // Seeded weights: layers double the errors of their weights and more.
        let bound = match bits {
            "8" => 0.02,
            "4" => 0.3,
            "3" => 0.6,
            _ => 1.2,
        };
        assert!(error > 0.0 && error < bound, "{bits} bits: {error}");
    }
}

#[test]
fn the_report_names_matrices_and_what_stayed() {
    let workspace = Workspace::with("bert");
    let output = workspace.run(&["quantize", "bert", "-o", "small", "--keep", "word_embeddings", "--scheme", "affine"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("kept as it is: embeddings.word_embeddings.weight"), "{text}");
    assert!(text.contains("--keep word_embeddings") && text.contains("times less"), "{text}");
    assert!(text.contains("not copied:") && text.contains("written to small"), "{text}");
}

#[test]
fn mistakes_are_named_and_leave_nothing_behind() {
    let workspace = Workspace::with("bert");
    fs::create_dir(workspace.path("there")).unwrap();
    workspace.expect_error(&["quantize", "bert", "-o", "there"], &["there", "exists already"]);
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--bits", "5"], &["--bits", "2, 3, 4, 8"]);
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--group", "48"], &["--group"]);
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--scheme", "two_level"], &["--scheme", "search"]);
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--keep", ""], &["keep", "empty"]);
    workspace.expect_error(&["quantize", "there", "-o", "new"], &["there", "no ONNX graph"]);
    workspace.expect_error(&["quantize", "absent", "-o", "new"], &["absent"]);
    workspace.expect_error(&["quantize", "bert", "-o", "no/such/folder"], &["no/such"]);

    // A weight that is no number.
    let data = workspace.path("bert/onnx/model.onnx_data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&data, bytes).unwrap();
    workspace.expect_error(&["quantize", "bert", "-o", "new"], &["onnx/model.onnx", "embeddings.", "NaN"]);
    let names: Vec<_> = fs::read_dir(workspace.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name == "new" || name.to_string_lossy().contains("quantize")), "{names:?}");
}
