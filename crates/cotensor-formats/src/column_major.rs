//! Reads tensors that a file stores in column-major order: the first index runs fastest in the file, the last one in
//! memory.

use std::io::Read;

/// The size of the buffer between the file and the tensor, in bytes.
const PANEL_BYTES: usize = 4 << 20;

/// Reads column-major elements of `width` bytes from `source` into row-major `target`. `shape` has at least one
/// dimension; `target` has the size of all elements.
///
/// # Errors
/// As [`Read::read_exact`].
pub(crate) fn read(source: &mut impl Read, shape: &[usize], width: usize, target: &mut [u8]) -> std::io::Result<()> {
    let panel = (PANEL_BYTES / width).max(1);
    match width {
        1 => transpose::<1>(source, shape, panel, target),
        2 => transpose::<2>(source, shape, panel, target),
        4 => transpose::<4>(source, shape, panel, target),
        _ => transpose::<8>(source, shape, panel, target),
    }
}

/// Transposes a matrix whose columns are the values of the last index and whose rows are all other indices. Reads
/// several columns at a time, so that writes to `target` are contiguous; reads a part of a column that exceeds the
/// buffer.
fn transpose<const WIDTH: usize>(
    source: &mut impl Read,
    shape: &[usize],
    panel: usize,
    target: &mut [u8],
) -> std::io::Result<()> {
    let (target, _) = target.as_chunks_mut::<WIDTH>();
    let Some((&columns, others)) = shape.split_last().filter(|_| !target.is_empty()) else { return Ok(()) };
    let rows = target.len() / columns;
    let (rows_max, columns_max) = (rows.min(panel), (panel / rows).max(1));
    let mut read = vec![0; rows_max * columns_max.min(columns) * WIDTH];
    for first in (0..columns).step_by(columns_max) {
        let count = columns_max.min(columns - first);
        for top in (0..rows).step_by(rows_max) {
            let height = rows_max.min(rows - top);
            let part = &mut read[..height * count * WIDTH];
            source.read_exact(part)?;
            let (part, _) = part.as_chunks::<WIDTH>();
            for down in 0..height {
                let start = row(others, top + down) * columns + first;
                let line = &mut target[start..start + count];
                line.iter_mut().enumerate().for_each(|(across, element)| *element = part[across * height + down]);
            }
        }
    }
    Ok(())
}

/// The row-major index of the element with column-major index `number`.
fn row(shape: &[usize], mut number: usize) -> usize {
    let mut stride: usize = shape.iter().product();
    shape.iter().fold(0, |row, &dim| {
        stride /= dim;
        let index = number % dim;
        number /= dim;
        row + index * stride
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The column-major index of each element, in row-major order, computed by definition.
    fn expected(shape: &[usize]) -> Vec<u64> {
        let count: usize = shape.iter().product();
        (0..count)
            .map(|mut at| {
                let mut index = vec![0; shape.len()];
                for (index, dim) in index.iter_mut().zip(shape).rev() {
                    (*index, at) = (at % dim, at / dim);
                }
                index.iter().zip(shape).rev().fold(0, |number, (index, dim)| number * dim + index) as u64
            })
            .collect()
    }

    #[test]
    fn column_major_elements_are_transposed() {
        for shape in [&[2, 3][..], &[3, 2], &[4, 1, 5], &[2, 3, 4], &[3, 4, 2, 5], &[1, 1, 7, 2], &[7, 100], &[100, 7]]
        {
            let expected = expected(shape);
            // Buffers of a part of a column, one column, several columns, and all.
            for panel in [1, 3, 7, 16, 1 << 20] {
                let file: Vec<u8> = (0..expected.len() as u64).flat_map(u64::to_le_bytes).collect();
                let mut target = vec![0; file.len()];
                transpose::<8>(&mut &file[..], shape, panel, &mut target).unwrap();
                let (found, _) = target.as_chunks::<8>();
                let found: Vec<u64> = found.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
                assert_eq!(found, expected, "{shape:?} by {panel}");
                assert!(transpose::<8>(&mut &file[1..], shape, panel, &mut target).is_err());
            }
        }
    }

    #[test]
    fn all_element_widths_and_empty_shapes_are_read() {
        for width in [1, 2, 4, 8] {
            let file: Vec<u8> = (0..6 * width as u8).collect();
            let mut target = vec![0; file.len()];
            read(&mut &file[..], &[2, 3], width, &mut target).unwrap();
            let elements: Vec<_> = [0, 2, 4, 1, 3, 5].iter().flat_map(|&at| &file[at * width..][..width]).collect();
            assert!(target.iter().eq(elements), "{width}");
        }
        for shape in [&[0, 3][..], &[3, 0], &[2, 0, 2]] {
            read(&mut std::io::empty(), shape, 4, &mut []).unwrap();
        }
    }
}
