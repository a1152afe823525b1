//! The rank of this process, as launchers of distributed programs set it.

use cotensor_core::{Device, Error, Result};

/// The variables of a launcher.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rank {
    /// `RANK`.
    pub(crate) rank: Option<u16>,
    /// `GPUS_PER_NODE`: 1 or more.
    pub(crate) gpus_per_node: Option<u16>,
}

impl Rank {
    /// Reads the variables.
    ///
    /// # Errors
    /// `Invalid` naming the variable.
    pub(crate) fn of_this_process() -> Result<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        Self::parse(variable("RANK").as_deref(), variable("GPUS_PER_NODE").as_deref())
    }

    /// # Errors
    /// As [`of_this_process`](Self::of_this_process).
    pub(crate) fn parse(rank: Option<&str>, gpus_per_node: Option<&str>) -> Result<Self> {
        let number = |name: &str, value: Option<&str>| -> Result<Option<u16>> {
            let wrong =
                |value: &str| Error::invalid(format!("{value:?} is not a number from 0 to 65535")).in_field(name);
            value.map(|value| value.trim().parse().map_err(|_| wrong(value))).transpose()
        };
        let (rank, gpus_per_node) = (number("RANK", rank)?, number("GPUS_PER_NODE", gpus_per_node)?);
        if gpus_per_node == Some(0) {
            return Err(Error::invalid("a machine has at least one device").in_field("GPUS_PER_NODE"));
        }
        Ok(Self { rank, gpus_per_node })
    }

    /// The device of a program. Ranks count on through all machines, devices on each one.
    fn device(self) -> Device {
        let rank = self.rank.unwrap_or(0);
        Device::Cuda(self.gpus_per_node.map_or(rank, |count| rank % count).into())
    }

    /// The devices of a daemon: that of its rank, or all of the machine.
    fn devices(self) -> Vec<Device> {
        let all = |count: u16| (0..count).map(|number| Device::Cuda(number.into())).collect();
        self.gpus_per_node.map_or_else(|| vec![self.device()], all)
    }
}

/// The CUDA device that a program means by `cuda`: the one of its `RANK`, modulo `GPUS_PER_NODE` if that is set; `cuda:0` without `RANK`.
///
/// # Errors
/// `Invalid` naming the variable.
pub fn device_of_rank() -> Result<Device> {
    Ok(Rank::of_this_process()?.device())
}

/// The CUDA devices that a daemon means by `cuda`: all `GPUS_PER_NODE` ones, because one daemon serves all ranks of the machine then; else
/// [the one of its rank](device_of_rank).
///
/// # Errors
/// As [`device_of_rank`].
pub fn devices_of_daemon() -> Result<Vec<Device>> {
    Ok(Rank::of_this_process()?.devices())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_a_device() {
        let devices = |rank, gpus| {
            let rank = Rank::parse(rank, gpus).unwrap();
            (rank.device().to_string(), rank.devices().iter().map(Device::to_string).collect::<Vec<_>>().join(" "))
        };
        let expected = |device: &str, all: &str| (device.to_owned(), all.to_owned());
        assert_eq!(devices(None, None), expected("cuda:0", "cuda:0"));
        assert_eq!(devices(Some("3"), None), expected("cuda:3", "cuda:3"));
        assert_eq!(devices(Some("3"), Some("4")), expected("cuda:3", "cuda:0 cuda:1 cuda:2 cuda:3"));
        assert_eq!(
            devices(Some("9"), Some("4")),
            expected("cuda:1", "cuda:0 cuda:1 cuda:2 cuda:3"),
            "a second machine"
        );
        assert_eq!(devices(None, Some("2")), expected("cuda:0", "cuda:0 cuda:1"));
    }
}
