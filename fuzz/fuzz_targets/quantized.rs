//! Weights that other programs quantized: headers whose tensors lie in the file, and matrices of finite elements, or an error.
#![no_main]

use cotensor_formats::{BlockType, Gguf, placed_tensors};
use cotensor_quant::{AwqLinear, GgufBlocks, GptqLinear, OnnxProduct, RepackedMatrix, Width};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(gguf) = Gguf::read(&mut &bytes[..], bytes.len() as u64) {
        for tensor in gguf.tensors() {
            let Some(size) = tensor.size_bytes else { continue };
            let data = &bytes[tensor.offset as usize..][..size as usize];
            let blocks = match tensor.kind {
                BlockType::Q4_0 => GgufBlocks::Q4_0,
                BlockType::Q8_0 => GgufBlocks::Q8_0,
                BlockType::Q4_K => GgufBlocks::Q4K,
                BlockType::Q6_K => GgufBlocks::Q6K,
                _ => continue,
            };
            if let [rows, columns] = tensor.shape[..] {
                check(blocks.matrix(rows, columns, data));
            }
        }
    }
    for tensor in placed_tensors(&mut &bytes[..], bytes.len() as u64).unwrap_or_default() {
        let _ = &bytes[tensor.offset as usize..][..tensor.size_bytes as usize];
    }
    let [kind, rows, columns, group, zeros, scales, data @ ..] = bytes else { return };
    let (rows, columns, group) = (usize::from(*rows), usize::from(*columns), usize::from(*group));
    for blocks in [GgufBlocks::Q4_0, GgufBlocks::Q8_0, GgufBlocks::Q4K, GgufBlocks::Q6K] {
        check(blocks.matrix(rows, 256 * columns, data));
    }
    // Lengths that fit, or those of the data.
    let width = Width::ALL[usize::from(kind & 3)];
    let take = |skip: u8, len: usize| {
        let found = data.get(usize::from(skip)..).unwrap_or_default();
        if kind & 4 == 0 { found.iter().copied().chain(std::iter::repeat(skip)).take(len).collect() } else { found.to_vec() }
    };
    let groups = columns.checked_div(group).unwrap_or_default();
    let bits = width.bits() as usize;
    let (codes, zeros) = (take(0, rows * columns * bits / 8), take(*zeros, groups * rows * bits / 8));
    let scales: Vec<f32> = take(*scales, groups * rows * 4).as_chunks().0.iter().map(|&of| f32::from_le_bytes(of)).collect();
    let (codes, zeros, scales, is_less_one) = (&codes[..], &zeros[..], &scales[..], kind & 8 == 0);
    check(GptqLinear { width, rows, columns, group, codes, zeros, scales, is_less_one }.matrix());
    check(AwqLinear { rows, columns, group, codes, zeros, scales }.matrix());
    let zeros = (kind & 16 == 0).then_some(zeros);
    check(OnnxProduct { width, rows, columns, group, codes, zeros, scales }.matrix());
});

fn check(matrix: cotensor_core::Result<RepackedMatrix>) {
    let Ok(matrix) = matrix else { return };
    let mut row = vec![0.0; matrix.columns()];
    matrix.dequantize_row(matrix.rows() - 1, &mut row);
    let stored = matrix.stored_scales();
    assert_eq!(matrix.scale_bytes(stored.scales).len() % matrix.rows(), 0);
}
