//! The HTTP server, as the state sees it.

use cotensor_core::Result;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// An HTTP server of the daemon while it serves.
pub(crate) trait HttpService: Send + Sync {
    /// The address of its listener.
    fn address(&self) -> SocketAddr;

    /// The path of the token file.
    fn token_file(&self) -> &Path;

    /// The path of the file with the token for `/v1`.
    fn v1_token_file(&self) -> &Path;

    /// Writes a file that redirects a browser to the dashboard with a code that is valid once.
    ///
    /// # Errors
    /// `Io` when the file cannot be written.
    fn open_dashboard(&self) -> Result<PathBuf>;
}
