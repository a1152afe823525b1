//! Slabs and blocks in messages.

use super::reports::CopyParams;
use super::tensor::{Expected, Spec};
use cotensor_core::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

message! {
    /// A slab to open.
    SlabParams {
        /// The length in bytes.
        bytes: u64,
        /// Whether it is a block: one tensor at a time lies in it, from its beginning on. The budget counts that tensor with the length of the
        /// block, and nothing while the block is empty.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        block: bool,
        /// The device whose memory it is; `cpu` when it is missing. Blocks are host memory.
        #[serde(default, with = "super::device_name")]
        #[schemars(with = "String")]
        device: Device,
        /// A reservation of this session of as many bytes on a device: the slab takes its place in the budget. Without it, the budget must have
        /// room.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reservation: Option<u64>,
    }

    /// An open slab.
    SlabResult {
        /// The number of its segment.
        slab: u64,
        /// Offsets of the live tensors in it, for a slab that the session had before the daemon was replaced. A slab on a device is always a new
        /// one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        live: Vec<u64>,
    }

    /// A slab to close.
    CloseSlabParams {
        /// The number of its segment.
        slab: u64,
    }

    /// A tensor in a slab.
    PublishSlabParams {
        /// The slab.
        slab: u64,
        /// The offset in the slab in bytes, a multiple of 64.
        offset: u64,
        /// The tensor.
        spec: Spec,
        /// The holder of the lease.
        holder: String,
        /// The claim of which it is a result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticket: Option<u64>,
        /// The newest version that the name must have, else the answer is the error `conflict`; any if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected: Option<Expected>,
        /// Copies that the client has not reported yet, as in `store.record_copies`: at most 64.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        copies: Vec<CopyParams>,
        /// Whether an earlier answer was lost: if the newest version of the name lies in this memory, the answer is that version.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    }

    /// Ranges of a slab without leases.
    FreedParams {
        /// The slab.
        slab: u64,
        /// Offsets of tensors that were published in it, in bytes.
        offsets: Vec<u64>,
    }
}
