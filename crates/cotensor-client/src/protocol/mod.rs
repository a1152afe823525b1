//! The daemon's methods: names, parameters, results. Everything else about the protocol is made from this list.

mod device_name;
mod functions;
mod messages;
mod openrpc;
pub mod provider;
mod service;
mod tensor;

pub use cotensor_rpc::{Described, Method};
pub use functions::*;
pub use messages::*;
pub use openrpc::{FUNCTIONS, openrpc, openrpc_of_provider, openrpc_with};
pub use service::*;
pub use tensor::{Descriptor, Id, IndexSlot, Keep, Published, SegmentInfo, Spec, TensorState};

use cotensor_rpc::methods;
use schemars::{Schema, SchemaGenerator};

/// The protocol's version; ends that differ refuse each other.
pub const PROTOCOL: u32 = 3;

/// The field that an error names when a session cannot be taken up: it was a session of another daemon, or of none.
pub const RESUME_TOKEN: &str = "resume.token";

methods! { METHODS:
    /// Opens a session on this connection, or takes up one that a former daemon had. Descriptor 0 of the answer is the index.
    Hello "session.hello": HelloParams => HelloResult;
    /// Answers.
    Ping "ping": Empty => Empty;

    /// Reserves the bytes of a tensor that will have memory of its own. The client makes that memory.
    Reserve "tensor.reserve": ReserveParams => ReserveResult;
    /// Makes a reserved tensor visible under its name and leases it to the session. The descriptor that comes with the
    /// request is its memory, sealed against writing and resizing.
    Publish "tensor.publish": PublishParams => Published;
    /// Gives a reservation back.
    Discard "tensor.discard": ReservationParams => Empty;
    /// Opens a slab, in which the session lays small tensors out by itself. The descriptor that comes with the request is
    /// its memory, sealed against resizing and new writers.
    OpenSlab "slab.open": SlabParams => SlabResult;
    /// Publishes a tensor that lies in one of the session's slabs.
    PublishSlab "tensor.publish_slab": PublishSlabParams => Published;
    /// Leases the newest version of a name. The descriptor of its segment comes with it if the session has not got it yet.
    Get "tensor.get": GetParams => Descriptor;
    /// Leases exactly one version.
    Lease "tensor.lease": LeaseParams => Descriptor;
    /// Gives leases back.
    Release "tensor.release": ReleaseParams => Empty;
    /// Descriptor 0 of the answer is the segment's, for a session that leases a tensor in it.
    SegmentFd "segment.fd": SegmentParams => Empty;
    /// Whether a version is still there.
    Has "tensor.has": IdParams => Present;
    /// Forgets a name; its memory returns with its last lease.
    Remove "tensor.remove": NameParams => Empty;
    /// The tensors whose names start with a prefix.
    List "tensor.list": ListParams => ListResult;
    /// Who holds a name, through which session, and how often.
    Who "tensor.who": NameParams => WhoResult;

    /// Claims a computation: its results, or the right to compute it. Waits while another session computes.
    Claim "claim.begin": ClaimParams => ClaimResult;
    /// Makes tensors that were published under a ticket the claim's results; those who wait get them.
    Finish "claim.finish": FinishParams => Empty;
    /// Gives a claim up; one of those who wait takes it over.
    Decline "claim.decline": TicketParams => Empty;
    /// Whether a computation's results are there.
    IsComputed "claim.is_computed": KeyParams => Computed;

    /// Leases contents by hash; what nobody has yet, and nobody provides, is for the caller to provide in one segment.
    Contents "contents.begin": ContentsParams => ContentsResult;
    /// Publishes the contents that the caller was to provide. The descriptor that comes with the request is their memory, sealed.
    ProvideContents "contents.finish": ProvideParams => Descriptors;

    /// Leaves contents that the caller was to provide to others who want them.
    DiscardContents "contents.discard": ReservationParams => Empty;

    /// A note kept under a hash.
    Recall "note.recall": KeyParams => Note;
    /// Keeps a small note.
    Remember "note.remember": RememberParams => Empty;

    /// Offers a function under a name, for as long as this connection lives. Nothing else of the provider can be called.
    RegisterFunction "function.register": RegisterFunctionParams => Empty;
    /// Takes a function back.
    UnregisterFunction "function.unregister": FunctionNameParams => Empty;
    /// Finds who provides a function, and connects the two: descriptor 0 of the answer is a socket to the provider, unless
    /// the caller has one already.
    LookupFunction "function.lookup": LookupFunctionParams => FoundFunction;
    /// The functions whose names start with a prefix, and who provides them.
    ListFunctions "function.list": ListFunctionsParams => FunctionList;
    /// The tasks of all providers, for who wants to see them: the daemon asks each of them now.
    ListAllTasks "function.tasks": AllTasksParams => AllTasks;

    /// The store's counters.
    Stats "store.stats": Empty => Report;
    /// Every live tensor with holders, bytes, device, age and hits; and every copy with its reason.
    Diagnostics "store.diagnostics": Empty => Report;
    /// What could be saved, and where.
    Recommendations "store.recommendations": Empty => Report;
    /// Frees every tensor that nobody leases.
    Optimize "store.optimize": Empty => Report;
    /// Counts copies that a client made, and why.
    RecordCopies "store.record_copies": CopiesParams => Empty;

    /// The sessions that are open, and what each of them holds.
    Sessions "session.list": Empty => SessionList;
    /// Where the daemon answers HTTP, and which file holds the token.
    HttpAddress "http.address": Empty => HttpPlace;
    /// Makes a file that opens the daemon's page in a browser.
    HttpDashboard "http.dashboard": Empty => DashboardFile;
    /// The description of every method, as OpenRPC has it.
    Discover "rpc.discover": Empty => Document;
}

/// A notification as documents describe it.
pub struct Notice {
    /// Its method's name on the wire.
    pub name: &'static str,
    /// What it says.
    pub summary: &'static str,
    /// Schema of its parameters.
    pub params: fn(&mut SchemaGenerator) -> Schema,
}

/// The notifications that the daemon sends.
pub const NOTICES: &[Notice] = &[
    Notice {
        name: notice::SLAB_FREED,
        summary: "No process leases the tensors at these offsets of a slab of the session's any more: their ranges may be written again.",
        params: |generator| generator.subschema_for::<FreedParams>(),
    },
    Notice {
        name: notice::FUNCTION_CONNECT,
        summary: "A caller was connected to this provider of functions. Descriptor 0 is a socket to it.",
        params: |generator| generator.subschema_for::<CallerInfo>(),
    },
];

/// What the daemon tells a session unasked.
pub mod notice {
    /// Ranges of a slab that nobody leases any more. Parameters: [`FreedParams`](super::FreedParams).
    pub const SLAB_FREED: &str = "slab.freed";
    /// Somebody wants to call a provider's functions; the descriptor is a socket to whoever it is. Parameters:
    /// [`CallerInfo`](super::CallerInfo).
    pub const FUNCTION_CONNECT: &str = "function.connect";
}
