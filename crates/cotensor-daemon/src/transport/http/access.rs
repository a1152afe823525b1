//! Access rules: a request needs a token that is good for its path, and the user if the token is only for this user. A path
//! without an endpoint needs none for its error. Requests
//! that a page of another site makes a browser send are refused.

use super::admission::Peer;
use super::answer::Refusal;
use super::config::HttpConfig;
use super::token::Token;
use super::{paths, v1};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;

/// The empty page and the health of the daemon: every client may `GET` these.
const PUBLIC: [&str; 2] = ["/", "/health"];
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The rules of one listener.
pub(super) struct Access {
    /// Good for all paths.
    token: KnownToken,
    /// Good for the paths of models only.
    v1_token: KnownToken,
    /// Host names by which browsers may address the daemon.
    hosts: Vec<String>,
    /// The most bytes of a request's line and headers.
    header_bytes_max: usize,
}

struct KnownToken {
    token: Arc<Token>,
    /// Whether the token is only for processes of this user and root. It was given to no other user, who may have read
    /// it in the arguments of a program.
    own_only: bool,
}

impl KnownToken {
    fn allows(&self, peer: &Peer) -> bool {
        peer.own || !self.own_only
    }
}

impl Access {
    pub(super) fn new(token: Arc<Token>, v1_token: Arc<Token>, config: &HttpConfig) -> Self {
        let loopback = config.listen.ip().is_loopback();
        Self {
            token: KnownToken { token, own_only: config.token_file.is_none() && loopback },
            v1_token: KnownToken { token: v1_token, own_only: loopback },
            hosts: config.hosts.clone(),
            header_bytes_max: config.header_bytes_max,
        }
    }

    /// Whether the client of a connection may be served with a token, or a code for one.
    pub(super) fn allows(&self, peer: &Peer) -> bool {
        self.token.allows(peer)
    }

    /// Whether a request may access everything, or only [`PUBLIC`] paths.
    pub(super) fn check(&self, request: &Request, peer: &Peer) -> Result<bool, Refusal> {
        let path = request.uri().path();
        let known = match bearer(request.headers()) {
            Some(presented) if self.token.token.is(presented) => Some(&self.token),
            Some(presented) if self.v1_token.token.is(presented) => Some(&self.v1_token),
            Some(_) => return Err(Refusal::new(StatusCode::UNAUTHORIZED, "the token is wrong")),
            None => None,
        };
        self.check_length(request)?;
        self.check_site(request)?;
        if !paths::is_known(path) {
            return Err(paths::nothing_at(path).into());
        }
        let good = known.filter(|known| std::ptr::eq(*known, &self.token) || v1::serves(path));
        let trusted = good.is_some_and(|known| known.allows(peer));
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        if trusted || reads && PUBLIC.contains(&path) {
            return Ok(trusted);
        }
        Err(match known {
            Some(_) if good.is_none() => {
                let message = "this token is good for the paths of models only: `cotensor token` prints the other one";
                Refusal::new(StatusCode::FORBIDDEN, message)
            }
            Some(_) => {
                let message = "only processes of the daemon's user are served; with `--token-file`, every client with the token is";
                Refusal::new(StatusCode::FORBIDDEN, message)
            }
            None if v1::serves(path) => {
                let message = "a token is required: `cotensor env openai` prints it as OPENAI_API_KEY";
                Refusal::new(StatusCode::UNAUTHORIZED, message)
            }
            None => {
                let message = "a token is required: `cotensor token --header` prints the header";
                Refusal::new(StatusCode::UNAUTHORIZED, message)
            }
        })
    }

    /// Refuses a request whose line and headers are longer than the limit. The server's own limit lets twice as many pass
    /// that come in one piece.
    fn check_length(&self, request: &Request) -> Result<(), Refusal> {
        let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        let line = request.method().as_str().len() + request.uri().path_and_query().map_or(0, |it| it.as_str().len());
        if headers + line > self.header_bytes_max {
            let message = format!("the line and the headers of a request have at most {} bytes", self.header_bytes_max);
            return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
        }
        Ok(())
    }

    /// Refuses requests that a page of another site makes a browser send, also under a host name that resolves to this
    /// machine (DNS rebinding). Browsers always send these headers.
    fn check_site(&self, request: &Request) -> Result<(), Refusal> {
        let headers = request.headers();
        let forbidden = |message| Err(Refusal::new(StatusCode::FORBIDDEN, message));
        // With several headers, a proxy may have checked another one.
        let mut hosts = headers.get_all(HOST).iter();
        let Some(host) = authority(hosts.next()).filter(|_| hosts.next().is_none()) else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "exactly one Host header is required"));
        };
        let target = request.uri().authority().unwrap_or(&host);
        if !self.is_known(&host) || !self.is_known(target) {
            return forbidden("the daemon is not known by this name: start it with --allow-host NAME");
        }
        if let Some(origin) = headers.get(ORIGIN) {
            let site = origin.as_bytes().strip_prefix(b"http://").or(origin.as_bytes().strip_prefix(b"https://"));
            if !site.is_some_and(|site| site.eq_ignore_ascii_case(host.as_str().as_bytes())) {
                return forbidden("pages of other sites may not use the daemon");
            }
        }
        let elsewhere = headers.get(FETCH_SITE).is_some_and(|site| site != "same-origin" && site != "none");
        if elsewhere && request.uri().path() != "/" {
            return forbidden("pages of other sites may not use the daemon");
        }
        Ok(())
    }

    fn is_known(&self, authority: &Authority) -> bool {
        let host = authority.host();
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is = |known: &str| host.eq_ignore_ascii_case(known);
        // No other site can have a plain address.
        plain.parse::<IpAddr>().is_ok() || is("localhost") || self.hosts.iter().any(|known| is(known))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn authority(host: Option<&HeaderValue>) -> Option<Authority> {
    host?.to_str().ok()?.parse().ok()
}
