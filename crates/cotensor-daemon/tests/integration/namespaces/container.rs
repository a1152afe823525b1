//! A program in new PID and mount namespaces, with its own root folder.

use crate::support::processes::children;
use crate::support::until;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The path of the shared folder in the container.
pub(crate) const INSIDE: &str = "/run/shared";

/// Makes the root on a file system that ends with the namespace. It contains the system's programs and libraries, /proc
/// of the namespace, the shared folder and the program.
const ROOT: &str = r#"
set -e
root=$1 shared=$2 program=$3
shift 3
mount -t tmpfs none "$root"
for folder in bin etc lib lib64 nix sbin usr; do
    if [ -L "/$folder" ]; then cp -P "/$folder" "$root/$folder"
    elif [ -d "/$folder" ]; then mkdir "$root/$folder"; mount --rbind "/$folder" "$root/$folder"
    fi
done
mkdir -p "$root/proc" "$root/tmp" "$root/run/shared"
mount -t proc proc "$root/proc"
mount --bind "$shared" "$root/run/shared"
touch "$root/program"
mount --bind "$program" "$root/program"
exec chroot "$root" /program "$@"
"#;

/// A running container. Dropping it kills it.
pub(crate) struct Container {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// The mount point of the root.
    _root: tempfile::TempDir,
}

impl Container {
    /// Runs `program` with `shared` at [`INSIDE`]. Returns `None`, with the reason on standard error, if this process
    /// may not make namespaces.
    pub(crate) fn start(
        shared: &Path,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, String)],
    ) -> Option<Self> {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--mount", "--kill-child"]);
            command
        };
        let root = tempfile::tempdir().unwrap();
        let possible = unshare().args(["mount", "-t", "tmpfs", "none"]).arg(root.path()).output();
        match possible {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                eprintln!("not tested: namespaces are not permitted: {}", String::from_utf8_lossy(&output.stderr));
                return None;
            }
            Err(error) => {
                eprintln!("not tested: unshare cannot be run: {error}");
                return None;
            }
        }
        let mut command = unshare();
        command.args(["sh", "-c", ROOT, "sh"]).args([root.path(), shared, program]).args(arguments);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Some(Self { child, lines, _root: root })
    }

    /// The first process of the namespace, by its number outside.
    pub(crate) fn first_process(&mut self) -> u32 {
        let mut found = None;
        until("the container has a process", || {
            found = children(self.child.id()).first().copied();
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until the program prints the line `word`.
    pub(crate) fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.ends_with(&format!("{word}\n")) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the program ended before it printed {word:?}");
        }
    }

    /// Sends the program a line.
    pub(crate) fn send_line(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end. Returns whether it succeeded.
    pub(crate) fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
