use super::event::{StreamEvent, StreamSummary};
use crate::model::{Model, StageSource};
use crate::pipeline::default_task;
use crate::pipeline::host::{Host, decoder_task, writing_config};
use crate::pipeline::inputs::Inputs;
use crate::pipeline::run::Run;
use crate::pipeline::task::answer_in;
use cotensor_core::{Error, Result};
use cotensor_pipeline::{Answer, SpeechSegment, User, WritingConfig, at_once, transcribe_window};
use cotensor_preprocess::family::{AnswerKind, Medium, Task};
use cotensor_preprocess::generation::transcript_of;
use cotensor_preprocess::{AudioWindows, Resampling, check_samples};
use cotensor_store::Holder;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The samples that are resampled at a time.
const SAMPLES_AT_ONCE: usize = 1 << 14;
/// The most different notices.
const NOTICES_MAX: usize = 64;
/// The name of the stream's holder, and of its users in error messages.
const USER: &str = "stream";

/// How a stream is processed.
#[derive(Clone, Debug, Default)]
pub struct StreamSettings {
    /// The rate of the samples, in Hz; without it, that of the speech model.
    pub sample_rate_hz: Option<u32>,
    /// The seconds of sound after which a window is transcribed; without it, the whole window of the speech model. Shorter
    /// windows give results sooner and take more time.
    pub window_seconds: Option<f64>,
    /// The task of the text model; without it, its default task for a text.
    pub text_task: Option<String>,
}

/// Transcribes speech while it plays, and gives each finished piece of the transcript to a text model.
///
/// The memory is bounded: the features of one window, the results of the models for one window, and the samples of a
/// call. The results of a window leave the store after it. [`push`](Self::push) returns after the windows that it
/// completes are transcribed: a producer that is faster than the models waits.
pub struct StreamingProcessor {
    audio: Arc<Model>,
    audio_task: &'static Task,
    config: WritingConfig,
    /// The tokens before the transcript of each window.
    prompt: Option<Vec<i64>>,
    windows: AudioWindows,
    resampling: Option<Resampling>,
    text: Option<(Arc<Model>, User)>,
    /// The notices that were given.
    notices: Vec<String>,
    /// A notice that comes before all results.
    first_notice: Option<String>,
    read: u64,
    segments: u64,
    run_time: Duration,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Open,
    Ended,
    Failed,
}

/// Called with each result as soon as it is there. An error ends the stream.
type OnEvent<'a> = dyn FnMut(StreamEvent) -> Result<()> + 'a;

impl StreamingProcessor {
    /// A stream for a speech model such as Whisper, and a text model.
    ///
    /// # Errors
    /// `Unsupported` for a speech model without windows or timestamps, `Invalid` for a rate, a length or a task that the
    /// models do not support.
    pub fn new(audio: Arc<Model>, text: Option<Arc<Model>>, settings: &StreamSettings) -> Result<Self> {
        let refuse = |what: &str| {
            let message = format!("{} has no {what}; a stream needs a speech model such as Whisper", audio.name());
            Error::unsupported(message).in_field("audio_model")
        };
        let transcribes = |task: &&Task| task.answer == AnswerKind::Transcript;
        let task = audio.family().tasks().find(transcribes).ok_or_else(|| refuse("transcription by windows"))?;
        let mut windows = audio.audio()?.windows().ok_or_else(|| refuse("windows"))?;
        if let Some(seconds) = settings.window_seconds {
            windows.set_length(seconds)?;
        }
        let (rate, to) = (settings.sample_rate_hz, windows.sample_rate_hz());
        let resampling = rate.filter(|rate| *rate != to).map(|rate| Resampling::new(rate, to)).transpose()?;
        let text = match text {
            None => None,
            Some(model) => {
                let task = match &settings.text_task {
                    Some(name) => model.family().task(name).map_err(|error| error.in_field("text_task"))?,
                    None => default_task(&model, &[Medium::Text])
                        .map_err(|error| Error::new(error.kind(), error.message()).in_field("text_task"))?,
                };
                // As given: a translation's parameters are those of its languages.
                let task = settings.text_task.clone().unwrap_or_else(|| task.name.clone());
                let user = User { name: USER.to_owned(), model: model.name(), task, ..User::default() };
                if !user.reads(model.family(), Medium::Text) {
                    return Err(Error::invalid(format!("{} reads no text", user.task)).in_field("text_task"));
                }
                Some((model, user))
            }
        };
        let config = writing_config(&audio, &task.name)?;
        if config.timed.is_none() {
            return Err(refuse("timestamps"));
        }
        let notice = rate.filter(|_| resampling.is_some());
        let notice = notice.map(|rate| format!("the audio is resampled from {rate} to {to} Hz"));
        Ok(Self {
            audio_task: task,
            audio,
            config,
            prompt: None,
            windows,
            resampling,
            text,
            notices: Vec::new(),
            first_notice: notice,
            read: 0,
            segments: 0,
            run_time: Duration::ZERO,
            state: State::Open,
        })
    }

    /// Seconds of sound so far.
    pub fn seconds(&self) -> f64 {
        self.windows.seconds()
    }

    /// The task of the text model.
    pub fn text_task(&self) -> Option<&str> {
        self.text.as_ref().map(|(_, user)| user.task.as_str())
    }

    /// Adds samples of one channel, from -1 to 1, and processes the windows that they complete. The results do not depend
    /// on how the sound is cut into calls.
    ///
    /// # Errors
    /// `Invalid` for a sample that is not finite: then no sample of the call is accepted. `Invalid` after the end. The
    /// errors of the models and of `on_event` end the stream.
    pub fn push(&mut self, samples: &[f32], on_event: &mut OnEvent<'_>) -> Result<()> {
        self.check()?;
        check_samples(samples)?;
        let pushed = self.accept(samples, on_event);
        self.noting_failure(pushed)
    }

    /// Ends the stream and processes what is left.
    ///
    /// # Errors
    /// `Invalid` for a stream without samples; as [`push`](Self::push).
    pub fn finish(&mut self, on_event: &mut OnEvent<'_>) -> Result<StreamSummary> {
        self.check()?;
        let finished = self.end(on_event);
        self.noting_failure(finished)?;
        let (windows, segments, run_seconds) = (self.read, self.segments, self.run_time.as_secs_f64());
        Ok(StreamSummary { seconds: self.seconds(), windows, segments, run_seconds })
    }

    fn check(&self) -> Result<()> {
        match self.state {
            State::Open => Ok(()),
            State::Ended => Err(Error::invalid("the stream has ended").in_field("audio")),
            State::Failed => Err(Error::invalid("the stream ended with an error").in_field("audio")),
        }
    }

    fn noting_failure<T>(&mut self, result: Result<T>) -> Result<T> {
        result.inspect_err(|_| self.state = State::Failed)
    }

    fn accept(&mut self, samples: &[f32], on_event: &mut OnEvent<'_>) -> Result<()> {
        let notice = self.first_notice.take();
        self.give_notices(notice, on_event)?;
        for part in samples.chunks(SAMPLES_AT_ONCE) {
            match &mut self.resampling {
                None => self.fill(part, on_event)?,
                Some(resampling) => {
                    let resampled = resampling.push(part)?;
                    self.fill(&resampled, on_event)?;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, on_event: &mut OnEvent<'_>) -> Result<()> {
        if let Some(resampling) = self.resampling.take() {
            let rest = resampling.finish()?;
            self.fill(&rest, on_event)?;
        }
        self.windows.finish()?;
        while !self.windows.is_done() {
            self.window(on_event)?;
        }
        self.state = State::Ended;
        Ok(())
    }

    fn fill(&mut self, mut samples: &[f32], on_event: &mut OnEvent<'_>) -> Result<()> {
        while !samples.is_empty() {
            let accepted = self.windows.push(samples)?;
            samples = &samples[accepted..];
            while self.windows.is_full() {
                self.window(on_event)?;
            }
        }
        Ok(())
    }

    /// Transcribes the window, advances, and answers to its segments.
    fn window(&mut self, on_event: &mut OnEvent<'_>) -> Result<()> {
        let audio = Arc::clone(&self.audio);
        let user = User { name: USER.to_owned(), task: self.audio_task.name.clone(), ..User::default() };
        let segments = self.timed(&audio, |this, run| {
            let (inputs, mut no_text) = (Inputs::default(), |_: &str| Ok(()));
            let task = decoder_task(&audio, &this.config, this.audio_task, (&user, "chat"), None)?;
            let mut host = Host::new(run, this.audio_task, &user, &inputs, "", &mut no_text);
            at_once(transcribe_window(&mut host, &task, &mut this.prompt, &mut this.windows))
        });
        self.read += 1;
        let (segments, notices) = segments?;
        self.give_notices(notices, on_event)?;
        for SpeechSegment { seconds: (start, end), tokens } in segments {
            let text = transcript_of(audio.text()?, &tokens)?;
            if text.is_empty() {
                continue;
            }
            let segment = self.segments;
            self.segments += 1;
            on_event(StreamEvent::Segment { segment, start, end, text: text.clone() })?;
            self.answer(segment, text, on_event)?;
        }
        Ok(())
    }

    fn answer(&mut self, segment: u64, text: String, on_event: &mut OnEvent<'_>) -> Result<()> {
        let Some((model, user)) = self.text.clone() else { return Ok(()) };
        let inputs = Inputs::default().with_text(text);
        let answered = self.timed(&model, |_, run| answer_in(run, &user, &inputs, &mut |_| Ok(())));
        let ((answer, outputs), notices): ((Answer, Vec<_>), _) = answered?;
        self.give_notices(notices, on_event)?;
        on_event(StreamEvent::Answer { segment, task: user.task, answer, outputs })
    }

    /// Runs a model, and removes its results from the store. Also returns the notices of the run.
    fn timed<T>(
        &mut self,
        model: &Model,
        work: impl FnOnce(&mut Self, &mut Run<'_>) -> Result<T>,
    ) -> Result<(T, Vec<String>)> {
        let start = Instant::now();
        let holder = match model.source() {
            StageSource::Shared(loader) => loader.store().holder(USER),
            StageSource::Private(..) => Holder::new(USER),
        };
        let mut run = Run::new(model, &holder);
        let result = work(self, &mut run);
        run.release();
        self.run_time += start.elapsed();
        Ok((result?, run.notices))
    }

    /// Gives the notices that were not given before.
    fn give_notices(&mut self, notices: impl IntoIterator<Item = String>, on_event: &mut OnEvent<'_>) -> Result<()> {
        for notice in notices {
            if self.notices.len() < NOTICES_MAX && !self.notices.contains(&notice) {
                self.notices.push(notice.clone());
                on_event(StreamEvent::Notice { notice })?;
            }
        }
        Ok(())
    }
}
