//! The functions `model.open`, `model.run` and `model.stage`.

use crate::arguments::{NamedArguments, map, plain};
use crate::loaded::{LoadedModel, LoadedModels};
use cotensor_core::{DType, Error, Result};
use cotensor_functions::{Arguments, Context, Entries, Failure, Managed, Object, Value};
use cotensor_model::model::Model;
use cotensor_model::pipeline::{Output, User, run_user_keeping};
use cotensor_model::tensor::Value as StageValue;
use std::path::Path;
use std::sync::Arc;

pub(super) const STAGE_SUMMARY: &str = "Runs one stage of a model on tensors. Arguments: model (a folder's absolute path, a name on the \
    hub, or the result of model.open), variant (of its graphs), role, inputs (tensors by name).";
/// The arguments of [`run`] before the options of the task.
const INPUTS: [&str; 4] = ["task", "text", "image", "audio"];
const STAGE: &[&str] = &["role", "inputs"];
/// An argument beside `model`. By position, it comes last.
pub(super) const VARIANT: &str = "variant";

/// The description of [`run`] for lists of functions.
pub(super) fn run_summary() -> String {
    format!(
        "Runs a task with a model. Arguments: model (a folder's absolute path, a name on the hub, or the result of model.open), \
         variant (of its graphs, such as fp16), task, and as the task needs them text, image, audio (image and audio: an \
         absolute path, the file's bytes or a uint8 tensor), and its options: {}.",
        User::option_names().join(", ")
    )
}

/// The object behind a reference to an open model, which stays loaded.
struct OpenModel(Arc<LoadedModel>);

impl Managed for OpenModel {
    /// `run` and `stage`, as the functions without the argument `model`; `describe`.
    fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        let model = &*self.0.model;
        match method {
            "run" => {
                let _request = self.0.request();
                run_with(model, &NamedArguments::new(arguments, &run_names(&[], &[]))?, context)
            }
            "stage" => {
                let _request = self.0.request();
                stage_with(model, &NamedArguments::new(arguments, STAGE)?, context)
            }
            "describe" => {
                let family = model.family();
                let stages = family.stages.iter().map(|stage| stage.role.as_str().into()).collect::<Vec<Value>>();
                Ok(map([
                    ("name", model.name().into()),
                    ("family", family.name.as_str().into()),
                    ("stages", stages.into()),
                ]))
            }
            _ => Err(Failure::no_method(method)),
        }
    }
}

impl Drop for OpenModel {
    fn drop(&mut self) {
        // The time without requests begins.
        self.0.touch();
    }
}

pub(super) fn open(models: &LoadedModels, arguments: &Arguments) -> Result<Value, Failure> {
    let arguments = NamedArguments::new(arguments, &["folder", VARIANT])?;
    let variant = arguments.text(VARIANT)?;
    let loaded = get(models, arguments.required("folder")?.as_str()?, "folder", variant.as_deref())?;
    Ok(Object::new(OpenModel(loaded)).into())
}

pub(super) fn run(models: &LoadedModels, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
    let arguments = NamedArguments::new(arguments, &run_names(&["model"], &[VARIANT]))?;
    let loaded = model(models, &arguments)?;
    let _request = loaded.request();
    run_with(&loaded.model, &arguments, context)
}

pub(super) fn stage(models: &LoadedModels, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
    let arguments = NamedArguments::new(arguments, &[&["model"], STAGE, &[VARIANT]].concat())?;
    let loaded = model(models, &arguments)?;
    let _request = loaded.request();
    stage_with(&loaded.model, &arguments, context)
}

/// The arguments of [`run`] between those `before` and `after`.
fn run_names(before: &[&'static str], after: &[&'static str]) -> Vec<&'static str> {
    [before, INPUTS.as_slice(), User::option_names().as_slice(), after].concat()
}

/// The model of a reference, a folder or a name.
fn model(models: &LoadedModels, arguments: &NamedArguments<'_>) -> Result<Arc<LoadedModel>> {
    let variant = arguments.text(VARIANT)?;
    match arguments.required("model")? {
        Value::String(model) => get(models, model, "model", variant.as_deref()),
        _ if variant.is_some() => {
            Err(Error::invalid("the reference keeps the variant of model.open").in_field(VARIANT))
        }
        other => Ok(Arc::clone(&other.as_object::<OpenModel>().map_err(|error| error.in_field("model"))?.0)),
    }
}

/// The model by the absolute path of its folder, or by its name on the hub. A relative path is refused: processes have different
/// working directories.
pub(super) fn get(models: &LoadedModels, name: &str, field: &str, variant: Option<&str>) -> Result<Arc<LoadedModel>> {
    models.get(name, variant).map_err(|error| {
        if Path::new(name).is_absolute() {
            return error;
        }
        // No id of a model starts so.
        if name.starts_with(['.', '~']) {
            let message = format!("no folder {name:?}: name a folder by its absolute path, or a model on the hub");
            return Error::not_found(message).in_field(field);
        }
        error.prefixed(format_args!("{name:?} is not an absolute path of a folder; by name")).in_field(field)
    })
}

fn run_with(model: &Model, arguments: &NamedArguments<'_>, context: &Context) -> Result<Value, Failure> {
    let user = User {
        name: context.client().to_owned(),
        model: model.name(),
        task: arguments.required("task")?.as_str()?.to_owned(),
        ..User::with_options(&arguments.options(&User::option_names())?)?
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

fn stage_with(model: &Model, arguments: &NamedArguments<'_>, context: &Context) -> Result<Value, Failure> {
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

/// An output's numbers as a tensor.
fn tensor(output: &Output, context: &Context) -> Result<Value> {
    let bytes: Vec<u8> = output.values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let name = format!("{}/{}", context.client(), output.name);
    Ok(context.tensor(&name, DType::F32, &output.shape, &bytes)?.into())
}
