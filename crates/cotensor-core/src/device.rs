use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Where a tensor's bytes lie. Written `cpu`, `cuda:0`, `webgpu`, `webnn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Device {
    /// Memory that the host addresses.
    #[default]
    Cpu,
    /// A CUDA device by its index.
    Cuda(u32),
    /// The browser's GPU.
    WebGpu,
    /// The browser's neural-network accelerator.
    WebNn,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::WebGpu => f.write_str("webgpu"),
            Device::WebNn => f.write_str("webnn"),
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
            _ => {
                name.strip_prefix("cuda:").and_then(|index| index.parse().ok()).map(Device::Cuda).ok_or_else(|| {
                    Error::invalid(format!("unknown device {name:?}; known: cpu, cuda[:N], webgpu, webnn"))
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for device in [Device::Cpu, Device::Cuda(3), Device::WebGpu, Device::WebNn] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        assert!("cuda:-1".parse::<Device>().is_err());
        assert!("tpu".parse::<Device>().is_err());
    }
}
