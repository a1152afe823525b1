//! The registered functions of a provider. Callers can call nothing else.

use super::result_cache::ResultCache;
use super::run::{RunOptions, SerialQueue};
use crate::{Arguments, Concurrency, Context, Execution, Failure, Managed, Object, Options, Value};
use cotensor_client::protocol::FunctionInfo;
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, ErrorKind, Hasher, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The implementation of a function.
pub(super) type Handler = Arc<dyn Fn(&Arguments, &Context) -> Result<Value, Failure> + Send + Sync>;

pub(super) struct Function {
    pub(super) name: Arc<str>,
    /// Unique in this process: calls of a function are not equal to those of the function that it replaced.
    number: u64,
    pub(super) options: Options,
    pub(super) handler: Handler,
    pub(super) run_options: RunOptions,
}

impl Function {
    pub(super) fn new(name: &str, options: Options, handler: Handler) -> Arc<Self> {
        let serial = (options.concurrency == Concurrency::Serialized).then(Arc::<Mutex<SerialQueue>>::default);
        let cache = options.cache.map(|cache| Arc::new(Mutex::new(ResultCache::new(cache))));
        let run_options = RunOptions { serial, cache, timeout: options.timeout };
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { name: Arc::from(name), number, options, handler, run_options })
    }

    pub(super) fn info(&self) -> FunctionInfo {
        FunctionInfo {
            name: self.name.to_string(),
            summary: self.options.summary.clone(),
            task: self.options.execution == Execution::Task,
            managed: self.options.managed,
        }
    }

    /// The content hash of a call, for functions that share runs or cache results. Hashes the tensors of the arguments.
    /// `None` for a call with an object, which may change between two calls.
    pub(super) fn key(&self, arguments: &Arguments) -> Option<ContentHash> {
        if self.run_options.cache.is_none() && !self.options.singleflight {
            return None;
        }
        let mut hasher = Hasher::new("cotensor call v1");
        hasher.number(self.number);
        arguments.hash(&mut hasher).then(|| hasher.finish())
    }

    /// Whether only the caller reads the result, so that its tensors can go into the connection's arena.
    pub(super) fn result_is_for_one_caller(&self) -> bool {
        self.run_options.cache.is_none() && !self.options.singleflight && !self.options.managed
    }

    /// Calls the function on this thread.
    pub(super) fn call(&self, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        let value = (self.handler)(arguments, context)?;
        Ok(match value {
            value @ Value::Object(_) => value,
            value if self.options.managed => Value::Object(Object::new(Kept(value))),
            value => value,
        })
    }
}

/// A managed result that is not an object. As an argument it becomes the value again.
pub(super) struct Kept(pub(super) Value);

impl Managed for Kept {
    fn call(&self, method: &str, _: &Arguments, _: &Context) -> Result<Value, Failure> {
        match method {
            "get" => Ok(self.0.clone()),
            _ => Err(Failure::no_method(method)),
        }
    }
}

/// Functions by name.
#[derive(Default)]
pub(super) struct Functions(Mutex<HashMap<Arc<str>, Arc<Function>>>);

impl Functions {
    /// # Errors
    /// `Conflict` for a registered name.
    pub(super) fn add(&self, function: &Arc<Function>) -> Result<()> {
        let mut functions = lock(&self.0);
        if functions.contains_key(&function.name) {
            let message = format!("{} is registered already", function.name);
            return Err(Error::new(ErrorKind::Conflict, message).in_field("name"));
        }
        functions.insert(Arc::clone(&function.name), Arc::clone(function));
        Ok(())
    }

    /// Replaces a function, and returns the one before.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(super) fn replace(&self, function: &Arc<Function>) -> Result<Arc<Function>> {
        let mut functions = lock(&self.0);
        let known = functions.get_mut(&function.name).ok_or_else(|| missing(&function.name))?;
        Ok(std::mem::replace(known, Arc::clone(function)))
    }

    pub(super) fn remove(&self, name: &str) -> Option<Arc<Function>> {
        lock(&self.0).remove(name)
    }

    /// # Errors
    /// `NotFound` for an unknown name.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Function>> {
        lock(&self.0).get(name).cloned().ok_or_else(|| missing(name))
    }

    pub(super) fn all(&self) -> Vec<Arc<Function>> {
        lock(&self.0).values().cloned().collect()
    }
}

fn missing(name: &str) -> Error {
    Error::not_found(format!("this provider has no function {name:?}")).in_field("function")
}
