//! Images to pixels, as Pillow and transformers' slow processors do it.

use crate::array::Array;
use crate::model::read_json;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{ImageReader, Limits, RgbImage};
use serde_json::Value;
use std::io::Cursor;
use std::path::Path;

/// The most pixels along a side of an image that is decoded.
const SIDE_MAX: u32 = 20_000;
/// The most bytes that decoding may take.
const DECODED_BYTES_MAX: u64 = 1 << 30;
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
    let image = reader.decode().map_err(wrong)?.into_rgb8();
    if image.width() == 0 || image.height() == 0 {
        return Err(Error::invalid("the image has no pixels").in_field("image"));
    }
    Ok(image)
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
        let mut levels = image.as_raw().clone();
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
            levels = resized(&levels, (width, height), (to_width, to_height), filter)?;
            (width, height) = (to_width, to_height);
        }
        if let Some((to_height, to_width)) = self.crop {
            levels = center_cropped(&levels, (width, height), (to_width, to_height));
            (width, height) = (to_width, to_height);
        }
        Ok((levels, height, width))
    }

    /// Hash of every parameter that changes numbers.
    pub fn fingerprint(&self) -> ContentHash {
        Hasher::new("cotensor image v1").field(format!("{self:?}").as_bytes()).finish()
    }
}

/// Resizes as Pillow does: columns first, rounded to levels, then rows, rounded again.
fn resized(levels: &[u8], from: (usize, usize), to: (usize, usize), filter: Option<FilterType>) -> Result<Vec<u8>> {
    let across = one_pass(levels, from, (to.0, from.1), filter)?;
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
