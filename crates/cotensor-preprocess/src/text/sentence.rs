use super::fields::count;
use super::module_list::{ModuleList, Unusable};
use super::modules::Module;
use super::pooling::{POOLINGS, pool_once, pooling_named};
use super::positions::position_limit;
use crate::family::CONFIG_FILE;
use crate::files::{ModelFiles, find_json};
use cotensor_core::{ContentHash, Error, ErrorKind, Hasher, Result};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The most prompts of a model.
const PROMPTS_MAX: usize = 1024;
/// The names under which a prompt or a task is found, in this order, beside its own name.
const ALIASES: [(&str, &[&str]); 2] =
    [("query", &["query", "retrieval.query"]), ("document", &["document", "passage", "corpus", "retrieval.passage"])];
/// The argument with the name of a prompt.
const PROMPT_NAME: &str = "prompt_name";
/// The tasks of a model, and the texts before the texts of each.
const TASKS: &str = "lora_adaptations";
const TASK_PROMPTS: &str = "task_instructions";

/// From hidden states to a sentence embedding, as the files of sentence-transformers configure it: modules.json, the
/// files of the modules, sentence_bert_config.json and config_sentence_transformers.json. Without these files, the pooling is
/// the user's, or that which the model's name stands for, with a notice; the embedding is scaled to length 1.
#[derive(Clone, Debug)]
pub struct SentenceProcessor {
    modules: ModuleList,
    prompts: BTreeMap<String, String>,
    /// The name of the prompt that applies when the user names none.
    default_prompt: Option<String>,
    /// The most tokens that the positions of the encoder allow.
    positions: Option<usize>,
    /// The number of dimensions of the embedding, if it is truncated.
    truncate_dim: Option<usize>,
    /// The tasks for which the model has weights of their own (`lora_adaptations`), in the order of their numbers.
    tasks: Vec<String>,
    /// The path of config.json.
    config: PathBuf,
}

impl SentenceProcessor {
    /// Reads the files of a model whose config.json is `config`. `name` is its name on the hub, or that of its folder.
    ///
    /// # Errors
    /// `Corrupt` when a file is not JSON, `Invalid` for a field with an invalid value, and as [`position_limit`]; the error
    /// names file and field.
    pub fn open(files: &dyn ModelFiles, config: &Value, name: &str) -> Result<Self> {
        let mut this = Self {
            modules: ModuleList::read(files, config, name)?,
            prompts: BTreeMap::new(),
            default_prompt: None,
            positions: position_limit(config).map_err(|error| error.in_file(files.path(CONFIG_FILE)))?,
            truncate_dim: None,
            tasks: Vec::new(),
            config: files.path(CONFIG_FILE),
        };
        this.read_tasks(config).map_err(|error| error.in_file(files.path(CONFIG_FILE)))?;
        this.read_prompts(files)?;
        Ok(this)
    }

    /// The most tokens of a text; `tokenizer` is the limit of the tokenizer. A limit of sentence-transformers replaces
    /// it. The positions are a limit in any case.
    pub fn max_tokens(&self, tokenizer: Option<usize>) -> Option<usize> {
        self.modules.max_tokens.or(tokenizer).into_iter().chain(self.positions).min()
    }

    /// This processor with a pooling that a user chose, in place of that of the files.
    ///
    /// # Errors
    /// `Invalid` for an unknown name; the message lists the names.
    pub fn with_pooling(mut self, name: &str) -> Result<Self> {
        let Some(pooling) = pooling_named(name) else {
            let known: Vec<&str> = POOLINGS.iter().map(|(known, ..)| *known).collect();
            let message = format!("{name:?} is not a pooling; known: {}", known.join(", "));
            return Err(Error::invalid(message).in_field("pooling"));
        };
        self.modules.poolings = vec![pooling];
        self.modules.notice = None;
        self.modules.unusable = self.modules.unusable.filter(|reason| !matches!(reason, Unusable::Open(_)));
        Ok(self)
    }

    /// Refuses a model whose texts are tokenized in a way that is not supported.
    ///
    /// # Errors
    /// `Unsupported`; the error names file and field.
    pub fn check_input(&self) -> Result<()> {
        self.modules.input.clone().map_or(Ok(()), Err)
    }

    /// What each embedding of hidden states has to say: how the pooling was found, if no file states it.
    pub fn notice(&self) -> Option<&str> {
        self.modules.notice.as_deref()
    }

    /// Whether texts are converted to lower case.
    pub fn lowercases(&self) -> bool {
        self.modules.lowercases
    }

    /// The text before each text: the prompt of this name in config_sentence_transformers.json, or its default prompt.
    /// As in sentence-transformers, each model has the prompts `query` and `document`; `document` is also found as
    /// `passage` or `corpus`. They are empty unless the file has them. In models with tasks, they are those of the tasks
    /// `retrieval.query` and `retrieval.passage`.
    ///
    /// # Errors
    /// `Invalid` for a name that the file does not have; the message lists the names.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        match candidates(&name).iter().find_map(|name| self.prompts.get(*name)) {
            Some(prompt) => Ok(prompt),
            None if ["query", "document"].contains(&name) => Ok(""),
            None => {
                let known: Vec<&str> = self.prompts.keys().map(String::as_str).take(PROMPTS_MAX).collect();
                let message = format!("the model has no prompt {name:?}; it has: {}", known.join(", "));
                Err(Error::invalid(message).in_field(PROMPT_NAME))
            }
        }
    }

    /// The number of the task that the prompt of this name, or the default prompt, belongs to: its place in `lora_adaptations`.
    /// `None` if the graph does not read it (`is_read`) and none is named.
    ///
    /// # Errors
    /// `Invalid` without a name, and for one that is not a task; the message lists the tasks. `Unsupported` for a model that names
    /// no tasks, and for a task of which a graph that does not read it may have other weights.
    pub fn task(&self, name: Option<&str>, is_read: bool) -> Result<Option<i64>> {
        let refused = |message: &str| Error::unsupported(message).in_file(&self.config).in_field(TASKS);
        let name = name.or(self.default_prompt.as_deref()).unwrap_or_default();
        let found = candidates(&name).iter().find_map(|name| self.tasks.iter().position(|task| task == name));
        match (found, is_read) {
            (None, false) => Ok(None),
            (Some(_), false) => Err(refused(
                "the graph does not read the number of a task, so that its weights are of one task that no file names; export                  it with the input task_id, or remove this list if the graph is of the task",
            )),
            (_, true) if self.tasks.is_empty() => {
                Err(refused("the graph reads the number of a task, and this list of the tasks is missing"))
            }
            (found, true) => found.and_then(|at| i64::try_from(at).ok()).map(Some).ok_or_else(|| {
                let message = format!("the model needs one of its tasks: {}", self.tasks.join(", "));
                Error::invalid(message).in_field(PROMPT_NAME)
            }),
        }
    }

    /// Hash of every setting that an embedding depends on beside its tokens; `is_pooled` tells whether the graph gives the
    /// embedding itself.
    pub fn fingerprint(&self, is_pooled: bool) -> ContentHash {
        let mut hasher = Hasher::new("cotensor sentence embedding v1");
        hasher.number(self.truncate_dim.map_or(0, |count| count as u64));
        if !is_pooled {
            let ModuleList { on_tokens, poolings, pools_prompt, on_text, .. } = &self.modules;
            hasher.field(format!("{:?}", (on_tokens, poolings, pools_prompt, on_text)).as_bytes());
        }
        hasher.finish()
    }

    /// Whether the modules can be applied; a graph that pools itself needs none.
    ///
    /// # Errors
    /// `Unsupported` when modules.json lists an unsupported module, the error of a module whose files are missing or wrong,
    /// `Invalid` when nothing states the pooling.
    pub fn check(&self) -> Result<()> {
        match &self.modules.unusable {
            Some(Unusable::Open(error) | Unusable::Modules(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The embedding of one text. `rows` has a row of `width` elements for each token; rows with a `mask` of 0 are
    /// padding. The first `prompt_tokens` rows belong to the prompt.
    ///
    /// # Errors
    /// As [`check`](Self::check); `Invalid` when no token is left, `Engine` when the numbers of the modules overflow.
    pub fn pool(&self, rows: &[f32], width: usize, mask: &[i64], prompt_tokens: usize) -> Result<Vec<f32>> {
        self.check()?;
        let (rows, width) = self.changed_tokens(rows, width)?;
        let skipped = if self.modules.pools_prompt { 0 } else { prompt_tokens };
        let counted: Vec<(usize, &[f32])> = (0..mask.len())
            .zip(rows.chunks_exact(width))
            .filter(|&(at, _)| mask[at] != 0 && at >= skipped)
            .map(|(at, row)| (at + 1, row))
            .collect();
        let mut pooled = Vec::with_capacity(width * self.modules.poolings.len());
        for pooling in &self.modules.poolings {
            pooled.extend(
                pool_once(*pooling, &counted, width)
                    .ok_or_else(|| Error::invalid("the text has no token for an embedding").in_field("text"))?,
            );
        }
        let mut pooled = applied(&self.modules.on_text, pooled)?;
        if pooled.iter().any(|value| !value.is_finite()) {
            return Err(Error::new(ErrorKind::Engine, "the numbers of the modules after the graph overflow"));
        }
        self.truncate(&mut pooled);
        Ok(pooled)
    }

    /// The vectors of the tokens after the modules before the pooling, and their width.
    fn changed_tokens<'a>(&self, rows: &'a [f32], width: usize) -> Result<(Cow<'a, [f32]>, usize)> {
        if self.modules.on_tokens.is_empty() {
            return Ok((Cow::Borrowed(rows), width));
        }
        let (mut all, mut wide) = (Vec::new(), width);
        for row in rows.chunks_exact(width) {
            let row = applied(&self.modules.on_tokens, row.to_vec())?;
            wide = row.len();
            all.extend(row);
        }
        Ok((Cow::Owned(all), wide))
    }

    /// Truncates an embedding to the configured number of dimensions.
    pub fn truncate(&self, embedding: &mut Vec<f32>) {
        embedding.truncate(self.truncate_dim.unwrap_or(usize::MAX));
    }

    fn read_tasks(&mut self, config: &Value) -> Result<()> {
        let listed = match config.get(TASKS) {
            None | Some(Value::Null) => return Ok(()),
            Some(listed) => listed.as_array().filter(|tasks| tasks.len() <= PROMPTS_MAX),
        };
        let names = listed.and_then(|tasks| tasks.iter().map(|task| task.as_str().map(str::to_owned)).collect());
        self.tasks = names.ok_or_else(|| {
            Error::invalid(format!("a list of at most {PROMPTS_MAX} strings is required")).in_field(TASKS)
        })?;
        let prompts = config.get(TASK_PROMPTS).and_then(Value::as_object).into_iter().flatten();
        for (name, prompt) in prompts.filter(|(name, _)| self.tasks.contains(name)) {
            let prompt =
                prompt.as_str().ok_or_else(|| Error::invalid("strings are required").in_field(TASK_PROMPTS))?;
            self.prompts.insert(name.clone(), prompt.to_owned());
        }
        // A task without a text has an empty prompt.
        for task in &self.tasks {
            self.prompts.entry(task.clone()).or_default();
        }
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

/// The names under which a prompt or a task is found.
fn candidates<'a>(name: &'a &'a str) -> &'a [&'a str] {
    let known = ALIASES.iter().find(|(alias, _)| alias == name);
    known.map_or(std::slice::from_ref(name), |(_, names)| names)
}

/// A vector after modules.
fn applied(modules: &[Module], vector: Vec<f32>) -> Result<Vec<f32>> {
    modules.iter().try_fold(vector, |vector, module| module.apply(&vector))
}
