//! The reasons for copies.

/// Why bytes were copied. Every copy anywhere in Cotensor is counted under one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CopyReason {
    /// A user's file is copied in, never mapped, so that truncating it harms nobody.
    FileImport,
    /// The engine returns outputs in memory of its own.
    EngineOutput,
    /// An input was preprocessed in memory of the library that does it.
    Preprocessed,
    /// The engine wants another element type (64-bit to 32-bit integers).
    EngineConversion,
    /// A caller put its own bytes into the store.
    Put,
    /// From one device to another.
    DeviceTransfer,
    /// To a reader, or from a writer, who has no memory in common with the store.
    Network,
    /// A reader wrote in place: the pages that he wrote became his own.
    CopyOnWrite,
    /// A reader may write in place, and this memory cannot be mapped for that.
    PrivateCopy,
}

impl CopyReason {
    /// Every reason.
    pub const ALL: &'static [CopyReason] = &[
        CopyReason::FileImport,
        CopyReason::EngineOutput,
        CopyReason::Preprocessed,
        CopyReason::EngineConversion,
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
            CopyReason::Put => "put",
            CopyReason::DeviceTransfer => "device transfer",
            CopyReason::Network => "network",
            CopyReason::CopyOnWrite => "copy on write",
            CopyReason::PrivateCopy => "private copy",
        }
    }
}
