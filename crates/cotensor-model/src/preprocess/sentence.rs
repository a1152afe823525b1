//! From hidden states to a sentence embedding, as the files of sentence-transformers in a model's folder say.

use crate::folder::find_json;
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// The most modules that a modules.json may list.
const MODULES_MAX: usize = 64;
/// Where the pooling is configured when modules.json does not say where.
const POOLING_FOLDER: &str = "1_Pooling";

/// How one vector is made of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    /// The first token.
    Cls,
    /// The largest value of each dimension.
    Max,
    Mean,
    /// The sum over the square root of the count.
    MeanSqrtLen,
    /// The mean, later tokens counting for more: weights 1, 2, 3 and so on.
    WeightedMean,
    LastToken,
}

/// The names in `pooling_mode`, and the older flags, in the order in which several are put together.
const POOLINGS: [(&str, &str, Pooling); 6] = [
    ("cls", "pooling_mode_cls_token", Pooling::Cls),
    ("max", "pooling_mode_max_tokens", Pooling::Max),
    ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", Pooling::LastToken),
];

/// What modules.json, the modules' own files, sentence_bert_config.json and config_sentence_transformers.json say. A folder
/// without them gets the mean over tokens, scaled to length 1.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceProcessor {
    poolings: Vec<Pooling>,
    normalizes: bool,
    /// A module that only a graph of its own could run, which is an error unless the graph gives the embedding itself.
    unknown_module: Option<String>,
    prompt: String,
    pools_prompt: bool,
    /// The length that sentence_bert_config.json sets, in tokens.
    max_tokens: Option<usize>,
    /// How many positions the model has, where modules.json is there and config.json says.
    positions: Option<usize>,
    lowercases: bool,
    /// Dimensions that are kept.
    truncate_dim: Option<usize>,
}

impl SentenceProcessor {
    /// Reads the files of a folder whose config.json is `config`.
    ///
    /// # Errors
    /// `Corrupt` for no JSON, `Invalid` for a field that makes no sense, naming file and field.
    pub fn open(folder: &Path, config: &Value) -> Result<Self> {
        let mut this = Self {
            poolings: vec![Pooling::Mean],
            normalizes: true,
            unknown_module: None,
            prompt: String::new(),
            pools_prompt: true,
            max_tokens: None,
            positions: None,
            lowercases: false,
            truncate_dim: None,
        };
        let modules = folder.join("modules.json");
        match find_json(&modules)? {
            None => this.read_pooling(&folder.join(POOLING_FOLDER))?,
            Some(listed) => {
                this.read_modules(folder, &listed).map_err(|error| match error.file() {
                    None => error.in_file(&modules),
                    Some(_) => error,
                })?;
                let positions = config.get("max_position_embeddings").and_then(Value::as_u64);
                this.positions = positions.and_then(|positions| usize::try_from(positions).ok());
            }
        }
        this.read_prompt(&folder.join("config_sentence_transformers.json"))?;
        Ok(this)
    }

    /// The most tokens of a text that are read, given how many the `tokenizer` reads. A length of sentence-transformers' own
    /// replaces the tokenizer's; without one, a model reads no more tokens than it has positions.
    pub(crate) fn max_tokens(&self, tokenizer: Option<usize>) -> Option<usize> {
        self.max_tokens.or(match (tokenizer, self.positions) {
            (Some(tokenizer), Some(positions)) => Some(tokenizer.min(positions)),
            (tokenizer, positions) => tokenizer.or(positions),
        })
    }

    /// Whether texts are put in lower case first.
    pub(crate) fn lowercases(&self) -> bool {
        self.lowercases
    }

    /// What is put before every text.
    pub(crate) fn prompt(&self) -> &str {
        &self.prompt
    }

    /// The embedding of one text: `rows` of `width` elements, of which those count whose `mask` is not 0. The first
    /// `prompt_tokens` of them belong to the prompt.
    ///
    /// # Errors
    /// `Unsupported` when modules.json lists one that is not known here.
    pub fn pool(&self, rows: &[f32], width: usize, mask: &[i32], prompt_tokens: usize) -> Result<Vec<f32>> {
        if let Some(module) = &self.unknown_module {
            let message = format!("{module} is not supported; export the graph with an output sentence_embedding");
            return Err(Error::unsupported(message).in_field("modules.json"));
        }
        let first = mask.iter().position(|&keep| keep != 0).unwrap_or(0);
        let skipped = if self.pools_prompt { 0 } else { prompt_tokens };
        let counted: Vec<(usize, &[f32])> = (0..mask.len())
            .zip(rows.chunks_exact(width))
            .filter(|&(at, _)| mask[at] != 0 && at >= first + skipped)
            .map(|(at, row)| (at - first + 1, row))
            .collect();
        let mut pooled = Vec::with_capacity(width * self.poolings.len());
        for pooling in &self.poolings {
            pooled.extend(
                pool_once(*pooling, &counted, width)
                    .ok_or_else(|| Error::invalid("no token is left to make an embedding of").in_field("text"))?,
            );
        }
        if self.normalizes {
            pooled = crate::pipeline::normalized(&pooled);
        }
        self.truncate(&mut pooled);
        Ok(pooled)
    }

    /// Drops the dimensions that are not wanted.
    pub(crate) fn truncate(&self, embedding: &mut Vec<f32>) {
        embedding.truncate(self.truncate_dim.unwrap_or(usize::MAX));
    }

    fn read_modules(&mut self, folder: &Path, listed: &Value) -> Result<()> {
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
            let (class, place) = (text("type")?.rsplit('.').next().unwrap_or_default(), folder.join(path));
            match class {
                "Transformer" if index == 0 => self.read_limits(&place.join("sentence_bert_config.json"))?,
                "Pooling" if index > 0 && !pooled => {
                    pooled = true;
                    self.read_pooling(&place)?;
                }
                "Normalize" if pooled && normalizes_embedding(&place)? => self.normalizes = true,
                // Active in training only.
                "Dropout" if pooled => {}
                _ => self.unknown_module = Some(format!("module {index} ({class})")),
            }
        }
        if !pooled && self.unknown_module.is_none() {
            self.unknown_module = Some("a list of modules without pooling".into());
        }
        Ok(())
    }

    fn read_pooling(&mut self, place: &Path) -> Result<()> {
        let path = place.join("config.json");
        let Some(config) = find_json(&path)? else { return Ok(()) };
        let invalid = |field: &str, message: String| Error::invalid(message).in_file(&path).in_field(field);
        let known = |name: &str| {
            let found = POOLINGS.iter().find(|(known, ..)| *known == name).map(|(.., pooling)| *pooling);
            found.ok_or_else(|| invalid("pooling_mode", format!("{name:?} is not known")))
        };
        self.poolings = match config.get("pooling_mode") {
            Some(Value::String(name)) => vec![known(name)?],
            Some(Value::Array(names)) if (1..=POOLINGS.len()).contains(&names.len()) => {
                names.iter().map(|name| known(name.as_str().unwrap_or_default())).collect::<Result<_>>()?
            }
            Some(_) => return Err(invalid("pooling_mode", "a name or a list of names is required".into())),
            None => {
                let on = |flag: &str| config.get(flag).and_then(Value::as_bool).unwrap_or(false);
                let on = POOLINGS.iter().filter(|(_, flag, _)| on(flag)).map(|(.., pooling)| *pooling);
                let on: Vec<Pooling> = on.collect();
                if on.is_empty() { vec![Pooling::Mean] } else { on }
            }
        };
        self.pools_prompt = config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true);
        Ok(())
    }

    fn read_limits(&mut self, path: &Path) -> Result<()> {
        let Some(config) = find_json(path)? else { return Ok(()) };
        self.max_tokens = count(&config, "max_seq_length").map_err(|error| error.in_file(path))?;
        self.lowercases = config.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false);
        Ok(())
    }

    fn read_prompt(&mut self, path: &Path) -> Result<()> {
        let Some(config) = find_json(path)? else { return Ok(()) };
        self.truncate_dim = count(&config, "truncate_dim").map_err(|error| error.in_file(path))?;
        let Some(name) = config.get("default_prompt_name").and_then(Value::as_str) else { return Ok(()) };
        let prompt = config.get("prompts").and_then(|prompts| prompts.get(name)).and_then(Value::as_str);
        let prompt = prompt.ok_or_else(|| {
            Error::invalid(format!("there is no prompt {name:?}")).in_file(path).in_field("default_prompt_name")
        })?;
        prompt.clone_into(&mut self.prompt);
        Ok(())
    }
}

/// A count that may be absent or null.
fn count(config: &Value, field: &str) -> Result<Option<usize>> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let count = value.as_u64().filter(|&count| count > 0).and_then(|count| usize::try_from(count).ok());
            count.map(Some).ok_or_else(|| Error::invalid(format!("{value} is no count")).in_field(field))
        }
    }
}

/// Whether a normalization module is about the embedding: it may be about tokens.
fn normalizes_embedding(place: &Path) -> Result<bool> {
    let config = find_json(&place.join("config.json"))?.unwrap_or_default();
    let named = ["module_input_name", "module_output_name"].map(|field| config.get(field).and_then(Value::as_str));
    Ok(named.into_iter().flatten().all(|name| name == "sentence_embedding"))
}

/// Pools rows, each with its weight for a weighted mean. `None` without rows.
fn pool_once(pooling: Pooling, rows: &[(usize, &[f32])], width: usize) -> Option<Vec<f32>> {
    let sum = |weight: fn(usize) -> f32| {
        let mut sum = vec![0f32; width];
        for (position, row) in rows {
            sum.iter_mut().zip(*row).for_each(|(sum, value)| *sum += value * weight(*position));
        }
        let weights: f32 = rows.iter().map(|(position, _)| weight(*position)).sum();
        (sum, weights)
    };
    let over = |(sum, by): (Vec<f32>, f32)| sum.into_iter().map(|value| value / by).collect::<Vec<f32>>();
    let (first, last) = (rows.first()?, rows.last()?);
    Some(match pooling {
        Pooling::Cls => first.1.to_vec(),
        Pooling::LastToken => last.1.to_vec(),
        Pooling::Max => {
            let mut largest = vec![f32::NEG_INFINITY; width];
            for (_, row) in rows {
                largest.iter_mut().zip(*row).for_each(|(largest, value)| *largest = largest.max(*value));
            }
            largest
        }
        Pooling::Mean => over(sum(|_| 1.0)),
        Pooling::MeanSqrtLen => {
            let (sum, count) = sum(|_| 1.0);
            over((sum, count.sqrt()))
        }
        Pooling::WeightedMean => over(sum(|position| position as f32)),
    })
}
