//! `quantize`: a copy of a model whose weights have few bits.

use crate::support::{BERT, Daemon, Workspace, copy, fixtures};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

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
        let pipeline = BERT.replace("\"bert\"", &format!("\"{out}\""));
        fs::write(workspace.path("pipeline.toml"), pipeline).unwrap();
        let explained = workspace.json(&["explain", "pipeline.toml", "--engine", "rten", "--json"]);
        let quantized = &explained["stages"][0]["quantized"];
        let number = |field: &str| quantized[field].as_f64().unwrap();
        let stored = f64::from(bits.parse::<u8>().unwrap()) + 1.0;
        // Most tensors of this model are too small to be shared.
        assert!(number("stored_bits") == stored && number("run_bits") > 1.0, "{quantized}");
        assert!(number("relative_error") > 0.0 && quantized["output_error"].is_null(), "{quantized}");
        let text = String::from_utf8(workspace.run(&["explain", "pipeline.toml"]).stdout).unwrap();
        assert!(text.contains(&format!("{stored:.2} bits for a weight")) && text.contains("not measured"), "{text}");
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
            _ => 0.9,
        };
        assert!(error > 0.0 && error < bound, "{bits} bits: {error}");
    }
}

#[test]
fn codes_in_the_store_have_their_bits_and_errors() {
    let daemon = Daemon::start(&[]);
    copy(&fixtures().join("tiny/bert"), &daemon.path("bert"));
    // The metadata of each tensor of codes.
    let metadata = |text: &str| -> BTreeMap<String, Value> {
        daemon.ok(&["run", "quantized", "sentence-embedding", "--text", text, "--daemon", "--engine", "rten"]);
        let listed = daemon.json(&["ls"]);
        let names = listed["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap());
        let of = |name: &str| daemon.json(&["stat", name])["tensors"][0]["versions"][0]["metadata"].clone();
        let found = names.filter(|name| name.starts_with("weight/quantized/")).map(|name| (name.to_owned(), of(name)));
        let (codes, others): (BTreeMap<_, _>, BTreeMap<_, _>) = found.partition(|(name, _)| name.contains(".codes"));
        assert!(!others.is_empty() && others.values().all(Value::is_null), "{others:?}");
        codes
    };
    // Tables are read as they are stored, with scales in float32.
    for (bits, stored, run) in [("4", 5.0, 6.0), ("8", 9.0, 10.0), ("3", 4.0, 5.0)] {
        let report = daemon.json(&["quantize", "bert", "-o", "quantized", "--bits", bits, "--group", "16"]);
        let graphs = report["graphs"].as_array().unwrap();
        let encoder = graphs.iter().find(|graph| graph["file"] == "onnx/model.onnx").unwrap();
        let matrices = encoder["matrices"].as_array().unwrap();
        let found = metadata(TEXT);
        for (name, metadata) in &found {
            let is_of = |matrix: &&Value| name.contains(&format!("/{}.codes", matrix["name"].as_str().unwrap()));
            let matrix = matrices.iter().find(is_of).unwrap();
            for field in ["scheme", "bits", "group", "relative_error", "output_error"] {
                assert_eq!(metadata[field], matrix[field], "{name} {field}");
            }
            assert_eq!(metadata["stored_bits"], stored, "{name}: {metadata}");
            // Scales of the other matrices are too small to be shared.
            if matrix["rows"] == 400 {
                assert_eq!(metadata["run_bits"], run, "{name}: {metadata}");
            }
        }
        assert!(found.keys().any(|name| name.contains("word_embeddings")), "{found:?}");
        // Without the report, what the nodes of products say.
        found.keys().for_each(|name| drop(daemon.ok(&["rm", name])));
        fs::remove_file(daemon.path("quantized/quantization.json")).unwrap();
        let found = metadata("Another text.");
        let (tables, products): (Vec<_>, Vec<_>) = found.iter().partition(|(name, _)| name.contains("embeddings"));
        assert!(!tables.is_empty() && tables.iter().all(|(_, metadata)| metadata.is_null()), "{tables:?}");
        assert_eq!(products.is_empty(), bits == "3", "codes of 3 bits are too small to be shared: {found:?}");
        for (name, metadata) in products {
            assert!(metadata["scheme"].is_null() && metadata["relative_error"].is_null(), "{name}: {metadata}");
            assert_eq!(metadata["bits"], bits.parse::<u32>().unwrap(), "{name}: {metadata}");
        }
        found.keys().for_each(|name| drop(daemon.ok(&["rm", name])));
        fs::remove_dir_all(daemon.path("quantized")).unwrap();
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
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--scheme", "best"], &["--scheme", "search"]);
    for bits in ["2", "4", "8"] {
        let arguments = ["quantize", "bert", "-o", "new", "--scheme", "two_level", "--bits", bits];
        workspace.expect_error(&arguments, &["scheme", "two_level", "one scale for each group", "affine"]);
    }
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--keep", ""], &["keep", "empty"]);
    workspace.expect_error(&["quantize", "there", "-o", "new"], &["there", "no ONNX graph"]);
    workspace.expect_error(&["quantize", "absent", "-o", "new"], &["absent"]);
    workspace.expect_error(&["quantize", "bert", "-o", "no/such/folder"], &["no/such"]);

    // A weight that is not finite, or has no float16.
    let data = workspace.path("bert/onnx/model.onnx_data");
    let whole = fs::read(&data).unwrap();
    for (wrong, word) in
        [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf"), (65_600.0, "65600"), (-1e30, "65504")]
    {
        let mut bytes = whole.clone();
        bytes[..4].copy_from_slice(&wrong.to_le_bytes());
        fs::write(&data, bytes).unwrap();
        let arguments = ["quantize", "bert", "-o", "new"];
        workspace.expect_error(&arguments, &["onnx/model.onnx", "embeddings.", word]);
        if wrong != 65_600.0 {
            // All elements of a rotated block have a part of it. A small part is possible.
            let rotated = [&arguments[..], &["--rotate"]].concat();
            workspace.expect_error(&rotated, &["onnx/model.onnx", "embeddings.", "rotated"]);
        }
    }
    // Data without its end, and without most of it.
    for length in [whole.len() - 1, whole.len() / 2, 1, 0] {
        fs::write(&data, &whole[..length]).unwrap();
        let words = ["onnx/model.onnx", "initializer", &format!("has {length} bytes, needed are")];
        workspace.expect_error(&["quantize", "bert", "-o", "new"], &words);
    }
    let names: Vec<_> = fs::read_dir(workspace.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name == "new" || name.to_string_lossy().contains("quantize")), "{names:?}");
}

#[test]
fn codes_of_other_programs_are_imported() {
    let workspace = Workspace::with("llama");
    let from = |name: &str| fixtures().join("quantized").join(name).display().to_string();
    let gguf = from("llama.gguf");
    let output = workspace.run(&["quantize", "llama", "-o", "gguf", "--from", &gguf]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("model.layers.0.self_attn.q_proj.weight") && text.contains("Q8_0"), "{text}");
    let report = workspace.json(&["quantize", "llama", "-o", "awq", "--from", &from("llama-awq"), "--json"]);
    let matrices = report["graphs"][0]["matrices"].as_array().unwrap();
    assert!(matrices.len() == 14 && matrices.iter().all(|one| one["scheme"] == "awq" && one["bits"] == 4), "{report}");
    assert_eq!(matrices[0]["parameter"], matrices[0]["name"]);
    assert!(workspace.path("awq/tokenizer.json").is_file() && workspace.path("awq/quantization.json").is_file());
    for model in ["gguf", "awq"] {
        workspace.run(&["run", model, "text-generation", "--text", "harbour city"]);
    }
    let own = ["quantize", "llama", "-o", "new", "--from", &gguf];
    workspace.expect_error(&[&own[..], &["--bits", "4"]].concat(), &["--from", "--bits"]);
    workspace.expect_error(&[&own[..], &["--keep", "absent"]].concat(), &["keep", "absent"]);
    fs::write(workspace.path("cut.gguf"), &fs::read(&gguf).unwrap()[..20_000]).unwrap();
    let cut = ["quantize", "llama", "-o", "new", "--from", "cut.gguf"];
    workspace.expect_error(&cut, &["cut.gguf", ".weight", "truncated"]);
    let names: Vec<_> = fs::read_dir(workspace.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name == "new" || name.to_string_lossy().contains("quantizing")), "{names:?}");
}

#[test]
fn samples_give_better_results_and_their_errors() {
    let workspace = Workspace::with("bert");
    let words = ["harbour", "city", "wakes", "before", "ship", "morning", "light", "gulls"];
    let line = |index: usize| format!("{} {} {index}\n", words[index % 8], words[(index * 3 + index / 8) % 8]);
    fs::write(workspace.path("texts.txt"), (0..60).map(line).collect::<String>()).unwrap();
    fs::write(workspace.path("few.txt"), (0..8).map(line).collect::<String>()).unwrap();
    let few = ["quantize", "bert", "-o", "new", "--calibrate", "few.txt"];
    workspace.expect_error(&few, &["calibration", "8 different samples; at least 16"]);
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--calibrate", "none.txt"], &["none.txt"]);

    let report = |out: &str, more: &[&str]| {
        let arguments = ["quantize", "bert", "-o", out, "--bits", "3", "--json"];
        let report = workspace.json(&[&arguments, more].concat());
        let graph =
            report["graphs"].as_array().unwrap().iter().find(|graph| graph["file"] == "onnx/model.onnx").cloned();
        graph.unwrap()["matrices"].as_array().unwrap().clone()
    };
    let (plain, fitted) = (report("plain", &[]), report("fitted", &["--calibrate", "texts.txt"]));
    for (plain, fitted) in plain.iter().zip(&fitted) {
        assert!(plain["output_error"].is_null() && plain["inputs"] == 0, "{plain}");
        let is_table = fitted["name"].as_str().unwrap().starts_with("embeddings.");
        assert_eq!(fitted["output_error"].is_null(), is_table, "{fitted}");
        if !is_table {
            let [weights, results] = ["relative_error", "output_error"].map(|field| fitted[field].as_f64().unwrap());
            assert!(fitted["inputs"].as_u64().unwrap() > 200 && results < weights, "{fitted}");
        }
    }
}

#[test]
fn mixed_widths_are_measured_against_one_width() {
    let workspace = Workspace::with("gpt2");
    let words = ["harbour", "city", "wakes", "before", "ship", "morning", "light", "gulls"];
    let line = |index: usize| format!("{} {} {index}\n", words[index % 8], words[(index * 3 + index / 8) % 8]);
    fs::write(workspace.path("texts.txt"), (0..60).map(line).collect::<String>()).unwrap();
    workspace.expect_error(&["quantize", "gpt2", "-o", "new", "--mixed"], &["--calibrate"]);
    let samples = ["quantize", "gpt2", "--calibrate", "texts.txt", "--group", "16", "--json"];
    workspace.expect_error(&[&samples[..], &["-o", "new", "--target-bits", "1"]].concat(), &["target-bits", "2 to 16"]);
    workspace
        .expect_error(&[&samples[..], &["-o", "new", "--target-bits", "2.05"]].concat(), &["target-bits", "or more"]);
    assert!(!workspace.path("new").exists());
    for target in ["5", "4.5", "3"] {
        let out = format!("out{target}");
        let report = workspace.json(&[&samples[..], &["-o", &out, "--target-bits", target]].concat());
        assert_eq!((&report["samples"], &report["held_out"]), (&48.into(), &12.into()));
        let mixed = &report["mixed"];
        let number = |field: &str| mixed[field].as_f64();
        let bits = number("bits").unwrap();
        assert!(bits <= target.parse::<f64>().unwrap() + 1e-9 || target == "3" && bits == 3.0, "{mixed}");
        // One width has 5 and 3 bits with the scales of groups of 16, and 4.5 with those of groups of 32.
        assert_eq!(number("uniform_bits"), target.parse().ok());
        let (own, uniform) = (number("divergence").unwrap(), number("uniform_divergence").unwrap());
        assert_eq!(mixed["is_mixed"], own < uniform, "{mixed}");
        let graph = &report["graphs"][0];
        let form = |matrix: &Value| (matrix["bits"].as_u64().unwrap(), matrix["group"].as_u64().unwrap());
        let written: std::collections::BTreeSet<_> = graph["matrices"].as_array().unwrap().iter().map(form).collect();
        assert_eq!(written.len() > 1, mixed["is_mixed"] == true, "{written:?} {mixed}");
        let (divergence, top1) = (graph["divergence"].as_f64().unwrap(), graph["top1"].as_f64().unwrap());
        assert_eq!(divergence, own.min(uniform), "{graph}");
        let is_own = mixed["is_mixed"] == true;
        assert_eq!(graph["output_error"], mixed[if is_own { "output_error" } else { "uniform_output_error" }]);
        assert!(divergence > 0.0 && (0.0..=1.0).contains(&top1), "{graph}");
        assert_eq!(mixed["runs"], 8);
        assert!(!workspace.path(&out).join(".uniform").exists());
        workspace.json(&["run", &out, "text-generation", "--text", "harbour city", "--json"]);
    }
}

#[test]
fn samples_that_fill_the_positions_of_a_decoder_are_cut() {
    let workspace = Workspace::with("gpt2");
    // 128 positions; the tokenizer cuts texts to as many tokens.
    let line = |index: usize| format!("{}{index}\n", "the harbour wakes before the city ".repeat(1 + index));
    fs::write(workspace.path("texts.txt"), (0..20).map(line).collect::<String>()).unwrap();
    let report =
        workspace.json(&["quantize", "gpt2", "-o", "out", "--calibrate", "texts.txt", "--group", "16", "--json"]);
    assert_eq!((&report["samples"], &report["held_out"]), (&16.into(), &4.into()));
    assert!(report["graphs"][0]["divergence"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_smallest_width_below_an_error_is_written() {
    let workspace = Workspace::with("bert");
    let words = ["harbour", "city", "wakes", "before", "ship", "morning", "light", "gulls"];
    let line = |index: usize| format!("{} {} {index}\n", words[index % 8], words[(index * 3 + index / 8) % 8]);
    fs::write(workspace.path("texts.txt"), (0..40).map(line).collect::<String>()).unwrap();
    let run = |error: &str, out: &str| {
        let report = workspace.json(&[
            "quantize",
            "bert",
            "-o",
            out,
            "--calibrate",
            "texts.txt",
            "--group",
            "16",
            "--json",
            "--max-error",
            error,
        ]);
        let graphs = report["graphs"].as_array().unwrap();
        let encoder = graphs.iter().find(|graph| graph["file"] == "onnx/model.onnx").unwrap().clone();
        assert!(encoder["output_error"].as_f64().unwrap() <= error.parse().unwrap(), "{encoder}");
        let widths: std::collections::BTreeSet<u64> =
            encoder["matrices"].as_array().unwrap().iter().map(|matrix| matrix["bits"].as_u64().unwrap()).collect();
        assert_eq!(widths.len(), 1);
        assert!(!workspace.path(out).join(".uniform").exists());
        answer(&workspace, out);
        *widths.first().unwrap()
    };
    assert_eq!((run("0.9", "two"), run("0.02", "eight")), (2, 8));
    let four = run("0.15", "four");
    assert!((3..=4).contains(&four), "{four}");
    let arguments = ["quantize", "bert", "-o", "new", "--calibrate", "texts.txt"];
    let refused = |more: &[&str], names: &[&str]| workspace.expect_error(&[&arguments, more].concat(), names);
    refused(&["--max-error", "0.000001"], &["bert", "max-error", "no width", "8 bits"]);
    refused(&["--max-error", "0"], &["max-error", "positive"]);
    refused(&["--max-error", "0.1", "--mixed"], &["--max-error", "--mixed"]);
    refused(&["--max-error", "0.1", "--bits", "4"], &["--max-error", "--bits"]);
    assert!(!workspace.path("new").exists());
}

/// With 4 bits, the encoder of this model has an error of 0.35, and its decoders have 0.1.
#[test]
fn each_graph_has_at_most_the_error() {
    let workspace = Workspace::with("t5");
    let words = ["harbour", "city", "wakes", "before", "ship", "morning", "light", "gulls"];
    let line = |index: usize| format!("{} {} {index}\n", words[index % 8], words[(index * 3 + index / 8) % 8]);
    fs::write(workspace.path("texts.txt"), (0..20).map(line).collect::<String>()).unwrap();
    let arguments = ["quantize", "t5", "--calibrate", "texts.txt", "--group", "16", "--json"];
    for error in ["0.3", "0.1"] {
        let report = workspace.json(&[&arguments[..], &["--max-error", error, "-o", error]].concat());
        let graphs = report["graphs"].as_array().unwrap();
        let errors: Vec<f64> = graphs.iter().filter_map(|graph| graph["output_error"].as_f64()).collect();
        assert!(errors.len() > 1 && errors.iter().all(|found| *found <= error.parse().unwrap()), "{error}: {errors:?}");
    }
}

#[test]
fn folders_behind_links_are_left_out() {
    let workspace = Workspace::with("bert");
    fs::create_dir(workspace.path("elsewhere")).unwrap();
    fs::write(workspace.path("elsewhere/secret.json"), "{}").unwrap();
    std::os::unix::fs::symlink(workspace.path("elsewhere"), workspace.path("bert/linked")).unwrap();
    std::os::unix::fs::symlink(".", workspace.path("bert/loop")).unwrap();
    std::os::unix::fs::symlink(workspace.path("elsewhere/secret.json"), workspace.path("bert/added.json")).unwrap();
    workspace.json(&["quantize", "bert", "-o", "out", "--json"]);
    assert!(workspace.path("out/added.json").is_file());
    assert!(!workspace.path("out/linked").exists() && !workspace.path("out/loop").exists());
    workspace.expect_error(&["quantize", "bert", "-o", "bert/inner"], &["bert/inner", "folder of the model"]);
    workspace.expect_error(&["quantize", "bert", "-o", "new", "--keep", "absent"], &["keep", "absent"]);
}

#[test]
fn the_scale_of_similarities_stays() {
    let workspace = Workspace::with("siglip");
    let similarity = |model: &str| {
        let image = fixtures().join("media/photo.png");
        let ran = workspace.json(&["run", model, "--text", TEXT, "--image", image.to_str().unwrap(), "--json"]);
        ran["users"][0]["constants"].clone()
    };
    let before = similarity("siglip");
    assert!(before[0]["value"].is_number(), "{before}");
    workspace.json(&["quantize", "siglip", "-o", "small", "--bits", "8", "--json"]);
    assert_eq!(similarity("small"), before);
}

#[test]
fn an_interrupted_command_leaves_nothing_behind() {
    let workspace = Workspace::with("bert");
    let work = |name: &str| name.contains("quantizing");
    let names = || {
        let entries = fs::read_dir(workspace.path("")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    // Large enough that it runs until the signal comes.
    let large = fs::File::create(workspace.path("bert/large.txt")).unwrap();
    large.set_len(60 << 20).unwrap();
    for number in 0..60 {
        fs::hard_link(workspace.path("bert/large.txt"), workspace.path(&format!("bert/large{number}.txt"))).unwrap();
    }
    let mut command = workspace.command(&["quantize", "bert", "-o", "out"]).spawn().unwrap();
    while !names().iter().any(|name| work(name)) {
        assert!(command.try_wait().unwrap().is_none(), "it ended before");
        sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-INT", &command.id().to_string()]).status().unwrap().success());
    assert!(!command.wait().unwrap().success());
    assert!(!names().iter().any(|name| work(name) || name == "out"), "{:?}", names());
}
