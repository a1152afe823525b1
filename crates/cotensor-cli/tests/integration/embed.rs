//! `embed`, with the models of a process of their own.

use crate::support::{Daemon, copy};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

/// `serve-models` until this is dropped.
struct Models(Child);

impl Models {
    fn start(daemon: &Daemon) -> Self {
        let v1 = daemon.path("v1");
        let mut command = daemon.command(&["serve-models", "--json", "--engine", "rten", "--v1", v1.to_str().unwrap()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while line.trim() != "}" {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the process ended");
        }
        assert!(v1.exists());
        Self(child)
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        // The end of standard input ends it.
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn bert() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert");
    folder.canonicalize().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn texts_are_embedded_to_lines_and_matrices() {
    let daemon = Daemon::start(&[]);
    let models = Models::start(&daemon);
    let bert = bert();
    let printed = String::from_utf8(daemon.ok(&["embed", &bert, "gulls", "a crane lifts grain"])).unwrap();
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[1]["text"]), (2, &"a crane lifts grain".into()));
    let width = lines[0]["embedding"].as_array().unwrap().len();

    let input = "gulls\n{\"text\": \"a crane lifts grain\"}\n";
    let written = daemon.run_with_input(&["embed", &bert, "--stdin", "-o", "out.npy", "--json"], input.as_bytes());
    let about: Value = serde_json::from_slice(&written.stdout).unwrap();
    assert_eq!((&about["texts"], &about["dimensions"]), (&2.into(), &width.into()), "{about}");
    daemon.ok(&["put", "rows", "out.npy"]);
    assert_eq!(daemon.json(&["stat", "rows"])["tensors"][0]["versions"][0]["shape"], serde_json::json!([2, width]));
    daemon.ok(&["embed", &bert, "gulls", "a crane lifts grain", "-o", "out.jsonl"]);
    assert_eq!(std::fs::read_to_string(daemon.path("out.jsonl")).unwrap(), printed);

    daemon.expect_error(&["embed", &bert, "a", "-o", "out.txt"], 2, &["out.txt", ".npy"]);
    daemon.expect_error(&["embed", "/nowhere", "a"], 2, &["/nowhere"]);
    daemon.expect_error(&["embed", &bert], 2, &["TEXT"]);
    let empty = daemon.run_with_input(&["embed", &bert, "--stdin"], b"");
    assert_eq!(empty.status.code(), Some(2));

    // A model whose files state no pooling.
    let named = daemon.path("bge-small-en-v1.5");
    copy(Path::new(&bert), &named);
    std::fs::remove_dir_all(named.join("1_Pooling")).unwrap();
    let named = named.to_str().unwrap();
    let noticed = daemon.run_with_input(&["embed", named, "gulls"], b"");
    let notice = String::from_utf8(noticed.stderr).unwrap();
    assert!(noticed.status.success() && notice.contains("notice: ") && notice.contains("\"cls\""), "{notice}");
    let first = daemon.ok(&["embed", named, "gulls", "--pooling", "cls"]);
    assert_eq!(first, noticed.stdout);
    let mean = String::from_utf8(daemon.ok(&["embed", named, "gulls", "--pooling", "mean"])).unwrap();
    assert_eq!(Some(mean.trim_end()), printed.lines().next());
    daemon.expect_error(&["embed", named, "a", "--pooling", "first"], 2, &["pooling", "mean"]);
    drop(models);
    assert!(!daemon.path("v1").exists());
}

#[test]
fn texts_that_are_cut_or_refused_are_named() {
    let daemon = Daemon::start(&[]);
    let _models = Models::start(&daemon);
    let bert = bert();
    let long = "a crane ".repeat(100);
    let cut = daemon.command(&["embed", &bert, "gulls", &long]).output().unwrap();
    let (printed, said) = (String::from_utf8(cut.stdout).unwrap(), String::from_utf8(cut.stderr).unwrap());
    assert!(said.contains("1 text is longer than the model reads") && said.contains("end: 1 ("), "{said}");
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!([&lines[0]["truncated"], &lines[1]["truncated"]], [&Value::Null, &true.into()]);
    assert_eq!(daemon.json(&["embed", &bert, "gulls", &long])["truncated"], serde_json::json!([1]));
    daemon.expect_error(
        &["embed", &bert, "gulls", &long, "--no-truncate"],
        2,
        &["texts[1]", "longer than the 64 tokens"],
    );
    daemon.ok(&["embed", &bert, "gulls", "--no-truncate"]);

    // Beyond the first call.
    let input = format!("{}{long}\n", "gulls\n".repeat(300));
    let refused = daemon.run_with_input(&["embed", &bert, "--stdin", "--no-truncate"], input.as_bytes());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("texts[300]") && said.contains("line 301"), "{said}");
    let cut = daemon.run_with_input(&["embed", &bert, "--stdin"], input.as_bytes());
    assert!(String::from_utf8(cut.stderr).unwrap().contains("end: 300 ("));
    let bad = daemon.run_with_input(&["embed", &bert, "--stdin"], b"gulls\nnets \xff dry\n");
    let said = String::from_utf8(bad.stderr).unwrap();
    assert!(bad.status.code() == Some(2) && said.contains("line 2: byte 6 is not UTF-8"), "{said}");
}
