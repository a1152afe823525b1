//! `cotensor plan`: strategies on recorded traces.

use crate::support::Workspace;
use serde_json::{Value, json};
use std::fs;

/// A loop over `count` tensors of 4000 bytes, 1 µs each.
fn trace(count: usize, cpu_us: Option<f64>) -> Value {
    let tensors: Vec<Value> = (0..count).map(|index| json!({"id": format!("w{index}"), "size_bytes": 4000})).collect();
    let operation = |index| json!({"name": "linear", "uses": [format!("w{index}")], "compute_us": 1.0, "cpu_us": cpu_us, "workspace_bytes": 0});
    json!({"tensors": tensors, "operations": (0..count).map(operation).collect::<Vec<_>>(), "periods": 30})
}

const DEVICE: [&str; 4] = ["--budget", "40kB", "--bandwidth", "1GB/s"];

#[test]
fn plan_compares_strategies_with_the_bound() {
    let workspace = Workspace::with("bert");
    fs::write(workspace.path("trace.json"), trace(20, None).to_string()).unwrap();
    let arguments = [&["plan", "trace.json"], &DEVICE[..]].concat();
    let answer = workspace.json(&[&arguments[..], &["--json", "--report", "plan.html"]].concat());
    assert_eq!((answer["bound_us"].as_f64(), answer["resident_us"].as_f64()), (Some(40.0), Some(20.0)));
    let strategies = answer["strategies"].as_array().unwrap();
    let names: Vec<&str> = strategies.iter().map(|each| each["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["flow", "genoa", "lru", "pinned"]);
    let time = |row: usize| strategies[row]["time_us"].as_f64().unwrap();
    assert_eq!((time(1), time(2)), (100.0, 80.0));
    // T*: 11 + 11/19 copies of 4 µs.
    assert!(time(0) >= 40.0 && time(0) <= 46.4, "{answer}");
    for row in strategies {
        assert!(row["peak_bytes"].as_u64().unwrap() <= 40_000, "{row}");
        assert!((row["time_us"].as_f64().unwrap() - row["stall_us"].as_f64().unwrap() - 20.0).abs() < 1e-6, "{row}");
        assert!(row["copied_bytes"].as_u64().unwrap() >= 40_000, "{row}");
    }
    let page = fs::read_to_string(workspace.path("plan.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(
        page.contains("<polyline vector-effect=\"non-scaling-stroke\" class=\"flow\"")
            && page.contains("<i class=\"genoa\"")
    );
    let text = String::from_utf8(workspace.run(&arguments).stdout).unwrap();
    assert!(text.starts_with("strategy") && text.contains("\nflow "), "{text}");
    assert!(text.contains("resident tensors") && text.contains("repeats after"), "{text}");
    fs::write(workspace.path("trace.json"), trace(20, Some(1.5)).to_string()).unwrap();
    let answer = workspace.json(&[&arguments[..], &["--json"]].concat());
    assert_eq!((&answer["strategies"][4]["name"], &answer["strategies"][4]["time_us"]), (&json!("cpu"), &json!(30.0)));
    assert!(answer["strategies"][0]["time_us"].as_f64().unwrap() < 27.0, "{answer}");
}

#[test]
fn several_devices_divide_the_operations() {
    let workspace = Workspace::with("bert");
    fs::write(workspace.path("trace.json"), trace(20, None).to_string()).unwrap();
    let one = ["plan", "trace.json", "--budget", "40kB", "--bandwidth", "1GB/s"];
    let two = [&one[..], &["--budget", "40kB"]].concat();
    let [alone, both] = [&one[..], &two[..]].map(|arguments| workspace.json(&[arguments, &["--json"]].concat()));
    assert!(alone.get("devices").is_none());
    let devices = both["devices"].as_array().unwrap();
    assert_eq!(devices.iter().filter(|&device| device == 0).count(), 10, "{both}");
    let time = |answer: &Value| answer["strategies"][0]["time_us"].as_f64().unwrap();
    assert!(time(&both) < 0.7 * time(&alone), "{both}");
    let text = String::from_utf8(workspace.run(&[&two[..], &["--report", "plan.html"]].concat()).stdout).unwrap();
    assert!(text.contains("device 0: 10 operations, plan ") && text.contains("device 1: 10 operations"), "{text}");
    let page = fs::read_to_string(workspace.path("plan.html")).unwrap();
    assert!(page.contains("Used memory of device 1"), "{page}");
    let three = [&two[..], &["--budget", "1GB", "--bandwidth", "1GB/s"]].concat();
    workspace.expect_error(&three, &["--bandwidth", "2 values for 3 devices"]);
}

#[test]
fn errors_of_plan_name_the_field() {
    let workspace = Workspace::with("bert");
    fs::write(workspace.path("trace.json"), trace(3, None).to_string()).unwrap();
    let plan = |more: &[&'static str]| [&["plan", "trace.json"], more].concat();
    workspace
        .expect_error(&plan(&["--budget", "3kB", "--bandwidth", "1GB/s"]), &["trace.json", "\"linear\"", "budget"]);
    workspace.expect_error(&plan(&["--budget", "3 cats", "--bandwidth", "1GB/s"]), &["--budget", "4GiB"]);
    workspace.expect_error(&plan(&["--budget", "3GB", "--bandwidth", "0GB/s"]), &["--bandwidth", "12GB/s"]);
    for (more, word) in
        [(["--budget", "3", "--bandwidth", "1GB/s"], "3MiB"), (["--budget", "3GB", "--bandwidth", "12"], "12GB")]
    {
        workspace.expect_error(&plan(&more), &["has no unit", word]);
    }
    workspace.expect_error(&plan(&[&DEVICE[..], &["--latency", "20"]].concat()), &["--latency", "20us"]);
    workspace.expect_error(&["plan", "absent.json", "--budget", "1GB", "--bandwidth", "1GB/s"], &["absent.json"]);
    let mut wrong = trace(3, None);
    wrong["operations"][2]["uses"] = json!(["w9"]);
    fs::write(workspace.path("trace.json"), wrong.to_string()).unwrap();
    workspace.expect_error(&plan(&DEVICE), &["trace.json", "operations[2].uses", "\"w9\""]);
    fs::write(workspace.path("trace.json"), "{").unwrap();
    workspace.expect_error(&plan(&DEVICE), &["trace.json", "not a trace"]);
}
