//! The listening socket for HTTP and its token.

use super::config::HttpConfig;
use super::token::Token;
use cotensor_core::{Error, Result};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A listening socket and the rules of who may use it.
pub struct HttpListening {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) config: HttpConfig,
    pub(super) token: Arc<Token>,
    pub(super) token_file: PathBuf,
}

impl HttpListening {
    /// Listens as `config` says. Without a token file, a token is made beside `socket`, in a file of mode 0600.
    ///
    /// # Errors
    /// `Io` when the address is taken, `Refused` or `Invalid` for a token file that will not do.
    pub fn bind(config: HttpConfig, socket: &Path) -> Result<Self> {
        let listener = TcpListener::bind(config.listen)
            .map_err(|error| Error::io(format!("listening on {}", config.listen), &error).in_field("listen"))?;
        Self::on(listener, config, socket)
    }

    /// Goes on with a socket that listens already.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub(crate) fn on(listener: TcpListener, config: HttpConfig, socket: &Path) -> Result<Self> {
        let (token, token_file) = match &config.token_file {
            Some(file) => (Token::from_file(file)?, std::path::absolute(file).unwrap_or_else(|_| file.clone())),
            None => Token::beside(socket)?,
        };
        let io = |error: std::io::Error| Error::io("listening", &error).in_field("listen");
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        Ok(Self { listener, address, config, token: Arc::new(token), token_file })
    }

    /// The socket alone.
    pub(crate) fn into_listener(self) -> TcpListener {
        self.listener
    }

    /// Where it listens; the port is the system's choice if it was to be 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file of the token.
    pub fn token_file(&self) -> &Path {
        &self.token_file
    }
}
