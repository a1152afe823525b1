//! The shared tensors that a model holds.

use crate::pipeline::SharedEmbedding;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Kind, Result};
use cotensor_sharing::SharedTensor;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Tensors that a model acquired under its name. Dropping it releases them.
pub(super) struct HeldTensors {
    /// The model's name, which holds the tensors.
    pub(super) holder: String,
    /// The outputs of the model's last input, by kind.
    made: Mutex<BTreeMap<Kind, SharedEmbedding>>,
    /// Tensors of other models, one entry for each acquire.
    used: Mutex<Vec<SharedTensor>>,
}

impl HeldTensors {
    pub(super) fn new(holder: &str) -> Self {
        Self { holder: holder.to_owned(), made: Mutex::default(), used: Mutex::default() }
    }

    /// Replaces the outputs of the model, and releases the earlier ones.
    pub(super) fn set_made(&self, made: BTreeMap<Kind, SharedEmbedding>) {
        let earlier = std::mem::replace(&mut *lock(&self.made), made);
        for embedding in earlier.into_values() {
            self.release_quietly(embedding.tensor());
        }
    }

    /// The output of this kind.
    pub(super) fn made(&self, kind: Kind) -> Result<SharedEmbedding> {
        let made = lock(&self.made);
        made.get(&kind).cloned().ok_or_else(|| {
            let known: Vec<&str> = made.keys().map(|kind| kind.name()).collect();
            let known =
                if known.is_empty() { "no tensor: process an input first".to_owned() } else { known.join(", ") };
            Error::not_found(format!("{} has no {kind}; it has {known}", self.holder)).in_field("kind")
        })
    }

    pub(super) fn acquire(&self, tensor: &SharedTensor) -> Result<()> {
        tensor.acquire(&self.holder)?;
        lock(&self.used).push(tensor.clone());
        Ok(())
    }

    /// Releases one acquire of the model: of a tensor that it uses, else of its own output.
    pub(super) fn release(&self, tensor: &SharedTensor) -> Result<()> {
        tensor.release(&self.holder)?;
        let mut used = lock(&self.used);
        if let Some(index) = used.iter().rposition(|known| known.is_same(tensor)) {
            drop(used.swap_remove(index));
        } else {
            drop(used);
            lock(&self.made).retain(|_, embedding| !embedding.tensor().is_same(tensor));
        }
        Ok(())
    }

    /// Releases every tensor.
    pub(super) fn release_all(&self) {
        self.set_made(BTreeMap::new());
        for tensor in std::mem::take(&mut *lock(&self.used)) {
            self.release_quietly(&tensor);
        }
    }

    /// A tensor that the user released by its own handle is not held any more.
    fn release_quietly(&self, tensor: &SharedTensor) {
        let _ = tensor.release(&self.holder);
    }
}

impl Drop for HeldTensors {
    fn drop(&mut self) {
        self.release_all();
    }
}
