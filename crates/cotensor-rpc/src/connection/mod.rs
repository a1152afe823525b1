//! The calling side of a connection.

mod deadline;
mod inbox;
mod multiplex;
mod sending;
mod wait_limit;

pub use deadline::{Deadline, millis};
pub use inbox::{Answer, CallGroup};
pub use multiplex::{CallsMax, Connection, DescribeWait, OnNotification, PendingCall, Waited};
pub use wait_limit::{WaitLimit, cancelled_call};
