//! Repacked matrices have the elements that the other program gives.

use super::*;
use crate::support::References;
use cotensor_core::ErrorKind;

fn equal(found: &RepackedMatrix, wanted: &[f32], name: &str) {
    let found = elements(found);
    assert_eq!(found.len(), wanted.len(), "{name}");
    let wrong = found.iter().zip(wanted).find(|(found, wanted)| found != wanted);
    assert!(wrong.is_none(), "{name}: {wrong:?}");
}

#[test]
fn gguf_blocks_have_the_elements_of_their_program() {
    let truth = References::open(&quantized("blocks.safetensors"));
    let matrices = gguf_matrices(&quantized("blocks.gguf"));
    assert_eq!(matrices.len(), 4);
    for (name, matrix) in matrices {
        let wanted = truth.array(&name);
        if name != "blk.0.ffn_down.weight" {
            equal(&matrix, wanted.as_f32().unwrap(), &name);
            continue;
        }
        // Q4_K: the offset and the sum are rounded, the other program rounds its one sum.
        let (found, wanted) = (elements(&matrix), wanted.as_f32().unwrap());
        let most = wanted.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() <= most * f32::EPSILON, "{found} and {wanted}");
        }
        assert!(found.iter().zip(wanted).filter(|(found, wanted)| found == wanted).count() > found.len() / 2);
    }
}

#[test]
fn layers_of_checkpoints_have_the_elements_of_their_program() {
    let truth = References::open(&quantized("elements.safetensors"));
    for (bits, group, is_less_one) in [(2, 32, true), (3, 32, true), (4, 64, false), (8, 16, true)] {
        let (name, width) = (format!("gptq{bits}"), Width::of(bits).unwrap());
        let [(_, matrix)] = &checkpoint_matrices(&quantized(&name), Kind::Gptq { width, is_less_one }, group)[..]
        else {
            panic!("one layer")
        };
        equal(matrix, truth.array(&name).as_f32().unwrap(), &name);
        // The zero points of 8 bits are the middle.
        assert_eq!(matrix.stored_scales().offsets.is_none(), bits == 8);
        assert_eq!(matrix.stored_scales().scales, DType::F16);
    }
    let gptq = Kind::Gptq { width: Width::Four, is_less_one: true };
    for (kind, name) in [(gptq, "gptq"), (Kind::Awq, "awq")] {
        let layer = "model.layers.1.mlp.down_proj";
        let matrices = checkpoint_matrices(&quantized(&format!("llama-{name}")), kind, 32);
        let (_, matrix) = matrices.iter().find(|(known, _)| known == layer).unwrap();
        equal(matrix, truth.array(&format!("{name}.{layer}")).as_f32().unwrap(), name);
    }
}

#[test]
fn long_groups_become_several_with_equal_scales() {
    let (rows, columns, width) = (8, 1024, Width::Four);
    let words: Vec<u8> = (0..rows * columns / 2).map(|at| (at * 7 + at / 11) as u8).collect();
    let zeros = [0x77; 4];
    for (group, own) in [(1024, 256), (512, 256), (128, 128)] {
        let groups = columns / group;
        let scales: Vec<f32> = (0..rows * groups).map(|at| (at + 1) as f32 / 64.0).collect();
        let zeros = zeros.repeat(groups);
        let linear = GptqLinear {
            width,
            rows,
            columns,
            group,
            codes: &words,
            zeros: &zeros,
            scales: &scales,
            is_less_one: true,
        };
        let matrix = linear.matrix().unwrap();
        assert_eq!(matrix.group(), own);
        let found = elements(&matrix);
        for (row, found) in found.chunks_exact(columns).enumerate() {
            for (column, found) in found.iter().enumerate() {
                let word = column / 8 * rows + row;
                let code = words[word * 4 + column % 8 / 2] >> (column % 2 * 4) & 15;
                assert_eq!(*found, (f32::from(code) - 8.0) * scales[column / group * rows + row]);
            }
        }
    }
    let refused = |group, columns, scales: &[f32], zeros: &[u8]| {
        let codes = vec![0; rows * columns / 2];
        let linear = GptqLinear { width, rows, columns, group, codes: &codes, zeros, scales, is_less_one: true };
        let error = linear.matrix().unwrap_err();
        (error.kind(), error.field().map(str::to_owned))
    };
    let field = |kind, name: &str| (kind, Some(name.to_owned()));
    assert_eq!(refused(8, 32, &[1.0; 32], &[0x77; 16]), field(ErrorKind::Unsupported, "group_size"));
    assert_eq!(refused(48, 64, &[1.0; 8], &[0x77; 4]), field(ErrorKind::Unsupported, "group_size"));
    assert_eq!(refused(0, 64, &[1.0; 8], &[0x77; 4]), field(ErrorKind::Unsupported, "group_size"));
    assert_eq!(refused(32, 32, &[1.0; 8], &[0x7f; 4]), field(ErrorKind::Unsupported, "qzeros"));
    assert_eq!(refused(32, 32, &[0.1; 8], &[0x76; 4]), field(ErrorKind::Unsupported, "scales"));
    assert_eq!(refused(32, 32, &[f32::INFINITY; 8], &[0x77; 4]), field(ErrorKind::Corrupt, "scales"));
    assert_eq!(refused(32, 32, &[1.0; 7], &[0x77; 4]), field(ErrorKind::Corrupt, "scales"));
    assert_eq!(refused(32, 32, &[1.0; 8], &[0x77; 3]), field(ErrorKind::Corrupt, "qzeros"));
    assert_eq!(refused(24, 24, &[1.0; 8], &[0x77; 4]), field(ErrorKind::Unsupported, "qweight"));
}
