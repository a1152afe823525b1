//! The hub's HTTP API: three routes.

use super::idle::IdleLimit;
use super::remote::Remote;
use crate::cache::{FILES_MAX, RepoFile};
use crate::id::ModelId;
use crate::settings::{Limits, Settings};
use cotensor_core::{Error, ErrorKind, Result, size};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::io::Read;
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, DefaultConnector};
use ureq::{Agent, Body};

/// The public hub.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// The most bytes of an answer with metadata.
const METADATA_BYTES_MAX: u64 = 16 << 20;
/// The most pages of a list of files.
const PAGES_MAX: usize = 100;
/// The most redirects of a request.
const REDIRECTS_MAX: u32 = 5;
/// The most bytes of the headers of an answer.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// The most characters of the server's message in an error.
const MESSAGE_CHARS_MAX: usize = 200;

/// Connections to a hub.
pub(crate) struct Http {
    /// For metadata: the whole answer has a time limit.
    metadata: Agent,
    /// For files: each wait for bytes has a time limit.
    files: Agent,
    endpoint: String,
    token: Option<String>,
}

/// Prepares connections with these settings. Connects to nothing yet.
///
/// # Errors
/// `Invalid` for an address that is not HTTP.
pub(crate) fn connect(settings: &Settings) -> Result<Http> {
    let endpoint = settings.endpoint.clone().unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
        return Err(Error::invalid(format!("{endpoint:?} is not an address of a hub")).in_field("HF_ENDPOINT"));
    }
    let limits = &settings.limits;
    Ok(Http {
        metadata: agent(&endpoint, limits, Some(limits.metadata)),
        files: agent(&endpoint, limits, None),
        endpoint,
        token: settings.token.clone(),
    })
}

fn agent(endpoint: &str, limits: &Limits, whole: Option<Duration>) -> Agent {
    let config = Agent::config_builder()
        .user_agent(concat!("cotensor/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        // A hub with encryption does not redirect to a server without it.
        .https_only(endpoint.starts_with("https://"))
        .max_redirects(REDIRECTS_MAX)
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .max_response_header_size(HEADER_BYTES_MAX)
        .timeout_resolve(Some(limits.idle))
        .timeout_connect(Some(limits.idle))
        .timeout_recv_response(Some(limits.idle))
        .timeout_global(whole)
        .build();
    let connector = DefaultConnector::default().chain(IdleLimit(limits.idle));
    Agent::with_parts(config, connector, DefaultResolver::default())
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// An entry of a list of files.
#[derive(Deserialize)]
struct Entry {
    r#type: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: String,
    lfs: Option<LargeFile>,
    #[serde(rename = "xetHash")]
    xet_hash: Option<String>,
}

#[derive(Deserialize)]
struct LargeFile {
    oid: String,
    size: u64,
}

impl Entry {
    fn file(self) -> Result<RepoFile> {
        let (sha256, size) = self.lfs.map_or((None, self.size), |large| (Some(large.oid), large.size));
        RepoFile { path: self.path, size, git_sha1: self.oid, sha256, xet_hash: self.xet_hash }.checked()
    }
}

impl Remote for Http {
    fn commit(&self, id: &ModelId) -> Result<String> {
        let url = format!("{}/api/models/{}/revision/{}", self.endpoint, id.name(), encoded(id.revision()));
        let revision: Revision = self.json(&url, id)?.0;
        Ok(revision.sha)
    }

    fn files(&self, id: &ModelId, commit: &str) -> Result<Vec<RepoFile>> {
        let mut files = Vec::new();
        let mut next = Some(format!("{}/api/models/{}/tree/{commit}?recursive=true", self.endpoint, id.name()));
        for _ in 0..PAGES_MAX {
            let Some(url) = next else { return Ok(files) };
            let (entries, following) = self.json::<Vec<Entry>>(&url, id)?;
            let found = entries.into_iter().filter(|entry| entry.r#type == "file").map(Entry::file);
            for file in found {
                files.push(file.map_err(|error| error.prefixed(&url))?);
            }
            if files.len() > FILES_MAX {
                break;
            }
            // The token must not go to another server.
            if following.as_ref().is_some_and(|url| !url.starts_with(&format!("{}/", self.endpoint))) {
                return Err(Error::corrupt(format!("{url}: the next page of the list is on another server")));
            }
            next = following;
        }
        Err(Error::invalid(format!("{id} has more than {FILES_MAX} files, or a list of more than {PAGES_MAX} pages")))
    }

    fn open(&self, id: &ModelId, commit: &str, file: &RepoFile, from: u64) -> Result<Box<dyn Read>> {
        let path = file.path.split('/').map(encoded).collect::<Vec<_>>().join("/");
        let url = format!("{}/{}/resolve/{commit}/{path}", self.endpoint, id.name());
        let range = (from > 0).then(|| format!("bytes={from}-"));
        let response = self.get(&self.files, &url, range.as_deref(), id)?;
        Ok(Box::new(Incoming(response.into_body().into_reader())))
    }
}

/// The body of an answer, with the client's time limits as errors of the standard library.
struct Incoming<R>(R);

impl<R: Read> Read for Incoming<R> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(target).map_err(|error| match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(ureq::Error::Timeout(_)) => std::io::Error::new(std::io::ErrorKind::TimedOut, "no bytes arrive"),
            _ => error,
        })
    }
}

impl Http {
    /// The JSON at `url`, and the address of the next page.
    fn json<T: DeserializeOwned>(&self, url: &str, id: &ModelId) -> Result<(T, Option<String>)> {
        let mut response = self.get(&self.metadata, url, None, id)?;
        let next = response.headers().get("link").and_then(|link| link.to_str().ok()).and_then(next_page);
        let body = response.body_mut().with_config().limit(METADATA_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| failure(error, url))?;
        let parsed = serde_json::from_slice(&body);
        Ok((parsed.map_err(|error| Error::corrupt(format!("{url}: the hub's answer: {error}")))?, next))
    }

    fn get(&self, agent: &Agent, url: &str, range: Option<&str>, id: &ModelId) -> Result<Response<Body>> {
        let call = || {
            let mut request = agent.get(url).header("Accept-Encoding", "identity");
            if let Some(token) = &self.token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            request.call()
        };
        let response = match call() {
            // A server may close an idle connection at the moment when it is used again.
            Err(ureq::Error::Io(_)) => call(),
            answered => answered,
        };
        let response = response.map_err(|error| failure(error, url))?;
        match response.status().as_u16() {
            200 | 206 => Ok(response),
            status => Err(self.refusal(status, response, url, id)),
        }
    }

    /// The error for an answer other than success.
    fn refusal(&self, status: u16, mut response: Response<Body>, url: &str, id: &ModelId) -> Error {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (code, message) = (header("x-error-code").unwrap_or_default(), header("x-error-message"));
        let message = message.or_else(|| {
            let body = response.body_mut().with_config().limit(METADATA_BYTES_MAX).read_to_vec().ok()?;
            let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
            body.get("error")?.as_str().map(str::to_owned)
        });
        let message: String = message.unwrap_or_default().chars().take(MESSAGE_CHARS_MAX).collect();
        let name = id.name();
        let page = format!("{}/{name}", self.endpoint);
        let token = if self.token.is_some() { "the token has no access" } else { "log in, or set HF_TOKEN" };
        match (status, code.as_str()) {
            (_, "GatedRepo") => Error::invalid(format!("{name} is gated: accept its terms at {page}; then {token}")),
            (_, "RevisionNotFound") => Error::not_found(format!("{name} has no revision {:?}", id.revision())),
            (404, "EntryNotFound") => Error::not_found(format!("{url} does not exist")),
            (401 | 404, _) => Error::not_found(format!("the hub has no model {name}, or it is private: {token}")),
            (403, _) => Error::invalid(format!("the hub refuses access to {name}: {message}; {token}")),
            (408 | 429 | 500.., _) => Error::new(ErrorKind::Io, format!("{url}: status {status}: {message}")),
            _ => Error::corrupt(format!("{url}: unexpected status {status}: {message}")),
        }
    }
}

fn failure(error: ureq::Error, url: &str) -> Error {
    let kind = match error {
        ureq::Error::Timeout(_) => ErrorKind::TimedOut,
        ureq::Error::BodyExceedsLimit(_) => {
            return Error::corrupt(format!("{url}: the answer has more than {}", size(METADATA_BYTES_MAX)));
        }
        ureq::Error::TooManyRedirects | ureq::Error::RedirectFailed | ureq::Error::RequireHttpsOnly(_) => {
            ErrorKind::Corrupt
        }
        ureq::Error::BadUri(_) => ErrorKind::Invalid,
        ureq::Error::Io(error) => {
            let message = format!("{url}: {error}; the hub is not reachable (HF_ENDPOINT names another one)");
            return Error::new(ErrorKind::Io, message);
        }
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{url}: {error}"))
}

/// The address in a header `Link` that has the relation `next`.
fn next_page(link: &str) -> Option<String> {
    let part = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let (_, address) = part.split_once('<')?;
    address.split_once('>').map(|(address, _)| address.to_owned())
}

/// `text` as one part of a path.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_addresses_are_encoded_and_links_are_read() {
        assert_eq!(encoded("refs/pr/4+\u{e9}.x_y~"), "refs%2Fpr%2F4%2B%C3%A9.x_y~");
        let link = "<http://a.test/x?cursor=1>; rel=\"next\", <http://a.test/x>; rel=\"first\"";
        assert_eq!(next_page(link).as_deref(), Some("http://a.test/x?cursor=1"));
        assert_eq!(next_page("<http://a.test/x>; rel=\"first\""), None);
    }
}
