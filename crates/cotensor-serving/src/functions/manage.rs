//! The functions `model.load`, `model.unload` and `model.list`.

use super::run::{VARIANT, get};
use crate::arguments::{NamedArguments, map};
use crate::loaded::{LoadedModels, ModelInfo, ModelKey};
use cotensor_core::{ContentHash, Error, Result};
use cotensor_functions::{Arguments, Context, Failure, Value};
use cotensor_model::engine::EngineInfo;
use cotensor_model::quantize::{QuantizedWeights, not_finite};
use cotensor_model::stage::Stage;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

pub(super) const LOAD_SUMMARY: &str = "Loads the graphs of a model before the first request. Arguments: model (a folder's \
    absolute path, or a name on the hub), variant (of its graphs), ttl_s (seconds without requests after which it is unloaded), \
    pinned (never unloaded).";
pub(super) const UNLOAD_SUMMARY: &str = "Unloads a model; requests that run continue. Arguments: model (as it was named), or \
    all=true.";
pub(super) const LIST_SUMMARY: &str =
    "The loaded models: names, memory, requests, and when each is unloaded; and the engine.";
/// The longest time without requests, in seconds: 100 years.
const TTL_S_MAX: usize = 3_155_760_000;

pub(super) fn load(models: &LoadedModels, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
    let arguments = NamedArguments::new(arguments, &["model", VARIANT, "ttl_s", "pinned"])?;
    let (model, variant) = (arguments.required("model")?.as_str()?, arguments.text(VARIANT)?);
    let ttl = match (arguments.count("ttl_s")?, arguments.flag("pinned")?) {
        (Some(_), Some(true)) => return Err(Error::invalid("a pinned model has no ttl_s").in_field("ttl_s").into()),
        (Some(seconds), _) if !(1..=TTL_S_MAX).contains(&seconds) => {
            return Err(Error::invalid(format!("1 to {TTL_S_MAX} s")).in_field("ttl_s").into());
        }
        (Some(seconds), _) => Some(Some(Duration::from_secs(seconds as u64))),
        (None, Some(true)) => Some(None),
        (None, Some(false)) => Some(models.model_ttl()),
        (None, None) => None,
    };
    context.check()?;
    let loaded = models.load(&get(models, model, "model", variant.as_deref())?, ttl)?;
    Ok(entry(&loaded, &weighed(&models.list())))
}

pub(super) fn unload(models: &LoadedModels, arguments: &Arguments) -> Result<Value, Failure> {
    let arguments = NamedArguments::new(arguments, &["model", "all"])?;
    let unloaded = match (arguments.text("model")?, arguments.flag("all")?) {
        (Some(model), None | Some(false)) => {
            let unloaded = models.unload(Some(&model));
            if unloaded.is_empty() {
                let names: BTreeSet<String> = models.list().into_iter().map(|info| info.key.name).collect();
                let known = if names.is_empty() {
                    "no model is loaded".to_owned()
                } else {
                    format!("loaded: {}", names.into_iter().collect::<Vec<_>>().join(", "))
                };
                return Err(Error::not_found(format!("{model:?} is not loaded; {known}")).in_field("model").into());
            }
            unloaded
        }
        (None, Some(true)) => models.unload(None),
        _ => return Err(Error::invalid("give model, or all=true").in_field("model").into()),
    };
    Ok(map([("unloaded", unloaded.into_iter().map(Value::from).collect::<Vec<_>>().into())]))
}

pub(super) fn list(models: &LoadedModels, arguments: &Arguments) -> Result<Value, Failure> {
    NamedArguments::new(arguments, &[])?;
    let all = models.list();
    let weighed = weighed(&all);
    let loaded: Vec<Value> = all.iter().map(|info| entry(info, &weighed)).collect();
    Ok(map([("models", loaded.into()), ("engine", engine(models.engine()))]))
}

/// What models get at their next load.
fn engine(info: EngineInfo) -> Value {
    let EngineInfo { name, version, library, absent } = info;
    let library = library.map_or(Value::Null, |library| library.to_string_lossy().as_ref().into());
    let absent: Vec<Value> = absent.into_iter().map(Value::from).collect();
    map([("name", name.into()), ("version", version.into()), ("library", library), ("absent", absent.into())])
}

/// The weights of each model, by the model's key.
fn weighed(all: &[ModelInfo]) -> Vec<(&ModelKey, HashMap<ContentHash, usize>)> {
    all.iter().map(|info| (&info.key, weights(info))).collect()
}

/// What lists say of a model, beside all loaded ones.
fn entry(info: &ModelInfo, all: &[(&ModelKey, HashMap<ContentHash, usize>)]) -> Value {
    let weights = weights(info);
    let is_shared = |hash: &ContentHash| all.iter().any(|(key, other)| **key != info.key && other.contains_key(hash));
    let bytes: usize = weights.values().sum();
    let shared: usize = weights.iter().filter(|(hash, _)| is_shared(hash)).map(|(_, bytes)| bytes).sum();
    let engines: BTreeSet<&str> = info.stages.iter().map(|stage| stage.runs_on().engine.as_str()).collect();
    let texts = |texts: Vec<&str>| texts.into_iter().map(Value::from).collect::<Vec<_>>();
    let seconds = |time: Duration| Value::Float(time.as_secs_f64());
    map([
        ("name", info.key.name.as_str().into()),
        ("variant", info.key.variant.as_deref().map_or(Value::Null, Value::from)),
        ("display_name", info.model.name().into()),
        ("folder", info.model.folder().to_string_lossy().as_ref().into()),
        ("family", info.model.family().name.as_str().into()),
        ("stages", texts(info.stages.iter().map(|stage| stage.role.as_str()).collect()).into()),
        ("engines", texts(engines.into_iter().collect()).into()),
        ("quantized", quantized(info).into()),
        ("weights_bytes", (bytes as i64).into()),
        // Other loaded models use them, too.
        ("shared_bytes", (shared as i64).into()),
        ("created", (info.created as i64).into()),
        ("requests", (info.requests as i64).into()),
        ("in_use", info.in_use.into()),
        ("idle_s", seconds(info.idle)),
        ("pinned", info.ttl.is_none().into()),
        ("unload_in_s", info.ttl.map_or(Value::Null, |ttl| seconds(ttl.saturating_sub(info.idle)))),
    ])
}

/// Bits and errors of each loaded graph with weights of few bits. What was not measured is null.
fn quantized(info: &ModelInfo) -> Vec<Value> {
    // As in the report: JSON has no number that is not finite.
    let one = |number: f64| not_finite(number).map_or(Value::Float(number), Into::into);
    let number = |number: Option<f64>| number.map_or(Value::Null, one);
    // A damaged report is no reason against a list.
    let of_stage = |stage: &Arc<Stage>| {
        let found: QuantizedWeights = info.model.quantized(stage).ok().flatten()?;
        Some(map([
            ("stage", stage.role.as_str().into()),
            ("stored_bits", Value::Float(found.stored_bits)),
            ("run_bits", Value::Float(found.run_bits)),
            ("relative_error", number(found.relative_error)),
            ("layer_error", number(found.layer_error)),
            ("output_error", number(found.errors.output_error)),
            ("divergence", number(found.errors.divergence)),
            ("top1", number(found.errors.top1)),
            ("cosine", number(found.errors.cosine)),
            ("neighbours", number(found.errors.neighbours)),
            ("tokens", found.errors.tokens.map_or(Value::Null, |tokens| (tokens as i64).into())),
            ("weights", found.weights.map_or(Value::Null, |weights| weights.name().into())),
            ("held_out", (found.held_out as i64).into()),
        ]))
    };
    info.stages.iter().filter_map(of_stage).collect()
}

/// The weights of the loaded graphs, each once: hash and size in bytes.
fn weights(info: &ModelInfo) -> HashMap<ContentHash, usize> {
    let stages =
        info.stages.iter().flat_map(|stage| stage.before().map(|(before, _)| before).into_iter().chain([stage]));
    stages.flat_map(|stage| stage.weights()).copied().collect()
}
