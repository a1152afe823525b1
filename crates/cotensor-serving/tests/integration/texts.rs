//! Errors of one text among others, and what is cut.

use crate::server::{Server, model, numbers, unpacked};
use cotensor_daemon::testing::Running;
use cotensor_hub::Hub;
use cotensor_serving::ServingOptions;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Barrier;

/// A BERT whose embedding of the token `z` is infinite, so that a text with it has no numbers.
fn overflowing() -> tempfile::TempDir {
    let folder = unpacked("tiny/bert");
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let tokenizer: Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    let id = tokenizer["model"]["vocab"]["z"].as_u64().unwrap() as usize;
    // The rows of the embedding are the first of the weights.
    let (mut weights, row) = (read("onnx/model.onnx_data"), 32 * 4);
    for number in weights[id * row..][..row].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::INFINITY.to_le_bytes());
    }
    std::fs::write(folder.path().join("onnx/model.onnx_data"), weights).unwrap();
    folder
}

fn message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap()
}

#[test]
fn error_of_a_text_has_its_index_and_a_status_that_is_not_repeated() {
    let server = Server::start(ServingOptions::default());
    let folder = overflowing();
    // More texts than a round has.
    let mut texts = vec![json!("gulls"); 150];
    for (at, bad, words) in [
        (3, json!("z"), "overflow"),
        (149, json!("z"), "overflow"),
        (70, json!("a ".repeat(1 << 20)), "at most"),
        (5, json!(null), "null"),
        (6, json!({"a": 1}), "an object"),
    ] {
        texts[at] = bad;
        let (status, answer) = server.post("/v1/embeddings", &json!({"model": folder.path(), "input": texts}));
        let named = [format!("text {at} of input"), format!("input[{at}]")];
        assert!(status == 400 && named.iter().any(|name| message(&answer).contains(name)), "{status} {answer}");
        assert!(message(&answer).contains(words) && answer["error"]["param"] == "input", "{answer}");
        texts[at] = json!("gulls");
    }
    let (status, answer) = server.post("/v1/embeddings", &json!({"model": folder.path(), "input": texts}));
    assert_eq!((status, answer["data"].as_array().unwrap().len()), (200, 150));
}

/// The daemon's calls for one request: a claim and a publication for each text that differs from the others.
#[test]
fn equal_texts_of_a_request_are_claimed_once() {
    let running = Running::start(|_| {});
    let server = Server::over(running.connect("models"), ServingOptions::default(), Hub::from_env());
    let calls = |texts: Vec<String>| {
        let count =
            || ["claim.begin", "tensor.publish_slab"].map(|method| running.calls().get(method).copied().unwrap_or(0));
        let before = count();
        let answer = server.embed(&json!({"model": model("bert"), "input": texts}));
        let [claims, publications] = count();
        (answer["data"].clone(), [claims - before[0], publications - before[1]])
    };
    // Loads the model, whose graph and weights have claims of their own.
    calls(vec!["a crane lifts grain".to_owned()]);
    let (equal, count) = calls(vec!["gulls".to_owned(); 64]);
    assert_eq!(count, [1, 1]);
    assert!((0..64usize).all(|at| equal[at]["index"] == at && equal[at]["embedding"] == equal[0]["embedding"]));
    let (found, count) = calls(vec!["gulls".to_owned(); 64]);
    assert_eq!((found, count), (equal, [1, 0]), "the store has the result");
    let different = |texts: std::ops::Range<usize>| texts.map(|text| format!("gull {text}")).collect::<Vec<String>>();
    assert_eq!(calls(different(0..64)).1, [64, 64]);
    assert_eq!(calls([different(0..1), different(64..66), different(64..66)].concat()).1, [3, 2]);
}

#[test]
fn bad_text_of_one_client_fails_no_other() {
    let server = Server::start(ServingOptions { caches_results: false, ..ServingOptions::default() });
    let folder = overflowing();
    let body = |text: &str| json!({"model": folder.path(), "input": ["a crane lifts grain", text]});
    assert_eq!(server.post("/v1/embeddings", &body("gulls")).0, 200, "the model is loaded");
    let clients = 12;
    let start = Barrier::new(clients);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (server, start, body) = (&server, &start, &body);
            scope.spawn(move || {
                start.wait();
                for _ in 0..5 {
                    let is_bad = client % 3 == 0;
                    let (status, answer) = server.post("/v1/embeddings", &body(if is_bad { "z" } else { "gulls" }));
                    if is_bad {
                        assert!(message(&answer).contains("text 1 of input"), "{answer}")
                    } else {
                        assert_eq!(status, 200, "{answer}")
                    }
                }
            });
        }
    });
}

#[test]
fn lone_surrogates_are_replaced() {
    let server = Server::start(ServingOptions::default());
    let body = |text: &str| format!(r#"{{"model": {:?}, "input": ["gulls", "{text}"]}}"#, model("bert"));
    let embed = |text: &str| {
        let (status, answer) = server.request("POST", "/v1/embeddings", &body(text));
        assert_eq!(status, 200, "{answer}");
        numbers(&answer["data"][1])
    };
    assert_eq!(embed(r"a \ud800 crane"), embed(r"a \ufffd crane"));
    let (status, answer) = server.request("POST", "/v1/embeddings", &body(r"a \ud8 crane"));
    assert!(status == 400 && message(&answer).contains("not JSON"), "{answer}");
}

/// The fixture with room for texts whose attention does not fit.
fn long(folder: &Path) {
    for (name, field, value) in
        [("config.json", "num_attention_heads", 1 << 20), ("config.json", "max_position_embeddings", 64)]
    {
        let path = folder.join(name);
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config[field] = value.into();
        std::fs::write(path, config.to_string()).unwrap();
    }
}

#[test]
fn attention_that_does_not_fit_is_refused_before_it_runs() {
    let server = Server::start(ServingOptions::default());
    let folder = unpacked("tiny/bert");
    long(folder.path());
    let texts = ["gulls", &"a crane ".repeat(40)];
    let (status, answer) = server.post("/v1/embeddings", &json!({"model": folder.path(), "input": texts}));
    assert_eq!((status, &answer["error"]["code"]), (413, &json!("over_budget")), "{answer}");
    // 3 * 2^20 heads * 64 * 64 tokens * 4 bytes.
    assert!(message(&answer).contains("text 1 of input: 64 tokens need 48.0 GiB for attention"), "{answer}");
    let (status, answer) = server.post("/v1/embeddings", &json!({"model": folder.path(), "input": "gulls"}));
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn dimensions_that_the_model_does_not_declare_give_a_notice() {
    let server = Server::start(ServingOptions::default());
    let folder = unpacked("tiny/bert");
    let embed =
        |dimensions: usize| server.embed(&json!({"model": folder.path(), "input": "gulls", "dimensions": dimensions}));
    let cut = embed(8);
    assert!(cut["notices"][0].as_str().unwrap().contains("8 dimensions (matryoshka_dimensions"), "{cut}");
    assert_eq!(embed(32)["notices"], Value::Null);
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["matryoshka_dimensions"] = json!([8, 16]);
    std::fs::write(&path, config.to_string()).unwrap();
    let declared = embed(8);
    assert_eq!((&declared["notices"], numbers(&declared["data"][0])), (&Value::Null, numbers(&cut["data"][0])));
    assert!(embed(9)["notices"][0].is_string());
}

#[test]
fn tokens_of_the_model_are_embedded_and_others_refused() {
    let server = Server::start(ServingOptions::default());
    let bert = model("bert");
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(Path::new(&bert).join("tokenizer.json")).unwrap()).unwrap();
    let id = |token: &str| tokenizer["model"]["vocab"][token].as_u64().unwrap();
    let tokens = json!([id("[CLS]"), id("a"), id("a"), id("[SEP]")]);
    let text = server.embed(&json!({"model": bert, "input": "a a"}));
    for input in [tokens.clone(), json!([tokens]), json!([tokens, "gulls"])] {
        let answer = server.embed(&json!({"model": bert, "input": input}));
        assert_eq!(answer["data"][0], text["data"][0]);
    }
    let long: Vec<u64> = [id("[CLS]")].into_iter().chain([id("a"); 80]).chain([id("[SEP]")]).collect();
    for (input, words) in [
        (json!([tokens, [id("a"), id("a")]]), "text 1 of input: the tokens of this model begin with \"[CLS]\""),
        (json!([tokens, [100_277]]), "text 1 of input: 100277 is not a token"),
        (json!([[id("[CLS]"), id("[SEP]")]]), "not of a whole text"),
        (json!([long]), "82 tokens; the model reads 64"),
    ] {
        let (status, answer) = server.post("/v1/embeddings", &json!({"model": bert, "input": input}));
        assert!(status == 400 && message(&answer).contains(words), "{answer}");
        assert!(message(&answer).contains("check_embedding_ctx_length=False"), "{answer}");
    }
    for input in [json!([[]]), json!([[-1]]), json!([[1.5]]), json!([["a"]])] {
        let (status, answer) = server.post("/v1/embeddings", &json!({"model": bert, "input": input}));
        assert!(status == 400 && message(&answer).contains("input[0] is not a list of token numbers"), "{answer}");
    }
}
