use crate::pipeline::Samples;
use cotensor_core::{Device, Error, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// The devices on which a model may run, best first, and the precision of its weights.
#[derive(Clone)]
pub struct HardwarePreferences {
    /// Device names: `cpu`, `cuda:0`, `webgpu`, `webnn`.
    pub priority_list: Vec<String>,
    /// The name of a variant of the graphs (`fp16`, `int8`), or its number of bits (`16`). `None` takes the first variant
    /// that the model has. A model without a variant of 2, 3, 4 or 8 bits is [quantized](crate::quantize::quantized_copy) once.
    pub precision: Option<String>,
    /// Whether each matrix has a width of its own, so that all have as many bits as with the width of `precision`.
    pub mixed_precision: bool,
    /// The samples on which a quantized model is fitted; without them, texts in English, and those for mixed precision only.
    pub calibration: Option<Arc<Samples>>,
    /// Where the model's files are, if not where its name says, as for a copy of another machine's.
    pub folder: Option<PathBuf>,
}

impl Default for HardwarePreferences {
    fn default() -> Self {
        Self {
            priority_list: vec!["cpu".to_owned()],
            precision: None,
            mixed_precision: false,
            calibration: None,
            folder: None,
        }
    }
}

/// A device that was chosen from preferences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The chosen device.
    pub device: Device,
    /// The preferred devices that were skipped, each with the reason.
    pub skipped: Vec<(String, String)>,
}

impl HardwarePreferences {
    /// The first device of the list that this build can use.
    ///
    /// # Errors
    /// `Unsupported` when it can use none; the message has every reason.
    pub fn choose(&self) -> Result<DeviceChoice> {
        let mut skipped = Vec::new();
        for name in &self.priority_list {
            let reason = match name.parse::<Device>() {
                Ok(Device::Cpu) => return Ok(DeviceChoice { device: Device::Cpu, skipped }),
                Ok(Device::Cuda(_)) => "the engine of this build runs on the CPU only".to_owned(),
                Ok(other) => other.browser_only().unwrap_or("not a device of this build").to_owned(),
                Err(error) => error.to_string(),
            };
            skipped.push((name.clone(), reason));
        }
        let reasons: Vec<String> = skipped.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
        Err(Error::unsupported(format!("no preferred device can be used ({})", reasons.join("; ")))
            .in_field("priority_list"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;

    #[test]
    fn first_usable_device_is_chosen_and_others_are_skipped_with_reasons() {
        let choose = |names: &[&str]| {
            let priority_list = names.iter().map(|name| (*name).to_owned()).collect();
            HardwarePreferences { priority_list, ..HardwarePreferences::default() }.choose()
        };
        let choice = choose(&["webgpu", "tpu", "cpu", "cuda"]).unwrap();
        assert_eq!(choice.device, Device::Cpu);
        assert_eq!(choice.skipped.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["webgpu", "tpu"]);
        let error = choose(&["cuda:1"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cuda:1"));
    }
}
