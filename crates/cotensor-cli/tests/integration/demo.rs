//! The demo on tiny models: every documented figure is present, and the figures are consistent.

use crate::support::{Workspace, copy, fixtures};
use serde_json::{Value, json};
use std::fs;

/// A folder of models with the tiny model of `family` under the demo's model name.
fn workspace(family: &str, model: &str, heads: &[&str]) -> Workspace {
    let workspace = Workspace::with(family);
    add(&workspace, family, model, heads);
    workspace
}

/// Adds the tiny model of `family` under the demo's model name.
fn add(workspace: &Workspace, family: &str, model: &str, heads: &[&str]) {
    let folder = workspace.path("models").join(model);
    copy(&fixtures().join("tiny").join(family), &folder);
    for head in heads {
        let own = folder.join("onnx/head.onnx");
        let target = folder.join(format!("onnx/{head}.onnx"));
        if !target.is_file() {
            fs::copy(own, target).unwrap();
        }
    }
}

/// The demo on rten, which every build has.
fn demo(workspace: &Workspace, scenario: &str, repeats: usize) -> Value {
    demo_on(workspace, "rten", scenario, repeats)
}

fn demo_on(workspace: &Workspace, engine: &str, scenario: &str, repeats: usize) -> Value {
    let repeats = repeats.to_string();
    let arguments =
        ["--models", "models", "--repeats", &repeats, "--json", "--threads", "2", "--report", "report.html"];
    let report = workspace.json(&[&["demo", "--engine", engine, "--scenario", scenario], &arguments[..]].concat());
    let scenarios = report["scenarios"].as_array().unwrap();
    assert_eq!(scenarios.len(), 1);
    scenarios[0].clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
}

/// Checks that hold for every scenario and model size.
fn check(scenario: &Value, name: &str, families: &[&str], repeats: usize) {
    assert_eq!(scenario["name"], name);
    assert_eq!(scenario["models"], json!(families));
    let engine = scenario["engine"].as_str().unwrap();
    let on_ort = engine.starts_with("ort ");
    assert!(["ort ", "ort-shared ", "rten "].iter().any(|name| engine.starts_with(name)), "{engine}");
    // Users of different models are compared with models that are mapped, too, by an engine that reads the mapping.
    let baseline = if families.len() == 1 || on_ort { "without" } else { "mapped" };
    assert_eq!(scenario["baseline"], baseline);
    assert!(scenario["hardware"].as_str().unwrap().contains("2 engine threads"));
    assert_eq!(scenario["weights"], "checkpoint");
    let cost = |variant: &str, of: &str| number(&scenario[variant][of]);
    for variant in ["without", "mapped", "by_hand", "with", "with_cold"] {
        assert!(cost(variant, "memory_bytes") > f64::from(1 << 20), "{variant}");
        assert!(cost(variant, "time_ms") > 0.0, "{variant}");
    }
    // Savings are the difference in percent, and the sum of their parts.
    for (of, percent, parts) in
        [("memory_bytes", "memory_saved_percent", "memory_saved"), ("time_ms", "time_saved_percent", "time_saved")]
    {
        let saved = cost(baseline, of) - cost("with", of);
        assert!(near(number(&scenario[percent]), 100.0 * saved / cost(baseline, of)), "{scenario}");
        let parts: f64 = scenario[parts].as_object().unwrap().values().map(number).sum();
        assert!(near(parts, saved), "{parts} is not {saved}");
    }
    // Efficiency is savings divided by avoidable time, or by duplicated bytes.
    let time = cost(baseline, "time_ms");
    let avoidable: f64 = scenario["avoidable_time"].as_object().unwrap().values().map(number).sum();
    let share = number(&scenario["avoidable_time_share"]);
    assert!(share > 0.0 && share < 1.0 && near(share, avoidable / time), "{scenario}");
    let saved = time - cost("with", "time_ms");
    assert!(near(number(&scenario["time_efficiency"]), saved / avoidable));
    let saved = cost(baseline, "memory_bytes") - cost("with", "memory_bytes");
    let avoidable = number(&scenario["avoidable_weight_bytes"]);
    assert!(avoidable > 0.0 && near(number(&scenario["memory_efficiency"]), saved / avoidable));
    let saved_by = scenario["saved_by"].as_array().unwrap();
    assert!(saved_by.iter().all(|by| by == "weights" || by == "computation"));
    // Outputs are bit-equal in every run; onnxruntime optimizes a cut graph differently.
    assert!(number(&scenario["max_abs_diff"]) <= if on_ort { 1e-4 } else { 0.0 }, "{}", scenario["max_abs_diff"]);
    for (variant, times) in
        [("without", repeats), ("mapped", repeats), ("by_hand", repeats), ("with", repeats), ("with_cold", 1)]
    {
        let find = |list: &str| {
            let entries = scenario[list].as_array().unwrap();
            entries.iter().find(|entry| entry[0] == variant).unwrap()[1].as_array().unwrap().len()
        };
        assert_eq!(find("times_ms"), times, "{variant}");
        assert!(find("timelines") > 0, "{variant}");
    }
    assert!(!scenario["arithmetic"].as_array().unwrap().is_empty());
    // Only if Python can import onnxruntime.
    if let Some(peer) = scenario["onnxruntime"].as_object() {
        assert!(number(&peer["memory_bytes"]) > f64::from(1 << 20) && number(&peer["time_ms"]) > 0.0);
        assert!(number(&peer["max_abs_diff"]) < 1e-3, "{peer:?}");
    }
}

/// Roles of the stages that a user reused.
fn reused(scenario: &Value, user: usize) -> Vec<&str> {
    let stages = scenario["answers"][user]["stages"].as_array().unwrap();
    stages.iter().filter(|stage| stage["computed"] == false).map(|stage| stage["role"].as_str().unwrap()).collect()
}

#[test]
fn three_users_share_one_text() {
    let workspace = workspace("bert", "bert-base", &["head.sentiment", "head.entities"]);
    let scenario = demo(&workspace, "bert", 2);
    check(&scenario, "bert", &["bert"], 2);
    assert_eq!(
        [reused(&scenario, 0), reused(&scenario, 1), reused(&scenario, 2)],
        [vec![], vec!["encoder"], vec!["encoder"]]
    );
    // The encoder's weights are loaded three times and needed once.
    let graph = fs::metadata(workspace.path("models/bert-base/onnx/model.onnx_data")).unwrap().len() as f64;
    let avoidable = number(&scenario["avoidable_weight_bytes"]);
    assert!(avoidable > 1.8 * graph && avoidable < 2.2 * graph, "{avoidable} of {graph}");
    let page = fs::read_to_string(workspace.path("report.html")).unwrap();
    for words in [
        "from weights",
        "from computation",
        "weight cache warm",
        "first run",
        "class=\"with_cold\"",
        "one model by hand",
        "The chart shows one run",
        // The legend, the ticks of both axes, and the origin.
        "<b class=\"with_cold\">&#9473;</b> with Cotensor, first run (cold)</span>",
        ">0 MiB</span>",
        ">0 s</span>",
        " UTC, cotensor ",
        "<code>cotensor demo --engine rten --scenario bert --models models",
    ] {
        assert!(page.contains(words), "the page lacks {words:?}");
    }
    // Cold caches are removed.
    let left = fs::read_dir(workspace.path("cache")).unwrap().flatten().map(|entry| entry.file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with(".cold-")));
}

#[test]
fn scenario_runs_on_the_chosen_engine() {
    let workspace = workspace("bert", "bert-base", &["head.sentiment", "head.entities"]);
    assert!(demo(&workspace, "bert", 1)["engine"].as_str().unwrap().starts_with("rten "));
    // onnxruntime if it is installed.
    let scenario = demo_on(&workspace, "auto", "bert", 1);
    check(&scenario, "bert", &["bert"], 1);
    workspace.expect_error(&["demo", "--engine", "torch", "--scenario", "bert"], &["--engine", "torch"]);
}

#[test]
fn three_users_share_one_image() {
    let scenario = demo(&workspace("clip", "clip-vit-b16", &["head.classifier"]), "clip", 1);
    check(&scenario, "clip", &["clip"], 1);
    assert_eq!([reused(&scenario, 1), reused(&scenario, 2)], [["vision_tower"], ["vision_tower"]]);
}

#[test]
fn three_users_share_one_sound() {
    let scenario = demo(&workspace("whisper", "whisper-base", &["head.audio"]), "whisper", 1);
    check(&scenario, "whisper", &["whisper"], 1);
    assert_eq!([reused(&scenario, 1), reused(&scenario, 2)], [vec!["encoder", "decoder"], vec!["encoder"]]);
    assert_eq!(scenario["answers"][0]["answer"]["tokens"], 32);
}

#[test]
fn decoders_of_two_models_read_the_encoder_of_a_third() {
    let workspace = workspace("bert", "bert-base", &["head.sentiment"]);
    add(&workspace, "t5", "t5-base", &[]);
    add(&workspace, "bart", "bart-base", &[]);
    let scenario = demo(&workspace, "bert-t5-bart", 1);
    check(&scenario, "bert-t5-bart", &["bert", "t5", "bart"], 1);
    assert_eq!(scenario["claim"]["time_percent"], 27.0);
    let adapters = scenario["adapters"].as_array().unwrap();
    assert_eq!(adapters.len(), 2);
    for (user, adapter) in [(1, &adapters[0]), (2, &adapters[1])] {
        let answer = &scenario["answers"][user];
        assert_eq!(answer["user"], adapter["user"]);
        // The last token of BART is a forced end.
        assert!([7, 8].contains(&answer["answer"]["tokens"].as_u64().unwrap()), "{answer}");
        assert!(answer["stages"].as_array().unwrap().iter().all(|stage| stage["role"] != adapter["role"]), "{answer}");
        assert!(number(&adapter["fit_ms"]) > 0.0 && number(&adapter["replaced_weight_bytes"]) > 0.0, "{adapter}");
    }
    // A claim that is not reached has its arithmetic.
    assert!(scenario["claim"]["memory_percent"].is_null(), "{scenario}");
    let missed = number(&scenario["time_saved_percent"]) < 27.0;
    assert_eq!(scenario["why_short"].is_string(), missed, "{scenario}");
    // The adapters are reused.
    let again = demo(&workspace, "bert-t5-bart", 1);
    assert_eq!(again["adapters"][0]["fit_ms"], adapters[0]["fit_ms"]);
}

#[test]
fn image_embedding_is_approximated_from_another_model() {
    let workspace = workspace("vit", "vit-base", &["head.classifier"]);
    add(&workspace, "clip", "clip-vit-b16", &[]);
    let scenario = demo(&workspace, "vit-clip", 1);
    check(&scenario, "vit-clip", &["vit", "clip"], 1);
    assert_eq!(scenario["adapters"][0]["role"], "vision_tower");
}

#[test]
fn sound_embedding_is_approximated_from_another_model() {
    let workspace = workspace("whisper", "whisper-base", &[]);
    let folder = workspace.path("models/clap-htsat");
    copy(&fixtures().join("sounds/clap"), &folder);
    let arguments = ["demo", "--models", "models", "--repeats", "1", "--json", "--threads", "2"];
    // It runs on onnxruntime, whatever the engine of other scenarios is.
    let arguments = [&arguments[..], &["--engine", "rten", "--scenario", "whisper-clap"]].concat();
    let output = workspace.run(&arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("whisper-clap runs on ort") {
        assert!(complaint.contains("pip install") && output.status.code() == Some(2), "{complaint}");
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{complaint}"));
    let scenario = &report["scenarios"][0];
    check(scenario, "whisper-clap", &["whisper", "clap"], 1);
    assert!(scenario["engine"].as_str().unwrap().starts_with("ort-shared "));
    assert_eq!(scenario["adapters"][0]["role"], "audio_tower");
    let answer = &scenario["answers"][1];
    assert!(answer["stages"].as_array().unwrap().iter().all(|stage| stage["role"] != "audio_tower"), "{answer}");
}

#[test]
fn two_models_share_one_tower() {
    let workspace = workspace("clip", "clip-vit-l14-336", &[]);
    add(&workspace, "llava", "llava-0.5b", &[]);
    let scenario = demo(&workspace, "llava", 1);
    assert_eq!((&scenario["models"], &scenario["baseline"]), (&json!(["clip", "llava"]), &"mapped".into()));
    assert_eq!((&scenario["max_abs_diff"], &scenario["with_cold"]), (&0.0.into(), &Value::Null));
    assert_eq!(scenario["answers"][1]["answer"]["tokens"], 32);
    assert_eq!(reused(&scenario, 1), ["vision_blocks"]);
    let tower = &scenario["shared_stages"][0];
    assert_eq!((&tower["user"], &tower["role"]), (&"answer".into(), &"vision_encoder".into()));
    // All but the projector.
    let (bytes, saved) = (number(&tower["weight_bytes"]), number(&tower["weights_saved_percent"]));
    assert!(bytes > 50_000.0 && bytes < 100_000.0 && saved > 90.0 && saved < 100.0, "{tower}");
    let page = fs::read_to_string(workspace.path("report.html")).unwrap();
    assert!(page.contains("vision_encoder of answer"), "{page}");
}

#[test]
fn processes_share_the_weights_of_a_daemon() {
    let workspace = workspace("bert", "bert-base", &[]);
    let run = ["demo", "--scenario", "processes", "--processes", "3", "--engine", "rten", "--models", "models"];
    let options = ["--repeats", "2", "--threads", "1", "--report", "report.html"];
    let report = workspace.json(&[&run[..], &options, &["--json"]].concat());
    let scenario = &report["scenarios"][0];
    assert_eq!((&scenario["name"], &scenario["baseline"]), (&"processes".into(), &"copies".into()));
    assert_eq!((&scenario["models"], &scenario["processes"]), (&json!(["bert"]), &3.into()));
    assert!(scenario["why_short"].is_null() && scenario["engine"].as_str().unwrap().starts_with("rten "));
    let cost = |variant: &str, of: &str| number(&scenario[variant][of]);
    for variant in ["copies", "mapped", "with", "with_again"] {
        assert!(cost(variant, "memory_bytes") > f64::from(1 << 20), "{scenario}");
        assert!(cost(variant, "time_ms") > 0.0 && cost(variant, "answer_ms") > 0.0, "{scenario}");
    }
    for (of, percent) in [("memory_bytes", "memory_saved_percent"), ("time_ms", "time_saved_percent")] {
        let saved = cost("copies", of) - cost("with", of);
        assert!(near(number(&scenario[percent]), 100.0 * saved / cost("copies", of)), "{scenario}");
    }
    // The daemon's part is counted.
    let memory = &scenario["memory"];
    assert_eq!(memory["clients"].as_array().unwrap().len(), 3);
    let parts = memory["clients"].as_array().unwrap().iter().map(number).sum::<f64>();
    let daemon = number(&memory["server"]) + number(&memory["supervisor"]) + number(&memory["unmapped"]);
    assert!(number(&memory["server"]) > 0.0 && near(number(&memory["total"]), parts + daemon), "{memory}");
    // Answers are bit-equal in every variant.
    assert_eq!(scenario["max_abs_diff"], 0.0);
    assert!(fs::read_to_string(workspace.path("report.html")).unwrap().contains("with Cotensor's daemon"));
    let words = workspace.run(&[&run[..], &["--repeats", "1"]].concat());
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(words.contains("processes: 3 of bert-base on rten") && words.contains("saved (over copies)"), "{words}");
    fs::remove_file(workspace.path("models/bert-base/tokenizer.json")).unwrap();
    workspace.expect_error(&run, &["tokenizer.json"]);
}

#[test]
fn text_names_origins_and_progress_goes_to_stderr() {
    let workspace = workspace("bert", "bert-base", &["head.sentiment"]);
    let output =
        workspace.run(&["demo", "--scenario", "bert", "--models", "models", "--repeats", "1", "--threads", "1"]);
    let (words, progress) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{progress}");
    for line in
        ["with Cotensor (weight cache warm)", "with Cotensor, first run (cold)", "from weights", "from computation"]
    {
        assert!(words.contains(line), "{line:?} is missing in {words}");
    }
    for line in ["bert with, first run", "bert without, timed (1 of 1)", "bert done"] {
        assert!(progress.contains(line) && !words.contains(line), "{line:?}: {progress}");
    }
}

#[test]
fn failing_worker_reports_its_error() {
    let workspace = workspace("bert", "bert-base", &[]);
    let arguments = ["demo", "--scenario", "bert", "--models", "models", "--repeats", "1", "--json"];
    workspace.expect_error(&arguments, &["head.sentiment.onnx"]);
}
