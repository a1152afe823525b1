//! Preprocessing against what transformers makes of the same inputs (fixtures/tiny/*/preprocess.*).

use crate::support::{fixture, folder};
use cotensor_preprocess::{
    Audio, AudioLength, AudioProcessor, ImageProcessor, TextProcessor, decode_audio, decode_image,
};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

fn cases(family: &str) -> Value {
    serde_json::from_slice(fixture(&format!("tiny/{family}/preprocess.json"))).unwrap()
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    tensors
        .tensor(name)
        .unwrap()
        .data()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

#[test]
fn tokens_are_equal() {
    let mut checked = 0;
    for family in ["bert", "clip", "whisper"] {
        let processor = TextProcessor::open(&folder(&format!("tiny/{family}"))).unwrap();
        let cases = cases(family)["text"].clone();
        let list = cases["cases"].as_array().unwrap();
        let text = |case: &Value| case["text"].as_str().unwrap().to_owned();
        let ids = |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect::<Vec<_>>();
        for case in list {
            let expected = ids(&case["input_ids"]);
            if expected.is_empty() {
                continue;
            }
            let batch = processor.encode(&[&text(case)]).unwrap();
            assert_eq!(batch.ids.as_i64().unwrap(), expected, "{family}: {:?}", text(case));
            let decoded = processor.decode(&expected.iter().map(|&id| id as u32).collect::<Vec<_>>()).unwrap();
            assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{family}: {:?}", text(case));
            checked += 1;
        }
        let texts: Vec<String> = cases["batch"]["texts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|index| text(&list[index.as_u64().unwrap() as usize]))
            .collect();
        let batch = processor.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        let rows = |field: &str| cases["batch"][field].as_array().unwrap().iter().flat_map(ids).collect::<Vec<_>>();
        assert_eq!(batch.ids.as_i64().unwrap(), rows("input_ids"), "{family}");
        assert_eq!(batch.mask.as_i64().unwrap(), rows("attention_mask"), "{family}");
        assert!(batch.truncated.iter().any(|truncated| *truncated) || family == "whisper");
    }
    assert!(checked > 30);
}

#[test]
fn pairs_of_texts_are_equal() {
    let files = folder("tiny/bert");
    let processor = TextProcessor::open(&files).unwrap();
    let cases = cases("bert");
    let text = |index: &Value| {
        let case = &cases["text"]["cases"][index.as_u64().unwrap() as usize];
        case["text"].as_str().unwrap().to_owned()
    };
    let pairs = cases["pairs"].as_array().unwrap();
    for pair in pairs {
        let (first, second) = (text(&pair["texts"][0]), text(&pair["texts"][1]));
        let batch = processor.encode_pairs(&[(&first, &second)], None).unwrap();
        let row = |field: &str| pair[field].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect::<Vec<_>>();
        assert_eq!(batch.ids.as_i64().unwrap(), row("input_ids"), "{pair}");
        assert_eq!(batch.type_ids.as_i64().unwrap(), row("token_type_ids"), "{pair}");
        assert_eq!(batch.truncated, [row("input_ids").len() == 64], "{pair}");
    }
    assert!(pairs.len() >= 4);
    // A limit that has room for one text, and none for two.
    let mut short = files;
    short.insert("tokenizer_config.json".into(), br#"{"model_max_length": 3}"#.to_vec());
    let short = TextProcessor::open(&short).unwrap();
    assert!(short.encode(&["harbour"]).is_ok());
    assert!(short.encode_pairs(&[("harbour", "city")], None).unwrap_err().to_string().contains("no room"));
    assert!(processor.encode_pairs(&[("harbour", "city")], Some(3)).is_err());
}

#[test]
fn text_that_is_too_long_is_refused_by_name() {
    let processor = TextProcessor::open(&folder("tiny/bert")).unwrap();
    let long = " ".repeat((1 << 20) + 1);
    let errors = [
        processor.encode(&["harbour", &long]).unwrap_err(),
        processor.encode_plain(&long).unwrap_err(),
        processor.encode_pairs(&[("harbour", &long)], None).unwrap_err(),
        processor.spans(&long).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.to_string(), "text: a text has 1048577 bytes; at most 1048576 are read: split it");
    }
}

#[test]
fn length_without_room_for_text_is_refused() {
    let open = |length: u32| {
        let mut files = folder("tiny/bert");
        files.insert("tokenizer_config.json".into(), format!("{{\"model_max_length\": {length}}}").into_bytes());
        TextProcessor::open(&files)
    };
    for length in 0..=2 {
        let error = open(length).err().unwrap().to_string();
        assert!(error.contains("tokenizer_config.json: model_max_length"), "{error}");
    }
    let batch = open(3).unwrap().encode(&["the harbour wakes"]).unwrap();
    assert_eq!((batch.ids.shape(), batch.truncated), (&[1, 3][..], vec![true]));
}

#[test]
fn images_equal_those_of_pillow() {
    let mut checked = 0;
    for family in ["vit", "clip"] {
        let files = folder(&format!("tiny/{family}"));
        let tensors = SafeTensors::deserialize(&files["preprocess.safetensors"]).unwrap();
        for case in cases(family)["image"]["cases"].as_array().unwrap() {
            let name = case["tensor"].as_str().unwrap();
            let image = decode_image(image_file(case["image"].as_str().unwrap())).unwrap();
            let (worst, mean) = if case["size"] == 32 {
                let processor = ImageProcessor::open(&files, None).unwrap();
                let pixels = processor.process(&image).unwrap();
                let config: Value = serde_json::from_slice(&files["preprocessor_config.json"]).unwrap();
                let std = |channel: usize| config["image_std"][channel].as_f64().unwrap();
                let plane = 32 * 32;
                let difference =
                    |(index, (a, b)): (usize, (&f32, &f32))| (f64::from(a - b) * std(index / plane)).abs() * 255.0;
                summary(pixels.as_f32().unwrap().iter().zip(&floats(&tensors, name)).enumerate().map(difference))
            } else {
                let levels = at_224(files.clone(), &image);
                let expected = tensors.tensor(name).unwrap().data().to_vec();
                summary(
                    levels
                        .chunks_exact(3)
                        .zip(&expected)
                        .map(|(rgb, &level)| (f64::from(rgb[1]) - f64::from(level)).abs()),
                )
            };
            assert!(worst <= 2.0 && mean <= 0.1, "{family} {name}: worst {worst}, mean {mean} of 255");
            checked += 1;
        }
    }
    assert_eq!(checked, 12);

    // The photograph as the real models' configurations have it.
    let photo = decode_image(fixture("media/photo.png")).unwrap();
    for skeleton in ["vit-base", "clip-vit-b16"] {
        let files = folder(&format!("skeletons/{skeleton}"));
        let tensors = SafeTensors::deserialize(&files["preprocess.safetensors"]).unwrap();
        let expected = tensors.tensor("photo.levels").unwrap();
        let (levels, height, width) = ImageProcessor::open(&files, None).unwrap().levels(&photo).unwrap();
        assert_eq!([height, width, 3], *expected.shape());
        let difference = |(&a, &b): (&u8, &u8)| f64::from(a.abs_diff(b));
        let (worst, mean) = summary(levels.iter().zip(expected.data()).map(difference));
        assert!(worst <= 2.0 && mean <= 0.1, "{skeleton}: worst {worst}, mean {mean} of 255");
    }
}

#[test]
fn processors_of_every_class_equal_those_of_transformers() {
    let files = folder("tiny/processors");
    let tensors = SafeTensors::deserialize(&files["preprocess.safetensors"]).unwrap();
    let list = cases("processors");
    let list = list["cases"].as_array().unwrap();
    let (mut classes, mut padded) = (std::collections::BTreeSet::new(), 0);
    for case in list {
        let name = case["tensor"].as_str().unwrap();
        let config = HashMap::from([("preprocessor_config.json".to_owned(), case["config"].to_string().into_bytes())]);
        let processor = ImageProcessor::open(&config, None).unwrap();
        let image = decode_image(image_file(case["image"].as_str().unwrap())).unwrap();
        let pixels = processor.process(&image).unwrap();
        assert_eq!(pixels.shape()[1..], *tensors.tensor(name).unwrap().shape(), "{name}");
        let expected = floats(&tensors, name);
        // A level of 255 is at most this far from the next: the smallest deviation of a channel is 0.224.
        let level = 1.0 / 255.0 / 0.224;
        let difference = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) / level;
        let (worst, mean) = summary(pixels.as_f32().unwrap().iter().zip(&expected).map(difference));
        assert!(worst <= 2.01 && mean <= 0.1, "{name}: worst {worst}, mean {mean} of 255");
        if let Some(name) = case["mask"].as_str() {
            let expected: Vec<i64> = tensors
                .tensor(name)
                .unwrap()
                .data()
                .as_chunks::<8>()
                .0
                .iter()
                .map(|&bytes| i64::from_le_bytes(bytes))
                .collect();
            let mask = processor.mask(image.dimensions()).unwrap();
            assert_eq!(
                (mask.shape(), mask.as_i64().unwrap()),
                (&[1, pixels.shape()[2], pixels.shape()[3]][..], &*expected),
                "{name}"
            );
            padded += usize::from(expected.contains(&0));
        }
        classes.insert(case["config"]["image_processor_type"].as_str().unwrap());
    }
    assert_eq!((classes.len(), padded), (6, 2));
}

#[test]
fn image_that_does_not_fit_its_padding_is_refused() {
    let config =
        r#"{"image_processor_type": "DetrImageProcessor", "size": 20, "pad_size": {"height": 19, "width": 99}}"#;
    let files = HashMap::from([("preprocessor_config.json".to_owned(), config.as_bytes().to_vec())]);
    let processor = ImageProcessor::open(&files, None).unwrap();
    let image = decode_image(fixture("tiny/images/tall.png")).unwrap();
    for error in [processor.process(&image).unwrap_err(), processor.mask(image.dimensions()).unwrap_err()] {
        assert_eq!(error.field(), Some("pad_size"), "{error}");
    }
}

/// An image by its path from the folder of a family.
fn image_file(path: &str) -> &'static [u8] {
    path.strip_prefix("../../").map_or_else(|| fixture(&path.replace("..", "tiny")), fixture)
}

/// The levels that the same configuration gives at 224 pixels.
fn at_224(mut files: HashMap<String, Vec<u8>>, image: &image::RgbImage) -> Vec<u8> {
    let config = files.get_mut("preprocessor_config.json").unwrap();
    *config = str::from_utf8(config).unwrap().replace(": 32", ": 224").into_bytes();
    let (levels, height, width) = ImageProcessor::open(&files, None).unwrap().levels(image).unwrap();
    assert_eq!((height, width), (224, 224));
    levels
}

fn summary(differences: impl Iterator<Item = f64>) -> (f64, f64) {
    let differences: Vec<f64> = differences.collect();
    (differences.iter().copied().fold(0.0, f64::max), differences.iter().sum::<f64>() / differences.len() as f64)
}

#[test]
fn audio_features_are_equal() {
    let files = folder("tiny/whisper");
    let tensors = SafeTensors::deserialize(&files["preprocess.safetensors"]).unwrap();
    let processor = AudioProcessor::open(&files, None).unwrap();
    let clip = decode_audio(fixture("media/speech.wav")).unwrap().samples;
    // Doubled to 16 kHz as the reference was: every sample, then the mean of it and its successor.
    let doubled: Vec<f32> =
        (0..clip.len()).flat_map(|i| [clip[i], (clip[i] + clip[(i + 1).min(clip.len() - 1)]) / 2.0]).collect();
    let noise = floats(&tensors, "noise.samples");
    let long: Vec<f32> = noise.iter().chain(&doubled).chain(&doubled[..64_000]).copied().collect();
    for (name, samples) in [("speech", doubled), ("silence", vec![0.0; 32_000]), ("noise", noise), ("long", long)] {
        let features = processor.process(&Audio { sample_rate_hz: 16_000, samples }).unwrap();
        assert_eq!(features.shape(), [1, 80, 3000]);
        let features = features.as_f32().unwrap();
        for (part, first, count) in [("head", 0, 200), ("tail", 2980, 20)] {
            let expected = floats(&tensors, &format!("{name}.{part}"));
            for (mel, row) in expected.chunks_exact(count).enumerate() {
                for (at, value) in row.iter().enumerate() {
                    let difference = (features[mel * 3000 + first + at] - value).abs();
                    assert!(difference <= 1e-5, "{name}.{part} mel {mel} frame {at}: {difference}");
                }
            }
        }
    }
}

#[test]
fn features_of_clap_are_equal() {
    let references = fixture("sounds/reference.safetensors");
    let tensors = SafeTensors::deserialize(references).unwrap();
    let config: Value = serde_json::from_slice(fixture("sounds/clap-features/preprocessor_config.json")).unwrap();
    let clip = decode_audio(fixture("media/speech.wav")).unwrap();
    let names: Vec<&str> = tensors.names().into_iter().filter(|name| name.starts_with("clap-features.")).collect();
    let mut checked = 0;
    for name in names.iter().filter(|name| !name.ends_with(".is_longer")) {
        let [_, truncation, padding, case] = name.split('.').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let mut config = config.clone();
        config["truncation"] = truncation.into();
        config["padding"] = padding.into();
        let files = HashMap::from([("preprocessor_config.json".to_owned(), config.to_string().into_bytes())]);
        let processor = AudioProcessor::open(&files, None).unwrap();
        let count = match case {
            "long" => clip.samples.len(),
            "corner" => 16_040,
            "window" => 16_000,
            _ => 6_000,
        };
        let audio = Audio { sample_rate_hz: 8000, samples: clip.samples[..count].to_vec() };
        let features = processor.process(&audio).unwrap();
        let expected = tensors.tensor(name).unwrap();
        let [channels, frames, bins] = *expected.shape() else { panic!("{name}") };
        let &[1, all_channels, all_frames, all_bins] = features.shape() else { panic!("{:?}", features.shape()) };
        assert_eq!((all_frames.div_ceil(8), all_bins), (frames, bins), "{name}");
        assert_eq!(all_channels, if truncation == "fusion" { 4 } else { 1 }, "{name}");
        let given = features.as_f32().unwrap();
        let plane = all_frames * bins;
        for (index, expected) in floats(&tensors, name).iter().enumerate() {
            let (channel, frame, bin) = (index / (frames * bins), index / bins % frames, index % bins);
            let given = given[channel * plane + 8 * frame * bins + bin];
            assert!((given - expected).abs() <= 1e-3, "{name} [{channel}, {frame}, {bin}]: {given} dB for {expected}");
        }
        // The recorded channel stands for all that follow it.
        let repeated = (channels..all_channels).all(|channel| given[channel * plane..][..plane] == given[..plane]);
        assert!(repeated, "{name}");
        let length = AudioLength { sample_rate_hz: 8000, frames: count as u64 };
        let longer = processor.is_longer(length).unwrap().unwrap();
        assert_eq!(f32::from(longer.bytes()[0]), floats(&tensors, &format!("{name}.is_longer"))[0], "{name}");
        checked += 1;
    }
    assert_eq!(checked, 12);
}

#[test]
fn bad_configurations_name_file_and_field() {
    const FILE: &str = "preprocessor_config.json";
    const WHISPER: Option<&str> = Some("WhisperFeatureExtractor");
    let with = |config: &str| HashMap::from([(FILE.to_owned(), config.into())]);
    for (config, field) in [
        (r#"{"do_resize": true}"#, "size"),
        (r#"{"do_resize": true, "size": {"shortest_edge": 0}}"#, "size"),
        (r#"{"do_resize": true, "size": 32, "resample": 9}"#, "resample"),
        (r#"{"do_resize": true, "size": 32}"#, "resample"),
        (r#"{"size": 32}"#, "do_resize"),
        (
            r#"{"image_processor_type": "ViTImageProcessor", "image_mean": [0.5], "image_std": [0.5, 0.5, 0.5]}"#,
            "image_mean",
        ),
        (
            r#"{"image_processor_type": "ViTImageProcessor", "image_mean": [0, 0, 0], "image_std": [1, 0, 1]}"#,
            "image_std",
        ),
    ] {
        let error = ImageProcessor::open(&with(config), None).unwrap_err();
        assert_eq!((error.field(), error.file()), (Some(field), Some(Path::new(FILE))), "{error}");
    }
    let unknown = r#"{"feature_extractor_type": "SeamlessM4TFeatureExtractor"}"#;
    assert_eq!(AudioProcessor::open(&with(unknown), WHISPER).unwrap_err().field(), Some("feature_extractor_type"));
    assert_eq!(AudioProcessor::open(&with("{}"), None).unwrap_err().field(), Some("feature_extractor_type"));
    for (config, class, field) in [
        (r#"{"truncation": "middle"}"#, "ClapFeatureExtractor", "truncation"),
        (r#"{"padding": "mirror"}"#, "ClapFeatureExtractor", "padding"),
        (r#"{"max_length_s": 0}"#, "ClapFeatureExtractor", "max_length_s"),
        (r#"{"frequency_min": 2000, "frequency_max": 1000}"#, "ClapFeatureExtractor", "frequency_max"),
        (r#"{"do_normalize": 1}"#, "Wav2Vec2FeatureExtractor", "do_normalize"),
        (r#"{"feature_size": 80}"#, "Wav2Vec2FeatureExtractor", "feature_size"),
    ] {
        let error = AudioProcessor::open(&with(config), Some(class)).unwrap_err();
        assert_eq!((error.field(), error.file()), (Some(field), Some(Path::new(FILE))), "{error}");
    }
    let negative = r#"{"feature_size": 80, "sampling_rate": -3}"#;
    assert_eq!(AudioProcessor::open(&with(negative), WHISPER).unwrap_err().field(), Some("sampling_rate"));
    let hours = r#"{"feature_size": 1, "sampling_rate": 16000, "n_fft": 65536, "hop_length": 1, "chunk_length": 30}"#;
    assert_eq!(AudioProcessor::open(&with(hours), WHISPER).unwrap_err().field(), Some("n_fft"));
    let hops = r#"{"feature_size": 1, "sampling_rate": 1000, "n_fft": 65536, "hop_length": 65536, "chunk_length": 1}"#;
    assert_eq!(AudioProcessor::open(&with(hops), WHISPER).unwrap_err().field(), Some("chunk_length"));
    assert!(ImageProcessor::open(&with("{"), None).unwrap_err().to_string().contains(FILE));
    assert!(TextProcessor::open(&with("{}")).err().unwrap().to_string().contains("tokenizer.json"));
    assert!(decode_image(b"").is_err() && decode_image(b"GIF89a no").is_err());
}

// A browser has no unwinding: a panic ends the module there.
#[cfg(not(target_arch = "wasm32"))]
#[test]
fn damaged_tokenizers_are_errors_and_no_panics() {
    let tokenizer = |part: &str| {
        let text = r#"{"model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}, "added_tokens": []"#;
        HashMap::from([("tokenizer.json".to_owned(), format!("{text}, {part}}}").into())])
    };
    let map = |bytes: &str| format!(r#""normalizer": {{"type": "Precompiled", "precompiled_charsmap": "{bytes}"}}"#);
    // A map that ends early, one without a table, and a token that does not exist.
    let token = r#""post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "Y", "type_id": 0}}],
        "pair": [], "special_tokens": {}}"#;
    for part in [map("AA=="), map("AAAAAA=="), map(""), token.to_owned()] {
        let error = match TextProcessor::open(&tokenizer(&part)) {
            Err(error) => error,
            Ok(opened) => opened.encode(&["a b"]).unwrap_err(),
        };
        assert!(error.to_string().contains("tokenizer"), "{error}");
    }
}

#[test]
fn tokenizers_that_lengthen_texts_are_refused() {
    let tokenizer = |part: String| {
        let text = r#"{"model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}, "added_tokens": []"#;
        HashMap::from([("tokenizer.json".to_owned(), format!("{text}, {part}}}").into())])
    };
    let replace = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}"#;
    let replaced = |count: usize| {
        let list = vec![replace; count].join(",");
        tokenizer(format!(r#""normalizer": {{"type": "Sequence", "normalizers": [{list}]}}"#))
    };
    let opened = TextProcessor::open(&replaced(2)).unwrap();
    assert_eq!(opened.encode(&["a"]).unwrap().ids.shape(), [1, 1]);
    let long = "a".repeat(1 << 20);
    let ids = vec!["0"; 1000].join(",");
    let template = format!(
        r#""post_processor": {{"type": "TemplateProcessing", "single": [{{"SpecialToken": {{"id": "Y", "type_id": 0}}}}], "pair": [],
        "special_tokens": {{"Y": {{"id": "Y", "ids": [{ids}], "tokens": [{}]}}}}}}"#,
        vec![r#""a""#; 1000].join(",")
    );
    for (files, field) in [
        (replaced(9), "normalizer"),
        (tokenizer(format!(r#""normalizer": {{"type": "Prepend", "prepend": "{long}"}}"#)), "normalizer"),
        (tokenizer(template), "post_processor"),
    ] {
        let error = TextProcessor::open(&files).err().unwrap();
        assert_eq!((error.field(), error.to_string().contains("tokenizer.json")), (Some(field), true), "{error}");
    }
}
