//! Values that have no wire type of their own. Each crosses as a map with one reserved key.

use cotensor_functions::{Entries, Value};

/// Pickled bytes.
pub(super) const PICKLE: &str = "$pickle";
/// The entries of an `OrderedDict`.
pub(super) const ORDERED_DICT: &str = "$ordered";
/// The dtype and the value of a numpy scalar.
pub(super) const NUMPY_SCALAR: &str = "$numpy";
/// An attribute that is a method: it stays with its object.
pub(crate) const METHOD: &str = "$method";
/// Keys that a program's dicts must not have.
pub(super) const RESERVED_KEYS: [&str; 4] = [PICKLE, ORDERED_DICT, NUMPY_SCALAR, METHOD];

/// A map with one reserved key.
pub(crate) fn marked(key: &str, value: Value) -> Value {
    Value::Map(Entries::from([(key.to_owned(), value)]))
}
