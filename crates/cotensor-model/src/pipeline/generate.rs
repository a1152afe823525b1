//! Greedy decoding with a key-value cache, for the two decoder graphs of Whisper.

use super::answer::{Answer, Output, argmax, numbers, softmax};
use super::definition::{NEW_TOKENS_MAX, User};
use super::generation_config::Special;
use super::inputs::Inputs;
use super::run::{Run, token_value};
use crate::engine::{LoadedGraph, Output as GraphOutput, OwnMemory};
use crate::model::Model;
use crate::stage::Stage;
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::{ContentHash, Error, Hasher, Result};
use std::collections::HashMap;

/// The most new tokens when neither the user nor the model sets a limit.
const DEFAULT_NEW_TOKENS: usize = 224;

/// The spoken language: the language token with the highest logit after one decoder step on the start token.
pub(super) fn identify_language(run: &mut Run<'_>, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
    let special = Special::of(run.model)?;
    let encoder = run.encode(run.model.family().stage("encoder")?, inputs)?;
    let decoder = run.load("decoder", |model| model.stage("decoder"))?;
    let (best, logits) = language(run, &decoder, &encoder, &special)?;
    let probability = softmax(&logits)[best];
    let language = special.languages[best].0.trim_matches(|c| matches!(c, '<' | '|' | '>')).to_owned();
    Ok((Answer::Language { language, probability }, vec![Output::new("language_logits", &[logits.len()], &logits)]))
}

/// The index of the language with the highest logit, and the logits of all languages.
fn language(run: &mut Run<'_>, decoder: &Stage, encoder: &Value, special: &Special) -> Result<(usize, Vec<f32>)> {
    let start = token_value(&[special.start])?;
    let inputs = [("input_ids", &start), ("encoder_hidden_states", encoder)];
    let logits = run.one(decoder, &inputs, "logits", "start")?;
    let all = logits.to_f32()?;
    let of_languages: Option<Vec<f32>> =
        special.languages.iter().map(|(_, id)| all.get(usize::try_from(*id).ok()?).copied()).collect();
    numbers(&all)?;
    let of_languages = of_languages.filter(|logits| !logits.is_empty()).ok_or_else(|| {
        Error::invalid("language tokens are missing or beyond the vocabulary")
            .in_file(run.model.folder().join("generation_config.json"))
            .in_field("lang_to_id")
    })?;
    Ok((argmax(&of_languages), of_languages))
}

/// Transcribes speech: identifies the language, a result that other users share, and decodes greedily.
pub(super) fn transcribe(run: &mut Run<'_>, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
    let special = Special::of(run.model)?;
    let encoder = run.encode(run.model.family().stage("encoder")?, inputs)?;
    let decoder = run.load("decoder", |model| model.stage("decoder"))?;
    let mut prompt = vec![special.start];
    // A checkpoint for one language has no language tokens.
    if !special.languages.is_empty() {
        let (best, _) = language(run, &decoder, &encoder, &special)?;
        prompt.push(special.languages[best].1);
        prompt.extend(special.transcribe);
    }
    prompt.extend(special.no_timestamps);
    let with_past = run.load("decoder_with_past", |model| model.stage("decoder_with_past"))?;
    let (limits, reason) = Limits::of(user, run.model, prompt.len(), &special)?;
    let mut settings = Hasher::new("cotensor greedy v2");
    for tokens in [&prompt, &special.suppressed, &special.suppressed_first] {
        settings.number(tokens.len() as u64);
        for &token in tokens {
            settings.number(token as u64);
        }
    }
    settings.number(limits.min as u64).number(limits.max as u64).number(limits.end as u64);
    let with_past_space = with_past.space().map_or(ContentHash::of(b""), |space| space.0);
    let extra = [settings.finish(), with_past_space, encoder.identity()];
    let decoded = decoder.run_once("greedy decoding", &extra, run.holder, |allocator| {
        let forbidden = |step: usize, token: i64| {
            special.suppressed.contains(&token) || (step == 0 && special.suppressed_first.contains(&token))
        };
        let graphs = Decoder { prompt: &**decoder.graph(), step: &**with_past.graph() };
        let tokens = greedy(&graphs, &prompt, &encoder, &limits, forbidden, &OwnMemory::counted_by(allocator))?;
        Ok(vec![Array::i64([tokens.len()], tokens)?.into()])
    })?;
    run.note(&with_past, &decoded, &format!("greedy:{}:{}", settings.finish().short(), encoder.identity().short()));
    let tokens = decoded.outputs.first().ok_or_else(|| Error::corrupt("decoding gave nothing"))?.as_i64()?;
    let tokenizer = run.tokenizer()?;
    let of_text = |token: &i64| !tokenizer.token(*token).is_some_and(|token| is_timestamp(&token));
    let ids: Vec<u32> = tokens.iter().filter(|token| of_text(token)).filter_map(|&id| u32::try_from(id).ok()).collect();
    let text = tokenizer.decode(&ids)?;
    if tokens.len() >= limits.max {
        run.notice(format!(
            "decoding was stopped after {} tokens ({reason}); the text may be incomplete",
            tokens.len()
        ));
    }
    let values: Vec<f32> = tokens.iter().map(|&token| token as f32).collect();
    let output = Output::new("tokens", &[tokens.len()], &values);
    Ok((Answer::Transcript { text: text.trim().to_owned(), tokens: tokens.len() }, vec![output]))
}

/// Whether a token is a timestamp of Whisper, such as `<|2.40|>`. transformers omits them, too, although they are not
/// special tokens.
fn is_timestamp(token: &str) -> bool {
    let number =
        token.strip_prefix("<|").and_then(|rest| rest.strip_suffix("|>")).and_then(|number| number.split_once('.'));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    number.is_some_and(|(seconds, fraction)| digits(seconds) && digits(fraction))
}

/// The limits of greedy decoding.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The fewest tokens before `end` counts.
    pub min: usize,
    /// The most tokens.
    pub max: usize,
    /// The token that ends the text; not part of the result.
    pub end: i64,
}

impl Limits {
    /// The limits of the user, else of generation_config.json, else the defaults, within the model's positions; and the
    /// origin of the maximum.
    fn of(user: &User, model: &Model, prompt: usize, special: &Special) -> Result<(Self, &'static str)> {
        let positions = model.config().get("max_target_positions").and_then(serde_json::Value::as_u64);
        let room = positions.map_or(usize::MAX, |positions| (positions as usize).saturating_sub(prompt));
        let room = room.min(NEW_TOKENS_MAX);
        let (configured_min, configured_max) = special.lengths.after(prompt);
        let (max, reason) = match (user.max_new_tokens, configured_max) {
            (Some(max), _) => (max, "max_new_tokens"),
            (None, Some(max)) if max <= room => (max, "the length in generation_config.json"),
            (None, None) if DEFAULT_NEW_TOKENS <= room => {
                (DEFAULT_NEW_TOKENS.max(user.min_new_tokens.unwrap_or(0)).min(room), "the default length")
            }
            (None, _) => (room, "the model's positions"),
        };
        let min = user.min_new_tokens.unwrap_or_else(|| configured_min.unwrap_or(0).min(max));
        if max > room || min > max || max == 0 {
            let message = format!("{min} to {max} tokens after a prompt of {prompt}; the model has room for {room}");
            return Err(Error::invalid(message).in_field(format!("{}.max_new_tokens", user.name)));
        }
        Ok((Self { min, max, end: special.end }, reason))
    }
}

/// The two graphs of a decoder with a key-value cache.
pub struct Decoder<'a> {
    /// Reads the prompt and fills the cache.
    pub prompt: &'a dyn LoadedGraph,
    /// Reads one token and extends the cache.
    pub step: &'a dyn LoadedGraph,
}

/// Decodes greedily. The cache stays in arrays of the engine, which reads them again at the next step; `allocator`
/// counts conversions.
///
/// # Errors
/// As [`LoadedGraph::run`]; `Corrupt` when the cache inputs and outputs of the graphs do not match.
pub fn greedy(
    decoder: &Decoder<'_>,
    prompt: &[i64],
    encoder: &Value,
    limits: &Limits,
    forbidden: impl Fn(usize, i64) -> bool,
    allocator: &OwnMemory<'_>,
) -> Result<Vec<i64>> {
    let ids_shape = [1, prompt.len()];
    let first = [("input_ids", TensorRef::i64(&ids_shape, prompt)?), ("encoder_hidden_states", encoder.tensor()?)];
    let names = |graph: &'_ dyn LoadedGraph| graph.outputs().iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    let run = |graph: &dyn LoadedGraph, inputs: &[(&str, TensorRef<'_>)], outputs: &[String]| {
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        graph.run(inputs, &outputs, allocator)?.into_iter().map(GraphOutput::into_array).collect::<Result<Vec<_>>>()
    };
    let mut cache: HashMap<String, Array> = HashMap::new();
    let mut logits = None;
    let prompt_outputs = names(decoder.prompt);
    for (name, array) in prompt_outputs.iter().zip(run(decoder.prompt, &first, &prompt_outputs)?) {
        store_output(&mut cache, &mut logits, name, array);
    }
    let step_outputs = names(decoder.step);
    let mut tokens = Vec::new();
    loop {
        let scores = logits.take().ok_or_else(|| Error::corrupt("the decoder has no output \"logits\""))?;
        let step = tokens.len();
        let allowed = |token: i64| !(forbidden(step, token) || token == limits.end && step < limits.min);
        let token = likeliest(&scores, allowed)?;
        if token == limits.end {
            return Ok(tokens);
        }
        tokens.push(token);
        if tokens.len() >= limits.max {
            return Ok(tokens);
        }
        let id = [token];
        let mut inputs = vec![("input_ids", TensorRef::i64(&[1, 1], &id)?)];
        for name in decoder.step.inputs().iter().map(|port| port.name.as_str()).filter(|name| *name != "input_ids") {
            let array = cache.get(name).ok_or_else(|| {
                Error::corrupt(format!("decoder_with_past reads {name}, which the decoder does not output"))
            })?;
            inputs.push((name, array.into()));
        }
        for (name, array) in step_outputs.iter().zip(run(decoder.step, &inputs, &step_outputs)?) {
            store_output(&mut cache, &mut logits, name, array);
        }
    }
}

/// Stores an output: the logits, or the cache entry for the next step (`present.X` becomes `past_key_values.X`).
fn store_output(cache: &mut HashMap<String, Array>, logits: &mut Option<Array>, name: &str, array: Array) {
    if name == "logits" {
        *logits = Some(array);
    } else if let Some(entry) = name.strip_prefix("present.") {
        cache.insert(format!("past_key_values.{entry}"), array);
    }
}

/// The allowed token with the highest logit in the last row; of several, the one with the lowest id.
fn likeliest(logits: &Array, allowed: impl Fn(i64) -> bool) -> Result<i64> {
    let logits = Value::from(logits.clone());
    let values = logits.to_f32()?;
    let vocabulary = logits.shape().last().copied().filter(|&size| size > 0 && values.len() >= size);
    let vocabulary = vocabulary.ok_or_else(|| Error::corrupt("logits without a vocabulary"))?;
    numbers(&values[values.len() - vocabulary..])?;
    let mut best: Option<(i64, f32)> = None;
    for (token, &value) in values[values.len() - vocabulary..].iter().enumerate() {
        let token = token as i64;
        if best.is_none_or(|(_, highest)| value > highest) && allowed(token) {
            best = Some((token, value));
        }
    }
    best.map(|(token, _)| token).ok_or_else(|| Error::corrupt("no token is allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_recognized() {
        for timestamp in ["<|0.00|>", "<|29.98|>"] {
            assert!(is_timestamp(timestamp), "{timestamp}");
        }
        for text in ["<|en|>", "<|0|>", "<|.5|>", "<|1.|>", "0.00", "<|1.2.3|>", "<|-1.0|>"] {
            assert!(!is_timestamp(text), "{text}");
        }
    }

    #[test]
    fn allowed_token_with_the_highest_logit_is_chosen() {
        let logits = Array::f32([1, 2, 3], vec![9.0, 9.0, 9.0, 1.0, 3.0, 3.0]).unwrap();
        assert_eq!(likeliest(&logits, |_| true).unwrap(), 1);
        assert_eq!(likeliest(&logits, |token| token != 1).unwrap(), 2);
        assert!(likeliest(&logits, |_| false).is_err());
        assert!(likeliest(&Array::f32([1, 0], vec![]).unwrap(), |_| true).is_err());
        assert!(likeliest(&Array::f32([1, 2], vec![f32::NAN, 1.0]).unwrap(), |_| true).is_err());
        assert_eq!(argmax(&[1.0, 5.0, 5.0]), 1);
    }
}
