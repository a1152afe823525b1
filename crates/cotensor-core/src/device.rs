use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The memory space of a tensor's bytes. Written `cpu`, `cuda:0`, `webgpu`, `webnn`, `fake:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Device {
    /// Host memory: programs read its bytes by address.
    #[default]
    Cpu,
    /// A CUDA device, by its index.
    Cuda(u32),
    /// The browser's GPU.
    WebGpu,
    /// The browser's neural-network accelerator.
    WebNn,
    /// A device of tests, by its index. The host cannot address its memory, and no hardware is needed.
    Fake(u32),
}

impl Device {
    /// Whether this is host memory, so that segments have bytes that programs read by address.
    #[must_use]
    pub fn is_host(self) -> bool {
        self == Device::Cpu
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
    fn device_names_parse_back() {
        for device in [Device::Cpu, Device::Cuda(3), Device::WebGpu, Device::WebNn, Device::Fake(1)] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for unknown in ["cuda:-1", "cuda:", "cpu:0", "tpu", ":", ""] {
            assert!(unknown.parse::<Device>().is_err(), "{unknown:?}");
        }
    }
}
