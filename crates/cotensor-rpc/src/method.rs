//! What a server answers, as types.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One method of a server.
pub trait Method {
    /// Its name on the wire.
    const NAME: &'static str;
    /// What it does, in a sentence.
    const SUMMARY: &'static str;
    /// What it is given.
    type Params: Serialize + DeserializeOwned + JsonSchema;
    /// What it gives.
    type Result: Serialize + DeserializeOwned + JsonSchema;
}

/// A method as documents describe it.
pub struct Described {
    /// Its name on the wire.
    pub name: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Schema of its parameters.
    pub params: fn(&mut SchemaGenerator) -> Schema,
    /// Schema of its result.
    pub result: fn(&mut SchemaGenerator) -> Schema,
    /// Reads parameters and writes them again: what is lost, or refused, is not what the types say.
    pub params_again: fn(Value) -> serde_json::Result<Value>,
    /// The same for a result.
    pub result_again: fn(Value) -> serde_json::Result<Value>,
}

/// Reads a value as `T` and writes it again.
///
/// # Errors
/// The reader's, for a value that is no `T`.
pub fn reencode<T: Serialize + DeserializeOwned>(value: Value) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_value::<T>(value)?)
}

/// Declares methods, and a list of their descriptions.
#[macro_export]
macro_rules! methods {
    ($list:ident: $($(#[doc = $summary:literal])+ $type:ident $name:literal: $params:ty => $result:ty;)*) => {
        $(
            $(#[doc = $summary])+
            #[derive(Debug)]
            pub struct $type;

            impl $crate::Method for $type {
                const NAME: &'static str = $name;
                const SUMMARY: &'static str = concat!($($summary),+);
                type Params = $params;
                type Result = $result;
            }
        )*

        /// Every method, in the order of the documentation.
        pub const $list: &[$crate::Described] = &[$($crate::Described {
            name: $name,
            summary: <$type as $crate::Method>::SUMMARY,
            params: |generator| generator.subschema_for::<$params>(),
            result: |generator| generator.subschema_for::<$result>(),
            params_again: $crate::reencode::<$params>,
            result_again: $crate::reencode::<$result>,
        }),*];
    };
}
