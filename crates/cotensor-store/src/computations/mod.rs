//! Results that are computed once.

mod claims;

pub(crate) use claims::{Claims, Found};
