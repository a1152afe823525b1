use super::error::ApiError;
use super::request::BODY_BYTES_MAX;
use super::{embeddings, engine, listing, rerank, score};
use crate::loaded::LoadedModels;
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, Uri};
use axum::routing::{get, post};
use cotensor_core::{Error, Result};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The endpoints, for errors.
const ENDPOINTS: &str =
    "POST /v1/embeddings, /v1/rerank, /v1/score, /v2/rerank, /rerank, /embed, and GET /v1/models, /v1/models/NAME";
/// The most connections at a time.
const CONNECTIONS_MAX: usize = 512;
/// The time for the headers of a request after its first byte.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Serves the endpoints on `listener` until `stop` is done.
///
/// # Errors
/// `Io` when the listener cannot be used.
pub async fn serve(models: Arc<LoadedModels>, listener: UnixListener, stop: impl Future<Output = ()>) -> Result<()> {
    let io = |error: std::io::Error| Error::io("listening", &error);
    listener.set_nonblocking(true).map_err(io)?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(io)?;
    let routes = routes(models);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = tokio::task::JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        while connections.try_join_next().is_some() {}
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Further connections are closed at once.
                    let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                    let service = TowerToHyperService::new(routes.clone());
                    connections.spawn(async move {
                        let served = http1::Builder::new()
                            .timer(TokioTimer::new())
                            .header_read_timeout(HEADERS_TIMEOUT)
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                        drop((served, place));
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
            },
        }
    }
    connections.shutdown().await;
    Ok(())
}

fn routes(models: Arc<LoadedModels>) -> Router {
    Router::new()
        .route("/v1/embeddings", post(embeddings::create))
        .route("/embed", post(embeddings::embed))
        .route("/v1/rerank", post(rerank::rank))
        .route("/v2/rerank", post(rerank::rank_v2))
        .route("/rerank", post(rerank::rank))
        .route("/v1/score", post(score::score))
        .route("/v1/models", get(listing::list))
        .route("/v1/models/{*name}", get(listing::get))
        .route(engine::PATH, post(engine::add_libraries))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(models)
}

/// Reads the body first: the end of a connection with unread bytes would take the answer with it.
async fn no_such_path(uri: Uri, _: Result<Bytes, BytesRejection>) -> ApiError {
    let message = format!("there is nothing at {}; the endpoints of models are {ENDPOINTS}", uri.path());
    ApiError::with_status(StatusCode::NOT_FOUND, message)
}

async fn no_such_method(uri: Uri, _: Result<Bytes, BytesRejection>) -> ApiError {
    let message = format!("{} does not take this method; the endpoints of models are {ENDPOINTS}", uri.path());
    ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, message)
}
