//! The configuration of sharing.

use cotensor_core::Kind;

/// The tensors that are shared. Others are computed privately and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SharingConfig {
    /// Whether tensors other than weights are shared.
    pub enable_shared_tensors: bool,
    /// The kinds that are shared; `None` means all. Weights are always shared.
    #[cfg_attr(feature = "serde", serde(serialize_with = "kinds"))]
    pub allowed_types: Option<Vec<Kind>>,
    /// The largest shared tensor, in bytes; `None` means no limit. Weights are always shared.
    pub max_shared_tensor_size_bytes: Option<u64>,
}

impl Default for SharingConfig {
    fn default() -> Self {
        Self { enable_shared_tensors: true, allowed_types: None, max_shared_tensor_size_bytes: None }
    }
}

/// Why a tensor was not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Sharing is disabled.
    Disabled,
    /// Its kind is not among the allowed ones.
    Kind,
    /// It is larger than allowed.
    Size,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Refusal; 3] = [Refusal::Disabled, Refusal::Kind, Refusal::Size];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Disabled => "sharing is disabled",
            Refusal::Kind => "kind not allowed",
            Refusal::Size => "larger than allowed",
        }
    }
}

impl SharingConfig {
    /// The reason why a tensor of this kind and size in bytes is not shared; `None` if it is. A kind that is refused at
    /// 0 bytes is refused at every size, so a caller need not claim its computation.
    pub fn refuses(&self, kind: Kind, bytes: u64) -> Option<Refusal> {
        if kind == Kind::Weight {
            None
        } else if !self.enable_shared_tensors {
            Some(Refusal::Disabled)
        } else if self.allowed_types.as_ref().is_some_and(|allowed| !allowed.contains(&kind)) {
            Some(Refusal::Kind)
        } else if self.max_shared_tensor_size_bytes.is_some_and(|max| bytes > max) {
            Some(Refusal::Size)
        } else {
            None
        }
    }
}

#[cfg(feature = "serde")]
fn kinds<S: serde::Serializer>(kinds: &Option<Vec<Kind>>, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::Serialize;
    kinds.as_ref().map(|kinds| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>()).serialize(serializer)
}
