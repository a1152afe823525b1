//! The loop over the tokens of a text.

use crate::decoder::{Decoder, PageDecoder};
use crate::errors::Result;
use crate::family::ModelFamily;
use crate::task::{Page, Task};
use cotensor_core::Error;
use cotensor_graph::key::array_identity;
use cotensor_pipeline::{Writing, check_logits, decode};
use cotensor_preprocess::generation::FILE;
use cotensor_preprocess::{Array, TextProcessor};
use std::cell::Cell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The tokens that a decoder writes: the host of the page runs them, unless it has them.
#[wasm_bindgen]
pub struct Decoding(pub(crate) Rc<Run>);

pub(crate) struct Run {
    pub(crate) writing: Rc<Writing<Rc<TextProcessor>>>,
    pub(crate) family: Rc<ModelFamily>,
    /// Whether it ran.
    pub(crate) has_run: Cell<bool>,
}

#[wasm_bindgen]
impl Decoding {
    /// Decodes, once. The result is a list: the tokens, without the prompt and without the end token. `host` gets the text piece by
    /// piece.
    ///
    /// # Errors
    /// `Invalid` for wrong descriptions of graphs, `Unsupported` for a family without a decoder; of the task: as [`decode`].
    pub fn run(&self, host: PageDecoder) -> Result<Task> {
        let (run, page) = (Rc::clone(&self.0), Rc::new(Page::default()));
        let decoder = Decoder::new(host.clone(), Rc::clone(&page), &run.family)?;
        run.has_run.set(true);
        Ok(Task::new(Rc::clone(&page), async move {
            let writing = &run.writing;
            let mut decoder = cotensor_pipeline::Decoder::new(decoder)?;
            let scores = decoder.read(&writing.prompt).await?;
            check_logits(&run.family.config(), scores.len())?;
            let on_token = async |token| {
                if let Some(piece) = writing.piece(token)? {
                    page.wait(host.text(&piece)).await;
                }
                Ok(())
            };
            let settings = &writing.decoding.settings;
            let written = decode(&mut decoder, scores, &writing.prompt, settings, on_token).await?;
            Ok(serde_json::json!(tokens(written)?).to_string())
        }))
    }

    /// The hash of everything besides model and prompt that decides the tokens, 64 hexadecimal digits.
    #[wasm_bindgen(js_name = settingsHash)]
    pub fn settings_hash(&self) -> String {
        self.0.writing.decoding.settings.hash().to_string()
    }

    /// The identity of the prompt, 64 hexadecimal digits.
    ///
    /// # Errors
    /// As [`Array::i64`].
    #[wasm_bindgen(js_name = promptHash)]
    pub fn prompt_hash(&self) -> Result<String> {
        let prompt = &self.0.writing.prompt;
        let prompt = Array::i64([prompt.len()], prompt.clone())?;
        Ok(array_identity(prompt.dtype(), prompt.shape(), prompt.bytes()).to_string())
    }
}

/// # Errors
/// `Invalid` for a number that no token has.
fn tokens(ids: Vec<i64>) -> cotensor_core::Result<Vec<u32>> {
    let token = |id| u32::try_from(id).map_err(|_| Error::invalid(format!("{id} is not a token id")).in_file(FILE));
    ids.into_iter().map(token).collect()
}
