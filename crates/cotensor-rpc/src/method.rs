//! The methods of a protocol, as types.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One method of a server.
pub trait Method {
    /// The name on the wire.
    const NAME: &'static str;
    /// The effect, in one sentence.
    const SUMMARY: &'static str;
    /// The parameters.
    type Params: Serialize + DeserializeOwned + JsonSchema;
    /// The result.
    type Result: Serialize + DeserializeOwned + JsonSchema;
}

/// A method for the generated documents.
pub struct MethodDescription {
    /// The name on the wire.
    pub name: &'static str,
    /// The effect.
    pub summary: &'static str,
    /// Schema of the parameters.
    pub params: fn(&mut SchemaGenerator) -> Schema,
    /// Schema of the result.
    pub result: fn(&mut SchemaGenerator) -> Schema,
    /// Deserializes parameters and serializes them again. A difference shows that they do not match the types.
    pub reencode_params: fn(Value) -> serde_json::Result<Value>,
    /// The same for a result.
    pub reencode_result: fn(Value) -> serde_json::Result<Value>,
}

/// Deserializes a value as `T` and serializes it again.
///
/// # Errors
/// The deserializer's, for a value that is not a `T`.
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
        pub const $list: &[$crate::MethodDescription] = &[$($crate::MethodDescription {
            name: $name,
            summary: <$type as $crate::Method>::SUMMARY,
            params: |generator| generator.subschema_for::<$params>(),
            result: |generator| generator.subschema_for::<$result>(),
            reencode_params: $crate::reencode::<$params>,
            reencode_result: $crate::reencode::<$result>,
        }),*];
    };
}
