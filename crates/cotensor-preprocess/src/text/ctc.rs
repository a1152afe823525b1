use crate::files::{ModelFiles, find_json};
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;

/// The most tokens of a vocabulary.
const TOKENS_MAX: usize = 1 << 20;
/// What `clean_up_tokenization` of transformers replaces, in order.
const CLEAN_UP: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

/// From the frames of a model with connectionist temporal classification (Graves et al., 2006) to text, as
/// `Wav2Vec2CTCTokenizer` of transformers decodes them.
#[derive(Clone, Debug, PartialEq)]
pub struct CtcDecoder {
    tokens: HashMap<u32, String>,
    /// The token between two equal tokens of the text; it is not text itself.
    blank: String,
    unknown: String,
    /// The token between two words, and the text in its place.
    delimiter: (String, String),
    lowercases: bool,
    cleans_up: bool,
}

impl CtcDecoder {
    /// Reads tokenizer_config.json and the vocabulary: vocab.json, else the one in tokenizer.json.
    ///
    /// # Errors
    /// `NotFound` without a vocabulary, `Corrupt` when a file is not JSON, `Invalid` for a vocabulary that is not a
    /// table of ids; the error names file and field.
    pub fn open(files: &dyn ModelFiles) -> Result<Self> {
        let config = find_json(files, "tokenizer_config.json")?.unwrap_or_default();
        let text = |field: &str, missing: &str| {
            let value = config.get(field);
            let named = value.and_then(|value| value.as_str().or_else(|| value.get("content")?.as_str()));
            named.unwrap_or(missing).to_owned()
        };
        let on = |field: &str| config.get(field).and_then(Value::as_bool).unwrap_or(false);
        Ok(Self {
            tokens: vocabulary(files, config.get("target_lang").and_then(Value::as_str))?,
            blank: text("pad_token", "<pad>"),
            unknown: text("unk_token", "<unk>"),
            delimiter: (text("word_delimiter_token", "|"), text("replace_word_delimiter_char", " ")),
            lowercases: on("do_lower_case"),
            cleans_up: on("clean_up_tokenization_spaces"),
        })
    }

    /// One more than the highest token id.
    pub fn size(&self) -> usize {
        self.tokens.keys().max().map_or(0, |&id| id as usize + 1)
    }

    /// The text of the best token of each frame, and the ids of its tokens: repetitions are one token, and blanks are
    /// none.
    pub fn decode(&self, frames: &[u32]) -> (String, Vec<u32>) {
        let token = |id: &u32| self.tokens.get(id).unwrap_or(&self.unknown).as_str();
        let (mut text, mut ids, mut previous) = (String::new(), Vec::new(), None);
        for id in frames {
            let token = token(id);
            if previous.replace(token) == Some(token) || token == self.blank {
                continue;
            }
            ids.push(*id);
            text.push_str(if token == self.delimiter.0 { &self.delimiter.1 } else { token });
        }
        let mut text = text.trim().to_owned();
        if self.lowercases {
            text = text.to_lowercase();
        }
        if self.cleans_up {
            text = CLEAN_UP.iter().fold(text, |text, (from, to)| text.replace(from, to));
        }
        (text, ids)
    }
}

/// The tokens by id. A vocabulary for several languages has a table for each.
fn vocabulary(files: &dyn ModelFiles, language: Option<&str>) -> Result<HashMap<u32, String>> {
    const OWN: &str = "vocab.json";
    const COMMON: &str = "tokenizer.json";
    if let Some(table) = find_json(files, OWN)? {
        let refused = |error: Error| error.in_file(files.path(OWN));
        return match language {
            Some(language) => {
                let own = table.get(language).ok_or_else(|| Error::invalid("the language has no vocabulary"));
                own.and_then(read).map_err(|error| refused(error.in_field(language)))
            }
            None => read(&table).map_err(refused),
        };
    }
    let Some(tokenizer) = find_json(files, COMMON)? else {
        return Err(Error::not_found("decoding needs this file").in_file(files.path(OWN)));
    };
    let table = tokenizer.get("model").and_then(|model| model.get("vocab")).unwrap_or(&Value::Null);
    let mut tokens = read(table).map_err(|error| error.in_file(files.path(COMMON)).in_field("model.vocab"))?;
    let added = tokenizer.get("added_tokens").and_then(Value::as_array);
    for token in added.into_iter().flatten().take(TOKENS_MAX) {
        let id = token.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        if let (Some(id), Some(content)) = (id, token.get("content").and_then(Value::as_str)) {
            tokens.entry(id).or_insert_with(|| content.to_owned());
        }
    }
    Ok(tokens)
}

/// A table from token to id.
fn read(table: &Value) -> Result<HashMap<u32, String>> {
    let table = table.as_object().filter(|table| (1..=TOKENS_MAX).contains(&table.len()));
    let table = table.ok_or_else(|| Error::invalid(format!("a table of 1 to {TOKENS_MAX} tokens is required")))?;
    let entry = |(token, id): (&String, &Value)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| Error::invalid(format!("the token {token:?} has no id")))?;
        Ok((id, token.clone()))
    };
    table.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use serde_json::json;

    fn open(vocabulary: &Value, config: &Value) -> Result<CtcDecoder> {
        let file = |name: &str, value: &Value| (name.to_owned(), value.to_string().into_bytes());
        let files = HashMap::from([file("vocab.json", vocabulary), file("tokenizer_config.json", config)]);
        CtcDecoder::open(&files)
    }

    #[test]
    fn frames_become_text() {
        let vocabulary = json!({"<pad>": 0, "|": 1, "A": 2, "B": 3, ".": 4, "<unk>": 5});
        let decoder = open(&vocabulary, &json!({})).unwrap();
        // A repetition with a blank in between is two letters.
        let (text, ids) = decoder.decode(&[0, 1, 2, 2, 0, 2, 1, 1, 0, 1, 3, 3, 9, 0, 1]);
        assert_eq!((text.as_str(), &ids[..]), ("AA  B<unk>", &[1, 2, 2, 1, 1, 3, 9, 1][..]));
        assert_eq!((decoder.size(), decoder.decode(&[0, 0])), (6, (String::new(), vec![])));
        let config =
            json!({"do_lower_case": true, "clean_up_tokenization_spaces": true, "pad_token": {"content": "B"}});
        let decoder = open(&vocabulary, &config).unwrap();
        assert_eq!(decoder.decode(&[2, 3, 2, 1, 4]).0, "aa.");
        let nested = json!({"eng": {"A": 0}, "fra": {"B": 0}});
        assert_eq!(open(&nested, &json!({"target_lang": "fra"})).unwrap().decode(&[0]).0, "B");
        let error = open(&nested, &json!({"target_lang": "deu"})).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("deu")), "{error}");
        for wrong in [json!([]), json!({}), json!({"A": -1}), json!({"A": "0"}), nested] {
            assert!(open(&wrong, &json!({})).unwrap_err().to_string().contains("vocab.json"));
        }
        assert_eq!(CtcDecoder::open(&HashMap::new()).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
