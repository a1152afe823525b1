//! `POST /v1/rerank`, `/v2/rerank` and `/rerank`: the forms of Cohere and Jina, and that of text-embeddings-inference.

use super::embeddings::Usage;
use super::error::ApiError;
use super::request::Fields;
use crate::loaded::{LoadedModels, Score};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use cotensor_model::family::AnswerKind;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The most documents of a request.
pub(super) const DOCUMENTS_MAX: usize = 1024;

/// Fields that change the scores on other servers.
pub(super) const UNSUPPORTED: &[&str] =
    &["max_tokens_per_doc", "max_chunks_per_doc", "truncate_prompt_tokens", "instruction"];

#[derive(Serialize)]
struct Ranking {
    id: String,
    model: String,
    results: Vec<Ranked>,
    meta: Value,
    usage: Usage,
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

/// The element of the list that text-embeddings-inference answers.
#[derive(Serialize)]
struct RankedText {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

pub(super) async fn rank(
    State(models): State<Arc<LoadedModels>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let fields = Fields::of(body)?;
    // Only text-embeddings-inference names the documents so.
    if fields.has("texts") && !fields.has("documents") {
        rank_texts(&models, fields).await
    } else {
        rank_documents(&models, fields, "1").await
    }
}

/// The second version of Cohere's API.
pub(super) async fn rank_v2(
    State(models): State<Arc<LoadedModels>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    rank_documents(&models, Fields::of(body)?, "2").await
}

async fn rank_documents(models: &Arc<LoadedModels>, mut fields: Fields, version: &str) -> Result<Response, ApiError> {
    let (model, query) = (fields.model()?, fields.required_text("query")?);
    let documents = fields.texts("documents", DOCUMENTS_MAX)?;
    let top = fields.one_of(["top_n", "top_k"], Fields::count)?.unwrap_or(usize::MAX);
    let raw = fields.flag("raw_scores")?;
    let truncates = fields.truncates()?;
    fields.refuse(UNSUPPORTED)?;
    let returns_documents = fields.flag("return_documents")?;
    let scores = scores(models, &model, &query, &documents, "documents", truncates).await?;
    let tokens = scores.iter().map(|score| score.tokens).sum();
    let results = ordered(scores, documents).take(top).map(|(index, score, text)| Ranked {
        index,
        relevance_score: if raw { score.logit } else { score.score },
        document: returns_documents.then_some(Document { text }),
    });
    let results = results.collect();
    let meta = json!({"api_version": {"version": version}, "tokens": {"input_tokens": tokens}});
    Ok(Json(Ranking { id: request_id("rerank"), model, results, meta, usage: Usage::of(tokens) }).into_response())
}

async fn rank_texts(models: &Arc<LoadedModels>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = fields.model_or_only(models, AnswerKind::Scores)?;
    let query = fields.required_text("query")?;
    let texts = fields.texts("texts", DOCUMENTS_MAX)?;
    let raw = fields.flag("raw_scores")?;
    let truncates = fields.truncates()?;
    fields.refuse_left_truncation()?;
    fields.refuse(UNSUPPORTED)?;
    let returns_text = fields.flag("return_text")?;
    let scores = scores(models, &model, &query, &texts, "texts", truncates).await?;
    let results = ordered(scores, texts).map(|(index, score, text)| RankedText {
        index,
        score: if raw { score.logit } else { score.score },
        text: returns_text.then_some(text),
    });
    Ok(Json(results.collect::<Vec<_>>()).into_response())
}

/// The scores of texts, in their order; `list` is their field in the request.
///
/// # Errors
/// Those of the model; for a text that is too long unless the request `truncates`.
pub(super) async fn scores(
    models: &Arc<LoadedModels>,
    model: &str,
    query: &str,
    texts: &[String],
    list: &str,
    truncates: bool,
) -> Result<Vec<Score>, ApiError> {
    let scores = models.rerank(model, query.to_owned(), texts.to_vec()).await;
    let scores = scores.map_err(|error| ApiError::of_model(model, &error))?;
    match scores.iter().position(|score| score.is_truncated && !truncates) {
        Some(at) => {
            let message = format!("the query and text {at} of {list} are longer than the model reads together");
            Err(ApiError::invalid("truncate", message))
        }
        None => Ok(scores),
    }
}

/// The texts with their positions and scores, best first.
fn ordered(scores: Vec<Score>, texts: Vec<String>) -> impl Iterator<Item = (usize, Score, String)> {
    let scored = scores.into_iter().zip(texts).enumerate();
    let mut scored: Vec<_> = scored.map(|(index, (score, text))| (index, score, text)).collect();
    scored.sort_by(|(_, a, _), (_, b, _)| b.logit.total_cmp(&a.logit));
    scored.into_iter()
}

/// A name for one answer, such as `rerank-` and a number.
pub(super) fn request_id(kind: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{kind}-{:x}-{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
