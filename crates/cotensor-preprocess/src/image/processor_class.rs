//! The image processor classes of transformers: the defaults of fields that a configuration leaves out.

use cotensor_core::Error;
use serde_json::{Value, json};

const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f64; 3] = [0.229, 0.224, 0.225];
const HALF: [f64; 3] = [0.5; 3];
const CLIP_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
const CLIP_STD: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];
/// Pillow's numbers of filters.
const BILINEAR: u64 = 2;
const BICUBIC: u64 = 3;

/// An image processor class of transformers, with its defaults.
pub(super) struct ProcessorClass {
    pub(super) name: &'static str,
    size: DefaultSize,
    /// The meaning of a size of one number.
    pub(super) number: NumberMeans,
    /// Pillow's number of the filter.
    pub(super) resample: u64,
    /// The side of the square that the class crops by default, in pixels.
    crop: Option<u64>,
    pub(super) pad: Pad,
    pub(super) mean: [f64; 3],
    pub(super) std: [f64; 3],
}

/// The size to which a class resizes by default, in pixels.
enum DefaultSize {
    Square(u64),
    ShortestEdge(u64),
    Edges { shortest: u64, longest: u64 },
}

/// The meaning of a size of one number in a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NumberMeans {
    /// The side of a square.
    Side,
    /// The shortest edge.
    ShortestEdge,
    /// The shortest edge; `max_size`, or this number of pixels, limits the longest.
    EdgeWithin(u64),
}

/// The meaning of `do_pad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pad {
    /// The normalized image gets zeros at its right and bottom edge, up to `pad_size`. `true` if the class pads by
    /// default.
    ToSize(bool),
    /// The image becomes a square before it is resized, with the mean colour around it. Not by default.
    ToSquare,
}

impl ProcessorClass {
    pub(super) fn size(&self) -> Value {
        match self.size {
            DefaultSize::Square(side) => json!({ "height": side, "width": side }),
            DefaultSize::ShortestEdge(side) => json!({ "shortest_edge": side }),
            DefaultSize::Edges { shortest, longest } => json!({ "shortest_edge": shortest, "longest_edge": longest }),
        }
    }

    pub(super) fn crops(&self) -> bool {
        self.crop.is_some()
    }

    pub(super) fn crop_size(&self) -> Value {
        self.crop.map_or(Value::Null, |side| json!({ "height": side, "width": side }))
    }

    pub(super) fn pads(&self) -> bool {
        self.pad == Pad::ToSize(true)
    }
}

/// The class of CLIP and of several other families.
const CLIP: ProcessorClass = ProcessorClass {
    name: "CLIPImageProcessor",
    size: DefaultSize::ShortestEdge(224),
    number: NumberMeans::ShortestEdge,
    resample: BICUBIC,
    crop: Some(224),
    pad: Pad::ToSize(false),
    mean: CLIP_MEAN,
    std: CLIP_STD,
};

/// The class of ViT.
const VIT: ProcessorClass = ProcessorClass {
    name: "ViTImageProcessor",
    size: DefaultSize::Square(224),
    number: NumberMeans::Side,
    resample: BILINEAR,
    crop: None,
    pad: Pad::ToSize(false),
    mean: HALF,
    std: HALF,
};

/// The classes of the families that can run.
pub(super) const CLASSES: [ProcessorClass; 8] = [
    VIT,
    CLIP,
    ProcessorClass { name: "BitImageProcessor", ..CLIP },
    ProcessorClass {
        name: "DeiTImageProcessor",
        size: DefaultSize::Square(256),
        resample: BICUBIC,
        crop: Some(224),
        ..VIT
    },
    ProcessorClass { name: "SiglipImageProcessor", number: NumberMeans::ShortestEdge, resample: BICUBIC, ..VIT },
    ProcessorClass {
        name: "DetrImageProcessor",
        size: DefaultSize::Edges { shortest: 800, longest: 1333 },
        number: NumberMeans::EdgeWithin(1333),
        pad: Pad::ToSize(true),
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
        ..VIT
    },
    ProcessorClass {
        name: "BlipImageProcessor",
        size: DefaultSize::Square(384),
        number: NumberMeans::Side,
        crop: None,
        ..CLIP
    },
    ProcessorClass { name: "LlavaImageProcessor", pad: Pad::ToSquare, ..CLIP },
];

/// The error for a field that neither the configuration nor a class specifies.
pub(super) fn required(field: &str) -> Error {
    Error::invalid("this field is required: the configuration names no image_processor_type with a default")
        .in_field(field)
}
