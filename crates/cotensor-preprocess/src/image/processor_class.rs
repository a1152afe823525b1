//! The image processor classes of transformers: the defaults of fields that a configuration leaves out.

use cotensor_core::Error;
use serde_json::Value;

/// An image processor class of transformers, with its defaults.
pub(super) struct ProcessorClass {
    pub(super) name: &'static str,
    /// Height and width of the result in pixels; the shortest edge when a crop follows.
    pub(super) side: u64,
    /// Pillow's number of the filter.
    pub(super) resample: u64,
    pub(super) crops: bool,
    /// Whether a size of one number is the shortest edge; otherwise it is the side of a square.
    pub(super) number_is_shortest_edge: bool,
    pub(super) mean: [f64; 3],
    pub(super) std: [f64; 3],
}

impl ProcessorClass {
    pub(super) fn size(&self) -> Value {
        match self.number_is_shortest_edge {
            true => serde_json::json!({ "shortest_edge": self.side }),
            false => serde_json::json!({ "height": self.side, "width": self.side }),
        }
    }

    pub(super) fn crop_size(&self) -> Value {
        serde_json::json!({ "height": self.side, "width": self.side })
    }
}

/// The classes of the families that can run.
pub(super) const CLASSES: [ProcessorClass; 2] = [
    ProcessorClass {
        name: "ViTImageProcessor",
        side: 224,
        resample: 2,
        crops: false,
        number_is_shortest_edge: false,
        mean: [0.5; 3],
        std: [0.5; 3],
    },
    ProcessorClass {
        name: "CLIPImageProcessor",
        side: 224,
        resample: 3,
        crops: true,
        number_is_shortest_edge: true,
        mean: [0.48145466, 0.4578275, 0.40821073],
        std: [0.26862954, 0.26130258, 0.27577711],
    },
];

/// The error for a field that neither the configuration nor a class specifies.
pub(super) fn required(field: &str) -> Error {
    Error::invalid("this field is required: the configuration names no image_processor_type with a default")
        .in_field(field)
}
