//! Models: a folder in the layout of model hubs, opened over a [`Runtime`] or as a private copy.

mod logit_scale;
mod open_model;
mod parts;
mod runtime;
mod stage_loader;
mod stages;

pub use cotensor_pipeline::{Labels, Problem};
pub(crate) use logit_scale::checkpoint_of_scale;
pub use open_model::{Model, StageSource};
pub use runtime::Runtime;
pub use stage_loader::StageLoader;
