//! Models: a folder in the layout of model hubs, opened over a [`Runtime`] or as a private copy.

mod labels;
mod logit_scale;
mod open_model;
mod runtime;

pub use labels::{Labels, Problem};
pub(crate) use logit_scale::LogitScale;
pub(crate) use open_model::OWN_HEAD;
pub use open_model::{Model, StageSource};
pub use runtime::Runtime;
