//! `POST /v1/embeddings`, and `POST /embed` of text-embeddings-inference.

use super::error::ApiError;
use super::request::{Fields, check_count, kind};
use crate::loaded::{EmbedOptions, Embedded, LoadedModels};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{AppendHeaders, IntoResponse};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cotensor_model::family::AnswerKind;
use cotensor_model::pipeline::EmbedderInput;
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
    /// What a reader of the numbers has to know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notices: Vec<String>,
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
    let texts = inputs(&mut fields, "input")?;
    let as_base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(ApiError::invalid("encoding_format", format!("{other:?} is neither float nor base64")));
        }
    };
    let options = options(&mut fields)?;
    let normalizes = normalizes(&mut fields)?;
    only_floats(&mut fields)?;
    fields.refuse(UNSUPPORTED)?;
    let embedded = embedded(&models, &model, "input", texts, options).await?;
    let headers = truncated(&embedded);
    let Embedded { embeddings, notices } = embedded;
    let tokens = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let data = embeddings.into_iter().enumerate().map(|(index, embedding)| {
        let is_truncated = embedding.is_truncated;
        let values = if normalizes { normalized(&embedding.values) } else { embedding.values };
        let embedding = if as_base64 {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        } else {
            Numbers::List(values)
        };
        Embedding { object: "embedding", index, embedding, is_truncated }
    });
    let data = data.collect();
    Ok((headers, Json(Embeddings { object: "list", data, model, usage: Usage::of(tokens), notices })))
}

/// `POST /embed`: the rows alone, of length 1.
pub(super) async fn embed(
    State(models): State<Arc<LoadedModels>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let mut fields = Fields::of(body)?;
    let model = fields.model_or_only(&models, AnswerKind::Sentence)?;
    let texts = inputs(&mut fields, "inputs")?;
    let options = options(&mut fields)?;
    normalizes(&mut fields)?;
    fields.refuse_left_truncation()?;
    fields.refuse(UNSUPPORTED)?;
    let embedded = embedded(&models, &model, "inputs", texts, options).await?;
    let headers = truncated(&embedded);
    let rows: Vec<Vec<f32>> = embedded.embeddings.iter().map(|embedding| normalized(&embedding.values)).collect();
    Ok((headers, Json(rows)))
}

/// The options that all forms of requests have.
fn options(fields: &mut Fields) -> Result<EmbedOptions, ApiError> {
    Ok(EmbedOptions {
        prompt_name: fields.one_of(["prompt_name", "input_type"], prompt_name)?,
        pooling: fields.text("pooling")?,
        dimensions: fields.one_of(["dimensions", "output_dimension"], Fields::count)?,
        truncate: Some(fields.truncates()?),
        ..EmbedOptions::default()
    })
}

/// The embeddings of texts, which are the field `list`.
async fn embedded(
    models: &Arc<LoadedModels>,
    model: &str,
    list: &str,
    texts: Vec<EmbedderInput>,
    options: EmbedOptions,
) -> Result<Embedded, ApiError> {
    let has_tokens = texts.iter().any(|text| matches!(text, EmbedderInput::Tokens(_)));
    models.embed(model, texts, options).await.map_err(|failed| {
        let error = ApiError::of_texts(model, list, &failed);
        match failed.text {
            Some(_) if has_tokens => error.followed(
                "; send texts in the place of token numbers (LangChain's OpenAIEmbeddings does with \
                 check_embedding_ctx_length=False)",
            ),
            _ => error,
        }
    })
}

/// The header that counts the texts whose end was cut off.
fn truncated(embedded: &Embedded) -> AppendHeaders<Option<(&'static str, String)>> {
    let count = embedded.truncated().count();
    AppendHeaders((count > 0).then(|| (TRUNCATED, count.to_string())))
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

/// A text or a list of texts; the tokens of a text, or a list of such.
fn inputs(fields: &mut Fields, name: &str) -> Result<Vec<EmbedderInput>, ApiError> {
    let refused = |message: String| ApiError::invalid(name, message);
    let list = match fields.take(name) {
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => vec![Value::Array(list)],
        Some(Value::Array(list)) => list,
        Some(text @ Value::String(_)) => vec![text],
        Some(other) => return Err(refused(format!("{name} is {}, and neither a text nor a list", kind(&other)))),
        None => return Err(refused(format!("{name} is missing"))),
    };
    check_count(name, list.len(), TEXTS_MAX)?;
    let input = |(at, value): (usize, Value)| match value {
        Value::String(text) => Ok(EmbedderInput::Text(text)),
        Value::Array(ids) => {
            let ids = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect::<Option<Vec<u32>>>();
            let ids = ids.filter(|ids| !ids.is_empty());
            ids.map(EmbedderInput::Tokens)
                .ok_or_else(|| refused(format!("{name}[{at}] is not a list of token numbers")))
        }
        other => Err(refused(format!("{name}[{at}] must be a text, not {}", kind(&other)))),
    };
    list.into_iter().enumerate().map(input).collect()
}
