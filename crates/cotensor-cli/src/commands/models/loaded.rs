//! `models ps`, `load` and `unload`: the models of the model process.

use crate::args::{Client, LoadArgs};
use crate::commands::call::{model_error, plain_json};
use crate::commands::connection::{connect, running};
use crate::commands::embed::{ModelFunctions, model_name};
use crate::commands::status::engine_text;
use crate::launch::Program;
use crate::output::{print, print_json, report};
use crate::table::{Table, duration, plain};
use cotensor::core::{Error, ErrorKind, Result, size};
use cotensor::memory::process::pss_bytes;
use cotensor::model::quantize::QuantizedWeights;
use cotensor_client::protocol::{Empty, GetStatus, ModelEngine};
use cotensor_client::{ClientStore, default_socket};
use cotensor_functions::{Arguments, CallError, Functions, Value};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const LIST: &str = "model.list";
const LOAD: &str = "model.load";
const UNLOAD: &str = "model.unload";

#[derive(Serialize)]
struct Listing {
    /// The process that runs the models, if the daemon started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Its memory, with its part of shared pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pss_bytes: Option<u64>,
    /// The engine that models get at their next load; none while no process offers models.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<ModelEngine>,
    models: Vec<Entry>,
}

/// The answer of `model.list`.
#[derive(Default, Deserialize)]
struct Listed {
    models: Vec<Entry>,
    /// Of a former version: none.
    engine: Option<ModelEngine>,
}

/// A model as `model.list` describes it.
#[derive(Serialize, Deserialize)]
struct Entry {
    name: String,
    variant: Option<String>,
    display_name: String,
    folder: String,
    family: String,
    stages: Vec<String>,
    engines: Vec<String>,
    /// Of a former version: none.
    #[serde(default)]
    quantized: Vec<Quantized>,
    weights_bytes: u64,
    shared_bytes: u64,
    created: u64,
    requests: u64,
    in_use: bool,
    idle_s: f64,
    pinned: bool,
    unload_in_s: Option<f64>,
}

/// A loaded graph with weights of few bits.
#[derive(Serialize, Deserialize)]
struct Quantized {
    stage: String,
    #[serde(flatten)]
    weights: QuantizedWeights,
}

impl Entry {
    /// The bits of a weight of each graph that is quantized, in the file and in the store, and the errors of outputs that were measured.
    fn bits(&self) -> String {
        let one = |Quantized { stage, weights }: &Quantized| {
            let error = weights.errors.output_error.map_or_else(String::new, |error| format!(", error {error:.3}"));
            format!("{} {:.1}, {:.1} in the store{error}", plain(stage), weights.stored_bits, weights.run_bits)
        };
        self.quantized.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

#[derive(Serialize, Deserialize)]
struct Unloaded {
    unloaded: Vec<String>,
}

pub(super) fn list(client: &Client) -> Result<()> {
    let (pid, Listed { models, engine }) =
        match running(&client.socket.clone().unwrap_or_else(default_socket), "cotensor models")? {
            None => (None, Listed::default()),
            Some(store) => {
                let status = store.request::<GetStatus>(&Empty {})?;
                // Of another process, `serve-models` of a user, the daemon knows no number.
                let offered = Functions::new(Arc::clone(&store)).list(LIST)?;
                let offers = |pid: &u32| offered.iter().any(|found| found.provider.client == format!("models[{pid}]"));
                (status.models.filter(offers), loaded(&store)?)
            }
        };
    if client.json {
        return print_json(&Listing { pid, pss_bytes: pid.and_then(|pid| pss_bytes(pid).ok()), engine, models });
    }
    let engine = engine.map_or_else(String::new, |engine| format!("engine {}\n", engine_text(&engine)));
    if models.is_empty() {
        let nothing = "no model is loaded; `cotensor models load MODEL` loads one, and so does the first request\n";
        return print(&(nothing.to_owned() + &engine));
    }
    let titles = ["name", "family", "weights", "shared", "requests", "idle", "unloaded", "engine", "bits"];
    let has_bits = models.iter().any(|model| !model.quantized.is_empty());
    let columns = titles.len() - usize::from(!has_bits);
    let mut table =
        Table::new(&[false, false, true, true, true, true, false, false, false][..columns], &titles[..columns]);
    for model in &models {
        let variant = model.variant.as_ref().map_or_else(String::new, |variant| format!(" ({variant})"));
        let row = [
            plain(&model.name) + &variant,
            model.family.clone(),
            size(model.weights_bytes),
            size(model.shared_bytes),
            model.requests.to_string(),
            if model.in_use { "in use".to_owned() } else { duration(model.idle_s) },
            model.unload_in_s.map_or_else(|| "never".to_owned(), |left| format!("in {}", duration(left))),
            model.engines.join(", "),
            model.bits(),
        ];
        table.row(row.into_iter().take(columns));
    }
    let process = pid.and_then(|pid| Some((pid, pss_bytes(pid).ok()?)));
    let process = process.map_or_else(String::new, |(pid, bytes)| {
        format!("process {pid}: {} with its part of shared pages\n", size(bytes))
    });
    print(&(table.text() + &process + &engine))
}

/// The loaded models and the engine; none if no process offers models.
fn loaded(store: &Arc<ClientStore>) -> Result<Listed> {
    let functions = Functions::new(Arc::clone(store));
    if functions.list(LIST)?.is_empty() {
        return Ok(Listed::default());
    }
    match functions.call(LIST, &Arguments::new()) {
        Ok(listed) => parsed(&listed, LIST),
        // The process ended, and its models with it.
        Err(CallError::NotCalled(error)) if error.kind() == ErrorKind::Io => Ok(Listed::default()),
        Err(error) => Err(model_error(error, LIST)),
    }
}

pub(super) fn load(args: &LoadArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor models")?;
    let models = ModelFunctions::new(store);
    let mut arguments = Arguments::new().named("model", model_name(&args.model)?);
    if let Some(variant) = &args.variant {
        arguments = arguments.named("variant", variant.as_str());
    }
    if let Some(ttl) = args.ttl {
        arguments = arguments.named("ttl_s", ttl.as_secs_f64().ceil() as i64);
    }
    if args.pin {
        arguments = arguments.named("pinned", true);
    }
    let loaded: Entry = parsed(&models.call(LOAD, &arguments)?, LOAD)?;
    if args.client.json {
        return print_json(&loaded);
    }
    let until = loaded.unload_in_s.map_or_else(
        || "kept until `cotensor models unload`".to_owned(),
        |left| format!("unloaded after {} without requests", duration(left)),
    );
    report(&format!("{}: {} of weights, {until}", plain(&loaded.name), size(loaded.weights_bytes)));
    Ok(())
}

pub(super) fn unload(client: &Client, model: Option<&str>) -> Result<()> {
    let store = running(&client.socket.clone().unwrap_or_else(default_socket), "cotensor models")?;
    let functions = store.map(Functions::new);
    let offered = functions.filter(|functions| functions.list(UNLOAD).is_ok_and(|found| !found.is_empty()));
    let unloaded: Unloaded = match (offered, model) {
        (Some(functions), Some(model)) => {
            call(&functions, UNLOAD, &Arguments::new().named("model", model_name(model)?))?
        }
        (Some(functions), None) => call(&functions, UNLOAD, &Arguments::new().named("all", true))?,
        (None, Some(_)) => return Err(Error::not_found("no model is loaded").in_field("MODEL")),
        (None, None) => Unloaded { unloaded: Vec::new() },
    };
    if client.json {
        return print_json(&unloaded);
    }
    let names = unloaded.unloaded.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", ");
    report(&format!("unloaded: {}", if names.is_empty() { "nothing" } else { &names }));
    Ok(())
}

fn call<T: for<'de> Deserialize<'de>>(functions: &Functions, name: &str, arguments: &Arguments) -> Result<T> {
    parsed(&functions.call(name, arguments).map_err(|error| model_error(error, name))?, name)
}

fn parsed<T: for<'de> Deserialize<'de>>(answer: &Value, name: &str) -> Result<T> {
    let corrupt = |error: serde_json::Error| Error::corrupt(format!("the answer of {name}: {error}"));
    serde_json::from_value(plain_json(answer)).map_err(corrupt)
}
