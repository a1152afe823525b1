//! The copy of strided elements to contiguous memory.

/// Copies the elements at `source`, `strides` bytes apart along each dimension, to `target` in row-major order.
///
/// # Safety
/// Every element that shape and strides reach from `source` is readable. `target` has one `item` of bytes per element.
pub(crate) unsafe fn gather(source: *const u8, shape: &[usize], strides: &[isize], item: usize, target: &mut [u8]) {
    if target.is_empty() {
        return;
    }
    // Inner dimensions that are contiguous form one run.
    let (mut outer, mut run) = (shape.len(), item);
    while outer > 0 && (shape[outer - 1] == 1 || strides[outer - 1].unsigned_abs() == run && strides[outer - 1] > 0) {
        outer -= 1;
        run *= shape[outer];
    }
    let (shape, strides) = (&shape[..outer], &strides[..outer]);
    let (inner, step) = match outer {
        0 => (1, 0),
        _ => (shape[outer - 1], strides[outer - 1]),
    };
    let mut at = vec![0usize; outer.saturating_sub(1)];
    let mut start = source;
    for row in target.chunks_exact_mut(run * inner) {
        let mut from = start;
        for element in row.chunks_exact_mut(run) {
            // SAFETY: the caller's promise; `element` has `run` bytes. The two do not overlap: `target` is borrowed
            // exclusively.
            unsafe { std::ptr::copy_nonoverlapping(from, element.as_mut_ptr(), run) };
            from = from.wrapping_offset(step);
        }
        for axis in (0..at.len()).rev() {
            at[axis] += 1;
            start = start.wrapping_offset(strides[axis]);
            if at[axis] < shape[axis] {
                break;
            }
            start = start.wrapping_offset(-strides[axis] * at[axis] as isize);
            at[axis] = 0;
        }
    }
}
