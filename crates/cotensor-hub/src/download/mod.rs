//! Downloads into the cache: only what is missing, each file once on this machine, verified before it has its name.

mod blob;
mod http;
mod idle;
mod lock;
mod part;
mod remote;
pub(crate) mod space;

use cotensor_core::{Error, ErrorKind};

pub(crate) use blob::{Download, Transfer};
pub(crate) use http::connect;
pub(crate) use remote::Remote;

/// Whether the network or the server failed, so that another request may succeed. Errors of the disk name a file.
pub(crate) fn is_of_network(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::TimedOut) && error.file().is_none()
}
