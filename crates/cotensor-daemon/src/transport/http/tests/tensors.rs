//! Uploads and downloads of tensors.

use super::Running;
use cotensor_core::{Layout, Memory};
use cotensor_memory::SimulatedMemory;
use cotensor_store::{Publication, StoreReports, TensorStore};
use serde_json::json;
use std::os::fd::AsFd;

#[test]
fn tensor_is_uploaded_and_downloaded_whole_or_in_ranges() {
    let running = Running::start(|_, _| {});
    let content: Vec<u8> = (0..3_000_000).map(|index| (index % 251) as u8).collect();
    let put = running.request("PUT", "/tensors/a/b%20c?dtype=float32&shape=250000,3&kind=weight", &[], &content);
    assert_eq!((put.status, &put.json()["id"]["version"]), (201, &json!(1)), "{put:?}");
    assert_eq!((&put.json()["spec"]["name"], &put.json()["leased"]), (&json!("a/b c"), &json!(false)));

    // The segment is sealed, and the daemon does not map it.
    let lease = running.daemon.store().get("a/b c", &running.daemon.store().holder("test")).unwrap();
    let fd = lease.segment().fd().unwrap();
    assert!(lease.bytes().is_none());
    assert!(rustix::io::pwrite(fd.as_fd(), b"x", 0).is_err());
    drop(lease);

    let whole = running.get("/tensors/a/b%20c");
    assert_eq!((whole.status, whole.body == content), (200, true));
    for (header, value) in [
        ("cotensor-dtype", "float32"),
        ("cotensor-shape", "250000,3"),
        ("cotensor-kind", "weight"),
        ("cotensor-version", "1"),
        ("content-type", "application/octet-stream"),
        ("content-length", "3000000"),
        ("accept-ranges", "bytes"),
    ] {
        assert_eq!(whole.headers[header], value);
    }
    let tag = whole.headers["etag"].as_str();
    let ranged = |headers: &[(&str, &str)]| running.request("GET", "/tensors/a/b%20c", headers, b"");
    let part = ranged(&[("Range", "bytes=999999-2000000"), ("If-Range", tag)]);
    assert_eq!((part.status, part.headers["content-range"].as_str()), (206, "bytes 999999-2000000/3000000"));
    assert!(part.body == content[999_999..=2_000_000]);
    assert_eq!(ranged(&[("Range", "bytes=-5")]).body, content[2_999_995..]);
    let beyond = ranged(&[("Range", "bytes=3000000-")]);
    assert_eq!((beyond.status, beyond.headers["content-range"].as_str()), (416, "bytes */3000000"));
    assert_eq!(ranged(&[("If-None-Match", tag)]).status, 304);
    let head = running.request("HEAD", "/tensors/a/b%20c", &[], b"");
    assert_eq!((head.status, head.headers["content-length"].as_str()), (200, "3000000"));

    // A range of another version is not a continuation.
    running.request("PUT", "/tensors/a/b%20c?dtype=uint8&shape=4", &[], b"1234");
    let other = ranged(&[("Range", "bytes=1-2"), ("If-Range", tag)]);
    assert_eq!((other.status, &other.body[..]), (200, &b"1234"[..]));

    let copies = running.daemon.store().stats().copies;
    let network = copies.iter().find(|copies| copies.reason == "network").unwrap();
    assert_eq!(network.bytes, 2 * 3_000_000 + 1_000_002 + 5 + 2 * 4);

    assert_eq!(running.request("DELETE", "/tensors/a/b%20c", &[], b"").status, 204);
    let removed = running.get("/tensors/a/b%20c");
    assert_eq!((removed.status, removed.json()["error"]["data"]["kind"].as_str()), (404, Some("not_found")));
    assert_eq!(running.daemon.store().stats().memory_usage_bytes, 0);
}

#[test]
fn scalars_and_empty_tensors_are_served() {
    let running = Running::start(|_, _| {});
    assert_eq!(running.request("PUT", "/tensors/scalar?dtype=float64", &[], &[7; 8]).status, 201);
    let scalar = running.get("/tensors/scalar");
    assert_eq!((&scalar.body[..], scalar.headers["cotensor-shape"].as_str()), (&[7; 8][..], ""));
    assert_eq!(running.request("PUT", "/tensors/empty?dtype=float32&shape=0,4", &[], b"").status, 201);
    let empty = running.get("/tensors/empty");
    assert_eq!((empty.status, empty.body.len(), empty.headers["cotensor-shape"].as_str()), (200, 0, "0,4"));
}

#[test]
fn session_leases_its_uploads() {
    let running = Running::start(|_, _| {});
    let token = running.hello("writer");
    let session = [("Cotensor-Session", token.as_str())];
    let put = running.request("PUT", "/tensors/x?dtype=uint8&shape=3&keep=while_leased", &session, b"abc");
    assert_eq!(put.json()["leased"], true);
    let id = &put.json()["id"];
    assert_eq!(running.get("/tensors/x").body, b"abc");
    running.call(&session, "tensor.release", json!({"leases": [{"id": id}]})).unwrap();
    assert_eq!(running.get("/tensors/x").status, 404);
}

#[test]
fn invalid_upload_is_refused_and_leaves_nothing() {
    let running = Running::start(|config, http| {
        config.max_memory_bytes = 1 << 20;
        http.tensor_bytes_max = 4 << 20;
    });
    for (target, body, status, field) in [
        ("x?dtype=uint8&shape=3", 2, 400, Some("shape")),
        ("x?dtype=uint8&shape=3,-1", 3, 400, Some("shape")),
        ("x?dtype=uint8&shape=1e3", 1000, 400, Some("shape")),
        ("x?dtype=uint8&shape=99999999999,99999999999", 3, 400, Some("shape")),
        ("x?dtype=uint9&shape=3", 3, 400, Some("dtype")),
        ("x?shape=3", 3, 400, Some("query")),
        ("x?dtype=uint8&shape=3&colour=red", 3, 400, Some("query")),
        ("x?dtype=uint8&shape=3&kind=nonsense", 3, 400, Some("kind")),
        ("x?dtype=uint8&shape=3&space=12", 3, 400, Some("space")),
        ("%ff?dtype=uint8&shape=3", 3, 400, Some("name")),
        ("x?dtype=uint8&shape=2000000", 2_000_000, 507, Some("x")),
        ("x?dtype=uint8&shape=5000000", 5_000_000, 413, None),
        (&format!("{}?dtype=uint8&shape=3", "n".repeat(2000)), 3, 400, Some("name")),
    ] {
        let answer = running.request("PUT", &format!("/tensors/{target}"), &[], &vec![0; body]);
        assert_eq!(answer.status, status, "{target}: {answer:?}");
        assert_eq!(answer.json()["error"]["data"]["field"].as_str(), field, "{target}: {answer:?}");
    }
    let session = [("Cotensor-Session", "forged")];
    assert_eq!(running.request("PUT", "/tensors/x?dtype=uint8&shape=3", &session, b"abc").status, 404);
    let stats = running.daemon.store().stats();
    assert_eq!((stats.total_tensors, stats.memory_usage_bytes), (0, 0));
}

#[test]
fn tensors_on_a_device_do_not_travel_over_http() {
    let device = cotensor_core::Device::Fake(0);
    let running = Running::start(|config, _| config.max_device_bytes = [(device, u64::MAX)].into());
    let put = running.request("PUT", "/tensors/x?dtype=uint8&shape=4&device=fake:0", &[], b"1234");
    assert_eq!(put.json()["error"]["data"]["kind"], json!("unsupported"), "{put:?}");
    let put = running.request("PUT", "/tensors/x?dtype=uint8&shape=4&device=cpu", &[], b"1234");
    assert_eq!(put.status, 201, "{put:?}");

    let store = running.daemon.store();
    let spec = crate::testing::spec("on the device", 4).on(device);
    let memory = SimulatedMemory::default().reserve(4).unwrap().freeze().unwrap();
    let fd = memory.fd().unwrap().try_clone_to_owned().unwrap();
    let segment = crate::state::segment::own_segment(fd, 4, device).unwrap();
    let layout = Layout::contiguous(spec.dtype, &spec.shape).unwrap();
    let charge = store.grant(&spec).unwrap();
    let lease = store.adopt(spec, layout, segment, charge, Publication::default(), &store.holder("test")).unwrap();
    let got = running.get("/tensors/on%20the%20device");
    let error = &got.json()["error"];
    assert_eq!((&error["data"]["kind"], &error["data"]["field"]), (&json!("unsupported"), &json!("on the device")));
    assert!(error["message"].to_string().contains("cannot read fake:0"), "{error}");
    let metrics = String::from_utf8(running.get("/metrics").body).unwrap();
    for line in
        [r#"cotensor_device_memory_bytes{device="cpu"} 4"#, r#"cotensor_device_memory_bytes{device="fake:0"} 4"#]
    {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    drop(lease);
}

#[test]
fn tensors_are_listed_by_name_or_by_size() {
    let running = Running::start(|_, _| {});
    for (name, bytes) in [("a", 2), ("b", 9), ("c", 5), ("d", 5)] {
        let put = running.request("PUT", &format!("/tensors/{name}?dtype=uint8&shape={bytes}"), &[], &vec![0; bytes]);
        assert_eq!(put.status, 201, "{put:?}");
    }
    let listed = |params| {
        let found = running.call(&[], "tensor.list", params).unwrap();
        let names: Vec<&str> = found["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tensor| tensor["spec"]["name"].as_str().unwrap())
            .collect();
        (names.concat(), found["left_off"].as_u64().unwrap())
    };
    assert_eq!(listed(json!({})), ("abcd".to_owned(), 0));
    assert_eq!(listed(json!({"limit": 2})), ("ab".to_owned(), 2));
    assert_eq!(listed(json!({"limit": 3, "order": "size"})), ("bcd".to_owned(), 1));
    let error = running.call(&[], "tensor.list", json!({"order": "colour"})).unwrap_err();
    assert_eq!(error["data"]["kind"], "invalid", "{error}");
}

#[test]
fn tensor_is_downloaded_as_npy_file() {
    let running = Running::start(|_, _| {});
    let content: Vec<u8> = (0..24).collect();
    running.request("PUT", "/tensors/a/b%20c?dtype=float32&shape=2,3", &[], &content);
    let whole = running.get("/tensors/a/b%20c?format=npy");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    assert_eq!((whole.status, whole.headers["content-length"].as_str()), (200, "152"), "{whole:?}");
    assert!(whole.body.starts_with(b"\x93NUMPY\x01\x00") && whole.body[10..].starts_with(header.as_bytes()));
    assert_eq!(whole.body[128..], content);
    for (header, value) in [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment; filename=\"b_c.npy\""),
        ("cotensor-shape", "2,3"),
    ] {
        assert_eq!(whole.headers[header], value);
    }
    // Ranges count the header, and the form is a part of the tag.
    let ranged = |range: &str, tag: &str| {
        running.request("GET", "/tensors/a/b%20c?format=npy", &[("Range", range), ("If-Range", tag)], b"")
    };
    let tag = whole.headers["etag"].as_str();
    for (range, part) in [("bytes=0-5", 0..6), ("bytes=120-131", 120..132), ("bytes=130-", 130..152)] {
        let answer = ranged(range, tag);
        assert_eq!((answer.status, &answer.body), (206, &whole.body[part].to_vec()), "{range}");
    }
    assert_eq!(ranged("bytes=152-", tag).status, 416);
    assert_ne!(running.get("/tensors/a/b%20c").headers["etag"], tag);
    let head = running.request("HEAD", "/tensors/a/b%20c?format=npy", &[], b"");
    assert_eq!((head.status, head.headers["content-length"].as_str()), (200, "152"));

    running.request("PUT", "/tensors/half?dtype=BF16&shape=1", &[], &[0; 2]);
    for (target, status, field) in [("half?format=npy", 501, "format"), ("half?format=tiff", 400, "query")] {
        let answer = running.get(&format!("/tensors/{target}"));
        assert_eq!((answer.status, &answer.json()["error"]["data"]["field"]), (status, &json!(field)), "{answer:?}");
    }
    assert_eq!(running.anonymous("GET", "/tensors/a/b%20c?format=npy", &[], b"").status, 401);
}
