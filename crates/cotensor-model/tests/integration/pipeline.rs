//! Pipelines over one store: shared computations and weights, refusals, and unchanged answers.

use crate::support::{TEXT, change_a_weight, copy, inputs, runtime, tiny, user};
use cotensor_core::{ErrorKind, Kind};
use cotensor_model::Runtime;
use cotensor_model::engine::{FileMode, RtenEngine};
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::{Inputs, Pipeline, User, UserReport, explain, run_user};
use cotensor_store::{LocalStore, SharingConfig};
use std::path::Path;
use std::sync::{Arc, Barrier};

/// Three users of one tiny model.
fn three_users(family: &str) -> [User; 3] {
    let tasks = match family {
        "bert" => ["text-classification", "token-classification", "sentence-embedding"],
        "vit" => ["image-classification", "image-embedding", "image-embedding"],
        "clip" => ["zero-shot-image-classification", "image-text-retrieval", "image-embedding"],
        "deit" => ["image-embedding", "image-embedding", "image-embedding"],
        "siglip" => ["zero-shot-image-classification", "image-text-retrieval", "image-embedding"],
        "detr" => ["object-detection", "object-detection", "object-detection"],
        "whisper" => ["transcription", "language-identification", "audio-classification"],
        other => panic!("{other} has no tiny model"),
    };
    let mut users = [0, 1, 2].map(|index| user(&format!("user {index}"), family, tasks[index]));
    match family {
        "bert" => users[1].head = Some("head.entities".to_owned()),
        "clip" | "siglip" => users[0].texts = ["a cat", "a dog", "a harbour"].map(str::to_owned).to_vec(),
        "detr" => (users[0].threshold, users[1].threshold) = (Some(0.0), Some(0.9)),
        "whisper" => (users[0].min_new_tokens, users[0].max_new_tokens) = (Some(6), Some(6)),
        _ => {}
    }
    users
}

fn run(runtime: &Arc<Runtime>, folder: &Path, user: &User) -> UserReport {
    let model = runtime.open(folder).unwrap();
    run_user(&model, user, &inputs(), &runtime.store().holder(&user.name)).unwrap()
}

/// Runs the task as a program without Cotensor would.
fn run_alone(folder: &Path, user: &User) -> UserReport {
    let model =
        Model::open(folder, StageSource::Private(Arc::new(RtenEngine::new(Some(1)).plain()).into(), FileMode::Read))
            .unwrap();
    run_user(&model, user, &inputs(), &runtime(LocalStore::builder()).store().holder("alone")).unwrap()
}

fn same_bits(a: &UserReport, b: &UserReport) {
    assert_eq!((a.outputs.len(), &a.answer), (b.outputs.len(), &b.answer));
    assert!(!a.outputs.is_empty());
    for (a, b) in a.outputs.iter().zip(&b.outputs) {
        assert_eq!(a.max_abs_diff(b), 0.0, "{}", a.name);
    }
}

/// Whether the user computed the stage that all users of its family share.
fn computed_encoder(report: &UserReport) -> bool {
    let encoder =
        report.stages.iter().find(|stage| ["encoder", "vision_tower", "detector"].contains(&stage.role.as_str()));
    encoder.unwrap().computed
}

#[test]
fn later_users_share_the_encoder_and_every_output_is_bit_equal() {
    for family in ["bert", "vit", "deit", "clip", "siglip", "detr", "whisper"] {
        let runtime = runtime(LocalStore::builder());
        let users = three_users(family);
        let reports = users.each_ref().map(|user| run(&runtime, &tiny(family), user));
        assert_eq!(reports.each_ref().map(computed_encoder), [true, false, false], "{family}");
        for (user, report) in users.iter().zip(&reports) {
            let alone = run_alone(&tiny(family), user);
            assert!(alone.stages.iter().all(|stage| stage.computed && stage.space.is_none()), "{family}");
            same_bits(report, &alone);
        }
        // A second run computes nothing.
        for (user, report) in users.iter().zip(&reports) {
            let again = run(&runtime, &tiny(family), user);
            assert!(again.stages.iter().all(|stage| !stage.computed), "{family} {}", user.task);
            same_bits(report, &again);
        }
    }
}

#[test]
fn concurrent_users_compute_the_encoder_once() {
    let runtime = runtime(LocalStore::builder());
    let start = Barrier::new(4);
    let reports: Vec<UserReport> = std::thread::scope(|scope| {
        let one = |index: usize| {
            let (runtime, start) = (&runtime, &start);
            scope.spawn(move || {
                let user = user(&format!("user {index}"), "bert", "sentence-embedding");
                start.wait();
                run(runtime, &tiny("bert"), &user)
            })
        };
        let threads: Vec<_> = (0..4).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(reports.iter().filter(|report| computed_encoder(report)).count(), 1);
    let alone = run_alone(&tiny("bert"), &user("alone", "bert", "sentence-embedding"));
    reports.iter().for_each(|report| same_bits(report, &alone));
}

#[test]
fn copy_of_a_folder_shares_space_weights_and_results() {
    let place = tempfile::tempdir().unwrap();
    for family in ["bert", "vit", "whisper"] {
        let runtime = runtime(LocalStore::builder());
        let users = three_users(family);
        let folder = place.path().join(family);
        copy(&tiny(family), &folder);
        let models = [tiny(family), folder].map(|folder| runtime.open(&folder).unwrap());
        let stages = models.each_ref().map(|model| model.stage("encoder").unwrap());
        assert!(Arc::ptr_eq(&stages[0], &stages[1]), "one loaded graph");
        let run_on = |model: &Model| {
            users.each_ref().map(|user| run_user(model, user, &inputs(), &runtime.store().holder(&user.name)).unwrap())
        };
        let first = run_on(&models[0]);
        let used = runtime.store().stats().memory_usage_bytes;
        let second = run_on(&models[1]);
        let added = runtime.store().stats().memory_usage_bytes - used;
        assert!(added as f64 <= 0.03 * used as f64, "{family}: {added} of {used} bytes");
        assert!(second.iter().flat_map(|report| &report.stages).all(|stage| !stage.computed), "{family}");
        first.iter().zip(&second).for_each(|(first, second)| same_bits(first, second));
    }
}

#[test]
fn other_checkpoint_shares_equal_weights_but_no_results() {
    let place = tempfile::tempdir().unwrap();
    let other = place.path().join("other");
    copy(&tiny("bert"), &other);
    change_a_weight(&other);
    let runtime = runtime(LocalStore::builder());
    let user = user("first", "bert", "sentence-embedding");
    let models = [tiny("bert"), other.clone()].map(|folder| runtime.open(&folder).unwrap());
    let first = run(&runtime, &tiny("bert"), &user);
    let used = runtime.store().stats().memory_usage_bytes;
    let second = run(&runtime, &other, &user);
    let added = runtime.store().stats().memory_usage_bytes - used;
    assert!(computed_encoder(&first) && computed_encoder(&second));
    assert_ne!(first.stages[0].space, second.stages[0].space);
    assert!(added < used / 4, "equal weights are stored once: {added} of {used} bytes more");
    same_bits(&second, &run_alone(&other, &user));
    drop(models);

    let toml = |name: &str, folder: &Path| {
        format!("[[user]]\nname = '{name}'\nmodel = '{}'\ntask = 'sentence-embedding'\n", folder.display())
    };
    let pipeline = Pipeline::parse(&(toml("first", &tiny("bert")) + &toml("second", &other))).unwrap();
    let explanation = explain(&pipeline, Path::new(""), &runtime).unwrap();
    let [first, second] = explanation.stages.as_slice() else { panic!("{:?}", explanation.stages) };
    assert!(first.shared_with.is_empty() && second.shared_with.is_empty());
    let why = &first.not_shared[0];
    assert!(why.contains(&first.space) && why.contains(&second.space) && first.space != second.space, "{why}");
    assert!(explanation.weight_bytes_shared < explanation.weight_bytes_unshared * 3 / 4);

    // Equal heads over different encoders do not share results, either.
    let pipeline = pipeline.users.iter().map(|user| {
        let name = &user.name;
        format!("[[user]]\nname = '{name}'\nmodel = '{}'\ntask = 'text-classification'\n", user.model)
    });
    let pipeline = Pipeline::parse(&pipeline.collect::<String>()).unwrap();
    let explanation = explain(&pipeline, Path::new(""), &runtime).unwrap();
    let heads: Vec<_> = explanation.stages.iter().filter(|stage| stage.role.starts_with("head")).collect();
    let [first, second] = heads.as_slice() else { panic!("{:?}", explanation.stages) };
    assert_eq!((&first.space, first.shared_with.len(), second.shared_with.len()), (&second.space, 0, 0));
    assert!(first.not_shared[0].contains("different encoders"), "{:?}", first.not_shared);
}

#[test]
fn decodings_with_different_suppressed_tokens_are_not_shared() {
    // The concatenated lists are equal; only their lengths differ.
    let place = tempfile::tempdir().unwrap();
    let runtime = runtime(LocalStore::builder());
    let mut user = user("one", "whisper", "transcription");
    user.max_new_tokens = Some(3);
    let folders = [("a", [vec![5, -1], vec![7]]), ("b", [vec![5], vec![-1, 7]])].map(|(name, [all, first])| {
        let folder = place.path().join(name);
        copy(&tiny("whisper"), &folder);
        let file = folder.join("generation_config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        config["suppress_tokens"] = all.into();
        config["begin_suppress_tokens"] = first.into();
        std::fs::write(file, config.to_string()).unwrap();
        folder
    });
    for folder in &folders {
        let report = run(&runtime, folder, &user);
        same_bits(&report, &run_alone(folder, &user));
        assert!(
            report.stages.iter().any(|stage| stage.role == "decoder_with_past" && stage.computed),
            "its own decoding"
        );
    }
}

#[test]
fn refused_results_are_computed_privately_and_counted() {
    let refusing = |config: SharingConfig, reason: &str| {
        let runtime = runtime(LocalStore::builder().config(config));
        let users = three_users("bert");
        let model = runtime.open(&tiny("bert")).unwrap();
        for user in &users {
            let report = run(&runtime, &tiny("bert"), user);
            assert!(report.stages.iter().all(|stage| stage.computed), "{reason}: every user computes its own");
            same_bits(&report, &run_alone(&tiny("bert"), user));
        }
        let stats = runtime.store().stats();
        // Three encoders and two heads.
        assert_eq!(stats.refused.into_iter().collect::<Vec<_>>(), [(reason.to_owned(), 5)]);
        let tensors = runtime.store().diagnostics().tensors;
        assert!(!tensors.is_empty() && tensors.iter().all(|tensor| tensor.kind == Kind::Weight.name()), "weights only");
        drop(model);
    };
    let config = SharingConfig::default;
    refusing(SharingConfig { enable_shared_tensors: false, ..config() }, "sharing is disabled");
    refusing(SharingConfig { allowed_types: Some(vec![Kind::VisionEmbedding]), ..config() }, "kind not allowed");
    refusing(SharingConfig { max_shared_tensor_size_bytes: Some(7), ..config() }, "larger than allowed");
}

#[test]
fn too_small_budget_is_an_error_and_leaves_no_memory() {
    let unlimited = runtime(LocalStore::builder());
    let stage = unlimited.open(&tiny("bert")).unwrap().stage("encoder").unwrap();
    let weights = unlimited.store().stats().memory_usage_bytes;
    drop(stage);
    // The first budget is too small for the weights, the second for the encoder's 64 rows of 32 numbers.
    for max_memory_bytes in [weights / 2, weights + 64 * 32 * 4 - 1] {
        let runtime = runtime(LocalStore::builder().max_memory_bytes(max_memory_bytes));
        let model = runtime.open(&tiny("bert")).unwrap();
        let user = user("one", "bert", "sentence-embedding");
        let inputs = Inputs::default().with_text(TEXT.repeat(20));
        let holder = runtime.store().holder("one");
        let error = run_user(&model, &user, &inputs, &holder).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        assert!(error.to_string().contains(&cotensor_core::size(max_memory_bytes)), "{error}");
        drop(model);
        runtime.store().optimize();
        assert_eq!(runtime.store().stats().memory_usage_bytes, 0);
    }
}

#[test]
fn long_text_is_truncated_with_a_notice() {
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&tiny("bert")).unwrap();
    let mut user = user("entities", "bert", "token-classification");
    user.head = Some("head.entities".to_owned());
    let run = |text: &str| {
        let inputs = Inputs::default().with_text(text);
        run_user(&model, &user, &inputs, &runtime.store().holder("entities")).unwrap()
    };
    let (short, long) = (run(TEXT), run(&TEXT.repeat(40)));
    assert!(short.notices.is_empty(), "{:?}", short.notices);
    assert_eq!(long.notices.len(), 1);
    assert!(long.notices[0].contains("truncated") && long.notices[0].contains("The harbour"), "{:?}", long.notices);
    // model_max_length of tokenizer_config.json.
    assert_eq!(long.outputs[0].shape[1], 64);
    assert!(short.outputs[0].shape[1] < 64);
}

#[test]
fn missing_input_is_named() {
    let runtime = runtime(LocalStore::builder());
    for (family, task, option) in [
        ("bert", "sentence-embedding", "--text"),
        ("vit", "image-embedding", "--image"),
        ("clip", "image-text-retrieval", "--image"),
        ("whisper", "language-identification", "--audio"),
    ] {
        let model = runtime.open(&tiny(family)).unwrap();
        let user = user("one", family, task);
        let error = run_user(&model, &user, &Inputs::default(), &runtime.store().holder("one")).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.message().contains(option), "{family}: {error}");
    }
    let absent = Inputs::default().with_image(Path::new("absent.png")).unwrap_err();
    assert_eq!((absent.kind(), absent.file()), (ErrorKind::NotFound, Some(Path::new("absent.png"))));
    let model = runtime.open(&tiny("bert")).unwrap();
    let error = run_user(&model, &user("one", "bert", "juggling"), &inputs(), &runtime.store().holder("one"));
    assert_eq!(error.unwrap_err().field(), Some("one.task"));
}
