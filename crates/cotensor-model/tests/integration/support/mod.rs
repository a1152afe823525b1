//! Tiny models, the shipped media and pipelines over them.

pub(crate) mod onnx;

use cotensor_model::Runtime;
use cotensor_model::engine::RtenEngine;
use cotensor_model::pipeline::{Inputs, Pipeline, User};
use cotensor_store::EmbeddedStoreBuilder;
use rten_onnx::onnx::ModelProto;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const TEXT: &str = "The harbour wakes before the city does.";

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

pub(crate) fn tiny(family: &str) -> PathBuf {
    fixtures().join("tiny").join(family)
}

pub(crate) fn runtime(builder: EmbeddedStoreBuilder) -> Arc<Runtime> {
    Runtime::new(builder.build(), Arc::new(RtenEngine::new(Some(1))))
}

pub(crate) fn inputs() -> Inputs {
    let media = fixtures().join("media");
    let inputs = Inputs::default().with_text(TEXT).with_image(&media.join("photo.png")).unwrap();
    inputs.with_audio(&media.join("speech.wav")).unwrap()
}

pub(crate) fn user(name: &str, family: &str, task: &str) -> User {
    let toml = format!("[[user]]\nname = '{name}'\nmodel = '{family}'\ntask = '{task}'\n");
    Pipeline::parse(&toml).unwrap().users.remove(0)
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Changes a graph.
pub(crate) fn edit(path: &Path, change: impl FnOnce(&mut ModelProto)) {
    let mut model = ModelProto::parse_buf(&fs::read(path).unwrap()).unwrap();
    change(&mut model);
    fs::write(path, model.write_buf().unwrap()).unwrap();
}

/// Flips one bit of the last weight in the folder's encoder.
pub(crate) fn change_a_weight(folder: &Path) {
    let file = folder.join("onnx/model.onnx_data");
    let mut bytes = fs::read(&file).unwrap();
    // The lowest bit of a mantissa (little-endian): another number, still a finite one.
    let index = bytes.len() - 4;
    bytes[index] ^= 1;
    fs::write(file, bytes).unwrap();
}
