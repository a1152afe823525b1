//! `Value` and `Arguments`: the arguments and results of functions. `Managed` and `RemoteObject`: objects that stay with their provider.
//! These types contain each other.

use crate::TensorAllocator;
use crate::call_limit::CallLimit;
use crate::context::Context;
use crate::failure::{CallError, Failure};
use cotensor_client::protocol::provider::ObjectRef;
use cotensor_core::Error;
use cotensor_store::Lease;
use indexmap::IndexMap;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Values by name, in insertion order.
pub type Entries = IndexMap<String, Value>;

/// An argument or a result. Tensors and objects may be nested in lists and maps; messages carry references to them.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// Nothing.
    #[default]
    Null,
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    String(String),
    /// Bytes. Use a tensor for large data.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A tuple, for languages that distinguish it from a list.
    Tuple(Vec<Value>),
    /// Values by name.
    Map(Entries),
    /// A tensor of the daemon's store, leased to this process.
    Tensor(Arc<Lease>),
    /// An object of this process.
    Object(Object),
    /// An object that stays with its provider.
    Remote(Arc<RemoteObject>),
}

impl Value {
    /// The name of the value's type, for messages.
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

    /// The integer.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_int(&self) -> Result<i64, Error> {
        match self {
            Value::Int(number) => Ok(*number),
            other => Err(other.is_not("an int")),
        }
    }

    /// The truth value.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn as_bool(&self) -> Result<bool, Error> {
        match self {
            Value::Bool(truth) => Ok(*truth),
            other => Err(other.is_not("a bool")),
        }
    }

    /// The number. Converts an integer.
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

    /// The values of a list or a tuple.
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

    /// The object of type `T` in this process.
    ///
    /// # Errors
    /// `Invalid` for anything else, including an object of another type or another process.
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

/// The arguments of a call.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Named arguments.
    pub kwargs: Entries,
}

impl Arguments {
    /// No arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a positional argument.
    #[must_use]
    pub fn arg(mut self, value: impl Into<Value>) -> Self {
        self.args.push(value.into());
        self
    }

    /// Adds a named argument.
    #[must_use]
    pub fn named(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.kwargs.insert(name.to_owned(), value.into());
        self
    }

    /// The argument at `position`, or the argument named `name`.
    ///
    /// # Errors
    /// `Invalid` with the name when there is neither.
    pub fn get(&self, position: usize, name: &str) -> Result<&Value, Error> {
        let found = self.args.get(position).or_else(|| self.kwargs.get(name));
        found.ok_or_else(|| Error::invalid("this argument is missing").in_field(name))
    }
}

/// An object that stays in the process that created it. Callers get a reference, call its methods, and pass it to other
/// functions of the same provider, which get the object.
pub trait Managed: Any + Send + Sync {
    /// Calls a method.
    ///
    /// # Errors
    /// The method's failure; [`Failure::no_method`] for an unknown method.
    fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure>;
}

/// A shared reference to a [`Managed`] object.
#[derive(Clone)]
pub struct Object {
    object: Arc<dyn Managed>,
    /// Unique among all objects that this process created.
    number: u64,
}

impl Object {
    /// Shares `object`.
    pub fn new(object: impl Managed) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { object: Arc::new(object), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The object, if it is a `T`.
    pub fn get<T: Managed>(&self) -> Option<&T> {
        (&*self.object as &dyn Any).downcast_ref()
    }

    /// Calls a method of the object.
    ///
    /// # Errors
    /// The method's failure.
    pub fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        self.object.call(method, arguments, context)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({})", self.number)
    }
}

/// The connection that a reference to a remote object came over.
pub(crate) trait ObjectConnection: Send + Sync {
    /// Calls a method of an object and waits for the result until `limit`.
    fn call_object(
        self: Arc<Self>,
        object: ObjectRef,
        method: &str,
        arguments: &Arguments,
        limit: &CallLimit<'_>,
    ) -> Result<Value, CallError>;

    /// Releases the reference and waits for the provider's answer.
    fn release_object(self: Arc<Self>, object: ObjectRef) -> Result<(), CallError>;

    /// Releases the reference without waiting.
    fn notify_release(&self, object: ObjectRef);

    /// Allocates tensors of arguments.
    fn allocator(&self) -> TensorAllocator;

    /// The epoch of the provider.
    fn epoch(&self) -> u64;

    /// The number that all providers have which accept each other's objects.
    fn group(&self) -> Option<u64>;

    /// The provider's name and process, for messages.
    fn client(&self) -> &str;

    /// Whether the connection is closed.
    fn is_closed(&self) -> bool;

    /// Closes the connection.
    fn close(&self);
}

/// A reference to an object that stays with its provider. As an argument to a function of the same provider it becomes
/// the object. The reference is released once: by [`release`](RemoteObject::release), or when dropped.
pub struct RemoteObject {
    pub(super) connection: Arc<dyn ObjectConnection>,
    pub(super) reference: ObjectRef,
    pub(super) released: AtomicBool,
}
