//! Serves HTTP: routes, connections and their limits.

use super::access::Access;
use super::admission::{Admission, Peer};
use super::answer::Refusal;
use super::body::BodyMemory;
use super::context::Http;
use super::dashboard::Dashboard;
use super::listening::HttpListening;
use super::min_rate::MinRateStream;
use super::sessions::Sessions;
use super::v1::Forwarder;
use super::{about, metrics, paths, rpc, tensors, unread, v1};
use crate::daemon::Daemon;
use crate::descriptors::{are_for_takeover, none_left};
use crate::dispatch::Methods;
use crate::handlers;
use crate::log_throttle::LogThrottle;
use crate::state::HttpService;
use axum::extract::{Request, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use axum::{Extension, Router};
use cotensor_core::{Error, Result};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;
/// The interval between two checks for expired sessions.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

impl Daemon {
    /// Serves HTTP on `listening` until `stop` is done, then ends its sessions. Clients can ask the daemon for the
    /// address after this call.
    ///
    /// # Errors
    /// `Io` when the socket fails.
    pub fn serve_http<Stop: Future<Output = ()>>(
        self: &Arc<Self>,
        listening: HttpListening,
        stop: Stop,
    ) -> impl Future<Output = Result<()>> + use<Stop> {
        self.serve_methods(handlers::methods(), listening, stop)
    }

    /// As [`serve_http`](Self::serve_http), with other methods.
    pub(super) fn serve_methods<Stop: Future<Output = ()>>(
        self: &Arc<Self>,
        methods: Methods,
        listening: HttpListening,
        stop: Stop,
    ) -> impl Future<Output = Result<()>> + use<Stop> {
        let HttpListening { listener, address, config, token, token_file, v1_token, v1_token_file } = listening;
        let socket = &self.config.socket;
        let dashboard = Dashboard::new(address, Arc::clone(&token), token_file, v1_token_file, socket);
        let forwarder = Forwarder::new(Arc::clone(&self.models), &config);
        let http = Arc::new(Http {
            daemon: Arc::clone(self),
            methods: Arc::new(methods),
            access: Access::new(token, v1_token, &config),
            dashboard: Arc::new(dashboard),
            sessions: Sessions::default(),
            calls: BodyMemory::new(config.call_total_bytes_max),
            config,
        });
        self.set_http(Some(Arc::clone(&http.dashboard) as Arc<dyn HttpService>));
        serve_until(http, forwarder, listener, stop)
    }
}

async fn serve_until(
    http: Arc<Http>,
    forwarder: Arc<Forwarder>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)
        .map_err(|error| Error::io("listening", &error).in_field("listen"))?;
    let routes = routes(Arc::clone(&http), &forwarder);
    let (admission, not_accepted) = (Admission::new(&http.config), LogThrottle::default());
    let mut connections = tokio::task::JoinSet::new();
    let mut expiry = tokio::time::interval(EXPIRY_INTERVAL.min(http.config.session_ttl.max(Duration::from_millis(1))));
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
                Ok((stream, _)) if are_for_takeover(&stream) => {
                    if let Some(count) = not_accepted.note() {
                        tracing::warn!("{count} HTTP connections were not accepted: {}", none_left());
                    }
                }
                Ok((stream, _)) => match admission.admit(&stream).await {
                    Ok(peer) => drop(connections.spawn(serve(Arc::clone(&http), routes.clone(), stream, peer))),
                    Err(turned_away) => turned_away.answer(stream),
                },
                Err(error) => {
                    // Usually too many open descriptors: some will be closed.
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
    http.daemon.set_http(None);
    Ok(())
}

fn routes(http: Arc<Http>, forwarder: &Arc<Forwarder>) -> Router {
    let forward = any(v1::forward).with_state(Arc::clone(forwarder));
    let tensor = get(tensors::get).put(tensors::put).delete(tensors::delete);
    let router = v1::OTHER_PATHS.iter().fold(Router::new(), |router, path| router.route(path, forward.clone()));
    router
        .route("/", get(about::page))
        .route("/health", get(about::health))
        .route("/metrics", get(metrics::get))
        .route("/openrpc.json", get(about::openrpc))
        .route("/jsonrpc", post(rpc::call))
        .route("/session", delete(end_session))
        .route("/tensors/{*name}", tensor)
        .route("/v1", forward.clone())
        .route("/v1/", forward.clone())
        .route("/v1/{*path}", forward)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&http), guard))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&http), unread::drop_rest))
        .with_state(http)
}

/// Checks each request, closes connections without the token after one answer, and forbids caches to store answers.
async fn guard(
    State(http): State<Arc<Http>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let checked = http.access.check(&request, &peer);
    let for_models = v1::serves(request.uri().path());
    let trusted = matches!(checked, Ok(true));
    if trusted {
        peer.trust();
    }
    let mut response = match checked {
        Err(refusal) if for_models => v1::openai_error(&refusal),
        Err(refusal) => refusal.into_response(),
        Ok(_) => next.run(request).await,
    };
    if !trusted {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    for (name, value) in [
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-content-type-options", "nosniff"),
    ] {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Serves one connection with limits of headers, times and rates.
async fn serve(http: Arc<Http>, routes: Router, stream: TcpStream, peer: Peer) {
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(routes.layer(Extension(peer)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(http.config.message_timeout)
        .max_headers(HEADERS_MAX)
        // hyper's minimum.
        .max_buf_size(http.config.header_bytes_max.max(8192))
        .serve_connection(TokioIo::new(MinRateStream::new(stream, http.config.message_timeout)), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("an HTTP connection ended: {error}");
    }
}

async fn no_such_path(uri: Uri) -> Refusal {
    paths::nothing_at(uri.path()).into()
}

async fn no_such_method() -> Refusal {
    let message = format!("this path does not take this method; {}", paths::ENDPOINTS);
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn end_session(State(http): State<Arc<Http>>, headers: HeaderMap) -> Result<StatusCode, Refusal> {
    http.sessions.call(&http.daemon, &headers)?.end();
    Ok(StatusCode::NO_CONTENT)
}
