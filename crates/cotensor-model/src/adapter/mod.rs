//! Adapters between spaces: a linear map from the rows of one encoder to the rows of another one that reads the same
//! input, fitted by ridge regression on samples of the user.
//!
//! The numbers of two encoders mean different things even when their kinds are equal. A stage takes the tensor of
//! another space only through an adapter, whose error on held-out samples is part of every report.

mod align;
mod file;
mod fit;
mod map;
mod patches;
mod ridge;
mod stored;

pub use align::Alignment;
pub use file::{load_adapter, save_adapter};
pub use fit::{Fitter, Quality, SAMPLES_MIN};
pub use map::LinearMap;
pub use patches::{Grid, Patches};
pub use stored::{Adapter, AdapterInfo, Encoder, Member, Rows};
