//! Channels between processes: frames that one producer writes again and again into the same memory. The daemon tells readers where that
//! memory is, and does nothing else: each frame passes it by.

mod frame;
mod producer;
mod read_end;
mod reader;
mod ready;

pub use cotensor_memory::Policy as ChannelPolicy;
pub use frame::Frame;
pub use producer::{Channel, ChannelSpec, FrameLoan};
pub use reader::ChannelReader;
