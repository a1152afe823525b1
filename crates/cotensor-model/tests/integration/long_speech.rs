//! Speech that is longer than a window of Whisper, against transformers' long-form generation (fixtures/sounds/whisper).

use crate::support::{copy, fixtures, runtime, runtimes, user};
use cotensor_core::ErrorKind;
use cotensor_model::pipeline::{Answer, Inputs, UserReport, run_user, run_user_streaming};
use cotensor_model::preprocess::decode_audio;
use cotensor_store::{LocalStore, StoreReports};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// The folder of the model.
pub(crate) fn whisper() -> PathBuf {
    fixtures().join("sounds/whisper")
}

pub(crate) fn reference() -> Value {
    serde_json::from_slice(&fs::read(fixtures().join("sounds/whisper/long.json")).unwrap()).unwrap()
}

/// The tokens of all segments of the reference.
fn reference_tokens() -> Vec<f32> {
    let reference = reference();
    let segments = reference["segments"].as_array().unwrap();
    let tokens = segments.iter().flat_map(|segment| segment["tokens"].as_array().unwrap());
    tokens.map(|token| token.as_i64().unwrap() as f32).collect()
}

/// The samples of the speech clip from the beginning of the reference's sound on, at most `samples`; 8000 are a second.
pub(crate) fn speech(samples: usize) -> Vec<f32> {
    let audio = decode_audio(&fs::read(fixtures().join("media/speech.wav")).unwrap()).unwrap();
    let start = reference()["samples"][0].as_u64().unwrap() as usize;
    audio.samples.into_iter().skip(start).take(samples).collect()
}

/// The number of samples of the reference's sound.
pub(crate) fn reference_samples() -> usize {
    let samples = &reference()["samples"];
    (samples[1].as_u64().unwrap() - samples[0].as_u64().unwrap()) as usize
}

pub(crate) fn wav(samples: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|sample| ((sample * 32768.0) as i16).to_le_bytes()).collect();
    let format =
        [&16u32.to_le_bytes()[..], &[1, 0, 1, 0], &8000u32.to_le_bytes(), &16000u32.to_le_bytes(), &[2, 0, 16, 0]];
    let body = [b"WAVEfmt ", &format.concat()[..], b"data", &(data.len() as u32).to_le_bytes(), &data].concat();
    [b"RIFF", &(body.len() as u32).to_le_bytes()[..], &body].concat()
}

fn transcribed(report: &UserReport) -> (String, Vec<f32>) {
    let Answer::Transcript { text, tokens } = &report.answer else { panic!("{:?}", report.answer) };
    assert_eq!(*tokens, report.outputs[0].values.len());
    (text.clone(), report.outputs[0].values.clone())
}

#[test]
fn long_speech_is_transcribed_as_transformers_does() {
    let inputs = Inputs::default().with_audio_bytes(wav(&speech(reference_samples()))).unwrap();
    for runtime in runtimes() {
        let model = runtime.open(&whisper()).unwrap();
        let holder = runtime.store().holder("test");
        let mut pieces = String::new();
        let mut on_text = |piece: &str| {
            pieces.push_str(piece);
            Ok(())
        };
        let user = user("one", "model", "transcription");
        let (report, _) = run_user_streaming(&model, &user, &inputs, &holder, &mut on_text).unwrap();
        let (text, tokens) = transcribed(&report);
        assert_eq!(tokens, reference_tokens());
        assert_eq!(pieces.trim(), text);
        let notices = &report.notices;
        assert!(notices.iter().all(|notice| !notice.contains("reads the first")), "{notices:?}");
        // Again, with the results of the last window in the store.
        assert_eq!(transcribed(&run_user(&model, &user, &inputs, &holder).unwrap()), (text, tokens));
    }
}

#[test]
fn store_keeps_the_results_of_one_window() {
    let used = |seconds: usize| {
        let store = LocalStore::builder().build();
        let runtime = runtime_over(Arc::clone(&store));
        let model = runtime.open(&whisper()).unwrap();
        let inputs = Inputs::default().with_audio_bytes(wav(&speech(8000 * seconds))).unwrap();
        let user = user("one", "model", "transcription");
        let report = run_user(&model, &user, &inputs, &store_holder(&store)).unwrap();
        (report.stages.iter().filter(|stage| stage.role == "encoder").count(), store.stats().memory_usage_bytes)
    };
    let ((few, small), (many, large)) = (used(5), used(27));
    assert!(many >= 3 * few && few >= 2, "{few} and {many} windows");
    // Windows differ in the number of tokens.
    assert!(large.abs_diff(small) < 4096, "{small} and {large} bytes");
}

fn runtime_over(store: Arc<LocalStore>) -> Arc<cotensor_model::Runtime> {
    let engine = Arc::new(cotensor_model::engine::RtenEngine::new(Some(1)));
    cotensor_model::Runtime::new(store, engine as Arc<dyn cotensor_model::engine::Engine>)
}

fn store_holder(store: &LocalStore) -> cotensor_store::Holder {
    use cotensor_store::TensorStore;
    store.holder("test")
}

#[test]
fn model_without_timestamps_reads_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    copy(&whisper(), folder.path());
    let path = folder.path().join("generation_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let inputs = Inputs::default().with_audio_bytes(wav(&speech(40_000))).unwrap();
    let run = |config: &Value| {
        fs::write(&path, config.to_string()).unwrap();
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(folder.path()).unwrap();
        run_user(&model, &user("one", "model", "transcription"), &inputs, &runtime.store().holder("test"))
    };
    config["no_timestamps_token_id"] = "none".into();
    let error = run(&config).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("no_timestamps_token_id")));
    config.as_object_mut().unwrap().remove("no_timestamps_token_id");
    let notices = run(&config).unwrap().notices;
    assert!(
        notices.iter().any(|notice| notice.contains("5.0 s of audio") && notice.contains("first 2 s")),
        "{notices:?}"
    );
    // Timestamps beyond the vocabulary.
    config["no_timestamps_token_id"] = 100_000.into();
    assert_eq!(run(&config).unwrap_err().kind(), ErrorKind::Corrupt);
}
