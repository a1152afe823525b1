//! The export forms of models (fixtures/forms): each gives the right answer, or an error with the reason.

use crate::support::onnx::engines;
use crate::support::{self, fixtures, runtime, user};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_model::Runtime;
use cotensor_model::family::Medium;
use cotensor_model::pipeline::{Answer, Inputs, TextEmbedder, User, UserReport, default_task, run_user};
use cotensor_store::LocalStore;
use safetensors::SafeTensors;
use std::fs;
use std::path::Path;

const TEXT: &str = "The Harbour wakes before the city does.";

/// A form's folder with its graphs unpacked and the tiny BERT's tokenizer.
fn unpacked(form: &str) -> tempfile::TempDir {
    support::unpacked(&fixtures().join("forms").join(form))
}

/// Runs the task on every engine: all agree, on the numbers or on the kind of the error.
fn run(folder: &Path, task: &str) -> Result<UserReport> {
    let inputs = Inputs::default().with_text(TEXT).with_image(&fixtures().join("tiny/images/tall.png"))?;
    let on = |engine| {
        let runtime = Runtime::new(LocalStore::builder().build(), engine);
        run_user(&*runtime.open(folder)?, &user("one", "model", task), &inputs, &runtime.store().holder("one"))
    };
    let mut results: Vec<Result<UserReport>> = engines().into_iter().map(on).collect();
    let last = results.pop().unwrap();
    for other in results {
        match (&other, &last) {
            (Ok(other), Ok(last)) => {
                for (a, b) in other.outputs.iter().zip(&last.outputs) {
                    // Half-precision graphs differ by the rounding of activations.
                    assert!(a.max_abs_diff(b) < 5e-4, "{task} {}: {}", a.name, a.max_abs_diff(b));
                }
            }
            (Err(other), Err(last)) => assert_eq!(other.kind(), last.kind(), "{other}; {last}"),
            _ => panic!("{task}: {other:?}; {last:?}"),
        }
    }
    last
}

fn reference(name: &str) -> Vec<f32> {
    let bytes = fs::read(fixtures().join("forms/reference.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let data = tensors.tensor(name).unwrap().data().to_vec();
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Compares the numbers of the report with a reference; `tolerance` is absolute.
fn matches_reference(report: &UserReport, name: &str, tolerance: f32) {
    let (given, expected) = (&report.outputs[0].values, reference(name));
    assert_eq!(given.len(), expected.len(), "{name}");
    let worst = given.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{name}: {worst}");
}

fn refused(result: Result<UserReport>, reasons: &[&str]) -> Error {
    let error = result.err().unwrap();
    assert!([ErrorKind::Unsupported, ErrorKind::Invalid, ErrorKind::NotFound].contains(&error.kind()), "{error}");
    reasons.iter().for_each(|reason| assert!(error.to_string().contains(reason), "{reason:?}: {error}"));
    error
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Writes the file that states the pooling.
fn state_pooling(folder: &Path) {
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    fs::write(folder.join("1_Pooling/config.json"), r#"{"pooling_mode": "mean"}"#).unwrap();
}

#[test]
fn pooling_that_no_file_states_is_refused_or_has_a_notice() {
    let folder = unpacked("trunk");
    refused(run(folder.path(), "sentence-embedding"), &["state no pooling", "--pooling cls", "1_Pooling/config.json"]);
    for (name, expects_mean) in [("Xenova/all-MiniLM-L6-v2", true), ("BAAI/bge-small-en-v1.5", false)] {
        set(folder.path(), "config.json", "_name_or_path", name.into());
        let report = run(folder.path(), "sentence-embedding").unwrap();
        assert_eq!(report.notices.len(), 1, "{:?}", report.notices);
        assert!(report.notices[0].contains(name), "{:?}", report.notices);
        let is_mean =
            report.outputs[0].values.iter().zip(reference("trunk.embedding")).all(|(a, b)| (a - b).abs() < 1e-5);
        assert_eq!(is_mean, expects_mean, "{name}");
    }
    state_pooling(folder.path());
    let report = run(folder.path(), "sentence-embedding").unwrap();
    assert!(report.notices.is_empty(), "{:?}", report.notices);
    matches_reference(&report, "trunk.embedding", 1e-5);
    // A pooling that is not set, or not known.
    for (pooling, reason) in [
        (r#"{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": false}"#, "no pooling is set"),
        (r#"{"pooling_mode_mean_tokens": true, "pooling_mode_attention": true}"#, "pooling_mode_attention"),
    ] {
        fs::write(folder.path().join("1_Pooling/config.json"), pooling).unwrap();
        refused(run(folder.path(), "sentence-embedding"), &["1_Pooling/config.json", reason]);
    }
    // What follows the pooling.
    state_pooling(folder.path());
    fs::create_dir(folder.path().join("2_Dense")).unwrap();
    fs::write(folder.path().join("2_Dense/config.json"), "{}").unwrap();
    refused(run(folder.path(), "sentence-embedding"), &["2_Dense/config.json", "no modules.json"]);
}

#[test]
fn missing_graph_is_an_error_that_lists_graphs_or_names_the_export() {
    let folder = unpacked("trunk");
    let graph = folder.path().join("onnx/model.onnx");
    fs::rename(&graph, folder.path().join("onnx/other.onnx")).unwrap();
    refused(
        run(folder.path(), "sentence-embedding"),
        &["onnx/model.onnx or model.onnx", "the folder has onnx/other.onnx"],
    );
    fs::remove_file(folder.path().join("onnx/other.onnx")).unwrap();
    fs::write(folder.path().join("model.safetensors"), "").unwrap();
    let command =
        format!("`optimum-cli export onnx --model {0} --task feature-extraction {0}/onnx`", folder.path().display());
    refused(run(folder.path(), "sentence-embedding"), &["no ONNX graph", &command]);
    // The graph of sentence-transformers' exporter.
    let folder = unpacked("trunk");
    state_pooling(folder.path());
    fs::rename(folder.path().join("onnx/model.onnx"), folder.path().join("onnx/model_O3.onnx")).unwrap();
    matches_reference(&run(folder.path(), "sentence-embedding").unwrap(), "trunk.embedding", 1e-5);
}

#[test]
fn user_chooses_a_pooling() {
    let folder = unpacked("trunk");
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(folder.path()).unwrap();
    let embed = |pooling: Option<&str>| TextEmbedder::open_pooled(&model, pooling)?.embed(&[TEXT], None, None);
    assert_eq!(embed(None).unwrap_err().field(), Some("1_Pooling/config.json"));
    let mean = embed(Some("mean")).unwrap().remove(0);
    assert_eq!(mean.notice, None);
    assert!(mean.values.iter().zip(reference("trunk.embedding")).all(|(a, b)| (a - b).abs() < 1e-5));
    assert_ne!(embed(Some("cls")).unwrap()[0].values, mean.values);
    let error = embed(Some("first")).unwrap_err();
    assert!(error.field() == Some("pooling") && error.to_string().contains("cls, max, mean"), "{error}");
}

#[test]
fn trunk_gives_the_mean_over_tokens_and_has_no_head() {
    let folder = unpacked("trunk");
    state_pooling(folder.path());
    matches_reference(&run(folder.path(), "sentence-embedding").unwrap(), "trunk.embedding", 1e-5);
    refused(run(folder.path(), "text-classification"), &["no such head"]);
}

#[test]
fn trunk_with_a_classification_head_does_only_that_task() {
    let folder = unpacked("classification");
    let report = run(folder.path(), "text-classification").unwrap();
    matches_reference(&report, "classification.logits", 1e-5);
    refused(run(folder.path(), "sentence-embedding"), &["architectures", "BertForSequenceClassification"]);
    state_pooling(folder.path());
    let Answer::Label { label, .. } = &report.answer else { panic!("{:?}", report.answer) };
    let logits = reference("classification.logits");
    let best = (0..3).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    assert_eq!(*label, ["negative", "neutral", "positive"][best]);
    matches_reference(&run(folder.path(), "sentence-embedding").unwrap(), "classification.embedding", 1e-5);
    refused(run(folder.path(), "token-classification"), &["BertForSequenceClassification", "token-classification"]);
    // Without the class in config.json, the shape decides.
    set(folder.path(), "config.json", "architectures", serde_json::Value::Null);
    refused(run(folder.path(), "token-classification"), &["one row for each token"]);
}

#[test]
fn token_classifier_does_not_classify_texts() {
    let folder = unpacked("token-classification");
    let report = run(folder.path(), "token-classification").unwrap();
    matches_reference(&report, "token-classification.logits", 1e-5);
    let Answer::Tokens { tokens } = &report.answer else { panic!("{:?}", report.answer) };
    assert!(tokens.iter().all(|(_, label)| ["O", "B-PLACE", "I-PLACE", "B-TIME"].contains(&label.as_str())));
    refused(run(folder.path(), "text-classification"), &["BertForTokenClassification"]);
    set(folder.path(), "config.json", "architectures", serde_json::Value::Null);
    refused(run(folder.path(), "text-classification"), &["one row for the whole input"]);
    // A list of names of another length is refused.
    set(folder.path(), "config.json", "id2label", serde_json::json!({"0": "O", "1": "B"}));
    refused(run(folder.path(), "token-classification"), &["2 labels", "4 numbers"]);
}

#[test]
fn fill_mask_model_is_cut_at_the_end_of_its_encoder_and_classifies_nothing() {
    let folder = unpacked("fill-mask");
    state_pooling(folder.path());
    matches_reference(&run(folder.path(), "sentence-embedding").unwrap(), "fill-mask.embedding", 1e-5);
    refused(run(folder.path(), "text-classification"), &["BertForMaskedLM"]);
    refused(run(folder.path(), "token-classification"), &["BertForMaskedLM"]);
    set(folder.path(), "config.json", "architectures", serde_json::Value::Null);
    refused(run(folder.path(), "text-classification"), &["one row for the whole input"]);
    refused(run(folder.path(), "token-classification"), &["predicts words"]);
    set(folder.path(), "config.json", "num_hidden_layers", 3.into());
    refused(run(folder.path(), "sentence-embedding"), &["cannot be cut", "3 encoder blocks"]);
}

#[test]
fn sentence_embedding_output_is_the_answer() {
    let folder = unpacked("sentence-embedding");
    matches_reference(&run(folder.path(), "sentence-embedding").unwrap(), "sentence-embedding.embedding", 1e-5);
    refused(run(folder.path(), "text-classification"), &["sentence_embedding", "last_hidden_state"]);
}

#[test]
fn pooling_files_take_effect_as_in_sentence_transformers() {
    let folder = unpacked("pooled");
    let report = run(folder.path(), "sentence-embedding").unwrap();
    matches_reference(&report, "pooled.max", 1e-5);
    assert!(report.notices.iter().any(|notice| notice.contains("truncated")), "max_seq_length is 7");
    let pooling = |mode: serde_json::Value| {
        let config = serde_json::json!({"embedding_dimension": 16, "pooling_mode": mode});
        fs::write(folder.path().join("1_Pooling/config.json"), config.to_string()).unwrap();
        run(folder.path(), "sentence-embedding")
    };
    for mode in ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"] {
        matches_reference(&pooling(mode.into()).unwrap(), &format!("pooled.{mode}"), 1e-5);
    }
    refused(pooling("median".into()), &["1_Pooling/config.json", "median"]);
    fs::remove_file(folder.path().join("1_Pooling/config.json")).unwrap();
    refused(run(folder.path(), "sentence-embedding"), &["1_Pooling/config.json is missing", "modules.json"]);
    let modules = folder.path().join("modules.json");
    let mut listed: serde_json::Value = serde_json::from_slice(&fs::read(&modules).unwrap()).unwrap();
    let mut add = |path: &str, class: &str| {
        listed.as_array_mut().unwrap().push(serde_json::json!({"idx": 2, "name": "2", "path": path, "type": class}));
        fs::write(&modules, listed.to_string()).unwrap();
    };
    add("2_Normalize", "sentence_transformers.models.Normalize");
    matches_reference(&pooling(serde_json::json!(["max", "mean"])).unwrap(), "pooled.max.mean.normalized", 1e-5);
    add("3_Dense", "sentence_transformers.models.Dense");
    refused(pooling("mean".into()), &["3_Dense/config.json", "needs this file"]);
    add("../elsewhere", "sentence_transformers.models.Normalize");
    refused(pooling("mean".into()), &["plain folder name"]);
}

#[test]
fn decoder_gives_the_vector_of_the_last_token_as_sentence_transformers_does() {
    let folder = unpacked("decoder-embedding");
    let run = |prompt: Option<&str>| {
        let user = User { prompt_name: prompt.map(str::to_owned), ..user("one", "model", "sentence-embedding") };
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(folder.path())?;
        assert_eq!(default_task(&model, &[Medium::Text])?.name, "sentence-embedding");
        run_user(&model, &user, &Inputs::default().with_text(TEXT), &runtime.store().holder("one"))
    };
    matches_reference(&run(None).unwrap(), "decoder-embedding.embedding", 1e-5);
    matches_reference(&run(Some("query")).unwrap(), "decoder-embedding.query", 1e-5);
    assert_eq!(run(Some("document")).unwrap().outputs, run(None).unwrap().outputs);
    // Without the files of sentence-transformers, the folder is a decoder, and its graph gives no logits.
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    refused(super::export_forms::run(folder.path(), "sentence-embedding"), &["sentence-embedding", "text-generation"]);
    refused(super::export_forms::run(folder.path(), "text-generation"), &["logits"]);
}

#[test]
fn prompts_are_chosen_by_name_as_in_sentence_transformers() {
    let folder = unpacked("pooled");
    let write = |name: &str, value: serde_json::Value| fs::write(folder.path().join(name), value.to_string()).unwrap();
    write("sentence_bert_config.json", serde_json::json!({"max_seq_length": 32, "do_lower_case": true}));
    let prompts = serde_json::json!({"query": "who wakes: ", "passage": "a text: "});
    write("config_sentence_transformers.json", serde_json::json!({"prompts": prompts, "default_prompt_name": null}));
    let run = |prompt: Option<&str>| {
        let mut user = user("one", "model", "sentence-embedding");
        user.prompt_name = prompt.map(str::to_owned);
        let runtime = runtime(LocalStore::builder());
        let inputs = Inputs::default().with_text(TEXT);
        run_user(&*runtime.open(folder.path())?, &user, &inputs, &runtime.store().holder("one"))
    };
    for (includes, name) in [(true, "pooled.query"), (false, "pooled.query.without_prompt")] {
        write("1_Pooling/config.json", serde_json::json!({"pooling_mode": "mean", "include_prompt": includes}));
        matches_reference(&run(Some("query")).unwrap(), name, 1e-5);
    }
    let values = |prompt| run(prompt).unwrap().outputs.remove(0).values;
    // The third name of a document's prompt; a user without a name gets none.
    assert_eq!(values(Some("document")), values(Some("passage")));
    assert_ne!(values(Some("document")), values(None));
    refused(run(Some("summary")), &["summary", "passage, query"]);
}

#[test]
fn pooler_output_is_not_taken_for_logits() {
    let folder = unpacked("pooled");
    let graph = folder.path().join("onnx/model.onnx");
    let mut model = rten_onnx::onnx::ModelProto::parse_buf(&fs::read(&graph).unwrap()).unwrap();
    let outputs = &mut model.graph.as_mut().unwrap().output;
    outputs.retain(|output| output.name.as_deref() == Some("pooler_output"));
    fs::write(&graph, model.write_buf().unwrap()).unwrap();
    // The pooler reads the result of the encoder, so the graph still has the trunk.
    assert!(run(folder.path(), "sentence-embedding").is_ok());
    refused(run(folder.path(), "text-classification"), &["a head gives logits", "pooler_output"]);
}

#[test]
fn half_precision_weights_give_the_same_logits() {
    let folder = unpacked("fp16");
    match run(folder.path(), "text-classification") {
        Ok(report) => matches_reference(&report, "fp16.logits", 5e-3),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn external_data_beside_a_graph_in_the_model_folder_is_read() {
    let folder = unpacked("external-data");
    matches_reference(&run(folder.path(), "token-classification").unwrap(), "external-data.logits", 1e-5);
}

#[test]
fn optimum_export_with_expanded_normalizations_is_cut_and_answers_each_label() {
    let folder = unpacked("optimum-names");
    let report = run(folder.path(), "text-classification").unwrap();
    matches_reference(&report, "optimum-names.logits", 1e-5);
    assert_eq!(report.stages.len(), 2, "trunk and head");
    let Answer::Labels { labels } = &report.answer else { panic!("{:?}", report.answer) };
    let logits = reference("optimum-names.logits");
    for (label, probability) in labels {
        let index = ["negative", "neutral", "positive"].iter().position(|known| known == label).unwrap();
        assert!((probability - sigmoid(logits[index])).abs() < 1e-5);
    }
    let problem = |problem: &str| {
        set(folder.path(), "config.json", "problem_type", problem.into());
        run(folder.path(), "text-classification")
    };
    let Answer::Numbers { numbers } = problem("regression").unwrap().answer else { panic!("numbers") };
    assert!(numbers.iter().zip(&logits).all(|((_, number), logit)| (number - logit).abs() < 1e-5));
    assert!(matches!(problem("single_label_classification").unwrap().answer, Answer::Label { .. }));
    refused(problem("guess"), &["problem_type", "guess"]);
}

#[test]
fn processor_config_is_sufficient() {
    let folder = unpacked("processor-config");
    matches_reference(&run(folder.path(), "image-classification").unwrap(), "processor-config.logits", 1e-2);
    // The part for images takes effect.
    let path = folder.path().join("processor_config.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("ViTImageProcessor", "VitMatteImageProcessor")).unwrap();
    refused(run(folder.path(), "image-classification"), &["processor_config.json", "VitMatteImageProcessor"]);
}

/// Changes a field of a JSON file; null removes it.
fn set(folder: &Path, file: &str, field: &str, value: serde_json::Value) {
    let path = folder.join(file);
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let fields = config.as_object_mut().unwrap();
    match value {
        serde_json::Value::Null => drop(fields.remove(field)),
        value => drop(fields.insert(field.to_owned(), value)),
    }
    fs::write(path, config.to_string()).unwrap();
}
