mod behaviour;
#[cfg(not(target_arch = "wasm32"))]
mod properties;
mod routed;

use super::{Flow, Genoa, Lru, Pinned};
use crate::decision::Strategy;
use crate::{Device, Trace};

/// The strategies that use a device.
fn all(trace: &Trace, device: &Device) -> Vec<Box<dyn Strategy>> {
    vec![
        Box::new(Flow::new(*device)),
        Box::new(Flow::new(*device).with_forecast(trace.operations().to_vec())),
        Box::new(Genoa::default()),
        Box::new(Lru::default()),
        Box::new(Pinned::new(trace, device)),
        Box::new(Pinned::default()),
    ]
}
