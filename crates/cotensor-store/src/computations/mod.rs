//! Results that are computed once. The key of a computation is made by its caller, such as a model stage.

mod claims;
mod waiter;

pub(crate) use claims::{Claims, Found};
pub(crate) use waiter::Waiter;
