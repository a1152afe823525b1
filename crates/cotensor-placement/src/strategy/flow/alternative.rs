use crate::decision::Strategy;
use crate::strategy::{AllCpu, Genoa, Lru, Pinned};

/// A strategy without a plan, which [`Flow`](super::Flow) follows in a phase where it takes less time than the plan.
///
/// The planner only estimates the copies back, and it does not try all holds that a cache may end up with.
#[derive(Clone, Debug)]
pub(super) enum Alternative {
    Genoa(Genoa),
    Lru(Lru),
    Pinned(Pinned),
    AllCpu(AllCpu),
}

impl Alternative {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Genoa(strategy) => strategy.name(),
            Self::Lru(strategy) => strategy.name(),
            Self::Pinned(strategy) => strategy.name(),
            Self::AllCpu(strategy) => strategy.name(),
        }
    }

    pub(super) fn strategy(&mut self) -> &mut dyn Strategy {
        match self {
            Self::Genoa(strategy) => strategy,
            Self::Lru(strategy) => strategy,
            Self::Pinned(strategy) => strategy,
            Self::AllCpu(strategy) => strategy,
        }
    }
}
