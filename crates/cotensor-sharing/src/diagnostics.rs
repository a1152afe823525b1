//! Diagnostics: every shared tensor of the process or of a manager.

use crate::lifecycle::TensorCell;
use crate::manager::TensorSharingManager;
use crate::shared::SharedTensor;
use cotensor_store::log::{self, LogSink};
use cotensor_store::{Copies, Diagnostics, TensorInfo};
use std::collections::BTreeMap;
use std::sync::Arc;

impl SharedTensor {
    /// Turns logging of tensor events on or off for the whole process. Events are register, acquire, publish, release,
    /// view, evict, free and copy; each is one line with the tensor's name. Off by default.
    pub fn set_verbose_logging(verbose: bool) {
        log::set_verbose(verbose);
    }

    /// Sets the function that receives the log lines of the whole process; `None` writes to standard error. `sink` may
    /// run while a tensor is locked: it must not call tensors, managers or stores.
    pub fn set_log_sink(sink: Option<Arc<LogSink>>) {
        log::set_sink(sink);
    }

    /// Every live shared tensor of the process that has a handle or a view, in order of creation, and every copy
    /// counted by the stores of these tensors.
    pub fn get_diagnostics() -> Diagnostics {
        let mut stores: BTreeMap<*const (), Diagnostics> = BTreeMap::new();
        let mut all = Diagnostics::default();
        for tensor in &TensorCell::active() {
            let store = stores.entry(Arc::as_ptr(&tensor.store).cast()).or_insert_with(|| tensor.store.diagnostics());
            all.tensors.extend(tensor.unlisted().or_else(|| listed(tensor, store)));
        }
        for store in stores.into_values() {
            store.copies.into_iter().for_each(|copies| add(&mut all.copies, copies));
            all.recent_copies.extend(store.recent_copies);
        }
        all.recent_copies.sort_by(|a, b| b.age_seconds.total_cmp(&a.age_seconds));
        all
    }
}

impl TensorSharingManager {
    /// Every live tensor of the store, every unpublished or private tensor of this manager, and every copy. Tensors are
    /// sorted by name and version.
    pub fn get_diagnostics(&self) -> Diagnostics {
        let mut diagnostics = self.store().diagnostics();
        diagnostics.tensors.extend(self.lock().unlisted());
        diagnostics.tensors.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        diagnostics
    }
}

/// The store's report on a published tensor.
fn listed(tensor: &TensorCell, store: &Diagnostics) -> Option<TensorInfo> {
    let id = tensor.published()?;
    let is_same = |info: &&TensorInfo| info.version == id.version && info.name == tensor.spec.name;
    store.tensors.iter().find(is_same).filter(|_| tensor.is_live()).cloned()
}

fn add(totals: &mut Vec<Copies>, copies: Copies) {
    match totals.iter_mut().find(|total| total.reason == copies.reason) {
        Some(total) => {
            total.count += copies.count;
            total.bytes += copies.bytes;
        }
        None => totals.push(copies),
    }
}
