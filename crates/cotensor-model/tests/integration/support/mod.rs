//! Tiny models, the shipped media and pipelines over them.

pub(crate) mod onnx;

use cotensor_core::DType;
use cotensor_model::Runtime;
use cotensor_model::engine::RtenEngine;
use cotensor_model::pipeline::{Inputs, Pipeline, User};
use cotensor_model::tensor::Array;
use cotensor_store::{LocalStore, LocalStoreBuilder};
use rten_onnx::onnx::ModelProto;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const TEXT: &str = "The harbour wakes before the city does.";

pub(crate) fn fixtures() -> PathBuf {
    other_fixtures().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures"))
}

/// The folder with the same models from another exporter, with which `make parity` runs the tests.
pub(crate) fn other_fixtures() -> Option<PathBuf> {
    std::env::var_os("COTENSOR_TEST_FIXTURES").map(PathBuf::from)
}

pub(crate) fn tiny(family: &str) -> PathBuf {
    fixtures().join("tiny").join(family)
}

pub(crate) fn runtime(builder: LocalStoreBuilder) -> Arc<Runtime> {
    Runtime::new(builder.build(), Arc::new(RtenEngine::new(Some(1))))
}

/// A runtime with a store of its own on every engine that is installed.
pub(crate) fn runtimes() -> Vec<Arc<Runtime>> {
    let engines = onnx::engines().into_iter();
    engines.map(|engine| Runtime::new(LocalStore::builder().build(), engine)).collect()
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

/// A copy of a model folder with its graphs unpacked and, in place of missing files, the tiny BERT's tokenizer.
pub(crate) fn unpacked(model: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(model, folder.path());
    for inner in [folder.path().to_path_buf(), folder.path().join("onnx")] {
        let Ok(entries) = fs::read_dir(inner) else { continue };
        let packed = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "gz");
        for path in entries.map(|entry| entry.unwrap().path()).filter(packed) {
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(fs::File::open(&path).unwrap()).read_to_end(&mut bytes).unwrap();
            fs::write(path.with_extension(""), bytes).unwrap();
            fs::remove_file(path).unwrap();
        }
    }
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        if !folder.path().join(name).exists() {
            fs::copy(tiny("bert").join(name), folder.path().join(name)).unwrap();
        }
    }
    folder
}

/// The tensors of a file of references.
pub(crate) struct References(Vec<u8>);

impl References {
    pub(crate) fn open(path: &Path) -> Self {
        Self(fs::read(path).unwrap())
    }

    pub(crate) fn array(&self, name: &str) -> Array {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        array(&tensor)
    }
}

pub(crate) fn array(tensor: &TensorView<'_>) -> Array {
    let shape = tensor.shape().to_vec();
    match tensor.dtype() {
        Dtype::F32 => {
            let values = tensor.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            Array::f32(shape, values.collect()).unwrap()
        }
        Dtype::I64 => {
            let values = tensor.data().as_chunks::<8>().0.iter().map(|&bytes| i64::from_le_bytes(bytes));
            Array::i64(shape, values.collect()).unwrap()
        }
        Dtype::U8 => Array::new(DType::U8, shape, tensor.data().to_vec()).unwrap(),
        other => panic!("a reference of {other:?}"),
    }
}

/// max |a - b| / std(reference)
pub(crate) fn difference(given: &[f32], reference: &[f32]) -> f64 {
    // A maximum ignores NaN.
    assert!(given.iter().all(|value| value.is_finite()), "not finite");
    assert_eq!(given.len(), reference.len());
    let count = reference.len() as f64;
    let mean = reference.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
    let variance = reference.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
    let largest = given.iter().zip(reference).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max);
    largest / variance.sqrt()
}

/// Checks an embedding against row `at` of its reference.
pub(crate) fn check_row(given: &[f32], reference: &Array, at: usize, name: &str) {
    let width = reference.shape()[1];
    let expected = &reference.as_f32().unwrap()[at * width..][..width];
    assert_eq!(given.len(), width);
    let worst = given.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-5, "{name}, text {at}: {worst:e}");
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
