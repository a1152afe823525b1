//! The result type of handlers.

use crate::dispatch::Reply;
use cotensor_client::protocol::Empty;
use cotensor_core::Result;

pub(super) type Answer<T> = Result<Reply<T>>;

pub(super) const NOTHING: Empty = Empty {};
