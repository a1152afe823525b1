//! Actual and possible savings, split into weights and computation.

use crate::worker_report::WorkerReport;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::pipeline::{StageReport, UserReport};
use serde::Serialize;
use std::collections::HashSet;

/// Time in milliseconds, by kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeParts {
    /// Opening stages: weights.
    pub load_ms: f64,
    /// Running stages: computation.
    pub run_ms: f64,
    /// Reading and preprocessing inputs, opening tokenizers: computation.
    pub prepare_ms: f64,
    /// The rest: start of the program, composing answers.
    pub other_ms: f64,
}

impl TimeParts {
    /// Splits the time of one run.
    pub(crate) fn of(report: &WorkerReport) -> Self {
        let stages = || report.users.iter().flat_map(|user| &user.stages);
        let prepared = report.users.iter().flat_map(|user| &user.prepared);
        let load_ms = stages().map(|stage| stage.load_ms).sum();
        let run_ms = stages().map(|stage| stage.run_ms).sum();
        let opening: f64 = report.open_ms.iter().sum();
        let prepare_ms = opening + prepared.map(|part| part.load_ms + part.run_ms).sum::<f64>();
        Self { load_ms, run_ms, prepare_ms, other_ms: report.time_ms - load_ms - run_ms - prepare_ms }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            load_ms: self.load_ms - other.load_ms,
            run_ms: self.run_ms - other.run_ms,
            prepare_ms: self.prepare_ms - other.prepare_ms,
            other_ms: self.other_ms - other.other_ms,
        }
    }

    /// Time of computation.
    pub(crate) fn computation_ms(&self) -> f64 {
        self.run_ms + self.prepare_ms
    }
}

/// Memory in bytes, by content; negative if sharing needs more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryParts {
    /// Weights: avoided copies and unread pages.
    pub weights_bytes: i64,
    /// Computation: work buffers of avoided runs, minus kept results.
    pub computation_bytes: i64,
}

/// Avoidable time of a run without sharing, in milliseconds: repeated work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Avoidable {
    /// Opening stages that another user had opened.
    pub load_again_ms: f64,
    /// Reading the weights of first copies, which the warm weight cache contains: the additional time to open and run
    /// these stages compared with mapped weights (whose pages are faulted in while the stage runs).
    pub first_read_ms: f64,
    /// Running stages on input on which another user had run them.
    pub run_again_ms: f64,
    /// Reading and preprocessing the same input, opening the same tokenizer.
    pub prepare_again_ms: f64,
    /// Opening and running encoders that adapters replace, and encoders of which another model has run the first part.
    pub replaced_ms: f64,
}

impl Avoidable {
    /// The avoidable time of the run `without`. `rounds` are pairs of such a run and the following run with mapped
    /// weights. `replaced` has users with the role of a stage that an adapter or another model's stage replaces.
    pub(crate) fn of(
        without: &WorkerReport,
        rounds: &[(&WorkerReport, &WorkerReport)],
        replaced: &[(&str, &str)],
    ) -> Self {
        let mut done = Done::default();
        let mut avoidable = Self::default();
        for (index, user) in without.users.iter().enumerate() {
            for (at, stage) in user.stages.iter().enumerate() {
                if replaced.contains(&(user.user.as_str(), stage.role.as_str())) {
                    avoidable.replaced_ms += stage.load_ms + stage.run_ms;
                    continue;
                }
                if done.opened(user, stage) {
                    avoidable.load_again_ms += stage.load_ms;
                } else {
                    avoidable.first_read_ms += read_ms(rounds, index, at).clamp(0.0, stage.load_ms);
                }
                if done.ran(user, stage) {
                    avoidable.run_again_ms += stage.run_ms;
                }
            }
            for part in &user.prepared {
                // A tokenizer has only a load time, other parts only a run time.
                if done.ran(user, part) {
                    avoidable.prepare_again_ms += part.load_ms + part.run_ms;
                }
            }
            if !done.models.insert(&user.model) {
                avoidable.prepare_again_ms += without.open_ms.get(index).copied().unwrap_or(0.0);
            }
        }
        avoidable
    }

    /// Adds the encoders that adapters replace in graphs that `without` runs whole: the time of the whole graph minus that of
    /// the rest, which `with` runs.
    pub(crate) fn and_parts_of_graphs(
        mut self,
        without: &WorkerReport,
        with: &WorkerReport,
        replaced: &[(&str, &str)],
    ) -> Self {
        for (whole, rest) in without.users.iter().zip(&with.users) {
            let is_part = |(user, role): &(&str, &str)| {
                *user == whole.user && whole.stages.iter().all(|stage| stage.role != *role)
            };
            if replaced.iter().any(is_part) {
                self.replaced_ms += (spent_ms(whole) - spent_ms(rest)).max(0.0);
            }
        }
        self
    }

    /// The sum.
    pub(crate) fn total_ms(&self) -> f64 {
        self.load_again_ms + self.first_read_ms + self.run_again_ms + self.prepare_again_ms + self.replaced_ms
    }
}

/// The time of all stages of a user, in milliseconds.
fn spent_ms(user: &UserReport) -> f64 {
    user.stages.iter().map(|stage| stage.load_ms + stage.run_ms).sum()
}

/// Additional milliseconds of a stage whose weights are read instead of mapped: the median of `rounds`.
fn read_ms(rounds: &[(&WorkerReport, &WorkerReport)], user: usize, stage: usize) -> f64 {
    let cost = |report: &WorkerReport| {
        let stage = report.users.get(user)?.stages.get(stage)?;
        Some(stage.load_ms + stage.run_ms)
    };
    let mut longer: Vec<f64> = rounds.iter().filter_map(|(read, mapped)| Some(cost(read)? - cost(mapped)?)).collect();
    longer.sort_by(f64::total_cmp);
    longer.get(longer.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Work done so far.
#[derive(Default)]
struct Done<'a> {
    models: HashSet<&'a str>,
    opened: HashSet<(&'a str, &'a str)>,
    ran: HashSet<(&'a str, &'a str, &'a str)>,
}

impl<'a> Done<'a> {
    fn opened(&mut self, user: &'a UserReport, stage: &'a StageReport) -> bool {
        !self.opened.insert((&user.model, &stage.role))
    }

    fn ran(&mut self, user: &'a UserReport, stage: &'a StageReport) -> bool {
        // The graphs of a decoder have one signature; each has a role of its own.
        !self.ran.insert((&user.model, &stage.role, &stage.signature))
    }
}

/// `saved` divided by `avoidable`; 1 when nothing is avoidable.
pub(crate) fn efficiency(saved: f64, avoidable: f64) -> f64 {
    if avoidable > 0.0 { saved / avoidable } else { 1.0 }
}

/// The largest difference of any output of `runs` from `base`.
///
/// # Errors
/// `Engine` with user and output when an output is missing, has another shape, or differs by a NaN or an infinity.
pub fn max_abs_diff<'a>(base: &[UserReport], runs: impl IntoIterator<Item = &'a [UserReport]>) -> Result<f64> {
    let differ =
        |what: String| Error::new(ErrorKind::Engine, format!("the outputs of the runs cannot be compared: {what}"));
    let mut largest = 0f64;
    for users in runs {
        if users.len() != base.len() {
            return Err(differ(format!("{} users and {}", base.len(), users.len())));
        }
        for (a, b) in base.iter().zip(users) {
            let names = |user: &UserReport| user.outputs.iter().map(|output| output.name.clone()).collect::<Vec<_>>();
            if a.outputs.is_empty() || names(a) != names(b) {
                return Err(differ(format!("{} has {:?} and {:?}", a.user, names(a), names(b))));
            }
            for (output, other) in a.outputs.iter().zip(&b.outputs) {
                let difference = output.max_abs_diff(other);
                if !difference.is_finite() {
                    let shapes = format!("shapes {:?} and {:?}", output.shape, other.shape);
                    return Err(differ(format!("{} of {}: {shapes}, or NaN", output.name, a.user)));
                }
                largest = largest.max(difference);
            }
        }
    }
    Ok(largest)
}

#[cfg(test)]
mod tests;
