//! The configuration files of a model take effect.

use crate::support::{change_a_weight, copy, edit, fixtures, inputs, runtime, tiny, user};
use cotensor_core::{ErrorKind, Result};
use cotensor_model::engine::RtenEngine;
use cotensor_model::pipeline::{Answer, Inputs, TextEmbedder, User, UserReport, run_user};
use cotensor_model::preprocess::{ImageProcessor, TextProcessor, decode_image};
use cotensor_model::{ModelFolder, Runtime};
use cotensor_store::LocalStore;
use rten_onnx::onnx::DataType;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A copy of a tiny model.
fn folder(family: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&tiny(family), folder.path());
    folder
}

fn run_with(runtime: &Arc<Runtime>, folder: &Path, user: &User, inputs: &Inputs) -> Result<UserReport> {
    run_user(&*runtime.open(folder)?, user, inputs, &runtime.store().holder("one"))
}

fn run(folder: &Path, user: &User, inputs: &Inputs) -> Result<UserReport> {
    run_with(&runtime(LocalStore::builder()), folder, user, inputs)
}

/// Changes a field of a JSON file; null removes it.
fn set(folder: &Path, file: &str, field: &str, value: Value) {
    let path = folder.join(file);
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let fields = config.as_object_mut().unwrap();
    match value {
        Value::Null => drop(fields.remove(field)),
        value => drop(fields.insert(field.to_owned(), value)),
    }
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn special_tokens_in_the_text_keep_their_labels() {
    let mut entities = user("one", "bert", "token-classification");
    entities.head = Some("head.entities".to_owned());
    let text = Inputs::default().with_text("the [MASK] wakes [UNK] 東");
    let report = run(&tiny("bert"), &entities, &text).unwrap();
    let Answer::Tokens { tokens } = report.answer else { panic!("{:?}", report.answer) };
    let tokens: Vec<&str> = tokens.iter().map(|(token, _)| token.as_str()).collect();
    assert!(tokens.contains(&"[MASK]") && tokens.contains(&"[UNK]"), "{tokens:?}");
    assert!(!tokens.contains(&"[CLS]") && !tokens.contains(&"[SEP]"), "{tokens:?}");
}

#[test]
fn sizes_of_another_model_are_refused_by_their_field() {
    let text = Inputs::default().with_text("the harbour wakes");
    let embedding = user("one", "bert", "sentence-embedding");
    for (field, message) in [
        ("vocab_size", "10 words; the tokenizer gives token"),
        ("hidden_size", "10 numbers for each row; the graph gives 32"),
    ] {
        let folder = folder("bert");
        set(folder.path(), "config.json", field, 10.into());
        let model = runtime(LocalStore::builder()).open(folder.path()).unwrap();
        let errors = [
            run(folder.path(), &embedding, &text).unwrap_err(),
            TextEmbedder::open(&model)
                .and_then(|embedder| embedder.embed(&["the harbour wakes"], None, None))
                .unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
            assert_eq!(error.file(), Some(folder.path().join("config.json").as_path()), "{error}");
            assert!(error.message().contains(message), "{error}");
        }
    }
}

#[test]
fn tokenizer_config_sets_lower_case() {
    let folder = folder("bert");
    let ids = |lower: bool| {
        set(folder.path(), "tokenizer_config.json", "do_lower_case", lower.into());
        let batch = TextProcessor::open(&ModelFolder::new(folder.path())).unwrap().encode(&["The Harbour"]).unwrap();
        batch.ids.as_i64().unwrap().to_vec()
    };
    let lowered = TextProcessor::open(&ModelFolder::new(&tiny("bert"))).unwrap().encode(&["the harbour"]).unwrap();
    assert_eq!(ids(true), lowered.ids.as_i64().unwrap());
    assert_ne!(ids(false), lowered.ids.as_i64().unwrap());
    // Only BERT's classes read the field.
    set(folder.path(), "tokenizer_config.json", "tokenizer_class", "PreTrainedTokenizerFast".into());
    assert_eq!(ids(false), lowered.ids.as_i64().unwrap());
}

#[test]
fn missing_image_fields_have_the_defaults_of_the_class() {
    let photo = decode_image(&fs::read(fixtures().join("tiny/images/tall.png")).unwrap()).unwrap();
    for family in ["vit", "clip"] {
        let folder = folder(family);
        let whole = ImageProcessor::open(&ModelFolder::new(folder.path()), None).unwrap();
        for field in [
            "do_resize",
            "do_rescale",
            "do_normalize",
            "do_center_crop",
            "resample",
            "rescale_factor",
            "image_mean",
            "image_std",
        ] {
            set(folder.path(), "preprocessor_config.json", field, Value::Null);
        }
        let short = ImageProcessor::open(&ModelFolder::new(folder.path()), None).unwrap();
        assert_eq!(short.process(&photo).unwrap().as_f32().unwrap(), whole.process(&photo).unwrap().as_f32().unwrap());
        let sized = |size: Value| {
            set(folder.path(), "preprocessor_config.json", "size", size);
            set(folder.path(), "preprocessor_config.json", "do_center_crop", false.into());
            let (_, height, width) =
                ImageProcessor::open(&ModelFolder::new(folder.path()), None).unwrap().levels(&photo).unwrap();
            (height, width)
        };
        // 37 x 91 pixels; sizes as transformers' get_size_with_aspect_ratio and get_image_size_for_max_height_width
        // give them.
        assert_eq!(sized(json!({"shortest_edge": 32, "longest_edge": 64})), (64, 26), "{family}");
        assert_eq!(sized(json!({"shortest_edge": 32, "longest_edge": 640})), (78, 32), "{family}");
        assert_eq!(sized(json!({"max_height": 50, "max_width": 50})), (50, 20), "{family}");
        // A single number is a square or a shortest edge, depending on the class.
        assert_eq!(sized(32.into()), if family == "vit" { (32, 32) } else { (78, 32) });
        set(folder.path(), "preprocessor_config.json", "image_processor_type", "CLIPImageProcessorFast".into());
        assert!(ImageProcessor::open(&ModelFolder::new(folder.path()), None).is_ok());
        set(folder.path(), "preprocessor_config.json", "image_processor_type", "BeitImageProcessor".into());
        let error = ImageProcessor::open(&ModelFolder::new(folder.path()), None).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("image_processor_type")));
    }
}

#[test]
fn generation_config_lengths_stop_a_decoding_with_a_notice() {
    let folder = folder("whisper");
    let mut speech = user("one", "whisper", "transcription");
    let run = |user: &User| {
        let report = run(folder.path(), user, &inputs()).unwrap();
        let Answer::Transcript { tokens, .. } = report.answer else { panic!("{:?}", report.answer) };
        let stopped: Vec<String> = report.notices.into_iter().filter(|notice| notice.contains("stopped")).collect();
        (tokens, stopped)
    };
    set(folder.path(), "generation_config.json", "max_new_tokens", 3.into());
    set(folder.path(), "generation_config.json", "min_new_tokens", 3.into());
    let (tokens, notices) = run(&speech);
    assert!(tokens == 3 && notices.len() == 1 && notices[0].contains("generation_config.json"), "{tokens} {notices:?}");
    // max_length includes the prompt: start, language, task, no timestamps.
    set(folder.path(), "generation_config.json", "max_new_tokens", Value::Null);
    set(folder.path(), "generation_config.json", "max_length", 6.into());
    let (tokens, notices) = run(&speech);
    assert!(tokens < 6 && notices.len() == 1, "{tokens} {notices:?}");
    // The options of the user have precedence.
    (speech.min_new_tokens, speech.max_new_tokens) = (Some(7), Some(7));
    let (tokens, notices) = run(&speech);
    assert!(tokens == 7 && notices[0].contains("max_new_tokens"), "{tokens} {notices:?}");
}

#[test]
fn text_tower_of_fixed_length_gets_padded_rows() {
    let folder = folder("clip");
    let mut ranking = user("one", "clip", "zero-shot-image-classification");
    ranking.texts = vec!["a cat".to_owned(), "a photo of the harbour".to_owned()];
    let plain = run(folder.path(), &ranking, &inputs()).unwrap();
    edit(&folder.path().join("onnx/text_model.onnx"), |model| {
        for input in &mut model.graph.as_mut().unwrap().input {
            let shape = input.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape.as_mut().unwrap();
            for (dim, length) in shape.dim.iter_mut().zip([1, 24]) {
                (dim.dim_value, dim.dim_param) = (Some(length), None);
            }
        }
    });
    let fixed = run(folder.path(), &ranking, &inputs()).unwrap();
    for (fixed, plain) in fixed.outputs.iter().zip(&plain.outputs) {
        assert!(fixed.max_abs_diff(plain) < 1e-5, "{}", fixed.name);
    }
    // An implausible length is refused before memory is allocated.
    let error = TextProcessor::open(&ModelFolder::new(folder.path()))
        .unwrap()
        .encode_to(&["a cat"], Some(1 << 21))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // A longer text is truncated to the length of the graph.
    ranking.texts = vec!["a photo of the harbour ".repeat(20)];
    let cut = run(folder.path(), &ranking, &inputs()).unwrap();
    assert!(cut.notices.iter().any(|notice| notice.contains("truncated")), "{:?}", cut.notices);
    ranking.texts.truncate(1);
    ranking.texts[0] = "a cat".to_owned();
    set(folder.path(), "tokenizer_config.json", "pad_token", Value::Null);
    set(folder.path(), "tokenizer.json", "padding", Value::Null);
    let error = run(folder.path(), &ranking, &inputs()).unwrap_err();
    assert!(error.to_string().contains("24 tokens") && error.field() == Some("pad_token"), "{error}");
}

#[test]
fn bfloat16_graph_is_refused_with_the_name_of_its_file() {
    let folder = folder("bert");
    let path = folder.path().join("onnx/model.onnx");
    edit(&path, |model| {
        // A float has the bytes of two bfloat16 elements.
        for tensor in &mut model.graph.as_mut().unwrap().initializer {
            if tensor.data_type == Some(DataType::FLOAT) && tensor.dims.len() == 2 {
                tensor.data_type = Some(DataType::BFLOAT16);
                tensor.dims[1] *= 2;
            }
        }
    });
    let error = run(folder.path(), &user("one", "bert", "sentence-embedding"), &inputs()).unwrap_err();
    assert!(error.file().is_some_and(|file| file.ends_with("onnx/model.onnx")), "{error}");
    assert!(error.to_string().to_lowercase().contains("bfloat16"), "{error}");
}

#[test]
fn edited_folder_is_opened_again() {
    let folder = folder("bert");
    let runtime = Runtime::new(LocalStore::builder().build(), Arc::new(RtenEngine::new(Some(1))));
    let unchanged = [runtime.open(&tiny("bert")).unwrap(), runtime.open(&tiny("bert")).unwrap()];
    assert!(Arc::ptr_eq(&unchanged[0], &unchanged[1]));
    let embedding = user("one", "bert", "sentence-embedding");
    let first = run_with(&runtime, folder.path(), &embedding, &inputs()).unwrap();
    let model = runtime.open(folder.path()).unwrap();
    let kept = run_user(&model, &embedding, &inputs(), &runtime.store().holder("one")).unwrap();
    assert_eq!(kept.outputs, first.outputs);
    change_a_weight(folder.path());
    let second = run_with(&runtime, folder.path(), &embedding, &inputs()).unwrap();
    assert_ne!(second.stages[0].space, first.stages[0].space, "the weights are the new ones");
    // The open model is unchanged, and never mixes files of two times.
    let again = run_user(&model, &embedding, &inputs(), &runtime.store().holder("one")).unwrap();
    assert_eq!((&again.outputs, &again.stages[0].space), (&first.outputs, &first.stages[0].space));
    let labels = user("one", "bert", "text-classification");
    let error = run_user(&model, &labels, &inputs(), &runtime.store().holder("one")).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Conflict, Some(model.folder())), "{error}");
    assert!(run_with(&runtime, folder.path(), &labels, &inputs()).is_ok());
}
