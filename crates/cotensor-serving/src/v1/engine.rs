//! `POST /engine`: the daemon names libraries of the fast engine, which its clients have.

use super::error::ApiError;
use crate::loaded::LoadedModels;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cotensor_model::engine::EngineInfo;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

/// The path, which the daemon forwards for no client.
pub(super) const PATH: &str = "/engine";

#[derive(Deserialize)]
pub(super) struct Libraries {
    libraries: Vec<PathBuf>,
}

pub(super) async fn add_libraries(
    State(models): State<Arc<LoadedModels>>,
    Json(Libraries { libraries }): Json<Libraries>,
) -> Result<Json<EngineInfo>, ApiError> {
    let added = tokio::task::spawn_blocking(move || models.add_libraries(&libraries)).await;
    let failed =
        |error| ApiError::with_status(StatusCode::INTERNAL_SERVER_ERROR, format!("the engine failed: {error}"));
    added.map(Json).map_err(failed)
}
