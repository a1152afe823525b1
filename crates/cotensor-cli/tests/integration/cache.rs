//! `cotensor cache`, and damaged packs.

use crate::support::Workspace;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

const RUN: [&str; 5] = ["run", "pipeline.toml", "--text", "a b c", "--json"];
/// With the engine that reads packs; the fast one has files of its own.
const RUN_PACKED: [&str; 7] = ["run", "pipeline.toml", "--text", "a b c", "--engine", "rten", "--json"];

/// The packs in the workspace's cache.
fn packs(workspace: &Workspace) -> Vec<PathBuf> {
    fs::read_dir(workspace.path("cache/packs")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Overwrites 4 KiB in the middle of the largest pack.
fn damage(workspace: &Workspace) -> PathBuf {
    let largest = packs(workspace).into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&largest, bytes).unwrap();
    largest
}

/// The number of folders of derived files.
fn derived(workspace: &Workspace) -> usize {
    let folders = std::fs::read_dir(workspace.path("cache/derived")).unwrap().map(|entry| entry.unwrap().path());
    folders.filter(|folder| folder.is_dir()).count()
}

#[test]
fn damaged_pack_does_not_change_results() {
    let workspace = Workspace::with("bert");
    let outputs = |workspace: &Workspace| {
        let report = workspace.json(&RUN_PACKED);
        let users = report["users"].as_array().unwrap();
        users.iter().map(|user| user["outputs"].clone()).collect::<Vec<_>>()
    };
    let right = outputs(&workspace);
    damage(&workspace);
    assert_eq!(outputs(&workspace), right);
    assert_eq!(workspace.json(&["cache", "verify", "--json"])["removed"], json!([]));
}

#[test]
fn verify_removes_damaged_packs_and_prune_removes_all() {
    let workspace = Workspace::with("bert");
    workspace.json(&RUN);
    workspace.json(&RUN_PACKED);
    let whole = packs(&workspace).len();
    assert!(workspace.json(&["cache", "verify", "--json"])["contents"].as_u64().unwrap() > 0);
    let damaged = damage(&workspace);
    let output = workspace.run(&["cache", "verify"]);
    let output_text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output_text.contains(&damaged.display().to_string()) && output_text.contains("does not match its hash"),
        "{output_text}"
    );
    assert_eq!(packs(&workspace).len(), whole - 1);
    assert_eq!(workspace.json(&["cache", "prune", "--json"])["removed_packs"], 0);
    // The fast engine keeps a folder of derived files for each graph.
    let derived = derived(&workspace);
    assert_eq!(workspace.json(&["cache", "prune", "--all", "--json"])["removed_packs"], whole - 1 + derived);
    assert!(packs(&workspace).is_empty());
    workspace.expect_error(&["cache", "verify", "--cache", "none"], &["none", "no weight cache"]);
}

#[test]
fn cache_lists_and_prunes_weights_and_models_of_the_demo() {
    let workspace = Workspace::with("bert");
    workspace.json(&RUN_PACKED);
    fs::create_dir_all(workspace.path("cache/models/some/onnx")).unwrap();
    fs::write(workspace.path("cache/models/some/onnx/model.onnx"), [0; 4096]).unwrap();
    let listed = workspace.json(&["cache", "ls", "--json"]);
    let entries = listed["entries"].as_array().unwrap();
    let of = |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!((of("weights"), of("demo model")), (packs(&workspace).len(), 1));
    let bytes: u64 = entries.iter().map(|entry| entry["bytes"].as_u64().unwrap()).sum();
    assert_eq!(listed["bytes"], bytes);
    assert_eq!(workspace.json(&["cache", "path", "--json"])["folder"], listed["folder"]);
    assert_eq!(workspace.json(&["cache", "prune", "--json"])["removed_models"], 0, "used today");
    let pruned = workspace.json(&["cache", "prune", "--all", "--json"]);
    assert_eq!((&pruned["removed_models"], &pruned["removed_bytes"]), (&1.into(), &bytes.into()));
    assert_eq!(workspace.json(&["cache", "ls", "--json"])["bytes"], 0);
}
