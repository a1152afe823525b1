//! `models load`, `ps` and `unload`: the models of the process that the daemon starts.

use crate::support::{Daemon, fixtures};

fn fixture(name: &str) -> String {
    fixtures().join("tiny").join(name).canonicalize().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn models_are_loaded_shown_and_unloaded() {
    let daemon = Daemon::start(&[]);
    let (bert, vit) = (fixture("bert"), fixture("vit"));
    let nothing = daemon.json(&["models", "ps"]);
    assert!(nothing["models"].as_array().unwrap().is_empty() && nothing["pid"].is_null(), "no process was started");
    daemon.expect_error(&["models", "unload", &bert], 2, &["no model is loaded"]);
    assert_eq!(daemon.json(&["models", "unload", "--all"])["unloaded"].as_array().unwrap().len(), 0);

    let loaded = daemon.json(&["models", "load", &bert, "--ttl", "3600"]);
    assert!(loaded["weights_bytes"].as_u64().unwrap() > 0 && loaded["unload_in_s"].as_f64().unwrap() > 3000.0);
    // A slash at the end is the same folder.
    daemon.ok(&["models", "load", &format!("{vit}/"), "--pin"]);
    daemon.ok(&["embed", &bert, "gulls"]);
    let shown = daemon.json(&["models", "ps"]);
    assert!(shown["pid"].is_u64() && shown["pss_bytes"].as_u64().unwrap() > 0);
    let names: Vec<_> = shown["models"].as_array().unwrap().iter().map(|model| model["name"].clone()).collect();
    assert_eq!(names, [bert.clone(), vit.clone()]);
    assert_eq!((&shown["models"][0]["requests"], &shown["models"][1]["pinned"]), (&1.into(), &true.into()));
    let table = String::from_utf8(daemon.ok(&["models", "ps"])).unwrap();
    assert!(table.contains("never") && table.contains(&bert) && table.lines().count() == 4, "{table}");

    daemon.expect_error(&["models", "unload", "clip"], 2, &["is not loaded", &bert]);
    daemon.ok(&["models", "unload", &format!("{vit}/")]);
    assert_eq!(daemon.json(&["models", "ps"])["models"].as_array().unwrap().len(), 1);
    assert_eq!(daemon.json(&["models", "unload", "--all"])["unloaded"][0], bert);
    daemon.expect_error(&["models", "load", "./none"], 2, &["none"]);
    daemon.expect_error(&["models", "load", &bert, "--ttl", "3", "--pin"], 2, &["--pin"]);
}

#[test]
fn weights_have_the_names_of_their_parameters() {
    let daemon = Daemon::start(&[]);
    daemon.ok(&["run", &fixture("bert"), "sentence-embedding", "--text", "gulls", "--daemon", "--engine", "rten"]);
    let listed = daemon.json(&["ls"]);
    let names: Vec<&str> =
        listed["tensors"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    let word = names.iter().find(|name| name.contains("word_embeddings")).unwrap();
    assert!(word.starts_with("weight/bert/"), "{names:?}");
    assert!(String::from_utf8(daemon.ok(&["stat", word])).unwrap().contains("weight"));
}
