//! A device in a message: its name, such as `cpu` or `cuda:0`.

use cotensor_core::Device;
use serde::{Deserialize, Deserializer, Serializer, de};
use std::borrow::Cow;

pub(super) fn serialize<S: Serializer>(device: &Device, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(device)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Device, D::Error> {
    Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}
