//! `cotensor cache`, and packs that something changed.

use crate::support::Place;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

const RUN: [&str; 5] = ["run", "pipeline.toml", "--text", "a b c", "--json"];

/// The packs of the place's cache.
fn packs(place: &Place) -> Vec<PathBuf> {
    fs::read_dir(place.path("cache/packs")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Changes 4 KiB in the middle of the largest pack.
fn damage(place: &Place) -> PathBuf {
    let largest = packs(place).into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&largest, bytes).unwrap();
    largest
}

#[test]
fn a_damaged_pack_changes_no_result() {
    let place = Place::with("bert");
    let outputs = |place: &Place| {
        let report = place.json(&RUN);
        let users = report["users"].as_array().unwrap();
        users.iter().map(|user| user["outputs"].clone()).collect::<Vec<_>>()
    };
    let right = outputs(&place);
    damage(&place);
    assert_eq!(outputs(&place), right);
    assert_eq!(place.json(&["cache", "verify", "--json"])["removed"], json!([]));
}

#[test]
fn verify_removes_damaged_packs_and_prune_removes_all() {
    let place = Place::with("bert");
    place.json(&RUN);
    let whole = packs(&place).len();
    assert!(place.json(&["cache", "verify", "--json"])["contents"].as_u64().unwrap() > 0);
    let damaged = damage(&place);
    let output = place.run(&["cache", "verify"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(&damaged.display().to_string()) && said.contains("does not match its hash"), "{said}");
    assert_eq!(packs(&place).len(), whole - 1);
    assert_eq!(place.json(&["cache", "prune", "--json"])["removed_packs"], 0);
    assert_eq!(place.json(&["cache", "prune", "--all", "--json"])["removed_packs"], whole - 1);
    assert!(packs(&place).is_empty());
    place.refuses(&["cache", "verify", "--cache", "none"], &["none", "no weight cache"]);
}
