//! Runs the task of a user: the stages in order. A stage runs only if the store does not have its result.

use super::answer::{Answer, Output, best, labelled, numbers, read, softmax};
use super::definition::User;
use super::generate;
use super::inputs::Inputs;
use super::outputs::{check_architecture, head_output, lacks, output_of};
use super::report::{StageReport, UserReport};
use crate::model::{Labels, Model, OWN_HEAD};
use crate::stage::{Stage, StageRun};
use crate::tensor::{Array, Value};
use cotensor_core::{ContentHash, Error, Result};
use cotensor_preprocess::family::{AnswerKind, LOGITS, StageDef, Task};
use cotensor_preprocess::{TextProcessor, TokenBatch, normalized};
use cotensor_store::{Holder, Lease};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The logit scale of CLIP's published checkpoints: training clamps it at 100.
const CLIP_LOGIT_SCALE: f32 = 100.0;

/// Runs the task of `user` with `model` on `inputs`. `holder` holds the leases.
///
/// # Errors
/// `Invalid` for a task that the family does not have or for a missing input; else the errors of opening or running a stage.
pub fn run_user(model: &Model, user: &User, inputs: &Inputs, holder: &Holder) -> Result<UserReport> {
    run_user_keeping(model, user, inputs, holder).map(|(report, _)| report)
}

/// As [`run_user`], with leases on the outputs of the stages by kind (`vision_embedding`), the last output of each kind. Outputs that
/// are not shared (a list of texts, a refused kind) have no lease.
///
/// # Errors
/// As [`run_user`].
pub fn run_user_keeping(
    model: &Model,
    user: &User,
    inputs: &Inputs,
    holder: &Holder,
) -> Result<(UserReport, BTreeMap<&'static str, Lease>)> {
    let task = model.family().task(&user.task).map_err(|error| error.in_field(format!("{}.task", user.name)))?;
    user.check_limits(&user.name)?;
    user.check_task(task)?;
    let mut run = Run {
        model,
        holder,
        values: HashMap::new(),
        prepared: Vec::new(),
        stages: Vec::new(),
        report_ms: 0.0,
        notices: Vec::new(),
    };
    let (answer, outputs) = match task.answer {
        AnswerKind::Transcript => generate::transcribe(&mut run, user, inputs)?,
        AnswerKind::Language => generate::identify_language(&mut run, inputs)?,
        _ => run.encode_and_answer(task, user, inputs)?,
    };
    let kept = model.family().stages.iter().filter_map(|def| {
        let value = run.values.get(&format!("{}.{}", def.role, def.outputs.first()?))?;
        Some(value.lease()?.try_clone().map(|lease| (def.kind.name(), lease)))
    });
    let kept = kept.collect::<Result<_>>()?;
    let report = UserReport {
        user: user.name.clone(),
        task: user.task.clone(),
        model: model.name(),
        answer,
        outputs,
        prepared: run.prepared,
        stages: run.stages,
        report_ms: run.report_ms,
        notices: run.notices,
    };
    Ok((report, kept))
}

/// The run of a user's task.
pub(super) struct Run<'a> {
    pub(super) model: &'a Model,
    pub(super) holder: &'a Holder,
    /// Values by source name: `text.ids`, `encoder.last_hidden_state`.
    pub(super) values: HashMap<String, Value>,
    prepared: Vec<StageReport>,
    stages: Vec<StageReport>,
    report_ms: f64,
    notices: Vec<String>,
}

impl<'a> Run<'a> {
    fn encode_and_answer(&mut self, task: &Task, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
        let mut batch = None;
        let mut last = None;
        for role in &task.stages {
            let def = self.model.family().stage(role)?;
            let stage = self.load(role, |model| model.stage(role))?;
            let output = output_of(task, def, &stage, user.head.is_none() && !self.model.has_head_file())?;
            if def.inputs.values().any(|source| source.starts_with("text.")) {
                if user.texts.len() > 1 {
                    last = Some((self.encode_each(task, def, &stage, user, inputs)?, output));
                    continue;
                }
                batch = Some(self.encode_texts(task, def, &stage, &texts_of(user, inputs)?)?);
            }
            last = Some((self.run_stage(def, &stage, inputs, output)?, output));
        }
        let (mut last, mut output) =
            last.ok_or_else(|| Error::invalid(format!("task {:?} has no stages", task.name)))?;
        let head = user.head.as_deref().unwrap_or(OWN_HEAD);
        if task.head && output != LOGITS {
            let stage = self.load_head(user, task)?;
            let [input] = stage.graph().inputs() else {
                return Err(Error::invalid("a head has exactly one input").in_field(head));
            };
            let (input, of_head) = (input.name.clone(), head_output(&stage)?);
            last = self.one(&stage, &[(&input, &last)], &of_head, user.name.as_str())?;
            output = LOGITS;
        }
        if task.head && user.head.is_none() && !self.model.has_head_file() {
            check_architecture(self.model, task)?;
        }
        self.answer(task, user, inputs, head, (output, &last), batch.as_ref())
    }

    /// The head that the user names, or the model's own head.
    fn load_head(&mut self, user: &User, task: &Task) -> Result<Arc<Stage>> {
        let start = Instant::now();
        let stage = match &user.head {
            Some(name) => self.model.head(name)?,
            None => {
                let trunk = task.stages.last().map_or("", String::as_str);
                let found = self.model.own_head(trunk)?;
                found.ok_or_else(|| self.model.no_head().in_field(OWN_HEAD))?
            }
        };
        self.note_load(&stage.role, &stage, start);
        Ok(stage)
    }

    /// Opens a stage of the family, runs it on the values that its definition names, and returns its first output.
    pub(super) fn encode(&mut self, def: &StageDef, inputs: &Inputs) -> Result<Value> {
        let stage = self.load(&def.role, |model| model.stage(&def.role))?;
        let output = def.trunk_output(|name| stage.has_output(name)).ok_or_else(|| lacks(&def.role, def, &stage))?;
        self.run_stage(def, &stage, inputs, output)
    }

    /// Runs a stage on the values that its definition names; returns `output`.
    fn run_stage(&mut self, def: &StageDef, stage: &Stage, inputs: &Inputs, output: &str) -> Result<Value> {
        let optional = def
            .inputs_optional
            .iter()
            .filter(|(name, _)| stage.graph().inputs().iter().any(|port| port.name == **name));
        let mut bound = Vec::new();
        for (name, source) in def.inputs.iter().chain(optional) {
            let value = match source.as_str() {
                "image.pixels" => {
                    let start = Instant::now();
                    let (pixels, computed) = inputs.pixels(self.model, self.holder)?;
                    self.note_prepared("image", "image", computed, start);
                    pixels
                }
                "audio.features" => {
                    let start = Instant::now();
                    let (features, computed, notices) = inputs.features(self.model, self.holder)?;
                    self.note_prepared("audio", "audio", computed, start);
                    self.notices.extend(notices);
                    features
                }
                source => self.values.get(source).cloned().ok_or_else(|| {
                    Error::invalid(format!("stage {:?} needs {source}, which no stage made", def.role))
                })?,
            };
            bound.push((name.as_str(), value));
        }
        let bound: Vec<(&str, &Value)> = bound.iter().map(|(name, value)| (*name, value)).collect();
        let value = self.one(stage, &bound, output, "")?;
        if let Some(first) = def.outputs.first()
            && def.trunk_output(|name| stage.has_output(name)) == Some(output)
        {
            self.values.insert(format!("{}.{first}", def.role), value.clone());
        }
        Ok(value)
    }

    /// Runs a text stage on each text of the user separately: users with different lists share the results of equal texts, and no text
    /// needs padding. The output of the stage has a row for each text.
    fn encode_each(
        &mut self,
        task: &Task,
        def: &StageDef,
        stage: &Stage,
        user: &User,
        inputs: &Inputs,
    ) -> Result<Value> {
        let output = def.trunk_output(|name| stage.has_output(name)).ok_or_else(|| lacks(&task.name, def, stage))?;
        let mut all = Vec::new();
        for text in &user.texts {
            self.encode_texts(task, def, stage, &[text])?;
            let row = self.run_stage(def, stage, inputs, output)?;
            all.extend_from_slice(&read(&row, &task.name, None)?.1);
        }
        let value = Value::from(Array::f32([user.texts.len(), all.len() / user.texts.len()], all)?);
        if let Some(output) = def.outputs.first() {
            self.values.insert(format!("{}.{output}", def.role), value.clone());
        }
        Ok(value)
    }

    /// Tokenizes texts for a stage, with the limits of the task and the number of tokens that the graph reads.
    fn encode_texts(&mut self, task: &Task, def: &StageDef, stage: &Stage, texts: &[&str]) -> Result<Text> {
        let tokenizer = self.tokenizer()?;
        let start = Instant::now();
        let ids = def.inputs.iter().find(|(_, source)| *source == "text.ids").map_or("", |(name, _)| name);
        let port = stage.graph().inputs().iter().find(|port| port.name == ids);
        let length = port.and_then(|port| port.dims.as_ref()?.get(1).copied().flatten());
        let (batch, prompt_tokens) = if task.answer == AnswerKind::Sentence {
            let (sentence, tokenizer) = self.model.sentence()?;
            let prompt = sentence.prompt();
            let prompted: Vec<String> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
            let prompted: Vec<&str> = prompted.iter().map(String::as_str).collect();
            let prompt_tokens = if prompt.is_empty() { 0 } else { tokenizer.prefix_tokens(prompt)? };
            (tokenizer.encode_to(&prompted, length)?, prompt_tokens)
        } else {
            (tokenizer.encode_to(texts, length)?, 0)
        };
        let signature = format!("text:{}", ContentHash::of(texts.join("\n").as_bytes()).short());
        self.note_prepared("text", &signature, true, start);
        for (text, _) in texts.iter().zip(&batch.truncated).filter(|(_, truncated)| **truncated) {
            let start: String = text.chars().take(32).collect();
            self.notice(format!("the text {start:?}… is longer than the model reads and was truncated"));
        }
        self.values.insert("text.ids".into(), Value::from(batch.ids.clone()));
        self.values.insert("text.mask".into(), Value::from(batch.mask.clone()));
        self.values.insert("text.types".into(), Value::from(batch.type_ids.clone()));
        Ok(Text { batch, prompt_tokens })
    }

    /// Adds a notice about a change of the inputs.
    pub(super) fn notice(&mut self, notice: String) {
        self.notices.push(notice);
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

    fn note_load(&mut self, role: &str, stage: &Stage, start: Instant) {
        self.stages.push(StageReport {
            role: role.to_owned(),
            signature: String::new(),
            space: stage.space().map(|space| space.to_string()),
            computed: false,
            load_ms: milliseconds(start.elapsed()),
            run_ms: 0.0,
        });
    }

    /// Runs a stage for one output. `part` distinguishes stages of the same role on the same input.
    pub(super) fn one(&mut self, stage: &Stage, inputs: &[(&str, &Value)], output: &str, part: &str) -> Result<Value> {
        let mut run = stage.run(inputs, &[output], self.holder)?;
        let start = Instant::now();
        let input = inputs.iter().map(|(_, value)| value.identity().short()).collect::<Vec<_>>().join("+");
        self.report_ms += milliseconds(start.elapsed());
        self.note(stage, &run, &format!("{}:{part}:{output}:{input}", stage.role));
        run.outputs.pop().ok_or_else(|| Error::corrupt(format!("stage {:?} did not give {output}", stage.role)))
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
                });
                let last = self.stages.len() - 1;
                &mut self.stages[last]
            }
        };
        report.signature = signature.to_owned();
        report.computed = run.computed;
        report.run_ms = milliseconds(run.time);
    }

    fn answer(
        &self,
        task: &Task,
        user: &User,
        inputs: &Inputs,
        head: &str,
        (output, last): (&str, &Value),
        text: Option<&Text>,
    ) -> Result<(Answer, Vec<Output>)> {
        let embedding = |name: &str, vector: Vec<f32>| {
            let output = Output::new(name, &[vector.len()], &vector);
            (Answer::Embedding { width: vector.len() }, vec![output])
        };
        let text = || text.ok_or_else(|| Error::invalid(format!("{} needs a text", task.name)));
        let read = |rows| read(last, &task.name, rows);
        Ok(match task.answer {
            AnswerKind::Label => {
                let (width, logits) = read(None)?;
                let answer = labelled(&logits, Labels::of(self.model, head, width)?)?;
                (answer, vec![Output::new(LOGITS, last.shape(), &logits)])
            }
            AnswerKind::LabelPerToken => {
                let batch = &text()?.batch;
                let (width, logits) = read(Some(Some(batch.added.len())))?;
                let labels = Labels::of(self.model, head, width)?.names;
                let mut tokens = Vec::new();
                for ((row, &id), added) in logits.chunks_exact(width).zip(batch.ids.as_i64()?).zip(&batch.added) {
                    if !added {
                        let token = self.model.text()?.token(id).unwrap_or_default();
                        tokens.push((token, labels[best(row)?.0].clone()));
                    }
                }
                (Answer::Tokens { tokens }, vec![Output::new(LOGITS, last.shape(), &logits)])
            }
            AnswerKind::Sentence => {
                let (sentence, _) = self.model.sentence()?;
                let vector = if task.result.as_deref() == Some(output) {
                    let mut vector = read(None)?.1.to_vec();
                    sentence.truncate(&mut vector);
                    vector
                } else {
                    let Text { batch, prompt_tokens } = text()?;
                    let (width, rows) = read(Some(Some(batch.added.len())))?;
                    sentence.pool(&rows, width, batch.mask.as_i64()?, *prompt_tokens)?
                };
                embedding("sentence_embedding", vector)
            }
            AnswerKind::FirstToken => {
                let (width, rows) = read(Some(None))?;
                embedding("embedding", normalized(&rows[..width]))
            }
            AnswerKind::Embedding => embedding("embedding", normalized(&read(None)?.1)),
            AnswerKind::Similarity => self.similarity(task, user, inputs)?,
            AnswerKind::Transcript | AnswerKind::Language => {
                return Err(Error::invalid("a decoding task has its own loop"));
            }
        })
    }

    fn similarity(&self, task: &Task, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
        let value = |source: &str| {
            self.values.get(source).ok_or_else(|| Error::invalid(format!("a similarity needs {source}")))
        };
        let (width, image) = read(value("vision_tower.image_embeds")?, &task.name, None)?;
        let text_embeds = value("text_tower.text_embeds")?;
        let (&[_, text_width], texts) = (text_embeds.shape(), text_embeds.to_f32()?) else {
            let message = format!("text embeddings of shape {:?}; [texts, N] is required", text_embeds.shape());
            return Err(Error::unsupported(message));
        };
        numbers(&texts)?;
        if width != text_width {
            return Err(Error::corrupt(format!(
                "image embeddings have {width} dimensions, text embeddings {text_width}"
            )));
        }
        let image = normalized(&image);
        let cosine = |row: &[f32]| normalized(row).iter().zip(&image).map(|(a, b)| a * b).sum::<f32>();
        let cosines: Vec<f32> = texts.chunks_exact(width).map(cosine).collect();
        let scaled: Vec<f32> = cosines.iter().map(|cosine| cosine * CLIP_LOGIT_SCALE).collect();
        let names = texts_of(user, inputs)?;
        let mut ranking: Vec<(String, f32, f32)> = names
            .iter()
            .zip(cosines.iter().zip(softmax(&scaled)))
            .map(|(name, (&cosine, probability))| ((*name).to_owned(), cosine, probability))
            .collect();
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
        let outputs = vec![
            Output::new("image_embeds", &[width], &image),
            Output::new("cosine_similarity", &[cosines.len()], &cosines),
        ];
        Ok((Answer::Ranking { texts: ranking }, outputs))
    }
}

/// The texts of the user, or the input text if the user has none.
fn texts_of<'a>(user: &'a User, inputs: &'a Inputs) -> Result<Vec<&'a str>> {
    match user.texts.as_slice() {
        [] => Ok(vec![inputs.text()?]),
        texts => Ok(texts.iter().map(String::as_str).collect()),
    }
}

/// A tokenized text.
struct Text {
    batch: TokenBatch,
    /// The number of tokens of the prompt of sentence-transformers, at the beginning.
    prompt_tokens: usize,
}

/// Token ids as a value `[1, tokens]`.
pub(super) fn token_value(tokens: &[i64]) -> Result<Value> {
    Array::i64([1, tokens.len()], tokens.to_vec()).map(Value::from)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
