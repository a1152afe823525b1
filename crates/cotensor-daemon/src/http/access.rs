//! Who may do what: tokens, users of this machine, and pages of other sites, which may do nothing.

use super::Http;
use super::answer::Refusal;
use super::token::Token;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// The page without a figure in it, and whether the daemon is up: these tell nothing, so anyone may have them.
const PUBLIC: [&str; 2] = ["/", "/health"];
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a connection is from a process of this user, on this machine.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) own: bool,
}

/// Whether a request may have everything.
#[derive(Clone, Copy)]
pub(crate) struct Trusted(pub(crate) bool);

/// The rules of one listener.
pub(crate) struct Access {
    /// Required of everyone if there is one; otherwise only this user's processes are served.
    pub(crate) token: Option<Token>,
    /// Names by which browsers may address the daemon.
    pub(crate) hosts: Vec<String>,
}

impl Access {
    /// Whether a request may have everything, or only what is [`PUBLIC`].
    fn check(&self, request: &Request, peer: Peer) -> Result<Trusted, Refusal> {
        let headers = request.headers();
        let presented = bearer(headers);
        let trusted = match (&self.token, presented) {
            (Some(token), Some(presented)) if token.is(presented) => true,
            (Some(_), Some(_)) => return Err(Refusal::new(StatusCode::UNAUTHORIZED, "the token is wrong")),
            (Some(_), None) => false,
            (None, _) => peer.own,
        };
        self.check_site(request)?;
        if !trusted && !PUBLIC.contains(&request.uri().path()) {
            let message = "a token is required: Authorization: Bearer, from the daemon's token file";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, message));
        }
        Ok(Trusted(trusted))
    }

    /// Refuses what a page of another site makes a browser send, also under a name that its owner points at this
    /// machine (DNS rebinding). Anyone can send a request without these headers; no browser does.
    fn check_site(&self, request: &Request) -> Result<(), Refusal> {
        let headers = request.headers();
        let forbidden = |message| Err(Refusal::new(StatusCode::FORBIDDEN, message));
        let Some(host) = authority(headers.get(HOST)) else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "a Host header is required"));
        };
        let asked = request.uri().authority().unwrap_or(&host);
        if !self.is_known(&host) || !self.is_known(asked) {
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
        // Nobody else can own a plain address's site.
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

/// Lets through what may pass, and tells browsers to keep answers to themselves.
pub(crate) async fn guard(State(http): State<Arc<Http>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get().copied().unwrap_or(Peer { own: false });
    let mut response = match http.access.check(&request, peer) {
        Err(refusal) => refusal.into_response(),
        Ok(trusted) => {
            request.extensions_mut().insert(trusted);
            next.run(request).await
        }
    };
    for (name, value) in [
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-content-type-options", "nosniff"),
    ] {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}
