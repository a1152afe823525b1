//! The limits of one message.

use super::context::SentTensors;
use cotensor_core::{Error, Result};
use cotensor_rpc::{FRAME_BYTES_MAX, TENSORS_INSTEAD};

/// The deepest nesting of values. A value that contains itself exceeds it.
const DEPTH_MAX: usize = 64;
/// The most values in one message.
const VALUES_MAX: usize = 1 << 20;
/// The most tensors in one message. Each may need a request to the daemon.
const TENSORS_MAX: usize = 4096;

/// Enforces the limits of one message, and collects its tensors.
#[derive(Default)]
pub(super) struct Message {
    values: usize,
    tensors: usize,
    /// A lower bound of the message's size.
    bytes: usize,
    pub(super) sent: SentTensors,
}

impl Message {
    pub(super) fn value(&mut self, depth: usize) -> Result<()> {
        self.values += 1;
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!("values are nested deeper than {DEPTH_MAX} levels")));
        }
        if self.values > VALUES_MAX {
            return Err(Error::invalid(format!("more than {VALUES_MAX} values in one message: {TENSORS_INSTEAD}")));
        }
        Ok(())
    }

    pub(super) fn text(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes;
        if self.bytes > FRAME_BYTES_MAX {
            let message = format!("values of more than {FRAME_BYTES_MAX} bytes in one message: {TENSORS_INSTEAD}");
            return Err(Error::unsupported(message));
        }
        Ok(())
    }

    pub(super) fn tensor(&mut self) -> Result<()> {
        self.tensors += 1;
        if self.tensors > TENSORS_MAX {
            return Err(Error::invalid(format!("more than {TENSORS_MAX} tensors in one message")));
        }
        Ok(())
    }
}
