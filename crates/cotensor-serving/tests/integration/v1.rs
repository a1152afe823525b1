//! The HTTP endpoints, over a real Unix socket.

use crate::server::{Server, model, numbers, unpacked};
use cotensor_core::testing::until;
use cotensor_hub::{Hub, Limits, Settings};
use cotensor_serving::ServingOptions;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[test]
fn pooling_that_no_file_states_is_given_or_has_a_notice() {
    let server = Server::start(ServingOptions::default());
    let folder = unpacked("tiny/bert");
    std::fs::remove_dir_all(folder.path().join("1_Pooling")).unwrap();
    let name = folder.path().to_str().unwrap();
    let request = |pooling: Value| json!({"model": name, "input": "gulls", "pooling": pooling});
    let (status, refused) = server.post("/v1/embeddings", &request(Value::Null));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        status == 400 && message.contains("1_Pooling/config.json") && message.contains("--pooling cls"),
        "{refused}"
    );
    let mean = server.embed(&request(json!("mean")));
    assert!(mean.get("notices").is_none(), "{mean}");
    let known = server.embed(&json!({"model": model("bert"), "input": "gulls"}));
    assert_eq!(numbers(&mean["data"][0]), numbers(&known["data"][0]));
    let first = server.embed(&request(json!("cls")));
    assert_ne!(numbers(&first["data"][0]), numbers(&mean["data"][0]));
    let (status, refused) = server.post("/v1/embeddings", &request(json!("first")));
    assert!(status == 400 && refused["error"]["message"].as_str().unwrap().contains("mean"), "{refused}");
    // The name of a model stands for its pooling.
    let named = tempfile::tempdir().unwrap();
    let path = named.path().join("bge-small-en-v1.5");
    std::fs::rename(folder.path(), &path).unwrap();
    for _ in 0..2 {
        let answer = server.embed(&json!({"model": path, "input": "gulls"}));
        assert_eq!(numbers(&answer["data"][0]), numbers(&first["data"][0]));
        assert!(answer["notices"][0].as_str().unwrap().contains("bge-small-en-v1.5"), "{answer}");
    }
}

#[test]
fn embeddings_have_the_form_of_openai() {
    let server = Server::start(ServingOptions::default());
    let bert = model("bert");
    let both = server.embed(&json!({"model": bert, "input": ["gulls", "a crane lifts grain"], "user": "me"}));
    assert_eq!((&both["object"], &both["model"]), (&json!("list"), &json!(bert)));
    let data = both["data"].as_array().unwrap();
    assert_eq!((&data[1]["object"], &data[1]["index"]), (&json!("embedding"), &json!(1)));
    assert!(both["usage"]["prompt_tokens"].as_u64().unwrap() > 6);
    assert_eq!(both["usage"]["prompt_tokens"], both["usage"]["total_tokens"]);
    let norm: f32 = numbers(&data[0]).iter().map(|value| value * value).sum();
    assert!((norm - 1.0).abs() < 1e-5);

    let one = server.embed(&json!({"model": bert, "input": "a crane lifts grain", "encoding_format": "base64"}));
    let bytes =
        base64::Engine::decode(&base64::prelude::BASE64_STANDARD, one["data"][0]["embedding"].as_str().unwrap());
    let values: Vec<f32> =
        bytes.unwrap().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(values, numbers(&data[1]));

    let short = numbers(&server.embed(&json!({"model": bert, "input": "gulls", "dimensions": 4}))["data"][0]);
    let norm: f32 = short.iter().map(|value| value * value).sum();
    assert!(short.len() == 4 && (norm - 1.0).abs() < 1e-5, "{short:?}");

    let (status, listed) = server.request("GET", "/v1/models", "");
    assert_eq!((status, &listed["data"][0]["id"]), (200, &json!(bert)));
    let (status, found) = server.request("GET", &format!("/v1/models{bert}"), "");
    assert_eq!((status, &found["object"]), (200, &json!("model")));
}

#[test]
fn wrong_requests_are_errors_in_the_form_of_openai() {
    let server = Server::start(ServingOptions::default());
    let (bert, vit) = (model("bert"), model("vit"));
    for (status, param, words, body) in [
        (400, json!("input"), "input is missing", json!({"model": bert})),
        (400, json!("input"), "check_embedding_ctx_length=False", json!({"model": bert, "input": [1, 2]})),
        (400, json!("input"), "check_embedding_ctx_length=False", json!({"model": bert, "input": [[1, 2]]})),
        (400, json!("input"), "0 texts", json!({"model": bert, "input": []})),
        (400, json!("input"), "2049 texts", json!({"model": bert, "input": vec!["a"; 2049]})),
        (400, json!("model"), "model is missing", json!({"input": "a"})),
        (400, json!("model"), "model is not text", json!({"model": 1, "input": "a"})),
        (400, json!("dimensions"), "dimensions", json!({"model": bert, "input": "a", "dimensions": 100_000})),
        (400, json!("dimensions"), "1 or more", json!({"model": bert, "input": "a", "dimensions": 0})),
        (400, json!("encoding_format"), "base64", json!({"model": bert, "input": "a", "encoding_format": "hex"})),
        (404, json!("model"), "/nowhere", json!({"model": "/nowhere", "input": "a"})),
        (400, json!(null), "embeds no sentences", json!({"model": vit, "input": "a"})),
        (400, json!("prompt_name"), "prompt", json!({"model": bert, "input": "a", "prompt_name": "none"})),
    ] {
        let (found, answer) = server.post("/v1/embeddings", &body);
        let error = &answer["error"];
        assert_eq!((found, &error["param"]), (status, &param), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(words), "{answer}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    for (method, path, body, status) in [
        ("POST", "/v1/embeddings", "{", 400),
        ("POST", "/v1/embeddings", "[]", 400),
        ("GET", "/v1/embeddings", "", 405),
        ("POST", "/v1/chat/completions", "{}", 404),
        ("GET", "/v1/models/none", "", 404),
    ] {
        let (found, answer) = server.request(method, path, body);
        assert!(found == status && answer["error"]["message"].is_string(), "{method} {path}: {found} {answer}");
    }
    let long = format!("{{\"model\": \"{}\"}}", "x".repeat(17 << 20));
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    write!(stream, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", long.len()).unwrap();
    let mut start = [0; 12];

    let _ = stream.write_all(long.as_bytes());
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 413");
}

#[test]
fn concurrent_requests_get_their_own_embeddings() {
    let server = Server::start(ServingOptions { caches_results: false, ..ServingOptions::default() });
    let bert = model("bert");
    let texts: Vec<String> = (0..24).map(|index| format!("boat {} of {index}", "and ".repeat(index % 5))).collect();
    let alone: Vec<Vec<f32>> =
        texts.iter().map(|text| numbers(&server.embed(&json!({"model": bert, "input": text}))["data"][0])).collect();
    let together: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let (server, bert) = (&server, &bert);
        let threads: Vec<_> = texts
            .iter()
            .map(|text| scope.spawn(move || numbers(&server.embed(&json!({"model": bert, "input": text}))["data"][0])))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (a, b) in alone.iter().flatten().zip(together.iter().flatten()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    // A client that does not wait for its answer.
    let mut vanishing = UnixStream::connect(server.socket()).unwrap();
    let body = json!({"model": bert, "input": texts}).to_string();
    write!(vanishing, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    drop(vanishing);
    // A request with more texts than a round has, and one with an error beside it.
    let many = vec!["gulls"; 150];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(server.post("/v1/embeddings", &json!({"model": bert, "input": "a", "prompt_name": "x"})).0, 400)
        });
        let answer = server.embed(&json!({"model": bert, "input": many}));
        assert_eq!(answer["data"].as_array().unwrap().len(), 150);
    });
}

#[test]
fn hub_that_does_not_answer_is_a_bad_gateway() {
    let cache = tempfile::tempdir().unwrap();
    // A port at which nothing listens.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let limits = Limits { attempts: 1, ..Limits::default() };
    let settings = Settings {
        cache: cache.path().to_path_buf(),
        endpoint: Some(format!("http://{closed}")),
        token: None,
        offline: false,
        records: None,
        verify: false,
        limits,
    };
    let server = Server::with_hub(ServingOptions::default(), Hub::new(settings));
    let (status, answer) = server.post("/v1/embeddings", &json!({"model": "owner/name", "input": "gulls"}));
    assert_eq!((status, &answer["error"]["code"]), (502, &"hub_unreachable".into()), "{answer}");
}

#[test]
fn model_without_requests_is_unloaded() {
    let server = Server::start(ServingOptions { model_ttl: Some(Duration::ZERO), ..ServingOptions::default() });
    let bert = model("bert");
    let first = server.embed(&json!({"model": bert, "input": "gulls"}));
    until("the model is unloaded", || server.request("GET", "/v1/models", "").1["data"].as_array().unwrap().is_empty());
    assert_eq!(server.embed(&json!({"model": bert, "input": "gulls"}))["data"], first["data"], "loaded again");
}

#[test]
fn documents_are_ranked() {
    let server = Server::start(ServingOptions::default());
    let folder = unpacked("relatives/roberta");
    let folder = folder.path();
    let body = |top: usize| {
        let documents = json!(["gulls", {"text": "a crane lifts grain"}, "nets dry on the quay"]);
        json!({"model": folder, "query": "who lifts grain?", "documents": documents, "top_n": top, "return_documents": true})
    };
    let (status, answer) = server.post("/v1/rerank", &body(9));
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|ranked| ranked["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{answer}");
    let crane = results.iter().find(|ranked| ranked["index"] == 1).unwrap();
    assert_eq!(crane["document"]["text"], "a crane lifts grain");
    assert_eq!(server.post("/v1/rerank", &body(1)).1["results"].as_array().unwrap(), &results[..1]);
    let with = |name: &str, value: Value| {
        let mut with = body(9);
        with.as_object_mut().unwrap().remove("top_n");
        with[name] = value;
        server.post("/v1/rerank", &with)
    };
    assert_eq!(with("top_k", json!(1)).1["results"].as_array().unwrap(), &results[..1]);
    let raw = with("raw_scores", json!(true)).1;
    for (ranked, score) in raw["results"].as_array().unwrap().iter().zip(&scores) {
        let logit = ranked["relevance_score"].as_f64().unwrap();
        assert!((1.0 / (1.0 + (-logit).exp()) - score).abs() < 1e-6, "{logit} for {score}");
    }
    let (status, answer) = with("max_tokens_per_doc", json!(100));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("max_tokens_per_doc")), "{answer}");
    let (status, answer) = server.post("/v1/rerank", &json!({"model": model("vit"), "query": "a", "documents": ["b"]}));
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("ranks no texts"), "{answer}");
    for (param, body) in [
        ("documents", json!({"model": folder, "query": "a"})),
        ("documents", json!({"model": folder, "query": "a", "documents": []})),
        ("documents", json!({"model": folder, "query": "a", "documents": [1]})),
        ("query", json!({"model": folder, "documents": ["a"]})),
        ("top_n", json!({"model": folder, "query": "a", "documents": ["a"], "top_n": -1})),
    ] {
        let (status, answer) = server.post("/v1/rerank", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}

#[test]
fn fields_that_change_embeddings_are_read_or_refused() {
    let server = Server::start(ServingOptions::default());
    let bert = model("bert");
    let body = |fields: Value| {
        let mut body = json!({"model": bert, "input": ["gulls", "a crane lifts grain"]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let plain = server.embed(&body(json!({})))["data"].clone();
    for fields in [
        json!({"truncate": true}),
        json!({"truncate": "END"}),
        json!({"truncate": false}),
        json!({"normalize": true}),
        json!({"embedding_types": ["float"]}),
        json!({"input_type": "search_document"}),
        json!({"input_type": "query", "prompt_name": "query"}),
        json!({"user": "me", "metadata": {"of": "a client"}}),
    ] {
        for (given, expected) in
            server.embed(&body(fields))["data"].as_array().unwrap().iter().zip(plain.as_array().unwrap())
        {
            let pairs = numbers(given).into_iter().zip(numbers(expected));
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }
    let short = server.embed(&body(json!({"output_dimension": 8, "dimensions": 8})));
    assert_eq!(numbers(&short["data"][0]).len(), 8);
    for (param, fields) in [
        ("truncate", json!({"truncate": "START"})),
        ("normalize", json!({"normalize": false})),
        ("embedding_types", json!({"embedding_types": ["int8"]})),
        ("input_type", json!({"input_type": "classification"})),
        ("input_type", json!({"input_type": "query", "prompt_name": "document"})),
        ("output_dimension", json!({"output_dimension": 8, "dimensions": 4})),
        ("prompt", json!({"prompt": "query: "})),
        ("task", json!({"task": "retrieval.query"})),
        ("truncate_prompt_tokens", json!({"truncate_prompt_tokens": 5})),
    ] {
        let (status, answer) = server.post("/v1/embeddings", &body(fields));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}

#[test]
fn texts_that_are_cut_are_named() {
    let server = Server::start(ServingOptions::default());
    let body = |truncate: bool| json!({"model": model("bert"), "input": ["gulls", "a crane ".repeat(500)], "truncate": truncate});
    let (head, answer) = server.exchange("POST", "/v1/embeddings", &body(true).to_string());
    assert!(head.to_lowercase().contains("\r\nx-embedding-truncated: 1\r\n"), "{head}");
    assert_eq!([&answer["data"][0]["truncated"], &answer["data"][1]["truncated"]], [&Value::Null, &json!(true)]);
    let (status, answer) = server.post("/v1/embeddings", &body(false));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("truncate")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("text 1 of input"), "{answer}");
    let (head, _) =
        server.exchange("POST", "/v1/embeddings", &json!({"model": model("bert"), "input": "gulls"}).to_string());
    assert!(!head.to_lowercase().contains("x-embedding-truncated"), "{head}");
}
