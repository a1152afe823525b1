//! Images to pixels, as Pillow and transformers' slow processors do it.

use crate::array::Array;
use crate::model::read_json;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{ImageFormat, ImageReader, Limits, RgbImage};
use serde_json::Value;
use std::borrow::Cow;
use std::io::Cursor;
use std::path::Path;

/// The most pixels along a side of an image that is decoded.
const SIDE_MAX: u32 = 20_000;
/// The most bytes that decoding may take: 179 million pixels, as many as Pillow opens.
const DECODED_BYTES_MAX: u64 = 1 << 29;
/// About how many pixels of a row-wise pass are numbers of 32 bits at a time.
const BAND_PIXELS: usize = 1 << 20;
/// The most pixels along a side of what a model reads.
const TARGET_SIDE_MAX: u64 = 4096;

/// What preprocessor_config.json says of images.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    resize: Option<(Size, Option<FilterType>)>,
    crop: Option<(usize, usize)>,
    rescale: f32,
    normalize: Option<([f32; 3], [f32; 3])>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Size {
    ShortestEdge(usize),
    /// Height, width.
    Exact(usize, usize),
}

/// Decodes a PNG, JPEG, WebP or BMP. Transparency is dropped, gray becomes colour.
///
/// # Errors
/// `Corrupt` when it cannot be decoded, `Invalid` past the limits or without pixels.
pub fn decode_image(bytes: &[u8]) -> Result<RgbImage> {
    if bytes.is_empty() {
        return Err(Error::invalid("the image is empty").in_field("image"));
    }
    let wrong = |error: image::ImageError| Error::corrupt(format!("not an image: {error}")).in_field("image");
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|error| Error::io("cannot look at the image", &error))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    reader.limits(limits);
    if reader.format() == Some(ImageFormat::Jpeg) && jpeg_ends_early(bytes) {
        return Err(Error::corrupt("not a whole image: the JPEG ends early").in_field("image"));
    }
    let image = reader.decode().map_err(wrong)?.into_rgb8();
    if image.width() == 0 || image.height() == 0 {
        return Err(Error::invalid("the image has no pixels").in_field("image"));
    }
    Ok(image)
}

/// Whether a JPEG (ITU-T T.81, annex B) has no end: its decoder paints what is missing gray and says nothing.
fn jpeg_ends_early(bytes: &[u8]) -> bool {
    const START: u8 = 0xd8;
    const END: u8 = 0xd9;
    let mut rest = bytes;
    loop {
        // A marker is 0xff and a code. In a scan, 0xff 0 is a value and 0xd0 to 0xd7 restart the coder.
        let Some(at) = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff))
        else {
            return true;
        };
        let code = rest[at + 1];
        rest = &rest[at + 2..];
        match code {
            END => return false,
            START | 1 => {}
            // What follows a marker says how long it is, itself included.
            _ => match rest.first_chunk().map(|&length| usize::from(u16::from_be_bytes(length))) {
                Some(length) if length <= rest.len() => rest = &rest[length..],
                _ => return true,
            },
        }
    }
}

impl ImageProcessor {
    /// Reads preprocessor_config.json of a model's folder.
    ///
    /// # Errors
    /// `NotFound` without it, `Invalid` for a field that makes no sense.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("preprocessor_config.json");
        Self::parse(&read_json(&path)?).map_err(|error| error.in_file(&path))
    }

    fn parse(config: &Value) -> Result<Self> {
        let on = |name: &str| config.get(name).and_then(Value::as_bool).unwrap_or(false);
        let filter = || match config.get("resample").and_then(Value::as_u64) {
            Some(0) => Ok(None),
            Some(1) => Ok(Some(FilterType::Lanczos3)),
            Some(2) | None => Ok(Some(FilterType::Bilinear)),
            Some(3) => Ok(Some(FilterType::CatmullRom)),
            Some(4) => Ok(Some(FilterType::Box)),
            Some(5) => Ok(Some(FilterType::Hamming)),
            Some(other) => Err(Error::invalid(format!("unknown filter {other}")).in_field("resample")),
        };
        let resize = if on("do_resize") { Some((size(config, "size")?, filter()?)) } else { None };
        let crop = match on("do_center_crop").then(|| size(config, "crop_size")).transpose()? {
            Some(Size::Exact(height, width)) => Some((height, width)),
            Some(Size::ShortestEdge(side)) => Some((side, side)),
            None => None,
        };
        let factor = config.get("rescale_factor").and_then(Value::as_f64).unwrap_or(1.0 / 255.0);
        let rescale =
            if config.get("do_rescale").and_then(Value::as_bool).unwrap_or(true) { factor as f32 } else { 1.0 };
        let normalize = if on("do_normalize") {
            let (mean, std) = (three(config, "image_mean")?, three(config, "image_std")?);
            if std.contains(&0.0) {
                return Err(Error::invalid("a deviation of zero").in_field("image_std"));
            }
            Some((mean, std))
        } else {
            None
        };
        Ok(Self { resize, crop, rescale, normalize })
    }

    /// Pixels as the model reads them: `[1, 3, height, width]`, `float32`.
    ///
    /// # Errors
    /// `Invalid` for an image without pixels or one whose resized side is out of bounds.
    pub fn process(&self, image: &RgbImage) -> Result<Array> {
        let (levels, height, width) = self.levels(image)?;
        let plane = height * width;
        let mut pixels = vec![0f32; 3 * plane];
        for (index, rgb) in levels.chunks_exact(3).enumerate() {
            for (channel, &level) in rgb.iter().enumerate() {
                let scaled = f32::from(level) * self.rescale;
                pixels[channel * plane + index] = match &self.normalize {
                    Some((mean, std)) => (scaled - mean[channel]) / std[channel],
                    None => scaled,
                };
            }
        }
        Array::f32([1, 3, height, width], pixels)
    }

    /// The image resized and cropped, as levels 0 to 255 (RGB interleaved), with its height and width.
    ///
    /// # Errors
    /// As [`ImageProcessor::process`].
    pub fn levels(&self, image: &RgbImage) -> Result<(Vec<u8>, usize, usize)> {
        let (mut width, mut height) = (image.width() as usize, image.height() as usize);
        if width == 0 || height == 0 {
            return Err(Error::invalid("the image has no pixels").in_field("image"));
        }
        let mut levels = Cow::Borrowed(image.as_raw().as_slice());
        if let Some((size, filter)) = self.resize {
            let (to_height, to_width) = match size {
                Size::Exact(height, width) => (height, width),
                Size::ShortestEdge(side) if width <= height => (side * height / width, side),
                Size::ShortestEdge(side) => (side, side * width / height),
            };
            if to_height.max(to_width) > SIDE_MAX as usize {
                let message = format!("resized to {to_width} x {to_height}; at most {SIDE_MAX} pixels a side");
                return Err(Error::invalid(message).in_field("image"));
            }
            levels = resized(&levels, (width, height), (to_width, to_height), filter)?.into();
            (width, height) = (to_width, to_height);
        }
        if let Some((to_height, to_width)) = self.crop {
            levels = center_cropped(&levels, (width, height), (to_width, to_height)).into();
            (width, height) = (to_width, to_height);
        }
        Ok((levels.into_owned(), height, width))
    }

    /// Hash of every parameter that changes numbers.
    pub fn fingerprint(&self) -> ContentHash {
        Hasher::new("cotensor image v1").field(format!("{self:?}").as_bytes()).finish()
    }
}

/// Resizes as Pillow does: columns first, rounded to levels, then rows, rounded again.
fn resized(levels: &[u8], from: (usize, usize), to: (usize, usize), filter: Option<FilterType>) -> Result<Vec<u8>> {
    // Rows do not know of each other, so a huge image never is all in 32-bit numbers.
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
    let mut source: Vec<f32> = levels.iter().map(|&level| f32::from(level)).collect();
    let mut target = vec![0f32; to.0 * to.1 * 3];
    let view = |(width, height): (usize, usize), data| {
        Image::from_slice_u8(width as u32, height as u32, data, PixelType::F32x3).map_err(|error| failed(&error))
    };
    let algorithm = filter.map_or(ResizeAlg::Nearest, ResizeAlg::Convolution);
    let source = view(from, bytemuck::cast_slice_mut(&mut source))?;
    let mut resized = view(to, bytemuck::cast_slice_mut(&mut target))?;
    let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
    Resizer::new().resize(&source, &mut resized, &options).map_err(|error| failed(&error))?;
    drop(resized);
    Ok(target.iter().map(|level| (level + 0.5).floor().clamp(0.0, 255.0) as u8).collect())
}

/// The middle of the image; black where it is smaller than that.
fn center_cropped(levels: &[u8], (width, height): (usize, usize), (to_width, to_height): (usize, usize)) -> Vec<u8> {
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

fn size(config: &Value, field: &str) -> Result<Size> {
    let wrong = |what: &str| Error::invalid(what.to_owned()).in_field(field);
    let value = config.get(field).ok_or_else(|| wrong("this field is required"))?;
    let side = |value: &Value| {
        let side = value.as_u64().filter(|side| (1..=TARGET_SIDE_MAX).contains(side));
        side.map(|side| side as usize)
            .ok_or_else(|| wrong(&format!("a side of 1 to {TARGET_SIDE_MAX} pixels is required")))
    };
    match (value.get("height"), value.get("width"), value.get("shortest_edge")) {
        (Some(height), Some(width), _) => Ok(Size::Exact(side(height)?, side(width)?)),
        (_, _, Some(edge)) => Ok(Size::ShortestEdge(side(edge)?)),
        // Old configurations write one number: exact for ViT, shortest edge where a crop follows.
        _ if field == "size" && config.get("do_center_crop").and_then(Value::as_bool) == Some(true) => {
            Ok(Size::ShortestEdge(side(value)?))
        }
        _ => side(value).map(|side| Size::Exact(side, side)),
    }
}

fn three(config: &Value, field: &str) -> Result<[f32; 3]> {
    let numbers = config.get(field).and_then(Value::as_array);
    let numbers: Option<Vec<f32>> =
        numbers.and_then(|list| list.iter().map(|n| n.as_f64().map(|n| n as f32)).collect());
    let three = numbers.and_then(|numbers| <[f32; 3]>::try_from(numbers).ok());
    three.ok_or_else(|| Error::invalid("three numbers are required").in_field(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_the_image_in_one_pass() {
        // 1.5 million pixels: more than a band.
        let (width, height) = (1500, 1001);
        let levels: Vec<u8> = (0..width * height * 3).map(|i| (i * 7919 % 251) as u8).collect();
        for filter in [None, Some(FilterType::CatmullRom)] {
            let whole = one_pass(&levels, (width, height), (60, height), filter).unwrap();
            let whole = one_pass(&whole, (60, height), (60, 40), filter).unwrap();
            assert_eq!(resized(&levels, (width, height), (60, 40), filter).unwrap(), whole);
        }
    }

    #[test]
    fn half_a_jpeg_is_no_image() {
        let mut whole = Cursor::new(Vec::new());
        let colourful = RgbImage::from_fn(64, 48, |x, y| image::Rgb([(x * 4) as u8, (y * 5) as u8, (x * y) as u8]));
        colourful.write_to(&mut whole, ImageFormat::Jpeg).unwrap();
        let whole = whole.into_inner();
        for len in 0..whole.len() {
            assert!(decode_image(&whole[..len]).is_err(), "{len}");
        }
        assert_eq!(decode_image(&whole).unwrap().dimensions(), (64, 48));
        // What cameras append is nobody's business.
        let trailed = [&whole[..], &[0xff, 0xda, 0, 9]].concat();
        assert_eq!(decode_image(&trailed).unwrap(), decode_image(&whole).unwrap());
    }

    #[test]
    fn an_image_that_unpacks_to_too_much_is_refused() {
        // A bitmap's header may promise what it likes; nothing is taken before the limits are checked.
        let mut bitmap = [b"BM".as_slice(), &54u32.to_le_bytes(), &[0; 4], &54u32.to_le_bytes()].concat();
        bitmap.extend([40u32, 18_000, 18_000].iter().flat_map(|field| field.to_le_bytes()));
        bitmap.extend([1u16, 24].iter().flat_map(|field| field.to_le_bytes()));
        bitmap.extend([0; 24]);
        let error = decode_image(&bitmap).unwrap_err().to_string();
        assert!(error.contains("image") && error.to_lowercase().contains("limit"), "{error}");
    }
}
