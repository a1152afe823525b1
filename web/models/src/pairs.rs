//! Pairs of texts that a causal language model scores.

use crate::arrays::ArrayHandle;
use crate::decoder::port_of;
use crate::errors::Result;
use crate::files::ConfigFiles;
use crate::sentence::SentencePooling;
use crate::text::{TextProcessor, Tokens};
use cotensor_core::{Error, Hasher};
use cotensor_pipeline::{empty_cache, last_row};
use cotensor_preprocess::{ChatTemplate, LogitScore};
use wasm_bindgen::prelude::*;

/// The prompts for pairs of texts, and the score in the logits after a prompt.
#[wasm_bindgen]
pub struct PairPrompts {
    score: LogitScore,
    template: ChatTemplate,
    instruction: String,
}

#[wasm_bindgen]
impl PairPrompts {
    /// Reads the modules of sentence-transformers and the chat template.
    ///
    /// # Errors
    /// `Unsupported` for a model with other modules, and without a template for pairs; `Invalid` for a field with an invalid value.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, sentence: &SentencePooling) -> Result<PairPrompts> {
        let score = LogitScore::open(files)?;
        let missing = || Error::unsupported("a causal language model needs a chat template to rank texts");
        let template = ChatTemplate::open(files)?.ok_or_else(missing)?;
        template.check_pairs()?;
        Ok(Self { score, template, instruction: sentence.0.prompt(None)?.to_owned() })
    }

    /// The tokens of the prompt for two texts.
    ///
    /// # Errors
    /// `Invalid` for a prompt that is longer than the model reads; the errors of the template and of the tokenizer.
    pub fn encode(&self, tokenizer: &TextProcessor, query: &str, text: &str) -> Result<Tokens> {
        let prompt = self.template.pair_prompt(&self.instruction, query, text, self.score.begins_answer)?;
        let tokens = tokenizer.encode_plain(prompt)?;
        // Without its end, the prompt asks for no answer.
        if tokens.0.truncated.contains(&true) {
            let message = "the prompt with both texts is longer than the model reads";
            return Err(Error::invalid(message).in_field("text").into());
        }
        Ok(tokens)
    }

    /// The logit of a pair in the logits after its prompt.
    ///
    /// # Errors
    /// `Invalid` for a token that the logits do not have, `Engine` for NaN or infinity.
    pub fn logit(&self, row: &[f32]) -> Result<f32> {
        Ok(self.score.score(last_row(&[row.len()], row)?)?)
    }

    /// The hash of the settings of a score, 64 hexadecimal digits.
    #[wasm_bindgen(getter)]
    pub fn fingerprint(&self) -> String {
        Hasher::new("logit of a pair v1").field(format!("{:?}", self.score).as_bytes()).finish().to_string()
    }

    /// An empty cache for an input of the graph: JSON, `Port` of `web/src/engine/api.ts`.
    ///
    /// # Errors
    /// `Invalid` for another JSON, `Unsupported` for an input without heads and width.
    #[wasm_bindgen(js_name = emptyCache)]
    pub fn empty_cache(port: &str) -> Result<ArrayHandle> {
        Ok(empty_cache(&port_of(port)?)?.into())
    }
}
