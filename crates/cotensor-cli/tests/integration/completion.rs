//! Completion by shells, as the script of `completions` asks for it.

use crate::support::Daemon;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What bash completes for the last of the words.
fn completed(mut command: Command, words: &[&str]) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_cotensor")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(program.to_path_buf()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    // Bash sets these variables, and passes the command, the word and the word before it.
    let script = "source <(cotensor completions bash)\nCOMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1)) COMP_TYPE=9\n\
        _clap_complete_cotensor cotensor \"${@: -1}\" \"${@: -2:1}\"\nprintf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = command.env("PATH", path.unwrap()).args(["-c", script, "bash"]).args(words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Bash with the environment of the daemon's commands.
fn bash(daemon: &Daemon) -> Command {
    let mut bash = Command::new("bash");
    let command = daemon.command(&[]);
    bash.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bash.env(name, value),
            None => bash.env_remove(name),
        };
    }
    bash
}

#[test]
fn tensors_of_the_running_daemon_are_completed() {
    let mut daemon = Daemon::start(&[]);
    fs::write(daemon.path("x.raw"), [7; 8]).unwrap();
    for name in ["bert/a", "bert/b", "other", "b with spaces", "b$(id)"] {
        daemon.ok(&["put", name, "x.raw", "--dtype", "uint8", "--shape", "8"]);
    }
    for command in ["get", "rm", "stat", "who", "ls"] {
        assert_eq!(completed(bash(&daemon), &["cotensor", command, "b"]), ["bert/a", "bert/b"], "{command}");
    }
    assert_eq!(completed(bash(&daemon), &["cotensor", "stat", "other", "bert/b"]), ["bert/b"]);

    assert_eq!(daemon.signal("-TERM"), Some(0));
    let mut shell = bash(&daemon);
    shell.env("COTENSOR_AUTOSTART", "1");
    assert!(completed(shell, &["cotensor", "rm", "b"]).is_empty());
    assert!(!daemon.socket().exists(), "a completion starts no daemon");
}

#[test]
fn models_of_the_cache_commands_and_options_are_completed() {
    let daemon = Daemon::stopped();
    for model in ["models--openai--whisper-base", "models--owner--b", "datasets--openai--x"] {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        fs::create_dir_all(daemon.path("hub").join(model).join("snapshots").join(commit)).unwrap();
    }
    fs::create_dir_all(daemon.path("hub/models--openai--partial")).unwrap();
    fs::write(daemon.path("open.toml"), "").unwrap();
    let of = |words: &[&str]| completed(bash(&daemon), words);
    assert_eq!(of(&["cotensor", "run", "op"]), ["openai/whisper-base", "open.toml"]);
    assert_eq!(of(&["cotensor", "embed", "ow"]), ["owner/b"]);
    assert_eq!(of(&["cotensor", "models", "load", "ow"]), ["owner/b"]);
    assert_eq!(of(&["cotensor", "config", "set", "max_m"]), ["max_memory"]);
    assert_eq!(of(&["cotensor", "serve", "--token"]), ["--token-file"]);
    assert!(of(&["cotensor", "run", "model", "zero-shot"]).contains(&"zero-shot-image-classification".to_owned()));

    let help = String::from_utf8(daemon.ok(&["--help"])).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = lines.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    assert!(commands.len() > 15, "{help}");
    let found = of(&["cotensor", ""]);
    let left_out: Vec<_> = commands
        .iter()
        .filter(|name| help.contains(&format!("\n  {name} ")) && !found.contains(&(**name).to_owned()))
        .collect();
    assert!(left_out.is_empty(), "{left_out:?} of {found:?}");
}

#[test]
fn every_shell_has_a_script() {
    let daemon = Daemon::stopped();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(daemon.ok(&["completions", shell])).unwrap();
        assert!(script.contains("COTENSOR_COMPLETE"), "{shell}: {script}");
    }
    // Errors do not appear in the command line that is edited.
    let output = daemon.command(&["--", "cotensor", ""]).env("COTENSOR_COMPLETE", "nonsense").output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}
