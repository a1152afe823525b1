//! Modules of sentence-transformers after a graph (fixtures/modules): embeddings equal those of its encode.

use crate::support::{References, check_row, copy, fixtures, runtimes, unpacked, user};
use cotensor_core::{Error, ErrorKind};
use cotensor_model::pipeline::{Inputs, TextEmbedder, run_user};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const TEXTS: [&str; 4] = [
    "The Harbour wakes before the city does.",
    "Gulls.",
    "Two ferries leave at six, and the third one waits for the train that comes from the mountains with the mail.",
    "Nets dry on the quay.",
];

fn folder(case: &str) -> tempfile::TempDir {
    let folder = unpacked(&fixtures().join("forms/trunk"));
    copy(&fixtures().join("modules").join(case), folder.path());
    folder
}

fn set(folder: &Path, file: &str, field: &str, value: Value) {
    let path = folder.join(file);
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    fs::write(path, config.to_string()).unwrap();
}

/// The embeddings of all texts on the first engine.
fn embed(folder: &Path) -> Result<Vec<Vec<f32>>, Error> {
    let runtime = runtimes().remove(0);
    let embedder = TextEmbedder::open(&runtime.open(folder)?)?;
    Ok(embedder.embed(&TEXTS, None, None)?.into_iter().map(|embedding| embedding.values).collect())
}

#[test]
fn modules_give_the_embeddings_of_sentence_transformers() {
    let references = References::open(&fixtures().join("modules/reference.safetensors"));
    for (case, runtime) in
        ["after", "before"].into_iter().flat_map(|case| runtimes().into_iter().map(move |each| (case, each)))
    {
        let folder = folder(case);
        let embedder = TextEmbedder::open(&runtime.open(folder.path()).unwrap()).unwrap();
        let expected = references.array(case);
        let check = |values: &[f32], at: usize| check_row(values, &expected, at, case);
        for (at, embedding) in embedder.embed(&TEXTS, None, None).unwrap().iter().enumerate() {
            check(&embedding.values, at);
            check(&embedder.embed(&[TEXTS[at]], None, None).unwrap()[0].values, at);
        }
    }
}

#[test]
fn embeddings_in_the_store_belong_to_the_weights_of_the_modules() {
    let folder = folder("after");
    let runtime = runtimes().remove(0);
    let holder = runtime.store().holder("one");
    let embed = || {
        let embedder = TextEmbedder::open(&runtime.open(folder.path()).unwrap()).unwrap();
        embedder.embed(&TEXTS, None, Some(&holder)).unwrap().remove(0).values
    };
    let first = embed();
    let tensors = runtime.store().stats().total_tensors;
    assert_eq!(
        (embed(), runtime.store().stats().total_tensors),
        (first.clone(), tensors),
        "the second call computes nothing"
    );
    let path = folder.path().join("4_Dense/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 0x40;
    fs::write(path, bytes).unwrap();
    assert_ne!(embed(), first);
}

#[test]
fn flags_are_true_or_false_and_null_is_false() {
    const POOLING: &str = "1_Pooling/config.json";
    for (file, field) in [
        (POOLING, "include_prompt"),
        (POOLING, "pooling_mode_max_tokens"),
        ("sentence_bert_config.json", "do_lower_case"),
    ] {
        let folder = folder("after");
        fs::write(folder.path().join(POOLING), json!({"pooling_mode_mean_tokens": true}).to_string()).unwrap();
        let plain = embed(folder.path()).unwrap();
        set(folder.path(), file, field, Value::Null);
        assert_eq!(embed(folder.path()).unwrap(), plain, "{field}");
        for other in [json!(1), json!("false")] {
            set(folder.path(), file, field, other);
            let error = embed(folder.path()).unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
            assert_eq!(error.file(), Some(folder.path().join(file).as_path()));
        }
    }
}

#[test]
fn folder_of_two_modules_is_refused() {
    let folder = folder("after");
    let path = folder.path().join("modules.json");
    let mut listed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let second = listed[2].clone();
    listed.as_array_mut().unwrap().insert(3, second);
    fs::write(&path, listed.to_string()).unwrap();
    let error = embed(folder.path()).unwrap_err();
    assert_eq!((error.kind(), error.field(), error.file()), (ErrorKind::Invalid, Some("[3].path"), Some(&*path)));
}

#[test]
fn module_that_cannot_be_applied_is_refused_by_file_and_field() {
    let refused = |change: &dyn Fn(&Path), kind: ErrorKind, file: &str, field: Option<&str>, words: &str| {
        let folder = folder("after");
        change(folder.path());
        let error = embed(folder.path()).unwrap_err();
        let named =
            error.file().map(|path| path.strip_prefix(folder.path()).unwrap_or(path).to_string_lossy().into_owned());
        assert_eq!((error.kind(), named.as_deref(), error.field()), (kind, Some(file), field), "{error}");
        assert!(error.message().contains(words) && error.message().contains("export the graph"), "{error}");
    };
    let (config, weights) = ("2_Dense/config.json", "2_Dense/model.safetensors");
    let field = |name: &'static str, value: Value| move |folder: &Path| set(folder, config, name, value.clone());
    let unsupported = ErrorKind::Unsupported;
    let gelu = "torch.nn.modules.activation.GELU";
    refused(&field("activation_function", gelu.into()), unsupported, config, Some("activation_function"), "GELU");
    refused(&field("use_residual", true.into()), unsupported, config, Some("use_residual"), "residual");
    refused(
        &field("module_input_name", "scores".into()),
        unsupported,
        config,
        Some("module_input_name"),
        "token_embeddings",
    );
    refused(
        &field("module_output_name", "token_embeddings".into()),
        unsupported,
        config,
        Some("module_output_name"),
        "writes",
    );
    refused(&field("in_features", json!(1u64 << 40)), ErrorKind::Invalid, config, Some("in_features"), "65536");
    refused(&field("in_features", 8.into()), ErrorKind::Corrupt, weights, Some("linear.weight"), "[24,16]");
    refused(&field("bias", false.into()), ErrorKind::Corrupt, weights, Some("linear.bias"), "no such tensor");
    refused(
        &|folder| fs::remove_file(folder.join(config)).unwrap(),
        ErrorKind::NotFound,
        config,
        None,
        "needs this file",
    );
    refused(
        &|folder| fs::remove_file(folder.join(weights)).unwrap(),
        ErrorKind::NotFound,
        weights,
        None,
        "needs this file",
    );
    let pickled = |folder: &Path| fs::rename(folder.join(weights), folder.join("2_Dense/pytorch_model.bin")).unwrap();
    refused(&pickled, unsupported, weights, None, "2_Dense/pytorch_model.bin only");
    let cut = |folder: &Path| {
        let bytes = fs::read(folder.join(weights)).unwrap();
        fs::write(folder.join(weights), &bytes[..bytes.len() - 4]).unwrap();
    };
    refused(&cut, ErrorKind::Corrupt, weights, Some("linear.weight"), "out of range");
    let infinite = |folder: &Path| {
        let mut bytes = fs::read(folder.join(weights)).unwrap();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
        fs::write(folder.join(weights), bytes).unwrap();
    };
    refused(&infinite, ErrorKind::Corrupt, weights, Some("linear.weight"), "not finite");
    let listed = |class: &'static str| {
        move |folder: &Path| {
            let path = folder.join("modules.json");
            let mut listed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            listed[3]["type"] = class.into();
            fs::write(path, listed.to_string()).unwrap();
        }
    };
    for class in
        ["sentence_transformers.base.modules.router.Router", "sentence_transformers.models.CNN", "own.LayerNorm"]
    {
        refused(&listed(class), unsupported, "modules.json", Some("[3].type"), class.rsplit('.').next().unwrap());
    }
    let gives =
        |folder: &Path| set(folder, "sentence_bert_config.json", "module_output_name", "sentence_embedding".into());
    refused(&gives, unsupported, "sentence_bert_config.json", Some("module_output_name"), "sentence_embedding");
}

#[test]
fn vector_of_another_width_than_a_module_reads_is_refused() {
    let folder = folder("after");
    let modes = json!(["mean", "max"]);
    set(folder.path(), "1_Pooling/config.json", "pooling_mode", modes);
    let error = embed(folder.path()).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("in_features")), "{error}");
    assert!(error.message().contains("2_Dense reads vectors of 16 numbers, and these have 32"), "{error}");
}

/// The graph gives the embedding, but not of the tokens that the model was trained on.
#[test]
fn settings_that_change_tokens_are_refused_whatever_the_graph_gives() {
    let file = "sentence_bert_config.json";
    let pooled = unpacked(&fixtures().join("forms/sentence-embedding"));
    assert!(embed(pooled.path()).is_ok());
    for folder in [pooled, folder("after")] {
        set(folder.path(), file, "query_length", 32.into());
        let error = embed(folder.path()).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("query_length")), "{error}");
        assert_eq!(error.file(), Some(folder.path().join(file).as_path()));
        let runtime = runtimes().remove(0);
        let model = runtime.open(folder.path()).unwrap();
        let inputs = Inputs::default().with_text(TEXTS[0]);
        let run =
            run_user(&model, &user("one", "model", "sentence-embedding"), &inputs, &runtime.store().holder("one"));
        assert_eq!(run.unwrap_err().field(), Some("query_length"));
    }
}
