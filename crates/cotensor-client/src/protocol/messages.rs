//! Parameters and results.

use super::broker::{DeviceShareParams, JoinDeviceParams};
use super::reports::CopyParams;
use super::tensor::{Descriptor, Expected, Id, Spec, TensorState};
use cotensor_core::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

message! {
    /// Nothing.
    #[derive(Default, Copy)]
    Empty {}

    /// The client of a new connection.
    #[derive(Default)]
    HelloParams {
        /// [`PROTOCOL`](super::PROTOCOL).
        protocol: u32,
        /// The client's name, for display.
        client: String,
        /// The session to resume.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<Resume>,
        /// Whether the client keeps the session's lock: descriptor 1 of the answer. It closes the lock when the next session is open, or when it
        /// ends the session and has no mapped tensor left. After the end of the connection, the daemon keeps the session's leases while a
        /// descriptor of the lock is open. The next daemon does so, too; for a session without a lock, while the process lives, up to 60 s.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lock: bool,
    }

    /// A session of the daemon before.
    Resume {
        /// Its number.
        session: u64,
        /// Its secret.
        token: String,
        /// Its leases. The daemon renews them.
        leases: Vec<Resumed>,
        /// The computations that it has claimed, 64 hexadecimal digits each. Claims that no other session has are renewed.
        #[serde(default)]
        claims: Vec<String>,
        /// The devices of which it has a share. The daemon gives their memory to no other program in between.
        #[serde(default)]
        devices: Vec<JoinDeviceParams>,
    }

    /// A lease to renew.
    Resumed {
        /// The tensor's name.
        name: String,
        /// Its version.
        version: u64,
        /// Its holder.
        holder: String,
    }

    /// A session.
    HelloResult {
        /// [`PROTOCOL`](super::PROTOCOL).
        protocol: u32,
        /// The daemon's version.
        version: String,
        /// The session's number.
        session: u64,
        /// Its secret, with which another connection resumes it after the daemon was replaced.
        token: String,
        /// The client's process, as the daemon sees it. In another container, the daemon's numbers of processes name other ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// Differs between daemons. Cached index slots of another epoch are invalid.
        epoch: u64,
        /// Slots in the index.
        index_slots: u32,
        /// Tensors of more bytes than this need memory of their own.
        small_bytes_max: u64,
        /// The length of the longest block; 0 for a daemon without blocks.
        #[serde(default)]
        block_bytes_max: u64,
        /// Limits on shared tensors.
        sharing: Sharing,
        /// For each lease to renew, its version; none when the tensor is lost.
        resumed: Vec<Option<Id>>,
        /// For each claim to renew, its ticket; none when another session has it or it is finished.
        #[serde(default)]
        tickets: Vec<Option<u64>>,
        /// For each device of a resumed session, its share.
        #[serde(default)]
        shares: Vec<DeviceShareParams>,
        /// Whether descriptor 1 is the session's lock. There is none where the system has no locks of open file descriptions.
        #[serde(default)]
        locked: bool,
    }

    /// Limits on shared tensors, from the store's configuration.
    Sharing {
        /// Whether tensors are shared at all.
        enable_shared_tensors: bool,
        /// The kinds that are shared; all kinds if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allowed_types: Option<Vec<String>>,
        /// The most bytes of one shared tensor; no limit if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_shared_tensor_size_bytes: Option<u64>,
    }

    /// A tensor to reserve.
    ReserveParams {
        /// The tensor.
        spec: Spec,
        /// The holder of the lease.
        holder: String,
    }

    /// A share of the budget.
    ReserveResult {
        /// The reservation's number in this session.
        reservation: u64,
    }

    /// A reservation.
    ReservationParams {
        /// Its number.
        reservation: u64,
    }

    /// A reservation to publish.
    PublishParams {
        /// Its number.
        reservation: u64,
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

    /// A name and a holder.
    GetParams {
        /// The name.
        name: String,
        /// The holder of the lease.
        #[serde(default)]
        holder: String,
    }

    /// A version and a holder.
    LeaseParams {
        /// The version.
        id: Id,
        /// The holder of the lease.
        #[serde(default)]
        holder: String,
    }

    /// Leases to release.
    ReleaseParams {
        /// Versions and holders.
        leases: Vec<LeaseParams>,
    }

    /// A segment.
    SegmentParams {
        /// Its number.
        segment: u64,
    }

    /// A name.
    NameParams {
        /// The name.
        name: String,
    }

    /// A name to remove.
    RemoveParams {
        /// The name.
        name: String,
        /// The version that has to be the newest one of the name. Without it, any is removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Id>,
    }

    /// Names to list.
    ListParams {
        /// The start of each name.
        #[serde(default)]
        prefix: String,
        /// The most to list.
        #[serde(default = "list_max")]
        limit: usize,
        /// Which tensors come first.
        #[serde(default)]
        order: ListOrder,
    }

    /// Listed tensors.
    ListResult {
        /// The tensors, in the order that was asked for.
        tensors: Vec<TensorInfo>,
        /// The number of tensors beyond the limit.
        left_off: usize,
    }

    /// A tensor and its holders.
    TensorInfo {
        /// Its version.
        id: Id,
        /// Its description.
        spec: Spec,
        /// The length in bytes.
        bytes: u64,
        /// Its device, such as `cpu`.
        device: String,
        /// The time since publication, in seconds.
        age_s: f64,
        /// Lookups that found it.
        hits: u64,
        /// The number of leases of each holder.
        holders: BTreeMap<String, u32>,
        /// The version's state.
        state: TensorState,
        /// The number of members of a group; 0 for a plain tensor. `tensor.list` leaves the members themselves and the metadata
        /// out of `spec`, `tensor.holders` does not.
        #[serde(default, skip_serializing_if = "is_zero")]
        member_count: usize,
        /// The reason why it cannot be read, if it was spilled and its file is missing or damaged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost: Option<String>,
        /// The control group whose memory limit counts its bytes, as the folder that its producer sees. Only `tensor.holders` has it, for
        /// tensors in memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        charged_to: Option<String>,
        /// The time after which it is freed, in seconds, if it stays for a limited time and has no lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        freed_in_s: Option<f64>,
    }

    /// The holders of a name.
    HoldersResult {
        /// Its live versions, newest first.
        versions: Vec<TensorInfo>,
    }

    /// A computation.
    KeyParams {
        /// 64 hexadecimal digits.
        key: String,
    }

    /// A computation to claim.
    ClaimParams {
        /// 64 hexadecimal digits.
        key: String,
        /// The holder of the results.
        #[serde(default)]
        holder: String,
        /// The longest wait for another session's result, in milliseconds. Without it, the daemon's limit applies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    }

    /// A ticket.
    TicketParams {
        /// Its number in this session.
        ticket: u64,
    }

    /// A claim's results.
    FinishParams {
        /// The ticket.
        ticket: u64,
        /// The tensors that were published under the ticket, in order.
        results: Vec<Id>,
    }

    /// A version.
    IdParams {
        /// The version.
        id: Id,
    }

    /// Whether a version exists.
    Present {
        /// True if it exists.
        present: bool,
    }

    /// Whether a computation is finished.
    Computed {
        /// Whether its results can be leased.
        computed: bool,
    }

    /// A computation, or a blob.
    ClaimHolderParams {
        /// The key of the computation or the hash of the blob: 64 hexadecimal digits.
        key: String,
        /// Whether it is a blob.
        #[serde(default)]
        is_blob: bool,
        /// The device of the blob; `cpu` when it is missing.
        #[serde(default, with = "super::device_name")]
        #[schemars(with = "String")]
        device: Device,
    }

    /// The session that computes a result or uploads a blob.
    ClaimHolder {
        /// Its client's name and process, and its holder; none if no session does that now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
    }

    /// A blob to lease.
    BlobParams {
        /// BLAKE3 of its bytes, 64 hexadecimal digits.
        hash: String,
        /// Element type.
        dtype: String,
        /// Dimensions, in elements.
        shape: Vec<usize>,
        /// The device whose memory is to hold it; `cpu` when it is missing.
        #[serde(default, with = "super::device_name")]
        #[schemars(with = "String")]
        device: Device,
        /// What it is for people, such as `bert/pooler.dense.weight`: a part of the tensor's name.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        label: String,
        /// The metadata of the tensor, if this request provides the bytes: a JSON object as text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<String>,
    }

    /// Blobs to lease.
    PlanUploadParams {
        /// The blobs, each once.
        blobs: Vec<BlobParams>,
        /// The producer's name, for display.
        producer: String,
        /// The holder of the leases.
        #[serde(default)]
        holder: String,
    }

    /// The state of each requested blob: leased, uploaded by another session, or to be uploaded by the caller.
    PlanUploadResult {
        /// Leased blobs, by their index in the request.
        ready: Vec<(usize, Descriptor)>,
        /// Indices of blobs that another session uploads. Request them again after the own upload.
        busy: Vec<usize>,
        /// The blobs that the caller uploads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        upload: Option<BlobUpload>,
    }

    /// Blobs that the caller uploads in one segment.
    BlobUpload {
        /// The reservation for `blob.publish`.
        reservation: u64,
        /// The length in bytes.
        bytes: u64,
        /// For each blob: its index in the request, its offset in the segment and its length, both in bytes.
        places: Vec<(usize, u64, u64)>,
    }

    /// An upload to publish.
    PublishBlobsParams {
        /// [`BlobUpload::reservation`].
        reservation: u64,
        /// The time that the upload took, in microseconds: the cost of making the blobs again.
        micros: u64,
    }

    /// Leased tensors.
    Descriptors {
        /// In the order of the request.
        tensors: Vec<Descriptor>,
    }

    /// A note, if there is one.
    Note {
        /// Hexadecimal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    }

    /// A note to keep.
    PutNoteParams {
        /// 64 hexadecimal digits.
        key: String,
        /// Hexadecimal.
        note: String,
    }

}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn list_max() -> usize {
    1000
}

/// The order of listed tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListOrder {
    /// By name and version.
    #[default]
    Name,
    /// The largest first, equal sizes by name and version.
    Size,
}

/// A claim's outcome.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimResult {
    /// The results.
    Ready(Vec<Descriptor>),
    /// The ticket under which the caller computes.
    Compute(u64),
}

impl HelloResult {
    /// Whether this process and the daemon see processes by the same numbers.
    pub fn shares_pids(&self) -> bool {
        self.pid == Some(std::process::id())
    }
}
