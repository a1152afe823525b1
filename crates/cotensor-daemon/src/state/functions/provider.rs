//! The session that provides functions, as the registry needs it.

use super::slots::Slots;
use cotensor_client::protocol::CallerInfo;
use std::os::fd::OwnedFd;

/// A client that provides functions.
pub(crate) trait FunctionProvider: Send + Sync {
    /// The number of its session.
    fn session(&self) -> u64;

    /// Its name, for messages.
    fn client(&self) -> &str;

    /// The slots of its calls over HTTP.
    fn slots(&self) -> &Slots;

    /// Sends the provider a socket to a new caller. False when the session has ended or ends now.
    fn connect(&self, caller: &CallerInfo, socket: OwnedFd) -> bool;
}
