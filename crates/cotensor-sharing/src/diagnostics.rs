//! Every shared tensor of this process, for debugging.

use crate::inner::Inner;
use crate::manager::TensorSharingManager;
use crate::shared::SharedTensor;
use cotensor_store::log::{self, LogSink};
use cotensor_store::{Copies, Diagnostics, TensorInfo};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static ACTIVE: Mutex<Active> = Mutex::new(Active { tensors: BTreeMap::new(), numbers: 0 });

/// All tensors that have a handle or a view.
struct Active {
    tensors: BTreeMap<u64, Weak<Inner>>,
    numbers: u64,
}

impl Active {
    fn lock() -> MutexGuard<'static, Active> {
        ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry in the list of active tensors, which ends with it.
pub(crate) struct Entry(u64);

impl Entry {
    pub(crate) fn new(tensor: &Weak<Inner>) -> Self {
        let mut active = Active::lock();
        active.numbers += 1;
        let number = active.numbers;
        active.tensors.insert(number, Weak::clone(tensor));
        Self(number)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        Active::lock().tensors.remove(&self.0);
    }
}

impl SharedTensor {
    /// Whether to tell what happens to tensors as it happens, in the whole process: register, acquire, publish,
    /// release, view, evict, free and copy, each with the tensor's name, on one line. Off at first.
    pub fn set_verbose_logging(verbose: bool) {
        log::set_verbose(verbose);
    }

    /// Where the lines go, in the whole process; none is standard error. `sink` is called where the event happens,
    /// possibly while the tensor is locked: it must not call tensors, managers or stores.
    pub fn set_log_sink(sink: Option<Arc<LogSink>>) {
        log::set_sink(sink);
    }

    /// Every live shared tensor of the process that has a handle or a view, in the order of their making, and every
    /// copy in the stores that they lie in.
    pub fn get_diagnostics() -> Diagnostics {
        // Taken out first: a tensor that ends here takes its entry off the list.
        let active: Vec<Arc<Inner>> = Active::lock().tensors.values().filter_map(Weak::upgrade).collect();
        let mut stores: BTreeMap<*const (), Diagnostics> = BTreeMap::new();
        let mut all = Diagnostics::default();
        for tensor in &active {
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
    /// Every live tensor of the store and every one that this manager keeps unpublished or private, by name and
    /// version; and every copy.
    pub fn get_diagnostics(&self) -> Diagnostics {
        let mut diagnostics = self.store().diagnostics();
        diagnostics.tensors.extend(self.lock().unlisted());
        diagnostics.tensors.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        diagnostics
    }
}

/// What its store says of a published tensor.
fn listed(tensor: &Inner, store: &Diagnostics) -> Option<TensorInfo> {
    let id = tensor.published()?;
    let is_it = |info: &&TensorInfo| info.version == id.version && info.name == tensor.spec.name;
    store.tensors.iter().find(is_it).filter(|_| tensor.is_live()).cloned()
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
