use super::{connect, print, print_json};
use crate::args::{DashboardArgs, TokenArgs};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_client::protocol::{Empty, HttpAddress, HttpDashboard};
use cotensor_client::token::read_token;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that opens a file with what its user has chosen for such files.
const OPENER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };

#[derive(Serialize)]
struct Shown<'a> {
    token: &'a str,
    token_file: &'a Path,
    /// Where the daemon takes it.
    http: SocketAddr,
}

/// Prints the token, from the file that the daemon itself names.
pub(crate) fn token(args: &TokenArgs) -> Result<()> {
    let http = connect(&args.client, "cotensor token")?.ask::<HttpAddress>(&Empty {})?;
    let token = read_token(&http.token_file)?;
    if args.client.json {
        return print_json(&Shown { token: &token, token_file: &http.token_file, http: http.address });
    }
    print(&if args.header { format!("Authorization: Bearer {token}\n") } else { format!("{token}\n") })
}

#[derive(Serialize)]
struct Opened {
    http: SocketAddr,
    /// Sends a browser to the page, once.
    file: PathBuf,
    opened: bool,
}

/// Opens the page. The address and the file come over the Unix socket, so that no other program at the port gets a code.
pub(crate) fn dashboard(args: &DashboardArgs) -> Result<()> {
    let store = connect(&args.client, "cotensor dashboard")?;
    let http = store.ask::<HttpAddress>(&Empty {})?;
    let file = store.ask::<HttpDashboard>(&Empty {})?.file;
    let opened = !args.no_open && open(&file)?;
    if args.client.json {
        return print_json(&Opened { http: http.address, file, opened });
    }
    let lead = if opened { "opening" } else { "open this file in a browser within a minute:" };
    print(&format!(
        "{lead} {}\nA browser that cannot read it: open http://{} there and paste what `cotensor token` prints.\n",
        file.display(),
        http.address
    ))
}

/// Has the desktop open a file; false where there is none.
fn open(file: &Path) -> Result<bool> {
    let mut command = Command::new(OPENER);
    match command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        // A browser that this starts may go on for hours.
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("cannot start {OPENER}: {error}"))),
    }
}
