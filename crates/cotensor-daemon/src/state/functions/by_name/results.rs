//! The result of a call: the JSON of a provider's message with the elements of its tensors.

use super::elements;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cotensor_client::protocol::provider::{ArenaTensorRef, OpenSlabParams, TensorRef};
use cotensor_core::{DType, Error, Layout, Result};
use cotensor_memory::{Guarantee, check_sealed};
use cotensor_store::{CopyReason, Holder, LocalStore, StoreReports, TensorStore};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// The most elements that are written as numbers; others are base64.
const LISTED_MAX: usize = 4096;
/// The most bytes of all tensors of a result.
const BYTES_MAX: usize = 8 << 20;
/// The most slabs that one call opens.
const SLABS_MAX: usize = 64;

/// Memory of a provider, in which small tensors of results are.
#[derive(Default)]
pub(super) struct Slabs(HashMap<u64, File>);

impl Slabs {
    /// Keeps a slab's descriptor. It is read and never mapped. Anything else than sealed memory is dropped.
    pub(super) fn add(&mut self, OpenSlabParams { slab, bytes, .. }: OpenSlabParams, fd: OwnedFd) {
        let file = File::from(fd);
        let is_sealed =
            usize::try_from(bytes).is_ok_and(|len| check_sealed(&file, len, Guarantee::ProducerOnly).is_ok());
        if is_sealed && self.0.len() < SLABS_MAX {
            // Each number is used once.
            self.0.entry(slab).or_insert(file);
        }
    }
}

/// Reads the values of one result.
pub(super) struct Results<'a> {
    store: &'a LocalStore,
    holder: &'a Holder,
    slabs: &'a Slabs,
    /// Bytes that further tensors may have.
    left: Cell<usize>,
}

impl<'a> Results<'a> {
    pub(super) fn new(store: &'a LocalStore, holder: &'a Holder, slabs: &'a Slabs) -> Self {
        Self { store, holder, slabs, left: Cell::new(BYTES_MAX) }
    }

    /// The value for the client. A tuple is a list.
    ///
    /// # Errors
    /// `Unsupported` for an object that stays with its provider and for tensors of more than 8 MiB; `Corrupt` for a value
    /// that no provider makes.
    pub(super) fn read(&self, value: Value) -> Result<Value> {
        match value {
            Value::Array(values) => self.list(values).map(Value::Array),
            Value::Object(entries) if entries.len() == 1 && entries.keys().all(|key| key.starts_with('$')) => {
                entries.into_iter().next().map_or(Ok(Value::Null), |(form, value)| self.special(&form, value))
            }
            Value::Object(entries) => {
                let read = |(name, value)| Ok((name, self.read(value)?));
                entries.into_iter().map(read).collect::<Result<Map<_, _>>>().map(Value::Object)
            }
            plain => Ok(plain),
        }
    }

    fn list(&self, values: Vec<Value>) -> Result<Vec<Value>> {
        values.into_iter().map(|value| self.read(value)).collect()
    }

    fn special(&self, form: &str, value: Value) -> Result<Value> {
        match (form, value) {
            ("$tuple", Value::Array(values)) => self.list(values).map(Value::Array),
            ("$map", Value::Array(pairs)) => Ok(json!({"$map": self.list(pairs)?})),
            ("$float" | "$bytes", Value::String(text)) => Ok(json!({form: text})),
            ("$bytes", tensor) => Ok(json!({"$bytes": self.read(tensor)?})),
            ("$text", tensor) => {
                let text = String::from_utf8(self.long(tensor)?);
                text.map(Value::String).map_err(|_| Error::corrupt("a text of the result is not UTF-8"))
            }
            ("$tensor", value) => {
                let (dtype, shape, bytes, name) = self.stored(value)?;
                Ok(tensor(dtype, &shape, &bytes, Some(&name)))
            }
            ("$arena", value) => {
                let (dtype, shape, bytes) = self.in_slab(value)?;
                Ok(tensor(dtype, &shape, &bytes, None))
            }
            ("$object", _) => Err(Error::unsupported(
                "the result is an object that stays with its provider: call the function over the Unix socket, or let it \
                 return tensors",
            )),
            (other, _) => Err(Error::corrupt(format!("the result has a value of the unknown form {other:?}"))),
        }
    }

    /// The bytes of a long text, which are a tensor.
    fn long(&self, value: Value) -> Result<Vec<u8>> {
        let unknown = || Error::corrupt("the result has a long text in an unknown form");
        let Value::Object(entries) = value else { return Err(unknown()) };
        match entries.into_iter().next() {
            Some((form, value)) if form == "$tensor" => self.stored(value).map(|(_, _, bytes, _)| bytes),
            Some((form, value)) if form == "$arena" => self.in_slab(value).map(|(.., bytes)| bytes),
            _ => Err(unknown()),
        }
    }

    /// A tensor of the store and its name, with the dtype and the shape that the provider gives it: it may be a view.
    fn stored(&self, value: Value) -> Result<(DType, Vec<usize>, Vec<u8>, String)> {
        let TensorRef { id, dtype, shape } = parsed(value)?;
        let dtype: DType = dtype.parse()?;
        let lease = self.store.lease(id.into(), self.holder)?;
        if !lease.device().is_host() || !lease.layout().is_contiguous() {
            let message =
                format!("{:?} is on {} or strided: its elements cannot be sent", lease.name(), lease.device());
            return Err(Error::unsupported(message));
        }
        let range = lease.layout().byte_range();
        if Layout::contiguous(dtype, &shape)?.size_bytes() != range.len() {
            let message =
                format!("{:?} has {} bytes, and not those of {} {shape:?}", lease.name(), range.len(), dtype.name());
            return Err(Error::corrupt(message));
        }
        let mut bytes = self.room(range.len())?;
        lease.segment().read_at(range.start, &mut bytes)?;
        self.store.record_copy(lease.name(), CopyReason::Network, bytes.len());
        Ok((dtype, shape, bytes, lease.name().to_owned()))
    }

    /// A tensor in memory of the connection.
    fn in_slab(&self, value: Value) -> Result<(DType, Vec<usize>, Vec<u8>)> {
        let ArenaTensorRef { range, name, dtype, shape } = parsed(value)?;
        let dtype: DType = dtype.parse()?;
        let mut bytes = self.room(Layout::contiguous(dtype, &shape)?.size_bytes())?;
        let file = self.slabs.0.get(&range.slab);
        let file = file.ok_or_else(|| Error::corrupt("the result is in memory that the provider did not open"))?;
        let read = file.read_exact_at(&mut bytes, range.offset);
        read.map_err(|error| Error::io("reading a tensor of the result", &error).in_field(name))?;
        Ok((dtype, shape, bytes))
    }

    /// Memory for the bytes of a tensor.
    fn room(&self, bytes: usize) -> Result<Vec<u8>> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            let message = "the tensors of the result have more than 8 MiB: let the function publish them under names, and read \
                           /tensors/NAME";
            Error::unsupported(message)
        })?;
        self.left.set(left);
        Ok(vec![0; bytes])
    }
}

fn parsed<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| Error::corrupt(format!("the result has a wrong tensor: {error}")))
}

/// A tensor for the client: numbers, or base64 of the elements. A tensor of the store has its name.
fn tensor(dtype: DType, shape: &[usize], bytes: &[u8], name: Option<&str>) -> Value {
    // Without elements, too, a shape is written as so many lists.
    let count: usize = shape.iter().map(|&dim| dim.max(1)).product();
    let lists = (count <= LISTED_MAX).then(|| elements::to_lists(dtype, shape, bytes)).flatten();
    let mut about = json!({"dtype": dtype.name(), "shape": shape});
    match lists {
        Some(lists) => about["data"] = lists,
        None => about["base64"] = BASE64_STANDARD.encode(bytes).into(),
    }
    if let Some(name) = name {
        about["name"] = name.into();
    }
    json!({"$tensor": about})
}
