//! Speech that is transcribed while it plays.

use crate::long_speech::{reference, reference_samples, speech, wav, whisper};
use crate::support::{runtime, tiny, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::engine::FileMode;
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::{
    Answer, Inputs, StreamEvent, StreamSettings, StreamSummary, StreamingProcessor, run_user,
};
use cotensor_model::preprocess::{Audio, resample};
use cotensor_store::LocalStore;
use std::sync::Arc;

fn settings(sample_rate_hz: Option<u32>, window_seconds: Option<f64>) -> StreamSettings {
    StreamSettings { sample_rate_hz, window_seconds, text_task: None }
}

/// The events of a stream in parts of `part` samples.
fn stream(
    runtime: &Arc<Runtime>,
    text: bool,
    settings: &StreamSettings,
    samples: &[f32],
    part: usize,
) -> (Vec<StreamEvent>, StreamSummary) {
    let text = text.then(|| runtime.open(&tiny("bert")).unwrap());
    let mut processor = StreamingProcessor::new(runtime.open(&whisper()).unwrap(), text, settings).unwrap();
    let mut events = Vec::new();
    let mut on_event = |event| {
        events.push(event);
        Ok(())
    };
    samples.chunks(part).for_each(|part| processor.push(part, &mut on_event).unwrap());
    let summary = processor.finish(&mut on_event).unwrap();
    (events, summary)
}

/// The texts of the pieces, with beginning and end in milliseconds.
fn segments(events: &[StreamEvent]) -> Vec<(i64, i64, String)> {
    let milliseconds = |seconds: &f64| (seconds * 1e3).round() as i64;
    let segment = |event: &StreamEvent| match event {
        StreamEvent::Segment { start, end, text, .. } => Some((milliseconds(start), milliseconds(end), text.clone())),
        _ => None,
    };
    events.iter().filter_map(segment).collect()
}

#[test]
fn stream_in_parts_of_any_size_gives_the_segments_of_transformers() {
    let runtime = runtime(LocalStore::builder());
    let samples = speech(reference_samples());
    let (whole, summary) = stream(&runtime, false, &settings(None, None), &samples, samples.len());
    assert_eq!((summary.seconds, summary.segments), (9.375, segments(&whole).len() as u64));
    assert!(summary.windows >= 5 && summary.run_seconds > 0.0);
    let model = runtime.open(&whisper()).unwrap();
    let reference = reference();
    let expected = reference["segments"].as_array().unwrap().iter().map(|segment| {
        let milliseconds = |field: &str| (segment[field].as_f64().unwrap() * 1e3).round() as i64;
        let ids = segment["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
        let text = model.text().unwrap().decode(&ids.filter(|id| *id < 462).collect::<Vec<_>>()).unwrap();
        (milliseconds("start"), milliseconds("end"), text.trim().to_owned())
    });
    let expected: Vec<_> = expected.filter(|(_, _, text)| !text.is_empty()).collect();
    assert_eq!(segments(&whole), expected);
    for part in [1021, 16_001] {
        let (parts, again) = stream(&runtime, false, &settings(None, None), &samples, part);
        assert_eq!(parts, whole, "parts of {part}");
        assert_eq!(again.windows, summary.windows);
    }
    // A private copy of the model.
    let source = StageSource::Private(runtime.engines().clone(), FileMode::Read);
    let alone = Arc::new(Model::open(&whisper(), source).unwrap());
    let mut processor = StreamingProcessor::new(alone, None, &StreamSettings::default()).unwrap();
    let mut events = Vec::new();
    let mut on_event = |event| {
        events.push(event);
        Ok(())
    };
    processor.push(&samples, &mut on_event).unwrap();
    processor.finish(&mut on_event).unwrap();
    assert_eq!(events, whole);
}

#[test]
fn each_piece_gets_the_answer_of_the_text_model() {
    let runtime = runtime(LocalStore::builder());
    let samples = speech(reference_samples());
    let (events, _) = stream(&runtime, true, &settings(None, None), &samples, 5000);
    let bert = runtime.open(&tiny("bert")).unwrap();
    let mut texts = Vec::new();
    for event in &events {
        match event {
            StreamEvent::Segment { segment, text, .. } => {
                assert_eq!(*segment as usize, texts.len());
                texts.push(text.clone());
            }
            StreamEvent::Answer { segment, task, answer, outputs } => {
                assert_eq!((*segment as usize, task.as_str()), (texts.len() - 1, "sentence-embedding"));
                let inputs = Inputs::default().with_text(texts.last().unwrap());
                let user = user("one", "bert", "sentence-embedding");
                let alone = run_user(&bert, &user, &inputs, &runtime.store().holder("one")).unwrap();
                assert_eq!((answer, outputs), (&alone.answer, &alone.outputs));
            }
            StreamEvent::Notice { .. } => {}
        }
    }
    assert_eq!(events.iter().filter(|event| matches!(event, StreamEvent::Answer { .. })).count(), texts.len());
}

#[test]
fn short_sound_gives_the_transcript_of_the_file() {
    let runtime = runtime(LocalStore::builder());
    let samples = speech(9000);
    let (events, summary) = stream(&runtime, false, &settings(None, None), &samples, 777);
    let inputs = Inputs::default().with_audio_bytes(wav(&samples)).unwrap();
    let model = runtime.open(&whisper()).unwrap();
    let user = user("one", "model", "transcription");
    let report = run_user(&model, &user, &inputs, &runtime.store().holder("one")).unwrap();
    let Answer::Transcript { text, .. } = report.answer else { panic!("a transcript") };
    assert_eq!(segments(&events), [(0, 1125, text)]);
    assert_eq!((summary.windows, summary.seconds), (1, 1.125));
}

#[test]
fn results_come_while_the_sound_plays() {
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&whisper()).unwrap();
    let samples = speech(reference_samples());
    let first = |window_seconds| {
        let settings = settings(None, window_seconds);
        let mut processor = StreamingProcessor::new(Arc::clone(&model), None, &settings).unwrap();
        let mut read = 0;
        let mut came = None;
        for part in samples.chunks(400) {
            let mut on_event = |_| {
                came.get_or_insert(read + part.len());
                Ok(())
            };
            processor.push(part, &mut on_event).unwrap();
            read += part.len();
        }
        came.expect("a result before the end") as f64 / 8000.0
    };
    let (whole, half) = (first(None), first(Some(1.0)));
    assert!(half >= 1.0 && half < whole && whole < 9.0, "{half} and {whole} seconds");
    for wrong in [0.0, -1.0, 2.5, f64::NAN] {
        let error = StreamingProcessor::new(Arc::clone(&model), None, &settings(None, Some(wrong))).err().unwrap();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("window")));
    }
}

#[test]
fn memory_of_the_store_does_not_grow_with_the_stream() {
    let runtime = runtime(LocalStore::builder());
    let bert = runtime.open(&tiny("bert")).unwrap();
    let model = runtime.open(&whisper()).unwrap();
    let mut processor = StreamingProcessor::new(model, Some(bert), &StreamSettings::default()).unwrap();
    let store = Arc::clone(runtime.store());
    let mut used = Vec::new();
    let samples = speech(240_000);
    for part in samples.chunks(16_000).chain(samples.chunks(16_000)) {
        processor.push(part, &mut |_| Ok(())).unwrap();
        used.push(store.stats().memory_usage_bytes);
    }
    // The weights are loaded with the first window and the first text.
    let steady = &used[3..];
    assert!(steady.len() > 20 && steady.iter().all(|bytes| *bytes == steady[0]), "{used:?}");
    processor.finish(&mut |_| Ok(())).unwrap();
    assert_eq!(store.stats().memory_usage_bytes, steady[0]);
}

#[test]
fn other_rate_is_resampled_independent_of_the_parts() {
    let runtime = runtime(LocalStore::builder());
    let audio = Audio { sample_rate_hz: 8000, samples: speech(40_000) };
    let faster = resample(&audio, 11_025).unwrap().samples;
    let run = |part| stream(&runtime, false, &settings(Some(11_025), None), &faster, part).0;
    let whole = run(faster.len());
    assert_eq!(run(733), whole);
    assert!(matches!(&whole[0], StreamEvent::Notice { notice } if notice.contains("11025 to 8000")), "{:?}", whole[0]);
    assert!(whole.len() > 2);
}

#[test]
fn bad_sounds_and_models_are_refused() {
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&whisper()).unwrap();
    let bert = runtime.open(&tiny("bert")).unwrap();
    let open = || StreamingProcessor::new(Arc::clone(&model), None, &StreamSettings::default()).unwrap();
    let mut ignore = |_| Ok(());
    let error = open().finish(&mut ignore).unwrap_err();
    assert!(error.to_string().contains("empty"), "{error}");
    let mut stream = open();
    stream.push(&[0.1; 100], &mut ignore).unwrap();
    for wrong in [f32::NAN, f32::INFINITY, 1e20] {
        let error = stream.push(&[0.0, wrong], &mut ignore).unwrap_err();
        assert!(error.to_string().contains("sample 1"), "{error}");
    }
    stream.push(&[], &mut ignore).unwrap();
    // The refused samples are not part of the sound.
    let summary = stream.finish(&mut ignore).unwrap();
    assert_eq!(summary.seconds, 100.0 / 8000.0);
    assert!(stream.push(&[0.0], &mut ignore).unwrap_err().to_string().contains("ended"));
    assert!(stream.finish(&mut ignore).is_err());
    // An error of the caller ends the stream.
    let mut stopped = open();
    let stop = stopped.push(&speech(40_000), &mut |_| Err(cotensor_core::Error::invalid("enough"))).unwrap_err();
    assert!(stop.to_string().contains("enough"), "{stop}");
    assert!(stopped.push(&[0.0], &mut ignore).unwrap_err().to_string().contains("ended with an error"));
    for rate in [0, 999, 1_000_000] {
        let error = StreamingProcessor::new(Arc::clone(&model), None, &settings(Some(rate), None)).err().unwrap();
        assert!(error.to_string().contains(&rate.to_string()), "{error}");
    }
    let error = StreamingProcessor::new(bert, None, &StreamSettings::default()).err().unwrap();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("audio_model")));
    // As given: the parameters of a translation are those of its languages.
    let translation = Some("translation_en_to_de".to_owned());
    let settings = StreamSettings { text_task: translation.clone(), ..StreamSettings::default() };
    let t5 = runtime.open(&tiny("t5")).unwrap();
    let translating = StreamingProcessor::new(Arc::clone(&model), Some(t5), &settings).unwrap();
    assert_eq!(translating.text_task(), translation.as_deref());
    let vit = runtime.open(&tiny("vit")).unwrap();
    let error = StreamingProcessor::new(model, Some(vit), &StreamSettings::default()).err().unwrap();
    assert_eq!(error.field(), Some("text_task"));
}
