//! The family of a model, and the files of its stages.

use crate::errors::{Result, as_given, user_of};
use cotensor_core::{Error, size};
use cotensor_graph::Port;
use cotensor_pipeline::{
    StagePorts, check_architecture, default_task, has_class_of, head_output, output_of, trunk_output,
};
use cotensor_preprocess::family::{
    CONFIG_FILE, DecoderDef, Family, Medium, ModelConfig, Similarity, Source, StageDef, Task, Variant, family_of_model,
    variant,
};
use cotensor_preprocess::{JSON_BYTES_MAX, positions_depend_on_length};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use wasm_bindgen::prelude::*;

/// The most files of a model's folder.
const FILES_MAX: usize = 10_000;

/// A model's family, its configuration, and the files that its folder has.
#[wasm_bindgen]
#[derive(Clone)]
pub struct ModelFamily {
    family: &'static Family,
    config: Value,
    variant: Option<&'static Variant>,
    files: HashSet<String>,
}

#[wasm_bindgen]
impl ModelFamily {
    /// The family of a model with this config.json. `files` are the names of the files in the model's folder, with `/` between
    /// their parts; `variant` chooses graphs, such as `fp16`.
    ///
    /// # Errors
    /// `Corrupt` for a text that is not a JSON object, `Invalid` without a `model_type` and for an unknown variant, `Unsupported`
    /// for an unknown `model_type` (the message lists the known ones), `NotFound` for a variant in which the folder has no graph.
    #[wasm_bindgen(constructor)]
    pub fn new(config: &str, files: Vec<String>, variant: Option<String>) -> Result<ModelFamily> {
        let files = checked(files)?;
        let (config, family) = read(config, |file| files.contains(file))?;
        let variant = variant.as_deref().map(self::variant).transpose()?;
        family.check_variant(variant, |file| files.contains(file))?;
        Ok(Self { family, config, variant, files })
    }

    /// The files that may be graphs of a model with this config.json, and the files by which its family is recognized, as JSON.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn candidates(config: &str, variant: Option<String>) -> Result<String> {
        let (config, _) = read(config, |_| false)?;
        let variant = variant.as_deref().map(self::variant).transpose()?;
        let model_type = config["model_type"].as_str().unwrap_or_default();
        let families = cotensor_preprocess::family::families().iter();
        let families: Vec<&Family> =
            families.filter(|family| family.model_types.iter().any(|known| known == model_type)).collect();
        let graphs = |family: &Family| {
            let stages = family.stages.iter().flat_map(|stage| {
                let others = variant.into_iter().flat_map(|_| stage.candidates(None));
                stage.candidates(variant).chain(others).map(|(file, _)| file).collect::<Vec<_>>()
            });
            let whole = family.similarity.iter().flat_map(|similarity| similarity.candidates(variant));
            stages.chain(whole).collect::<Vec<_>>()
        };
        let mut seen = BTreeSet::new();
        let graphs = families.iter().flat_map(|family| graphs(family)).filter(|file| seen.insert(file.clone()));
        let recognized_by = families.iter().filter_map(|family| family.file.as_deref());
        Ok(serde_json::json!({
            "graphs": graphs.collect::<Vec<_>>(),
            "recognized_by": recognized_by.collect::<Vec<_>>(),
        })
        .to_string())
    }

    /// The family, its stages and its tasks as JSON: `FamilyDescription` of `web/src/models/definition.ts`.
    pub fn describe(&self) -> String {
        let has_file = |file: &str| self.files.contains(file);
        let stages = self.family.stages_of_form(self.variant, has_file).map(|def| self.describe_stage(def));
        let tasks = self.family.tasks().map(|task| TaskDescription {
            task,
            roles: self.roles(task),
            reads: media(Medium::ALL.into_iter().filter(|medium| self.family.reads(task, *medium))),
            has_head: task.head && has_class_of(&self.config(), task),
        });
        let description = Description {
            name: &self.family.name,
            kinds: self.family.kinds.iter().map(|kind| kind.name()).collect(),
            model_type: self.model_type(),
            variant: self.variant.map(|variant| variant.name.as_str()),
            stages: stages.collect(),
            tasks: tasks.collect(),
            decoder: self.family.decoder.as_ref().map(|DecoderDef { forms, embed, .. }| DecoderForms { forms, embed }),
            positions_depend_on_length: positions_depend_on_length(&self.config),
            similarity: self.family.similarity.as_ref(),
            whole_graph: self.whole_graph(),
        };
        serde_json::to_string(&description).unwrap_or_default()
    }

    /// Refuses options that a task does not read, and values out of bounds. `text` is JSON: that of `userOf` in
    /// `web/src/models/writing.ts`.
    ///
    /// # Errors
    /// `Invalid`; the error names the option.
    #[wasm_bindgen(js_name = checkOptions)]
    pub fn check_options(&self, text: &str) -> Result<()> {
        let user = user_of(text)?;
        let task = self.family.task(&user.task)?;
        let checked = user.check_limits(&user.name).and_then(|()| user.check_task(task));
        Ok(checked.map_err(|error| as_given(error, text))?)
    }

    /// The output of a stage's graph that `task` reads; without a task, the result of the stage. `outputs` are the names of the
    /// graph's outputs; `own_head` tells whether the task uses the head in the model's graph.
    ///
    /// # Errors
    /// `Unsupported` for a graph without it; the message lists the outputs.
    #[wasm_bindgen(js_name = outputOf)]
    pub fn output_of(&self, role: &str, task: Option<String>, outputs: Vec<String>, own_head: bool) -> Result<String> {
        let (def, outputs) = (self.family.stage(role)?, ports(outputs));
        let stage = StagePorts { role, inputs: &[], outputs: &outputs };
        let name = match task {
            Some(task) => output_of(self.family.task(&task)?, def, stage, own_head)?,
            None => trunk_output(role, def, stage)?,
        };
        Ok(name.to_owned())
    }

    /// The output with the logits among the `outputs` of the head `role`.
    ///
    /// # Errors
    /// `Unsupported` for several outputs without logits.
    #[wasm_bindgen(js_name = headOutput)]
    pub fn head_output(role: &str, outputs: Vec<String>) -> Result<String> {
        Ok(head_output(StagePorts { role, inputs: &[], outputs: &ports(outputs) })?)
    }

    /// Refuses a task for which config.json states another class than the one of the model's own head.
    ///
    /// # Errors
    /// `Invalid`; the error names the classes.
    #[wasm_bindgen(js_name = checkHead)]
    pub fn check_head(&self, task: &str) -> Result<()> {
        Ok(check_architecture(&self.config(), self.family.task(task)?)?)
    }

    /// The task that reads inputs of exactly the types `given`. `has_pairs` tells that there are texts to compare with the text.
    /// `name` is the model's, for errors.
    ///
    /// # Errors
    /// `Invalid` when no task fits; the message lists the tasks.
    #[wasm_bindgen(js_name = defaultTask)]
    pub fn default_task(&self, name: &str, given: Vec<String>, has_pairs: bool) -> Result<String> {
        let given: Vec<Medium> =
            Medium::ALL.into_iter().filter(|medium| given.iter().any(|each| each == medium.name())).collect();
        let task = default_task(&self.config(), name, &given, has_pairs);
        Ok(task.map_err(|error| error.in_field("task"))?.name.clone())
    }
}

#[derive(Serialize)]
struct Description<'a> {
    name: &'a str,
    kinds: Vec<&'static str>,
    model_type: &'a str,
    variant: Option<&'a str>,
    stages: Vec<StageDescription<'a>>,
    tasks: Vec<TaskDescription<'a>>,
    decoder: Option<DecoderForms<'a>>,
    /// Whether the positions of a text depend on the longest text of a batch.
    positions_depend_on_length: bool,
    similarity: Option<&'a Similarity>,
    whole_graph: Option<String>,
}

#[derive(Serialize)]
struct StageDescription<'a> {
    role: &'a str,
    kind: &'static str,
    file: Option<String>,
    inputs: &'a BTreeMap<String, Source>,
    inputs_optional: &'a BTreeMap<String, Source>,
    outputs: &'a [String],
    output_aliases: &'a [String],
    /// The media whose preprocessing is part of the space, in the order of their fingerprints.
    media: Vec<&'static str>,
    rest_of: Option<&'a str>,
    fills_texts: bool,
}

/// `DecoderDef` of `web/src/models/definition.ts`.
#[derive(Serialize)]
struct DecoderForms<'a> {
    forms: &'a [Vec<String>],
    embed: &'a Option<String>,
}

#[derive(Serialize)]
struct TaskDescription<'a> {
    #[serde(flatten)]
    task: &'a Task,
    /// The stages that run, with the decoder in the form that the model has.
    roles: Vec<&'a str>,
    reads: Vec<&'static str>,
    /// Whether the class in config.json has a head for it.
    has_head: bool,
}

impl ModelFamily {
    pub(crate) fn config(&self) -> ModelConfig<'_> {
        ModelConfig { family: self.family, values: &self.config, folder: Path::new("") }
    }

    pub(crate) fn def(&self) -> &'static Family {
        self.family
    }

    /// The stages of a task that run, with the decoder in the form that the model has.
    pub(crate) fn roles<'a>(&'a self, task: &'a Task) -> Vec<&'a str> {
        self.family.roles(&task.stages, self.variant, |file| self.files.contains(file))
    }

    pub(crate) fn model_type(&self) -> &str {
        self.config.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The file of a stage's graph, and whether it holds the whole model.
    pub(crate) fn graph_file(&self, def: &StageDef) -> Option<(String, bool)> {
        def.graph_file(self.variant, |file| self.files.contains(file))
    }

    /// The graph that computes logits of similarities.
    fn whole_graph(&self) -> Option<String> {
        let similarity = self.family.similarity.as_ref()?;
        let mut files = similarity.files.iter().cloned().chain(similarity.candidates(self.variant));
        files.find(|file| self.files.contains(file))
    }

    fn describe_stage<'a>(&'a self, def: &'a StageDef) -> StageDescription<'a> {
        StageDescription {
            role: &def.role,
            kind: def.kind.name(),
            file: self.graph_file(def).map(|(file, _)| file),
            inputs: &def.inputs,
            inputs_optional: &def.inputs_optional,
            outputs: &def.outputs,
            output_aliases: &def.output_aliases,
            media: media(def.media().into_iter()),
            rest_of: def.rest_of.as_deref(),
            fills_texts: def.fills_texts,
        }
    }
}

/// Ports of which only the name is read.
fn ports(names: Vec<String>) -> Vec<Port> {
    names.into_iter().map(|name| Port { name, dtype: None, dims: None }).collect()
}

fn media(media: impl Iterator<Item = Medium>) -> Vec<&'static str> {
    media.map(Medium::name).collect()
}

fn checked(files: Vec<String>) -> Result<HashSet<String>> {
    if files.len() > FILES_MAX {
        let message = format!("{} files; at most {FILES_MAX} are read", files.len());
        return Err(Error::invalid(message).in_field("files").into());
    }
    Ok(files.into_iter().collect())
}

/// The content of config.json, and the family that it names.
fn read(config: &str, has_file: impl Fn(&str) -> bool) -> Result<(Value, &'static Family)> {
    if config.len() as u64 > JSON_BYTES_MAX {
        return Err(Error::invalid(format!("more than {}", size(JSON_BYTES_MAX))).in_file(CONFIG_FILE).into());
    }
    let parsed = serde_json::from_str::<Value>(config);
    let config = parsed.map_err(|error| Error::corrupt(error.to_string()).in_file(CONFIG_FILE))?;
    let model_type = config.get("model_type").and_then(Value::as_str);
    let missing = || Error::invalid("a string is required").in_file(CONFIG_FILE).in_field("model_type");
    let family = family_of_model(model_type.ok_or_else(missing)?, has_file);
    let family = family.map_err(|error| error.in_file(CONFIG_FILE).in_field("model_type"))?;
    Ok((config, family))
}
