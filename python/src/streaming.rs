//! Speech that is transcribed while it plays.

use crate::args;
use crate::errors::{OrRaise, raise};
use crate::interrupt::run_interruptible;
use crate::process::ProcessLocal;
use crate::sharing::PooledModel;
use crate::store::report::report;
use cotensor::core::sync::lock;
use cotensor::model::engine::FileMode;
use cotensor::model::model::{Model, StageSource};
use cotensor::model::pipeline::{StreamEvent, StreamSettings, StreamSummary, StreamingProcessor};
use cotensor::model::preprocess::{AudioBytes, ByteFormat};
use cotensor::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};

/// A stream of speech: samples in, pieces of the transcript and the answers of a text model out.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct SpeechStream {
    processor: ProcessLocal<Arc<Mutex<StreamingProcessor>>>,
}

#[pymethods]
impl SpeechStream {
    #[new]
    #[pyo3(signature = (audio_model, text_model=None, *, shared=true, sample_rate=None, window=None, text_task=None))]
    fn new(
        py: Python<'_>,
        audio_model: &Bound<'_, PooledModel>,
        text_model: Option<&Bound<'_, PooledModel>>,
        shared: bool,
        #[pyo3(from_py_with = args::sample_rate)] sample_rate: Option<u32>,
        #[pyo3(from_py_with = args::window)] window: Option<f64>,
        #[pyo3(from_py_with = args::text_task)] text_task: Option<String>,
    ) -> PyResult<Self> {
        let open = |model: &Bound<'_, PooledModel>| {
            let model = Arc::clone(model.get().shared(py)?);
            if shared { Ok(model) } else { py.detach(|| alone(&model)).or_raise(py) }
        };
        let (audio, text) = (open(audio_model)?, text_model.map(open).transpose()?);
        let settings = StreamSettings { sample_rate_hz: sample_rate, window_seconds: window, text_task };
        let processor = py.detach(|| StreamingProcessor::new(audio, text, &settings)).or_raise(py)?;
        Ok(Self { processor: ProcessLocal::new(Arc::new(Mutex::new(processor))) })
    }

    /// Adds samples, the bytes of float32 numbers. Returns the results of the windows that they complete.
    fn push<'py>(&self, py: Python<'py>, samples: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
        let (samples, rest) = samples.as_bytes().as_chunks::<4>();
        if !rest.is_empty() {
            return Err(raise(py, &Error::invalid("pass the bytes of float32 samples").in_field("samples")));
        }
        let samples: Vec<f32> = samples.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let (events, ()) = self.run(py, move |processor, on_event| processor.push(&samples, on_event))?;
        report(py, || serde_json::to_string(&events))
    }

    /// Ends the stream. Returns the last results, and the length of the stream.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let (events, summary): (_, StreamSummary) = self.run(py, |processor, on_event| processor.finish(on_event))?;
        Ok((report(py, || serde_json::to_string(&events))?, report(py, || serde_json::to_string(&summary))?))
    }
}

impl SpeechStream {
    /// Runs on another thread, so that Ctrl-C ends the wait. After that, the stream ends with an error.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut StreamingProcessor, &mut dyn FnMut(StreamEvent) -> Result<()>) -> Result<T> + Send + 'static,
    ) -> PyResult<(Vec<StreamEvent>, T)> {
        let processor = Arc::clone(self.processor.get(py, "stream")?);
        let ran = run_interruptible(py, "cotensor-stream", move |is_wanted| {
            let mut events = Vec::new();
            let mut on_event = |event| {
                if !is_wanted() {
                    return Err(Error::new(ErrorKind::Conflict, "the stream was interrupted"));
                }
                events.push(event);
                Ok(())
            };
            let result = work(&mut lock(&processor), &mut on_event);
            result.map(|result| (events, result))
        })?;
        ran.or_raise(py)
    }
}

/// A private copy of a model.
fn alone(model: &Model) -> Result<Arc<Model>> {
    let source = match model.source() {
        StageSource::Shared(loader) => StageSource::Private(loader.engines().clone(), FileMode::Read),
        StageSource::Private(engines, mode) => StageSource::Private(engines.clone(), *mode),
    };
    Model::open(model.folder(), source).map(Arc::new)
}

/// Turns the bytes of a sound (``s16le``, ``f32le`` or ``wav``) into samples as they arrive.
#[pyclass(module = "cotensor")]
pub(crate) struct SoundBytes {
    decoder: Option<AudioBytes>,
}

#[pymethods]
impl SoundBytes {
    #[new]
    #[pyo3(signature = (format="wav", rate=None))]
    fn new(
        py: Python<'_>,
        format: &str,
        #[pyo3(from_py_with = args::sample_rate)] rate: Option<u32>,
    ) -> PyResult<Self> {
        let format = ByteFormat::parse(format, rate).or_raise(py)?;
        Ok(Self { decoder: Some(AudioBytes::new(format)) })
    }

    /// The samples per second; ``None`` before the end of a header.
    #[getter]
    fn rate(&self) -> Option<u32> {
        self.decoder.as_ref().and_then(AudioBytes::sample_rate_hz)
    }

    /// Adds bytes. Returns their samples as the bytes of float32 numbers.
    fn push<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let ended = || raise(py, &Error::invalid("the sound has ended").in_field("audio"));
        let samples = self.decoder.as_mut().ok_or_else(ended)?.push(data).or_raise(py)?;
        let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Ends the sound. Raises ``CorruptError`` if it is not whole.
    fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        self.decoder.take().map_or(Ok(()), AudioBytes::finish).or_raise(py)
    }
}
