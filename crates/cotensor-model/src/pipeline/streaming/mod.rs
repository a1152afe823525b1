//! Speech that is transcribed while it plays.
//!
//! [`StreamingProcessor`] takes the samples, transcribes windows with a speech model, and gives each finished piece of the
//! transcript to a text model. [`StreamEvent`] is a result.

mod event;
mod processor;

pub use event::{StreamEvent, StreamSummary};
pub use processor::{StreamSettings, StreamingProcessor};
