//! Encodes values as JSON and decodes them. [`protocol::provider`](cotensor_client::protocol::provider) describes the
//! encoding.

mod context;
mod decode;
mod encode;
mod message;

pub(crate) use context::{CodecContext, SentTensors};
pub(crate) use decode::{decode, decode_arguments};
pub(crate) use encode::{EncodedArguments, encode, encode_arguments};
