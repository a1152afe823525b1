//! `GET /v1/models`.

use super::error::ApiError;
use crate::loaded::{LoadedModels, ModelInfo};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
pub(super) struct List {
    object: &'static str,
    data: Vec<Entry>,
}

#[derive(Serialize)]
pub(super) struct Entry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

impl From<ModelInfo> for Entry {
    fn from(info: ModelInfo) -> Self {
        Self { id: info.key.name, object: "model", created: info.created, owned_by: "cotensor" }
    }
}

pub(super) async fn list(State(models): State<Arc<LoadedModels>>) -> Json<List> {
    let mut loaded = models.list();
    // Variants have one name.
    loaded.dedup_by(|a, b| a.key.name == b.key.name);
    Json(List { object: "list", data: loaded.into_iter().map(Entry::from).collect() })
}

pub(super) async fn get(
    State(models): State<Arc<LoadedModels>>,
    Path(name): Path<String>,
) -> Result<Json<Entry>, ApiError> {
    // The name of a folder begins with a slash, which is the end of the path before it.
    let found =
        models.list().into_iter().find(|info| info.key.name.trim_start_matches('/') == name.trim_start_matches('/'));
    let missing =
        || ApiError::with_status(StatusCode::NOT_FOUND, format!("no model {name:?} is loaded; a request loads it"));
    found.map(|info| Json(info.into())).ok_or_else(missing)
}
