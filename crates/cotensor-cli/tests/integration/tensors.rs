//! Tensors and groups in a daemon: written from files, listed, shown, read into files and removed.

use crate::support::{Daemon, until};
use cotensor::core::DType;
use cotensor::store::TensorStore;
use serde_json::json;
use std::fs;

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 37 % 251) as u8).collect()
}

#[test]
fn every_dtype_round_trips_through_every_format() {
    let daemon = Daemon::start(&[]);
    for &dtype in DType::ALL {
        let name = dtype.name();
        let bytes = numbers(6 * dtype.size_bytes());
        fs::write(daemon.path("in.bin"), &bytes).unwrap();
        let put = daemon.json(&["put", name, "in.bin", "--dtype", name, "--shape", "2,3"]);
        let expected = json!({"name": name, "version": 1, "dtype": name, "shape": [2, 3], "bytes": bytes.len()});
        assert_eq!(put["tensors"], json!([expected]));
        for file in ["out.npy", "out.safetensors", "out.raw"] {
            let other = match (file, dtype) {
                ("out.npy", DType::BF16 | DType::F8E4M3FN | DType::F8E5M2) => Some("safetensors"),
                ("out.safetensors", DType::C128) => Some(".npy"),
                _ => None,
            };
            if let Some(other) = other {
                daemon.expect_error(&["get", name, file], 2, &[file, name, other]);
                assert!(!daemon.path(file).exists());
                continue;
            }
            daemon.ok(&["get", name, file]);
            let raw = ["--dtype", dtype.safetensors_name(), "--shape", "2,3"];
            let again = [&["put", "again", file][..], if file == "out.raw" { &raw } else { &[] }].concat();
            daemon.ok(&again);
            assert!(daemon.ok(&["get", "again", "-", "--format", "raw"]) == bytes, "{name} through {file}");
            fs::remove_file(daemon.path(file)).unwrap();
        }
    }
    let listing = daemon.json(&["ls"]);
    assert_eq!(listing["tensors"].as_array().unwrap().len(), DType::ALL.len() + 1);
    assert_eq!(listing["left_off"], 0);
    let left: Vec<_> = fs::read_dir(daemon.folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("part")), "{left:?}");
}

#[test]
fn large_file_round_trips() {
    let daemon = Daemon::start(&[]);
    let bytes = numbers(96 << 20);
    fs::write(daemon.path("big.bin"), &bytes).unwrap();
    daemon.ok(&["put", "big", "big.bin", "--dtype", "float32", "--shape", "24,1048576"]);
    daemon.ok(&["get", "big", "big.safetensors"]);
    daemon.ok(&["put", "copy", "big.safetensors"]);
    assert!(daemon.ok(&["get", "copy", "-", "--format", "raw"]) == bytes);
    let stat = daemon.json(&["stat"]);
    assert_eq!(stat["stats"]["memory_usage_bytes"], 2 * bytes.len());
    // Files are read directly into the store's memory: one copy each.
    let copies = &stat["stats"]["copies"];
    assert_eq!(copies, &json!([{"reason": "file import", "count": 2, "bytes": 2 * bytes.len()}]));
}

#[test]
fn odd_names_and_many_tensors_are_supported() {
    let daemon = Daemon::start(&[]);
    fs::write(daemon.path("x.bin"), [1, 2, 3]).unwrap();
    let names = ["a b", "ü/🦀", "new\nline", "\u{1b}[31mred", "'quoted\"", "--", "-x"];
    for name in names {
        daemon.ok(&["put", "--dtype", "uint8", "--shape", "3", "--", &format!("all/{name}"), "x.bin"]);
    }
    let listing = daemon.json(&["ls", "all/"]);
    let mut listed: Vec<_> =
        listing["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
    listed.sort_unstable();
    let mut expected: Vec<_> = names.iter().map(|name| format!("all/{name}")).collect();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    let text = String::from_utf8(daemon.ok(&["ls"])).unwrap();
    assert_eq!(text.lines().count(), 1 + names.len(), "{text}");
    assert!(!text.contains('\u{1b}') && text.contains("new\\nline"), "{text}");

    daemon.ok(&["get", "--all", "all/", "all.safetensors"]);
    daemon.ok(&["put", "--all", "copy/", "all.safetensors"]);
    for name in names {
        assert_eq!(daemon.ok(&["get", "--format", "raw", "--", &format!("copy/{name}"), "-"]), [1, 2, 3]);
    }
    daemon.expect_error(&["put", "one", "all.safetensors"], 2, &["all.safetensors", "--tensor", "7 tensors"]);
    daemon.expect_error(&["put", "one", "all.safetensors", "--tensor", "none"], 2, &["none"]);
    daemon.ok(&["put", "one", "all.safetensors", "--tensor", "a b"]);
    daemon.expect_error(&["get", "--all", "nothing/", "x.safetensors"], 2, &["nothing/"]);
    daemon.expect_error(&["get", "--all", "all/", "x.npy"], 2, &["--all"]);
}

#[test]
fn versions_holders_and_removal_are_shown() {
    let daemon = Daemon::start(&[]);
    for bytes in [[1, 2], [3, 4]] {
        let output =
            daemon.run_with_input(&["put", "x", "-", "--format", "raw", "--dtype", "u1x", "--shape", "2"], &bytes);
        assert_eq!(output.status.code(), Some(2), "not a dtype");
        let output =
            daemon.run_with_input(&["put", "x", "-", "--format", "raw", "--dtype", "uint8", "--shape", "2"], &bytes);
        assert!(output.status.success());
    }
    let stat = daemon.json(&["stat", "x"]);
    let stat = &stat["tensors"][0];
    assert_eq!((&stat["name"], &stat["versions"][0]["version"]), (&json!("x"), &json!(2)));
    assert_eq!((&stat["versions"][0]["cached"], &stat["versions"][0]["bytes"]), (&json!(true), &json!(2)));
    assert!(String::from_utf8(daemon.ok(&["who", "x"])).unwrap().contains("no lease; kept"));

    let store = cotensor_client::ClientStore::connect(Some(&daemon.socket()), "reader").unwrap();
    let lease = cotensor::TensorStore::get(&*store, "x", &cotensor::TensorStore::holder(&*store, "the test")).unwrap();
    let who = daemon.json(&["who", "x"]);
    let holder = format!("reader[{}]/the test", std::process::id());
    assert_eq!(who["tensors"][0]["versions"][0]["holders"], json!({ holder.as_str(): 1 }));
    assert!(String::from_utf8(daemon.ok(&["who", "x"])).unwrap().contains(&holder));
    let top = daemon.json(&["top"]);
    assert_eq!(top["holders"], json!([{"name": holder.as_str(), "tensors": 1, "leases": 1, "bytes": 2}]));
    assert_eq!((&top["tensors"][0]["name"], &top["tensors"][0]["leases"]), (&json!("x"), &json!(1)));
    assert!(String::from_utf8(daemon.ok(&["top"])).unwrap().contains(&holder), "tables without a terminal");

    assert_eq!(daemon.json(&["rm", "x"]), json!({"removed": ["x"], "missing": []}));
    daemon.expect_error(&["rm", "x"], 2, &["x"]);
    daemon.expect_error(&["stat", "never"], 2, &["never"]);
    daemon.expect_error(&["get", "x", "-"], 2, &["x"]);
    assert_eq!(lease.bytes().unwrap(), [3, 4], "a removed tensor stays readable for its holder");
    let state = |printed: &serde_json::Value| printed["tensors"][0]["state"].clone();
    assert_eq!((state(&daemon.json(&["ls"])), state(&daemon.json(&["top"]))), (json!("removed"), json!("removed")));
    assert_eq!(daemon.json(&["stat", "x"])["tensors"][0]["versions"][0]["state"], "removed");
    for command in [&["ls"][..], &["stat", "x"], &["who", "x"], &["top"]] {
        let printed = String::from_utf8(daemon.ok(command)).unwrap();
        assert!(printed.contains("removed") && !printed.contains("kept until"), "{printed}");
    }
    drop(lease);
}

#[test]
fn groups_are_shown_with_their_members() {
    let daemon = Daemon::start(&[]);
    let store = cotensor_client::ClientStore::connect(Some(&daemon.socket()), "producer").unwrap();
    let members: [(&str, DType, &[usize]); 2] = [("codes", DType::U8, &[2, 3]), ("scales", DType::F16, &[2])];
    let members = cotensor::store::Members::new(members).unwrap();
    let spec = cotensor::store::TensorSpec::group("weight", members);
    let _held = store.reserve(spec, &store.holder("")).unwrap().publish().unwrap();
    let listed = &daemon.json(&["ls"])["tensors"][0];
    assert_eq!(
        (&listed["member_count"], &listed["shape"], &listed["members"]),
        (&json!(2), &json!([68]), &json!(null))
    );
    let printed = String::from_utf8(daemon.ok(&["ls"])).unwrap();
    assert!(printed.contains("group") && printed.contains("2 members"), "{printed}");
    let printed = String::from_utf8(daemon.ok(&["stat", "weight"])).unwrap();
    assert!(
        printed.contains("member codes: uint8 [2, 3]") && printed.contains("member scales: float16 [2]"),
        "{printed}"
    );
    let scales = json!({"name": "scales", "dtype": "float16", "shape": [2]});
    assert_eq!(daemon.json(&["stat", "weight"])["tensors"][0]["versions"][0]["members"][1], scales);
}

#[test]
fn bad_files_and_arguments_are_refused_and_leave_nothing() {
    let daemon = Daemon::start(&["--max-memory", "8MiB"]);
    for (file, bytes, words) in [
        ("empty.npy", &b""[..], &["empty.npy", "magic"][..]),
        ("text.npy", b"hello, world", &["text.npy", "magic"]),
        ("text.safetensors", b"hello, world", &["text.safetensors", "header"]),
        ("x.txt", b"1 2 3", &["x.txt", ".npy"]),
        (
            "short.npy",
            b"\x93NUMPY\x01\x00\x3a\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n1234",
            &["short.npy", "truncated"],
        ),
        (
            "cols.npy",
            b"\x93NUMPY\x01\x00\x3b\x00{'descr': '<i4', 'fortran_order': True, 'shape': (2,2), }\n\n",
            &["cols.npy", "truncated"],
        ),
    ] {
        fs::write(daemon.path(file), bytes).unwrap();
        daemon.expect_error(&["put", "x", file], 2, words);
    }
    daemon.expect_error(&["put", "x", "missing.npy"], 2, &["missing.npy"]);
    daemon.expect_error(&["put", "x", "short.npy", "--dtype", "int32", "--shape", "1"], 2, &["dtype"]);
    fs::write(daemon.path("big.bin"), vec![0; 9 << 20]).unwrap();
    daemon.expect_error(
        &["put", "x", "big.bin", "--dtype", "uint8", "--shape", "9437184"],
        2,
        &["9.00 MiB do not fit"],
    );
    daemon.expect_error(&["put", "x", "big.bin", "--dtype", "uint8", "--shape", "a,b"], 2, &["--shape"]);
    daemon.expect_error(&["put", "x", "big.bin", "--dtype", "uint8", "--shape", "9"], 2, &["big.bin", "follow"]);
    fs::write(daemon.path("one.bin"), [1]).unwrap();
    daemon.expect_error(&["put", "", "one.bin", "--dtype", "uint8", "--shape", ""], 2, &["name"]);
    assert_eq!(daemon.json(&["ls"])["tensors"], json!([]));
    // Reservations end with the commands' connections.
    until("all tensors are freed", || daemon.json(&["stat"])["stats"]["memory_usage_bytes"] == 0);
}

#[test]
fn tensors_are_listed_in_orders_and_removed_by_patterns() {
    let daemon = Daemon::start(&["--max-memory", "64MiB"]);
    for (name, count) in [("a/1", 8), ("a/2", 64), ("b", 16)] {
        fs::write(daemon.path("x.bin"), numbers(count)).unwrap();
        daemon.ok(&["put", name, "x.bin", "--dtype", "uint8", "--shape", &count.to_string()]);
    }
    let text = |arguments: &[&str]| String::from_utf8(daemon.ok(arguments)).unwrap();
    assert_eq!(text(&["ls", "--quiet"]), "a/1\na/2\nb\n");
    assert_eq!(text(&["ls", "-q", "--sort", "size"]), "a/2\nb\na/1\n");
    assert_eq!(text(&["ls", "-q", "a/"]), "a/1\na/2\n");
    let long = text(&["ls", "--long"]);
    assert!(long.contains("producer") && long.contains("cotensor put"), "{long}");
    let status = daemon.json(&["status"]);
    assert_eq!((&status["kept_tensors"], &status["kept_by"][0]["producer"]), (&json!(3), &json!("cotensor put")));
    let (status, stat) = (text(&["status"]), text(&["stat"]));
    for shown in [status, stat] {
        assert!(shown.contains("kept") && shown.contains("in 3 tensors of cotensor put ("), "{shown}");
    }
    assert_eq!(daemon.json(&["rm", "a/*"])["removed"], json!(["a/1", "a/2"]));
    daemon.expect_error(&["rm", "a/*"], 2, &["a/*"]);
    assert_eq!(text(&["rm", "--all"]), "removed 1 tensor\n");
    assert_eq!(text(&["rm", "--all"]), "removed 0 tensors\n");
    daemon.expect_error(&["rm"], 2, &["NAME"]);
    daemon.expect_error(&["rm", "--all", "b"], 2, &["--all"]);
}
