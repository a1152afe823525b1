//! `POST /v1/rerank`.

use super::error::ApiError;
use super::request::Fields;
use crate::loaded::LoadedModels;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The most documents of a request.
const DOCUMENTS_MAX: usize = 1024;

#[derive(Serialize)]
pub(super) struct Ranking {
    model: String,
    results: Vec<Ranked>,
}

#[derive(Serialize)]
struct Ranked {
    /// The position in the request's documents.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize)]
struct Document {
    text: String,
}

pub(super) async fn rank(
    State(models): State<Arc<LoadedModels>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Ranking>, ApiError> {
    let mut fields = Fields::of(body)?;
    let (model, query) = (fields.model()?, fields.required_text("query")?);
    let documents = documents(fields.take("documents"))?;
    let top = fields.count("top_n")?.unwrap_or(usize::MAX);
    let returns_documents = fields.flag("return_documents")?;
    let scores = models.rerank(&model, query, documents.clone()).await;
    let scores = scores.map_err(|error| ApiError::of_model(&model, &error))?;
    let mut results: Vec<Ranked> = scores
        .into_iter()
        .zip(documents)
        .enumerate()
        .map(|(index, (relevance_score, text))| Ranked {
            index,
            relevance_score,
            document: returns_documents.then_some(Document { text }),
        })
        .collect();
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    results.truncate(top);
    Ok(Json(Ranking { model, results }))
}

/// Texts, or objects with a field `text`.
fn documents(given: Option<Value>) -> Result<Vec<String>, ApiError> {
    let refused = |message: String| ApiError::invalid("documents", message);
    let Some(Value::Array(list)) = given else { return Err(refused("documents is no list".to_owned())) };
    if list.is_empty() || list.len() > DOCUMENTS_MAX {
        return Err(refused(format!("{} documents; 1 to {DOCUMENTS_MAX} are supported", list.len())));
    }
    let text = |value| match value {
        Value::String(text) => Some(text),
        Value::Object(mut fields) => match fields.remove("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let texts = list
        .into_iter()
        .map(|value| text(value).ok_or_else(|| refused("a document is a text, or an object with a text".to_owned())));
    texts.collect()
}
