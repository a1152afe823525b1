//! The daemon's methods: names, parameters and results. The protocol's documents are generated from this list.

/// Defines parameters and results.
macro_rules! message {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
            pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
        )*
    };
}

mod broker;
mod channels;
mod device_name;
mod functions;
mod messages;
mod names;
mod openrpc;
pub mod provider;
mod reports;
mod service;
mod slabs;
mod tensor;

pub use broker::*;
pub use channels::*;
pub use cotensor_rpc::{Method, MethodDescription};
pub use functions::*;
pub use messages::*;
pub use names::*;
pub use openrpc::{FUNCTIONS, openrpc, openrpc_of_provider, openrpc_with};
pub use reports::*;
pub use service::*;
pub use slabs::*;
pub use tensor::{
    Descriptor, Expected, GroupMember, Id, IndexSlot, Keep, Published, SegmentInfo, Spec, TensorState, check_metadata,
};

use cotensor_rpc::methods;
use schemars::{Schema, SchemaGenerator};

/// The protocol's version. The daemon refuses clients of another version.
pub const PROTOCOL: u32 = 3;

/// The field of the error for a session that cannot be resumed because this daemon does not know it.
pub const RESUME_TOKEN: &str = "resume.token";

methods! { METHODS:
    /// Opens a session on this connection, or resumes a session of the daemon before. Descriptor 0 of the answer is the index,
    /// descriptor 1 the session's lock.
    Hello "session.hello": HelloParams => HelloResult;
    /// Returns nothing.
    Ping "ping": Empty => Empty;

    /// Reserves the bytes of a tensor with memory of its own. The client allocates that memory.
    Reserve "tensor.reserve": ReserveParams => ReserveResult;
    /// Publishes a reserved tensor under its name and leases it to the session. The request's descriptor is its memory,
    /// sealed against writing and resizing.
    Publish "tensor.publish": PublishParams => Published;
    /// Cancels a reservation.
    Discard "tensor.discard": ReservationParams => Empty;
    /// Opens a slab, in which the session places small tensors itself. The request's descriptor is its memory, sealed against
    /// resizing and new writers.
    OpenSlab "slab.open": SlabParams => SlabResult;
    /// Closes a slab, in which the session leases nothing, or a block: the session publishes nothing more in it. Its tensors stay.
    CloseSlab "slab.close": CloseSlabParams => Empty;
    /// Publishes a tensor in one of the session's slabs.
    PublishSlab "tensor.publish_slab": PublishSlabParams => Published;
    /// Leases the newest version of a name. The answer has the segment's descriptor unless the session received it before.
    Get "tensor.get": GetParams => Descriptor;
    /// Leases one version.
    Lease "tensor.lease": LeaseParams => Descriptor;
    /// Releases leases.
    Release "tensor.release": ReleaseParams => Empty;
    /// Sends a segment's descriptor to a session that leases a tensor in it.
    SegmentFd "segment.fd": SegmentParams => Empty;
    /// Checks whether a version exists.
    Has "tensor.has": IdParams => Present;
    /// Removes a name. Its memory is freed with the last lease.
    Remove "tensor.remove": RemoveParams => Empty;
    /// Finds the newest version of a name, without a lease.
    FindName "name.find": NameParams => FoundName;
    /// Lists names that start with a prefix, with their newest versions. The answer is bounded: the next call continues.
    ListNames "name.list": ListNamesParams => NameList;
    /// Waits for changes of names: new versions and removals. Each name is listed once, with its newest version.
    AwaitChanges "name.changes": ChangesParams => Changes;
    /// Waits for every change of names, in order. The daemon queues the changes for the caller, and leases each new version to the session
    /// until the caller has read it: until the next call names its position. When memory is needed, such a lease can end earlier.
    AwaitVersions "name.versions": VersionsParams => Changes;
    /// Ends a queue of every version.
    EndVersions "name.end_versions": EndVersionsParams => Empty;
    /// Lists the tensors whose names start with a prefix.
    List "tensor.list": ListParams => ListResult;
    /// Lists the versions of a name with their holders.
    ListHolders "tensor.holders": NameParams => HoldersResult;

    /// Claims a computation: returns its results, or a ticket to compute it. Waits while another session computes.
    Claim "claim.begin": ClaimParams => ClaimResult;
    /// Finishes a claim with tensors that were published under its ticket. Waiting sessions receive them.
    Finish "claim.finish": FinishParams => Empty;
    /// Abandons a claim. A waiting session takes it over.
    Abandon "claim.abandon": TicketParams => Empty;
    /// Checks whether a computation's results exist.
    IsComputed "claim.is_computed": KeyParams => Computed;
    /// Names the session that computes a result, or that uploads a blob, for messages about the wait.
    FindClaimHolder "claim.holder": ClaimHolderParams => ClaimHolder;

    /// Leases blobs by hash. Returns a plan for the caller to upload the blobs that do not exist, in one segment.
    PlanUpload "blob.plan_upload": PlanUploadParams => PlanUploadResult;
    /// Publishes uploaded blobs. The request's descriptor is their memory, sealed.
    PublishBlobs "blob.publish": PublishBlobsParams => Descriptors;
    /// Cancels an upload. Another session that needs the blobs uploads them.
    DiscardBlobs "blob.discard": ReservationParams => Empty;

    /// Reads the note of a key.
    GetNote "note.get": KeyParams => Note;
    /// Stores a small note under a key.
    PutNote "note.put": PutNoteParams => Empty;

    /// Registers a function under a name until this connection ends. No other code of the provider can be called.
    RegisterFunction "function.register": RegisterFunctionParams => Empty;
    /// Unregisters a function.
    UnregisterFunction "function.unregister": FunctionNameParams => Empty;
    /// Finds a function's provider. Descriptor 0 of the answer is a socket to it, unless the caller has one already.
    LookupFunction "function.lookup": LookupFunctionParams => FoundFunction;
    /// Lists the functions whose names start with a prefix, with their providers.
    ListFunctions "function.list": ListFunctionsParams => FunctionList;
    /// Lists the tasks of all providers. The daemon queries each provider.
    ListAllTasks "function.tasks": AllTasksParams => AllTasks;

    /// Checks that a channel can be opened, before its producer makes the memory.
    CheckChannel "channel.check": OpenChannelParams => Empty;
    /// Opens a channel for readers until this connection ends. Descriptor 0 of the request is the memory of its frames, descriptor 1 the
    /// ring, and the others are the pages of its readers.
    OpenChannel "channel.open": OpenChannelParams => Empty;
    /// Closes a channel for new readers.
    CloseChannel "channel.close": ChannelNameParams => Empty;
    /// Joins the readers of a channel. Descriptors of the answer: memory, ring, the reader's page, and its lock, which the reader keeps open as
    /// long as it holds frames.
    JoinChannel "channel.join": ChannelNameParams => JoinedChannel;
    /// Lists the channels.
    ListChannels "channel.list": Empty => ChannelList;

    /// Joins the programs on a device until this connection ends. Returns the program's share of the device's memory.
    JoinDevice "broker.join": JoinDeviceParams => DeviceShareParams;
    /// Reports activity and the program's needs, at most 20 times per second.
    ReportDevice "broker.report": ReportDeviceParams => Empty;
    /// Acknowledges a smaller share: the program has freed the memory beyond it.
    AcknowledgeShare "broker.acknowledge": DeviceShareParams => Empty;
    /// Lists the devices that programs share, with the share of each program.
    ListDevices "broker.list": Empty => DeviceList;

    /// Returns the store's counters.
    Stats "store.stats": Empty => Report;
    /// Returns every live tensor with holders, bytes, device, age and hits, and every copy with its reason.
    Diagnostics "store.diagnostics": Empty => Report;
    /// Returns possible savings of memory.
    Recommendations "store.recommendations": Empty => Report;
    /// Frees every tensor without a lease.
    Optimize "store.optimize": Empty => Report;
    /// Counts copies that a client made, by reason.
    RecordCopies "store.record_copies": CopiesParams => Empty;
    /// Records the memory that a client keeps ready beside its blocks.
    RecordReady "store.record_ready": ReadyParams => Empty;

    /// Lists the open sessions with their leases.
    Sessions "session.list": Empty => SessionList;
    /// Describes the daemon's processes.
    GetStatus "daemon.status": Empty => DaemonStatus;
    /// Ends the daemon and its tensors. A daemon inside another program is not ended.
    Stop "daemon.stop": Empty => Empty;
    /// Returns the daemon's HTTP address and its token file.
    HttpAddress "http.address": Empty => HttpEndpoint;
    /// Turns HTTP on, on loopback only, and returns its address as `http.address` does. The port is the default one, or a free
    /// one if another program has it.
    HttpListen "http.listen": HttpListenParams => HttpEndpoint;
    /// Starts the process that runs models, unless it runs, and returns its address.
    StartModels "models.start": Empty => ModelEndpoint;
    /// Names a library of the fast engine, onnxruntime, which the client's installation has. The model process that runs, and those that are
    /// started later, use the best library that clients named. Refused for clients that may see other files than the daemon.
    OfferLibrary "models.library": LibraryParams => OfferedLibrary;
    /// Creates a file that opens the daemon's page in a browser.
    HttpDashboard "http.dashboard": Empty => DashboardFile;
    /// Returns the OpenRPC description of every method.
    Discover "rpc.discover": Empty => Document;
}

/// A notification for the generated documents.
pub struct NotificationDescription {
    /// The method's name on the wire.
    pub name: &'static str,
    /// Its meaning.
    pub summary: &'static str,
    /// Schema of the parameters.
    pub params: fn(&mut SchemaGenerator) -> Schema,
}

/// The notifications that the daemon sends.
pub const NOTIFICATIONS: &[NotificationDescription] = &[
    NotificationDescription {
        name: notification::SLAB_FREED,
        summary: "The tensors at these offsets of the session's slab have no leases: their ranges may be written again.",
        params: |generator| generator.subschema_for::<FreedParams>(),
    },
    NotificationDescription {
        name: notification::FUNCTION_CONNECT,
        summary: "A caller connects to this provider. Descriptor 0 is a socket to the caller.",
        params: |generator| generator.subschema_for::<CallerInfo>(),
    },
    NotificationDescription {
        name: notification::BROKER_SHARE,
        summary: "This program's share of a device has changed. A smaller one is acknowledged when the memory is free.",
        params: |generator| generator.subschema_for::<DeviceShareParams>(),
    },
];

/// Names of the notifications.
pub mod notification {
    /// Ranges of a slab have no leases. Parameters: [`FreedParams`](super::FreedParams).
    pub const SLAB_FREED: &str = "slab.freed";
    /// A caller connects to a provider; the descriptor is a socket to the caller. Parameters:
    /// [`CallerInfo`](super::CallerInfo).
    pub const FUNCTION_CONNECT: &str = "function.connect";
    /// The share of a device has changed. Parameters: [`DeviceShareParams`](super::DeviceShareParams).
    pub const BROKER_SHARE: &str = "broker.share";
}
