//! `put --keep`: tensors that are kept for a time.

use crate::support::{Daemon, until};

#[test]
fn tensor_that_is_kept_for_a_time_is_freed_then() {
    let daemon = Daemon::start(&[]);
    std::fs::write(daemon.path("x.bin"), [1, 2, 3]).unwrap();
    let put = |name: &str, time: &str| {
        daemon.ok(&["put", name, "x.bin", "--dtype", "uint8", "--shape", "3", "--keep", time]);
    };
    put("hour", "1h");
    put("brief", "1ms");
    let version = |name: &str| daemon.json(&["stat", name])["tensors"][0]["versions"][0].clone();
    let shown = version("hour");
    assert_eq!((&shown["cached"], &shown["keep_s"]), (&true.into(), &3600.0.into()), "{shown}");
    assert!(shown["freed_in_s"].as_f64().is_some_and(|left| left <= 3600.0), "{shown}");
    let listed = daemon.json(&["ls", "hour"]);
    assert_eq!(listed["tensors"][0]["keep_s"], 3600.0);
    assert!(listed["tensors"][0]["freed_in_s"].is_f64(), "{listed}");
    for command in ["stat", "who"] {
        let text = String::from_utf8(daemon.ok(&[command, "hour"])).unwrap();
        assert!(text.contains("freed in "), "{text}");
    }
    until("the tensor is freed", || !daemon.run(&["stat", "brief"]).status.success());
    daemon.expect_error(&["put", "y", "x.bin", "--keep", "0"], 2, &["--keep", "30 years"]);
}
