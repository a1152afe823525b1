//! The arguments of a call: JSON in the form of providers' messages, with tensors that the caller wrote as lists or base64.

use super::elements;
use super::rewriting::{rewrite, within};
use crate::state::segment::{RoomFor, Upload};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cotensor_client::protocol::provider::TensorRef;
use cotensor_core::{DType, Error, Result};
use cotensor_store::{Holder, Lease, LocalStore, TensorSpec, TensorStore};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The most tensors in the arguments of a call. Each has a descriptor.
const TENSORS_MAX: usize = 1024;

/// The arguments, and leases of their tensors until the call is answered.
pub(super) struct Arguments {
    /// A list.
    pub(super) args: Box<RawValue>,
    /// An object.
    pub(super) kwargs: Box<RawValue>,
    pub(super) leases: Vec<Lease>,
}

/// A tensor as callers write it, if it is not a name alone: by `name`, as `data` or as `base64`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTensor<'a> {
    name: Option<String>,
    /// A number, or lists of equal lengths.
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    /// The elements, row-major, least significant byte first.
    base64: Option<String>,
    dtype: Option<String>,
    shape: Option<Vec<usize>>,
}

/// The place of the tensors of a call.
#[derive(Clone, Copy)]
pub(super) struct Tensors<'a> {
    pub(super) store: &'a LocalStore,
    pub(super) holder: &'a Holder,
    /// For those that the caller wrote.
    pub(super) room_for: RoomFor,
}

struct Reader<'a> {
    function: &'a str,
    tensors: Tensors<'a>,
    leases: Vec<Lease>,
}

impl Arguments {
    /// Reads parameters: a list of positional arguments, or an object of named ones.
    ///
    /// # Errors
    /// `Invalid` with the place of the value as its field; `NotFound` for the name of no tensor; `OverBudget`.
    pub(super) fn read(params: Option<&RawValue>, function: &str, tensors: Tensors<'_>) -> Result<Self> {
        let mut reader = Reader { function, tensors, leases: Vec::new() };
        let empty =
            |text: &str| RawValue::from_string(text.to_owned()).map_err(|error| Error::invalid(error.to_string()));
        let (mut args, mut kwargs) = (empty("[]")?, empty("{}")?);
        if let Some(params) = params {
            let read = rewrite(params, &mut |written| reader.tensor(written));
            let read = read.map_err(|error| within(&error, "params"))?;
            let target = if read.get().starts_with('[') { &mut args } else { &mut kwargs };
            *target = read;
        }
        if kwargs.get().starts_with("{\"$") {
            return Err(
                Error::invalid("a list of arguments, or an object of named ones, is expected").in_field("params")
            );
        }
        Ok(Self { args, kwargs, leases: reader.leases })
    }
}

impl Reader<'_> {
    fn tensor(&mut self, written: &RawValue) -> Result<TensorRef> {
        if self.leases.len() == TENSORS_MAX {
            return Err(Error::invalid(format!("a call has at most {TENSORS_MAX} tensors")));
        }
        let wrong = |error: serde_json::Error| Error::invalid(error.to_string());
        let tensor = if written.get().starts_with('"') {
            WrittenTensor {
                name: Some(serde_json::from_str(written.get()).map_err(wrong)?),
                ..WrittenTensor::default()
            }
        } else {
            serde_json::from_str(written.get()).map_err(wrong)?
        };
        let dtype = || tensor.dtype.as_deref().map(|name| name.parse::<DType>().map_err(|e| e.in_field("dtype")));
        let lease = match (&tensor.name, tensor.data, &tensor.base64) {
            (Some(name), None, None) => self.tensors.store.get(name, self.tensors.holder)?,
            (None, Some(data), None) => {
                let (dtype, shape, bytes) = elements::parse(data, dtype().transpose()?)?;
                if tensor.shape.as_ref().is_some_and(|given| *given != shape) {
                    return Err(Error::invalid(format!("the data has the shape {shape:?}")).in_field("shape"));
                }
                self.publish(dtype, &shape, &bytes)?
            }
            (None, None, Some(text)) => {
                let missing = |field: &'static str| Error::invalid("this is required with base64").in_field(field);
                let dtype = dtype().transpose()?.ok_or_else(|| missing("dtype"))?;
                let shape = tensor.shape.as_deref().ok_or_else(|| missing("shape"))?;
                let wrong = |_| Error::invalid("this is not base64").in_field("base64");
                self.publish(dtype, shape, &BASE64_STANDARD.decode(text).map_err(wrong)?)?
            }
            _ => return Err(Error::invalid("a tensor has one of name, data and base64")),
        };
        let reference =
            TensorRef { id: lease.id().into(), dtype: lease.dtype().name().to_owned(), shape: lease.shape().to_vec() };
        self.leases.push(lease);
        Ok(reference)
    }

    /// Publishes a tensor for the time of the call.
    fn publish(&self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Lease> {
        let spec = TensorSpec::new(format!("argument of {} over HTTP", self.function), dtype, shape);
        let layout = spec.layout().map_err(|error| error.in_field("shape"))?;
        let Tensors { store, holder, room_for } = self.tensors;
        let (len, charge) = (layout.size_bytes() as u64, store.grant_growing(&spec)?);
        let upload = Upload::new(&spec.name, len, charge, store, room_for)?;
        upload.add(bytes, store)?.publish(spec, layout, store, holder)
    }
}
