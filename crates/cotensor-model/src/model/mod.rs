//! Models: a folder in the layout of model hubs, opened over a [`Runtime`] or as a private copy.

mod labels;
mod model;
mod runtime;

pub use labels::{Labels, Problem};
pub(crate) use model::OWN_HEAD;
pub use model::{Model, StageSource};
pub use runtime::Runtime;
