//! `POST /v1/score`: scores of pairs of texts, as vLLM's.

use super::embeddings::Usage;
use super::error::ApiError;
use super::request::Fields;
use super::rerank::{DOCUMENTS_MAX, UNSUPPORTED, request_id, scores};
use crate::loaded::LoadedModels;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::Serialize;
use std::sync::Arc;
use std::time::SystemTime;

#[derive(Serialize)]
pub(super) struct Scores {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Scored>,
    usage: Usage,
}

#[derive(Serialize)]
struct Scored {
    index: usize,
    object: &'static str,
    score: f32,
}

/// A text with each of several, or the texts of two lists pairwise.
pub(super) async fn score(
    State(models): State<Arc<LoadedModels>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Scores>, ApiError> {
    let mut fields = Fields::of(body)?;
    let model = fields.model()?;
    let (first, second) = (one_or_more(&mut fields, "text_1")?, one_or_more(&mut fields, "text_2")?);
    let raw = fields.flag("raw_scores")?;
    let truncates = fields.truncates()?;
    fields.refuse(UNSUPPORTED)?;
    let mut all = Vec::with_capacity(second.len());
    match first.as_slice() {
        [query] => all.extend(scores(&models, &model, query, &second, "text_2", truncates).await?),
        queries if queries.len() == second.len() => {
            for (at, (query, text)) in queries.iter().zip(&second).enumerate() {
                let pair = scores(&models, &model, query, std::slice::from_ref(text), "the pair", truncates).await;
                all.extend(pair.map_err(|error| error.prefixed(format_args!("pair {at}")))?);
            }
        }
        queries => {
            let message = format!("text_1 has {} texts and text_2 {}: one, or as many", queries.len(), second.len());
            return Err(ApiError::invalid("text_1", message));
        }
    }
    let usage = Usage::of(all.iter().map(|score| score.tokens).sum());
    let data = all.into_iter().enumerate().map(|(index, score)| {
        let score = if raw { score.logit } else { score.score };
        Scored { index, object: "score", score }
    });
    let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let data = data.collect();
    Ok(Json(Scores { id: request_id("score"), object: "list", created, model, data, usage }))
}

/// A text, or a list of texts.
fn one_or_more(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    if fields.is_text(name) { Ok(vec![fields.required_text(name)?]) } else { fields.texts(name, DOCUMENTS_MAX) }
}
