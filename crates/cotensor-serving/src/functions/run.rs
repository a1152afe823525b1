//! The functions `model.open`, `model.run`, `model.stage` and `model.embed`.

use crate::LoadedModels;
use crate::arguments::{NamedArguments, plain};
use cotensor_core::{DType, Error, Result};
use cotensor_functions::{Arguments, Context, Entries, Failure, Managed, Object, Options, ProviderBuilder, Value};
use cotensor_model::Runtime;
use cotensor_model::model::Model;
use cotensor_model::pipeline::{Output, User, run_user_keeping};
use cotensor_model::tensor::Value as StageValue;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The most models that stay open without a reference: those run most recently by folder.
const RECENT_MAX: usize = 8;

/// Adds the functions `model.open`, `model.run`, `model.stage` and `model.embed` to a provider. The models must use the provider's
/// store, so that results are passed without a copy.
pub fn model_functions(builder: ProviderBuilder, loaded: Arc<LoadedModels>) -> ProviderBuilder {
    let service = Arc::new(Service { runtime: Arc::clone(loaded.runtime()), recent: Mutex::default() });
    let (open, run, stage) = (Arc::clone(&service), Arc::clone(&service), service);
    builder
        .function(
            "model.open",
            Options::new(
                "Opens a model, which stays open while the result is kept. Arguments: folder (an absolute path, or the model's \
                 name on the hub), variant (of its graphs, such as fp16).",
            ),
            move |arguments, _| {
                let arguments = NamedArguments::new(arguments, &["folder", "variant"])?;
                let variant = arguments.text("variant")?;
                let model = open.open(arguments.required("folder")?.as_str()?, "folder", variant.as_deref())?;
                Ok(Object::new(OpenModel { model, service: Arc::clone(&open) }).into())
            },
        )
        .function("model.run", Options::new(RUN_SUMMARY), move |arguments, context| run.run(arguments, context))
        .function("model.embed", Options::new(EMBED_SUMMARY), move |arguments, context| embed(&loaded, arguments, context))
        .function("model.stage", Options::new(STAGE_SUMMARY), move |arguments, context| stage.stage(arguments, context))
}

struct Service {
    runtime: Arc<Runtime>,
    recent: Mutex<VecDeque<Arc<Model>>>,
}

/// The object behind a reference to an open model.
struct OpenModel {
    model: Arc<Model>,
    service: Arc<Service>,
}

impl Managed for OpenModel {
    /// `run` and `stage`, as the functions without the argument `model`; `describe`.
    fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        match method {
            "run" => self.service.run_with(&self.model, &NamedArguments::new(arguments, RUN)?, context),
            "stage" => self.service.stage_with(&self.model, &NamedArguments::new(arguments, STAGE)?, context),
            "describe" => {
                let (name, family) = (self.model.name(), self.model.family());
                let stages = family.stages.iter().map(|stage| stage.role.as_str().into()).collect::<Vec<Value>>();
                let entries =
                    [("name", name.into()), ("family", family.name.as_str().into()), ("stages", stages.into())];
                Ok(map(entries))
            }
            _ => Err(Failure::no_method(method)),
        }
    }
}

/// Descriptions for lists of functions. They name every argument of [`RUN`] and [`STAGE`].
const RUN_SUMMARY: &str = "Runs a task with a model. Arguments: model (a folder's absolute path, a name on the hub, or the \
    result of model.open), variant (of its graphs, such as fp16), task, and as the task needs them text, image, audio (image and audio: an absolute path, the file's bytes or a uint8 tensor), \
    texts (labels, texts to rank), head, prompt_name, chat, max_new_tokens, min_new_tokens, do_sample, temperature, top_k, top_p, seed, \
    threshold.";
const STAGE_SUMMARY: &str = "Runs one stage of a model on tensors. Arguments: model (a folder's absolute path, a name on the \
    hub, or the result of model.open), variant (of its graphs), role, inputs (tensors by name).";
const RUN: &[&str] = &[
    "task",
    "text",
    "image",
    "audio",
    "texts",
    "head",
    "prompt_name",
    "chat",
    "max_new_tokens",
    "min_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "threshold",
];
const STAGE: &[&str] = &["role", "inputs"];
const EMBED_SUMMARY: &str = "Embeds texts. Arguments: model (a folder's absolute path, or a name on the hub), texts, prompt_name. \
    Texts of concurrent calls run together.";
const EMBED: &[&str] = &["model", "texts", "prompt_name"];
/// An argument beside `model`. By position, it comes last.
const VARIANT: &str = "variant";

impl Service {
    fn run(&self, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        let arguments = NamedArguments::new(arguments, &[&["model"], RUN, &[VARIANT]].concat())?;
        self.run_with(&*self.model(&arguments)?, &arguments, context)
    }

    fn stage(&self, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        let arguments = NamedArguments::new(arguments, &[&["model"], STAGE, &[VARIANT]].concat())?;
        self.stage_with(&*self.model(&arguments)?, &arguments, context)
    }

    /// The model of a reference or a folder.
    fn model(&self, arguments: &NamedArguments<'_>) -> Result<Arc<Model>> {
        let variant = arguments.text(VARIANT)?;
        match arguments.required("model")? {
            Value::String(model) => Ok(self.recent(self.open(model, "model", variant.as_deref())?)),
            _ if variant.is_some() => {
                Err(Error::invalid("the reference keeps the variant of model.open").in_field(VARIANT))
            }
            other => Ok(Arc::clone(&other.as_object::<OpenModel>().map_err(|error| error.in_field("model"))?.model)),
        }
    }

    /// Opens a model by the absolute path of its folder, or by its name on the hub. A relative path is refused: processes
    /// have different working directories.
    fn open(&self, model: &str, field: &str, variant: Option<&str>) -> Result<Arc<Model>> {
        let path = Path::new(model);
        if path.is_absolute() {
            return self.runtime.open_variant(path, Path::new(""), variant);
        }
        self.runtime.open_named(model, variant).map_err(|error| {
            error.prefixed(format_args!("{model:?} is no absolute path of a folder; by name")).in_field(field)
        })
    }

    /// Keeps a model open that was run by its folder or name.
    fn recent(&self, model: Arc<Model>) -> Arc<Model> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes a version from before the folder changed.
        recent.retain(|known| known.folder() != model.folder() || known.variant() != model.variant());
        recent.push_front(Arc::clone(&model));
        let gone = {
            let keep = recent.len().min(RECENT_MAX);
            recent.split_off(keep)
        };
        drop(recent);
        drop(gone);
        model
    }

    fn run_with(&self, model: &Model, arguments: &NamedArguments<'_>, context: &Context) -> Result<Value, Failure> {
        let user = User {
            name: context.client().to_owned(),
            model: model.name(),
            variant: None,
            task: arguments.required("task")?.as_str()?.to_owned(),
            encoder: None,
            head: arguments.text("head")?,
            texts: arguments.texts("texts")?,
            prompt_name: arguments.text("prompt_name")?,
            chat: arguments.flag("chat")?,
            max_new_tokens: arguments.count("max_new_tokens")?,
            min_new_tokens: arguments.count("min_new_tokens")?,
            do_sample: arguments.flag("do_sample")?,
            temperature: arguments.number("temperature")?,
            top_k: arguments.count("top_k")?,
            top_p: arguments.number("top_p")?,
            seed: arguments.count("seed")?.map(|seed| seed as u64),
            threshold: arguments.number("threshold")?,
        };
        let inputs = arguments.inputs()?;
        context.check()?;
        let (report, kept) = run_user_keeping(model, &user, &inputs, context.holder())?;
        let stages = report
            .stages
            .iter()
            .map(|stage| map([("role", stage.role.as_str().into()), ("computed", stage.computed.into())]));
        let outputs = report.outputs.iter().map(|output| Ok((output.name.clone(), tensor(output, context)?)));
        let outputs: Entries = outputs.collect::<Result<_>>()?;
        let tensors: Entries = kept.into_iter().map(|(kind, lease)| (kind.to_owned(), lease.into())).collect();
        let answer = serde_json::to_value(&report.answer).map_err(|error| Error::unsupported(error.to_string()))?;
        Ok(map([
            ("answer", plain(answer)?),
            ("outputs", outputs.into()),
            ("tensors", tensors.into()),
            ("stages", stages.collect::<Vec<_>>().into()),
            ("notices", report.notices.into_iter().map(Value::from).collect::<Vec<_>>().into()),
        ]))
    }

    fn stage_with(&self, model: &Model, arguments: &NamedArguments<'_>, context: &Context) -> Result<Value, Failure> {
        let role = arguments.required("role")?.as_str()?;
        let def = model.family().stage(role)?;
        let inputs = arguments.required("inputs")?.as_map()?.iter().map(|(name, value)| {
            let lease = value.as_tensor().map_err(|error| error.in_field(name.as_str()))?;
            Ok((name.as_str(), StageValue::from(lease.try_clone()?)))
        });
        let inputs: Vec<(&str, StageValue)> = inputs.collect::<Result<_>>()?;
        let inputs: Vec<(&str, &StageValue)> = inputs.iter().map(|(name, value)| (*name, value)).collect();
        let wanted: Vec<&str> = def.outputs.iter().map(String::as_str).collect();
        let run = model.stage(role)?.run(&inputs, &wanted, context.holder())?;
        let outputs = wanted.iter().zip(&run.outputs).map(|(name, value)| {
            let private = || Error::unsupported("the store's configuration does not share this output").in_field(*name);
            Ok(((*name).to_owned(), value.lease().ok_or_else(private)?.try_clone()?.into()))
        });
        Ok(Value::Map(outputs.collect::<Result<_>>()?))
    }
}

/// The embeddings of texts as one tensor, with the number of tokens of each.
fn embed(loaded: &LoadedModels, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
    let arguments = NamedArguments::new(arguments, EMBED)?;
    let model = arguments.required("model")?.as_str()?;
    let texts = arguments.texts("texts")?;
    let prompt_name = arguments.text("prompt_name")?;
    context.check()?;
    let embeddings = loaded.embed_now(model, texts, prompt_name)?;
    let width = embeddings.first().map_or(0, |embedding| embedding.values.len());
    let bytes: Vec<u8> =
        embeddings.iter().flat_map(|embedding| &embedding.values).flat_map(|value| value.to_ne_bytes()).collect();
    let name = format!("{}/embeddings", context.client());
    let rows = context.tensor(&name, DType::F32, &[embeddings.len(), width], &bytes)?;
    let tokens: Vec<Value> = embeddings.iter().map(|embedding| (embedding.tokens as i64).into()).collect();
    Ok(map([("embeddings", rows.into()), ("tokens", tokens.into())]))
}

/// An output's numbers as a tensor.
fn tensor(output: &Output, context: &Context) -> Result<Value> {
    let bytes: Vec<u8> = output.values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let name = format!("{}/{}", context.client(), output.name);
    Ok(context.tensor(&name, DType::F32, &output.shape, &bytes)?.into())
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
