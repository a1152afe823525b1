//! Resizing and cropping, with the rounding of Pillow.

use cotensor_core::{Error, Result};
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::F32x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

/// The number of pixels that one pass converts to 32-bit numbers at a time, approximately.
const BAND_PIXELS: usize = 1 << 20;

/// Resizes as Pillow does: first the columns, then the rows; each pass rounds to levels. `filter` is `None` for the
/// nearest pixel.
pub(super) fn resized(
    levels: &[u8],
    from: (usize, usize),
    to: (usize, usize),
    filter: Option<FilterType>,
) -> Result<Vec<u8>> {
    // Rows are independent. Bands of rows bound the memory for 32-bit numbers.
    let rows = (BAND_PIXELS / from.0).max(1);
    let mut across = Vec::with_capacity(to.0 * from.1 * 3);
    for band in levels.chunks(rows * from.0 * 3) {
        let rows = band.len() / (from.0 * 3);
        across.extend(one_pass(band, (from.0, rows), (to.0, rows), filter)?);
    }
    one_pass(&across, (to.0, from.1), to, filter)
}

fn one_pass(levels: &[u8], from: (usize, usize), to: (usize, usize), filter: Option<FilterType>) -> Result<Vec<u8>> {
    if from == to {
        return Ok(levels.to_vec());
    }
    let failed = |error: &dyn std::fmt::Display| Error::invalid(format!("cannot resize: {error}")).in_field("image");
    let source: Vec<f32> = levels.iter().map(|&level| f32::from(level)).collect();
    let mut target = vec![0f32; to.0 * to.1 * 3];
    let algorithm = filter.map_or(ResizeAlg::Nearest, ResizeAlg::Convolution);
    let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
    // With the type of the pixels, programs have the code and the tables of this type alone.
    let source = TypedImageRef::<F32x3>::from_buffer(from.0 as u32, from.1 as u32, bytemuck::cast_slice(&source))
        .map_err(|error| failed(&error))?;
    let mut resized = TypedImage::<F32x3>::from_buffer(to.0 as u32, to.1 as u32, bytemuck::cast_slice_mut(&mut target))
        .map_err(|error| failed(&error))?;
    Resizer::new().resize_typed(&source, &mut resized, &options).map_err(|error| failed(&error))?;
    drop(resized);
    Ok(target.iter().map(|level| (level + 0.5).floor().clamp(0.0, 255.0) as u8).collect())
}

/// The image in the middle of a square of a colour. The side is the image's longest edge.
pub(super) fn squared(levels: &[u8], (width, height): (usize, usize), colour: [u8; 3]) -> Vec<u8> {
    let side = width.max(height);
    let (left, top) = ((side - width) / 2, (side - height) / 2);
    let mut square = colour.repeat(side * side);
    for (y, row) in levels.chunks_exact(width * 3).enumerate() {
        let at = ((y + top) * side + left) * 3;
        square[at..at + row.len()].copy_from_slice(row);
    }
    square
}

/// The center of the image. Where the image is smaller, the result is black.
pub(super) fn center_cropped(
    levels: &[u8],
    (width, height): (usize, usize),
    (to_width, to_height): (usize, usize),
) -> Vec<u8> {
    let offset = |size: usize, to: usize| (size as isize - to as isize).div_euclid(2);
    let (left, top) = (offset(width, to_width), offset(height, to_height));
    let mut cropped = vec![0; to_width * to_height * 3];
    for (y, row) in cropped.chunks_exact_mut(to_width * 3).enumerate() {
        let Ok(source_y) = usize::try_from(y as isize + top) else { continue };
        for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
            if let Ok(source_x) = usize::try_from(x as isize + left)
                && source_x < width
                && source_y < height
            {
                let at = (source_y * width + source_x) * 3;
                pixel.copy_from_slice(&levels[at..at + 3]);
            }
        }
    }
    cropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resizing_in_bands_equals_resizing_in_one_pass() {
        // 1.5 million pixels are more than one band.
        let (width, height) = (1500, 1001);
        let levels: Vec<u8> = (0..width * height * 3).map(|i| (i % 251 * 7919 % 251) as u8).collect();
        for filter in [None, Some(FilterType::CatmullRom)] {
            let whole = one_pass(&levels, (width, height), (60, height), filter).unwrap();
            let whole = one_pass(&whole, (60, height), (60, 40), filter).unwrap();
            assert_eq!(resized(&levels, (width, height), (60, 40), filter).unwrap(), whole);
        }
    }
}
