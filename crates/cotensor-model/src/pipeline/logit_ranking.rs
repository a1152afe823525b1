//! Scores texts against the input text with a causal language model.

use super::attention::check_attention;
use super::inputs::Inputs;
use super::run::Run;
use crate::stage::Stage;
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::{Error, Hasher, Result};
use cotensor_pipeline::{
    Answer, AttentionMemory, Output, User, check_numbers, check_vocabulary, empty_cache, lacks, scored, shape_of_one,
    vocabulary,
};
use cotensor_preprocess::family::{LOGITS, Source, StageDef, Task};
use cotensor_preprocess::{LogitScore, TokenBatch};

/// The label of results in the store.
const LABEL: &str = "logit of a pair v1";

impl Run<'_> {
    /// As [`rerank`](Self::rerank): the prompt is that of the chat template, and the score is made of the logits after it.
    pub(super) fn rank_by_logits(
        &mut self,
        task: &Task,
        user: &User,
        inputs: &Inputs,
    ) -> Result<(Answer, Vec<Output>)> {
        let query = inputs.text()?;
        let (score, function) = (self.model.logit_score()?, self.model.score_function()?);
        let template = self.model.chat()?.ok_or_else(|| {
            Error::unsupported("a causal language model needs a chat template to rank texts")
                .in_file(self.model.folder())
        })?;
        template.check_pairs()?;
        // Its limit is that of the module Transformer.
        let (sentence, tokenizer) = self.model.sentence()?;
        let instruction = sentence.prompt(None)?;
        let role = task.stages.first().map_or("", String::as_str);
        let def = self.model.family().stage(role)?;
        let stage = self.load(role, |model| model.stage(role))?;
        if !stage.has_output(LOGITS) {
            return Err(lacks(&task.name, def, stage.ports()));
        }
        let (mut all, mut tokens) = (Vec::new(), Vec::new());
        for (at, text) in user.texts.iter().enumerate() {
            let mut pair = || {
                let prompt = template.pair_prompt(instruction, query, text, score.begins_answer)?;
                let batch = tokenizer.encode_plain(&prompt)?;
                // Without its end, the prompt asks for no answer.
                if batch.truncated.contains(&true) {
                    return Err(
                        Error::invalid("the prompt with both texts is longer than the model reads").in_field("text")
                    );
                }
                check_vocabulary(&self.model.model_config(), batch.ids.as_i64()?.iter().copied())?;
                Ok((self.logit(def, &stage, &score, &batch)?, batch.added.len() as f32))
            };
            let (logit, count) = pair().map_err(|error: Error| error.prefixed(format_args!("text {at}")))?;
            all.push(logit);
            tokens.push(count);
        }
        Ok(scored(&user.texts, function, &all, &tokens, &vec![0.0; all.len()]))
    }

    /// The score of a prompt, from the store or computed.
    fn logit(&mut self, def: &StageDef, stage: &Stage, score: &LogitScore, batch: &TokenBatch) -> Result<f32> {
        let mut hasher = Hasher::new(LABEL);
        hasher.field(format!("{score:?}").as_bytes());
        for &id in batch.ids.as_i64()? {
            hasher.number(id as u64);
        }
        let key = hasher.finish();
        let mut memory = AttentionMemory::of(&self.model.model_config(), 1, batch.added.len());
        let reads_rows = stage.ports().input_of(def, &Source::TextLogits).is_some();
        if let Some((_, words)) = vocabulary(&self.model.model_config()).filter(|_| !reads_rows) {
            memory = memory.with_logits(words);
        }
        check_attention(&memory, self.model)?;
        self.set_texts(batch);
        let run = stage.run_once(LABEL, &[key], self.holder, |_| {
            let bound = self.text_inputs(def, stage)?;
            let bound: Vec<(&str, TensorRef<'_>)> =
                bound.iter().map(|(name, value)| Ok((*name, value.tensor()?))).collect::<Result<_>>()?;
            let output = stage.graph().run_alone(&bound, &[LOGITS]).map_err(|error| memory.explain(error))?.pop();
            let output = Value::from(output.ok_or_else(|| Error::corrupt("the graph gave no output"))?);
            let &[1, rows, width] = output.shape() else {
                let message = format!(
                    "a causal language model gives [1, tokens, vocabulary]; this one gives {:?}",
                    output.shape()
                );
                return Err(Error::unsupported(message).in_field(LOGITS));
            };
            let values = output.to_f32()?;
            let last = rows.checked_sub(1).and_then(|row| values.get(row * width..)).unwrap_or_default();
            check_numbers(last)?;
            Ok(vec![Array::f32([1], vec![score.score(last)?])?.into()])
        })?;
        self.note(stage, &run, &format!("{}::{LOGITS}:{}", stage.role, key.short()));
        let value = run.outputs.first().ok_or_else(|| Error::corrupt("the store lost a score"))?;
        value.to_f32()?.first().copied().ok_or_else(|| Error::corrupt("a score is one number"))
    }

    /// The inputs of a graph that reads one text.
    fn text_inputs<'s>(&self, def: &StageDef, stage: &'s Stage) -> Result<Vec<(&'s str, Value)>> {
        let ports = stage.graph().inputs().iter().map(|port| {
            let value = match def.source(&port.name) {
                Some(Source::CacheEmpty) => empty_cache(port)?.into(),
                Some(Source::TextLogits) => Array::i64(shape_of_one(port), vec![1])?.into(),
                source => source
                    .and_then(|source| self.values.get(source))
                    .cloned()
                    .ok_or_else(|| Error::unsupported("no text gives this input").in_field(port.name.as_str()))?,
            };
            Ok((port.name.as_str(), value))
        });
        ports.collect()
    }
}
