use super::error::ApiError;
use super::{embeddings, listing, rerank};
use crate::loaded::LoadedModels;
use axum::Router;
use axum::extract::DefaultBodyLimit;
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

/// The most bytes of a request.
const BODY_BYTES_MAX: usize = 16 << 20;
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
        .route("/v1/rerank", post(rerank::rank))
        .route("/v1/models", get(listing::list))
        .route("/v1/models/{*name}", get(listing::get))
        .fallback(|uri: Uri| async move {
            ApiError::with_status(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()))
        })
        .method_not_allowed_fallback(|uri: Uri| async move {
            ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take this method", uri.path()))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(models)
}
