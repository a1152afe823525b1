//! The state of a shared tensor: its content, its acquires and its views.

use cotensor_store::{Holder, Lease, Reservation, TensorId};
use std::collections::BTreeMap;

/// Content and views of a shared tensor.
pub(crate) struct TensorState {
    pub(crate) content: Content,
    /// By number.
    pub(crate) views: BTreeMap<u64, ViewHold>,
    pub(crate) views_made: u64,
}

pub(crate) enum Content {
    /// Not published: only the producer holds and writes the tensor.
    Writable {
        reservation: Box<Reservation>,
        acquires: u32,
    },
    /// Immutable. Every acquire of a model is one lease.
    Published {
        id: TensorId,
        leases: BTreeMap<String, Vec<Lease>>,
    },
    Freed,
}

/// A view, which holds the tensor under its own name.
pub(crate) struct ViewHold {
    pub(crate) holder: Holder,
    /// None before publishing.
    pub(crate) lease: Option<Lease>,
}

impl TensorState {
    pub(crate) fn new(reservation: Reservation) -> Self {
        Self::of_content(Content::Writable { reservation: Box::new(reservation), acquires: 1 })
    }

    pub(crate) fn of_content(content: Content) -> Self {
        Self { content, views: BTreeMap::new(), views_made: 0 }
    }

    /// Whether neither a model nor a view holds the tensor.
    pub(crate) fn is_idle(&self) -> bool {
        let held = match &self.content {
            Content::Writable { acquires, .. } => *acquires > 0,
            Content::Published { leases, .. } => !leases.is_empty(),
            Content::Freed => false,
        };
        !held && self.views.is_empty()
    }

    pub(crate) fn holds(&self, model: &str, producer: &str) -> bool {
        match &self.content {
            Content::Writable { acquires, .. } => *acquires > 0 && model == producer,
            Content::Published { leases, .. } => leases.contains_key(model),
            Content::Freed => false,
        }
    }

    pub(crate) fn counts(&self, producer: &str) -> BTreeMap<String, u32> {
        match &self.content {
            Content::Writable { acquires: 0, .. } | Content::Freed => BTreeMap::new(),
            Content::Writable { acquires, .. } => BTreeMap::from([(producer.to_owned(), *acquires)]),
            Content::Published { leases, .. } => {
                leases.iter().map(|(model, leases)| (model.clone(), leases.len() as u32)).collect()
            }
        }
    }

    /// Any lease of the tensor.
    pub(crate) fn any_lease(&self) -> Option<&Lease> {
        let Content::Published { leases, .. } = &self.content else { return None };
        let views = self.views.values().filter_map(|view| view.lease.as_ref());
        leases.values().flatten().chain(views).next()
    }

    /// The holders of views, with the number of views of each.
    pub(crate) fn view_holders(&self) -> BTreeMap<String, u32> {
        let mut holders = BTreeMap::new();
        for view in self.views.values() {
            *holders.entry(view.holder.name().to_owned()).or_default() += 1;
        }
        holders
    }
}
