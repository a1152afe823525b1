//! The hash of arguments, by which results are cached.

use super::value::{Arguments, Entries, Value};
use cotensor_core::Hasher;

impl Value {
    /// Hashes the content: tensors by [`Lease::identity`]. False for a value with an object, which can change.
    pub(crate) fn hash(&self, hasher: &mut Hasher) -> bool {
        hasher.field(self.kind().as_bytes());
        match self {
            Value::Null => hasher,
            Value::Bool(value) => hasher.number(u64::from(*value)),
            Value::Int(number) => hasher.number(u64::from_ne_bytes(number.to_ne_bytes())),
            Value::Float(number) => hasher.number(number.to_bits()),
            Value::String(text) => hasher.field(text.as_bytes()),
            Value::Bytes(bytes) => hasher.field(bytes),
            Value::List(values) | Value::Tuple(values) => return hash_all(values, hasher),
            Value::Map(values) => return hash_named(values, hasher),
            Value::Tensor(lease) => hasher.field(lease.identity().as_bytes()),
            Value::Object(_) | Value::Remote(_) => return false,
        };
        true
    }
}

impl Arguments {
    /// Hashes the contents. False as [`Value::hash`].
    pub(crate) fn hash(&self, hasher: &mut Hasher) -> bool {
        hash_all(&self.args, hasher) && hash_named(&self.kwargs, hasher)
    }
}

/// Hashes values in their order. False as [`Value::hash`].
fn hash_all(values: &[Value], hasher: &mut Hasher) -> bool {
    hasher.number(values.len() as u64);
    values.iter().all(|value| value.hash(hasher))
}

/// Hashes named values. Their order does not matter. False as [`Value::hash`].
fn hash_named(values: &Entries, hasher: &mut Hasher) -> bool {
    let mut sorted: Vec<_> = values.iter().collect();
    sorted.sort_by_key(|(name, _)| *name);
    hasher.number(sorted.len() as u64);
    sorted.into_iter().all(|(name, value)| value.hash(hasher.field(name.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_map_ignores_order() {
        let map = |entries: [(&str, i64); 2]| {
            Value::Map(entries.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
        };
        let hash = |value: Value| {
            let mut hasher = Hasher::new("test");
            assert!(Arguments::new().arg(value.clone()).named("z", 1).named("a", value).hash(&mut hasher));
            hasher.finish()
        };
        assert_eq!(hash(map([("b", 1), ("a", 2)])), hash(map([("a", 2), ("b", 1)])));
        assert_ne!(hash(map([("b", 1), ("a", 2)])), hash(map([("b", 2), ("a", 1)])));
    }
}
