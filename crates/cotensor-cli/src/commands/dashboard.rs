use super::connection::connect;
use crate::args::{DashboardArgs, TokenArgs};
use crate::launch::Program;
use crate::output::{print, print_json};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_client::protocol::{Empty, HttpAddress, HttpDashboard, HttpListen, HttpListenParams};
use cotensor_client::token::read_token;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that opens a file with the user's default application.
const OPENER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };

#[derive(Serialize)]
struct Shown<'a> {
    token: &'a str,
    token_file: &'a Path,
    /// Address of the daemon's HTTP server.
    http: SocketAddr,
}

/// Prints the token from the file that the daemon reports.
pub(crate) fn token(args: &TokenArgs, program: &Program) -> Result<()> {
    let http = connect(&args.client, program, "cotensor token")?.request::<HttpAddress>(&Empty {})?;
    let token = read_token(&http.token_file)?;
    if args.client.json {
        return print_json(&Shown { token: &token, token_file: &http.token_file, http: http.address });
    }
    print(&if args.header { format!("Authorization: Bearer {token}\n") } else { format!("{token}\n") })
}

#[derive(Serialize)]
struct Opened {
    http: SocketAddr,
    /// The file that redirects a browser to the dashboard once.
    file: PathBuf,
    opened: bool,
}

/// Opens the dashboard, and turns HTTP on if it is off. The address and the file are received over the Unix socket, so that another program that
/// listens on the port gets no code.
pub(crate) fn dashboard(args: &DashboardArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor dashboard")?;
    let http = store.request::<HttpListen>(&HttpListenParams::default())?;
    let file = store.request::<HttpDashboard>(&Empty {})?.file;
    let opened = !args.no_open && open(&file)?;
    if args.client.json {
        return print_json(&Opened { http: http.address, file, opened });
    }
    let lead = if opened { "opening" } else { "open this file in a browser within a minute:" };
    print(&format!(
        "{lead} {}\nIf the browser cannot read the file, open http://{} and paste the output of `cotensor token`.\n",
        file.display(),
        http.address
    ))
}

/// Opens a file on the desktop; false when no desktop is installed.
fn open(file: &Path) -> Result<bool> {
    let mut command = Command::new(OPENER);
    match command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        // Not waited for: the browser may run for hours.
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("cannot start {OPENER}: {error}"))),
    }
}
