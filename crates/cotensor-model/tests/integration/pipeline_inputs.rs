//! Inputs and options: changes of an input give a notice, wrong ones are refused by name.

use crate::support::{inputs, runtime, tiny, user};
use cotensor_core::{ErrorKind, Result};
use cotensor_model::pipeline::{Inputs, User, UserReport, run_user};
use cotensor_store::LocalStore;
use std::path::Path;
use std::process::Command;

fn run(family: &str, user: &User, inputs: &Inputs) -> Result<UserReport> {
    let runtime = runtime(LocalStore::builder());
    run_user(&runtime.open(&tiny(family)).unwrap(), user, inputs, &runtime.store().holder("one"))
}

/// A sine of `seconds` at `rate`, as a 16-bit WAV file.
fn tone(path: &Path, rate: u32, seconds: u32) {
    let spec =
        hound::WavSpec { channels: 1, sample_rate: rate, bits_per_sample: 16, sample_format: hound::SampleFormat::Int };
    let mut writer = hound::WavWriter::create(path, spec).unwrap();
    for index in 0..rate * seconds {
        let phase = f64::from(index) / f64::from(rate) * 440.0 * std::f64::consts::TAU;
        writer.write_sample((phase.sin() * 8000.0) as i16).unwrap();
    }
    writer.finalize().unwrap();
}

#[test]
fn resampled_or_cut_audio_gives_a_notice() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("tone.wav");
    let user = user("one", "whisper", "language-identification");
    let notices = |rate: u32, seconds: u32| {
        tone(&file, rate, seconds);
        run("whisper", &user, &Inputs::default().with_audio(&file).unwrap()).unwrap().notices
    };
    assert!(notices(16000, 2).is_empty());
    let resampled = notices(22050, 2);
    assert!(resampled.len() == 1 && resampled[0].contains("22050") && resampled[0].contains("16000"), "{resampled:?}");
    let cut = notices(16000, 45);
    assert!(cut.len() == 1 && cut[0].contains("45.0 s") && cut[0].contains("first 30 s"), "{cut:?}");
    assert_eq!(notices(8000, 31).len(), 2);
}

#[test]
fn devices_pipes_and_folders_are_refused_as_inputs() {
    let place = tempfile::tempdir().unwrap();
    let pipe = place.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [Path::new("/dev/zero"), &pipe, place.path()] {
        for error in [Inputs::default().with_image(path), Inputs::default().with_audio(path)].map(Result::unwrap_err) {
            assert_eq!((error.kind(), error.file()), (ErrorKind::Invalid, Some(path)), "{error}");
        }
    }
}

#[test]
fn options_that_a_task_does_not_read_are_refused() {
    let refused = |family: &str, task: &str, change: &dyn Fn(&mut User), field: &str| {
        let mut user = user("one", family, task);
        change(&mut user);
        let error = run(family, &user, &inputs()).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
    };
    refused("bert", "sentence-embedding", &|user| user.head = Some("head.entities".into()), "one.head");
    refused("bert", "sentence-embedding", &|user| user.max_new_tokens = Some(4), "one.max_new_tokens");
    refused("vit", "image-embedding", &|user| user.texts = vec!["a".into()], "one.texts");
    refused("bert", "sentence-embedding", &|user| user.texts = vec!["a".into(), "b".into()], "one.texts");
    refused("clip", "image-text-retrieval", &|user| user.texts = vec!["a".into(); 100_000], "one.texts");
    refused("clip", "image-text-retrieval", &|user| user.threshold = Some(0.5), "one.threshold");
    refused("detr", "object-detection", &|user| user.threshold = Some(-0.5), "one.threshold");
    refused("whisper", "transcription", &|user| user.min_new_tokens = Some(446), "one.max_new_tokens");
    refused("whisper", "transcription", &|user| user.max_new_tokens = Some(0), "one.max_new_tokens");
}
