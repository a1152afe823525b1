//! Opens the page without typing a token: a file that only this user can read redirects a browser to the page with a
//! code that is valid once.
//!
//! The path of the file may be on a command line, which every user can read; the code and the token are not.

use super::token::Token;
use crate::state::HttpService;
use cotensor_client::hex;
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, Result};
use cotensor_memory::process::random_bytes;
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// How long a code is valid.
const CODE_TTL: Duration = Duration::from_secs(60);

/// The address, the token and the current code.
pub(crate) struct Dashboard {
    /// The address of the listener.
    address: SocketAddr,
    /// The path of the token file.
    token_file: PathBuf,
    /// The path of the file with the token for `/v1`.
    v1_token_file: PathBuf,
    token: Arc<Token>,
    /// The file with the newest code.
    file: PathBuf,
    code: Mutex<Option<Code>>,
}

/// The hash of a code that was not used.
struct Code {
    hash: ContentHash,
    made: Instant,
}

impl Dashboard {
    /// `socket` is the path of the daemon's socket.
    pub(super) fn new(
        address: SocketAddr,
        token: Arc<Token>,
        token_file: PathBuf,
        v1_token_file: PathBuf,
        socket: &Path,
    ) -> Self {
        // A browser may have another current folder.
        let mut file = std::path::absolute(socket).unwrap_or_else(|_| socket.to_path_buf()).into_os_string();
        file.push(".dashboard.html");
        let this = Self { address, token_file, v1_token_file, token, file: file.into(), code: Mutex::default() };
        // The file of a killed daemon.
        this.remove();
        this
    }

    /// Exchanges a code for the token. The code becomes invalid.
    pub(super) fn redeem(&self, code: &str) -> Option<&str> {
        self.redeem_at(code, Instant::now())
    }

    fn redeem_at(&self, code: &str, now: Instant) -> Option<&str> {
        let presented = ContentHash::of(code.as_bytes());
        let mut newest = self.lock();
        let known = newest.as_ref().is_some_and(|newest| {
            let fresh = now.saturating_duration_since(newest.made) < CODE_TTL;
            fresh & bool::from(newest.hash.as_bytes().ct_eq(presented.as_bytes()))
        });
        if !known {
            return None;
        }
        *newest = None;
        self.remove();
        Some(self.token.secret())
    }

    /// Removes the file when its code has expired.
    pub(super) fn expire(&self) {
        let mut newest = self.lock();
        if newest.as_ref().is_some_and(|newest| newest.made.elapsed() >= CODE_TTL) {
            *newest = None;
            self.remove();
        }
    }

    fn write(&self, page: &str) -> std::io::Result<()> {
        let mut new = self.file.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let _ = std::fs::remove_file(&new);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = open(&new, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(fd).write_all(page.as_bytes())?;
        std::fs::rename(&new, &self.file)
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.file);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Code>> {
        lock(&self.code)
    }
}

impl HttpService for Dashboard {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn token_file(&self) -> &Path {
        &self.token_file
    }

    fn v1_token_file(&self) -> &Path {
        &self.v1_token_file
    }

    /// The file has mode 0600. Earlier codes become invalid.
    fn open_dashboard(&self) -> Result<PathBuf> {
        let secret = hex::encode(&random_bytes::<32>()?);
        let url = format!("http://{}/?code={secret}", for_browsers(self.address));
        let page = format!(
            "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta http-equiv=\"refresh\" content=\"0; url={url}\">\n<title>Cotensor</title>\n<a href=\"{url}\">Cotensor</a>\n"
        );
        let mut code = self.lock();
        self.write(&page).map_err(|error| Error::io("writing the dashboard's file", &error).in_file(&self.file))?;
        *code = Some(Code { hash: ContentHash::of(secret.as_bytes()), made: Instant::now() });
        Ok(self.file.clone())
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.remove();
    }
}

/// An address that a browser on this machine can open.
fn for_browsers(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn code_in(file: &Path) -> String {
        let page = std::fs::read_to_string(file).unwrap();
        let (_, rest) = page.split_once("url=http://127.0.0.1:80/?code=").unwrap();
        rest.split('"').next().unwrap().to_owned()
    }

    #[test]
    fn code_is_valid_once_for_a_minute_until_the_next_code() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let (token, token_file) = Token::kept(&socket, ".token").unwrap();
        let secret = token.secret().to_owned();
        let dashboard =
            Dashboard::new("0.0.0.0:80".parse().unwrap(), Arc::new(token), token_file.clone(), token_file, &socket);
        assert_eq!(dashboard.redeem(""), None);

        let file = dashboard.open_dashboard().unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&file).unwrap().contains(&secret), "the token is in no file but its own");
        let first = code_in(&file);
        let second = code_in(&dashboard.open_dashboard().unwrap());
        assert_eq!(dashboard.redeem(&first), None, "a newer one took its place");
        assert_eq!(dashboard.redeem(&second[1..]), None);
        assert_eq!(dashboard.redeem(&second), Some(secret.as_str()));
        assert!(!file.exists(), "the file goes with its code");
        assert_eq!(dashboard.redeem(&second), None, "it was used");

        let late = code_in(&dashboard.open_dashboard().unwrap());
        assert_eq!(dashboard.redeem_at(&late, Instant::now() + CODE_TTL), None);
        drop(dashboard);
        assert!(!file.exists());
    }
}
