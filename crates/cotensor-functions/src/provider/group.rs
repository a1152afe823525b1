//! Providers of one process that accept each other's objects.

use crate::Object;
use cotensor_client::protocol::provider::ObjectRef;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// The references that a provider gave to its callers.
pub(super) trait References: Send + Sync {
    /// The object that a caller named `client` has a reference to.
    ///
    /// # Errors
    /// `NotFound` for a released reference.
    fn object_of(&self, client: &str, object: ObjectRef) -> Result<Object>;
}

pub(super) struct Group {
    number: u64,
    /// By the epochs of the providers.
    providers: Mutex<HashMap<u64, Weak<dyn References>>>,
}

impl Group {
    pub(super) fn new(number: u64) -> Arc<Self> {
        Arc::new(Self { number, providers: Mutex::default() })
    }

    /// The number of the group, unique among all groups.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Adds a provider.
    pub(super) fn add(&self, epoch: u64, provider: Weak<dyn References>) {
        let mut providers = lock(&self.providers);
        providers.retain(|_, provider| provider.strong_count() > 0);
        providers.insert(epoch, provider);
    }

    /// The references of the provider with this epoch.
    pub(super) fn find(&self, epoch: u64) -> Option<Arc<dyn References>> {
        lock(&self.providers).get(&epoch).and_then(Weak::upgrade)
    }
}
