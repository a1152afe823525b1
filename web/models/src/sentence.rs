//! Sentence embeddings.

use crate::arrays::ArrayHandle;
use crate::errors::{Result, named};
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use cotensor_core::Error;
use cotensor_graph::Port;
use cotensor_pipeline::task_value;
use cotensor_preprocess::SentenceProcessor;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The option that names a prompt.
const PROMPT_NAME: &str = "promptName";

/// From hidden states to a sentence embedding, as the files of sentence-transformers configure it.
#[wasm_bindgen]
pub struct SentencePooling(pub(crate) Rc<SentenceProcessor>);

#[wasm_bindgen]
impl SentencePooling {
    /// Reads modules.json, the files of the modules, sentence_bert_config.json and config_sentence_transformers.json. Without
    /// them, the pooling is that which the model's name stands for, with a notice.
    ///
    /// # Errors
    /// `Corrupt` when a file is not JSON, `Invalid` for a field with an invalid value.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, family: &ModelFamily, name: &str) -> Result<SentencePooling> {
        Ok(Self(Rc::new(SentenceProcessor::open(files, family.config().values, name)?)))
    }

    /// How the pooling was found, if no file of the model states it.
    #[wasm_bindgen(getter)]
    pub fn notice(&self) -> Option<String> {
        self.0.notice().map(str::to_owned)
    }

    /// The hash of every setting that affects an embedding, 64 hexadecimal digits. `is_pooled` is whether the graph pools itself.
    pub fn fingerprint(&self, is_pooled: bool) -> String {
        self.0.fingerprint(is_pooled).to_string()
    }

    /// The text before each text: the prompt of this name, or the default prompt.
    ///
    /// # Errors
    /// `Invalid` for an unknown name; the message lists the names. `Unsupported` for texts that are tokenized in another way.
    pub fn prompt(&self, name: Option<String>) -> Result<String> {
        self.0.check_input()?;
        Ok(self.0.prompt(name.as_deref()).map_err(|error| named(error, PROMPT_NAME))?.to_owned())
    }

    /// The number of the task that the prompt of this name, or the default prompt, belongs to; nothing if the graph does not read it
    /// (`is_read`) and none is named.
    ///
    /// # Errors
    /// `Invalid` for a name that is not a task, `Unsupported` for a model without tasks, and for a graph that does not read the task.
    pub fn task(&self, name: Option<String>, is_read: bool) -> Result<Option<u32>> {
        let number = self.0.task(name.as_deref(), is_read).map_err(|error| named(error, PROMPT_NAME))?;
        Ok(number.and_then(|number| u32::try_from(number).ok()))
    }

    /// An embedding with the configured number of dimensions.
    pub fn truncated(&self, mut embedding: Vec<f32>) -> Vec<f32> {
        self.0.truncate(&mut embedding);
        embedding
    }

    /// The number of a task for the input `name` of a graph, for `count` texts. `dims` is the input's shape, with 0 for a dimension that
    /// varies.
    ///
    /// # Errors
    /// `Unsupported` for an input of another shape.
    #[wasm_bindgen(js_name = taskInput)]
    pub fn task_input(name: String, dims: Vec<u32>, task: u32, count: usize) -> Result<ArrayHandle> {
        let dims = dims.into_iter().map(|dim| (dim > 0).then_some(dim as usize)).collect();
        let port = Port { name, dtype: None, dims: Some(dims) };
        Ok(task_value(&port, Some(task.into()), count)?.into())
    }

    /// The embedding of one text from its hidden states, `width` numbers for each token. `mask` is 0 for padding, else 1;
    /// `prompt_tokens` is the number of tokens of the prompt.
    ///
    /// # Errors
    /// `Invalid` for rows that do not fit the mask, when nothing states the pooling, and when no token is left, `Unsupported` for a module that is not supported, the
    /// error of a module whose files are missing or wrong.
    pub fn pool(&self, rows: &[f32], width: usize, mask: &[u8], prompt_tokens: usize) -> Result<Vec<f32>> {
        if width == 0 || width.checked_mul(mask.len()) != Some(rows.len()) {
            let message = format!("{} numbers are not {} rows of {width}", rows.len(), mask.len());
            return Err(Error::invalid(message).in_field("rows").into());
        }
        let mask: Vec<i64> = mask.iter().map(|&kept| kept.into()).collect();
        let mut embedding = self.0.pool(rows, width, &mask, prompt_tokens)?;
        self.0.truncate(&mut embedding);
        Ok(embedding)
    }
}
