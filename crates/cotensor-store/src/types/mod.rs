//! The data types of the API, without behaviour.

mod blob;
mod computation;
mod config;
mod copy_reason;
mod holder;
mod limits;
mod members;
mod names;
mod publication;
mod report;
mod tensor;

pub use blob::{BlobSource, BlobSpec};
pub use computation::Key;
pub use config::{Refusal, SharingConfig};
pub use copy_reason::CopyReason;
pub use holder::Holder;
pub(crate) use limits::check_metadata;
pub use limits::{METADATA_BYTES_MAX, NAME_BYTES_MAX, check_name};
pub(crate) use members::member_layout;
pub use members::{MEMBER_NAMES_BYTES_MAX, MEMBERS_MAX, Member, Members};
pub use names::{ChangePosition, EveryVersion, NameChange, NameChanges, NameFilter, NamedVersion};
pub use publication::{Expected, Publication};
pub use report::{
    Copies, DeviceStats, Diagnostics, KeptTensors, OptimizeReport, RecentCopy, Recommendations, Stats, TensorInfo,
};
pub use tensor::{Retention, TensorId, TensorSpec};
