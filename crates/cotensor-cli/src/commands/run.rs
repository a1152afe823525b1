use super::local::runtime_in;
use super::pipeline::{Models, progress};
use super::target::Target;
use crate::args::RunArgs;
use crate::launch::Program;
use crate::output::{print, print_exactly, print_json, report as warn};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::engine::FileMode;
use cotensor::model::model::{Model, StageSource};
use cotensor::model::pipeline::{
    Answer, Inputs, Medium, Pipeline, UserReport, inputs_of, run_user, run_user_streaming,
};
use cotensor_demo::max_abs_diff as largest_difference;
use serde::Serialize;
use std::fmt::Write;

/// Maximum number of labels printed per answer.
const LABELS_SHOWN: usize = 5;

/// The largest difference by rounding on an engine that does not reproduce its bits.
const ROUNDING_MAX: f64 = 1e-5;

#[derive(Serialize)]
struct Report {
    pipeline: String,
    users: Vec<UserReport>,
    /// Largest difference from a run without sharing; only with --compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_abs_diff: Option<f64>,
}

pub(crate) fn run(args: &RunArgs, program: &Program) -> Result<()> {
    let target = Target::of(args)?;
    let mut inputs = Inputs::default();
    if let Some(path) = &args.image {
        inputs = inputs.with_image(path)?;
    }
    if let Some(path) = &args.audio {
        inputs = inputs.with_audio(path)?;
    }
    let runtime = runtime_in(&args.runtime, program, "cotensor run")?;
    let pipeline = target.pipeline(args, &runtime)?;
    let text = target.input_text(args, &pipeline);
    if let Some(text) = text {
        inputs = inputs.with_text(text);
    }
    if let Some(user) = pipeline.users.iter().find(|user| args.compare && user.encoder.is_some()) {
        let message =
            format!("{} reads the output of another model's encoder, which an unshared run does not", user.name);
        return Err(Error::invalid(message).in_field("--compare"));
    }
    let models = Models::open(&pipeline, target.base(), &runtime)?;
    let given =
        [(Medium::Text, text.is_some()), (Medium::Image, args.image.is_some()), (Medium::Audio, args.audio.is_some())];
    refuse_unread_inputs(given, &pipeline, &models)?;
    let runs = pipeline.users.len() * if args.compare { 2 } else { 1 };
    let steps = progress(&pipeline, &models, &runtime, runs);
    let mut users = Vec::new();
    for user in &pipeline.users {
        steps.next(&format!("running {}", user.name));
        let (model, holder) = (models.of(user), runtime.store().holder(&user.name));
        let mut on_text = |piece: &str| {
            if args.stream {
                steps.finish();
                print_exactly(piece)?;
            }
            Ok(())
        };
        let report = inputs_of(user, model, &inputs, target.base(), &runtime, &holder)
            .and_then(|inputs| run_user_streaming(model, user, &inputs, &holder, &mut on_text));
        users.push(report.map_err(|error| target.in_file(error))?.0);
    }
    let mut max_abs_diff = None;
    if args.compare {
        let mut alone = Vec::new();
        for user in &pipeline.users {
            steps.next(&format!("running {} without sharing", user.name));
            let source = StageSource::Private(runtime.engines().clone(), FileMode::Read);
            let model = Model::open_variant(models.of(user).folder(), source, user.variant.as_deref())?;
            alone.push(run_user(&model, user, &inputs, &runtime.store().holder(&user.name))?);
        }
        max_abs_diff = Some(largest_difference(&alone, [&users[..]])?);
    }
    steps.finish();
    let report = Report { pipeline: pipeline.name, users, max_abs_diff };
    if args.runtime.common.json {
        print_json(&report)?
    } else if args.stream {
        print("\n")?;
        report.users.iter().flat_map(|user| &user.notices).for_each(|notice| warn(&format!("notice: {notice}")));
    } else {
        print(&in_text(&report))?
    }
    let exact = runtime.engines().first().capabilities().is_reproducible;
    compared(report.max_abs_diff, if exact { 0.0 } else { ROUNDING_MAX })
}

/// # Errors
/// `Engine` when the outputs differ from a run without sharing by more than `tolerance`.
fn compared(difference: Option<f64>, tolerance: f64) -> Result<()> {
    match difference {
        // NaN is a difference, too.
        Some(difference) if difference.is_nan() || difference > tolerance => {
            let message = format!("outputs differ from an unshared run by up to {difference}");
            Err(Error::new(ErrorKind::Engine, message))
        }
        _ => Ok(()),
    }
}

/// Refuses an input that no user of the pipeline reads.
fn refuse_unread_inputs(given: [(Medium, bool); 3], pipeline: &Pipeline, models: &Models) -> Result<()> {
    for (medium, _) in given.into_iter().filter(|(_, given)| *given) {
        if !pipeline.users.iter().any(|user| user.reads(models.of(user).family(), medium)) {
            let message = format!("no user of this pipeline reads an input of type {medium}");
            return Err(Error::invalid(message).in_field(format!("--{medium}")));
        }
    }
    Ok(())
}

fn in_text(report: &Report) -> String {
    let mut text = String::new();
    for user in &report.users {
        let _ = writeln!(text, "{} ({} on {}): {}", user.user, user.task, user.model, in_words(&user.answer));
        for stage in &user.stages {
            let what = if stage.computed { "ran" } else { "shared" };
            let _ = writeln!(text, "  {:20} {what:7} {:8.1} ms", stage.role, stage.load_ms + stage.run_ms);
        }
        for constant in &user.constants {
            let _ = writeln!(text, "  {} {} from {}", constant.name, constant.value, constant.file);
        }
        for notice in &user.notices {
            let _ = writeln!(text, "  notice: {notice}");
        }
    }
    if let Some(difference) = report.max_abs_diff {
        let _ = writeln!(text, "largest difference from an unshared run: {difference}");
    }
    text
}

pub(super) fn in_words(answer: &Answer) -> String {
    match answer {
        Answer::Label { label, probability } => format!("{label} ({:.1} %)", 100.0 * probability),
        Answer::Labels { labels } => {
            let shown = labels.iter().take(LABELS_SHOWN);
            shown
                .map(|(label, probability)| format!("{label} ({:.1} %)", 100.0 * probability))
                .collect::<Vec<_>>()
                .join(", ")
        }
        Answer::Numbers { numbers } => {
            let shown = numbers.iter().take(LABELS_SHOWN);
            shown.map(|(name, number)| format!("{name} = {number}")).collect::<Vec<_>>().join(", ")
        }
        Answer::Tokens { tokens } => {
            tokens.iter().map(|(token, label)| format!("{token}/{label}")).collect::<Vec<_>>().join(" ")
        }
        Answer::Ranking { texts } => {
            let best: Vec<String> = texts.iter().map(|(text, cosine, _)| format!("{text:?} {cosine:.3}")).collect();
            best.join(", ")
        }
        Answer::Scores { texts } => {
            texts.iter().map(|(text, score)| format!("{text:?} {score:.3}")).collect::<Vec<_>>().join(", ")
        }
        Answer::Objects { objects } if objects.is_empty() => "no object".to_owned(),
        Answer::Objects { objects } => {
            let shown = objects.iter().map(|object| {
                let [left, top, right, bottom] = object.bounds.map(|edge| edge.round());
                format!("{} ({:.1} %) at {left}, {top} to {right}, {bottom}", object.label, 100.0 * object.score)
            });
            shown.collect::<Vec<_>>().join("; ")
        }
        Answer::Embedding { width } => format!("an embedding of {width} dimensions"),
        Answer::Text { text, tokens, .. } | Answer::Transcript { text, tokens } => {
            format!("{text:?} ({tokens} tokens)")
        }
        Answer::Language { language, probability } => format!("{language} ({:.1} %)", 100.0 * probability),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_outputs_are_an_error() {
        assert!(compared(None, 0.0).is_ok() && compared(Some(0.0), 0.0).is_ok());
        assert!(compared(Some(1e-6), ROUNDING_MAX).is_ok());
        for (difference, tolerance) in
            [(1e-9, 0.0), (f64::INFINITY, 0.0), (f64::NAN, 0.0), (1e-4, ROUNDING_MAX), (f64::NAN, ROUNDING_MAX)]
        {
            assert_eq!(compared(Some(difference), tolerance).unwrap_err().kind(), ErrorKind::Engine, "{difference}");
        }
    }
}
