//! Embedded assets: skeletons of real architectures, a photograph, a speech clip and a text.
//! fixtures/media/ORIGIN.md names their origin.

/// A model folder without its weights; names ending in `.gz` are compressed.
pub(crate) struct Skeleton {
    pub(crate) name: &'static str,
    pub(crate) files: &'static [(&'static str, &'static [u8])],
}

macro_rules! fixture {
    ($($part:literal),*) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/", $($part),*))
    };
}

/// The files of a skeleton, and those that it has from another one.
macro_rules! skeleton {
    ($name:literal: $($file:literal)* $(; $other:literal: $($shared:literal)*)?) => {
        Skeleton {
            name: $name,
            files: &[
                $(($file, fixture!("skeletons/", $name, "/", $file)),)*
                $($(($shared, fixture!("skeletons/", $other, "/", $shared)),)*)?
            ],
        }
    };
}

const SKELETONS: &[Skeleton] = &[
    skeleton!("bert-base": "config.json" "1_Pooling/config.json" "labels.json" "tokenizer.json.gz" "tokenizer_config.json"
        "onnx/model.onnx.gz" "onnx/head.sentiment.onnx.gz" "onnx/head.entities.onnx.gz" "seed.json.gz"),
    skeleton!("clip-vit-b16": "config.json" "labels.json" "preprocessor_config.json" "tokenizer.json.gz" "tokenizer_config.json"
        "onnx/vision_model.onnx.gz" "onnx/text_model.onnx.gz" "onnx/head.classifier.onnx.gz" "seed.json.gz"),
    skeleton!("whisper-base": "config.json" "labels.json" "preprocessor_config.json" "generation_config.json"
        "tokenizer.json.gz" "tokenizer_config.json" "onnx/encoder_model.onnx.gz" "onnx/decoder_model.onnx.gz"
        "onnx/decoder_with_past_model.onnx.gz" "onnx/head.audio.onnx.gz" "seed.json.gz"),
    skeleton!("vit-base": "config.json" "labels.json" "preprocessor_config.json" "onnx/model.onnx.gz" "onnx/head.classifier.onnx.gz"
        "seed.json.gz"),
    skeleton!("t5-base": "config.json" "generation_config.json" "tokenizer.json.gz" "tokenizer_config.json"
        "onnx/encoder_model.onnx.gz" "onnx/decoder_model.onnx.gz" "onnx/decoder_with_past_model.onnx.gz" "seed.json.gz"),
    skeleton!("bart-base": "config.json" "generation_config.json" "tokenizer.json.gz" "tokenizer_config.json"
        "onnx/encoder_model.onnx.gz" "onnx/decoder_model.onnx.gz" "onnx/decoder_with_past_model.onnx.gz" "seed.json.gz"),
    skeleton!("clap-htsat": "config.json" "preprocessor_config.json" "onnx/audio_model.onnx.gz" "seed.json.gz"),
    skeleton!("roberta-base": "config.json" "1_Pooling/config.json" "labels.json" "tokenizer.json.gz" "tokenizer_config.json" "onnx/model.onnx.gz"
        "onnx/head.entities.onnx.gz" "seed.json.gz"),
    skeleton!("mpnet-base": "config.json" "1_Pooling/config.json" "tokenizer.json.gz" "tokenizer_config.json" "onnx/model.onnx.gz" "seed.json.gz"),
    skeleton!("detr-resnet-50": "config.json" "preprocessor_config.json" "onnx/model.onnx.gz" "seed.json.gz"),
    skeleton!("clip-vit-l14-336": "config.json" "preprocessor_config.json" "onnx/vision_model.onnx.gz" "onnx/text_model.onnx.gz"
        "seed.json.gz"; "clip-vit-b16": "tokenizer.json.gz" "tokenizer_config.json"),
    skeleton!("llava-0.5b": "config.json" "preprocessor_config.json" "generation_config.json" "tokenizer.json.gz"
        "tokenizer_config.json" "onnx/vision_encoder.onnx.gz" "onnx/embed_tokens.onnx.gz" "onnx/decoder_model_merged.onnx.gz"
        "seed.json.gz"),
];

/// Finds a skeleton by name.
pub(crate) fn skeleton(name: &str) -> Option<&'static Skeleton> {
    SKELETONS.iter().find(|skeleton| skeleton.name == name)
}

pub(crate) const PHOTO: &[u8] = fixture!("media/photo.png");
pub(crate) const SPEECH: &[u8] = fixture!("media/speech.wav");
pub(crate) const TEXT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/media/text/sample.txt"));
/// About as long as BERT reads: 456 of its tokens.
pub(crate) const LONG_TEXT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/media/text/travel.txt"));

/// Texts of several sentences, on which adapters are fitted.
pub(crate) const TEXTS: &[&str] = &[
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/media/text/harbour.txt")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/media/text/city.txt")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/media/text/kitchen.txt")),
];
