//! Helpers of the tests.

pub(crate) mod http;
pub(crate) mod processes;

pub(crate) use cotensor_daemon::testing::{Running, put, spec, until};

use cotensor_functions::Arguments;

/// Arguments of a call without any.
pub(crate) fn none() -> Arguments {
    Arguments::new()
}
