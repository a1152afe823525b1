//! The units of the user's systemd.

use crate::support::Daemon;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const ANALYZE: &str = "/usr/bin/systemd-analyze";

/// A command whose units are in the folder of `place`.
fn service(place: &Daemon, arguments: &[&str]) -> Output {
    let mut command = place.command(&["service"]);
    command.args(arguments).env("XDG_CONFIG_HOME", place.path("config")).env_remove("XDG_RUNTIME_DIR");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn units_are_installed_and_removed() {
    let place = Daemon::stopped();
    let installed: Value =
        serde_json::from_slice(&service(&place, &["install", "--no-enable", "--json"]).stdout).unwrap();
    let units: Vec<&str> = installed["units"].as_array().unwrap().iter().map(|unit| unit.as_str().unwrap()).collect();
    assert_eq!(units.len(), 2);
    let text = std::fs::read_to_string(units[0]).unwrap();
    let start = format!("ExecStart={} serve --socket /tmp/cotensor-%U/cotensor.sock\n", env!("CARGO_BIN_EXE_cotensor"));
    assert!(text.contains(&start), "{text}");
    // Where systemd is installed, it accepts the units.
    if Path::new(ANALYZE).exists() {
        let mut verify = Command::new(ANALYZE);
        verify.args(["verify", "--user"]).args(&units).env("XDG_RUNTIME_DIR", place.folder.path());
        let verified = verify.output().unwrap();
        let complaint = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && complaint.is_empty(), "{complaint}");
    }
    let mut with_http = place.command(&["service", "print"]);
    let output = with_http.env("COTENSOR_LISTEN", "127.0.0.1:2600").output().unwrap();
    let http = String::from_utf8(output.stdout).unwrap();
    for line in [
        "ExecStart=",
        " serve --socket /tmp/cotensor-%U/cotensor.sock --listen 127.0.0.1:2600\n",
        "ListenStream=/tmp/cotensor-%U/cotensor.sock\nListenStream=127.0.0.1:2600\n",
    ] {
        assert!(http.contains(line), "{line}: {http}");
    }
    let printed = String::from_utf8(service(&place, &["print"]).stdout).unwrap();
    assert!(printed.contains(&text), "{printed}");
    let removed: Value = serde_json::from_slice(&service(&place, &["uninstall", "--json"]).stdout).unwrap();
    assert_eq!(removed["units"], installed["units"]);
    assert!(!Path::new(units[0]).exists());
    let again: Value = serde_json::from_slice(&service(&place, &["uninstall", "--json"]).stdout).unwrap();
    assert_eq!(again["units"], serde_json::json!([]));
}
