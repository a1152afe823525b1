//! What functions are given and what they give.

use super::remote::RemoteObject;
use crate::context::Context;
use crate::failure::Failure;
use cotensor_core::{Error, Hasher};
use cotensor_store::Lease;
use indexmap::IndexMap;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Values by name, in the order in which they were written.
pub type Entries = IndexMap<String, Value>;

/// A value: plain, or a tensor, or an object. Tensors and objects may be anywhere in lists and maps; what crosses to
/// another process of them is a handle.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// Nothing.
    #[default]
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    String(String),
    /// Bytes, for small things; large ones are tensors.
    Bytes(Vec<u8>),
    /// Values in order.
    List(Vec<Value>),
    /// Values in order, for languages that tell a fixed number of them from a list.
    Tuple(Vec<Value>),
    /// Values by name.
    Map(Entries),
    /// A tensor of the daemon's store, leased to this process.
    Tensor(Arc<Lease>),
    /// An object that lives in this process.
    Object(Object),
    /// An object that lives with its provider.
    Remote(Arc<RemoteObject>),
}

impl Value {
    /// Which kind of value it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Map(_) => "map",
            Value::Tensor(_) => "tensor",
            Value::Object(_) | Value::Remote(_) => "object",
        }
    }

    /// The tensor.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_tensor(&self) -> Result<&Arc<Lease>, Error> {
        match self {
            Value::Tensor(lease) => Ok(lease),
            other => Err(other.is_not("a tensor")),
        }
    }

    /// The text.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_str(&self) -> Result<&str, Error> {
        match self {
            Value::String(text) => Ok(text),
            other => Err(other.is_not("a string")),
        }
    }

    /// The whole number.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_int(&self) -> Result<i64, Error> {
        match self {
            Value::Int(number) => Ok(*number),
            other => Err(other.is_not("an int")),
        }
    }

    /// The number, also of an int.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_float(&self) -> Result<f64, Error> {
        match self {
            Value::Float(number) => Ok(*number),
            Value::Int(number) => Ok(*number as f64),
            other => Err(other.is_not("a float")),
        }
    }

    /// The values of a list, or of a tuple.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_list(&self) -> Result<&[Value], Error> {
        match self {
            Value::List(values) | Value::Tuple(values) => Ok(values),
            other => Err(other.is_not("a list")),
        }
    }

    /// The values of a map.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_map(&self) -> Result<&Entries, Error> {
        match self {
            Value::Map(values) => Ok(values),
            other => Err(other.is_not("a map")),
        }
    }

    /// The live object of type `T`.
    ///
    /// # Errors
    /// `Invalid` for anything else, an object of another type or of another process included.
    pub fn as_object<T: Managed>(&self) -> Result<&T, Error> {
        let object = match self {
            Value::Object(object) => object.get::<T>(),
            _ => None,
        };
        object.ok_or_else(|| self.is_not(std::any::type_name::<T>()))
    }

    fn is_not(&self, wanted: &str) -> Error {
        Error::invalid(format!("{wanted} is expected, not {}", self.kind()))
    }

    /// Adds what the value is, by content: tensors by [`Lease::identity`], objects by which they are.
    pub(crate) fn hash(&self, hasher: &mut Hasher) {
        hasher.field(self.kind().as_bytes());
        match self {
            Value::Null => hasher,
            Value::Bool(value) => hasher.number(u64::from(*value)),
            Value::Int(number) => hasher.number(u64::from_ne_bytes(number.to_ne_bytes())),
            Value::Float(number) => hasher.number(number.to_bits()),
            Value::String(text) => hasher.field(text.as_bytes()),
            Value::Bytes(bytes) => hasher.field(bytes),
            Value::List(values) | Value::Tuple(values) => {
                hasher.number(values.len() as u64);
                values.iter().for_each(|value| value.hash(hasher));
                hasher
            }
            Value::Map(values) => {
                hash_named(values, hasher);
                hasher
            }
            Value::Tensor(lease) => hasher.field(lease.identity().as_bytes()),
            Value::Object(object) => hasher.number(object.number),
            Value::Remote(object) => hasher.number(object.epoch()).number(object.number()),
        };
    }
}

/// Their order makes no other value.
fn hash_named(values: &Entries, hasher: &mut Hasher) {
    let mut sorted: Vec<_> = values.iter().collect();
    sorted.sort_by_key(|(name, _)| *name);
    hasher.number(sorted.len() as u64);
    for (name, value) in sorted {
        hasher.field(name.as_bytes());
        value.hash(hasher);
    }
}

macro_rules! from {
    ($($from:ty => $kind:ident;)*) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Value::$kind(value.into())
            }
        })*
    };
}

from! {
    bool => Bool;
    i64 => Int;
    i32 => Int;
    u32 => Int;
    f64 => Float;
    f32 => Float;
    &str => String;
    String => String;
    Vec<Value> => List;
    Entries => Map;
    Lease => Tensor;
    Arc<Lease> => Tensor;
    Object => Object;
}

/// What a call brings: values by position and by name.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// By position.
    pub args: Vec<Value>,
    /// By name.
    pub kwargs: Entries,
}

impl Arguments {
    /// No arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more by position.
    #[must_use]
    pub fn arg(mut self, value: impl Into<Value>) -> Self {
        self.args.push(value.into());
        self
    }

    /// With one more by name.
    #[must_use]
    pub fn named(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.kwargs.insert(name.to_owned(), value.into());
        self
    }

    /// The argument at `position`, or the one of that name.
    ///
    /// # Errors
    /// `Invalid` naming the argument when there is neither.
    pub fn get(&self, position: usize, name: &str) -> Result<&Value, Error> {
        let found = self.args.get(position).or_else(|| self.kwargs.get(name));
        found.ok_or_else(|| Error::invalid("this argument is missing").in_field(name))
    }

    pub(crate) fn hash(&self, hasher: &mut Hasher) {
        hasher.number(self.args.len() as u64);
        self.args.iter().for_each(|value| value.hash(hasher));
        hash_named(&self.kwargs, hasher);
    }
}

/// Something that stays in the process that made it. Callers get a reference, call its methods, and pass it to other
/// functions of the same provider, which get the thing itself.
pub trait Managed: Any + Send + Sync {
    /// Calls a method. Only what is answered here can be called.
    ///
    /// # Errors
    /// The object's own; [`Failure::no_method`] for a method that it has not got.
    fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure>;
}

/// A shared [`Managed`] thing.
#[derive(Clone)]
pub struct Object {
    thing: Arc<dyn Managed>,
    /// Tells objects apart in this process, also those that are gone.
    number: u64,
}

impl Object {
    /// Shares `thing`.
    pub fn new(thing: impl Managed) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { thing: Arc::new(thing), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The thing, if it is a `T`.
    pub fn get<T: Managed>(&self) -> Option<&T> {
        (&*self.thing as &dyn Any).downcast_ref()
    }

    /// Calls a method of the thing.
    ///
    /// # Errors
    /// The thing's own.
    pub fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        self.thing.call(method, arguments, context)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_equal_whatever_their_order() {
        let map = |entries: [(&str, i64); 2]| {
            Value::Map(entries.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
        };
        let hash = |value: Value| {
            let mut hasher = Hasher::new("test");
            Arguments::new().arg(value.clone()).named("z", 1).named("a", value).hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hash(map([("b", 1), ("a", 2)])), hash(map([("a", 2), ("b", 1)])));
        assert_ne!(hash(map([("b", 1), ("a", 2)])), hash(map([("b", 2), ("a", 1)])));
    }
}
