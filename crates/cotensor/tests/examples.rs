//! The examples do what they say.
#![allow(clippy::unwrap_used)]

use std::process::Command;

fn run(example: &str) -> String {
    let output =
        Command::new(env!("CARGO")).args(["run", "--quiet", "-p", "cotensor", "--example", example]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_encoder_runs_once_for_two_models() {
    let text = run("share_encoder");
    assert!(text.contains("mood: encoder ran") && text.contains("names: encoder shared"), "{text}");
}

#[test]
fn a_second_process_copies_no_weight() {
    let text = run("share_weights");
    let copied: Vec<u64> = text
        .lines()
        .map(|line| line.rsplit(", ").next().unwrap().split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(copied.len() == 2 && copied[0] > 0 && copied[1] == 0, "{text}");
}

#[test]
fn a_view_keeps_its_tensor_alive() {
    let text = run("tensor_view");
    assert!(text.contains("first element 8") && text.contains("the same memory: true"), "{text}");
    assert!(text.contains("\"reader\": 1") && text.contains("gone: 0"), "{text}");
}
