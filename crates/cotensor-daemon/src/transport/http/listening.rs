//! The listening socket for HTTP and its tokens.

use super::config::HttpConfig;
use super::token::Token;
use cotensor_client::port_owner;
use cotensor_core::{Error, Result};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A listening socket with its configuration and tokens.
pub struct HttpListening {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) config: HttpConfig,
    pub(super) token: Arc<Token>,
    pub(super) token_file: PathBuf,
    /// The token for `/v1` alone, and its file.
    pub(super) v1_token: Arc<Token>,
    pub(super) v1_token_file: PathBuf,
}

impl HttpListening {
    /// Listens at the address of `config`. Creates the token for `/v1`, and without a token file the other one, with mode 0600
    /// ([`kept_path`](cotensor_client::kept_path)).
    ///
    /// # Errors
    /// `Io` when the address is in use, `Refused` or `Invalid` for an unusable token file.
    pub fn bind(config: HttpConfig, socket: &Path) -> Result<Self> {
        let listener = TcpListener::bind(config.listen).map_err(|error| {
            let owner = if error.kind() == std::io::ErrorKind::AddrInUse { port_owner(config.listen) } else { None };
            let owner = owner.map(|owner| format!(" ({owner} has the port)")).unwrap_or_default();
            Error::io(format!("listening on {}{owner}", config.listen), &error).in_field("listen")
        })?;
        Self::on(listener, config, socket)
    }

    /// Uses a socket that is listening already.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub(crate) fn on(listener: TcpListener, config: HttpConfig, socket: &Path) -> Result<Self> {
        let (token, token_file) = match &config.token_file {
            Some(file) => (Token::from_file(file)?, std::path::absolute(file).unwrap_or_else(|_| file.clone())),
            None => Token::kept(socket, ".token")?,
        };
        let (v1_token, v1_token_file) = Token::kept(socket, ".v1.token")?;
        let io = |error: std::io::Error| Error::io("listening", &error).in_field("listen");
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        let (token, v1_token) = (Arc::new(token), Arc::new(v1_token));
        Ok(Self { listener, address, config, token, token_file, v1_token, v1_token_file })
    }

    /// The socket alone.
    pub(crate) fn into_listener(self) -> TcpListener {
        self.listener
    }

    /// The address. For port 0 in the configuration, the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path of the token file.
    pub fn token_file(&self) -> &Path {
        &self.token_file
    }
}
