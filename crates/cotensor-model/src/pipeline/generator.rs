//! Runs the decoder of a model: a decoding is one result, which users with equal settings share.

use super::decode::{Decoded, Decoder, DecoderGraph, Embeds, OnToken, decode};
use super::run::Run;
use crate::engine::{Output, OwnMemory};
use crate::stage::Stage;
use crate::tensor::{Array, Value};
use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_pipeline::{Writing, check_logits};
use cotensor_preprocess::TextProcessor;
use cotensor_preprocess::family::{DecoderDef, LOGITS, Source, StageDef, Task};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Called with each piece of text as soon as its tokens are decoded. The pieces together are the text. An error stops
/// the decoding. A result of another caller comes in one piece.
pub type OnText<'a> = dyn FnMut(&str) -> Result<()> + 'a;

/// The stages of a decoder.
pub(super) struct Generator {
    def: &'static DecoderDef,
    prompt: (Arc<Stage>, &'static StageDef),
    step: (Arc<Stage>, &'static StageDef),
    embed: Option<Arc<Stage>>,
}

impl Generator {
    /// Opens the stages of the decoder for a task.
    ///
    /// # Errors
    /// `Unsupported` for a family without a decoder, or as [`Model::stage`](crate::model::Model::stage).
    pub(super) fn load(run: &mut Run<'_>, task: &Task) -> Result<Self> {
        let model = run.model;
        let family = model.family();
        let def = family.decoder.as_ref();
        let def = def.ok_or_else(|| Error::unsupported(format!("the {} family has no decoder", family.title)))?;
        let mut load = |role: &str| Ok::<_, Error>((run.load(role, |model| model.stage(role))?, family.stage(role)?));
        let roles = model.roles(task)?;
        let of_decoder = |role: &&str| family.is_of_decoder(role);
        let mut stages = roles.into_iter().filter(of_decoder).map(&mut load).collect::<Result<Vec<_>>>()?.into_iter();
        let prompt = stages.next().ok_or_else(|| Error::unsupported(format!("{} decodes nothing", task.name)))?;
        let step = stages.next().unwrap_or_else(|| (Arc::clone(&prompt.0), prompt.1));
        let embed = def.embed.as_deref().map(|role| load(role).map(|(stage, _)| stage)).transpose()?;
        Ok(Self { def, prompt, step, embed })
    }

    /// The scores of all tokens after `ids`: a stage result of its own, which users share.
    pub(super) fn scores(&self, run: &mut Run<'_>, ids: &[i64]) -> Result<Value> {
        let values = run.values.clone();
        let decoder = self.decoder(&values, None);
        let inputs = decoder.first_inputs(ids)?;
        let inputs: Vec<(&str, &Value)> = inputs.iter().map(|(name, value)| (name.as_str(), value)).collect();
        run.one(&self.prompt.0, &inputs, LOGITS, "start")
    }

    /// Decodes, unless the store has the tokens. Returns them, and whether this call decoded; then `on_text` got the pieces of the
    /// text.
    ///
    /// # Errors
    /// As [`Decoder::start`] and [`decode`]; the errors of `on_text`.
    pub(super) fn decode(
        &self,
        run: &mut Run<'_>,
        writing: &Writing<&TextProcessor>,
        on_text: &mut OnText<'_>,
    ) -> Result<(Vec<i64>, bool)> {
        let (prompt, settings) = (writing.prompt.as_slice(), &writing.decoding.settings);
        let values = run.values.clone();
        let embeds = self.embed.as_ref().map(|stage| Embeds::of(run.model, stage, &values)).transpose()?;
        let decoder = self.decoder(&values, embeds.as_ref());
        let rows_max = prompt.len() + settings.max;
        let of_prompt = self.identity(prompt, &values);
        let step_space = self.step.0.space().map_or(ContentHash::of(b""), |space| space.0);
        let mut on_token = |token: i64| writing.piece(token)?.map_or(Ok(()), |piece| on_text(&piece));
        let (copied, of_run) = (Cell::new(0), RefCell::new(Vec::new()));
        let (model, holder) = (run.model, run.holder);
        let stage = &self.prompt.0;
        let decoded = stage.run_once("decoding", &[settings.hash(), step_space, of_prompt], holder, |allocator| {
            let memory = OwnMemory::counted_by(allocator);
            let (state, scores) = if !self.reads_stages() {
                // Without an encoder, the prompt's cache is a result of its own: users with an equal prompt share it.
                let read = stage
                    .run_once("prompt", &[of_prompt], holder, |allocator| decoder.read_prompt(prompt, allocator))?;
                of_run.borrow_mut().extend(read.made());
                decoder.resume(&read.outputs, prompt.len(), rows_max, &memory)?
            } else if self.is_split() {
                let read = decoder.read_prompt(prompt, &memory)?.into_iter().map(Output::into_array);
                let read: Vec<Value> = read.map(|array| array.map(Value::from)).collect::<Result<_>>()?;
                decoder.resume(&read, prompt.len(), rows_max, &memory)?
            } else {
                decoder.start(prompt, rows_max, &memory)?
            };
            check_logits(&model.model_config(), scores.len())?;
            let on_token: &mut OnToken<'_> = &mut on_token;
            let Decoded { tokens, copied_bytes } = decode(state, scores, prompt, settings, on_token)?;
            copied.set(copied_bytes);
            Ok(vec![Array::i64([tokens.len()], tokens)?.into()])
        })?;
        if let Some(embeds) = &embeds {
            embeds.record_copies(run.model);
        }
        let signature = format!("decoding:{}:{}", settings.hash().short(), of_prompt.short());
        run.made.append(&mut of_run.into_inner());
        let others: Vec<&Stage> = std::iter::once(&self.prompt.0).chain(&self.embed).map(|stage| &**stage).collect();
        run.note_decoding(&self.step.0, &others, &decoded, &signature, copied.get());
        let tokens = decoded.outputs.first().ok_or_else(|| Error::corrupt("decoding gave nothing"))?.as_i64()?.to_vec();
        Ok((tokens, decoded.computed))
    }

    fn decoder<'d>(&'d self, values: &'d HashMap<Source, Value>, embed: Option<&'d Embeds<'d>>) -> Decoder<'d> {
        let half = |(stage, def): &'d (Arc<Stage>, &'static StageDef)| DecoderGraph { graph: &**stage.graph(), def };
        Decoder { def: self.def, prompt: half(&self.prompt), step: half(&self.step), values, embed }
    }

    /// The sources of other stages and of texts that the decoder's graphs read, in the order of their names.
    fn sources(&self) -> BTreeMap<String, &'static Source> {
        let halves = [&self.prompt, &self.step];
        let sources = halves.into_iter().flat_map(|(stage, def)| {
            let is_read = |name: &str| stage.graph().inputs().iter().any(|port| port.name == name);
            let all = def.inputs.iter().chain(&def.inputs_optional);
            all.filter(move |(name, _)| is_read(name)).map(|(_, source)| source)
        });
        sources.filter(|source| !source.is_of_decoder()).map(|source| (source.to_string(), source)).collect()
    }

    fn reads_stages(&self) -> bool {
        !self.sources().is_empty()
    }

    /// Whether the graphs run on two engines, which cannot read each other's values.
    fn is_split(&self) -> bool {
        self.prompt.0.runs_on().engine != self.step.0.runs_on().engine
    }

    /// What the decoder reads before its first token.
    fn identity(&self, prompt: &[i64], values: &HashMap<Source, Value>) -> ContentHash {
        let mut hasher = Hasher::new("cotensor prompt v1");
        hasher.number(prompt.len() as u64);
        prompt.iter().for_each(|&id| {
            hasher.number(id as u64);
        });
        if let Some(space) = self.embed.as_ref().and_then(|stage| stage.space()) {
            hasher.field(space.0.as_bytes());
        }
        let images = self.def.images.iter().map(|images| (images.features.to_string(), &images.features));
        for (name, source) in self.sources().into_iter().chain(images) {
            hasher.field(name.as_bytes());
            if let Some(value) = values.get(source) {
                hasher.field(value.identity().as_bytes());
            }
        }
        hasher.finish()
    }
}
