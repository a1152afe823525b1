use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The unit in which memory of CUDA devices is allocated: what the driver of every known device answers.
const CUDA_UNIT_BYTES: u64 = 2 << 20;

/// The memory space of a tensor's bytes. Written `cpu`, `cuda:0`, `webgpu`, `webnn`, `fake:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Device {
    /// Host memory: programs read its bytes by address.
    #[default]
    Cpu,
    /// A CUDA device, by its number on the machine, which all processes share.
    Cuda(u32),
    /// The browser's GPU.
    WebGpu,
    /// The browser's neural-network accelerator.
    WebNn,
    /// A simulated device, by its index. The host cannot address its memory, and no hardware is needed.
    Fake(u32),
}

impl Device {
    /// Whether this is host memory, so that segments have bytes that programs read by address.
    #[must_use]
    pub fn is_host(self) -> bool {
        self == Device::Cpu
    }

    /// The bytes that a segment of `len` bytes takes from the device's memory, and so from its budget. CUDA's driver allocates whole units
    /// of 2 MiB, and at least one.
    #[must_use]
    pub fn allocated_bytes(self, len: u64) -> u64 {
        match self {
            Device::Cuda(_) => len.max(1).checked_next_multiple_of(CUDA_UNIT_BYTES).unwrap_or(u64::MAX),
            _ => len,
        }
    }

    /// Why no program outside of a browser has the device; `None` for a device that a machine can have.
    #[must_use]
    pub fn browser_only(self) -> Option<&'static str> {
        matches!(self, Device::WebGpu | Device::WebNn).then_some("only available in a browser")
    }

    /// The device that `storage_type` names, for a tensor in memory of this device. A device that only browsers have is a
    /// preference: the tensor is in this memory instead if the result [is `browser_only`](Self::browser_only) and differs.
    ///
    /// # Errors
    /// `Invalid` for an unknown name, `Unsupported` for another device. The field is `storage_type`.
    pub fn storage(self, storage_type: &str) -> Result<Device> {
        let wanted: Device = storage_type.parse().map_err(|error: Error| error.in_field("storage_type"))?;
        if wanted == self || (self.is_host() && wanted.browser_only().is_some()) {
            return Ok(wanted);
        }
        let message = format!("this store keeps tensors on {self}, not on {wanted}");
        Err(Error::unsupported(message).in_field("storage_type"))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::WebGpu => f.write_str("webgpu"),
            Device::WebNn => f.write_str("webnn"),
            Device::Fake(index) => write!(f, "fake:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            "webgpu" => Ok(Device::WebGpu),
            "webnn" => Ok(Device::WebNn),
            "fake" => Ok(Device::Fake(0)),
            _ => {
                let (kind, index) = name.split_once(':').unwrap_or_default();
                match (kind, index.parse()) {
                    ("cuda", Ok(index)) => Ok(Device::Cuda(index)),
                    ("fake", Ok(index)) => Ok(Device::Fake(index)),
                    _ => Err(Error::invalid(format!("unknown device {name:?}; known: cpu, cuda[:N], webgpu, webnn"))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_cuda_is_allocated_in_units() {
        let (host, cuda) = (Device::Cpu, Device::Cuda(3));
        let sizes = [0, 1, 2 << 20, (2 << 20) + 1, u64::MAX];
        assert_eq!(sizes.map(|len| host.allocated_bytes(len)), sizes);
        assert_eq!(sizes.map(|len| cuda.allocated_bytes(len)), [2 << 20, 2 << 20, 2 << 20, 4 << 20, u64::MAX]);
    }

    #[test]
    fn device_names_parse_back() {
        for device in [Device::Cpu, Device::Cuda(3), Device::WebGpu, Device::WebNn, Device::Fake(1)] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for (device, wanted, found) in [
            (Device::Cpu, "webgpu", Some(Device::WebGpu)),
            (Device::Cpu, "cpu", Some(Device::Cpu)),
            (Device::Cpu, "cuda", None),
            (Device::WebGpu, "webgpu", Some(Device::WebGpu)),
            (Device::WebGpu, "webnn", None),
            (Device::Fake(0), "webgpu", None),
            (Device::Cpu, "floppy", None),
        ] {
            assert_eq!(device.storage(wanted).ok(), found, "{wanted} on {device}");
        }
        for unknown in ["cuda:-1", "cuda:", "cpu:0", "tpu", ":", ""] {
            assert!(unknown.parse::<Device>().is_err(), "{unknown:?}");
        }
    }
}
