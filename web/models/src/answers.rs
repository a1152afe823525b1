//! The answers of tasks, from the outputs of their stages.

use crate::errors::{Result, parsed};
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use crate::sentence::SentencePooling;
use crate::text::{TextProcessor, Tokens};
use cotensor_core::Error;
use cotensor_pipeline::{
    AnswerFiles, Answered, LABELS_FILE, Labels, LogitScale, OWN_HEAD, Output, Question, StageOutput, Text,
    outputs_read, pair_logit, read_answer, scored,
};
use cotensor_preprocess::family::{Family, ModelConfig};
use cotensor_preprocess::{CtcDecoder, ScoreFunction, SentenceProcessor};
use serde::Deserialize;
use serde_json::Value;
use std::path::PathBuf;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// An output of a stage, or the numbers behind an answer.
#[wasm_bindgen]
pub struct NamedNumbers(Output);

#[wasm_bindgen]
impl NamedNumbers {
    /// The output `name` of `shape`, in elements.
    ///
    /// # Errors
    /// `Invalid` for another number of elements than the shape has.
    #[wasm_bindgen(constructor)]
    pub fn new(name: String, shape: Vec<u32>, values: Vec<f32>) -> Result<NamedNumbers> {
        let shape: Vec<usize> = shape.into_iter().map(|dim| dim as usize).collect();
        let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        if count != Some(values.len()) {
            let message = format!("{} numbers do not have the shape {shape:?}", values.len());
            return Err(Error::invalid(message).in_field(name).into());
        }
        Ok(Self(Output { name, shape, values }))
    }

    /// The name.
    #[wasm_bindgen(getter)]
    pub fn name(&self) -> String {
        self.0.name.clone()
    }

    /// Dimensions, in elements.
    #[wasm_bindgen(getter)]
    pub fn shape(&self) -> Vec<u32> {
        self.0.shape.iter().map(|&dim| dim as u32).collect()
    }

    /// A copy of the numbers.
    #[wasm_bindgen(getter)]
    pub fn values(&self) -> Vec<f32> {
        self.0.values.clone()
    }
}

/// `AnswerRequest` of `web/src/models/core.ts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerRequest {
    task: String,
    head: Option<String>,
    texts: Vec<String>,
    threshold: Option<f32>,
    image_size: Option<(u32, u32)>,
    prompt_tokens: usize,
}

/// The numbers that turn similarities into logits: `LogitScale` of `web/src/models/similarity.ts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleRequest {
    scale: f32,
    bias: f32,
    source: String,
    untrained: bool,
}

/// Reads the answers of a model. An answer needs one of the files below, or none; each is set before.
#[wasm_bindgen]
pub struct AnswerReader {
    family: &'static Family,
    config: Value,
    folder: PathBuf,
    labels: Option<Value>,
    text: Option<Rc<cotensor_preprocess::TextProcessor>>,
    sentence: Option<Rc<SentenceProcessor>>,
    ctc: Option<CtcDecoder>,
    scale: Option<LogitScale>,
    score: Option<ScoreFunction>,
}

#[wasm_bindgen]
impl AnswerReader {
    /// Reads answers of a model. `name` is the model's, for errors.
    #[wasm_bindgen(constructor)]
    pub fn new(family: &ModelFamily, name: &str) -> Self {
        let config = family.config().values.clone();
        let folder = PathBuf::from(name);
        let (labels, text, sentence, ctc, scale, score) = (None, None, None, None, None, None);
        Self { family: family.def(), config, folder, labels, text, sentence, ctc, scale, score }
    }

    /// Reads the content of labels.json, once.
    ///
    /// # Errors
    /// `Corrupt` for a text that is not JSON.
    #[wasm_bindgen(js_name = setLabels)]
    pub fn set_labels(&mut self, file: &str) -> Result<()> {
        if self.labels.is_none() {
            let at_file =
                |error: serde_json::Error| Error::corrupt(error.to_string()).in_file(self.folder.join(LABELS_FILE));
            self.labels = Some(serde_json::from_str(file).map_err(at_file)?);
        }
        Ok(())
    }

    /// Sets the tokenizer.
    #[wasm_bindgen(js_name = setText)]
    pub fn set_text(&mut self, text: &TextProcessor) {
        self.text = Some(Rc::clone(&text.text));
    }

    /// Sets the modules of sentence embeddings.
    #[wasm_bindgen(js_name = setSentence)]
    pub fn set_sentence(&mut self, sentence: &SentencePooling) {
        self.sentence = Some(Rc::clone(&sentence.0));
    }

    /// Reads the vocabulary of a recognizer of speech, once.
    ///
    /// # Errors
    /// `NotFound` without a vocabulary, `Corrupt` for a file that is not JSON, `Invalid` for a vocabulary that is not a table of
    /// ids.
    #[wasm_bindgen(js_name = setVocabulary)]
    pub fn set_vocabulary(&mut self, files: &ConfigFiles) -> Result<()> {
        if self.ctc.is_none() {
            self.ctc = Some(CtcDecoder::open(files)?);
        }
        Ok(())
    }

    /// Sets the numbers that turn similarities into logits: JSON, `LogitScale` of `web/src/models/similarity.ts`.
    ///
    /// # Errors
    /// `Invalid` for another JSON.
    #[wasm_bindgen(js_name = setScale)]
    pub fn set_scale(&mut self, scale: &str) -> Result<()> {
        let ScaleRequest { scale, bias, source, untrained } = parsed(scale, "scale")?;
        self.scale = Some(LogitScale { scale, bias, source, untrained });
        Ok(())
    }

    /// Reads the function from the logit of a pair of texts to its score, once.
    ///
    /// # Errors
    /// `Corrupt` when a file is not JSON, `Unsupported` for another function; the error names file and field.
    #[wasm_bindgen(js_name = setScoreFunction)]
    pub fn set_score_function(&mut self, files: &ConfigFiles) -> Result<()> {
        if self.score.is_none() {
            self.score = Some(ScoreFunction::open(files, &self.config)?);
        }
        Ok(())
    }

    /// The logit of a pair of texts, from the last output of a task of scores.
    ///
    /// # Errors
    /// `Unsupported` for an output of another shape, and for several labels; `Engine` for numbers that overflow.
    #[wasm_bindgen(js_name = pairLogit)]
    pub fn pair_logit(&self, task: &str, output: &NamedNumbers) -> Result<f32> {
        let Output { name, shape, values } = &output.0;
        Ok(pair_logit(self.family.task(task)?, StageOutput { name, shape, values })?)
    }

    /// The answer for the logit of each text beside another text. `tokens` counts those of each pair, and `truncated` is 1 for a
    /// pair that was cut off.
    ///
    /// # Errors
    /// `Invalid` for lists of different lengths.
    pub fn scores(
        &self,
        texts: Vec<String>,
        logits: &[f32],
        tokens: &[f32],
        truncated: &[f32],
    ) -> Result<AnswerWithNumbers> {
        if [logits, tokens, truncated].iter().any(|list| list.len() != texts.len()) {
            return Err(Error::invalid(format!("a number for each of {} texts is required", texts.len())).into());
        }
        let function = self.score.ok_or_else(|| unset("score"))?;
        Ok(AnswerWithNumbers(scored(&texts, function, logits, tokens, truncated).into()))
    }

    /// The outputs of stages, as `ROLE.OUTPUT`, that the answer of a task is read from; none if it is read from the last output
    /// alone.
    ///
    /// # Errors
    /// `Invalid` for an unknown task.
    pub fn reads(&self, task: &str) -> Result<Vec<String>> {
        let sources = outputs_read(self.family, self.family.task(task)?)?;
        Ok(sources.iter().map(|(source, _)| source.to_string()).collect())
    }

    /// The answer from the last output of a task, or from those that [`reads`](Self::reads) names. `request` is JSON:
    /// `AnswerRequest` of `web/src/models/core.ts`. `tokens` are those of the text, for answers that depend on them.
    ///
    /// # Errors
    /// `Unsupported` for an output of another shape, `Engine` for numbers that overflow, `Invalid` for a request that does not fit
    /// the task.
    pub fn answer(
        &self,
        request: &str,
        outputs: Vec<NamedNumbers>,
        tokens: Option<Tokens>,
    ) -> Result<AnswerWithNumbers> {
        let request: AnswerRequest = parsed(request, "request")?;
        let texts: Vec<&str> = request.texts.iter().map(String::as_str).collect();
        let text = tokens.map(|Tokens(batch)| Text { batch, prompt_tokens: request.prompt_tokens });
        let question = Question {
            task: self.family.task(&request.task)?,
            head: request.head.as_deref().unwrap_or(OWN_HEAD),
            texts: &texts,
            threshold: request.threshold,
            image_size: request.image_size,
            text: text.as_ref(),
        };
        let outputs =
            outputs.iter().map(|NamedNumbers(Output { name, shape, values })| StageOutput { name, shape, values });
        Ok(AnswerWithNumbers(read_answer(self, &question, &outputs.collect::<Vec<_>>())?))
    }
}

impl AnswerFiles for AnswerReader {
    fn config(&self) -> ModelConfig<'_> {
        ModelConfig { family: self.family, values: &self.config, folder: &self.folder }
    }

    fn labels(&self, head: &str, count: usize) -> cotensor_core::Result<Labels> {
        Labels::of(&self.config(), self.labels.as_ref(), head, count)
    }

    fn tokenizer(&self) -> cotensor_core::Result<&cotensor_preprocess::TextProcessor> {
        self.text.as_deref().ok_or_else(|| unset("text"))
    }

    fn sentence(&self) -> cotensor_core::Result<&SentenceProcessor> {
        self.sentence.as_deref().ok_or_else(|| unset("sentence"))
    }

    fn ctc(&self) -> cotensor_core::Result<&CtcDecoder> {
        self.ctc.as_ref().ok_or_else(|| unset("vocabulary"))
    }

    fn logit_scale(&self) -> cotensor_core::Result<&LogitScale> {
        self.scale.as_ref().ok_or_else(|| unset("scale"))
    }
}

/// An answer with the numbers behind it.
#[wasm_bindgen]
pub struct AnswerWithNumbers(Answered);

#[wasm_bindgen]
impl AnswerWithNumbers {
    /// The answer as JSON: `Answer` of `web/src/models/answers.ts`.
    #[wasm_bindgen(getter)]
    pub fn answer(&self) -> String {
        serde_json::to_string(&self.0.answer).unwrap_or_default()
    }

    /// The numbers behind it.
    pub fn outputs(&self) -> Vec<NamedNumbers> {
        self.0.outputs.iter().cloned().map(NamedNumbers).collect()
    }

    /// Notices about the files of the model.
    #[wasm_bindgen(getter)]
    pub fn notices(&self) -> Vec<String> {
        self.0.notices.clone()
    }
}

fn unset(file: &str) -> Error {
    Error::invalid("the answer needs it, and it is not set").in_field(file)
}
