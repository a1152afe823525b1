//! The relatives of BERT (fixtures/relatives): trunks, heads and scores equal those of the reference programs.

use crate::support::{References, difference, fixtures, runtime, runtimes, unpacked, user};
use cotensor_core::ErrorKind;
use cotensor_model::pipeline::{Answer, Inputs, TextEmbedder, run_user};
use cotensor_model::preprocess::position_limit;
use cotensor_model::tensor::Value;
use cotensor_store::LocalStore;
use std::collections::BTreeSet;

const RELATIVES: [&str; 9] = [
    "roberta",
    "xlm-roberta",
    "distilbert",
    "mpnet",
    "modernbert",
    "deberta-v2",
    "nomic_bert",
    "gte",
    "jina_embeddings_v3",
];
/// Models without a head that this program cuts off: see embedders.rs.
const EMBEDDERS: [&str; 2] = ["new", "eurobert"];
const QUERY: &str = "Who wakes first?";
const TEXTS: [&str; 2] = ["The Harbour wakes before the city does.", "A kitchen needs salt, and sharp knives."];
const TOLERANCE: f64 = 1e-4;

fn references() -> References {
    References::open(&fixtures().join("relatives/reference.safetensors"))
}

#[test]
fn every_relative_is_of_the_bert_family() {
    let known = &cotensor_model::family::family_of("bert").unwrap().model_types;
    let tested: BTreeSet<&str> = RELATIVES.into_iter().chain(EMBEDDERS).chain(["bert"]).collect();
    assert_eq!(known.iter().map(String::as_str).collect::<BTreeSet<_>>(), tested);
}

#[test]
fn trunks_and_heads_match_the_reference_at_two_shapes() {
    let references = references();
    for (kind, runtime) in RELATIVES.into_iter().flat_map(|kind| runtimes().into_iter().map(move |each| (kind, each))) {
        let folder = unpacked(&fixtures().join("relatives").join(kind));
        let model = runtime.open(folder.path()).unwrap();
        let trunk = model.stage("encoder").unwrap_or_else(|error| panic!("{kind}: {error}"));
        let head = model.own_head("encoder").unwrap().expect("the graph is cut");
        let holder = runtime.store().holder("test");
        for case in ["b1s7", "b3s16"] {
            let value = |name: &str| Value::from(references.array(&format!("{kind}.{case}.{name}")));
            let (ids, mask) = (value("in.input_ids"), value("in.attention_mask"));
            let inputs = [("input_ids", &ids), ("attention_mask", &mask)];
            let hidden = trunk.run(&inputs, &["last_hidden_state"], &holder).unwrap().outputs.remove(0);
            let expected = value("out.last_hidden_state");
            assert_eq!(hidden.shape(), expected.shape(), "{kind} {case}");
            let error = difference(&hidden.to_f32().unwrap(), &expected.to_f32().unwrap());
            assert!(error <= TOLERANCE, "{kind} {case}: {error:e}");
            let logits = head.run(&[("last_hidden_state", &hidden)], &["logits"], &holder).unwrap().outputs.remove(0);
            let (logits, expected) = (logits.to_f32().unwrap(), value("out.logits"));
            for (given, expected) in logits.iter().zip(&*expected.to_f32().unwrap()) {
                assert!((given - expected).abs() <= 1e-4, "{kind} {case}: {given} for {expected}");
            }
        }
    }
}

#[test]
fn rerankers_score_pairs_as_sentence_transformers_does() {
    let references = references();
    for (kind, runtime) in RELATIVES.into_iter().flat_map(|kind| runtimes().into_iter().map(move |each| (kind, each))) {
        let folder = unpacked(&fixtures().join("relatives").join(kind));
        let model = runtime.open(folder.path()).unwrap();
        let run = |texts: &[&str], name: &str| {
            let mut user = user(name, "model", "rerank");
            user.texts = texts.iter().map(|&text| text.to_owned()).collect();
            run_user(&model, &user, &Inputs::default().with_text(QUERY), &runtime.store().holder(name))
        };
        let report = run(&TEXTS, "one").unwrap();
        let expected = references.array(&format!("{kind}.scores"));
        for (given, expected) in report.outputs[0].values.iter().zip(expected.as_f32().unwrap()) {
            assert!((given - expected).abs() <= 2e-5, "{kind}: {given} for {expected}");
        }
        let Answer::Scores { texts } = &report.answer else { panic!("{:?}", report.answer) };
        assert!(texts.len() == 2 && texts[0].1 >= texts[1].1, "{texts:?}");
        // Another user with an equal pair computes nothing, whatever else the list has.
        let again = run(&[TEXTS[1], TEXTS[0], TEXTS[1]], "two").unwrap();
        assert!(again.stages.iter().filter(|stage| !stage.signature.is_empty()).all(|stage| !stage.computed), "{kind}");
        let error = run(&[], "three").unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("three.texts")), "{error}");
    }
}

/// With a tokenizer that has no limit of its own.
#[test]
fn long_texts_end_with_the_positions_of_the_model() {
    for (kind, runtime) in RELATIVES.into_iter().flat_map(|kind| runtimes().into_iter().map(move |each| (kind, each))) {
        let folder = unpacked(&fixtures().join("relatives").join(kind));
        let path = folder.path().join("tokenizer_config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config["model_max_length"] = serde_json::json!(1e30);
        std::fs::write(path, config.to_string()).unwrap();
        let model = runtime.open(folder.path()).unwrap();
        let mut user = user("one", "model", "rerank");
        user.texts = vec!["gulls ".repeat(100)];
        let report = run_user(&model, &user, &Inputs::default().with_text(QUERY), &runtime.store().holder("one"));
        assert!(report.is_ok(), "{kind}: {}", report.err().unwrap());
        let embedded = TextEmbedder::open(&model).and_then(|it| it.embed(&[&"gulls ".repeat(100)], None, None));
        let embedded = embedded.unwrap_or_else(|error| panic!("{kind}: {error}")).remove(0);
        let expected = position_limit(
            &serde_json::from_slice(&std::fs::read(folder.path().join("config.json")).unwrap()).unwrap(),
        )
        .unwrap();
        assert_eq!((embedded.is_truncated, Some(embedded.tokens)), (true, expected), "{kind}");
    }
}

#[test]
fn classifier_with_several_labels_is_no_reranker() {
    let folder = unpacked(&fixtures().join("forms/classification"));
    let runtime = runtime(LocalStore::builder());
    let mut user = user("one", "model", "rerank");
    user.texts = vec![TEXTS[0].to_owned()];
    let inputs = Inputs::default().with_text(QUERY);
    let model = runtime.open(folder.path()).unwrap();
    let error = run_user(&model, &user, &inputs, &runtime.store().holder("one")).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("gives 3"), "{error}");
}
