//! The forms of other servers, and the list of models.

use crate::server::{Server, model, numbers, offline, unpacked};
use cotensor_serving::ServingOptions;
use serde_json::{Value, json};
use std::path::Path;

const DOCUMENTS: [&str; 3] = ["gulls", "a crane lifts grain", "nets dry on the quay"];

fn ok(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = server.post(path, body);
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

#[test]
fn rankings_have_the_forms_of_other_servers() {
    let server = Server::start(ServingOptions::default());
    let folder = unpacked("relatives/roberta");
    let model = folder.path();
    let body = json!({"model": model, "query": "who lifts grain?", "documents": DOCUMENTS});
    let first = ok(&server, "/v1/rerank", &body);
    assert_eq!(first["results"].as_array().unwrap().len(), 3);
    for (path, version) in [("/v1/rerank", "1"), ("/rerank", "1"), ("/v2/rerank", "2")] {
        let answer = ok(&server, path, &body);
        assert_eq!((&answer["results"], &answer["usage"]), (&first["results"], &first["usage"]));
        assert_eq!(answer["meta"]["api_version"]["version"], version);
        assert!(answer["id"].is_string() && answer["id"] != first["id"], "{answer}");
        let tokens = answer["usage"]["total_tokens"].as_u64().unwrap();
        assert!(tokens > 9 && answer["meta"]["tokens"]["input_tokens"] == tokens, "{answer}");
    }

    // text-embeddings-inference has one model, and answers the list alone.
    let texts = json!({"query": "who lifts grain?", "texts": DOCUMENTS, "return_text": true});
    let ranked = ok(&server, "/rerank", &texts);
    for (ranked, expected) in ranked.as_array().unwrap().iter().zip(first["results"].as_array().unwrap()) {
        let index = expected["index"].as_u64().unwrap() as usize;
        assert_eq!((&ranked["index"], &ranked["score"]), (&expected["index"], &expected["relevance_score"]));
        assert_eq!(ranked["text"], DOCUMENTS[index]);
    }

    let score = |first: Value, second: Value| {
        let answer = ok(&server, "/v1/score", &json!({"model": model, "text_1": first, "text_2": second}));
        let score = |scored: &Value| scored["score"].as_f64().unwrap();
        answer["data"].as_array().unwrap().iter().map(score).collect::<Vec<_>>()
    };
    let mut expected = [0.0; 3];
    for ranked in first["results"].as_array().unwrap() {
        expected[ranked["index"].as_u64().unwrap() as usize] = ranked["relevance_score"].as_f64().unwrap();
    }
    let query = "who lifts grain?";
    assert_eq!(score(json!(query), json!(DOCUMENTS)), expected);
    assert_eq!(score(json!(query), json!(DOCUMENTS[1])), expected[1..2]);
    assert_eq!(score(json!(vec![query; 3]), json!(DOCUMENTS)), expected);

    for (path, param, words, body) in [
        ("/v1/score", "text_1", "one, or as many", json!({"model": model, "text_1": ["a", "b"], "text_2": DOCUMENTS})),
        (
            "/v1/score",
            "text_2",
            "text_2[1] must be a text, not null",
            json!({"model": model, "text_1": "a", "text_2": ["b", null]}),
        ),
        (
            "/rerank",
            "documents",
            "documents[1] must be a text, not a number",
            json!({"model": model, "query": "a", "documents": ["b", 1]}),
        ),
        (
            "/rerank",
            "truncate",
            "text 1 of texts",
            json!({"query": "a", "texts": ["b", "a ".repeat(999)], "truncate": false}),
        ),
        (
            "/v1/rerank",
            "documents",
            "1024 are supported",
            json!({"model": model, "query": "a", "documents": vec!["b"; 1025]}),
        ),
        (
            "/rerank",
            "truncation_direction",
            "end",
            json!({"query": "a", "texts": ["b"], "truncation_direction": "Left"}),
        ),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(words), "{answer}");
    }
}

#[test]
fn embeddings_have_the_form_of_text_embeddings_inference() {
    let server = Server::start(ServingOptions::default());
    let (status, answer) = server.post("/embed", &json!({"inputs": "gulls"}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("model")), "no model is loaded: {answer}");
    let bert = model("bert");
    let data = server.embed(&json!({"model": bert, "input": DOCUMENTS}))["data"].clone();
    let rows = ok(&server, "/embed", &json!({"inputs": DOCUMENTS, "truncate": true}));
    for (row, expected) in rows.as_array().unwrap().iter().zip(data.as_array().unwrap()) {
        let row: Vec<f32> = row.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect();
        assert!(row.iter().zip(numbers(expected)).all(|(a, b)| (a - b).abs() < 1e-6));
    }
    assert_eq!(ok(&server, "/embed", &json!({"inputs": "gulls"})).as_array().unwrap().len(), 1);
    let (status, answer) = server.post("/embed", &json!({"inputs": "a ".repeat(999), "truncate": false}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("truncate")), "{answer}");
    let (status, answer) = server.post("/v1/chat/completions", &json!({}));
    assert!(status == 404 && answer["error"]["message"].as_str().unwrap().contains("POST /v1/embeddings"), "{answer}");
}

/// A model in a cache of the hub.
fn install(cache: &Path, name: &str, from: &Path, without: &str) {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let folder = cache.join(format!("models--{}", name.replace('/', "--")));
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), commit).unwrap();
    let snapshot = folder.join("snapshots").join(commit);
    for part in ["", "onnx", "1_Pooling"].into_iter().filter(|part| from.join(part).is_dir()) {
        std::fs::create_dir_all(snapshot.join(part)).unwrap();
        for entry in std::fs::read_dir(from.join(part)).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            if entry.file_name() != without {
                std::fs::copy(entry.path(), snapshot.join(part).join(entry.file_name())).unwrap();
            }
        }
    }
}

#[test]
fn models_of_the_cache_are_listed_as_unloaded() {
    let cache = tempfile::tempdir().unwrap();
    let (bert, vit) = (unpacked("tiny/bert"), unpacked("tiny/vit"));
    install(cache.path(), "owner/embeds", bert.path(), "");
    install(cache.path(), "owner/no-graph", bert.path(), "model.onnx");
    install(cache.path(), "owner/sees", vit.path(), "");
    let server = Server::with_hub(ServingOptions::default(), offline(cache.path()));
    let entries = || {
        let listed = server.request("GET", "/v1/models", "").1;
        let entry = |entry: &Value| (entry["id"].as_str().unwrap().to_owned(), entry["loaded"].as_bool().unwrap());
        listed["data"].as_array().unwrap().iter().map(entry).collect::<Vec<_>>()
    };
    assert_eq!(entries(), [("owner/embeds".to_owned(), false)]);
    let (status, found) = server.request("GET", "/v1/models/owner/embeds", "");
    assert_eq!((status, &found["id"], &found["loaded"]), (200, &json!("owner/embeds"), &json!(false)));
    assert_eq!(server.request("GET", "/v1/models/owner/sees", "").0, 404);
    server.embed(&json!({"model": "owner/embeds", "input": "gulls"}));
    assert_eq!(entries(), [("owner/embeds".to_owned(), true)]);
}
