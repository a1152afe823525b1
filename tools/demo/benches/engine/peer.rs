//! A Python process that runs a peer once for each line that it reads.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("peer.py");

pub(crate) struct Peer {
    child: Child,
    commands: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a peer; `None`, with a message, if the interpreter cannot import it.
    pub(crate) fn start(kind: &str, arguments: &[&str]) -> Option<Self> {
        let python = std::env::var_os("COTENSOR_BENCH_PYTHON").unwrap_or_else(|| "python3".into());
        let mut command = Command::new(&python);
        command.args(["-c", SCRIPT, kind]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            println!("  {kind} left out: no {}; COTENSOR_BENCH_PYTHON names another interpreter", python.display());
            return None;
        };
        let (commands, out) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut peer = Self { child, commands, lines: BufReader::new(out) };
        let first = peer.line();
        match first.strip_prefix("ready ") {
            Some(version) => println!("  {kind} {version}"),
            None => println!("  {kind} left out: {first}; COTENSOR_BENCH_PYTHON names another interpreter"),
        }
        first.starts_with("ready ").then_some(peer)
    }

    /// Runs once; returns the milliseconds.
    pub(crate) fn run(&mut self) -> f64 {
        self.ask().parse().unwrap()
    }

    /// Runs once; returns the line that the script prints.
    pub(crate) fn ask(&mut self) -> String {
        writeln!(self.commands.as_mut().unwrap(), "run").unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The script ends when its input does.
        self.commands = None;
        let _ = self.child.wait();
    }
}
