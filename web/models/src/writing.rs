//! The tasks that a decoder answers.

use crate::errors::{Result, as_given, user_of};
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use crate::host::{Host, PageHost};
use crate::speech::SpeechWindows;
use crate::task::{Page, Task};
use crate::text::TextProcessor;
use cotensor_pipeline::{DecoderTask, WritingConfig, decoded_answer};
use cotensor_preprocess::generation::{FILE, GenerationConfig};
use cotensor_preprocess::{ChatTemplate, find_json};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The parameters by which a model writes, for one task.
#[wasm_bindgen]
pub struct Generation(Rc<Parameters>);

struct Parameters {
    config: WritingConfig,
    family: Rc<ModelFamily>,
    task: &'static cotensor_preprocess::family::Task,
    chat: cotensor_core::Result<Option<ChatTemplate>>,
}

#[wasm_bindgen]
impl Generation {
    /// Reads generation_config.json, or config.json if the model has no such file, for a task of the family.
    ///
    /// # Errors
    /// `Corrupt` when a file is not a JSON object, `Invalid` for a value that is not a token id.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, family: &ModelFamily, task: &str) -> Result<Generation> {
        let found = find_json(files, FILE)?;
        let config = WritingConfig::new(GenerationConfig::of(&family.config(), found.as_ref(), task)?)?;
        let (task, family, chat) = (family.def().task(task)?, Rc::new(family.clone()), ChatTemplate::open(files));
        Ok(Self(Rc::new(Parameters { config, family, task, chat })))
    }

    /// What the task puts before a text.
    #[wasm_bindgen(getter)]
    pub fn prefix(&self) -> String {
        self.0.config.plain.prefix().to_owned()
    }

    /// Whether the model writes timestamps, and so a transcript of any length.
    #[wasm_bindgen(getter, js_name = hasTimestamps)]
    pub fn has_timestamps(&self) -> bool {
        self.0.config.timed.is_some()
    }

    /// The answer to a user: `DecodedAnswer` of `web/src/models/core.ts`. `user` is JSON: that of `userOf` in
    /// `web/src/models/writing.ts`. `text` is what the decoder continues, and `windows` is a sound that is longer than the model's
    /// window. `host` runs the stages.
    ///
    /// # Errors
    /// `Invalid` for an unknown option; of the task: as [`decoded_answer`].
    pub fn answer(
        &self,
        tokenizer: &TextProcessor,
        user: &str,
        text: Option<String>,
        windows: Option<SpeechWindows>,
        host: PageHost,
    ) -> Result<Task> {
        let (parameters, page, tokenizer) = (Rc::clone(&self.0), Rc::new(Page::default()), Rc::clone(&tokenizer.text));
        let (given, user) = (user.to_owned(), user_of(user)?);
        Ok(Task::new(Rc::clone(&page), async move {
            let (Parameters { config, family, chat, .. }, task) = (&*parameters, parameters.task);
            let mut host = Host { host, page, family: Rc::clone(family), tokenizer };
            let task = DecoderTask {
                model: family.config(),
                config,
                chat: Box::new(|| chat.as_ref().map(Option::as_ref).map_err(Clone::clone)),
                task,
                roles: family.roles(task),
                user: &user,
                chat_option: "chat",
                text,
            };
            let answered = decoded_answer(&mut host, &task, windows.map(|windows| windows.0)).await;
            let answered = answered.map_err(|error| as_given(error, &given))?;
            Ok(serde_json::to_string(&answered).unwrap_or_default())
        }))
    }
}
