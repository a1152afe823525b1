//! The daemon over HTTP: JSON-RPC by POST, tensors' bytes, health, metrics, and a page to look at.
//!
//! | path | |
//! |---|---|
//! | `POST /jsonrpc` | calls and batches; the header `Cotensor-Session` names a session that `session.hello` opened |
//! | `DELETE /session` | ends that session |
//! | `GET`, `PUT`, `DELETE /tensors/NAME` | a tensor's bytes, with ranges; `PUT` takes `?dtype=float32&shape=2,3` |
//! | `GET /health` | version, protocol and Unix socket |
//! | `GET /metrics` | counters for Prometheus |
//! | `GET /openrpc.json` | what `rpc.discover` answers |
//! | `GET /` | the dashboard |
//!
//! Every request but the last three lines' `GET /health` and `GET /` needs the token; see [`HttpConfig`].

mod about;
mod access;
mod admission;
mod answer;
mod config;
mod dashboard;
mod metrics;
mod paced;
mod peer;
mod range;
mod rpc;
mod sessions;
mod tensors;
#[cfg(test)]
mod tests;
mod token;
mod upload;

pub use config::{HttpConfig, PORT, default_port};

pub(crate) use self::dashboard::Dashboard;

use self::access::Access;
use self::admission::{Admission, Peer};
use self::answer::Refusal;
use self::paced::Paced;
use self::sessions::Sessions;
use self::token::Token;
use crate::Daemon;
use crate::refusals::Refusals;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use cotensor_core::{Error, Result};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;
/// How often it is looked for sessions that have ended.
const EXPIRY_CHECK: Duration = Duration::from_secs(1);

/// A listening socket and the rules of who may use it.
pub struct HttpListening {
    listener: TcpListener,
    address: SocketAddr,
    config: HttpConfig,
    token: Arc<Token>,
    token_file: PathBuf,
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

/// What the requests of one listener have in common.
pub(crate) struct Http {
    daemon: Arc<Daemon>,
    config: HttpConfig,
    access: Access,
    dashboard: Arc<Dashboard>,
    sessions: Sessions,
}

impl Daemon {
    /// Serves HTTP on `listening` until `stop` is done; then ends the sessions that were opened there. From this call on, the
    /// daemon's clients can ask where it listens.
    ///
    /// # Errors
    /// `Io` when the socket fails.
    pub fn serve_http<Stop: Future<Output = ()>>(
        self: &Arc<Self>,
        listening: HttpListening,
        stop: Stop,
    ) -> impl Future<Output = Result<()>> + use<Stop> {
        let HttpListening { listener, address, config, token, token_file } = listening;
        let dashboard = Dashboard::new(address, Arc::clone(&token), token_file, &self.config.socket);
        let http = Arc::new(Http {
            daemon: Arc::clone(self),
            access: Access::new(token, &config),
            dashboard: Arc::new(dashboard),
            sessions: Sessions::default(),
            config,
        });
        self.set_dashboard(Some(Arc::clone(&http.dashboard)));
        serve_until(http, listener, stop)
    }
}

async fn serve_until(http: Arc<Http>, listener: TcpListener, stop: impl Future<Output = ()>) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)
        .map_err(|error| Error::io("listening", &error).in_field("listen"))?;
    let routes = routes(Arc::clone(&http));
    let (admission, not_accepted) = (Admission::new(&http.config), Refusals::default());
    let mut connections = tokio::task::JoinSet::new();
    let mut expiry = tokio::time::interval(EXPIRY_CHECK.min(http.config.session_ttl.max(Duration::from_millis(1))));
    let mut stop = std::pin::pin!(stop);
    loop {
        while connections.try_join_next().is_some() {}
        tokio::select! {
            () = &mut stop => break,
            _ = expiry.tick() => {
                http.sessions.expire(&http.daemon, http.config.session_ttl);
                http.dashboard.expire();
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Some(peer) = admission.admit(&stream).await {
                        connections.spawn(serve(Arc::clone(&http), routes.clone(), stream, peer));
                    }
                }
                Err(error) => {
                    // Out of descriptors, mostly: some will be closed.
                    if let Some(count) = not_accepted.note() {
                        tracing::warn!("{count} HTTP connections were not accepted: {error}");
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    connections.shutdown().await;
    http.sessions.expire(&http.daemon, Duration::ZERO);
    http.daemon.set_dashboard(None);
    Ok(())
}

fn routes(http: Arc<Http>) -> Router {
    let tensor = get(tensors::get).put(tensors::put).delete(tensors::delete);
    Router::new()
        .route("/", get(about::page))
        .route("/health", get(about::health))
        .route("/metrics", get(metrics::get))
        .route("/openrpc.json", get(about::openrpc))
        .route("/jsonrpc", post(rpc::call))
        .route("/session", delete(end_session))
        .route("/tensors/{*name}", tensor)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&http), access::guard))
        .with_state(http)
}

/// Serves one connection, whose headers, times and rates are bounded.
async fn serve(http: Arc<Http>, routes: Router, stream: TcpStream, peer: Peer) {
    drop(stream.set_nodelay(true));
    let service = TowerToHyperService::new(routes.layer(Extension(peer)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(http.config.patience)
        .max_headers(HEADERS_MAX)
        // The least that hyper takes.
        .max_buf_size(http.config.header_bytes_max.max(8192))
        .serve_connection(TokioIo::new(Paced::new(stream, http.config.patience)), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("an HTTP connection ended: {error}");
    }
}

async fn no_such_path(uri: Uri) -> Refusal {
    Error::not_found(format!("there is nothing at {}: docs/protocol.md lists the paths", uri.path())).into()
}

async fn no_such_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take this method: docs/protocol.md lists those it takes",
    )
}

async fn end_session(State(http): State<Arc<Http>>, headers: HeaderMap) -> Result<StatusCode, Refusal> {
    http.sessions.call(&http.daemon, &headers)?.end();
    Ok(StatusCode::NO_CONTENT)
}
