//! The labels of heads.

use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{CONFIG_FILE, ModelConfig};
use serde_json::Value;

/// The file with the labels of heads. It has precedence over config.json.
pub const LABELS_FILE: &str = "labels.json";

/// The problem for which a classification head was trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// One label is right: softmax.
    SingleLabel,
    /// Each label is right or wrong by itself: sigmoid. A head with one number is of this kind.
    MultiLabel,
    /// Regression: the numbers are the answer.
    Regression,
}

/// The labels of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// A name for each number of the head.
    pub names: Vec<String>,
    /// The problem for which the head was trained.
    pub problem: Problem,
}

impl Labels {
    /// The labels of a head with `count` numbers, from `file` (the content of labels.json) or from `id2label` and
    /// `problem_type` in config.json. If neither file names labels, the names are `label 0`, `label 1` and so on.
    ///
    /// # Errors
    /// `Invalid` when a file names another number of labels, or when the head has a number for each word of the
    /// vocabulary.
    pub fn of(config: &ModelConfig<'_>, file: Option<&Value>, head: &str, count: usize) -> Result<Self> {
        let several = if count == 1 { Problem::MultiLabel } else { Problem::SingleLabel };
        if let Some(names) = file.and_then(|file| file.get(head)) {
            let names = names.as_array().into_iter().flatten().map(|name| name.as_str().map(str::to_owned));
            let names: Option<Vec<String>> = names.collect();
            let names = names.filter(|names| names.len() == count).ok_or_else(|| {
                Error::invalid(format!("a list of {count} names is required, one for each number of the head"))
                    .in_file(config.folder.join(LABELS_FILE))
                    .in_field(head)
            })?;
            return Ok(Self { names, problem: several });
        }
        let refuse = |field: &str, message: String| {
            Err(Error::invalid(message).in_file(config.folder.join(CONFIG_FILE)).in_field(field))
        };
        let problem = match config.values.get("problem_type") {
            None | Some(Value::Null) => several,
            Some(Value::String(kind)) if kind == "single_label_classification" => several,
            Some(Value::String(kind)) if kind == "multi_label_classification" => Problem::MultiLabel,
            Some(Value::String(kind)) if kind == "regression" => Problem::Regression,
            Some(other) => return refuse("problem_type", format!("{other} is not known")),
        };
        let Some(named) = config.values.get("id2label").and_then(Value::as_object) else {
            let words = config.values.get("vocab_size").and_then(Value::as_u64);
            if words == Some(count as u64) {
                let message =
                    format!("the head gives {count} numbers, one for each word: it predicts words, not labels");
                return refuse("vocab_size", message);
            }
            return Ok(Self { names: (0..count).map(|index| format!("label {index}")).collect(), problem });
        };
        if named.len() != count {
            let message = format!(
                "{} labels are named, the head gives {count} numbers; name the labels of a head of your own in {LABELS_FILE}",
                named.len()
            );
            return refuse("id2label", message);
        }
        let name = |index: usize| named.get(&index.to_string()).and_then(Value::as_str).map(str::to_owned);
        match (0..count).map(name).collect() {
            Some(names) => Ok(Self { names, problem }),
            None => refuse("id2label", format!("names for the keys \"0\" to \"{}\" are required", count - 1)),
        }
    }
}
