//! Models of sounds (fixtures/sounds): features, stages and answers equal those of the reference implementation.

use crate::support::{References, difference, fixtures, runtime, runtimes, unpacked, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::family::Medium;
use cotensor_model::model::Model;
use cotensor_model::pipeline::{Answer, Constant, Inputs, default_task, run_user};
use cotensor_model::preprocess::{Audio, decode_audio, normalized};
use cotensor_model::tensor::{Array, Value};
use cotensor_store::{Holder, LocalStore};
use std::fs;
use std::io::Cursor;
use std::sync::Arc;

const TOLERANCE: f64 = 1e-4;
/// The samples of each case.
const CASES: [(&str, usize); 2] = [("whole", 8000), ("half", 4000)];

fn references() -> References {
    References::open(&fixtures().join("sounds/reference.safetensors"))
}

/// The beginning of the speech clip.
fn speech(samples: usize) -> Audio {
    let mut audio = decode_audio(&fs::read(fixtures().join("media/speech.wav")).unwrap()).unwrap();
    audio.samples.truncate(samples);
    audio
}

/// As a WAV file; the clip has 16 bits.
fn wav(audio: &Audio) -> Inputs {
    let mut bytes = Cursor::new(Vec::new());
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: audio.sample_rate_hz,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    audio.samples.iter().for_each(|&sample| writer.write_sample((sample * 32768.0) as i16).unwrap());
    writer.finalize().unwrap();
    Inputs::default().with_audio_bytes(bytes.into_inner()).unwrap()
}

/// Compares an output. `make parity` reads the printed lines, which are like those of `stage_references`.
fn close(given: &[f32], expected: &Array, what: &str) {
    let error = difference(given, expected.as_f32().unwrap());
    println!("{what}: {error:.1e}");
    assert!(error <= TOLERANCE, "{what}: {error:e}");
}

fn engine(runtime: &Runtime) -> &'static str {
    runtime.engines().first().name()
}

/// The trunk and the head of a model, at two lengths.
fn check_stages(engine: &str, name: &str, model: &Model, holder: &Holder) {
    let references = references();
    let (trunk, head) = (model.stage("encoder").unwrap(), model.own_head("encoder").unwrap().expect("it is cut"));
    for (case, count) in CASES {
        let expected = |what: &str| references.array(&format!("{name}.{case}.{what}"));
        let features = Value::from(model.audio().unwrap().process(&speech(count)).unwrap());
        let sampled: Vec<f32> = features.to_f32().unwrap().iter().copied().step_by(16).collect();
        let error = difference(&sampled, expected("features").as_f32().unwrap());
        assert!(error <= 1e-5, "{name} {case} features: {error:e}");
        let mask = Value::from(Array::i64([1, count], vec![1; count]).unwrap());
        let mut inputs = vec![("input_values", &features)];
        if trunk.graph().inputs().iter().any(|port| port.name == "attention_mask") {
            inputs.push(("attention_mask", &mask));
        }
        let hidden = trunk.run(&inputs, &["last_hidden_state"], holder).unwrap().outputs.remove(0);
        assert_eq!(hidden.shape(), expected("last_hidden_state").shape(), "{name} {case}");
        let what = |stage: &str, output: &str| format!("{engine} {name} {stage}.{case} {output}");
        close(&hidden.to_f32().unwrap(), &expected("last_hidden_state"), &what("encoder", "last_hidden_state"));
        let logits = head.run(&[("last_hidden_state", &hidden)], &["logits"], holder).unwrap().outputs.remove(0);
        assert_eq!(logits.shape(), expected("logits").shape(), "{name} {case}");
        close(&logits.to_f32().unwrap(), &expected("logits"), &what("head", "logits"));
    }
}

#[test]
fn wav2vec2_stages_match_the_reference_at_two_lengths() {
    for name in ["wav2vec2-ctc", "wav2vec2-stable", "wav2vec2-classification"] {
        let folder = unpacked(&fixtures().join("sounds").join(name));
        for runtime in runtimes() {
            let model = runtime.open(folder.path()).unwrap();
            check_stages(engine(&runtime), name, &model, &runtime.store().holder("test"));
        }
    }
}

#[test]
fn wav2vec2_transcribes_as_transformers_does() {
    let references = references();
    for name in ["wav2vec2-ctc", "wav2vec2-stable"] {
        let folder = unpacked(&fixtures().join("sounds").join(name));
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(folder.path()).unwrap();
        for (case, count) in CASES {
            let user = user(case, "model", "transcription");
            let report = run_user(&model, &user, &wav(&speech(count)), &runtime.store().holder(case)).unwrap();
            let Answer::Transcript { text, tokens } = &report.answer else { panic!("{:?}", report.answer) };
            let expected = references.array(&format!("{name}.{case}.text"));
            assert_eq!(text.as_bytes(), expected.bytes(), "{name} {case}");
            assert!(*tokens > 12, "{text:?}");
        }
        let error = run_user(
            &model,
            &user("one", "model", "audio-classification"),
            &wav(&speech(8000)),
            &runtime.store().holder("one"),
        )
        .unwrap_err();
        assert!(error.to_string().contains("Wav2Vec2ForCTC"), "{error}");
    }
}

#[test]
fn wav2vec2_classifies_sounds() {
    let folder = unpacked(&fixtures().join("sounds/wav2vec2-classification"));
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(folder.path()).unwrap();
    let user = user("one", "model", "audio-classification");
    let report = run_user(&model, &user, &wav(&speech(8000)), &runtime.store().holder("one")).unwrap();
    let logits = references().array("wav2vec2-classification.whole.logits");
    let logits = logits.as_f32().unwrap();
    let best = (0..3).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    let Answer::Label { label, .. } = &report.answer else { panic!("{:?}", report.answer) };
    assert_eq!(*label, ["quiet", "speech", "music"][best]);
}

#[test]
fn sound_that_is_too_short_is_named() {
    let folder = unpacked(&fixtures().join("sounds/wav2vec2-classification"));
    for runtime in runtimes() {
        let model = runtime.open(folder.path()).unwrap();
        let run = |samples: usize| {
            let user = user("one", "model", "audio-classification");
            run_user(&model, &user, &wav(&speech(samples)), &runtime.store().holder("one"))
        };
        // Kernels of 10, 8 and 4 samples and strides of 5, 4 and 4: ((4 - 1) * 4 + 8 - 1) * 5 + 10.
        let error = run(104).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.field() == Some("audio"), "{error}");
        assert!(error.to_string().contains("too short: 104 samples (13.0 ms); the model reads 105"), "{error}");
        run(105).unwrap();
    }
}

/// The labels of the reference.
const LABELS: [&str; 3] = ["a dog that barks", "someone reads a text", "rain"];

#[test]
fn towers_of_clap_match_the_reference_where_the_engine_has_cubic_resize() {
    let references = references();
    // A second is 64 frames in "clap-even", as the model reads; in "clap", 63 frames are resized.
    for (name, resizes) in [("clap-even", false), ("clap", true)] {
        let folder = unpacked(&fixtures().join("sounds").join(name));
        for runtime in runtimes() {
            let (model, holder) = (runtime.open(folder.path()).unwrap(), runtime.store().holder("test"));
            let text = model.stage("text_tower").unwrap();
            let expected = references.array(&format!("{name}.text_embeds"));
            let rows = LABELS.iter().flat_map(|label| {
                let batch = model.text().unwrap().encode(&[label]).unwrap();
                let (ids, mask) = (Value::from(batch.ids), Value::from(batch.mask));
                let inputs = [("input_ids", &ids), ("attention_mask", &mask)];
                let row = text.run(&inputs, &["text_embeds"], &holder).unwrap().outputs.remove(0);
                row.to_f32().unwrap().into_owned()
            });
            let engine = engine(&runtime);
            close(&rows.collect::<Vec<_>>(), &expected, &format!("{engine} {name} text_model.labels text_embeds"));
            for (case, count) in [("whole", 8000), ("short", 3000)] {
                let user = user(case, "model", "audio-embedding");
                let answered = run_user(&model, &user, &wav(&speech(count)), &holder);
                if resizes && engine == "rten" {
                    let error = answered.unwrap_err();
                    println!("{engine} {name} refused: {error}");
                    assert!(
                        error.kind() == ErrorKind::Unsupported && error.to_string().contains("package onnxruntime"),
                        "{error}"
                    );
                    continue;
                }
                let expected = normalized(references.array(&format!("{name}.{case}.audio_embeds")).as_f32().unwrap());
                let expected = Array::f32([expected.len()], expected).unwrap();
                let what = format!("{engine} {name} audio_model.{case} audio_embeds");
                close(&answered.unwrap().outputs[0].values, &expected, &what);
            }
        }
    }
}

#[test]
fn clap_ranks_texts_as_transformers_does_with_the_scale_of_the_checkpoint() {
    let folder = unpacked(&fixtures().join("sounds/clap-even"));
    let references = references();
    let expected = references.array("clap-even.probabilities");
    let rank = |runtime: &Arc<Runtime>| {
        let model = runtime.open(folder.path()).unwrap();
        let mut user = user("one", "model", "zero-shot-audio-classification");
        user.texts = LABELS.map(str::to_owned).to_vec();
        run_user(&model, &user, &wav(&speech(8000)), &runtime.store().holder("one"))
    };
    for runtime in runtimes() {
        let report = rank(&runtime).unwrap();
        let Answer::Ranking { texts } = &report.answer else { panic!("{:?}", report.answer) };
        let scale = Constant { name: "logit_scale_a".into(), value: 2.5f32.exp(), file: "model.safetensors".into() };
        assert_eq!((&report.constants, &report.notices), (&vec![scale], &Vec::new()));
        for (label, &expected) in LABELS.iter().zip(expected.as_f32().unwrap()) {
            let (_, _, probability) = texts.iter().find(|(text, ..)| text == label).unwrap();
            assert!((probability - expected).abs() < 1e-5, "{label}: {probability}, {expected}");
        }
        assert_eq!(
            default_task(&runtime.open(folder.path()).unwrap(), &[Medium::Text, Medium::Audio]).unwrap().name,
            report.task
        );
    }
    // Without the checkpoint, the scale before training, which config.json has as it is.
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let report = rank(&runtime(LocalStore::builder())).unwrap();
    let scale = Constant { name: "logit_scale_a".into(), value: 9.0, file: "config.json".into() };
    assert_eq!(report.constants, [scale]);
    assert!(report.notices[0].contains("before training"), "{:?}", report.notices);
}

#[test]
fn vocabulary_of_another_model_is_refused() {
    let folder = unpacked(&fixtures().join("sounds/wav2vec2-ctc"));
    let vocabulary: serde_json::Map<_, _> = (0..40).map(|id| (format!("t{id}"), id.into())).collect();
    fs::write(folder.path().join("vocab.json"), serde_json::Value::from(vocabulary).to_string()).unwrap();
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(folder.path()).unwrap();
    let user = user("one", "model", "transcription");
    let error = run_user(&model, &user, &wav(&speech(4000)), &runtime.store().holder("one")).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("40 tokens"), "{error}");
}
