//! `--engine`, and libraries of onnxruntime that cannot be used.

use crate::support::Workspace;
use std::path::PathBuf;
use std::process::Command;

/// A library with the only function that every release of onnxruntime exports. As in a release that is older than the
/// program, or that has another interface, it gives no functions.
const STUB: &str = r#"
#include <stddef.h>
#include <stdint.h>
static const void *functions(uint32_t version) { (void)version; return NULL; }
static const char *version(void) { return VERSION; }
static const struct { const void *(*functions)(uint32_t); const char *(*version)(void); } base = { functions, version };
const void *OrtGetApiBase(void) { return &base; }
"#;

/// A library that says it is this version of onnxruntime; `None` without a C compiler.
fn stub(workspace: &Workspace, version: &str) -> Option<PathBuf> {
    let (source, library) = (workspace.path("stub.c"), workspace.path(&format!("libonnxruntime.so.{version}")));
    std::fs::write(&source, STUB).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", &format!("-DVERSION=\"{version}\""), "-o"]).arg(&library).arg(&source);
    let Ok(output) = compiler.output() else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(library)
}

const RUN: [&str; 5] = ["run", "pipeline.toml", "--text", "a b c", "--json"];

#[test]
fn library_of_another_version_is_refused_by_name_and_replaced_by_auto() {
    let workspace = Workspace::with("bert");
    for (version, reason) in [
        ("1.17.3", "onnxruntime 1.17.3 found, 1.24 or a later 1.x is needed"),
        ("2.0.0", "onnxruntime 2.0.0 found, 1.24 or a later 1.x is needed"),
        ("1.99.0", "cannot be used"),
        ("one", "onnxruntime one found"),
    ] {
        let Some(library) = stub(&workspace, version) else { return };
        let run = |more: &[&str]| {
            let mut command = workspace.command(&[&RUN[..], more].concat());
            command.env("ORT_DYLIB_PATH", &library).env_remove("COTENSOR_ENGINE").output().unwrap()
        };
        for engine in ["ort", "ort-shared"] {
            let output = run(&["--engine", engine]);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{complaint}");
            for word in [reason, &library.display().to_string(), "pip install --upgrade onnxruntime"] {
                assert!(complaint.contains(word), "{complaint}");
            }
        }
        let output = run(&[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut explain = workspace.command(&["explain", "pipeline.toml", "--json"]);
        let output = explain.env("ORT_DYLIB_PATH", &library).env_remove("COTENSOR_ENGINE").output().unwrap();
        let explanation: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let stage = &explanation["stages"][0];
        assert!(stage["engine"].as_str().unwrap().starts_with("rten "), "{stage}");
        assert!(stage["engine_reasons"][0].as_str().unwrap().contains(reason), "{stage}");
    }
}
