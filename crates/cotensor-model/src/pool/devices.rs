use cotensor_core::{Device, Error, Result};

/// The devices that a model may run on, best first.
#[derive(Clone, Debug)]
pub struct HardwarePreferences {
    /// Device names: `cpu`, `cuda:0`, `webgpu`, `webnn`.
    pub priority_list: Vec<String>,
}

impl Default for HardwarePreferences {
    fn default() -> Self {
        Self { priority_list: vec!["cpu".to_owned()] }
    }
}

/// The outcome of choosing a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device that will be used.
    pub device: Device,
    /// Preferred devices that were passed over, each with the reason.
    pub skipped: Vec<(String, String)>,
}

impl HardwarePreferences {
    /// The first device of the list that can be used here.
    ///
    /// # Errors
    /// `Unsupported` when none can, with every reason.
    pub fn choose(&self) -> Result<DeviceChoice> {
        let mut skipped = Vec::new();
        for name in &self.priority_list {
            let reason = match name.parse::<Device>() {
                Ok(Device::Cpu) => return Ok(DeviceChoice { device: Device::Cpu, skipped }),
                Ok(Device::Cuda(_)) => "the engine of this build runs on the CPU only".to_owned(),
                Ok(_) => "only available in a browser".to_owned(),
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
    fn devices_by_preference_with_reasons() {
        let choose = |names: &[&str]| {
            HardwarePreferences { priority_list: names.iter().map(|name| (*name).to_owned()).collect() }.choose()
        };
        let choice = choose(&["webgpu", "tpu", "cpu", "cuda"]).unwrap();
        assert_eq!(choice.device, Device::Cpu);
        assert_eq!(choice.skipped.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["webgpu", "tpu"]);
        let error = choose(&["cuda:1"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cuda:1"));
    }
}
