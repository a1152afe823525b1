//! Parameters and results.

use super::tensor::{Descriptor, Id, Spec, TensorState};
use cotensor_core::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

macro_rules! message {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
            pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
        )*
    };
}

pub(crate) use message;

message! {
    /// Nothing.
    #[derive(Default, Copy)]
    Empty {}

    /// Who connects.
    HelloParams {
        /// [`PROTOCOL`](super::PROTOCOL).
        protocol: u32,
        /// The client's name, for people.
        client: String,
        /// The session to take up again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<Resume>,
    }

    /// A session that a former daemon had.
    Resume {
        /// Its number.
        session: u64,
        /// Its secret.
        token: String,
        /// What it leases: the daemon leases it again.
        leases: Vec<Resumed>,
        /// Computations that it has claimed, 64 hexadecimal digits each: it goes on with those that nobody else has claimed.
        #[serde(default)]
        claims: Vec<String>,
    }

    /// A lease to take up again.
    Resumed {
        /// The tensor's name.
        name: String,
        /// Its version.
        version: u64,
        /// Who holds it.
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
        /// Its secret, with which another connection takes it up after the daemon was replaced.
        token: String,
        /// Changes with every daemon: cached slots of an earlier one mean nothing.
        epoch: u64,
        /// Slots in the index.
        index_slots: u32,
        /// Tensors of more bytes than this want memory of their own.
        small_bytes_max: u64,
        /// What may be shared.
        sharing: Sharing,
        /// For each lease to take up again, its identity now; none when it is gone.
        resumed: Vec<Option<Id>>,
        /// For each claim to take up again, its ticket now; none when it is somebody else's, or finished.
        #[serde(default)]
        tickets: Vec<Option<u64>>,
    }

    /// What may be shared, as the store's configuration has it.
    Sharing {
        /// Whether anything may be.
        enable_shared_tensors: bool,
        /// The kinds that may be; all when there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allowed_types: Option<Vec<String>>,
        /// The most bytes that one tensor may have; any when there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_shared_tensor_size_bytes: Option<u64>,
    }

    /// What to reserve.
    ReserveParams {
        /// The tensor.
        spec: Spec,
        /// Who will hold it.
        holder: String,
    }

    /// A place in the budget.
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
        /// The claim whose result it is part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticket: Option<u64>,
        /// Copies that were made and not yet said, as `store.record_copies` says them: at most 64.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        copies: Vec<CopyParams>,
    }

    /// A slab to open.
    SlabParams {
        /// Its length, in bytes.
        bytes: u64,
    }

    /// An open slab.
    SlabResult {
        /// Its number, as a segment.
        slab: u64,
        /// Offsets of the tensors in it that there are: of one that the session had before the daemon was replaced.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        live: Vec<u64>,
    }

    /// A tensor that lies in a slab.
    PublishSlabParams {
        /// The slab.
        slab: u64,
        /// Where in it, in bytes; a multiple of 64.
        offset: u64,
        /// The tensor.
        spec: Spec,
        /// Who holds it.
        holder: String,
        /// The claim whose result it is part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticket: Option<u64>,
        /// Copies that were made and not yet said, as `store.record_copies` says them: at most 64.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        copies: Vec<CopyParams>,
    }

    /// Which name, and for whom.
    GetParams {
        /// The name.
        name: String,
        /// Who will hold it.
        #[serde(default)]
        holder: String,
    }

    /// Which version, and for whom.
    LeaseParams {
        /// The version.
        id: Id,
        /// Who will hold it.
        #[serde(default)]
        holder: String,
    }

    /// Leases to give back.
    ReleaseParams {
        /// Which, and whose.
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

    /// Which names.
    ListParams {
        /// How they start.
        #[serde(default)]
        prefix: String,
        /// The most to list.
        #[serde(default = "list_max")]
        limit: usize,
    }

    /// Names.
    ListResult {
        /// The tensors, by name.
        tensors: Vec<TensorInfo>,
        /// How many more there are.
        left_off: usize,
    }

    /// A tensor and who holds it.
    TensorInfo {
        /// Its version.
        id: Id,
        /// What it is.
        spec: Spec,
        /// Its length, in bytes.
        bytes: u64,
        /// Where it lies, such as `cpu`.
        device: String,
        /// Since it was published, in seconds.
        age_s: f64,
        /// Lookups that found it.
        hits: u64,
        /// Who holds it: leases by holder.
        holders: BTreeMap<String, u32>,
        /// What it is to its name.
        state: TensorState,
        /// Why it cannot be read any more, if it was spilled and its file is gone or damaged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost: Option<String>,
    }

    /// Who holds a name.
    WhoResult {
        /// Its versions that live, newest first.
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
        /// Who will hold the results.
        #[serde(default)]
        holder: String,
        /// The longest to wait while another session computes, in milliseconds; without it, as long as the daemon allows.
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
        /// Tensors that were published under it, in order.
        results: Vec<Id>,
    }

    /// A version.
    IdParams {
        /// Which.
        id: Id,
    }

    /// Whether something is there.
    Present {
        /// It is.
        present: bool,
    }

    /// Whether something is computed.
    Computed {
        /// Whether its results could be leased now.
        computed: bool,
    }

    /// A content that is wanted.
    ContentParams {
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
    }

    /// Contents that are wanted.
    ContentsParams {
        /// Each once.
        contents: Vec<ContentParams>,
        /// Who wants them, for people.
        producer: String,
        /// Who will hold them.
        #[serde(default)]
        holder: String,
    }

    /// What came of wanting contents. Every place is either leased or for the caller to provide.
    ContentsResult {
        /// The contents that are there, by their places in the request.
        ready: Vec<(usize, Descriptor)>,
        /// Places whose contents another session provides at the moment: ask for them again once one's own are provided.
        busy: Vec<usize>,
        /// What the caller is to provide.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wanted: Option<Wanted>,
    }

    /// Contents that the caller is to provide, all in one segment.
    Wanted {
        /// The reservation to publish by `contents.finish`.
        reservation: u64,
        /// Its length, in bytes.
        bytes: u64,
        /// Places in the request, where each one's bytes go, and how many there are.
        places: Vec<(usize, u64, u64)>,
    }

    /// Contents that were provided.
    ProvideParams {
        /// [`Wanted::reservation`].
        reservation: u64,
        /// How long that took, in microseconds: what it would take again.
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
    RememberParams {
        /// 64 hexadecimal digits.
        key: String,
        /// Hexadecimal.
        note: String,
    }

    /// A report as the command line prints it.
    Report {
        /// Fields as the store's documentation names them.
        #[serde(flatten)]
        fields: serde_json::Map<String, serde_json::Value>,
    }

    /// A copy.
    CopyParams {
        /// Of which tensor, if of one.
        #[serde(default)]
        tensor: String,
        /// Why, such as `put`.
        reason: String,
        /// How much, in bytes.
        bytes: u64,
    }

    /// Copies.
    CopiesParams {
        /// At most 64.
        copies: Vec<CopyParams>,
    }

    /// Ranges that nobody leases any more.
    FreedParams {
        /// The slab.
        slab: u64,
        /// Offsets of tensors that were published in it.
        offsets: Vec<u64>,
    }
}

fn list_max() -> usize {
    1000
}

/// A claim's outcome.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimResult {
    /// Computed already.
    Ready(Vec<Descriptor>),
    /// The caller computes, under this ticket.
    Compute(u64),
}
