//! The patches that the rows of an image encoder describe.

use cotensor_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// The most class tokens that an encoder may have.
const CLASS_TOKENS_MAX: usize = 8;

/// The most rows of an encoder's output.
pub(super) const ROWS_MAX: usize = 1 << 20;

/// How the rows of an encoder follow from the size of an image: class tokens, then square patches without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patches {
    /// Tokens before the patches: class and distillation tokens.
    pub class_tokens: usize,
    /// The side of a patch in pixels; 0 for a single row for the whole image.
    pub side: usize,
    /// Height and width in pixels of the preprocessed image; `None` if images have different sizes.
    pub image: Option<[usize; 2]>,
}

impl Patches {
    /// The patches of an encoder with `rows` rows that reads an image of `height` by `width` pixels: after as few class tokens
    /// as possible. Of several sides, one that divides height and width, or one of them, is chosen, then a power of two, which
    /// the strides of convolutional networks are.
    ///
    /// # Errors
    /// `Unsupported` when the rows are no such grid.
    pub fn of_image(rows: usize, height: usize, width: usize) -> Result<Self> {
        let image = Some([height, width]);
        if rows == 1 {
            return Ok(Self { class_tokens: 1, side: 0, image });
        }
        for class_tokens in 0..=CLASS_TOKENS_MAX.min(rows - 1) {
            let fits = |side: &usize| height.div_ceil(*side) * width.div_ceil(*side) == rows - class_tokens;
            let divided = |side: usize| [height, width].iter().filter(|&&pixels| pixels.is_multiple_of(side)).count();
            let sides = (2..=height.min(width)).filter(fits);
            if let Some(side) = sides.min_by_key(|&side| (Reverse(divided(side)), !side.is_power_of_two(), side)) {
                return Ok(Self { class_tokens, side, image });
            }
        }
        Err(Error::unsupported(format!(
            "{rows} rows are not a grid of patches of an image of {height} x {width} pixels"
        )))
    }

    /// The grid of an image of this height and width, or of the images on which the patches were found.
    ///
    /// # Errors
    /// `Unsupported` without a size, and for more than a million rows.
    pub fn grid(&self, image: Option<[usize; 2]>) -> Result<Grid> {
        let class_tokens = self.class_tokens.min(CLASS_TOKENS_MAX);
        if self.side == 0 {
            return Ok(Grid { class_tokens, height: 0, width: 0 });
        }
        let [height, width] = image
            .or(self.image)
            .ok_or_else(|| Error::unsupported("the rows depend on the size of the image, which is not known"))?;
        let grid = Grid { class_tokens, height: height.div_ceil(self.side), width: width.div_ceil(self.side) };
        let rows = grid.height.checked_mul(grid.width).and_then(|patches| patches.checked_add(class_tokens));
        match rows.filter(|&rows| rows <= ROWS_MAX) {
            Some(_) => Ok(grid),
            None => Err(Error::unsupported(format!("more than {ROWS_MAX} rows for {height} x {width} pixels"))),
        }
    }

    /// The same patches for images of both sizes; `None` if they differ.
    pub fn of_both(&self, other: &Self) -> Option<Self> {
        let image = self.image.filter(|_| self.image == other.image);
        let same = self.class_tokens == other.class_tokens && self.side == other.side;
        same.then_some(Self { image, ..*self })
    }
}

/// The rows of an image encoder: class tokens, then patches row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Tokens before the patches: class and distillation tokens.
    pub class_tokens: usize,
    /// Rows of patches.
    pub height: usize,
    /// Columns of patches.
    pub width: usize,
}

impl Grid {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.class_tokens + self.height * self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_found_from_rows_and_pixels() {
        let found = |rows, height, width| {
            let patches = Patches::of_image(rows, height, width).ok()?;
            let grid = patches.grid(None).unwrap();
            Some((patches.side, grid.class_tokens, grid.height, grid.width))
        };
        assert_eq!(found(197, 224, 224), Some((16, 1, 14, 14)));
        assert_eq!(found(198, 224, 224), Some((16, 2, 14, 14)));
        assert_eq!(found(257, 224, 224), Some((14, 1, 16, 16)));
        assert_eq!(found(950, 800, 1216), Some((32, 0, 25, 38)));
        // Patches of 33 pixels would be as many.
        assert_eq!(found(625, 800, 800), Some((32, 0, 25, 25)));
        assert_eq!(found(850, 800, 1066), Some((32, 0, 25, 34)));
        assert_eq!(found(6, 91, 37), Some((32, 0, 3, 2)));
        assert_eq!(found(1, 224, 224), Some((0, 1, 0, 0)));
        assert_eq!(found(211, 224, 224), None);
    }

    #[test]
    fn patches_of_images_of_different_sizes_have_a_grid_for_each_size() {
        let [square, wide] =
            [(625, 800), (850, 1066)].map(|(rows, width)| Patches::of_image(rows, 800, width).unwrap());
        assert_eq!(square.of_both(&square), Some(square));
        let both = square.of_both(&wide).unwrap();
        assert_eq!(both.grid(Some([1066, 800])).unwrap(), Grid { class_tokens: 0, height: 34, width: 25 });
        assert!(both.grid(None).is_err());
        assert!(both.grid(Some([usize::MAX, usize::MAX])).is_err());
        assert_eq!(both.of_both(&Patches::of_image(197, 224, 224).unwrap()), None);
    }
}
