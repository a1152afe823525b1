//! The sizes to which a configuration resizes an image.

use super::decode::SIDE_MAX;
use super::processor_class::{NumberMeans, required};
use cotensor_core::{Error, Result};
use serde_json::Value;

/// The most pixels along a side of a model's input.
const TARGET_SIDE_MAX: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    /// The shortest edge, in pixels.
    ShortestEdge(usize),
    /// The shortest edge has `shortest` pixels, unless the other edge would then exceed `longest`.
    Edges { shortest: usize, longest: usize },
    /// Height, width.
    Exact(usize, usize),
    /// The largest size within this height and width.
    Within(usize, usize),
}

impl Size {
    /// Height and width of an image of `(width, height)` after resizing, in pixels.
    ///
    /// # Errors
    /// `Invalid` when a side is too long.
    pub(super) fn target(self, image: (usize, usize)) -> Result<(usize, usize)> {
        let (height, width) = match self {
            Size::Exact(height, width) => (height, width),
            Size::ShortestEdge(side) => shortest_edge(side, image),
            Size::Edges { shortest, longest } => between_edges(shortest, longest, image),
            Size::Within(height_max, width_max) => within(height_max, width_max, image),
        };
        if height.max(width) > SIDE_MAX as usize {
            let message = format!("resized to {width} x {height}; at most {SIDE_MAX} pixels a side");
            return Err(Error::invalid(message).in_field("image"));
        }
        Ok((height, width))
    }
}

/// Reads a size. `number` is the meaning of a size of one number.
pub(super) fn size(field: &str, value: &Value, number: NumberMeans) -> Result<Size> {
    let wrong = |what: &str| Error::invalid(what.to_owned()).in_field(field);
    if value.is_null() {
        return Err(required(field));
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
    let edges = |shortest: usize, longest: usize| {
        if longest < shortest {
            Err(wrong("the longest edge is shorter than the shortest"))
        } else {
            Ok(Size::Edges { shortest, longest })
        }
    };
    let Value::Object(_) = value else {
        let shortest = side(value)?;
        return match number {
            NumberMeans::Side => Ok(Size::Exact(shortest, shortest)),
            NumberMeans::ShortestEdge => Ok(Size::ShortestEdge(shortest)),
            NumberMeans::EdgeWithin(longest) => edges(shortest, side(&longest.into())?),
        };
    };
    if let (Some(shortest), Some(longest)) = (get("shortest_edge"), get("longest_edge")) {
        return edges(side(shortest)?, side(longest)?);
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

/// Height and width with this shortest edge and the aspect ratio of the image.
fn shortest_edge(side: usize, (width, height): (usize, usize)) -> (usize, usize) {
    if width <= height { (side * height / width, side) } else { (side, side * width / height) }
}

/// As [`shortest_edge`], but no edge is longer than `longest`; see `get_size_with_aspect_ratio` in transformers.
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

/// The largest height and width within the bounds, with the aspect ratio of the image.
fn within(height_max: usize, width_max: usize, (width, height): (usize, usize)) -> (usize, usize) {
    let scale = (height_max as f64 / height as f64).min(width_max as f64 / width as f64);
    let scaled = |side: usize| ((side as f64 * scale) as usize).max(1);
    (scaled(height), scaled(width))
}
