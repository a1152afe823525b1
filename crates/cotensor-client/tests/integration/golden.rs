//! Compares the files in protocol/ with the code: the OpenRPC document, and a request with its answers for every
//! method, made from the types. The tests of other languages read them. `make protocol` writes them.

use cotensor_client::protocol::{METHODS, MethodDescription, PROTOCOL, openrpc, openrpc_of_provider, provider};
use cotensor_core::{Error, ErrorKind};
use cotensor_rpc as rpc;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Set to write the files instead of comparing them.
const WRITE: &str = "COTENSOR_WRITE_PROTOCOL";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol")
}

fn generated() -> BTreeMap<String, Value> {
    let (document, of_provider) = (openrpc(), openrpc_of_provider());
    let mut files: BTreeMap<String, Value> = BTreeMap::new();
    for (method, described) in METHODS.iter().zip(document["methods"].as_array().unwrap()) {
        let group = method.name.split('.').next().unwrap();
        let messages = files.entry(format!("messages/{group}.json")).or_insert_with(|| json!([]));
        messages.as_array_mut().unwrap().push(exchange(method, described, &document));
    }
    let described = provider::METHODS.iter().zip(of_provider["methods"].as_array().unwrap());
    let messages = described.map(|(method, described)| exchange(method, described, &of_provider));
    files.insert("messages/provider.json".to_owned(), messages.collect());
    files.insert("messages/errors.json".to_owned(), errors());
    files.insert("messages/notifications.json".to_owned(), notifications(&document));
    files.insert("openrpc.json".to_owned(), document);
    files.insert("provider.json".to_owned(), of_provider);
    files
}

/// A call of a method and each kind of answer. The types deserialize and serialize them without a change.
fn exchange(method: &MethodDescription, described: &Value, document: &Value) -> Value {
    let params = described["params"].as_array().unwrap().iter();
    let params: serde_json::Map<_, _> = params
        .map(|parameter| {
            let name = parameter["name"].as_str().unwrap();
            (name.to_owned(), sample(name, &parameter["schema"], document))
        })
        .collect();
    let params = Value::from(params);
    assert_eq!((method.reencode_params)(params.clone()).unwrap(), params, "{}", method.name);
    let results = variants(&described["result"]["schema"], document);
    let responses = results.into_iter().map(|result| {
        assert_eq!((method.reencode_result)(result.clone()).unwrap(), result, "{}", method.name);
        json!({"jsonrpc": "2.0", "id": 1, "result": result})
    });
    json!({
        "request": {"jsonrpc": "2.0", "id": 1, "method": method.name, "params": params},
        "responses": responses.collect::<Vec<_>>(),
    })
}

/// The notifications of the daemon.
fn notifications(document: &Value) -> Value {
    let all = document["x-notifications"].as_array().unwrap().iter().map(|notification| {
        let params = notification["params"].as_array().unwrap().iter().map(|parameter| {
            let name = parameter["name"].as_str().unwrap();
            (name.to_owned(), sample(name, &parameter["schema"], document))
        });
        json!({"jsonrpc": "2.0", "method": notification["name"], "params": params.collect::<serde_json::Map<_, _>>()})
    });
    all.collect()
}

/// An answer for each kind of error.
fn errors() -> Value {
    use ErrorKind::*;
    let kinds =
        [Invalid, NotFound, Conflict, OverBudget, Refused, Unsupported, Io, Engine, TimedOut, Corrupt, Unreachable];
    let error = |kind| {
        let error = Error::new(kind, "why").in_file("model/config.json").in_field("shape");
        json!({"jsonrpc": "2.0", "id": 1, "error": rpc::to_object(&error)})
    };
    kinds.into_iter().map(error).collect()
}

/// One value for each alternative of a schema.
fn variants(schema: &Value, document: &Value) -> Vec<Value> {
    let schema = resolved(schema, document);
    match schema["oneOf"].as_array() {
        Some(alternatives) => alternatives.iter().map(|schema| sample("result", schema, document)).collect(),
        None => vec![sample("result", schema, document)],
    }
}

/// A value that a schema allows, with all optional fields. The text of a string depends on the name of its field.
fn sample(field: &str, schema: &Value, document: &Value) -> Value {
    let schema = resolved(schema, document);
    for combined in ["allOf", "anyOf", "oneOf"] {
        if let Some(first) = schema[combined].get(0) {
            return sample(field, first, document);
        }
    }
    if let Some(value) = schema.get("const").or_else(|| schema["enum"].get(0)) {
        return value.clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind {
        Some("string") => text(field).into(),
        Some("integer") if field == "protocol" => PROTOCOL.into(),
        Some("integer") => 1.into(),
        Some("number") => 0.5.into(),
        Some("boolean") => true.into(),
        Some("array") => match &schema["items"] {
            Value::Array(items) => items.iter().map(|item| sample(field, item, document)).collect(),
            item => json!([sample(field, item, document)]),
        },
        Some("object") => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let mut object: serde_json::Map<_, _> =
                fields.map(|(name, schema)| (name.clone(), sample(name, schema, document))).collect();
            if schema["additionalProperties"].is_object() {
                object.insert("reader[1]".to_owned(), sample(field, &schema["additionalProperties"], document));
            }
            object.into()
        }
        _ => json!({"any": "value"}),
    }
}

fn resolved<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => {
            let target = document.pointer(reference.trim_start_matches('#'));
            resolved(target.unwrap_or_else(|| panic!("{reference}")), document)
        }
        None => schema,
    }
}

fn text(field: &str) -> String {
    match field {
        "dtype" => "float32",
        "device" => "cpu",
        "kind" | "allowed_types" => "text_embedding",
        "key" | "hash" | "space" | "provenance" | "token" => return "0123456789abcdef".repeat(4),
        "note" => "c0ffee",
        "address" => "127.0.0.1:2537",
        "reason" => "put",
        other => other,
    }
    .to_owned()
}

fn written(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

#[test]
fn protocol_files_match_the_code() {
    let (folder, files) = (folder(), generated());
    assert!(files.len() > 5 && METHODS.len() > 20);
    let hello = &files["messages/session.json"][0];
    assert_eq!(hello["request"]["params"]["protocol"], PROTOCOL, "a client sends its version");
    let notifications = files["messages/notifications.json"].as_array().unwrap();
    let freed = notifications.iter().find(|notification| notification["method"] == "slab.freed").unwrap();
    assert_eq!(freed["params"]["offsets"], json!([1]));
    assert!(notifications.iter().any(|notification| notification["method"] == "function.connect"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(folder.join("messages")).unwrap();
        for old in std::fs::read_dir(folder.join("messages")).unwrap() {
            std::fs::remove_file(old.unwrap().path()).unwrap();
        }
        for (name, value) in &files {
            std::fs::write(folder.join(name), written(value)).unwrap();
        }
    }
    for (name, value) in &files {
        let kept = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(kept == written(value), "protocol/{name} differs from the code; run `make protocol`");
    }
    let kept: BTreeSet<_> = std::fs::read_dir(folder.join("messages"))
        .unwrap()
        .map(|file| format!("messages/{}", file.unwrap().file_name().into_string().unwrap()))
        .collect();
    assert!(
        kept.iter().all(|name| files.contains_key(name)),
        "{kept:?} has files that the code does not generate; run `make protocol`"
    );
}
