//! The fixtures, compiled into the program, because wasm32 has no files.

use std::collections::HashMap;

macro_rules! fixtures {
    ($($folder:literal: [$($name:literal),+ $(,)?],)+) => {
        &[$($((
            concat!($folder, "/", $name),
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/", $folder, "/", $name)),
        ),)+)+]
    };
}

/// Path below `fixtures/`, and contents.
const FIXTURES: &[(&str, &[u8])] = fixtures! {
    "chat": ["chats.json", "llama-2.jinja", "llama-3.jinja", "llava.jinja", "mistral.jinja", "qwen3.jinja"],
    "forms/orientation": [
        "1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg", "6.jpg", "7.jpg", "8.jpg", "5.webp", "6.png", "reference.safetensors",
    ],
    "media": ["photo.png", "speech.wav"],
    "skeletons/clip-vit-b16": ["preprocess.safetensors", "preprocessor_config.json"],
    "skeletons/vit-base": ["preprocess.safetensors", "preprocessor_config.json"],
    "sounds": ["reference.safetensors"],
    "sounds/clap-features": ["preprocessor_config.json"],
    "tiny/audio": ["speech.flac", "speech.mp3", "speech.ogg"],
    "tiny/bert": ["config.json", "preprocess.json", "tokenizer.json", "tokenizer_config.json"],
    "tiny/clip": [
        "config.json", "preprocess.json", "preprocess.safetensors", "preprocessor_config.json", "tokenizer.json",
        "tokenizer_config.json",
    ],
    "tiny/images": ["gray.png", "rgba.png", "tall.png"],
    "tiny/llama": ["tokenizer.json", "tokenizer_config.json"],
    "tiny/llava": ["tokenizer.json", "tokenizer_config.json"],
    "tiny/mistral": ["tokenizer.json", "tokenizer_config.json"],
    "tiny/qwen3": ["tokenizer.json", "tokenizer_config.json"],
    "tiny/processors": ["preprocess.json", "preprocess.safetensors"],
    "tiny/vit": ["preprocess.json", "preprocess.safetensors", "preprocessor_config.json"],
    "tiny/whisper": [
        "config.json", "preprocess.json", "preprocess.safetensors", "preprocessor_config.json", "tokenizer.json",
        "tokenizer_config.json",
    ],
};

/// The contents of a fixture.
pub(crate) fn fixture(path: &str) -> &'static [u8] {
    let found = FIXTURES.iter().find(|(name, _)| *name == path);
    found.unwrap_or_else(|| panic!("{path} is not in the list of fixtures")).1
}

/// The files of a folder of fixtures.
pub(crate) fn folder(path: &str) -> HashMap<String, Vec<u8>> {
    let prefix = format!("{path}/");
    let files =
        FIXTURES.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(&prefix)?.to_owned(), bytes.to_vec())));
    files.collect()
}
