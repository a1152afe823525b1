//! The state of a run: its values and its report. Runs stages on values.

use super::inputs::Inputs;
use crate::model::{Model, StageSource};
use crate::stage::{Stage, StageRun};
use crate::tensor::{Array, Value};
use cotensor_core::{ContentHash, Error, Result};
use cotensor_pipeline::{
    Constant, StageReport, Text, User, check_numbers, check_vocabulary, empty_cache, filled_length, row_width,
    task_value, text_values, truncations, trunk_output,
};
use cotensor_preprocess::family::{AnswerKind, Source, StageDef, Task};
use cotensor_preprocess::{TextProcessor, TokenBatch};
use cotensor_store::Holder;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The run of a user's task.
pub(super) struct Run<'a> {
    pub(super) model: &'a Model,
    pub(super) holder: &'a Holder,
    pub(super) values: HashMap<Source, Value>,
    pub(super) prepared: Vec<StageReport>,
    pub(super) stages: Vec<StageReport>,
    pub(super) report_ms: f64,
    pub(super) notices: Vec<String>,
    pub(super) constants: Vec<Constant>,
    /// The names of the tensors that this run put into the store.
    pub(super) made: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(model: &'a Model, holder: &'a Holder) -> Self {
        Self {
            model,
            holder,
            values: HashMap::new(),
            prepared: Vec::new(),
            stages: Vec::new(),
            report_ms: 0.0,
            notices: Vec::new(),
            constants: Vec::new(),
            made: Vec::new(),
        }
    }

    /// Opens a stage of the family, runs it on the values that its definition names, and returns its first output; or the
    /// output of another model's encoder in its place, for which there is no stage. `set_texts` sets the texts that it reads.
    pub(super) fn encode(
        &mut self,
        def: &StageDef,
        inputs: &Inputs,
        set_texts: impl FnOnce(&mut Self, Option<&Stage>) -> Result<()>,
    ) -> Result<Value> {
        if let Some(value) = self.given(def, inputs)? {
            set_texts(self, None)?;
            return Ok(value);
        }
        let stage = self.load(&def.role, |model| model.stage(&def.role))?;
        set_texts(self, Some(&stage))?;
        let output = trunk_output(&def.role, def, stage.ports())?;
        self.run_stage(def, &stage, inputs, output)
    }

    /// Runs a stage on the values that its definition names; returns `output`. If that is the result of the stage, the
    /// stage gives the other outputs of its definition in the same run.
    pub(super) fn run_stage(&mut self, def: &StageDef, stage: &Stage, inputs: &Inputs, output: &str) -> Result<Value> {
        let port = |name: &str| stage.ports().input(name);
        let others = stage.graph().inputs().iter().map(|port| port.name.as_str());
        let others = others.filter(|name| !def.inputs.contains_key(*name));
        let optional = others.filter_map(|name| Some((name, def.source(name)?)));
        // A part of a graph has the inputs that it reads.
        let always = def.inputs.iter().filter(|(name, _)| def.rest_of.is_none() || port(name).is_some());
        let always = always.map(|(name, source)| (name.as_str(), source));
        let mut bound = Vec::new();
        for (name, source) in always.chain(optional) {
            let value = match source {
                Source::ImagePixels => {
                    let start = Instant::now();
                    let (pixels, computed) = inputs.pixels(self.model, self.holder)?;
                    self.note_prepared("image", "image", computed, start);
                    pixels
                }
                Source::AudioFeatures => {
                    let start = Instant::now();
                    let (features, computed, notices) = inputs.features(self.model, self.holder)?;
                    self.note_prepared("audio", "audio", computed, start);
                    self.notices.extend(notices);
                    self.values.insert(Source::AudioFeatures, features.clone());
                    features
                }
                Source::AudioLonger => inputs.is_longer(self.model)?,
                // The features of one sound are not padded.
                Source::AudioMask if self.values.contains_key(&Source::AudioFeatures) => {
                    let shape = self.values[&Source::AudioFeatures].shape();
                    Value::from(Array::i64(shape, vec![1; shape.iter().product()])?)
                }
                Source::ImageMask => inputs.mask(self.model, port(name).and_then(|port| port.dims.as_deref()))?,
                Source::CacheEmpty => {
                    let port = port(name).ok_or_else(|| Error::unsupported("the graph has no such input"))?;
                    empty_cache(port)?.into()
                }
                source => self.values.get(source).cloned().ok_or_else(|| {
                    Error::invalid(format!("stage {:?} needs {source}, which no stage made", def.role))
                })?,
            };
            bound.push((name, value));
        }
        let bound: Vec<(&str, &Value)> = bound.iter().map(|(name, value)| (*name, value)).collect();
        let is_result = def.trunk_output(|name| stage.has_output(name)) == Some(output);
        let others = def.outputs.iter().skip(1).map(String::as_str).filter(|_| is_result);
        let wanted: Vec<&str> = std::iter::once(output).chain(others).collect();
        if let Some(missing) = wanted.iter().find(|name| !stage.has_output(name)) {
            let message = format!("the graph gives {} and no {missing}", stage.ports().output_names());
            return Err(Error::unsupported(message).in_field(*missing));
        }
        let values = self.several(stage, &bound, &wanted, "")?;
        if is_result {
            for (name, value) in def.outputs.iter().zip(&values) {
                self.values.insert(Source::stage(&def.role, name), value.clone());
            }
        }
        values.into_iter().next().ok_or_else(|| Error::corrupt(format!("stage {:?} did not give {output}", def.role)))
    }

    /// Runs a text stage on each text of the user separately: users with different lists share the results of equal
    /// texts, and no text needs padding. The output of the stage has a row for each text.
    pub(super) fn encode_each(
        &mut self,
        task: &Task,
        def: &StageDef,
        stage: &Stage,
        user: &User,
        inputs: &Inputs,
    ) -> Result<Value> {
        let output = trunk_output(&task.name, def, stage.ports())?;
        let mut all = Vec::new();
        for text in &user.texts {
            self.encode_texts(task, user, def, Some(stage), &[text])?;
            let row = self.run_stage(def, stage, inputs, output)?;
            all.extend_from_slice(&read(&row, &task.name, None)?.1);
        }
        let value = Value::from(Array::f32([user.texts.len(), all.len() / user.texts.len()], all)?);
        if let Some(output) = def.outputs.first() {
            self.values.insert(Source::stage(&def.role, output), value.clone());
        }
        Ok(value)
    }

    /// Tokenizes texts for a stage, with the limits of the task and the number of tokens that the graph reads; `None` for a
    /// stage that does not run.
    pub(super) fn encode_texts(
        &mut self,
        task: &Task,
        user: &User,
        def: &StageDef,
        stage: Option<&Stage>,
        texts: &[&str],
    ) -> Result<Text> {
        let tokenizer = self.tokenizer()?;
        let start = Instant::now();
        let length = filled_length(&self.model.model_config(), def, stage.map(Stage::ports), tokenizer)?;
        let (batch, prompt_tokens) = if task.answer == AnswerKind::Sentence {
            let (sentence, tokenizer) = self.model.sentence()?;
            sentence.check_input()?;
            let prompt = sentence.prompt(user.prompt_name.as_deref())?;
            let prompted: Vec<String> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
            let prompted: Vec<&str> = prompted.iter().map(String::as_str).collect();
            let prompt_tokens = if prompt.is_empty() { 0 } else { tokenizer.prefix_tokens(prompt)? };
            if let Some(stage) = stage {
                let port = stage.ports().input_of(def, &Source::TextTask);
                let number = sentence.task(user.prompt_name.as_deref(), port.is_some());
                let number = number.map_err(|error| self.model.at_folder(error))?;
                if let Some(port) = port {
                    self.values.insert(Source::TextTask, task_value(port, number, texts.len())?.into());
                }
            }
            (tokenizer.encode_to(&prompted, length)?, prompt_tokens)
        } else {
            (tokenizer.encode_to(texts, length)?, 0)
        };
        check_vocabulary(&self.model.model_config(), batch.ids.as_i64()?.iter().copied())?;
        self.note_texts(texts, texts, &batch, start);
        self.set_texts(&batch);
        Ok(Text { batch, prompt_tokens })
    }

    /// Tokenizes two texts into one row for a stage.
    pub(super) fn encode_pair(&mut self, def: &StageDef, stage: &Stage, query: &str, text: &str) -> Result<TokenBatch> {
        let tokenizer = self.tokenizer()?;
        let start = Instant::now();
        let batch = tokenizer.encode_pairs(&[(query, text)], stage.ports().fixed_length(def))?;
        check_vocabulary(&self.model.model_config(), batch.ids.as_i64()?.iter().copied())?;
        self.note_texts(&[query, text], &[text], &batch, start);
        self.set_texts(&batch);
        Ok(batch)
    }

    /// The tokens of a text that a decoder continues, without those that the tokenizer adds if it is `plain`.
    pub(super) fn encode_text(&mut self, text: &str, plain: bool) -> Result<TokenBatch> {
        let tokenizer = self.tokenizer()?;
        let start = Instant::now();
        let batch = if plain { tokenizer.encode_plain(text)? } else { tokenizer.encode(&[text])? };
        self.note_texts(&[text], &[text], &batch, start);
        Ok(batch)
    }

    /// Sets tokenized texts as the next input.
    pub(super) fn set_texts(&mut self, batch: &TokenBatch) {
        self.values.extend(text_values(batch).map(|(source, array)| (source, array.into())));
    }

    /// Reports tokenized texts. `rows` names each row of the batch in notices.
    fn note_texts(&mut self, texts: &[&str], rows: &[&str], batch: &TokenBatch, start: Instant) {
        let signature = format!("text:{}", ContentHash::of(texts.join("\n").as_bytes()).short());
        self.note_prepared("text", &signature, true, start);
        for notice in truncations(rows, batch) {
            self.notice(notice);
        }
    }

    /// Adds a notice about a change of the inputs, once.
    pub(super) fn notice(&mut self, notice: String) {
        if !self.notices.contains(&notice) {
            self.notices.push(notice);
        }
    }

    /// Removes what this run computed from the store: a part of a sound does not come again. Values that are still in
    /// use stay until their leases end.
    pub(crate) fn release(&mut self) {
        let StageSource::Shared(loader) = self.model.source() else { return };
        for name in self.made.drain(..) {
            // It may have been evicted.
            let _ = loader.store().remove(&name);
        }
    }

    /// Opens a stage and reports the time.
    pub(super) fn load(&mut self, role: &str, open: impl FnOnce(&Model) -> Result<Arc<Stage>>) -> Result<Arc<Stage>> {
        let start = Instant::now();
        let stage = open(self.model)?;
        self.note_load(role, &stage, start);
        Ok(stage)
    }

    /// The tokenizer. The time to open it is reported once.
    pub(super) fn tokenizer(&mut self) -> Result<&'a TextProcessor> {
        let start = Instant::now();
        let tokenizer = self.model.text()?;
        if self.prepared.iter().all(|report| report.role != "tokenizer") {
            let load_ms = milliseconds(start.elapsed());
            self.prepared.push(StageReport { load_ms, ..StageReport::without_stage("tokenizer", "tokenizer", true) });
        }
        Ok(tokenizer)
    }

    fn note_prepared(&mut self, role: &str, signature: &str, computed: bool, start: Instant) {
        let run_ms = milliseconds(start.elapsed());
        self.prepared.push(StageReport { run_ms, ..StageReport::without_stage(role, signature, computed) });
    }

    pub(super) fn note_load(&mut self, role: &str, stage: &Stage, start: Instant) {
        self.stages.push(StageReport {
            role: role.to_owned(),
            signature: String::new(),
            space: stage.space().map(|space| space.to_string()),
            computed: false,
            load_ms: milliseconds(start.elapsed()),
            run_ms: 0.0,
            cache_copied_bytes: 0,
        });
    }

    /// Runs a stage for one output. `part` distinguishes stages of the same role on the same input.
    pub(super) fn one(&mut self, stage: &Stage, inputs: &[(&str, &Value)], output: &str, part: &str) -> Result<Value> {
        let mut values = self.several(stage, inputs, &[output], part)?;
        values.pop().ok_or_else(|| Error::corrupt(format!("stage {:?} did not give {output}", stage.role)))
    }

    /// Runs a stage for several outputs. `part` is as in [`one`](Self::one).
    fn several(
        &mut self,
        stage: &Stage,
        inputs: &[(&str, &Value)],
        outputs: &[&str],
        part: &str,
    ) -> Result<Vec<Value>> {
        let run = stage.run(inputs, outputs, self.holder)?;
        let start = Instant::now();
        let input = inputs.iter().map(|(_, value)| value.identity().short()).collect::<Vec<_>>().join("+");
        self.report_ms += milliseconds(start.elapsed());
        self.note(stage, &run, &format!("{}:{part}:{}:{input}", stage.role, outputs.join("+")));
        Ok(run.outputs)
    }

    /// Reports a run together with the load of the stage, or separately if the load has a run already.
    pub(super) fn note(&mut self, stage: &Stage, run: &StageRun, signature: &str) {
        let fresh = self.stages.iter_mut().find(|report| report.role == stage.role && report.signature.is_empty());
        let report = match fresh {
            Some(report) => report,
            None => {
                self.stages.push(StageReport {
                    role: stage.role.clone(),
                    signature: String::new(),
                    space: stage.space().map(|space| space.to_string()),
                    computed: false,
                    load_ms: 0.0,
                    run_ms: 0.0,
                    cache_copied_bytes: 0,
                });
                let last = self.stages.len() - 1;
                &mut self.stages[last]
            }
        };
        report.signature = signature.to_owned();
        report.computed = run.computed;
        self.made.extend(run.made());
        let before = run.before.as_deref().zip(stage.before());
        report.run_ms = milliseconds(run.time - before.map_or(Duration::ZERO, |(run, _)| run.time));
        if let Some((run, (stage, _))) = before {
            self.note(stage, run, &format!("{} of {signature}", stage.role));
        }
    }
}

impl Run<'_> {
    /// Reports a decoding: its time under the stage that reads single tokens, with the bytes of the cache that the
    /// engine copied.
    pub(super) fn note_decoding(
        &mut self,
        step: &Stage,
        others: &[&Stage],
        run: &StageRun,
        signature: &str,
        copied: u64,
    ) {
        self.note(step, run, signature);
        let is_other = |report: &StageReport| others.iter().any(|stage| report.role == stage.role);
        for report in self.stages.iter_mut().filter(|report| report.signature.is_empty() && is_other(report)) {
            (report.signature, report.computed) = (signature.to_owned(), run.computed);
        }
        if let Some(report) = self.stages.iter_mut().rfind(|report| report.role == step.role) {
            report.cache_copied_bytes = copied;
        }
    }
}

/// The width and the elements of an output, as [`row_width`] and [`check_numbers`] want them.
pub(super) fn read<'v>(value: &'v Value, task: &str, rows: Option<Option<usize>>) -> Result<(usize, Cow<'v, [f32]>)> {
    let width = row_width(value.shape(), task, rows)?;
    let values = value.to_f32()?;
    check_numbers(&values)?;
    Ok((width, values))
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
