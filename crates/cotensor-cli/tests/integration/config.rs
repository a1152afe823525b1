//! The configuration file: `config`, precedence, and daemons that read it.

use crate::support::{Daemon, until};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Output};

/// A folder with a configuration file. Its daemon ends with this value.
struct Configured(Daemon);

impl Configured {
    /// `{folder}` in the text is the path of the folder.
    fn new(text: &str) -> Self {
        let this = Self(Daemon::stopped());
        this.write(text);
        this
    }

    fn write(&self, text: &str) {
        let folder = self.0.path("").to_str().unwrap().trim_end_matches('/').to_owned();
        fs::write(self.0.path("config.toml"), text.replace("{folder}", &folder)).unwrap();
    }

    /// A command with the file, by a relative path, and without variables of its settings.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.command(arguments);
        command.env("COTENSOR_CONFIG", "config.toml");
        command.env_remove("COTENSOR_SOCKET").env_remove("COTENSOR_AUTOSTART").env_remove("COTENSOR_THREADS");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn json(&self, command: &mut Command) -> Value {
        let output = command.arg("--json").output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn expect_error(&self, arguments: &[&str], words: &[&str]) {
        let output = self.run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(words.iter().all(|word| complaint.contains(word)), "{words:?} in {complaint}");
    }

    /// The value and the source of a setting.
    fn setting(&self, command: &mut Command, key: &str) -> (Value, Value) {
        let listing = self.json(command);
        let settings = listing["settings"].as_array().unwrap();
        let found = settings.iter().find(|setting| setting["key"] == key).unwrap();
        (found["value"].clone(), found["source"].clone())
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        self.write("socket = '{folder}/cotensor.sock'");
        drop(self.run(&["stop"]));
    }
}

#[test]
fn variable_precedes_file_and_file_precedes_default() {
    let place = Configured::new("# comment\nthreads = 3\nallow_host = ['a', 'b.c']\n");
    let config = || place.command(&["config"]);
    assert_eq!(place.setting(&mut config(), "threads"), (json!("3"), json!("file")));
    assert_eq!(place.setting(&mut config(), "allow_host"), (json!("a,b.c"), json!("file")));
    assert_eq!(place.setting(config().env("COTENSOR_THREADS", "5"), "threads"), (json!("5"), json!("variable")));
    assert_eq!(place.setting(config().env("COTENSOR_THREADS", ""), "threads"), (json!("3"), json!("file")));
    assert_eq!(place.setting(&mut config(), "engine"), (Value::Null, json!("default")));
    let text = String::from_utf8(place.run(&["config"]).stdout).unwrap();
    assert!(text.contains("line 2 of the file") && text.contains("file: config.toml"), "{text}");
    assert_eq!(place.run(&["config", "path"]).stdout, b"config.toml\n");
}

#[test]
fn daemon_that_a_command_starts_reads_the_file_and_keeps_its_values() {
    let place = Configured::new(
        "socket = \"{folder}/cotensor.sock\"\nmax_memory = \"64MiB\"\nautostart = true\nidle_exit = 3600\n",
    );
    let status = || place.json(&mut place.command(&["status"]));
    assert!(place.run(&["ls"]).status.success());
    let budget = |status: &Value| status["max_memory_bytes"].as_u64();
    let started = status();
    assert_eq!((budget(&started), started["idle_exit_s"].as_f64()), (Some(64 << 20), Some(3600.0)));

    // A server that replaces a killed one does not read the file.
    let server = started["server"].as_u64().unwrap();
    place.write("socket = \"{folder}/cotensor.sock\"\nmax_memory = \"32MiB\"\n");
    assert!(Command::new("kill").args(["-9", &server.to_string()]).status().unwrap().success());
    until("there is another server", || status()["server"].as_u64() != Some(server));
    assert_eq!(budget(&status()), Some(64 << 20));

    assert!(place.run(&["stop"]).status.success());
    place.write("socket = \"{folder}/cotensor.sock\"\nautostart = false\n");
    let refused = place.run(&["ls"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn argument_precedes_variable_and_file() {
    let place =
        Configured::new("socket = \"{folder}/cotensor.sock\"\nmax_memory = \"64MiB\"\ntoken_file = '/nowhere'\n");
    for (argument, variable, expected) in [(Some("16MiB"), "32MiB", 16), (None, "32MiB", 32), (None, "", 64)] {
        let mut serve = place.command(&["serve", "--detach"]);
        serve.env("COTENSOR_MAX_MEMORY", variable);
        serve.args(argument.iter().flat_map(|argument| ["--max-memory", argument]));
        let status = place.json(&mut serve);
        assert_eq!(status["max_memory_bytes"].as_u64(), Some(expected << 20), "{argument:?} {variable}");
        assert!(place.run(&["stop"]).status.success());
    }
    place.expect_error(&["serve", "--token-file", "x"], &["--listen"]);
}

#[test]
fn errors_name_file_line_and_key() {
    let place = Configured::new("");
    for (text, words) in [
        ("threads = 'many'", &["config.toml: threads: line 1", "\"many\"", "invalid digit"][..]),
        ("\nengine = 'torch'", &["engine: line 2", "torch"]),
        ("autostart = 'maybe'", &["autostart: line 1"]),
        ("spill = 'here'", &["spill: line 1", "absolute"]),
        ("threads = [", &["config.toml: line 1"]),
    ] {
        place.write(text);
        place.expect_error(&["ls"], words);
        // The commands that repair the file work.
        let shown = place.run(&["config"]);
        let complaint = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success() && words.iter().all(|word| complaint.contains(word)), "{text}: {shown:?}");
        assert!(place.run(&["version"]).status.success() && place.run(&["config", "path"]).status.success());
        let key = text.trim_start().split(' ').next().unwrap();
        assert!(place.run(&["config", "unset", key]).status.success(), "{text}");
        assert_eq!(fs::read_to_string(place.0.path("config.toml")).unwrap().trim(), "");
    }
    fs::remove_file(place.0.path("config.toml")).unwrap();
    place.expect_error(&["ls"], &["config.toml", "COTENSOR_CONFIG"]);
}

#[test]
fn unknown_key_is_a_warning_and_can_be_removed() {
    let place = Configured::new("max_memroy = '1GiB'\nautostart = false\n");
    let warned = |output: &Output| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let words = [
            "warning: config.toml: max_memroy: line 1",
            "did you mean max_memory?",
            "cotensor config unset max_memroy",
        ];
        words.iter().all(|word| complaint.contains(word))
    };
    for arguments in [&["stop"][..], &["config"], &["config", "get", "autostart"], &["doctor"]] {
        let output = place.run(arguments);
        assert!(output.status.success() && warned(&output), "{arguments:?}: {output:?}");
    }
    let listing = place.json(&mut place.command(&["config"]));
    assert!(listing["problems"][0].as_str().unwrap().contains("max_memroy"), "{listing}");
    place.expect_error(&["config", "set", "max_memroy", "1"], &["did you mean max_memory?"]);
    assert!(place.run(&["config", "unset", "max_memroy"]).status.success());
    let output = place.run(&["stop"]);
    assert!(output.status.success() && !warned(&output), "{output:?}");
    assert_eq!(place.setting(&mut place.command(&["config"]), "autostart"), (json!("false"), json!("file")));
}

#[test]
fn settings_are_set_and_removed() {
    let place = Configured::new("# mine\n");
    let text = || fs::read_to_string(place.0.path("config.toml")).unwrap();
    assert!(place.run(&["config", "set", "max_memory", "8GiB"]).status.success());
    assert_eq!(text(), "# mine\nmax_memory = \"8GiB\"\n");
    assert_eq!(place.run(&["config", "get", "max_memory"]).stdout, b"8GiB\n");
    assert_eq!(place.run(&["config", "get", "engine"]).stdout, b"");
    place.expect_error(&["config", "set", "max_memory", "8 pounds"], &["max_memory", "8 pounds"]);
    place.expect_error(&["config", "set", "max_memroy", "8GiB"], &["did you mean max_memory?"]);
    place.expect_error(&["config", "get", "max_memroy"], &["did you mean max_memory?"]);
    let changed = place.json(&mut place.command(&["config", "unset", "max_memory"]));
    assert_eq!(changed, json!({"file": "config.toml", "changed": true}));
    assert_eq!(text(), "# mine\n");
}
