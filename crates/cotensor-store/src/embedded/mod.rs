//! The store inside a process.

mod builder;
mod clock;
mod hosting;
mod state;
mod store;

pub use builder::EmbeddedStoreBuilder;
pub use clock::{Clock, ManualClock, SystemClock};
pub use hosting::SegmentCharge;
pub(crate) use hosting::check_device;
pub(crate) use state::Counters;
pub use state::EmbeddedStore;
