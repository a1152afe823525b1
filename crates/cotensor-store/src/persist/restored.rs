//! The tensors of a former store.

use crate::backend::{Charge, VersionState};
use crate::{Key, TensorId, TensorSpec};
use cotensor_core::{Layout, Segment};
use std::sync::Arc;
use std::time::Duration;

/// A tensor of a former store.
pub struct RestoredTensor {
    /// The identity of the version, then and now.
    pub id: TensorId,
    /// The description under which it was published.
    pub spec: TensorSpec,
    /// How its elements lie in the segment.
    pub layout: Layout,
    /// The memory.
    pub segment: Arc<dyn Segment>,
    /// The charge of the segment, which all tensors of the segment share.
    pub charge: Arc<Charge>,
    /// The computation whose result it is.
    pub key: Option<Key>,
    /// The number of versions that its name had.
    pub versions: u64,
    /// Its relation to the name; not `Spilled`.
    pub state: VersionState,
    /// The time of publication, by a clock that both stores share; `None`, which means now, if it is unknown.
    pub created: Option<Duration>,
    /// Since when it had no lease, by that clock, if it is kept for a [time](TensorSpec::keep_for) and that is known.
    pub left: Option<Duration>,
}
