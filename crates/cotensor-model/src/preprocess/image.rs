//! Images to pixels, as Pillow and transformers' processors on Pillow do it.

use super::config;
use super::decode::SIDE_MAX;
use crate::array::Array;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;

/// About how many pixels of a row-wise pass are numbers of 32 bits at a time.
const BAND_PIXELS: usize = 1 << 20;
/// The most pixels along a side of what a model reads.
const TARGET_SIDE_MAX: u64 = 4096;

/// What a model's folder says of images.
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
    /// The shortest edge, but no edge longer than the longest.
    Edges {
        shortest: usize,
        longest: usize,
    },
    /// Height, width.
    Exact(usize, usize),
    /// As large as fits into height and width.
    Within(usize, usize),
}

/// A class of image processors of transformers: what its configuration may leave out.
struct Class {
    name: &'static str,
    /// Height and width of the result, or its shortest edge where a crop follows.
    side: u64,
    resample: u64,
    crops: bool,
    /// What a size means that is one number.
    number_is_shortest_edge: bool,
    mean: [f64; 3],
    std: [f64; 3],
}

impl Class {
    fn size(&self) -> Value {
        match self.number_is_shortest_edge {
            true => serde_json::json!({ "shortest_edge": self.side }),
            false => serde_json::json!({ "height": self.side, "width": self.side }),
        }
    }

    fn crop_size(&self) -> Value {
        serde_json::json!({ "height": self.side, "width": self.side })
    }
}

/// The classes that the families which can be run use.
const CLASSES: [Class; 2] = [
    Class {
        name: "ViTImageProcessor",
        side: 224,
        resample: 2,
        crops: false,
        number_is_shortest_edge: false,
        mean: [0.5; 3],
        std: [0.5; 3],
    },
    Class {
        name: "CLIPImageProcessor",
        side: 224,
        resample: 3,
        crops: true,
        number_is_shortest_edge: true,
        mean: [0.48145466, 0.4578275, 0.40821073],
        std: [0.26862954, 0.26130258, 0.27577711],
    },
];

impl ImageProcessor {
    /// Reads the image part of processor_config.json, or preprocessor_config.json, of a model's folder.
    ///
    /// # Errors
    /// `NotFound` without them, `Invalid` for a field that makes no sense, `Unsupported` for a class of processors that is not known.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_for(folder, None)
    }

    /// As [`open`](Self::open); a configuration that names no class gets the defaults of `class`.
    pub(crate) fn open_for(folder: &Path, class: Option<&str>) -> Result<Self> {
        let (config, path) = config::read(folder, "image_processor")?;
        Self::parse(&config, class).map_err(|error| error.in_file(&path))
    }

    fn parse(config: &Value, class: Option<&str>) -> Result<Self> {
        let named = config::class(config);
        let class = match named.as_deref().or(class) {
            Some(name) => Some(CLASSES.iter().find(|class| class.name == name).ok_or_else(|| {
                let known: Vec<&str> = CLASSES.iter().map(|class| class.name).collect();
                Error::unsupported(format!("{name} is not known; known: {}", known.join(", ")))
                    .in_field("image_processor_type")
            })?),
            None => None,
        };
        // A field that the configuration leaves out is as the class has it.
        let field = |name: &str, of_class: fn(&Class) -> Value| match config.get(name) {
            None | Some(Value::Null) => class.map(of_class).unwrap_or_default(),
            Some(value) => value.clone(),
        };
        let on = |name: &str, of_class: fn(&Class) -> Value| match field(name, of_class) {
            Value::Bool(on) => Ok(on),
            Value::Null => Err(unsaid(name)),
            other => Err(Error::invalid(format!("{other} is neither true nor false")).in_field(name)),
        };
        let resize = if on("do_resize", |_| true.into())? {
            let crops = config.get("do_center_crop").and_then(Value::as_bool) == Some(true);
            let edge = class.map_or(crops, |class| class.number_is_shortest_edge);
            let size = size("size", &field("size", |class| class.size()), edge)?;
            let filter = match field("resample", |class| class.resample.into()) {
                Value::Null => return Err(unsaid("resample")),
                value => filter(&value)?,
            };
            Some((size, filter))
        } else {
            None
        };
        let crop = if on("do_center_crop", |class| class.crops.into())? {
            match size("crop_size", &field("crop_size", |class| class.crop_size()), false)? {
                Size::Exact(height, width) => Some((height, width)),
                _ => return Err(Error::invalid("a height and a width are required").in_field("crop_size")),
            }
        } else {
            None
        };
        let rescale = match on("do_rescale", |_| true.into())? {
            true => {
                field("rescale_factor", |_| (1.0 / 255.0).into()).as_f64().ok_or_else(|| unsaid("rescale_factor"))?
            }
            false => 1.0,
        };
        let normalize = if on("do_normalize", |_| true.into())? {
            let mean = three("image_mean", &field("image_mean", |class| class.mean.to_vec().into()))?;
            let std = three("image_std", &field("image_std", |class| class.std.to_vec().into()))?;
            if std.contains(&0.0) {
                return Err(Error::invalid("a deviation of zero").in_field("image_std"));
            }
            Some((mean, std))
        } else {
            None
        };
        Ok(Self { resize, crop, rescale: rescale as f32, normalize })
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
                Size::ShortestEdge(side) => shortest_edge(side, (width, height)),
                Size::Edges { shortest, longest } => between_edges(shortest, longest, (width, height)),
                Size::Within(height_max, width_max) => within(height_max, width_max, (width, height)),
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

/// The error for a field that neither the configuration nor a class says.
fn unsaid(field: &str) -> Error {
    Error::invalid("this field is required: the configuration names no image_processor_type to take it from")
        .in_field(field)
}

fn filter(value: &Value) -> Result<Option<FilterType>> {
    Ok(match value.as_u64() {
        Some(0) => None,
        Some(1) => Some(FilterType::Lanczos3),
        Some(2) => Some(FilterType::Bilinear),
        Some(3) => Some(FilterType::CatmullRom),
        Some(4) => Some(FilterType::Box),
        Some(5) => Some(FilterType::Hamming),
        _ => return Err(Error::invalid(format!("unknown filter {value}")).in_field("resample")),
    })
}

/// Reads a size. One number is a shortest edge where `edge`, else a square.
fn size(field: &str, value: &Value, edge: bool) -> Result<Size> {
    let wrong = |what: &str| Error::invalid(what.to_owned()).in_field(field);
    if value.is_null() {
        return Err(unsaid(field));
    }
    let side = |value: &Value| {
        let side = value.as_u64().filter(|side| (1..=TARGET_SIDE_MAX).contains(side));
        side.map(|side| side as usize)
            .ok_or_else(|| wrong(&format!("a side of 1 to {TARGET_SIDE_MAX} pixels is required")))
    };
    let get = |name: &str| value.get(name).filter(|value| !value.is_null());
    if let Some([height, width]) = value.as_array().map(Vec::as_slice) {
        return Ok(Size::Exact(side(height)?, side(width)?));
    }
    let Value::Object(_) = value else {
        let side = side(value)?;
        return Ok(if edge { Size::ShortestEdge(side) } else { Size::Exact(side, side) });
    };
    if let (Some(shortest), Some(longest)) = (get("shortest_edge"), get("longest_edge")) {
        let (shortest, longest) = (side(shortest)?, side(longest)?);
        if longest < shortest {
            return Err(wrong("the longest edge is shorter than the shortest"));
        }
        return Ok(Size::Edges { shortest, longest });
    }
    if let Some(shortest) = get("shortest_edge") {
        return side(shortest).map(Size::ShortestEdge);
    }
    if let (Some(height), Some(width)) = (get("max_height"), get("max_width")) {
        return Ok(Size::Within(side(height)?, side(width)?));
    }
    if let (Some(height), Some(width)) = (get("height"), get("width")) {
        return Ok(Size::Exact(side(height)?, side(width)?));
    }
    Err(wrong(
        "height and width, max_height and max_width, or shortest_edge (with or without longest_edge) are required",
    ))
}

/// Height and width with this shortest edge and the image's proportions.
fn shortest_edge(side: usize, (width, height): (usize, usize)) -> (usize, usize) {
    if width <= height { (side * height / width, side) } else { (side, side * width / height) }
}

/// The same unless an edge gets longer than `longest`, as transformers' `get_size_with_aspect_ratio` computes it.
fn between_edges(shortest: usize, longest: usize, (width, height): (usize, usize)) -> (usize, usize) {
    let (small, large) = (width.min(height) as f64, width.max(height) as f64);
    let mut side = shortest;
    let mut exact = None;
    if large / small * side as f64 > longest as f64 {
        let raw = longest as f64 * small / large;
        exact = Some(raw);
        side = raw.round_ties_even() as usize;
    }
    let scaled = |to: usize, by: usize| match exact {
        Some(raw) => (raw * to as f64 / by as f64) as usize,
        None => side * to / by,
    };
    let (to_height, to_width) = match (width, height) {
        _ if (height <= width && height == side) || (width <= height && width == side) => (height, width),
        _ if width < height => (scaled(height, width), side),
        _ => (side, scaled(width, height)),
    };
    (to_height.max(1), to_width.max(1))
}

/// Height and width as large as the bounds allow, with the image's proportions.
fn within(height_max: usize, width_max: usize, (width, height): (usize, usize)) -> (usize, usize) {
    let scale = (height_max as f64 / height as f64).min(width_max as f64 / width as f64);
    let scaled = |side: usize| ((side as f64 * scale) as usize).max(1);
    (scaled(height), scaled(width))
}

fn three(field: &str, value: &Value) -> Result<[f32; 3]> {
    if value.is_null() {
        return Err(unsaid(field));
    }
    let number = |number: &Value| number.as_f64().map(|number| number as f32);
    let three = match value {
        Value::Array(list) => list.iter().map(number).collect::<Option<Vec<f32>>>(),
        one => number(one).map(|one| vec![one; 3]),
    };
    let three = three.and_then(|numbers| <[f32; 3]>::try_from(numbers).ok());
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
}
