//! The functions of models.

mod manage;
mod run;

use crate::arguments::{NamedArguments, map};
use crate::{EmbedOptions, LoadedModels};
use cotensor_core::{DType, Result};
use cotensor_functions::{Arguments, Context, Failure, Options, ProviderBuilder, Value};
use cotensor_model::pipeline::{EmbedderInput, field_names, read_options};
use std::sync::Arc;

const EMBED_SUMMARY: &str = "Embeds texts. Arguments: model (a folder's absolute path, or a name on the hub), texts, prompt_name, \
    variant (of its graphs), pooling (in place of that of the model's files: mean, cls, ...), dimensions, truncate (false refuses a \
    text that is too long), first_index (of the first text in the caller's list, for errors). Texts of concurrent calls run together.";

/// Adds the functions of models to a provider. The models must use the provider's store, so that results are passed without a copy.
pub fn model_functions(builder: ProviderBuilder, models: Arc<LoadedModels>) -> ProviderBuilder {
    let used = || Arc::clone(&models);
    let (opening, running, staging, embedding) = (used(), used(), used(), used());
    let (loading, unloading, listing) = (used(), used(), used());
    builder
        .function(
            "model.open",
            Options::new(
                "Opens a model, which stays open while the result is kept. Arguments: folder (an absolute path, or the model's \
                 name on the hub), variant (of its graphs, such as fp16).",
            ),
            move |arguments, _| run::open(&opening, arguments),
        )
        .function("model.run", Options::new(&run::run_summary()), move |arguments, context| {
            run::run(&running, arguments, context)
        })
        .function("model.stage", Options::new(run::STAGE_SUMMARY), move |arguments, context| {
            run::stage(&staging, arguments, context)
        })
        .function("model.embed", Options::new(EMBED_SUMMARY), move |arguments, context| {
            embed(&embedding, arguments, context)
        })
        .function("model.load", Options::new(manage::LOAD_SUMMARY), move |arguments, context| {
            manage::load(&loading, arguments, context)
        })
        .function("model.unload", Options::new(manage::UNLOAD_SUMMARY), move |arguments, _| {
            manage::unload(&unloading, arguments)
        })
        .function("model.list", Options::new(manage::LIST_SUMMARY), move |arguments, _| {
            manage::list(&listing, arguments)
        })
}

/// The embeddings of texts as one tensor, with the number of tokens of each, and what happened to the texts.
fn embed(models: &LoadedModels, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
    let names = field_names::<EmbedOptions>();
    let arguments = NamedArguments::new(arguments, &[&["model", "texts"], names].concat())?;
    let model = arguments.required("model")?.as_str()?;
    let texts = arguments.texts("texts")?.into_iter().map(EmbedderInput::Text).collect();
    let options: EmbedOptions = read_options(&arguments.options(names)?)?;
    context.check()?;
    let embedded = models.embed_now(model, texts, &options);
    let embedded = embedded.map_err(|error| error.in_list("texts", options.first_index))?;
    let truncated: Vec<Value> = embedded.truncated().map(|at| (at as i64).into()).collect();
    let embeddings = &embedded.embeddings;
    let width = embeddings.first().map_or(0, |embedding| embedding.values.len());
    let bytes: Vec<u8> =
        embeddings.iter().flat_map(|embedding| &embedding.values).flat_map(|value| value.to_ne_bytes()).collect();
    let name = format!("{}/embeddings", context.client());
    let rows = context.tensor(&name, DType::F32, &[embeddings.len(), width], &bytes)?;
    let tokens: Vec<Value> = embeddings.iter().map(|embedding| (embedding.tokens as i64).into()).collect();
    let notices: Vec<Value> = embedded.notices.into_iter().map(Value::from).collect();
    let entries = [("tokens", tokens), ("truncated", truncated), ("notices", notices)];
    let [tokens, truncated, notices] = entries.map(|(name, list)| (name, list.into()));
    Ok(map([("embeddings", rows.into()), tokens, truncated, notices]))
}
