//! `GET /v1/models`.

use super::error::ApiError;
use crate::loaded::LoadedModels;
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

#[derive(Clone, Serialize)]
pub(super) struct Entry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// False for a model in the hub's cache, which a request loads.
    loaded: bool,
}

impl Entry {
    fn new(id: String, created: u64, loaded: bool) -> Self {
        Self { id, object: "model", created, owned_by: "cotensor", loaded }
    }
}

/// The loaded models, and those in the hub's cache that embed or rank texts, by name.
async fn entries(models: &Arc<LoadedModels>) -> Vec<Entry> {
    let mut all: Vec<Entry> =
        models.list().into_iter().map(|info| Entry::new(info.key.name, info.created, true)).collect();
    // A cache that cannot be read serves no models.
    for model in models.installed().await.unwrap_or_default() {
        if all.iter().all(|known| known.id != model.name) {
            all.push(Entry::new(model.name, model.created, false));
        }
    }
    all.sort_by(|a, b| a.id.cmp(&b.id));
    // Variants have one name.
    all.dedup_by(|a, b| a.id == b.id);
    all
}

pub(super) async fn list(State(models): State<Arc<LoadedModels>>) -> Json<List> {
    Json(List { object: "list", data: entries(&models).await })
}

pub(super) async fn get(
    State(models): State<Arc<LoadedModels>>,
    Path(name): Path<String>,
) -> Result<Json<Entry>, ApiError> {
    let all = entries(&models).await;
    // The name of a folder begins with a slash, which is the end of the path before it.
    let found = all.into_iter().find(|entry| entry.id.trim_start_matches('/') == name.trim_start_matches('/'));
    let missing = || {
        let message = format!("no model {name:?} is loaded or in the hub's cache; a request loads or downloads it");
        ApiError::with_status(StatusCode::NOT_FOUND, message)
    };
    found.map(Json).ok_or_else(missing)
}
