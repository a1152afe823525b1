//! Commands that run models: results for valid input, one error and exit code 2 for invalid input.

use crate::support::{BERT, Workspace, copy, fixtures};
use std::fs;

#[test]
fn run_shares_one_encoder_between_three_users() {
    let workspace = Workspace::with("bert");
    let run = ["run", "pipeline.toml", "--text", "The harbour wakes.", "--compare", "--json", "--engine", "rten"];
    let report = workspace.json(&run);
    assert_eq!(report["max_abs_diff"], 0.0);
    let ran = |user: usize| report["users"][user]["stages"][0]["computed"].as_bool().unwrap();
    assert_eq!([ran(0), ran(1), ran(2)], [true, false, false]);
    assert_eq!(report["users"][2]["answer"]["type"], "embedding");
    // The report contains the preparation: every user's text, and the opened tokenizer.
    let roles = |user: usize| {
        let prepared = report["users"][user]["prepared"].as_array().unwrap();
        prepared.iter().map(|part| part["role"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!([roles(0), roles(1)], [["tokenizer", "text"], ["tokenizer", "text"]]);
    let words = workspace.run(&["run", "pipeline.toml", "--text", "The harbour wakes."]);
    assert!(String::from_utf8(words.stdout).unwrap().contains("shared"));
    // Progress goes to standard error as plain lines; each stage loads once.
    let progress = String::from_utf8(words.stderr).unwrap();
    let count = |line: &str| progress.lines().filter(|other| *other == line).count();
    let (encoder, user) = (count("loading encoder of bert"), count("running embedding"));
    assert_eq!((encoder, user), (1, 1), "{progress}");
    let explained = workspace.run(&["explain", "pipeline.toml"]);
    assert!(String::from_utf8(explained.stderr).unwrap().contains("loading head.entities of bert"));
}

#[test]
fn explain_names_both_spaces() {
    let workspace = Workspace::with("bert");
    workspace.add_other_bert();
    let second = "[[user]]\nname = \"other\"\nmodel = \"other\"\ntask = \"sentence-embedding\"\n";
    fs::write(workspace.path("pipeline.toml"), format!("{BERT}\n{second}")).unwrap();
    let explanation = workspace.json(&["explain", "pipeline.toml", "--json"]);
    let stages = explanation["stages"].as_array().unwrap();
    let encoder = |user: &str| stages.iter().find(|stage| stage["user"] == user && stage["role"] == "encoder").unwrap();
    assert_eq!(encoder("sentiment")["shared_with"], serde_json::json!(["entities", "embedding"]));
    let why = encoder("sentiment")["not_shared"][0].as_str().unwrap();
    assert!(
        why.contains(encoder("sentiment")["space"].as_str().unwrap())
            && why.contains(encoder("other")["space"].as_str().unwrap())
    );
    let (unshared, shared) = (&explanation["weight_bytes_unshared"], &explanation["weight_bytes_shared"]);
    assert!(unshared.as_u64().unwrap() > 3 * shared.as_u64().unwrap() / 2);
}

#[test]
fn run_accepts_images_and_sounds() {
    for (family, task, input, file) in [
        ("clip", "image-classification", "--image", "media/photo.png"),
        ("vit", "image-classification", "--image", "media/photo.png"),
        ("whisper", "language-identification", "--audio", "media/speech.wav"),
    ] {
        let workspace = Workspace::with(family);
        let user = |name: &str| format!("[[user]]\nname = \"{name}\"\nmodel = \"{family}\"\ntask = \"{task}\"\n");
        fs::write(workspace.path("pipeline.toml"), user("a") + &user("b")).unwrap();
        let file = fixtures().join(file);
        // rten reproduces its bits; the fastest engine of this machine may differ by rounding.
        for (engine, tolerance) in [("rten", 0.0), ("auto", 1e-5)] {
            let file = file.to_str().unwrap();
            let run = ["run", "pipeline.toml", input, file, "--compare", "--json", "--engine", engine];
            let report = workspace.json(&run);
            assert!(report["max_abs_diff"].as_f64().unwrap() <= tolerance, "{family} {engine}");
            let stages = report["users"][1]["stages"].as_array().unwrap();
            assert!(stages.iter().all(|stage| stage["computed"] == false), "{family} {engine}");
        }
    }
}

#[test]
fn sound_is_ranked_against_texts() {
    let workspace = Workspace::with("bert");
    copy(&fixtures().join("sounds/clap-even"), &workspace.path("clap"));
    let audio = fixtures().join("tiny/audio/speech.flac");
    let given = ["run", "clap", "--audio", audio.to_str().unwrap(), "--text", "a dog", "--text", "rain", "--json"];
    let named = [&given[..2], &["zero-shot-audio-classification"], &given[2..]].concat();
    for run in [&given[..], &named] {
        let report = workspace.json(run);
        let user = &report["users"][0];
        assert_eq!(user["task"], "zero-shot-audio-classification");
        assert_eq!(user["answer"]["texts"].as_array().unwrap().len(), 2);
        assert_eq!(
            (&user["constants"][0]["name"], &user["constants"][0]["file"]),
            (&"logit_scale_a".into(), &"model.safetensors".into())
        );
    }
}

#[test]
fn transcription_obeys_token_limits() {
    let workspace = Workspace::with("whisper");
    let user = "[[user]]\nname = \"t\"\nmodel = \"whisper\"\ntask = \"transcription\"\nmin_new_tokens = 6\nmax_new_tokens = 6\n";
    fs::write(workspace.path("pipeline.toml"), user).unwrap();
    let audio = fixtures().join("media/speech.wav");
    let audio = audio.to_str().unwrap();
    let report = workspace.json(&["run", "pipeline.toml", "--audio", audio, "--compare", "--json", "--engine", "rten"]);
    assert_eq!((&report["users"][0]["answer"]["tokens"], &report["max_abs_diff"]), (&6.into(), &0.0.into()));
}

#[test]
fn models_and_completions_are_listed() {
    let workspace = Workspace::with("bert");
    let listed = workspace.json(&["models", "families", "--json"]);
    let listed: Vec<_> = listed["families"].as_array().unwrap().iter().map(|entry| &entry["family"]).collect();
    let documents = "bert t5 llama bart vit clip detr whisper wav2vec2 clap llava blip";
    assert!(documents.split(' ').all(|name| listed.iter().any(|family| *family == name)), "{listed:?}");
    assert!(!workspace.run(&["completions", "bash"]).stdout.is_empty());
    assert_eq!(workspace.run(&["no-such-command"]).status.code(), Some(2));
}

#[test]
fn bad_pipelines_are_refused() {
    let workspace = Workspace::with("bert");
    workspace.expect_error(&["run", "none.toml", "--text", "x"], &["none.toml"]);
    workspace.expect_error(&["run", "pipeline.toml"], &["--text"]);
    workspace.expect_error(&["run", "pipeline.toml", "--text", "x", "--max-memory", "0"], &["--max-memory"]);
    workspace.expect_error(&["demo", "--scenario", "opera"], &["--scenario", "opera"]);
    workspace.expect_error(&["demo", "--hardware", "webgpu"], &["--hardware", "browser"]);
    for (pipeline, names) in [
        ("[[user", &["pipeline.toml", "TOML"][..]),
        ("[[user]]\nname='a'\nmodel='bert'\ntask='transcription'\n", &["a.task", "BERT"]),
        ("[[user]]\nname='a'\nmodel='none'\ntask='sentence-embedding'\n", &["none"]),
        ("[[user]]\nname='a'\nmodel='bert'\ntask='text-classification'\nhead='../head'\n", &["head"]),
        ("[[user]]\nname='a'\nmodel='bert'\ntask='text-classification'\nhead='absent'\n", &["absent.onnx"]),
    ] {
        fs::write(workspace.path("pipeline.toml"), pipeline).unwrap();
        workspace.expect_error(&["run", "pipeline.toml", "--text", "x"], names);
    }
}

#[test]
fn bad_models_are_refused() {
    let change = |file: &str, content: Option<&[u8]>, names: &[&str]| {
        let workspace = Workspace::with("bert");
        let path = workspace.path("bert").join(file);
        match content {
            Some(content) => fs::write(path, content).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        workspace.expect_error(&["run", "pipeline.toml", "--text", "x"], names);
    };
    change("config.json", Some(b"{}"), &["config.json", "model_type"]);
    change("config.json", Some(br#"{"model_type": "gpt_neox"}"#), &["config.json", "model_type", "gpt_neox"]);
    change("config.json", None, &["config.json"]);
    change("tokenizer.json", None, &["tokenizer.json"]);
    change("tokenizer.json", Some(b"{\"model\": 3}"), &["tokenizer.json"]);
    change("onnx/model.onnx", Some(b"not an onnx file"), &["model.onnx"]);
    change("onnx/model.onnx", None, &["onnx/model.onnx"]);
    change("onnx/model.onnx_data", None, &["model.onnx"]);
    change("onnx/model.onnx_data", Some(b"short"), &["model.onnx"]);
    let workspace = Workspace::with("bert");
    let graph = workspace.path("bert/onnx/model.onnx");
    let half = fs::read(&graph).unwrap();
    fs::write(&graph, &half[..half.len() / 2]).unwrap();
    workspace.expect_error(&["run", "pipeline.toml", "--text", "x"], &["model.onnx"]);
}

#[test]
fn bad_inputs_are_refused() {
    let workspace = Workspace::with("clip");
    fs::write(workspace.path("pipeline.toml"), "[[user]]\nname='a'\nmodel='clip'\ntask='image-classification'\n")
        .unwrap();
    let photo = fs::read(fixtures().join("media/photo.png")).unwrap();
    for (name, bytes) in [("empty.png", &b""[..]), ("half.png", &photo[..photo.len() / 2]), ("text.png", b"no image")] {
        fs::write(workspace.path(name), bytes).unwrap();
        workspace.expect_error(&["run", "pipeline.toml", "--image", name], &[name]);
    }
    workspace.expect_error(&["run", "pipeline.toml", "--image", "absent.png"], &["absent.png"]);
    let workspace = Workspace::with("whisper");
    fs::write(workspace.path("pipeline.toml"), "[[user]]\nname='a'\nmodel='whisper'\ntask='audio-classification'\n")
        .unwrap();
    let clip = fs::read(fixtures().join("media/speech.wav")).unwrap();
    for (name, bytes) in [("empty.wav", &b""[..]), ("half.wav", &clip[..clip.len() / 2]), ("header.wav", &clip[..44])] {
        fs::write(workspace.path(name), bytes).unwrap();
        workspace.expect_error(&["run", "pipeline.toml", "--audio", name], &[name]);
    }
}

#[test]
fn external_data_outside_the_folder_is_refused() {
    let workspace = Workspace::with("bert");
    let graph = workspace.path("bert/onnx/model.onnx");
    let mut bytes = fs::read(&graph).unwrap();
    let (inside, outside) = (&b"model.onnx_data"[..], &b"../../../secret"[..]);
    let found: Vec<usize> = (0..bytes.len() - inside.len()).filter(|&at| bytes[at..].starts_with(inside)).collect();
    assert!(!found.is_empty());
    found.into_iter().for_each(|at| bytes[at..at + outside.len()].copy_from_slice(outside));
    fs::write(&graph, bytes).unwrap();
    workspace.expect_error(&["run", "pipeline.toml", "--text", "x"], &["model.onnx", "../../../secret"]);
    workspace.expect_error(&["explain", "pipeline.toml"], &["model.onnx", "../../../secret"]);
}

/// A WAV file of 32-bit floats, mono, 16 kHz.
fn float_wav(samples: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let bytes = u32::try_from(data.len()).unwrap();
    let mut file = [*b"RIFF", (36 + bytes).to_le_bytes(), *b"WAVE", *b"fmt ", 16u32.to_le_bytes()].concat();
    // Format 3 is float; channels, rate, bytes per second, bytes per frame, bits per sample.
    file.extend([3u16, 1].iter().flat_map(|field| field.to_le_bytes()));
    file.extend([16_000u32, 64_000].iter().flat_map(|field| field.to_le_bytes()));
    file.extend([4u16, 32].iter().flat_map(|field| field.to_le_bytes()));
    file.extend([*b"data", bytes.to_le_bytes()].concat());
    file.extend(data);
    file
}

#[test]
fn silence_is_accepted_and_invalid_sound_refused() {
    let workspace = Workspace::with("whisper");
    let user = "[[user]]\nname = \"a\"\nmodel = \"whisper\"\ntask = \"audio-classification\"\n";
    fs::write(workspace.path("pipeline.toml"), user).unwrap();
    let run = |name: &'static str| ["run", "pipeline.toml", "--audio", name];
    fs::write(workspace.path("silence.wav"), float_wav(&[0.0; 1600])).unwrap();
    assert_eq!(workspace.run(&run("silence.wav")).status.code(), Some(0));
    fs::write(workspace.path("nan.wav"), float_wav(&[0.0, f32::NAN, 0.5])).unwrap();
    workspace.expect_error(&run("nan.wav"), &["nan.wav"]);
    fs::write(workspace.path("none.wav"), float_wav(&[])).unwrap();
    workspace.expect_error(&run("none.wav"), &["none.wav"]);
    // The features of 30 s take 0.9 MiB.
    workspace.expect_error(&[&run("silence.wav")[..], &["--max-memory", "1MiB"]].concat(), &["budget of 1.00 MiB"]);
}

#[test]
fn unread_input_is_refused() {
    let workspace = Workspace::with("bert");
    fs::copy(fixtures().join("tiny/images/tall.png"), workspace.path("a.png")).unwrap();
    workspace.expect_error(&["run", "pipeline.toml", "--text", "a b", "--image", "a.png"], &["--image", "no user"]);
}

#[test]
fn version_names_the_engines() {
    let workspace = Workspace::with("bert");
    let version = workspace.json(&["version", "--json"]);
    let engines: Vec<&str> =
        version["engines"].as_array().unwrap().iter().map(|engine| engine["name"].as_str().unwrap()).collect();
    assert!(engines.contains(&"rten") && version["protocol"].is_u64(), "{version}");
}
