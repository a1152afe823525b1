//! The broker: programs that compute on one device divide its memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The maximum length of a device's identity, in bytes.
pub const DEVICE_IDENTITY_BYTES_MAX: usize = 128;

message! {
    /// A program that starts to use a device.
    JoinDeviceParams {
        /// The identity of the device, equal in all programs: 1 to 128 printable characters of ASCII, such as a UUID.
        device: String,
        /// Bytes of the device's memory.
        capacity_bytes: u64,
        /// Bytes with which the program runs best.
        demand_bytes: u64,
        /// Bytes without which the program does not run well. They are never taken from it.
        smallest_bytes: u64,
        /// Bytes that a former daemon gave to the program.
        #[serde(default)]
        held_bytes: u64,
    }

    /// A program's share of a device.
    DeviceShareParams {
        /// The identity of the device.
        device: String,
        /// Bytes that the program may use from now on.
        share_bytes: u64,
    }

    /// A sign of activity.
    ReportDeviceParams {
        /// The identity of the device.
        device: String,
        /// Bytes with which the program runs best.
        demand_bytes: u64,
        /// Bytes without which the program does not run well.
        smallest_bytes: u64,
    }

    /// The devices that programs share.
    DeviceList {
        /// The devices, sorted by identity.
        devices: Vec<DeviceShares>,
    }

    /// A device and its programs.
    DeviceShares {
        /// Its identity.
        device: String,
        /// Bytes of its memory.
        capacity_bytes: u64,
        /// The programs, in the order in which they joined.
        programs: Vec<ProgramShare>,
    }

    /// A program on a device.
    ProgramShare {
        /// Its session.
        session: u64,
        /// The client's name and process, for display.
        client: String,
        /// Bytes that it may use.
        share_bytes: u64,
        /// Bytes that it may still be using: more than its share until it acknowledges a smaller one.
        held_bytes: u64,
        /// Bytes with which it runs best.
        demand_bytes: u64,
        /// Bytes without which it does not run well.
        smallest_bytes: u64,
        /// Seconds since its last report.
        quiet_s: f64,
        /// Whether it has reported lately. A program that has not gives way to those that have.
        busy: bool,
    }
}
