//! Commands on a terminal: progress, and restoring the terminal.

use crate::support::Daemon;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A pseudo-terminal and its output.
struct Terminal {
    user: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn new() -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let user = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&user, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (into, mut from) = (Arc::clone(&shown), File::from(controller));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        Self { user, shown }
    }

    fn end(&self) -> Stdio {
        OwnedFd::from(self.user.try_clone().unwrap()).into()
    }

    fn start(&self, mut command: Command) -> Child {
        command.env("TERM", "xterm").stdin(self.end()).stdout(self.end()).stderr(self.end()).spawn().unwrap()
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    fn until(&self, text: &str) {
        let start = Instant::now();
        while !self.shown().contains(text) {
            assert!(start.elapsed() < Duration::from_secs(20), "{text:?} is not shown: {:?}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether echo and line mode are on.
    fn is_itself(&self) -> bool {
        tcgetattr(&self.user).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }
}

#[test]
fn top_restores_the_terminal_on_every_exit() {
    let daemon = Daemon::start(&[]);
    for (signal, number) in [("-TERM", 15), ("-HUP", 1), ("-INT", 2)] {
        let terminal = Terminal::new();
        assert!(terminal.is_itself());
        // A long interval, so that the signal arrives while the command waits.
        let mut top = terminal.start(daemon.command(&["top", "--interval", "1h"]));
        // The cursor is hidden after drawing.
        terminal.until("\u{1b}[?25l");
        assert!(!terminal.is_itself());
        assert!(Command::new("kill").args([signal, &top.id().to_string()]).status().unwrap().success());
        assert_eq!(top.wait().unwrap().signal(), Some(number));
        assert!(terminal.is_itself(), "{signal}");
        // Leaves the alternate screen and shows the cursor.
        terminal.until("\u{1b}[?1049l");
        terminal.until("\u{1b}[?25h");
    }
}

#[test]
fn large_files_show_progress_on_terminals_only() {
    let daemon = Daemon::start(&[]);
    let len = 65 << 20;
    File::create(daemon.path("large.bin")).unwrap().set_len(len).unwrap();
    let shape = len.to_string();
    let put = |name, file| ["put", name, file, "--dtype", "uint8", "--shape", &shape].map(str::to_owned);
    let run = |words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let terminal = Terminal::new();
        assert!(terminal.start(daemon.command(&words)).wait().unwrap().success());
        terminal.until("65.0 MiB");
        let quiet = daemon.run(&words);
        assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
        terminal.shown()
    };
    let shown = run(&put("x", "large.bin"));
    assert!(shown.contains("reading large.bin"), "{shown:?}");
    let shown = run(&["get", "x", "copy.npy"].map(str::to_owned));
    assert!(shown.contains("writing copy.npy"), "{shown:?}");
}
