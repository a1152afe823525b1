use super::known_pooling::{self, Known};
use super::pooling::{POOLINGS, Pooling, normalized, pool_once, pooling_named};
use super::positions::position_limit;
use crate::files::{ModelFiles, find_json};
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;

const MODULES_FILE: &str = "modules.json";
/// The most modules in a modules.json.
const MODULES_MAX: usize = 64;
/// The most prompts of a model.
const PROMPTS_MAX: usize = 1024;
/// The folder of the pooling configuration, unless modules.json names another.
const POOLING_FOLDER: &str = "1_Pooling";
/// Configurations of modules that change an embedding, as sentence-transformers names their folders.
const LATER_MODULES: [&str; 2] = ["2_Dense/config.json", "3_Dense/config.json"];

/// From hidden states to a sentence embedding, as the files of sentence-transformers configure it: modules.json, the
/// files of the modules, sentence_bert_config.json and config_sentence_transformers.json. Without these files, the pooling is
/// the user's, or that which the model's name stands for, with a notice; the embedding is scaled to length 1.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceProcessor {
    poolings: Vec<Pooling>,
    normalizes: bool,
    /// Why the modules cannot be applied. It is an error unless the graph has the embedding as an output.
    unusable: Option<Unusable>,
    /// How the pooling was found, if no file states it.
    notice: Option<String>,
    prompts: BTreeMap<String, String>,
    /// The name of the prompt that applies when the user names none.
    default_prompt: Option<String>,
    pools_prompt: bool,
    /// The length that sentence_bert_config.json sets, in tokens.
    max_tokens: Option<usize>,
    /// The most tokens that the positions of the encoder allow.
    positions: Option<usize>,
    lowercases: bool,
    /// The number of dimensions of the embedding, if it is truncated.
    truncate_dim: Option<usize>,
}

/// Why hidden states cannot be pooled.
#[derive(Clone, Debug, PartialEq)]
enum Unusable {
    /// No file states the pooling: the field, and the message.
    Open(&'static str, String),
    /// The modules are not supported.
    Modules(String),
}

impl SentenceProcessor {
    /// Reads the files of a model whose config.json is `config`. `name` is its name on the hub, or that of its folder.
    ///
    /// # Errors
    /// `Corrupt` when a file is not JSON, `Invalid` for a field with an invalid value; the error names file and field.
    pub fn open(files: &dyn ModelFiles, config: &Value, name: &str) -> Result<Self> {
        let mut this = Self {
            poolings: vec![Pooling::Mean],
            normalizes: true,
            unusable: None,
            notice: None,
            prompts: BTreeMap::new(),
            default_prompt: None,
            pools_prompt: true,
            max_tokens: None,
            positions: position_limit(config),
            lowercases: false,
            truncate_dim: None,
        };
        match find_json(files, MODULES_FILE)? {
            None => this.read_without_modules(files, config, name)?,
            Some(listed) => {
                this.read_modules(files, &listed).map_err(|error| match error.file() {
                    None => error.in_file(files.path(MODULES_FILE)),
                    Some(_) => error,
                })?;
            }
        }
        this.read_prompts(files)?;
        Ok(this)
    }

    /// The most tokens of a text; `tokenizer` is the limit of the tokenizer. A limit of sentence-transformers replaces
    /// it. The positions are a limit in any case.
    pub fn max_tokens(&self, tokenizer: Option<usize>) -> Option<usize> {
        self.max_tokens.or(tokenizer).into_iter().chain(self.positions).min()
    }

    /// This processor with a pooling that a user chose, in place of that of the files.
    ///
    /// # Errors
    /// `Invalid` for an unknown name; the message lists the names.
    pub fn with_pooling(mut self, name: &str) -> Result<Self> {
        let Some(pooling) = pooling_named(name) else {
            let known: Vec<&str> = POOLINGS.iter().map(|(known, ..)| *known).collect();
            let message = format!("{name:?} is no pooling; known: {}", known.join(", "));
            return Err(Error::invalid(message).in_field("pooling"));
        };
        self.poolings = vec![pooling];
        self.notice = None;
        self.unusable = self.unusable.filter(|reason| !matches!(reason, Unusable::Open(..)));
        Ok(self)
    }

    /// What each embedding of hidden states has to say: how the pooling was found, if no file states it.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Whether texts are converted to lower case.
    pub fn lowercases(&self) -> bool {
        self.lowercases
    }

    /// The text before each text: the prompt of this name in config_sentence_transformers.json, or its default prompt.
    /// As in sentence-transformers, each model has the prompts `query` and `document`; `document` is also found as
    /// `passage` or `corpus`. They are empty unless the file has them.
    ///
    /// # Errors
    /// `Invalid` for a name that the file does not have; the message lists the names.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        let candidates: &[&str] = if name == "document" { &["document", "passage", "corpus"] } else { &[name] };
        match candidates.iter().find_map(|name| self.prompts.get(*name)) {
            Some(prompt) => Ok(prompt),
            None if ["query", "document"].contains(&name) => Ok(""),
            None => {
                let known: Vec<&str> = self.prompts.keys().map(String::as_str).take(PROMPTS_MAX).collect();
                let message = format!("the model has no prompt {name:?}; it has: {}", known.join(", "));
                Err(Error::invalid(message).in_field("prompt_name"))
            }
        }
    }

    /// The embedding of one text. `rows` has a row of `width` elements for each token; rows with a `mask` of 0 are
    /// padding. The first `prompt_tokens` rows belong to the prompt.
    ///
    /// # Errors
    /// `Unsupported` when modules.json lists an unsupported module or one whose configuration is missing, `Invalid` when nothing
    /// states the pooling, and when no token is left.
    pub fn pool(&self, rows: &[f32], width: usize, mask: &[i64], prompt_tokens: usize) -> Result<Vec<f32>> {
        match &self.unusable {
            None => {}
            Some(Unusable::Open(field, message)) => return Err(Error::invalid(message.as_str()).in_field(*field)),
            Some(Unusable::Modules(reason)) => {
                let message = format!("{reason}; export the graph with an output sentence_embedding");
                return Err(Error::unsupported(message).in_field(MODULES_FILE));
            }
        }
        let skipped = if self.pools_prompt { 0 } else { prompt_tokens };
        let counted: Vec<(usize, &[f32])> = (0..mask.len())
            .zip(rows.chunks_exact(width))
            .filter(|&(at, _)| mask[at] != 0 && at >= skipped)
            .map(|(at, row)| (at + 1, row))
            .collect();
        let mut pooled = Vec::with_capacity(width * self.poolings.len());
        for pooling in &self.poolings {
            pooled.extend(
                pool_once(*pooling, &counted, width)
                    .ok_or_else(|| Error::invalid("the text has no token for an embedding").in_field("text"))?,
            );
        }
        if self.normalizes {
            pooled = normalized(&pooled);
        }
        self.truncate(&mut pooled);
        Ok(pooled)
    }

    /// Truncates an embedding to the configured number of dimensions.
    pub fn truncate(&self, embedding: &mut Vec<f32>) {
        embedding.truncate(self.truncate_dim.unwrap_or(usize::MAX));
    }

    fn read_without_modules(&mut self, files: &dyn ModelFiles, config: &Value, name: &str) -> Result<()> {
        // Modules after the pooling.
        for later in LATER_MODULES {
            if find_json(files, later)?.is_some() {
                let message = format!("the folder has {later}, and no modules.json that says where it applies");
                self.unusable = Some(Unusable::Modules(message));
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
            Known::Nothing(field, message) => self.unusable = Some(Unusable::Open(field, message)),
        }
        Ok(())
    }

    fn read_modules(&mut self, files: &dyn ModelFiles, listed: &Value) -> Result<()> {
        let modules = listed.as_array().filter(|modules| (1..=MODULES_MAX).contains(&modules.len()));
        let modules =
            modules.ok_or_else(|| Error::invalid(format!("a list of 1 to {MODULES_MAX} modules is required")))?;
        self.normalizes = false;
        let mut pooled = false;
        for (index, module) in modules.iter().enumerate() {
            let field = |name: &str| format!("[{index}].{name}");
            let text = |name: &str| {
                let text = module.get(name).and_then(Value::as_str);
                text.ok_or_else(|| Error::invalid("a string is required").in_field(field(name)))
            };
            let path = text("path")?;
            if path.contains(['/', '\\', '\0']) || path.starts_with('.') {
                return Err(Error::invalid(format!("{path:?} is not a plain folder name")).in_field(field("path")));
            }
            let class = text("type")?.rsplit('.').next().unwrap_or_default();
            match class {
                "Transformer" if index == 0 => self.read_limits(files, &file_in(path, "sentence_bert_config.json"))?,
                "Pooling" if index > 0 && !pooled => {
                    pooled = true;
                    if !self.read_pooling(files, path)? {
                        let message = format!("{} is missing", file_in(path, "config.json"));
                        self.unusable = Some(Unusable::Modules(message));
                    }
                }
                "Normalize" if pooled && normalizes_embedding(files, path)? => self.normalizes = true,
                // Dropout is active in training only.
                "Dropout" if pooled => {}
                _ => self.unusable = Some(Unusable::Modules(format!("module {index} ({class}) is not supported"))),
            }
        }
        if !pooled && self.unusable.is_none() {
            self.unusable = Some(Unusable::Modules("a list of modules without pooling is not supported".into()));
        }
        Ok(())
    }

    /// Whether the folder has the configuration of the pooling.
    fn read_pooling(&mut self, files: &dyn ModelFiles, folder: &str) -> Result<bool> {
        let name = file_in(folder, "config.json");
        let Some(config) = find_json(files, &name)? else { return Ok(false) };
        let invalid = |field: &str, message: String| Error::invalid(message).in_file(files.path(&name)).in_field(field);
        let known =
            |name: &str| pooling_named(name).ok_or_else(|| invalid("pooling_mode", format!("{name:?} is not known")));
        self.poolings = match config.get("pooling_mode") {
            Some(Value::String(name)) => vec![known(name)?],
            Some(Value::Array(names)) if (1..=POOLINGS.len()).contains(&names.len()) => {
                names.iter().map(|name| known(name.as_str().unwrap_or_default())).collect::<Result<_>>()?
            }
            Some(_) => return Err(invalid("pooling_mode", "a name or a list of names is required".into())),
            None => {
                let flags = config.as_object().into_iter().flatten();
                let set: Vec<&str> = flags
                    .filter(|(name, value)| name.starts_with("pooling_mode_") && value.as_bool() != Some(false))
                    .map(|(name, _)| name.as_str())
                    .collect();
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
        self.pools_prompt = config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true);
        Ok(true)
    }

    fn read_limits(&mut self, files: &dyn ModelFiles, name: &str) -> Result<()> {
        let Some(config) = find_json(files, name)? else { return Ok(()) };
        self.max_tokens = count(&config, "max_seq_length").map_err(|error| error.in_file(files.path(name)))?;
        self.lowercases = config.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false);
        Ok(())
    }

    fn read_prompts(&mut self, files: &dyn ModelFiles) -> Result<()> {
        const FILE: &str = "config_sentence_transformers.json";
        let Some(config) = find_json(files, FILE)? else { return Ok(()) };
        let path = files.path(FILE);
        let invalid = |field: &str, message: String| Error::invalid(message).in_file(&path).in_field(field);
        self.truncate_dim = count(&config, "truncate_dim").map_err(|error| error.in_file(&path))?;
        let prompts = config.get("prompts").and_then(Value::as_object);
        if prompts.is_some_and(|prompts| prompts.len() > PROMPTS_MAX) {
            return Err(invalid("prompts", format!("at most {PROMPTS_MAX} prompts are supported")));
        }
        for (name, prompt) in prompts.into_iter().flatten() {
            let prompt = match prompt {
                Value::Null => String::new(),
                Value::String(prompt) => prompt.clone(),
                _ => return Err(invalid("prompts", format!("the prompt {name:?} is not a string"))),
            };
            self.prompts.insert(name.clone(), prompt);
        }
        self.default_prompt = config.get("default_prompt_name").and_then(Value::as_str).map(str::to_owned);
        self.prompt(None).map(drop).map_err(|error| invalid("default_prompt_name", error.message().to_owned()))
    }
}

/// A positive number that may be absent or null.
fn count(config: &Value, field: &str) -> Result<Option<usize>> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let count = value.as_u64().filter(|&count| count > 0).and_then(|count| usize::try_from(count).ok());
            count.map(Some).ok_or_else(|| Error::invalid(format!("{value} is not a positive number")).in_field(field))
        }
    }
}

/// Whether a normalization module applies to the embedding, not to the tokens.
fn normalizes_embedding(files: &dyn ModelFiles, folder: &str) -> Result<bool> {
    let config = find_json(files, &file_in(folder, "config.json"))?.unwrap_or_default();
    let named = ["module_input_name", "module_output_name"].map(|field| config.get(field).and_then(Value::as_str));
    Ok(named.into_iter().flatten().all(|name| name == "sentence_embedding"))
}

/// The name of a file in `folder`; an empty `folder` is the model's folder.
fn file_in(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") }
}
