//! `POST /v1/embeddings`.

use super::error::ApiError;
use super::request::Fields;
use crate::loaded::LoadedModels;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{AppendHeaders, IntoResponse};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cotensor_model::pipeline::TextEmbedding;
use cotensor_model::preprocess::text::normalized;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The header with the number of texts whose end was cut off.
const TRUNCATED: &str = "x-embedding-truncated";
/// Fields that change the embeddings on other servers.
const UNSUPPORTED: &[&str] = &["prompt", "task", "truncate_prompt_tokens", "output_dtype", "late_chunking"];

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
    /// Whether the end of the text was cut off.
    #[serde(rename = "truncated", skip_serializing_if = "std::ops::Not::not")]
    is_truncated: bool,
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
) -> Result<impl IntoResponse, ApiError> {
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
    let dimensions = fields.one_of(["dimensions", "output_dimension"], Fields::count)?;
    let prompt_name = fields.one_of(["prompt_name", "input_type"], prompt_name)?;
    let truncates = truncates(&mut fields)?;
    let normalizes = normalizes(&mut fields)?;
    only_floats(&mut fields)?;
    fields.refuse(UNSUPPORTED)?;
    let embedded = models.embed(&model, texts, prompt_name).await;
    let embeddings = embedded.map_err(|error| ApiError::of_model(&model, &error))?;
    let truncated = embeddings.iter().filter(|embedding| embedding.is_truncated).count();
    if let Some(index) = embeddings.iter().position(|embedding| embedding.is_truncated && !truncates) {
        let tokens = embeddings[index].tokens;
        let message = format!("text {index} of input is longer than the {tokens} tokens that the model reads");
        return Err(ApiError::invalid("truncate", message));
    }
    let tokens = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let data = embeddings.into_iter().enumerate().map(|(index, embedding)| {
        let is_truncated = embedding.is_truncated;
        let mut values = shortened(embedding, dimensions)?;
        if normalizes {
            values = normalized(&values);
        }
        let embedding = if as_base64 {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        } else {
            Numbers::List(values)
        };
        Ok(Embedding { object: "embedding", index, embedding, is_truncated })
    });
    let data = data.collect::<Result<_, ApiError>>()?;
    let headers = AppendHeaders((truncated > 0).then(|| (TRUNCATED, truncated.to_string())));
    Ok((headers, Json(Embeddings { object: "list", data, model, usage: Usage::of(tokens) })))
}

/// The name of a prompt: as `prompt_name` has it, or as the `input_type` of Cohere, Voyage and NVIDIA means it.
fn prompt_name(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    let Some(given) = fields.text(name)? else { return Ok(None) };
    match (name, given.as_str()) {
        ("input_type", "query" | "search_query") => Ok(Some("query".to_owned())),
        ("input_type", "document" | "passage" | "search_document") => Ok(Some("document".to_owned())),
        ("input_type", other) => {
            Err(ApiError::invalid(name, format!("{other:?} is neither query nor document; prompt_name names a prompt")))
        }
        _ => Ok(Some(given)),
    }
}

/// Whether texts that are too long are cut at their end: yes, unless the request says otherwise.
fn truncates(fields: &mut Fields) -> Result<bool, ApiError> {
    match fields.take("truncate") {
        None | Some(Value::Bool(true)) => Ok(true),
        Some(Value::Bool(false)) => Ok(false),
        Some(Value::String(side)) if side.eq_ignore_ascii_case("end") => Ok(true),
        Some(Value::String(side)) if side.eq_ignore_ascii_case("none") => Ok(false),
        Some(_) => Err(ApiError::invalid("truncate", "truncate is neither true, false, END nor NONE")),
    }
}

/// Whether embeddings get the length 1, beyond what the model does.
fn normalizes(fields: &mut Fields) -> Result<bool, ApiError> {
    match fields.choice("normalize")? {
        Some(false) => {
            Err(ApiError::invalid("normalize", "normalize: false is not supported: the model's files decide"))
        }
        given => Ok(given.is_some()),
    }
}

/// # Errors
/// For a request for embeddings of another type than float32.
fn only_floats(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take("embedding_types") {
        None => Ok(()),
        Some(Value::Array(types)) if types.iter().all(|one| one == "float") => Ok(()),
        Some(_) => {
            Err(ApiError::invalid("embedding_types", "embedding_types other than [\"float\"] are not supported"))
        }
    }
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
