//! `POST /v1/embeddings`.

use super::error::ApiError;
use super::request::Fields;
use crate::loaded::LoadedModels;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cotensor_model::pipeline::TextEmbedding;
use cotensor_model::preprocess::text::normalized;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The most texts of a request, as OpenAI's.
const TEXTS_MAX: usize = 2048;

#[derive(Serialize)]
pub(super) struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    List(Vec<f32>),
    /// Little-endian float32.
    Base64(String),
}

/// In tokens.
#[derive(Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    pub(super) fn of(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

pub(super) async fn create(
    State(models): State<Arc<LoadedModels>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Embeddings>, ApiError> {
    let mut fields = Fields::of(body)?;
    let model = fields.model()?;
    let texts = texts(fields.take("input"))?;
    let as_base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(ApiError::invalid("encoding_format", format!("{other:?} is neither float nor base64")));
        }
    };
    let dimensions = fields.count("dimensions")?;
    let prompt_name = fields.text("prompt_name")?;
    let embedded = models.embed(&model, texts, prompt_name).await;
    let embeddings = embedded.map_err(|error| ApiError::of_model(&model, &error))?;
    let tokens = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let data = embeddings.into_iter().enumerate().map(|(index, embedding)| {
        let values = shortened(embedding, dimensions)?;
        let embedding = if as_base64 {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        } else {
            Numbers::List(values)
        };
        Ok(Embedding { object: "embedding", index, embedding })
    });
    Ok(Json(Embeddings {
        object: "list",
        data: data.collect::<Result<_, ApiError>>()?,
        model,
        usage: Usage::of(tokens),
    }))
}

/// A text, or a list of texts.
fn texts(input: Option<Value>) -> Result<Vec<String>, ApiError> {
    let refused = |message: &str| ApiError::invalid("input", message);
    let list = match input {
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(list)) => list,
        Some(_) => return Err(refused("input is neither a text nor a list of texts")),
        None => return Err(refused("input is missing")),
    };
    if list.is_empty() || list.len() > TEXTS_MAX {
        return Err(refused(&format!("input has {} texts; 1 to {TEXTS_MAX} are supported", list.len())));
    }
    let text = |value| match value {
        Value::String(text) => Ok(text),
        Value::Number(_) | Value::Array(_) => Err(refused(
            "input has token numbers of another model's tokenizer: send texts (LangChain's OpenAIEmbeddings does with \
             check_embedding_ctx_length=False)",
        )),
        _ => Err(refused("input has something other than texts")),
    };
    list.into_iter().map(text).collect()
}

/// The first dimensions of an embedding, scaled to length 1, as OpenAI's.
fn shortened(embedding: TextEmbedding, dimensions: Option<usize>) -> Result<Vec<f32>, ApiError> {
    let values = embedding.values;
    match dimensions {
        None => Ok(values),
        Some(count) if count == values.len() => Ok(values),
        Some(count) if count < values.len() => Ok(normalized(&values[..count])),
        Some(_) => Err(ApiError::invalid(
            "dimensions",
            format!("the embeddings of this model have {} dimensions", values.len()),
        )),
    }
}
