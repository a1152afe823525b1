//! The content of weights: what the store keeps of the elements in a file.

use crate::repack::Repack;
use crate::types::Weight;
use cotensor_core::DType;
use cotensor_core::elements::f16;

impl Weight {
    /// Fills `target` with the content, transposed, converted or repacked, of the elements `stored` in the file.
    ///
    /// # Panics
    /// When `stored` has another length than the source, or `target` another than [`Weight::size_bytes`].
    pub fn fill(&self, stored: &[u8], target: &mut [u8]) {
        let source = &self.source;
        let size = source.dtype.size_bytes();
        if !source.repacks.is_empty() {
            if source.dtype == self.dtype {
                Repack::fill_all(&source.repacks, stored, target);
            } else {
                to_f32(source.dtype, &Repack::all(&source.repacks, stored), target);
            }
            return;
        }
        match (&source.permutation, source.dtype == self.dtype) {
            (None, true) => target.copy_from_slice(stored),
            (None, false) => to_f32(source.dtype, stored, target),
            (Some(permutation), true) => transpose(stored, target, &self.shape, permutation, size),
            (Some(permutation), false) => {
                let mut turned = vec![0; stored.len()];
                transpose(stored, &mut turned, &self.shape, permutation, size);
                to_f32(source.dtype, &turned, target);
            }
        }
    }
}

/// Converts little-endian `float16` or `float64` elements to `float32`.
pub fn to_f32(from: DType, source: &[u8], target: &mut [u8]) {
    let targets = target.as_chunks_mut::<4>().0;
    match from {
        DType::F16 => {
            for (bytes, target) in source.as_chunks::<2>().0.iter().zip(targets) {
                *target = f16::from_le_bytes(*bytes).to_f32().to_le_bytes();
            }
        }
        _ => {
            for (bytes, target) in source.as_chunks::<8>().0.iter().zip(targets) {
                *target = (f64::from_le_bytes(*bytes) as f32).to_le_bytes();
            }
        }
    }
}

/// Writes the elements of `source`, `size` bytes each, into `target` so that dimension `i` of the target, which has
/// `shape`, is dimension `permutation[i]` of the source. Both are row-major.
fn transpose(source: &[u8], target: &mut [u8], shape: &[usize], permutation: &[usize], size: usize) {
    let mut source_shape = vec![0; shape.len()];
    for (&dim, &axis) in shape.iter().zip(permutation) {
        source_shape[axis] = dim;
    }
    // The distance in the source, in elements, between neighbours along each dimension of the target.
    let strides: Vec<usize> = permutation.iter().map(|&axis| source_shape[axis + 1..].iter().product()).collect();
    let (Some(&row), Some(&stride)) = (shape.last(), strides.last()) else {
        return target.copy_from_slice(source);
    };
    let mut index = vec![0; shape.len() - 1];
    for row in target.chunks_exact_mut((row * size).max(1)) {
        let mut at: usize = index.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
        for element in row.chunks_exact_mut(size) {
            element.copy_from_slice(&source[at * size..(at + 1) * size]);
            at += stride;
        }
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_and_cube_are_transposed() {
        let mut target = [0; 6];
        transpose(&[1, 2, 3, 4, 5, 6], &mut target, &[3, 2], &[1, 0], 1);
        assert_eq!(target, [1, 4, 2, 5, 3, 6]);
        // Element [i, j, k] of the target is element [j, k, i] of the source, which has shape [2, 3, 4].
        let source: Vec<u8> = (0u16..24).flat_map(u16::to_le_bytes).collect();
        let mut target = [0; 48];
        transpose(&source, &mut target, &[4, 2, 3], &[2, 0, 1], 2);
        for (i, j, k) in [(0, 0, 0), (3, 1, 2), (2, 0, 1), (1, 1, 0)] {
            let at = ((i * 2 + j) * 3 + k) * 2;
            assert_eq!(u16::from_le_bytes([target[at], target[at + 1]]), ((j * 3 + k) * 4 + i) as u16);
        }
    }
}
