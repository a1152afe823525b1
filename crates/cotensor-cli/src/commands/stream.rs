use super::local::runtime_in;
use super::run::in_words;
use super::sound_source::{Part, Source, option};
use crate::args::StreamArgs;
use crate::launch::Program;
use crate::output::{json_line, printable, report, write_if_open};
use crate::signals;
use crate::terminal::takes_escapes;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::pipeline::{StreamEvent, StreamSettings, StreamSummary, StreamingProcessor};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// The interval between two checks for a signal while no sound arrives.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The last line of `--json`.
#[derive(Serialize)]
struct End {
    event: &'static str,
    #[serde(flatten)]
    summary: StreamSummary,
    /// Seconds that the models ran for a second of sound.
    real_time_factor: f64,
}

pub(crate) fn stream(args: &StreamArgs, program: &Program) -> Result<()> {
    let source = Source::open(args)?;
    let runtime = runtime_in(&args.runtime, program, "cotensor stream")?;
    let audio = runtime.open(&args.audio_model)?;
    let text = args.text_model.as_ref().map(|model| runtime.open(model)).transpose()?;
    let settings = |rate| StreamSettings {
        sample_rate_hz: rate,
        window_seconds: args.window.map(|window| window.as_secs_f64()),
        text_task: args.text_task.clone(),
    };
    // Refuses wrong models and options before it reads a sound that may not end.
    StreamingProcessor::new(audio.clone(), text.clone(), &settings(None)).map_err(option)?;
    let (seconds, rate_hz) = (audio.audio()?.seconds(), audio.audio()?.sample_rate_hz());
    let stopped = signals::stop_first()?;
    let parts = source.read_ahead(seconds, rate_hz, Arc::clone(&stopped))?;
    let next = || loop {
        match received(&parts) {
            Some(part) => return part,
            // A recorder that is silent does not answer the signal.
            None if stopped.load(Ordering::Relaxed) => return Part::End,
            None => {}
        }
    };
    let rate = match next() {
        Part::Rate(rate) => rate,
        Part::Failed(error) => return Err(error),
        Part::End | Part::Samples(_) if stopped.load(Ordering::Relaxed) => return Ok(()),
        Part::End | Part::Samples(_) => return Err(Error::invalid("the audio is empty").in_field("audio")),
    };
    let mut processor = StreamingProcessor::new(audio, text, &settings(Some(rate))).map_err(option)?;
    let progress = Progress::new();
    let mut closed = false;
    let mut on_event = |event: StreamEvent| {
        progress.clear();
        if emit(args, &event)? {
            return Ok(());
        }
        closed = true;
        Err(Error::new(ErrorKind::Conflict, "standard output is closed"))
    };
    let mut streamed = || {
        let mut failed = None;
        loop {
            match next() {
                Part::Samples(samples) => processor.push(&samples, &mut on_event)?,
                Part::Rate(_) => {}
                Part::End => break,
                Part::Failed(error) => {
                    failed = Some(error);
                    break;
                }
            }
            progress.show(processor.seconds());
        }
        // What arrived before an error or a signal is transcribed.
        if processor.seconds() == 0.0 && (failed.is_some() || stopped.load(Ordering::Relaxed)) {
            return failed.map_or(Ok(None), Err);
        }
        let summary = processor.finish(&mut on_event)?;
        failed.map_or(Ok(Some(summary)), Err)
    };
    let result = streamed();
    progress.clear();
    match result {
        Err(_) if closed => Ok(()),
        Err(error) => Err(error),
        Ok(None) => Ok(()),
        Ok(Some(summary)) => end(args, summary),
    }
}

/// The next part; `None` after a while without one.
fn received(parts: &Receiver<Part>) -> Option<Part> {
    match parts.recv_timeout(SIGNAL_INTERVAL) {
        Ok(part) => Some(part),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => {
            Some(Part::Failed(Error::new(ErrorKind::Io, "the thread that reads the sound ended")))
        }
    }
}

/// Prints an event. Returns whether standard output is open.
fn emit(args: &StreamArgs, event: &StreamEvent) -> Result<bool> {
    if args.runtime.common.json {
        return write_if_open(&json_line(event)?);
    }
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = match event {
        StreamEvent::Segment { start, end, text, .. } => writeln!(line, "{start:8.2} {end:8.2}  {text}"),
        StreamEvent::Answer { task, answer, .. } => writeln!(line, "{:17}  {task}: {}", "", in_words(answer)),
        StreamEvent::Notice { notice } => {
            report(&format!("notice: {}", printable(notice)));
            return Ok(true);
        }
    };
    write_if_open(&printable(&line))
}

fn end(args: &StreamArgs, summary: StreamSummary) -> Result<()> {
    let real_time_factor = summary.run_seconds / summary.seconds;
    if args.runtime.common.json {
        return write_if_open(&json_line(&End { event: "end", summary, real_time_factor })?).map(drop);
    }
    let StreamSummary { seconds, windows, .. } = summary;
    report(&format!("{seconds:.1} s of sound in {windows} windows; real-time factor {real_time_factor:.2}"));
    Ok(())
}

/// The seconds of sound so far, on a terminal.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new() -> Self {
        Self(takes_escapes(&std::io::stderr()).then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg} of sound ({elapsed})");
            ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        }))
    }

    fn show(&self, seconds: f64) {
        if let Some(bar) = &self.0 {
            bar.set_message(format!("{seconds:.1} s"));
            bar.tick();
        }
    }

    /// Removes the line before a result is printed.
    fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.suspend(|| ());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
