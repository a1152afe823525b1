//! For tests of other crates: a device without hardware, and limits that sandboxes set.

mod fake_device;
mod sandbox;

pub use fake_device::SharedFakeDevice;
pub use sandbox::refuse_executable_memfds;
