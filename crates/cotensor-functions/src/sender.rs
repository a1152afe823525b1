//! The sending half of a connection between a caller and a provider.

use cotensor_core::Result;
use std::os::fd::OwnedFd;

/// Sends messages over one connection.
pub(crate) trait Sender: Send + Sync {
    /// Sends a message after all earlier ones.
    fn send_message(&self, body: Vec<u8>, fds: Vec<OwnedFd>) -> Result<()>;

    /// Handles the messages that have arrived, if they are read only while a thread waits for an answer.
    ///
    /// # Errors
    /// `Io` when the connection has ended.
    fn read_arrived(&self) -> Result<()>;

    /// Closes the connection.
    fn close(&self);
}
