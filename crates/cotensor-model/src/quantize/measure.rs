//! How far the outputs of quantized graphs are from those of the graphs of full precision.

use super::closeness::Closeness;
use super::watch::{Progress, run_samples};
use crate::engine::{Engine, FileMode, LoadedGraph, Output, OutputAllocator, RtenEngine};
use crate::graph::Port;
use crate::pipeline::{Samples, argmax};
use crate::preprocess::family::LOGITS;
use crate::quantized::OutputErrors;
use crate::tensor::{Array, TensorRef};
use cotensor_core::sync::lock;
use cotensor_core::{DType, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The input of graphs that has the tokens.
const TOKENS: &str = "input_ids";

/// The differences of a graph's outputs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Difference {
    wrong: f64,
    all: f64,
    divergence: f64,
    agreed: usize,
    compared: usize,
    /// Whether logits are those of next tokens.
    is_decoded: bool,
    /// The tokens that the graph read.
    tokens: Option<u64>,
}

impl Difference {
    /// None yet, of a graph whose logits are those of next tokens, or have another meaning.
    pub(super) fn new(is_decoded: bool) -> Self {
        Self { is_decoded, ..Self::default() }
    }

    /// What was measured of a graph, with the embeddings that it is a part of.
    fn errors(&self, embeddings: Option<&Closeness>) -> OutputErrors {
        let (divergence, top1) = self.of_tokens().unzip();
        OutputErrors {
            output_error: self.relative_error(),
            divergence,
            top1,
            cosine: embeddings.map(|found| found.cosine),
            neighbours: embeddings.and_then(|found| found.neighbours),
            tokens: self.tokens,
        }
    }

    /// The relative error of all outputs in the L2 norm; NaN for outputs that are not numbers. `None` if nothing was compared.
    pub(super) fn relative_error(&self) -> Option<f64> {
        (self.all != 0.0).then(|| self.relative())
    }

    /// The same: 0 for equal numbers, infinite for others than zeros.
    pub(super) fn relative(&self) -> f64 {
        if self.wrong == 0.0 { 0.0 } else { (self.wrong / self.all).sqrt() }
    }

    /// For the next token of a decoder, the mean divergence (Kullback-Leibler, in nats) and the share of equal first choices.
    fn of_tokens(&self) -> Option<(f64, f64)> {
        let count = self.compared as f64;
        (self.compared > 0).then(|| (self.divergence / count, self.agreed as f64 / count))
    }

    /// What widths are chosen by: the divergence of the next tokens of a decoder, whose caches other errors are those of, else the squared
    /// relative error of all outputs. `None` if nothing was compared.
    pub(super) fn loss(&self) -> Option<f64> {
        self.of_tokens().map(|(divergence, _)| divergence).or_else(|| self.relative_error().map(|error| error * error))
    }

    /// Adds the output `name` of both graphs. Those of integers and of different shapes do not count.
    pub(super) fn add_output(&mut self, name: &str, full: &Array, other: &Array) {
        let (Ok(values), Ok(others)) = (TensorRef::from(full).to_f32(), TensorRef::from(other).to_f32()) else {
            return;
        };
        if full.shape() != other.shape() {
            return;
        }
        self.add(&values, &others);
        // `[batch, tokens, vocabulary]`
        if let (true, LOGITS, &[_, _, vocabulary]) = (self.is_decoded, name, full.shape()) {
            self.add_tokens(&values, &others, vocabulary.max(1));
        }
    }

    pub(super) fn add(&mut self, full: &[f32], other: &[f32]) {
        for (full, other) in full.iter().zip(other) {
            self.wrong += (f64::from(*full) - f64::from(*other)).powi(2);
            self.all += f64::from(*full).powi(2);
        }
    }

    fn add_tokens(&mut self, full: &[f32], other: &[f32], vocabulary: usize) {
        for (full, other) in full.chunks_exact(vocabulary).zip(other.chunks_exact(vocabulary)) {
            self.agreed += usize::from(argmax(full) == argmax(other));
            let (full, other) = (log_probabilities(full), log_probabilities(other));
            self.divergence += full.iter().zip(&other).map(|(full, other)| full.exp() * (full - other)).sum::<f64>();
            self.compared += 1;
        }
    }
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().fold(f64::NEG_INFINITY, |most, logit| most.max(f64::from(*logit)));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - most - sum.ln()).collect()
}

/// Runs the model in `folder` on the samples at `indices`, and each graph of it that `quantized` has on the same inputs, too. A model whose
/// answers are embeddings then runs with the quantized graphs. `is_decoded`: its logits are those of next tokens. Returns the errors by the file
/// of the graph in `folder`.
///
/// # Errors
/// As [`run_samples`].
pub(super) fn compare(
    folder: &Path,
    quantized: &Path,
    samples: &Samples,
    indices: &[usize],
    is_decoded: bool,
    progress: &mut Progress<'_>,
) -> Result<HashMap<PathBuf, OutputErrors>> {
    let found: Arc<Mutex<HashMap<PathBuf, Difference>>> = Arc::default();
    let (from, to) = (folder.to_path_buf(), quantized.to_path_buf());
    let other_of = move |path: &Path| {
        let other = to.join(path.strip_prefix(&from).unwrap_or(path));
        other.is_file().then_some(other)
    };
    let (differences, other) = (Arc::clone(&found), other_of.clone());
    let both = move |engine: &RtenEngine, path: &Path| -> Result<Arc<dyn LoadedGraph>> {
        let full = engine.load_file(path, FileMode::Read)?;
        let Some(other) = other(path) else { return Ok(full) };
        let other = engine.load_file(&other, FileMode::Read)?;
        let (path, differences) = (path.to_path_buf(), Arc::clone(&differences));
        Ok(Arc::new(ComparedGraph { full, other, path, is_decoded, differences }))
    };
    let mut step = |done, all| progress("comparing outputs", done, all);
    let full = run_samples(folder, samples, indices, Box::new(both), &mut step)?.embeddings;
    let mut embeddings = None;
    if !full.is_empty() {
        let quantized = move |engine: &RtenEngine, path: &Path| {
            engine.load_file(&other_of(path).unwrap_or_else(|| path.to_path_buf()), FileMode::Read)
        };
        let mut step = |done, all| progress("comparing embeddings", done, all);
        let others = run_samples(folder, samples, indices, Box::new(quantized), &mut step)?.embeddings;
        embeddings = Some(Closeness::of(&full, &others));
    }
    let found = std::mem::take(&mut *lock(&found));
    Ok(found.into_iter().map(|(path, difference)| (path, difference.errors(embeddings.as_ref()))).collect())
}

/// A graph of full precision that runs a quantized one beside it.
struct ComparedGraph {
    full: Arc<dyn LoadedGraph>,
    other: Arc<dyn LoadedGraph>,
    path: PathBuf,
    is_decoded: bool,
    differences: Arc<Mutex<HashMap<PathBuf, Difference>>>,
}

impl LoadedGraph for ComparedGraph {
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        let made = self.full.run(inputs, outputs, allocator)?;
        let others = self.other.run_alone(inputs, outputs)?;
        let mut differences = lock(&self.differences);
        let difference = differences.entry(self.path.clone()).or_insert_with(|| Difference::new(self.is_decoded));
        if let Some((_, tokens)) = inputs.iter().find(|(name, _)| *name == TOKENS) {
            *difference.tokens.get_or_insert_default() += tokens.shape().iter().product::<usize>() as u64;
        }
        for (name, (full, other)) in outputs.iter().zip(made.iter().zip(&others)) {
            if let Output::Array(full) = full {
                difference.add_output(name, full, other);
            }
        }
        Ok(made)
    }

    fn precision(&self) -> DType {
        self.full.precision()
    }

    fn inputs(&self) -> &[Port] {
        self.full.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.full.outputs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_agree_or_not() {
        let mut difference = Difference::default();
        assert!(
            difference.relative_error().is_none() && difference.of_tokens().is_none() && difference.loss().is_none()
        );
        let errors = Difference { wrong: 1.0, all: 25.0, ..difference };
        assert!(errors.loss().is_some_and(|loss| (loss - 0.04).abs() < 1e-12));
        let logits = [1.0, 3.0, 2.0, 0.0, 0.0, 5.0];
        difference.add_tokens(&logits, &logits, 3);
        assert_eq!(difference.of_tokens(), Some((0.0, 1.0)));
        // Other outputs are caches of a decoder.
        difference.add(&[3.0, 4.0], &[3.0, 3.0]);
        assert_eq!((difference.loss(), difference.relative_error()), (Some(0.0), Some(0.2)));
        let mut difference = Difference { wrong: 0.0, all: 0.0, ..difference };
        // Another constant for all tokens changes no probability.
        difference.add_tokens(&[0.0, 1.0], &[7.0, 8.0], 2);
        let (divergence, agreed) = difference.of_tokens().unwrap();
        assert!(divergence.abs() < 1e-12 && agreed == 1.0);
        difference.add_tokens(&[0.0, 2.0], &[2.0, 0.0], 2);
        let (divergence, agreed) = difference.of_tokens().unwrap();
        // KL of (0.119, 0.881) from its reverse: 2 · 0.762.
        assert!((divergence - 1.523_188 / 4.0).abs() < 1e-5 && agreed == 0.75, "{divergence} {agreed}");
        difference.add(&[3.0, 4.0], &[3.0, 3.0]);
        assert_eq!(difference.relative_error(), Some(0.2));
        difference.add(&[f32::NAN], &[1.0]);
        assert!(difference.relative_error().is_some_and(f64::is_nan), "measured");
    }
}
