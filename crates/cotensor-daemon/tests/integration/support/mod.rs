//! Shared by the tests.

pub(crate) mod processes;

pub(crate) use cotensor_daemon::testing::{Running, put, spec, until};

use cotensor_functions::Arguments;

/// No arguments.
pub(crate) fn none() -> Arguments {
    Arguments::new()
}
