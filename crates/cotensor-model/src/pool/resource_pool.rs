use super::devices::{DeviceChoice, HardwarePreferences};
use super::held_tensors::HeldTensors;
use super::permits::{Permit, Permits};
use super::precision::{self, Quantizing};
use crate::model::{Model, Runtime};
use crate::pipeline::{Inputs, OnText, User, UserReport, run_user_streaming};
use crate::tensor::TensorRef;
use cotensor_core::{Device, Error, Hold, Kind, Result};
use cotensor_preprocess::family::{family_of, kinds_by_name};
use cotensor_sharing::TensorSharingManager;
use cotensor_store::{CopyReason, Lease, Retention, TensorSpec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Models for many callers. Each model is loaded once, and at most `max_connections` calls run at a time.
pub struct ResourcePool {
    runtime: Arc<Runtime>,
    models: PathBuf,
    permits: Arc<Permits>,
}

impl ResourcePool {
    /// A pool over `runtime`. Model names are folders in `models`, or ids of models on the hub.
    ///
    /// # Errors
    /// `Invalid` for zero connections.
    pub fn new(runtime: Arc<Runtime>, models: impl Into<PathBuf>, max_connections: usize) -> Result<Self> {
        if max_connections == 0 {
            return Err(Error::invalid("at least one connection is required").in_field("max_connections"));
        }
        Ok(Self { runtime, models: models.into(), permits: Permits::new(max_connections) })
    }

    /// The runtime of all models in the pool.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Limits the store of the pool to `max_memory_mb` MiB, including weights, and returns a manager of its tensors.
    ///
    /// # Errors
    /// As [`cotensor_store::MemoryControl::limit_memory`].
    pub fn setup_tensor_sharing(&self, max_memory_mb: u64) -> Result<TensorSharingManager> {
        let store = self.runtime.store();
        store.limit_memory(Device::Cpu, max_memory_mb.saturating_mul(1 << 20))?;
        Ok(TensorSharingManager::with_store(Arc::clone(store)).with_model_kinds(kinds_by_name))
    }

    /// The model `model_name` on the best device of the list. All callers get one loaded copy. `model_type` is a kind
    /// (`text_embedding`), a modality (`text`, `vision`, `audio`) or a family (`bert`) of the model.
    ///
    /// # Errors
    /// `Invalid` when the model is of another type or its name leads out of the pool's folder; `Unsupported` for a precision
    /// that is not possible, and for one without a variant over a store without a cache; as [`Runtime::open`],
    /// [`HardwarePreferences::choose`] and [`quantized_copy`](crate::quantize::quantized_copy).
    pub fn get_model(
        &self,
        model_type: &str,
        model_name: &str,
        hardware_preferences: &HardwarePreferences,
    ) -> Result<PooledModel> {
        let quantizing = Quantizing { copies: None, progress: &mut |_, _, _| {} };
        self.get_model_with(model_type, model_name, hardware_preferences, quantizing)
    }

    /// As [`get_model`](Self::get_model), with another place for copies of few bits, and with progress.
    ///
    /// # Errors
    /// As [`get_model`](Self::get_model).
    pub fn get_model_with(
        &self,
        model_type: &str,
        model_name: &str,
        hardware_preferences: &HardwarePreferences,
        quantizing: Quantizing<'_>,
    ) -> Result<PooledModel> {
        let device = hardware_preferences.choose()?;
        let name = Path::new(model_name);
        if !name.components().all(|part| matches!(part, std::path::Component::Normal(_))) || model_name.is_empty() {
            return Err(Error::invalid(format!("{model_name:?} leads out of the pool's folder")).in_field("model_name"));
        }
        let name = hardware_preferences.folder.as_deref().unwrap_or(name);
        let check = |model: &Model| check_type(model, model_type, model_name);
        let (model, copy) =
            precision::open(&self.runtime, name, &self.models, hardware_preferences, &check, quantizing)?;
        check(&model)?;
        let held = Arc::new(HeldTensors::new(model_name));
        Ok(PooledModel {
            model,
            device,
            runtime: Arc::clone(&self.runtime),
            permits: Arc::clone(&self.permits),
            held,
            _copy: copy.map(Arc::new),
        })
    }

    /// Publishes `tensor_data` under `tensor_name` and leases it to every consumer. A tensor for a device that only browsers
    /// have is on the cpu ([`Device::storage`]); the leases name its device.
    ///
    /// # Errors
    /// `Invalid` for a name of no device, `Unsupported` for a device without memory in this store and for data that the host cannot
    /// read, or as [`cotensor_store::TensorStore::reserve`].
    pub fn share_tensor_between_models(
        &self,
        tensor_data: TensorRef<'_>,
        tensor_name: &str,
        producer_model: &str,
        consumer_models: &[&str],
        storage_type: &str,
    ) -> Result<Vec<Lease>> {
        Device::Cpu.storage(storage_type)?;
        let bytes = tensor_data.host_bytes().map_err(|error| error.in_field("tensor_data"))?;
        let store = self.runtime.store();
        let spec = TensorSpec {
            device: Device::Cpu,
            name: tensor_name.to_owned(),
            dtype: tensor_data.dtype(),
            shape: tensor_data.shape().to_vec(),
            kind: kinds_by_name(producer_model).first().copied().unwrap_or(Kind::Other),
            space: None,
            producer: producer_model.to_owned(),
            retention: Retention::WhileLeased,
            provenance: None,
            keep_for: None,
            metadata: None,
            members: None,
        };
        let mut reservation = store.reserve(spec, &store.holder(producer_model))?;
        reservation.write(bytes, CopyReason::Put)?;
        let first = reservation.publish()?;
        let id = first.id();
        let mut leases = vec![first];
        for consumer in consumer_models {
            leases.push(store.lease(id, &store.holder(consumer))?);
        }
        Ok(leases)
    }
}

/// # Errors
/// `Invalid` for a model that is of another type.
fn check_type(model: &Model, model_type: &str, model_name: &str) -> Result<()> {
    let family = model.family();
    let of_type = family.name == model_type
        || family_of(model_type).is_ok_and(|wanted| wanted.name == family.name)
        || family
            .kinds
            .iter()
            .any(|kind| kind.name() == model_type || kind.name().split('_').next() == Some(model_type));
    if of_type {
        Ok(())
    } else {
        let message = format!("{model_name} is a {} model, not {model_type:?}", family.title);
        Err(Error::invalid(message).in_field("model_type"))
    }
}

/// A model of a pool, and the shared tensors that it holds. Clones hold the same tensors; the last one releases them.
#[derive(Clone)]
pub struct PooledModel {
    model: Arc<Model>,
    device: DeviceChoice,
    pub(super) runtime: Arc<Runtime>,
    permits: Arc<Permits>,
    pub(super) held: Arc<HeldTensors>,
    /// Holds the folder of a copy with weights of few bits in the cache.
    _copy: Option<Arc<Hold>>,
}

/// The result of a call.
#[derive(Debug)]
pub struct PooledResult {
    /// The answer and the report of the run.
    pub report: UserReport,
    /// The outputs of the model's stages by kind (`vision_embedding`).
    pub output_tensors: BTreeMap<&'static str, Lease>,
}

impl PooledModel {
    /// The model. Direct calls on it do not count against the pool's connections.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The device of the model, and the preferred devices that were skipped.
    pub fn device(&self) -> &DeviceChoice {
        &self.device
    }

    /// Runs the task of `user`. Waits for a free connection of the pool.
    ///
    /// # Errors
    /// As [`run_user_streaming`].
    pub fn run(&self, user: &User, inputs: &Inputs) -> Result<PooledResult> {
        self.run_with(&self.permits.acquire(), user, inputs, &mut |_| Ok(()))
    }

    /// As [`run`](Self::run), but waits only while `wanted` returns true, and returns `None` afterwards. The pool calls
    /// `wanted` ten times a second while it waits, and not while the task runs.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_while(&self, user: &User, inputs: &Inputs, wanted: &dyn Fn() -> bool) -> Result<Option<PooledResult>> {
        self.run_streaming_while(user, inputs, wanted, &mut |_| Ok(()))
    }

    /// As [`run_while`](Self::run_while); `on_text` gets the text of a task that decodes, piece by piece.
    ///
    /// # Errors
    /// As [`run`](Self::run); the errors of `on_text`, which stop the decoding.
    pub fn run_streaming_while(
        &self,
        user: &User,
        inputs: &Inputs,
        wanted: &dyn Fn() -> bool,
        on_text: &mut OnText<'_>,
    ) -> Result<Option<PooledResult>> {
        self.permits.acquire_while(wanted).map(|permit| self.run_with(&permit, user, inputs, on_text)).transpose()
    }

    fn run_with(
        &self,
        _permit: &Permit,
        user: &User,
        inputs: &Inputs,
        on_text: &mut OnText<'_>,
    ) -> Result<PooledResult> {
        let holder = self.runtime.store().holder(&user.name);
        let (report, output_tensors) = run_user_streaming(&self.model, user, inputs, &holder, on_text)?;
        Ok(PooledResult { report, output_tensors })
    }
}
