//! The modules of sentence-transformers, as modules.json lists them.

use super::fields::{file_in, flag, folder_of};
use super::known_pooling::{self, Known};
use super::modules::{Module, Vectors};
use super::pooling::{POOLINGS, Pooling, pooling_named};
use super::transformer::Transformer;
use crate::files::{ModelFiles, find_json};
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::collections::BTreeSet;

const MODULES_FILE: &str = "modules.json";
/// The most modules in a modules.json.
const MODULES_MAX: usize = 64;
/// The folder of the pooling configuration, unless modules.json names another.
const POOLING_FOLDER: &str = "1_Pooling";
/// Configurations of modules that change an embedding, as sentence-transformers names their folders.
const LATER_MODULES: [&str; 3] = ["2_Dense/config.json", "3_Dense/config.json", "2_LayerNorm/config.json"];
/// The packages whose classes are known. Other classes are code of the model.
pub(super) const PACKAGE: &str = "sentence_transformers.";
/// The classes that have a file with weights.
const WITH_WEIGHTS: [&str; 2] = ["Dense", "LayerNorm"];
/// The class of jina-embeddings-v3, which reads files as the Transformer of sentence-transformers does.
const KNOWN_CODE: [&str; 1] = ["custom_st.Transformer"];

/// From the hidden states of tokens to the embedding of a text.
#[derive(Clone, Debug)]
pub(super) struct ModuleList {
    /// The modules before the pooling, which change the vector of each token.
    pub(super) on_tokens: Vec<Module>,
    pub(super) poolings: Vec<Pooling>,
    /// Whether the tokens of the prompt are pooled.
    pub(super) pools_prompt: bool,
    /// The modules after the pooling.
    pub(super) on_text: Vec<Module>,
    /// Why the modules cannot be applied. It is an error unless the graph has the embedding as an output.
    pub(super) unusable: Option<Unusable>,
    /// Why texts cannot be tokenized as the model was trained.
    pub(super) input: Option<Error>,
    /// How the pooling was found, if no file states it.
    pub(super) notice: Option<String>,
    /// The length that sentence_bert_config.json sets, in tokens.
    pub(super) max_tokens: Option<usize>,
    pub(super) lowercases: bool,
}

/// Why hidden states cannot be pooled.
#[derive(Clone, Debug)]
pub(super) enum Unusable {
    /// No file states the pooling.
    Open(Error),
    /// The modules are not supported, or their files are missing or wrong.
    Modules(Error),
}

impl ModuleList {
    /// Reads the modules of a model whose config.json is `config`. `name` is its name on the hub, or that of its folder.
    ///
    /// # Errors
    /// `Corrupt` when a file is not JSON, `Invalid` for a field with an invalid value; the error names file and field.
    pub(super) fn read(files: &dyn ModelFiles, config: &Value, name: &str) -> Result<Self> {
        let mut this = Self {
            on_tokens: Vec::new(),
            poolings: vec![Pooling::Mean],
            pools_prompt: true,
            on_text: Vec::new(),
            unusable: None,
            input: None,
            notice: None,
            max_tokens: None,
            lowercases: false,
        };
        match find_json(files, MODULES_FILE)? {
            None => this.read_without_list(files, config, name)?,
            Some(listed) => {
                this.read_listed(files, &listed).map_err(|error| match error.file() {
                    None => error.in_file(files.path(MODULES_FILE)),
                    Some(_) => error,
                })?;
            }
        }
        Ok(this)
    }

    fn read_without_list(&mut self, files: &dyn ModelFiles, config: &Value, name: &str) -> Result<()> {
        self.on_text = vec![Module::Normalize];
        for later in LATER_MODULES {
            if find_json(files, later)?.is_some() {
                let message = format!("the folder has {later}, and no modules.json that says where it applies");
                self.refuse(files, Error::unsupported(message));
                return Ok(());
            }
        }
        if self.read_pooling(files, POOLING_FOLDER)? {
            return Ok(());
        }
        match known_pooling::of(config, name) {
            Known::ByName(pooling, notice) => {
                self.poolings = pooling_named(pooling).into_iter().collect();
                self.notice = Some(notice);
            }
            Known::Nothing(field, message) => {
                self.unusable = Some(Unusable::Open(Error::invalid(message).in_field(field)));
            }
        }
        Ok(())
    }

    /// Notes why the modules cannot be applied, unless there is a reason already.
    fn refuse(&mut self, files: &dyn ModelFiles, error: Error) {
        let error = match error.file() {
            Some(_) => error,
            None => error.in_file(files.path(MODULES_FILE)),
        };
        let way_out = format!("{}; export the graph with an output sentence_embedding", error.message());
        let mut refused = Error::new(error.kind(), way_out);
        if let Some(file) = error.file() {
            refused = refused.in_file(file);
        }
        if let Some(field) = error.field() {
            refused = refused.in_field(field);
        }
        self.unusable.get_or_insert(Unusable::Modules(refused));
    }

    fn read_listed(&mut self, files: &dyn ModelFiles, listed: &Value) -> Result<()> {
        let modules = listed.as_array().filter(|modules| (1..=MODULES_MAX).contains(&modules.len()));
        let modules =
            modules.ok_or_else(|| Error::invalid(format!("a list of 1 to {MODULES_MAX} modules is required")))?;
        let mut is_pooled = false;
        let mut folders = BTreeSet::new();
        for (index, module) in modules.iter().enumerate() {
            let field = |name: &str| format!("[{index}].{name}");
            let text = |name: &str| {
                let text = module.get(name).and_then(Value::as_str);
                text.ok_or_else(|| Error::invalid("a string is required").in_field(field(name)))
            };
            let path = folder_of(text("path")?).map_err(|error| error.in_field(field("path")))?;
            let named = text("type")?;
            let class = named.rsplit('.').next().unwrap_or_default();
            // One folder for several modules would multiply the memory of its weights.
            if WITH_WEIGHTS.contains(&class) && !folders.insert(path) {
                return Err(Error::invalid(format!("two modules have the folder {path:?}")).in_field(field("path")));
            }
            let refused = |reason: String| Error::unsupported(reason).in_field(field("type"));
            if !named.starts_with(PACKAGE) && !KNOWN_CODE.contains(&named) {
                self.refuse(files, refused(format!("{named} is code of the model, which is not run")));
                continue;
            }
            match class {
                "Transformer" if index == 0 => {
                    let read = Transformer::read(files, &file_in(path, "sentence_bert_config.json"))?;
                    (self.max_tokens, self.lowercases, self.input) = (read.max_tokens, read.lowercases, read.input);
                    if let Some(error) = read.output {
                        self.refuse(files, error);
                    }
                }
                "Pooling" if index > 0 && !is_pooled => {
                    is_pooled = true;
                    if !self.read_pooling(files, path)? {
                        let message = format!("{} is missing", file_in(path, "config.json"));
                        self.refuse(files, Error::unsupported(message));
                    }
                }
                // Dropout is active in training only.
                "Dropout" if is_pooled => {}
                _ if index == 0 => self.refuse(files, refused(format!("module 0 ({class}) is not supported"))),
                _ => match Module::read(files, path, class) {
                    Ok(Some((Vectors::Text, module))) if is_pooled => self.on_text.push(module),
                    Ok(Some((Vectors::Tokens, module))) if !is_pooled => self.on_tokens.push(module),
                    // Neither changes the embedding: there is none yet, or it was made from the tokens before.
                    Ok(Some((_, Module::Normalize))) | Ok(Some((Vectors::Tokens, _))) => {}
                    Ok(_) => self.refuse(files, refused(format!("module {index} ({class}) is not supported here"))),
                    Err(error) => self.refuse(files, error),
                },
            }
        }
        if !is_pooled {
            self.refuse(files, Error::unsupported("a list of modules without pooling is not supported"));
        }
        Ok(())
    }

    /// Whether the folder has the configuration of the pooling.
    fn read_pooling(&mut self, files: &dyn ModelFiles, folder: &str) -> Result<bool> {
        let name = file_in(folder, "config.json");
        let Some(config) = find_json(files, &name)? else { return Ok(false) };
        let invalid = |field: &str, message: String| Error::invalid(message).in_file(files.path(&name)).in_field(field);
        let in_file = |error: Error| error.in_file(files.path(&name));
        let known =
            |name: &str| pooling_named(name).ok_or_else(|| invalid("pooling_mode", format!("{name:?} is not known")));
        self.poolings = match config.get("pooling_mode") {
            Some(Value::String(name)) => vec![known(name)?],
            Some(Value::Array(names)) if (1..=POOLINGS.len()).contains(&names.len()) => {
                names.iter().map(|name| known(name.as_str().unwrap_or_default())).collect::<Result<_>>()?
            }
            Some(_) => return Err(invalid("pooling_mode", "a name or a list of names is required".into())),
            None => {
                let mut set = Vec::new();
                for name in config.as_object().into_iter().flatten().map(|(name, _)| name.as_str()) {
                    if name.starts_with("pooling_mode_") && flag(&config, name, false).map_err(in_file)? {
                        set.push(name);
                    }
                }
                if let Some(other) = set.iter().find(|name| !POOLINGS.iter().any(|(_, flag, _)| flag == *name)) {
                    return Err(invalid(other, "this pooling is not known".into()));
                }
                let on = POOLINGS.iter().filter(|(_, flag, _)| set.contains(flag)).map(|(.., pooling)| *pooling);
                let on: Vec<Pooling> = on.collect();
                if on.is_empty() {
                    let message = "no pooling is set; write {\"pooling_mode\": \"mean\"}, or another name";
                    return Err(invalid("pooling_mode", message.into()));
                }
                on
            }
        };
        self.pools_prompt = flag(&config, "include_prompt", true).map_err(in_file)?;
        Ok(true)
    }
}
