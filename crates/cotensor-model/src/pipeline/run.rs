//! One user's task: stages in order, each run only when its result is not there yet.

use super::answer::{Answer, Output, best, normalized, rows, softmax};
use super::{Inputs, User, generate};
use crate::array::Array;
use crate::family::{AnswerKind, StageDef, Task};
use crate::model::{Model, OWN_HEAD};
use crate::preprocess::{TextProcessor, TokenBatch};
use crate::stage::{Stage, StageRun};
use crate::value::Value;
use cotensor_core::{ContentHash, Error, Result};
use cotensor_store::{Holder, Lease};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The temperature that CLIP's published checkpoints were trained to (their logit scale is clamped at 100).
const CLIP_LOGIT_SCALE: f32 = 100.0;

/// What one user got, and what it took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserReport {
    /// The user's name.
    pub user: String,
    /// Its task.
    pub task: String,
    /// The model's name.
    pub model: String,
    /// The answer.
    pub answer: Answer,
    /// The numbers behind it.
    pub outputs: Vec<Output>,
    /// What had to be ready before the stages, in order: `tokenizer` (opened), `text`, `image`, `audio` (preprocessed).
    pub prepared: Vec<StageReport>,
    /// What ran, in order.
    pub stages: Vec<StageReport>,
    /// Milliseconds that went into this report's signatures alone: a private copy has no other use for its inputs' hashes.
    pub report_ms: f64,
    /// What was served differently than asked: a truncated text, resampled audio.
    pub notices: Vec<String>,
}

/// One stage's part in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StageReport {
    /// Its role.
    pub role: String,
    /// What was run: stages with equal signature on equal input give equal results.
    pub signature: String,
    /// Its space; none for a private copy.
    pub space: Option<String>,
    /// Whether this user ran it; otherwise the result was there.
    pub computed: bool,
    /// Milliseconds that this user spent opening it.
    pub load_ms: f64,
    /// Milliseconds that this user spent running it or waiting for its result.
    pub run_ms: f64,
}

impl StageReport {
    /// A report on something that is no stage of a graph; nothing took time yet.
    fn without_stage(role: &str, signature: &str, computed: bool) -> Self {
        let (role, signature) = (role.to_owned(), signature.to_owned());
        Self { role, signature, space: None, computed, load_ms: 0.0, run_ms: 0.0 }
    }
}

/// Runs `user`'s task with `model` on `inputs`; leases are counted for `holder`.
///
/// # Errors
/// `Invalid` for a task that the family cannot do or an input that is missing; else what opening or running gives.
pub fn run_user(model: &Model, user: &User, inputs: &Inputs, holder: &Holder) -> Result<UserReport> {
    run_user_keeping(model, user, inputs, holder).map(|(report, _)| report)
}

/// As [`run_user`], with leases on what the stages made: by kind (`vision_embedding`), the last of each. Results that
/// were not shared (a list of texts, a refused kind) have no lease.
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
            if def.inputs.values().any(|source| source.starts_with("text.")) {
                if user.texts.len() > 1 {
                    last = Some(self.encode_each(def, user, inputs)?);
                    continue;
                }
                batch = Some(self.encode_texts(&texts_of(user, inputs)?)?);
            }
            last = Some(self.encode(def, inputs, task.head)?);
        }
        let mut last = last.ok_or_else(|| Error::invalid(format!("task {:?} has no stages", task.name)))?;
        let head = user.head.as_deref().unwrap_or(OWN_HEAD);
        let trunk = task.stages.last().map_or("", String::as_str);
        if task.head
            && let Some(stage) = self.load_head(user, trunk)?
        {
            let [input] = stage.graph().inputs() else {
                return Err(Error::invalid("a head has exactly one input").in_field(head));
            };
            let output = first_output(&stage)?;
            let input = input.clone();
            last = self.one(&stage, &[(&input, &last)], &output, user.name.as_str())?;
        }
        self.answer(task.answer, user, inputs, head, &last, batch.as_ref())
    }

    /// The head that the user names, or the model's own. `None` when the trunk's stage ran to the end of the graph.
    fn load_head(&mut self, user: &User, trunk: &str) -> Result<Option<Arc<Stage>>> {
        let start = Instant::now();
        let stage = match &user.head {
            Some(name) => Some(self.model.head(name)?),
            None => self.model.own_head(trunk)?,
        };
        if let Some(stage) = &stage {
            self.note_load(&stage.role, stage, start);
        }
        Ok(stage)
    }

    /// Runs a stage of the family on the values that its definition names; returns its first output. A private copy
    /// of a graph that is trunk and head in one gives what it ends in, if `to_end`.
    pub(super) fn encode(&mut self, def: &StageDef, inputs: &Inputs, to_end: bool) -> Result<Value> {
        let stage = self.load(&def.role, |model| model.stage(&def.role))?;
        let optional = def.inputs_optional.iter().filter(|(name, _)| stage.graph().inputs().contains(name));
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
                    Error::invalid(format!("stage {:?} needs {source}, which nothing made", def.role))
                })?,
            };
            bound.push((name.as_str(), value));
        }
        let bound: Vec<(&str, &Value)> = bound.iter().map(|(name, value)| (*name, value)).collect();
        let output =
            def.outputs.first().ok_or_else(|| Error::invalid(format!("stage {:?} has no output", def.role)))?;
        let value = match stage.graph().outputs() {
            [end, ..] if to_end && def.cut && !stage.graph().outputs().contains(output) => {
                self.one(&stage, &bound, &end.clone(), "")?
            }
            _ => self.one(&stage, &bound, output, "")?,
        };
        self.values.insert(format!("{}.{output}", def.role), value.clone());
        Ok(value)
    }

    /// Runs a text stage on each of the user's texts by itself, so that a text is computed once however the lists that
    /// it stands in differ, and no graph sees padding. The rows together are the stage's output.
    fn encode_each(&mut self, def: &StageDef, user: &User, inputs: &Inputs) -> Result<Value> {
        let mut all = Vec::new();
        for text in &user.texts {
            self.encode_texts(&[text])?;
            all.extend_from_slice(self.encode(def, inputs, false)?.as_f32()?);
        }
        let value = Value::from(Array::f32([user.texts.len(), all.len() / user.texts.len()], all)?);
        if let Some(output) = def.outputs.first() {
            self.values.insert(format!("{}.{output}", def.role), value.clone());
        }
        Ok(value)
    }

    fn encode_texts(&mut self, texts: &[&str]) -> Result<TokenBatch> {
        let tokenizer = self.tokenizer()?;
        let start = Instant::now();
        let batch = tokenizer.encode(texts)?;
        let signature = format!("text:{}", ContentHash::of(texts.join("\n").as_bytes()).short());
        self.note_prepared("text", &signature, true, start);
        for (text, _) in texts.iter().zip(&batch.truncated).filter(|(_, truncated)| **truncated) {
            let start: String = text.chars().take(32).collect();
            self.notices.push(format!("the text {start:?}… is longer than the model reads and was truncated"));
        }
        self.values.insert("text.ids".into(), Value::from(batch.ids.clone()));
        self.values.insert("text.mask".into(), Value::from(batch.mask.clone()));
        self.values.insert("text.types".into(), Value::from(batch.type_ids.clone()));
        Ok(batch)
    }

    /// Opens a stage and notes what that took.
    pub(super) fn load(&mut self, role: &str, open: impl FnOnce(&Model) -> Result<Arc<Stage>>) -> Result<Arc<Stage>> {
        let start = Instant::now();
        let stage = open(self.model)?;
        self.note_load(role, &stage, start);
        Ok(stage)
    }

    /// The tokenizer; what it took to open is noted once.
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

    /// Runs a stage for one output. `part` tells apart stages of the same role on the same input.
    pub(super) fn one(&mut self, stage: &Stage, inputs: &[(&str, &Value)], output: &str, part: &str) -> Result<Value> {
        let mut run = stage.run(inputs, &[output], self.holder)?;
        let start = Instant::now();
        let input = inputs.iter().map(|(_, value)| value.identity().short()).collect::<Vec<_>>().join("+");
        self.report_ms += milliseconds(start.elapsed());
        self.note(stage, &run, &format!("{}:{part}:{output}:{input}", stage.role));
        run.outputs.pop().ok_or_else(|| Error::corrupt(format!("stage {:?} gave no {output}", stage.role)))
    }

    /// Notes a run with the stage's loading, or apart when that has one already.
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
        kind: AnswerKind,
        user: &User,
        inputs: &Inputs,
        head: &str,
        last: &Value,
        batch: Option<&TokenBatch>,
    ) -> Result<(Answer, Vec<Output>)> {
        let (width, values) = rows(last)?;
        let embedding = |name: &str, vector: Vec<f32>| {
            let output = Output::new(name, &[vector.len()], &vector);
            (Answer::Embedding { width: vector.len() }, vec![output])
        };
        Ok(match kind {
            AnswerKind::Label => {
                let (index, probability) = best(&values[..width])?;
                let label = self.model.labels(head, width)?.swap_remove(index);
                (Answer::Label { label, probability }, vec![Output::new("logits", last.shape(), values)])
            }
            AnswerKind::LabelPerToken => {
                let batch = batch.ok_or_else(|| Error::invalid("labels per token need a text"))?;
                let labels = self.model.labels(head, width)?;
                let mut tokens = Vec::new();
                for (row, &id) in values.chunks_exact(width).zip(batch.ids.as_i32()?) {
                    let token = self.model.text()?.token(id).unwrap_or_default();
                    if !self.model.text()?.is_special(id) {
                        tokens.push((token, labels[best(row)?.0].clone()));
                    }
                }
                (Answer::Tokens { tokens }, vec![Output::new("logits", last.shape(), values)])
            }
            AnswerKind::MeanPool => {
                let mask = batch.ok_or_else(|| Error::invalid("a sentence embedding needs a text"))?.mask.as_i32()?;
                let mut mean = vec![0f32; width];
                for (row, _) in values.chunks_exact(width).zip(mask).filter(|(_, keep)| **keep != 0) {
                    mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
                let count = mask.iter().filter(|keep| **keep != 0).count().max(1) as f32;
                mean.iter_mut().for_each(|sum| *sum /= count);
                embedding("sentence_embedding", normalized(&mean))
            }
            AnswerKind::FirstToken => embedding("embedding", normalized(&values[..width])),
            AnswerKind::Embedding => embedding("embedding", normalized(&values[..width])),
            AnswerKind::Similarity => self.similarity(user, inputs)?,
            AnswerKind::Transcript | AnswerKind::Language => {
                return Err(Error::invalid("decoding tasks are answered by their own loop"));
            }
        })
    }

    fn similarity(&self, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
        let value = |source: &str| {
            self.values.get(source).ok_or_else(|| Error::invalid(format!("a similarity needs {source}")))
        };
        let (width, image) = rows(value("vision_tower.image_embeds")?)?;
        let (text_width, texts) = rows(value("text_tower.text_embeds")?)?;
        if width != text_width {
            return Err(Error::corrupt(format!(
                "image embeddings have {width} dimensions, text embeddings {text_width}"
            )));
        }
        let image = normalized(&image[..width]);
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

/// The user's own texts, or the input text when it has none.
fn texts_of<'a>(user: &'a User, inputs: &'a Inputs) -> Result<Vec<&'a str>> {
    match user.texts.as_slice() {
        [] => Ok(vec![inputs.text()?]),
        texts => Ok(texts.iter().map(String::as_str).collect()),
    }
}

/// The only output that a head's users read: its first.
fn first_output(stage: &Stage) -> Result<String> {
    let first = stage.graph().outputs().first().cloned();
    first.ok_or_else(|| Error::corrupt(format!("{:?} has no outputs", stage.role)))
}

/// An array as a value, for inputs made on the way.
pub(super) fn token_value(tokens: &[i32]) -> Result<Value> {
    Array::i32([1, tokens.len()], tokens.to_vec()).map(Value::from)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
