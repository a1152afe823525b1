//! Weights that other programs quantized, as codes in graphs.

mod elements;
mod graphs;
mod refused;

use crate::support::fixtures;
use cotensor_core::elements::to_f32;
use cotensor_core::{DType, Result};
use cotensor_formats::{BlockType, Gguf, PlacedTensor, placed_tensors};
use cotensor_model::quantize::{Activations, ImportOptions, QuantizeReport, import_folder};
use cotensor_quant::{AwqLinear, GgufBlocks, GptqLinear, RepackedMatrix, Width};
use std::fs;
use std::path::{Path, PathBuf};

fn quantized(name: &str) -> PathBuf {
    fixtures().join("quantized").join(name)
}

fn import(model: &Path, from: &Path, target: &Path, keep: &[&str]) -> Result<QuantizeReport> {
    let keep = keep.iter().map(|text| (*text).to_owned()).collect();
    let options = ImportOptions { from: from.to_path_buf(), activations: Activations::Float32, keep };
    import_folder(model, target, &options, &mut |_, _, _| {})
}

fn elements(matrix: &RepackedMatrix) -> Vec<f32> {
    let mut found = vec![0.0; matrix.rows() * matrix.columns()];
    for (row, out) in found.chunks_exact_mut(matrix.columns()).enumerate() {
        matrix.dequantize_row(row, out);
    }
    found
}

/// The matrices of a GGUF file by tensor, as they lie there.
fn gguf_matrices(path: &Path) -> Vec<(String, RepackedMatrix)> {
    let bytes = fs::read(path).unwrap();
    let gguf = Gguf::read(&mut &bytes[..], bytes.len() as u64).unwrap();
    let matrix = |tensor: &cotensor_formats::GgufTensor| {
        let blocks = match tensor.kind {
            BlockType::Q4_0 => GgufBlocks::Q4_0,
            BlockType::Q8_0 => GgufBlocks::Q8_0,
            BlockType::Q4_K => GgufBlocks::Q4K,
            BlockType::Q6_K => GgufBlocks::Q6K,
            _ => return None,
        };
        let data = &bytes[tensor.offset as usize..][..tensor.size_bytes.unwrap() as usize];
        Some((tensor.name.clone(), blocks.matrix(tensor.shape[0], tensor.shape[1], data).unwrap()))
    };
    gguf.tensors().iter().filter_map(matrix).collect()
}

/// How the layers of a checkpoint are stored.
#[derive(Clone, Copy)]
enum Kind {
    Gptq { width: Width, is_less_one: bool },
    Awq,
}

/// The matrices of a checkpoint by layer.
fn checkpoint_matrices(folder: &Path, kind: Kind, group: usize) -> Vec<(String, RepackedMatrix)> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = placed_tensors(&mut &bytes[..], bytes.len() as u64).unwrap();
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let data = |tensor: &PlacedTensor| &bytes[tensor.offset as usize..][..tensor.size_bytes as usize];
    let stems = tensors.iter().filter_map(|tensor| tensor.name.strip_suffix(".qweight"));
    let matrix = |stem: &str| {
        let codes = find(&format!("{stem}.qweight"));
        let (zeros, scales) = (data(find(&format!("{stem}.qzeros"))), find(&format!("{stem}.scales")));
        let (codes, shape, scales) = (data(codes), &codes.shape, to_f32(DType::F16, data(scales)));
        match kind {
            Kind::Gptq { width, is_less_one } => {
                let (rows, columns) = (shape[1], shape[0] * 32 / width.bits() as usize);
                GptqLinear { width, rows, columns, group, codes, zeros, scales: &scales, is_less_one }.matrix()
            }
            Kind::Awq => {
                let (rows, columns) = (shape[1] * 8, shape[0]);
                AwqLinear { rows, columns, group, codes, zeros, scales: &scales }.matrix()
            }
        }
    };
    stems.map(|stem| (stem.to_owned(), matrix(stem).unwrap())).collect()
}
