//! Outputs of encoders outside of their model: encoding an input with one stage, fitting adapters on samples, and taking
//! the output of another model's encoder in place of one's own.

mod embedding;
mod encode;
mod learn;
mod samples;
mod take;
mod user;

pub use embedding::SharedEmbedding;
pub use encode::{encode, encoder_of};
pub use learn::fit_adapter;
pub use samples::Samples;
pub use take::ADAPTER;
pub(super) use user::encoder_use;
pub use user::{EncoderUse, inputs_of};
