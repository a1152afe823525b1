//! The answer of a task, read from the outputs of its stages.

use super::answer::{Answer, Output, StageOutput, labelled};
use super::labels::Labels;
use super::numbers::{argmax, best};
use super::objects::{BOXES, DEFAULT_THRESHOLD, detected};
use super::report::Constant;
use super::similarity::{LogitScale, ranked};
use super::texts::Text;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{AnswerKind, Family, LOGITS, Medium, ModelConfig, Source, Task};
use cotensor_preprocess::{CtcDecoder, SentenceProcessor, TextProcessor, normalized};

/// The files of a model from which answers are read. Each is opened for the first answer that needs it.
pub trait AnswerFiles {
    /// config.json and the family.
    fn config(&self) -> ModelConfig<'_>;

    /// The labels of a head with `count` numbers.
    ///
    /// # Errors
    /// As [`Labels::of`].
    fn labels(&self, head: &str, count: usize) -> Result<Labels>;

    /// The tokenizer.
    ///
    /// # Errors
    /// As [`TextProcessor::open_for`].
    fn tokenizer(&self) -> Result<&TextProcessor>;

    /// The modules of sentence embeddings.
    ///
    /// # Errors
    /// As [`SentenceProcessor::open`].
    fn sentence(&self) -> Result<&SentenceProcessor>;

    /// The vocabulary of a recognizer of speech.
    ///
    /// # Errors
    /// As [`CtcDecoder::open`].
    fn ctc(&self) -> Result<&CtcDecoder>;

    /// The scale of similarities.
    ///
    /// # Errors
    /// `NotFound` when no file has it.
    fn logit_scale(&self) -> Result<&LogitScale>;
}

/// A task and its input, as far as the answer depends on them.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The task.
    pub task: &'a Task,
    /// The head whose labels are read.
    pub head: &'a str,
    /// The texts that are compared with another input.
    pub texts: &'a [&'a str],
    /// The lowest score of an object; `None` for the default.
    pub threshold: Option<f32>,
    /// Width and height of the image before preprocessing, in pixels.
    pub image_size: Option<(u32, u32)>,
    /// The tokens of the text.
    pub text: Option<&'a Text>,
}

/// An answer with the numbers behind it.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// The numbers.
    pub outputs: Vec<Output>,
    /// Notices about the files of the model.
    pub notices: Vec<String>,
    /// The numbers of the model's files that the answer depends on.
    pub constants: Vec<Constant>,
}

impl From<(Answer, Vec<Output>)> for Answered {
    fn from((answer, outputs): (Answer, Vec<Output>)) -> Self {
        Self { answer, outputs, notices: Vec::new(), constants: Vec::new() }
    }
}

/// The outputs of stages that the answer of a task is read from, with their names, in the order of [`read_answer`]; none if it is
/// read from the last output alone.
///
/// # Errors
/// `Invalid` for a task without the stages that its answer needs.
pub fn outputs_read<'a>(family: &'a Family, task: &Task) -> Result<Vec<(Source, &'a str)>> {
    match task.answer {
        AnswerKind::Similarity => {
            let defs = task.stages.iter().map(|role| family.stage(role)).collect::<Result<Vec<_>>>()?;
            let embedding = |of_text: bool| {
                let def = defs.iter().find(|def| def.reads(Medium::Text) == of_text);
                let output = def.and_then(|def| Some((def, def.outputs.first()?)));
                let (def, name) =
                    output.ok_or_else(|| Error::invalid(format!("{} needs two embeddings", task.name)))?;
                Ok((Source::stage(&def.role, name), name.as_str()))
            };
            Ok(vec![embedding(false)?, embedding(true)?])
        }
        AnswerKind::Objects => {
            let role = task.stages.last().map_or("", String::as_str);
            Ok([LOGITS, BOXES].map(|name| (Source::stage(role, name), name)).into())
        }
        _ => Ok(Vec::new()),
    }
}

/// The answer to `question` from the last output of the task, or from those that [`outputs_read`] names.
///
/// # Errors
/// `Unsupported` for an output of another shape, `Engine` for numbers that overflow, `Invalid` without an input that the answer
/// needs, and the errors of [`AnswerFiles`].
pub fn read_answer(model: &dyn AnswerFiles, question: &Question<'_>, outputs: &[StageOutput<'_>]) -> Result<Answered> {
    let task = question.task;
    let last = *outputs.first().ok_or_else(|| Error::invalid(format!("task {:?} has no stages", task.name)))?;
    match task.answer {
        AnswerKind::Label => {
            let width = last.width(task, None)?;
            let answer = labelled(last.values, model.labels(question.head, width)?)?;
            Ok((answer, vec![Output::new(LOGITS, last.shape, last.values)]).into())
        }
        AnswerKind::LabelPerToken => labelled_tokens(model, question, last),
        AnswerKind::Sentence => sentence(model, question, last),
        AnswerKind::Ctc => ctc(model, task, last),
        AnswerKind::FirstToken => {
            let width = last.width(task, Some(None))?;
            Ok(embedding("embedding", &normalized(&last.values[..width])))
        }
        AnswerKind::Embedding => {
            last.width(task, None)?;
            Ok(embedding("embedding", &normalized(last.values)))
        }
        AnswerKind::Similarity => similarity(model, question, outputs),
        AnswerKind::Objects => objects(model, question, outputs),
        AnswerKind::Text | AnswerKind::Transcript | AnswerKind::Language | AnswerKind::Scores => {
            Err(Error::invalid("this task has a loop of its own"))
        }
    }
}

fn embedding(name: &str, vector: &[f32]) -> Answered {
    (Answer::Embedding { width: vector.len() }, vec![Output::new(name, &[vector.len()], vector)]).into()
}

fn text_of<'a>(question: &Question<'a>) -> Result<&'a Text> {
    question.text.ok_or_else(|| Error::invalid(format!("{} needs a text", question.task.name)))
}

/// The two outputs of an answer that needs two.
fn two<'a>(task: &Task, outputs: &[StageOutput<'a>]) -> Result<(StageOutput<'a>, StageOutput<'a>)> {
    match *outputs {
        [first, second] => Ok((first, second)),
        _ => Err(Error::invalid(format!("{} needs two outputs", task.name))),
    }
}

/// The best label of each token that the tokenizer did not add.
fn labelled_tokens(model: &dyn AnswerFiles, question: &Question<'_>, last: StageOutput<'_>) -> Result<Answered> {
    let batch = &text_of(question)?.batch;
    let width = last.width(question.task, Some(Some(batch.added.len())))?;
    let labels = model.labels(question.head, width)?.names;
    let mut tokens = Vec::new();
    for ((row, &id), added) in last.values.chunks_exact(width).zip(batch.ids.as_i64()?).zip(&batch.added) {
        if !added {
            let token = model.tokenizer()?.token(id).unwrap_or_default();
            tokens.push((token, labels[best(row)?.0].clone()));
        }
    }
    Ok((Answer::Tokens { tokens }, vec![Output::new(LOGITS, last.shape, last.values)]).into())
}

/// The embedding of a text: the output of a graph that pools, or the pooled rows of the tokens.
fn sentence(model: &dyn AnswerFiles, question: &Question<'_>, last: StageOutput<'_>) -> Result<Answered> {
    const NAME: &str = "sentence_embedding";
    let (task, sentence) = (question.task, model.sentence()?);
    if task.result.as_deref() == Some(last.name) {
        last.width(task, None)?;
        let mut vector = last.values.to_vec();
        sentence.truncate(&mut vector);
        return Ok(embedding(NAME, &vector));
    }
    let Text { batch, prompt_tokens } = text_of(question)?;
    let width = last.width(task, Some(Some(batch.added.len())))?;
    let pooled = sentence.pool(last.values, width, batch.mask.as_i64()?, *prompt_tokens);
    let folder = model.config().folder;
    let at_folder = |error: Error| if error.file().is_some() { error } else { error.in_file(folder) };
    let notices = sentence.notice().map(str::to_owned).into_iter().collect();
    Ok(Answered { notices, ..embedding(NAME, &pooled.map_err(at_folder)?) })
}

/// The text of the best token of each frame.
fn ctc(model: &dyn AnswerFiles, task: &Task, last: StageOutput<'_>) -> Result<Answered> {
    let width = last.width(task, Some(None))?;
    let decoder = model.ctc()?;
    if decoder.size() > width {
        let message = format!("the vocabulary has {} tokens, the graph gives {width} numbers", decoder.size());
        return Err(Error::invalid(message).in_file(model.config().folder).in_field("vocab_size"));
    }
    let frames: Vec<u32> = last.values.chunks_exact(width).map(|row| argmax(row) as u32).collect();
    let (text, ids) = decoder.decode(&frames);
    let ids: Vec<i64> = ids.into_iter().map(i64::from).collect();
    Ok((Answer::Transcript { text, tokens: ids.len() }, vec![Output::of_tokens(&ids)]).into())
}

/// The texts by their similarity to another input. Scale and bias of the logits come from the files of the model.
fn similarity(model: &dyn AnswerFiles, question: &Question<'_>, outputs: &[StageOutput<'_>]) -> Result<Answered> {
    let (one, texts) = two(question.task, outputs)?;
    let (names, scale) = (model.config().family.similarity()?, model.logit_scale()?);
    let (answer, outputs) = ranked(&question.task.name, one, texts, question.texts, scale, names.probability)?;
    let notices = scale.notice(names).into_iter().collect();
    Ok(Answered { answer, outputs, notices, constants: scale.constants(names) })
}

/// The objects in the image.
fn objects(model: &dyn AnswerFiles, question: &Question<'_>, outputs: &[StageOutput<'_>]) -> Result<Answered> {
    let (logits, boxes) = two(question.task, outputs)?;
    let classes = logits.width(question.task, Some(None))?;
    boxes.width(question.task, Some(logits.shape.get(1).copied()))?;
    // The last class is "no object".
    let labels = model.labels(question.head, classes.saturating_sub(1))?.names;
    let size = question.image_size.ok_or_else(|| Error::invalid(format!("{} needs an image", question.task.name)))?;
    let threshold = question.threshold.unwrap_or(DEFAULT_THRESHOLD);
    let objects = detected(logits.values, boxes.values, &labels, size, threshold)?;
    let outputs = [(LOGITS, logits), (BOXES, boxes)];
    let outputs = outputs.map(|(name, output)| Output::new(name, output.shape, output.values));
    Ok((Answer::Objects { objects }, outputs.into()).into())
}
