//! The repositories of the server, the requests that it received, and the faults of its answers.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Files of this size and more are large: the list of files has their SHA-256, and requests for them are redirected.
pub(super) const LARGE_BYTES_MIN: usize = 4096;

/// A request as the server received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// The header `Range`.
    pub range: Option<String>,
}

/// How the answer to a request differs from a right one.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Another status, with the header `X-Error-Code` if it is not empty.
    Status(u16, &'static str),
    /// Another body, with status 200.
    Body(Vec<u8>),
    /// No answer until the server ends.
    Silence,
    /// Single bytes until the server ends, with a pause before each.
    Drip,
    /// A header that does not end.
    EndlessHeader,
    /// The connection ends after so many bytes of the body.
    Truncated(usize),
    /// The whole body, whatever range was requested.
    IgnoredRange,
    /// The body with its first byte changed.
    Changed,
    /// The body with further bytes.
    TooLong,
    /// A redirect to this address and the request's path.
    Redirect(String),
    /// Header `Link` names a next page, for ever.
    EndlessPages,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) repositories: BTreeMap<String, Repository>,
    pub(super) requests: Vec<Request>,
    /// A part of a path, the answers that it gets (0: all further ones), and their fault.
    pub(super) faults: Vec<(String, usize, Fault)>,
}

#[derive(Default)]
pub(super) struct Repository {
    pub(super) commit: String,
    pub(super) files: BTreeMap<String, Arc<Vec<u8>>>,
}

/// The hexadecimal digits of bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
