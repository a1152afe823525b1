use super::processor_class::{CLASSES, NumberMeans, Pad, ProcessorClass, required};
use super::resize::{center_cropped, resized, squared};
use super::size::{Size, size};
use crate::array::Array;
use crate::files::ModelFiles;
use crate::processor_config;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use fast_image_resize::FilterType;
use image::RgbImage;
use serde_json::Value;
use std::borrow::Cow;

/// The image preprocessing of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    /// The colour around an image that becomes a square before it is resized.
    square: Option<[u8; 3]>,
    resize: Option<(Size, Option<FilterType>)>,
    /// Height and width, in pixels.
    crop: Option<(usize, usize)>,
    rescale: f32,
    /// Mean and standard deviation of each channel.
    normalize: Option<([f32; 3], [f32; 3])>,
    /// Height and width up to which zeros are added at the bottom and at the right edge, in pixels.
    pad: Option<(usize, usize)>,
}

impl ImageProcessor {
    /// Reads the image part of processor_config.json, or preprocessor_config.json. A configuration that names no class
    /// gets the defaults of `class`.
    ///
    /// # Errors
    /// `NotFound` without either file, `Invalid` for a field with an invalid value, `Unsupported` for an unknown
    /// processor class.
    pub fn open(files: &dyn ModelFiles, class: Option<&str>) -> Result<Self> {
        let (config, path) = processor_config::read(files, "image_processor")?;
        Self::parse(&config, class).map_err(|error| error.in_file(&path))
    }

    fn parse(config: &Value, class: Option<&str>) -> Result<Self> {
        let named = processor_config::class(config);
        let class = match named.as_deref().or(class) {
            Some(name) => Some(CLASSES.iter().find(|class| class.name == name).ok_or_else(|| {
                let known: Vec<&str> = CLASSES.iter().map(|class| class.name).collect();
                Error::unsupported(format!("{name} is not known; known: {}", known.join(", ")))
                    .in_field("image_processor_type")
            })?),
            None => None,
        };
        // A field that the configuration leaves out has the default of the class.
        let field = |name: &str, of_class: fn(&ProcessorClass) -> Value| match config.get(name) {
            None | Some(Value::Null) => class.map(of_class).unwrap_or_default(),
            Some(value) => value.clone(),
        };
        let on = |name: &str, of_class: fn(&ProcessorClass) -> Value| match field(name, of_class) {
            Value::Bool(on) => Ok(on),
            Value::Null => Err(required(name)),
            other => Err(Error::invalid(format!("{other} is neither true nor false")).in_field(name)),
        };
        let resize = if on("do_resize", |_| true.into())? {
            let crops = config.get("do_center_crop").and_then(Value::as_bool) == Some(true);
            let plain = if crops { NumberMeans::ShortestEdge } else { NumberMeans::Side };
            let number = match class.map_or(plain, |class| class.number) {
                NumberMeans::EdgeWithin(longest) => {
                    NumberMeans::EdgeWithin(config.get("max_size").and_then(Value::as_u64).unwrap_or(longest))
                }
                other => other,
            };
            let size = size("size", &field("size", |class| class.size()), number)?;
            let filter = match field("resample", |class| class.resample.into()) {
                Value::Null => return Err(required("resample")),
                value => filter(&value)?,
            };
            Some((size, filter))
        } else {
            None
        };
        let crop = if on("do_center_crop", |class| class.crops().into())? {
            match size("crop_size", &field("crop_size", |class| class.crop_size()), NumberMeans::Side)? {
                Size::Exact(height, width) => Some((height, width)),
                _ => return Err(Error::invalid("a height and a width are required").in_field("crop_size")),
            }
        } else {
            None
        };
        let rescale = if on("do_rescale", |_| true.into())? {
            field("rescale_factor", |_| (1.0 / 255.0).into()).as_f64().ok_or_else(|| required("rescale_factor"))?
        } else {
            1.0
        };
        let normalize = if on("do_normalize", |_| true.into())? {
            let mean = three("image_mean", &field("image_mean", |class| class.mean.to_vec().into()))?;
            let std = three("image_std", &field("image_std", |class| class.std.to_vec().into()))?;
            if std.contains(&0.0) {
                return Err(Error::invalid("a standard deviation is zero").in_field("image_std"));
            }
            Some((mean, std))
        } else {
            None
        };
        // Older configurations of DETR have the option under its former name.
        let former = config.get("pad_and_return_pixel_mask").and_then(Value::as_bool);
        let pads = match (config.get("do_pad"), former) {
            (None | Some(Value::Null), Some(former)) => former,
            _ => on("do_pad", |class| class.pads().into()).or_else(|error| match config.get("do_pad") {
                // A configuration without a class need not say it.
                None | Some(Value::Null) => Ok(false),
                Some(_) => Err(error),
            })?,
        };
        let (mut square, mut pad) = (None, None);
        if pads && class.is_some_and(|class| class.pad == Pad::ToSquare) {
            let mean = three("image_mean", &field("image_mean", |class| class.mean.to_vec().into()))?;
            square = Some(mean.map(|level| (f64::from(level) * 255.0) as u8));
        } else if pads && config.get("pad_size").is_some_and(|size| !size.is_null()) {
            match size("pad_size", &config["pad_size"], NumberMeans::Side)? {
                Size::Exact(height, width) => pad = Some((height, width)),
                _ => return Err(Error::invalid("a height and a width are required").in_field("pad_size")),
            }
        }
        Ok(Self { square, resize, crop, rescale: rescale as f32, normalize, pad })
    }

    /// The model's input: `[1, 3, height, width]`, `float32`.
    ///
    /// # Errors
    /// `Invalid` for an image without pixels, or when a side of the resized image is too long.
    pub fn process(&self, image: &RgbImage) -> Result<Array> {
        let (levels, height, width) = self.levels(image)?;
        let (full_height, full_width) = self.padded((height, width))?;
        let plane = full_height * full_width;
        let mut pixels = vec![0f32; 3 * plane];
        for (index, rgb) in levels.chunks_exact(3).enumerate() {
            let at = index / width * full_width + index % width;
            for (channel, &level) in rgb.iter().enumerate() {
                let scaled = f32::from(level) * self.rescale;
                pixels[channel * plane + at] = match &self.normalize {
                    Some((mean, std)) => (scaled - mean[channel]) / std[channel],
                    None => scaled,
                };
            }
        }
        Array::f32([1, 3, full_height, full_width], pixels)
    }

    /// For an image of `(width, height)`, which pixels of [`process`](Self::process) are the image: `[1, height,
    /// width]`, `int64`, 1 for the image and 0 for padding.
    ///
    /// # Errors
    /// As [`ImageProcessor::process`].
    pub fn mask(&self, size: (u32, u32)) -> Result<Array> {
        let (height, width) = self.inner_size(size)?;
        let (full_height, full_width) = self.padded((height, width))?;
        let inside = |index: usize| index / full_width < height && index % full_width < width;
        let mask = (0..full_height * full_width).map(|index| i64::from(inside(index))).collect();
        Array::i64([1, full_height, full_width], mask)
    }

    /// Height and width in pixels of the result of [`process`](Self::process) for an image of `(width, height)`.
    ///
    /// # Errors
    /// As [`ImageProcessor::process`].
    pub fn size(&self, size: (u32, u32)) -> Result<(usize, usize)> {
        self.padded(self.inner_size(size)?)
    }

    /// Height and width without padding.
    fn inner_size(&self, (width, height): (u32, u32)) -> Result<(usize, usize)> {
        let mut inner = (width as usize, height as usize);
        if self.square.is_some() {
            inner = (inner.0.max(inner.1), inner.0.max(inner.1));
        }
        let resized = self.resize.map_or(Ok((inner.1, inner.0)), |(size, _)| size.target(inner))?;
        Ok(self.crop.unwrap_or(resized))
    }

    /// Height and width with padding.
    fn padded(&self, (height, width): (usize, usize)) -> Result<(usize, usize)> {
        match self.pad {
            None => Ok((height, width)),
            Some(pad) if pad.0 >= height && pad.1 >= width => Ok(pad),
            Some(pad) => Err(Error::invalid(format!("the image of {width} x {height} pixels does not fit {pad:?}"))
                .in_field("pad_size")),
        }
    }

    /// The resized and cropped image as levels from 0 to 255 (interleaved RGB), with its height and width in pixels.
    ///
    /// # Errors
    /// As [`ImageProcessor::process`].
    pub fn levels(&self, image: &RgbImage) -> Result<(Vec<u8>, usize, usize)> {
        let (mut width, mut height) = (image.width() as usize, image.height() as usize);
        if width == 0 || height == 0 {
            return Err(Error::invalid("the image has no pixels").in_field("image"));
        }
        let mut levels = Cow::Borrowed(image.as_raw().as_slice());
        if let Some(colour) = self.square.filter(|_| width != height) {
            levels = squared(&levels, (width, height), colour).into();
            (width, height) = (width.max(height), width.max(height));
        }
        if let Some((size, filter)) = self.resize {
            let (to_height, to_width) = size.target((width, height))?;
            levels = resized(&levels, (width, height), (to_width, to_height), filter)?.into();
            (width, height) = (to_width, to_height);
        }
        if let Some((to_height, to_width)) = self.crop {
            levels = center_cropped(&levels, (width, height), (to_width, to_height)).into();
            (width, height) = (to_width, to_height);
        }
        Ok((levels.into_owned(), height, width))
    }

    /// Hash of every parameter that affects the result.
    pub fn fingerprint(&self) -> ContentHash {
        Hasher::new("cotensor image v1").field(format!("{self:?}").as_bytes()).finish()
    }
}

/// The filter for Pillow's number `value`; `None` is the nearest pixel.
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

fn three(field: &str, value: &Value) -> Result<[f32; 3]> {
    if value.is_null() {
        return Err(required(field));
    }
    let number = |number: &Value| number.as_f64().map(|number| number as f32);
    let three = match value {
        Value::Array(list) => list.iter().map(number).collect::<Option<Vec<f32>>>(),
        one => number(one).map(|one| vec![one; 3]),
    };
    let three = three.and_then(|numbers| <[f32; 3]>::try_from(numbers).ok());
    three.ok_or_else(|| Error::invalid("three numbers are required").in_field(field))
}
