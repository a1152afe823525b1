//! Quantizes the graphs of a model: fits codes on samples, chooses widths, and measures what they give.

use super::calibrate::Calibration;
use super::files::{io, make_parent};
use super::graph::{Plan, candidates, write_graph};
use super::measure::compare;
use super::options::QuantizeOptions;
use super::plan::{self, Choice, Form};
use super::watch::Progress;
use crate::engine::RtenEngine;
use crate::pipeline::Samples;
use crate::quantized::{GraphReport, MixedReport, QuantizeReport, bits_per_weight};
use cotensor_core::{Error, Result};
use cotensor_quant::Width;
use std::fs;
use std::path::{Path, PathBuf};

/// The fewest different samples.
const SAMPLES_MIN: usize = 16;
/// The most samples that are used.
const SAMPLES_MAX: usize = 512;
/// Of so many samples, one is held out.
const HELD_OUT: usize = 5;
/// The folder with graphs of one width, inside of the work folder.
const UNIFORM: &str = ".uniform";

/// The graphs of a model, and how they are quantized.
pub(super) struct Job<'j> {
    pub(super) folder: &'j Path,
    /// Relative to the folder.
    pub(super) graphs: &'j [PathBuf],
    pub(super) options: &'j QuantizeOptions,
    pub(super) samples: Option<&'j Divided<'j>>,
}

impl Job<'_> {
    /// Writes the graphs to `target`.
    pub(super) fn run(&self, target: &Path, report: &mut QuantizeReport, progress: &mut Progress<'_>) -> Result<()> {
        let Some(samples) = self.samples else {
            report.graphs = self.write(target, &Plan::uniform(self.options, None), progress)?;
            return Ok(());
        };
        (report.samples, report.held_out) = (samples.known.len(), samples.held_out.len());
        report.engine = Some(RtenEngine::describe());
        let mut step = |done, all| progress("running samples", done, all);
        let calibration = Calibration::of_samples(
            self.folder,
            samples.all,
            &samples.known,
            self.options,
            self.graphs.len() == 1,
            &mut step,
        )?;
        let uniform = Plan::uniform(self.options, Some(&calibration));
        if let Some(max_error) = self.options.max_error {
            report.graphs = self.smallest(samples, &calibration, max_error, target, progress)?;
            return Ok(());
        }
        let Some(target_bits) = self.options.mixed_bits else {
            report.graphs = self.write(target, &uniform, progress)?;
            self.measure(samples, &calibration, target, &mut report.graphs, progress)?;
            return Ok(());
        };
        let (mixed, widest) = self.plan(&uniform, target_bits, progress)?;
        let mut graphs = self.write(target, &mixed, progress)?;
        let own = self.measure(samples, &calibration, target, &mut graphs, progress)?;
        let mut found = MixedReport {
            target_bits,
            bits: bits_per_weight(&graphs),
            uniform_bits: None,
            output_error: own.output_error,
            uniform_output_error: None,
            divergence: own.divergence,
            uniform_divergence: None,
            is_mixed: true,
            runs: calibration.runs(),
        };
        if let Some(Form { width, group }) = widest {
            let options = QuantizeOptions { width, group, ..self.options.clone() };
            let other = target.join(UNIFORM);
            let mut others = self.write(&other, &Plan::uniform(&options, Some(&calibration)), progress)?;
            let uniform = self.measure(samples, &calibration, &other, &mut others, progress)?;
            (found.uniform_output_error, found.uniform_divergence) = (uniform.output_error, uniform.divergence);
            found.uniform_bits = Some(bits_per_weight(&others));
            found.is_mixed = is_mixed_better(own.loss(), uniform.loss());
            if !found.is_mixed {
                self.move_graphs(&other, target)?;
                graphs = others;
            }
            fs::remove_dir_all(&other).map_err(io("removing", &other))?;
        }
        (report.graphs, report.mixed) = (graphs, Some(found));
        Ok(())
    }

    /// Writes the graphs with the smallest width for which the outputs of each have at most an error.
    fn smallest(
        &self,
        samples: &Divided<'_>,
        calibration: &Calibration,
        max_error: f64,
        target: &Path,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<GraphReport>> {
        let mut least = None;
        for width in Width::ALL {
            let options = QuantizeOptions { width, ..self.options.clone() };
            let tried = target.join(UNIFORM);
            let mut graphs = self.write(&tried, &Plan::uniform(&options, Some(calibration)), progress)?;
            let error = self.measure(samples, calibration, &tried, &mut graphs, progress)?.largest_error;
            let is_small = error.is_some_and(|error| error <= max_error);
            if is_small {
                self.move_graphs(&tried, target)?;
            }
            fs::remove_dir_all(&tried).map_err(io("removing", &tried))?;
            if is_small {
                return Ok(graphs);
            }
            least = error;
        }
        let found = least.map_or_else(|| "none were compared".to_owned(), |error| format!("{error:.4} with 8 bits"));
        let message = format!("no width has outputs with an error of at most {max_error}: {found}");
        Err(Error::unsupported(message).in_file(self.folder).in_field("max-error"))
    }

    /// Forms of their own for all matrices, and the largest single form with at most as many bits.
    ///
    /// # Errors
    /// `Invalid` for fewer bits than the smallest forms have; as [`candidates`].
    fn plan<'p>(
        &self,
        uniform: &Plan<'p>,
        target_bits: f64,
        progress: &mut Progress<'_>,
    ) -> Result<(Plan<'p>, Option<Form>)> {
        let (mut names, mut choices, mut measured, mut elements) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let all = Form::all(uniform.options.group, uniform.options.scheme)?;
        for graph in self.graphs {
            let path = self.folder.join(graph);
            let found = candidates(&path, uniform, &all, &mut |name, done, all| {
                progress(&format!("{}: widths of {name}", graph.display()), done, all);
            })?;
            for one in found {
                names.push((path.clone(), one.name));
                choices.push(one.choices);
                measured.push(one.share);
                elements += one.elements;
            }
        }
        for (choices, share) in choices.iter_mut().zip(plan::shares(&measured)) {
            choices.iter_mut().for_each(|choice| choice.error *= share);
        }
        let bits_max = target_bits * elements as f64;
        check_target(&choices, target_bits, elements as f64)?;
        let chosen = plan::choose(&choices, bits_max);
        let forms = names.into_iter().zip(chosen.into_iter().map(|at| all[at])).collect();
        let fits = |at: &usize| choices.iter().map(|choices| choices[*at].bits).sum::<f64>() <= bits_max;
        let widest = (0..all.len()).rev().find(fits).map(|at| all[at]);
        Ok((Plan { options: uniform.options, calibration: uniform.calibration, forms }, widest))
    }

    /// Writes all graphs.
    fn write(&self, target: &Path, plan: &Plan<'_>, progress: &mut Progress<'_>) -> Result<Vec<GraphReport>> {
        let one = |graph: &PathBuf| {
            let (from, to) = (self.folder.join(graph), target.join(graph));
            let file = graph.display().to_string();
            make_parent(&to)?;
            let found = write_graph(&from, &to, plan, &mut |matrix, done, all| {
                progress(&format!("{file}: {matrix}"), done, all);
            })?;
            Ok(GraphReport { file, ..found })
        };
        self.graphs.iter().map(one).collect()
    }

    /// Compares the outputs of graphs on the samples that were held out.
    fn measure(
        &self,
        samples: &Divided<'_>,
        calibration: &Calibration,
        quantized: &Path,
        graphs: &mut [GraphReport],
        progress: &mut Progress<'_>,
    ) -> Result<Errors> {
        let is_decoded = calibration.is_decoded;
        let found = compare(self.folder, quantized, samples.all, &samples.held_out, is_decoded, progress)?;
        let (mut errors, mut divergences) = (Vec::new(), Vec::new());
        for graph in graphs {
            let Some(measured) = found.get(&self.folder.join(&graph.file)) else { continue };
            graph.errors = *measured;
            errors.extend(measured.output_error);
            divergences.extend(measured.divergence);
        }
        let divergence = mean(&divergences).filter(|_| calibration.by_tokens);
        Ok(Errors { output_error: mean(&errors), largest_error: largest(&errors), divergence })
    }

    /// Puts the graphs of `from` in the place of those of `to`.
    fn move_graphs(&self, from: &Path, to: &Path) -> Result<()> {
        for graph in self.graphs {
            make_parent(&to.join(graph))?;
            for file in [graph.clone(), graph.with_extension("onnx_data")] {
                fs::rename(from.join(&file), to.join(&file)).map_err(io("writing", to))?;
            }
        }
        Ok(())
    }
}

/// # Errors
/// `Invalid` if the smallest choices of matrices with so many elements have more bits for each.
fn check_target(matrices: &[Vec<Choice>], target_bits: f64, elements: f64) -> Result<()> {
    let least: f64 = matrices.iter().filter_map(|choices| choices.first()).map(|choice| choice.bits).sum();
    if least <= target_bits * elements {
        return Ok(());
    }
    // Rounded up, so that it is possible.
    let least = (least / elements * 1000.0).ceil() / 1000.0;
    let message = format!("{target_bits} bits for a weight, with scales; this model has {least} or more");
    Err(Error::invalid(message).in_field("target-bits"))
}

/// The means of all graphs that ran.
#[derive(Clone, Copy)]
struct Errors {
    output_error: Option<f64>,
    /// The largest of one graph; NaN if one is.
    largest_error: Option<f64>,
    /// Of a model whose [next tokens](Calibration::by_tokens) decide.
    divergence: Option<f64>,
}

impl Errors {
    /// The one by which widths are chosen. The other outputs of a decoder are its caches.
    fn loss(&self) -> Option<f64> {
        self.divergence.or(self.output_error)
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn largest(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(|most, value| if most.is_nan() || value <= most { most } else { value })
}

/// Whether mixed widths have the smaller error of outputs. Without outputs to compare, the errors of the layers decide, which chose the
/// widths. One width whose outputs are not numbers is not better.
fn is_mixed_better(mixed: Option<f64>, uniform: Option<f64>) -> bool {
    match (mixed, uniform) {
        (Some(mixed), Some(uniform)) => uniform.is_nan() || mixed < uniform,
        _ => true,
    }
}

/// Different samples in two parts.
pub(super) struct Divided<'s> {
    all: &'s Samples,
    known: Vec<usize>,
    held_out: Vec<usize>,
}

impl<'s> Divided<'s> {
    /// # Errors
    /// `Invalid` for too few different samples.
    pub(super) fn of(all: &'s Samples) -> Result<Self> {
        let distinct = all.distinct()?;
        if distinct.len() < SAMPLES_MIN {
            let message = format!("{} different samples; at least {SAMPLES_MIN} are required", distinct.len());
            return Err(Error::invalid(message).in_field("calibration"));
        }
        let numbered = distinct.into_iter().take(SAMPLES_MAX).enumerate();
        let (held_out, known): (Vec<_>, Vec<_>) = numbered.partition(|(number, _)| number % HELD_OUT == 0);
        let indices = |part: Vec<(usize, usize)>| part.into_iter().map(|(_, index)| index).collect();
        Ok(Self { all, known: indices(known), held_out: indices(held_out) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;

    #[test]
    fn a_graph_whose_outputs_are_not_numbers_has_the_largest_error() {
        assert_eq!(largest(&[]), None);
        assert_eq!(largest(&[0.01, 0.15, 0.1]), Some(0.15));
        for values in [[f64::NAN, 0.1], [0.1, f64::NAN]] {
            assert!(largest(&values).is_some_and(f64::is_nan));
        }
    }

    #[test]
    fn fewer_bits_than_the_smallest_forms_have_are_refused() {
        let matrices = [vec![Choice { bits: 212.5, error: 0.1 }, Choice { bits: 300.0, error: 0.0 }]];
        assert!(check_target(&matrices, 2.125, 100.0).is_ok() && check_target(&[], 2.0, 0.0).is_ok());
        let error = check_target(&matrices, 2.05, 100.0).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("target-bits")));
        assert!(error.to_string().contains("2.125 or more"), "{error}");
    }

    #[test]
    fn one_width_is_written_if_its_error_is_not_larger() {
        for (mixed, uniform, is_mixed) in [
            (Some(0.1), Some(0.2), true),
            (Some(0.2), Some(0.2), false),
            (Some(0.2), Some(f64::NAN), true),
            (Some(f64::NAN), Some(0.2), false),
            (Some(f64::NAN), Some(f64::NAN), true),
            (None, Some(0.2), true),
            (None, None, true),
        ] {
            assert_eq!(is_mixed_better(mixed, uniform), is_mixed, "{mixed:?} {uniform:?}");
        }
    }
}
