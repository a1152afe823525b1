//! `channel` with a daemon, a producer and a command in separate processes.

use crate::support::Daemon;
use cotensor::core::DType;
use cotensor_client::{Channel, ChannelSpec, ClientStore};
use serde_json::{Value as Json, json};
use std::fs;

fn open(daemon: &Daemon, name: &str) -> Channel {
    let store = ClientStore::connect(Some(&daemon.socket()), "producer").unwrap();
    store.channel(ChannelSpec::new(name, DType::U8, &[2, 3])).unwrap()
}

fn text(daemon: &Daemon, arguments: &[&str]) -> String {
    String::from_utf8(daemon.ok(arguments)).unwrap()
}

#[test]
fn channels_are_listed_and_read() {
    let daemon = Daemon::start(&[]);
    let camera = open(&daemon, "camera");
    let _other = open(&daemon, "other");
    (1..=3).for_each(|byte| assert_eq!(camera.put(&[byte; 6]).unwrap(), u64::from(byte)));
    let listed: Json = daemon.json(&["channel"]);
    let shown = &listed["channels"][0];
    assert_eq!((&shown["name"], &shown["shape"], &shown["frames"]), (&json!("camera"), &json!([2, 3]), &json!(3)));
    let table = text(&daemon, &["channel"]);
    assert!(table.contains("camera") && table.contains("other") && table.contains("0 of 4"), "{table}");
    let lines = text(&daemon, &["channel", "camera", "--queue", "--count", "3", "--json"]);
    let numbers: Vec<Json> =
        lines.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()["number"].clone()).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let line = text(&daemon, &["channel", "camera", "--count", "1"]);
    assert!(line.starts_with("camera frame 3: 0 lost, "), "{line}");
    let file = daemon.path("frame.npy");
    text(&daemon, &["channel", "camera", "--output", file.to_str().unwrap()]);
    assert!(fs::read(&file).unwrap().ends_with(&[3; 6]));
    camera.close();
    daemon.expect_error(&["channel", "camera"], 2, &["channel \"camera\" not found"]);
    daemon.expect_error(&["channel", "other", "--timeout", "0.1"], 1, &["no frame of channel \"other\" within 0.1 s"]);
}
