use crate::files::{ModelFiles, find_json};
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::path::PathBuf;

/// The function from the logit of a cross-encoder to its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreFunction {
    /// The logit itself.
    Identity,
    /// A probability, 0 to 1.
    Sigmoid,
}

impl ScoreFunction {
    /// The function that sentence-transformers' `CrossEncoder` applies for a model with one label: `activation_fn` of
    /// config_sentence_transformers.json, else `sentence_transformers.activation_fn` of config.json, else its former
    /// name `sbert_ce_default_activation_function`. Without a name, or for a class outside of torch, it is the sigmoid.
    /// `config` is the content of config.json.
    ///
    /// # Errors
    /// `Corrupt` when a file is not JSON, `Unsupported` for another function; the error names file and field.
    pub fn open(files: &dyn ModelFiles, config: &Value) -> Result<Self> {
        const FILE: &str = "config_sentence_transformers.json";
        const FIELD: &str = "activation_fn";
        const FORMER: &str = "sbert_ce_default_activation_function";
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let own = find_json(files, FILE)?.unwrap_or_default();
        let named: [(Option<String>, &str, &str); 3] = [
            (text(own.get(FIELD)), FILE, FIELD),
            (text(config.get("sentence_transformers").and_then(|own| own.get(FIELD))), "config.json", FIELD),
            (text(config.get(FORMER)), "config.json", FORMER),
        ];
        let trusted =
            |(name, ..): &&(Option<String>, &str, &str)| name.as_ref().is_some_and(|n| n.starts_with("torch."));
        let Some((Some(name), file, field)) = named.iter().find(trusted) else { return Ok(Self::Sigmoid) };
        match name.rsplit('.').next() {
            Some("Identity") => Ok(Self::Identity),
            Some("Sigmoid") => Ok(Self::Sigmoid),
            _ => {
                let path: PathBuf = files.path(file);
                let message = format!("{name} is not supported; Identity and Sigmoid are");
                Err(Error::unsupported(message).in_file(path).in_field(*field))
            }
        }
    }

    /// The score of a logit.
    pub fn score(self, logit: f32) -> f32 {
        match self {
            Self::Identity => logit,
            Self::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::HashMap;

    #[test]
    fn function_is_read_from_the_files_of_sentence_transformers() {
        let none = HashMap::new();
        let open = |config: Value| ScoreFunction::open(&none, &config);
        assert_eq!(open(json!({})).unwrap(), ScoreFunction::Sigmoid);
        let identity = "torch.nn.modules.linear.Identity";
        assert_eq!(open(json!({"sbert_ce_default_activation_function": identity})).unwrap(), ScoreFunction::Identity);
        let newer = json!({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
            "sbert_ce_default_activation_function": identity});
        assert_eq!(open(newer).unwrap(), ScoreFunction::Sigmoid);
        // Code of a model is not run: the default applies, as in sentence-transformers.
        assert_eq!(
            open(json!({"sentence_transformers": {"activation_fn": "own.Scale"}})).unwrap(),
            ScoreFunction::Sigmoid
        );
        let error = open(json!({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}})).unwrap_err();
        assert_eq!(error.field(), Some("activation_fn"), "{error}");
        let name = "config_sentence_transformers.json".to_owned();
        let files = HashMap::from([(name, json!({"activation_fn": identity}).to_string().into_bytes())]);
        assert_eq!(ScoreFunction::open(&files, &json!({})).unwrap(), ScoreFunction::Identity);
        assert_eq!((ScoreFunction::Identity.score(-2.0), ScoreFunction::Sigmoid.score(0.0)), (-2.0, 0.5));
    }
}
