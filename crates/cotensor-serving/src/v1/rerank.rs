//! `POST /v1/rerank`.

use super::error::ApiError;
use super::request::Fields;
use crate::loaded::{LoadedModels, Score};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The most documents of a request.
const DOCUMENTS_MAX: usize = 1024;

/// Fields that change the scores on other servers.
const UNSUPPORTED: &[&str] = &["max_tokens_per_doc", "max_chunks_per_doc", "truncate_prompt_tokens", "instruction"];

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
    let top = fields.one_of(["top_n", "top_k"], Fields::count)?.unwrap_or(usize::MAX);
    let raw = fields.flag("raw_scores")?;
    fields.refuse(UNSUPPORTED)?;
    let returns_documents = fields.flag("return_documents")?;
    let scores = models.rerank(&model, query, documents.clone()).await;
    let scores = scores.map_err(|error| ApiError::of_model(&model, &error))?;
    let mut ranked: Vec<(usize, (Score, String))> = scores.into_iter().zip(documents).enumerate().collect();
    ranked.sort_by(|(_, (a, _)), (_, (b, _))| b.logit.total_cmp(&a.logit));
    let results = ranked.into_iter().take(top).map(|(index, (score, text))| Ranked {
        index,
        relevance_score: if raw { score.logit } else { score.score },
        document: returns_documents.then_some(Document { text }),
    });
    Ok(Json(Ranking { model, results: results.collect() }))
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
