//! `service`: the units of the user's systemd.

use crate::args::{ServiceAction, ServiceArgs};
use crate::launch::Program;
use crate::output::{print, print_json};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_client::settings::{LISTEN, configured};
use serde::Serialize;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

const SERVICE: &str = "cotensor.service";
const SOCKET: &str = "cotensor.socket";
const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// The units, of which the service has the path of an installation by cargo.
const SERVICE_UNIT: &str = include_str!("../../../../dist/cotensor.service");
const SOCKET_UNIT: &str = include_str!("../../../../dist/cotensor.socket");
const TEMPLATE_COMMAND: &str = "%h/.cargo/bin/cotensor";
const SOCKET_LINE: &str = "ListenStream=/tmp/cotensor-%U/cotensor.sock\n";

/// The JSON object of `service`.
#[derive(Serialize)]
struct Outcome {
    units: Vec<PathBuf>,
    /// Whether systemd runs the socket now (install) or has stopped it (uninstall).
    applied: bool,
    /// The commands that remain, because this user's systemd cannot be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remaining: Vec<&'static str>,
}

pub(crate) fn service(args: &ServiceArgs, program: &Program) -> Result<()> {
    let listen = listen_setting()?;
    let units = [(SERVICE, service_unit(program, listen)?), (SOCKET, socket_unit(listen))];
    let outcome = match args.action {
        ServiceAction::Print => {
            if args.json {
                let units: std::collections::BTreeMap<_, _> = units.into_iter().collect();
                return print_json(&units);
            }
            return print(&units.map(|(name, text)| format!("# {name}\n{text}")).join("\n"));
        }
        ServiceAction::Install { no_enable } => install(&units, !no_enable)?,
        ServiceAction::Uninstall => uninstall()?,
    };
    if args.json {
        return print_json(&outcome);
    }
    let mut text = String::new();
    let verb = if matches!(args.action, ServiceAction::Uninstall) { "removed" } else { "installed" };
    for unit in &outcome.units {
        text += &format!("{verb} {}\n", unit.display());
    }
    if !outcome.remaining.is_empty() {
        text += &format!("run: {}\n", outcome.remaining.join(" && "));
    }
    print(&text)
}

/// The address of HTTP in the setting `listen`, if it has a fixed port.
fn listen_setting() -> Result<Option<SocketAddr>> {
    let Some(text) = configured(&LISTEN)? else { return Ok(None) };
    let text = text.to_str().ok_or_else(|| Error::invalid("not UTF-8 text").in_field(LISTEN.variable))?;
    Ok(Some(crate::args::serve_values::address(text)?).filter(|address| address.port() != 0))
}

/// The socket, with that of HTTP.
fn socket_unit(listen: Option<SocketAddr>) -> String {
    let Some(listen) = listen else { return SOCKET_UNIT.to_owned() };
    SOCKET_UNIT.replacen(SOCKET_LINE, &format!("{SOCKET_LINE}ListenStream={listen}\n"), 1)
}

/// Whether the installed socket of systemd listens for HTTP at `address`.
pub(super) fn is_activated(address: SocketAddr) -> bool {
    let unit = folder().ok().and_then(|folder| std::fs::read_to_string(folder.join(SOCKET)).ok()).unwrap_or_default();
    unit.lines().any(|line| line.trim() == format!("ListenStream={address}"))
}

/// The service with the command of this installation.
fn service_unit(program: &Program, listen: Option<SocketAddr>) -> Result<String> {
    let (command, arguments) = program.command()?;
    let words = std::iter::once(command.into_os_string()).chain(arguments).map(quoted).collect::<Result<Vec<_>>>()?;
    let unit = SERVICE_UNIT.replace(TEMPLATE_COMMAND, &words.join(" "));
    let Some(listen) = listen else { return Ok(unit) };
    // The daemon must use the socket for HTTP also when the setting changes later.
    let with_http = |line: &str| {
        if line.starts_with("ExecStart=") { format!("{line} --listen {listen}\n") } else { format!("{line}\n") }
    };
    Ok(unit.lines().map(with_http).collect())
}

/// A word of a command line in a unit: `systemd.service(5)`, "Command lines".
fn quoted(word: OsString) -> Result<String> {
    let refused = || Error::unsupported("a unit cannot name this path: it is not UTF-8 or has control characters");
    let word = word.into_string().map_err(|_| refused())?;
    if word.contains(char::is_control) {
        return Err(refused());
    }
    let word = word.replace('%', "%%").replace('$', "$$");
    Ok(if word.contains([' ', '"', '\'', '\\']) {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        word
    })
}

/// The folder of the user's units.
fn folder() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| Error::new(ErrorKind::NotFound, "the variable HOME is not set"))?;
    Ok(config.join("systemd/user"))
}

fn install(units: &[(&str, String)], enable: bool) -> Result<Outcome> {
    let folder = folder()?;
    let io = |error: std::io::Error, path: &Path| match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Error::invalid(format!("cannot write the unit: {error}")).in_file(path)
        }
        _ => Error::io("cannot write the unit", &error).in_file(path),
    };
    std::fs::create_dir_all(&folder).map_err(|error| io(error, &folder))?;
    let mut written = Vec::new();
    for (name, text) in units {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| io(error, &path))?;
        written.push(path);
    }
    const COMMANDS: [&str; 2] = ["systemctl --user daemon-reload", "systemctl --user enable --now cotensor.socket"];
    if !enable {
        return Ok(Outcome { units: written, applied: false, remaining: COMMANDS.to_vec() });
    }
    let applied = systemctl(&["daemon-reload"]) && systemctl(&["enable", "--now", SOCKET]);
    Ok(Outcome { units: written, applied, remaining: if applied { Vec::new() } else { COMMANDS.to_vec() } })
}

fn uninstall() -> Result<Outcome> {
    let folder = folder()?;
    let applied = systemctl(&["disable", "--now", SOCKET, SERVICE]);
    let mut removed = Vec::new();
    for name in [SERVICE, SOCKET] {
        let path = folder.join(name);
        match std::fs::remove_file(&path) {
            Ok(()) => removed.push(path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("cannot remove the unit", &error).in_file(path)),
        }
    }
    let remaining =
        if applied && systemctl(&["daemon-reload"]) { Vec::new() } else { vec!["systemctl --user daemon-reload"] };
    Ok(Outcome { units: removed, applied, remaining })
}

/// Runs systemctl for this user. False when it fails, for example because no systemd of this user runs.
fn systemctl(arguments: &[&str]) -> bool {
    Command::new(SYSTEMCTL).arg("--user").args(arguments).output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_quoted_for_systemd() {
        let quoted = |word: &str| super::quoted(word.into()).unwrap();
        assert_eq!(quoted("/opt/a b/c\"d"), "\"/opt/a b/c\\\"d\"");
        assert_eq!(quoted("/opt/100%/$x"), "/opt/100%%/$$x");
        assert_eq!(quoted("-m"), "-m");
        assert!(super::quoted("a\nb".into()).is_err());
        assert!(SERVICE_UNIT.contains(TEMPLATE_COMMAND) && SOCKET_UNIT.contains(SOCKET_LINE));
    }
}
