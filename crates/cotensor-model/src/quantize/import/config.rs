//! How a checkpoint was quantized.

use crate::folder::read_bounded;
use cotensor_core::{Error, Result};
use cotensor_quant::Width;
use serde_json::{Map, Value};
use std::path::Path;

/// Files with the configuration, and the entry in which it is.
const FILES: [(&str, Option<&str>); 3] =
    [("quantize_config.json", None), ("quant_config.json", None), ("config.json", Some("quantization_config"))];
const BYTES_MAX: u64 = 16 << 20;

/// The program's layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    Gptq {
        /// Whether zero points are stored less 1.
        is_less_one: bool,
    },
    Awq,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gptq { .. } => "gptq",
            Self::Awq => "awq",
        }
    }
}

/// The configuration of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CheckpointConfig {
    pub(super) method: Method,
    pub(super) width: Width,
    /// Columns that share a scale; `None` for all of a row.
    pub(super) group: Option<usize>,
    /// Whether columns may be in another order, which each layer then has to state.
    pub(super) has_order: bool,
}

impl CheckpointConfig {
    /// That of the checkpoint in a folder.
    ///
    /// # Errors
    /// `NotFound` for a folder without one; `Corrupt` or `Unsupported`, with the field, for a layout that is not imported.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let mut known: Option<(Self, &str)> = None;
        for (name, entry) in FILES {
            let path = folder.join(name);
            if !path.is_file() {
                continue;
            }
            let value: Value = serde_json::from_slice(&read_bounded(&path, BYTES_MAX)?)
                .map_err(|error| Error::corrupt(error.to_string()).in_file(&path))?;
            let found = match entry {
                Some(entry) => value.get(entry),
                None => Some(&value),
            };
            let Some(Value::Object(found)) = found else { continue };
            let found = Self::of(found).map_err(|error| error.in_file(&path))?;
            match known {
                Some((first, other)) if first != found => {
                    let message = format!("its bits, groups or layout are not those of {other}");
                    return Err(Error::corrupt(message).in_field("quantization_config").in_file(path));
                }
                Some(_) => {}
                None => known = Some((found, name)),
            }
        }
        if let Some((found, _)) = known {
            return Ok(found);
        }
        let message =
            "no quantize_config.json, and no quantization_config in config.json: how its weights are packed is unknown";
        Err(Error::not_found(message).in_file(folder))
    }

    fn of(config: &Map<String, Value>) -> Result<Self> {
        let refused = |field: &str, message: String| Error::unsupported(message).in_field(field);
        let text = |field: &str| config.get(field).and_then(Value::as_str).map(str::to_ascii_lowercase);
        let number = |fields: [&str; 2]| {
            let found = fields.iter().find_map(|field| config.get(*field));
            let found = found.and_then(Value::as_i64);
            found.ok_or_else(|| Error::corrupt("a number is missing").in_field(fields[0]))
        };
        if config
            .get("dynamic")
            .is_some_and(|value| !value.is_null() && value.as_object().is_none_or(|of| !of.is_empty()))
        {
            return Err(refused("dynamic", "layers with settings of their own are not imported".to_owned()));
        }
        let method = match text("quant_method").as_deref() {
            Some("awq") => {
                let version = text("version").unwrap_or_else(|| "gemm".to_owned());
                if version != "gemm" {
                    return Err(refused("version", format!("{version:?}; the layout \"gemm\" is imported")));
                }
                Method::Awq
            }
            Some("gptq") | None => {
                let format = text("checkpoint_format").or_else(|| text("format")).unwrap_or_else(|| "gptq".to_owned());
                match format.as_str() {
                    "gptq" => Method::Gptq { is_less_one: true },
                    "gptq_v2" => Method::Gptq { is_less_one: false },
                    other => {
                        return Err(refused("checkpoint_format", format!("{other:?}; gptq and gptq_v2 are imported")));
                    }
                }
            }
            Some(other) => return Err(refused("quant_method", format!("{other:?}; gptq and awq are imported"))),
        };
        let bits = number(["bits", "w_bit"])?;
        let width = u32::try_from(bits).ok().and_then(|bits| Width::of(bits).ok());
        let width = width.ok_or_else(|| refused("bits", format!("{bits} bits; 2, 3, 4 and 8 are imported")))?;
        if method == Method::Awq && width != Width::Four {
            return Err(refused("bits", format!("{bits} bits; AWQ has 4")));
        }
        let group = match number(["group_size", "q_group_size"])? {
            -1 => None,
            group @ 1.. => Some(group as usize),
            group => return Err(refused("group_size", format!("{group}"))),
        };
        let has_order = config.get("desc_act").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { method, width, group, has_order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CheckpointConfig> {
        let Value::Object(config) = serde_json::from_str(text).unwrap() else { panic!("an object") };
        CheckpointConfig::of(&config)
    }

    #[test]
    fn layouts_are_recognized_or_refused_by_field() {
        let found = read(r#"{"bits": 3, "group_size": -1, "desc_act": true}"#).unwrap();
        assert_eq!(found.method, Method::Gptq { is_less_one: true });
        assert_eq!((found.width, found.group, found.has_order), (Width::Three, None, true));
        let found =
            read(r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"}"#).unwrap();
        assert_eq!((found.method, found.group), (Method::Gptq { is_less_one: false }, Some(128)));
        let found = read(r#"{"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}"#).unwrap();
        assert_eq!((found.method, found.width), (Method::Awq, Width::Four));
        for (text, field) in [
            (r#"{"quant_method": "bitsandbytes"}"#, "quant_method"),
            (r#"{"bits": 5, "group_size": 32}"#, "bits"),
            (r#"{"bits": "4", "group_size": 32}"#, "bits"),
            (r#"{"group_size": 32}"#, "bits"),
            (r#"{"bits": 4}"#, "group_size"),
            (r#"{"bits": 4, "group_size": 0}"#, "group_size"),
            (r#"{"bits": 4, "group_size": -2}"#, "group_size"),
            (r#"{"bits": 4, "group_size": 32, "checkpoint_format": "marlin"}"#, "checkpoint_format"),
            (r#"{"bits": 4, "group_size": 32, "dynamic": {"-:lm_head": {}}}"#, "dynamic"),
            (r#"{"quant_method": "awq", "bits": 8, "group_size": 32}"#, "bits"),
            (r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}"#, "version"),
        ] {
            assert_eq!(read(text).unwrap_err().field(), Some(field), "{text}");
        }
    }
}
