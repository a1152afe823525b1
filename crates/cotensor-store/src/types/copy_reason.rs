//! The reasons for copies.

/// The reason for a copy. Cotensor counts every copy under one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CopyReason {
    /// A user's file is copied, not mapped, because another process may truncate it.
    FileImport,
    /// The engine returned an output in its own memory.
    EngineOutput,
    /// An input was preprocessed in the memory of a library.
    Preprocessed,
    /// The engine needs another element type (64-bit to 32-bit integers).
    EngineConversion,
    /// The engine copied a value that it keeps between runs, such as a decoder's cache that grew.
    EngineState,
    /// A caller published its own bytes.
    Put,
    /// From one device to another.
    DeviceTransfer,
    /// A reader or writer has no memory in common with the store.
    Network,
    /// A reader wrote in place: the kernel copied the pages.
    CopyOnWrite,
    /// A reader may write in place, and the memory cannot be mapped copy-on-write.
    PrivateCopy,
}

impl CopyReason {
    /// Every reason.
    pub const ALL: &'static [CopyReason] = &[
        CopyReason::FileImport,
        CopyReason::EngineOutput,
        CopyReason::Preprocessed,
        CopyReason::EngineConversion,
        CopyReason::EngineState,
        CopyReason::Put,
        CopyReason::DeviceTransfer,
        CopyReason::Network,
        CopyReason::CopyOnWrite,
        CopyReason::PrivateCopy,
    ];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CopyReason::FileImport => "file import",
            CopyReason::EngineOutput => "engine output",
            CopyReason::Preprocessed => "preprocessed input",
            CopyReason::EngineConversion => "engine conversion",
            CopyReason::EngineState => "engine state",
            CopyReason::Put => "put",
            CopyReason::DeviceTransfer => "device transfer",
            CopyReason::Network => "network",
            CopyReason::CopyOnWrite => "copy on write",
            CopyReason::PrivateCopy => "private copy",
        }
    }
}
