//! The devices that a process sees, and their numbers on the machine.
//!
//! A driver numbers the devices of each process anew: `CUDA_VISIBLE_DEVICES` selects and reorders them. All processes of a store must
//! mean the same memory by `cuda:1`. A device is identified by its UUID, and its number on the machine follows from that.

use super::driver::CudaDriver;
use super::functions::{AllocationProperties, MINIMUM};
use cotensor_core::{Device, Error, Result};
use std::ffi::{CStr, OsString, c_int};
use std::path::Path;

/// The variable with the UUIDs of the machine's devices, separated by commas: the first is `cuda:0`.
pub const DEVICES_VARIABLE: &str = "COTENSOR_CUDA_DEVICES";
/// A folder for each device, in whose file `information` NVIDIA's driver states its UUID and the number N of `/dev/nvidiaN`.
const GPUS: &str = "/proc/driver/nvidia/gpus";
/// Variables by which a process gets other devices, or in another order, than the machine has.
const RENUMBERING: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
];
/// The most bytes of a device's name.
const NAME_BYTES_MAX: usize = 256;
/// The most bytes of a file `information` that are read.
const INFORMATION_BYTES_MAX: u64 = 64 << 10;

/// A device that this process can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Its number in this process, as the driver and other libraries of the process count.
    pub ordinal: u32,
    /// Its number on the machine, the same in all processes: N of `cuda:N` in a store.
    pub number: u32,
    /// Its identity, such as `GPU-01234567-89ab-cdef-0123-456789abcdef`. A part of a device (MIG) has one of its own.
    pub uuid: String,
    /// The name of the model.
    pub name: String,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Allocations are multiples of this many bytes.
    pub granularity: usize,
    /// The driver's handle, for functions that take one instead of the ordinal.
    pub(super) handle: c_int,
}

impl CudaDevice {
    /// The device in a store.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::Cuda(self.number)
    }
}

impl CudaDriver {
    /// The devices that this process can use, by their numbers in it.
    ///
    /// # Errors
    /// Without such a device, the error of the first one of [`each_device`](Self::each_device).
    pub fn devices(&self) -> Result<Vec<CudaDevice>> {
        let (mut usable, mut unusable) = (Vec::new(), None);
        for device in self.each_device()? {
            match device {
                Ok(device) => usable.push(device),
                Err(error) => unusable = unusable.or(Some(error)),
            }
        }
        match unusable {
            Some(error) if usable.is_empty() => Err(error),
            _ => Ok(usable),
        }
    }

    /// The devices that the driver shows this process, by their numbers in it. A device that the process cannot use has its error:
    /// `Unsupported` when its number on the machine is not known, when another one has the same, or when the driver allocates its memory in
    /// other units than 2 MiB; `Io`.
    ///
    /// # Errors
    /// `Unsupported` in a forked process; `Io` when the driver cannot count its devices.
    pub fn each_device(&self) -> Result<Vec<Result<CudaDevice>>> {
        self.check_process()?;
        let mut count = 0;
        // SAFETY: `count` outlives the call (see the module `cuda`).
        self.check("counting devices", unsafe { (self.functions.device_count)(&raw mut count) })?;
        let numbering = Numbering::of_this_process();
        let mut devices: Vec<_> = (0..count).map(|ordinal| self.describe_device(ordinal, &numbering)).collect();
        let numbers: Vec<u32> = devices.iter().flatten().map(|device| device.number).collect();
        for device in &mut devices {
            let is_shared =
                |found: &&CudaDevice| numbers.iter().filter(|number| **number == found.number).nth(1).is_some();
            if let Some(found) = device.as_ref().ok().filter(is_shared) {
                let message = format!("{} and another device are both {}; {}", found.uuid, found.device(), advice());
                *device = Err(Error::unsupported(message));
            }
        }
        Ok(devices)
    }

    fn describe_device(&self, ordinal: c_int, numbering: &Numbering) -> Result<CudaDevice> {
        let (mut handle, mut uuid, mut bytes, mut name) = (0, [0; 16], 0, [0; NAME_BYTES_MAX]);
        let (mut granularity, properties) = (0, AllocationProperties::of(ordinal));
        let what = format_args!("describing device {ordinal}");
        // SAFETY: `handle` outlives the call (see the module `cuda`).
        self.check(what, unsafe { (self.functions.device)(&raw mut handle, ordinal) })?;
        // SAFETY: all values outlive their calls; `name` has the length that the driver gets (see the module `cuda`).
        let codes = unsafe {
            [
                (self.functions.device_name)(name.as_mut_ptr().cast(), NAME_BYTES_MAX as c_int, handle),
                (self.functions.device_uuid)(&raw mut uuid, handle),
                (self.functions.device_bytes)(&raw mut bytes, handle),
                (self.functions.granularity)(&raw mut granularity, &raw const properties, MINIMUM),
            ]
        };
        codes.into_iter().try_for_each(|code| self.check(what, code))?;
        let (uuid, name) = (uuid_text(uuid), CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy());
        let unit = Device::Cuda(0).allocated_bytes(1);
        if granularity == 0 || !unit.is_multiple_of(granularity as u64) {
            let message = format!("{name} allocates units of {granularity} bytes, and stores count units of {unit}");
            return Err(Error::unsupported(message));
        }
        let ordinal = ordinal.unsigned_abs();
        let number = numbering.number(&uuid, ordinal)?;
        Ok(CudaDevice { ordinal, number, uuid, name: name.into_owned(), bytes: bytes as u64, granularity, handle })
    }
}

/// The number on the machine of the device with a UUID, for a program that does not know its number in CUDA. None where neither the user's list
/// nor the driver's files have it.
pub(in crate::device) fn number_of(uuid: &str) -> Option<u32> {
    Numbering::of_this_process().machine_number(uuid)
}

/// How a device's number on the machine is found.
struct Numbering {
    /// UUIDs in the order of their numbers.
    listed: Option<String>,
    /// UUIDs and numbers, as NVIDIA's driver has them.
    known: Vec<(String, u32)>,
    /// A variable that renumbers the devices of this process.
    renumbered: Option<&'static str>,
}

impl Numbering {
    fn of_this_process() -> Self {
        let listed = std::env::var(DEVICES_VARIABLE).ok().filter(|listed| !listed.trim().is_empty());
        Self { listed, known: known(Path::new(GPUS)), renumbered: renumbered(|name| std::env::var_os(name)) }
    }

    /// By the user's list; without one, by the driver's files.
    fn machine_number(&self, uuid: &str) -> Option<u32> {
        match &self.listed {
            Some(listed) => listed.split(',').position(|entry| is_same(entry.trim(), uuid))?.try_into().ok(),
            None => self.known.iter().find(|(known, _)| is_same(known, uuid)).map(|(_, number)| *number),
        }
    }

    /// By the user's list; else by the driver's files; else the number of the process, if there are no such files and no variable changes
    /// that. A device that is not in the driver's files is a part of one (MIG), or a container has other files.
    fn number(&self, uuid: &str, ordinal: u32) -> Result<u32> {
        if let Some(number) = self.machine_number(uuid) {
            return Ok(number);
        }
        if self.listed.is_some() {
            return Err(Error::unsupported(format!("{uuid} is not in the list")).in_field(DEVICES_VARIABLE));
        }
        let reason = match self.renumbered {
            None if self.known.is_empty() => return Ok(ordinal),
            None => format!("{GPUS} has other devices than {uuid}, which may be a part of one"),
            Some(variable) => format!("{variable} renumbers devices, and {GPUS} does not have {uuid}"),
        };
        Err(Error::unsupported(format!("{reason}; {}", advice())))
    }
}

/// The first variable that renumbers devices. A container with all devices has them as the machine has.
fn renumbered(value: impl Fn(&str) -> Option<OsString>) -> Option<&'static str> {
    let renumbers = |name: &str| value(name).is_some_and(|value| name != "NVIDIA_VISIBLE_DEVICES" || value != "all");
    RENUMBERING.into_iter().find(|name| renumbers(name))
}

fn advice() -> String {
    format!("list the UUIDs of the machine's devices, in the same order for all programs, in {DEVICES_VARIABLE}")
}

/// The UUIDs and numbers of devices that the folder of NVIDIA's driver has.
fn known(folder: &Path) -> Vec<(String, u32)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let known = entries.flatten().filter_map(|entry| {
        let file = std::fs::File::open(entry.path().join("information")).ok()?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(file, INFORMATION_BYTES_MAX), &mut text).ok()?;
        let value =
            |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches(':').trim()));
        Some((value("GPU UUID")?.to_owned(), value("Device Minor")?.parse().ok()?))
    });
    known.collect()
}

/// Whether two UUIDs are equal, whatever their prefixes.
fn is_same(one: &str, other: &str) -> bool {
    let digits = |uuid: &str| -> String {
        let number = uuid.trim_start_matches("GPU-").trim_start_matches("MIG-");
        number.chars().filter(|character| *character != '-').map(|character| character.to_ascii_lowercase()).collect()
    };
    digits(one) == digits(other)
}

fn uuid_text(uuid: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in uuid.into_iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;

    const UUID: &str = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";

    #[test]
    fn uuids_are_written_as_nvidia_does() {
        assert_eq!(uuid_text(std::array::from_fn(|index| index as u8)), UUID);
        assert!(is_same(UUID, "00010203-0405-0607-0809-0A0B0C0D0E0F") && is_same(&UUID.replace("GPU", "MIG"), UUID));
        assert!(!is_same(UUID, "GPU-00010203"));
    }

    #[test]
    fn number_is_found_by_the_list_then_the_driver_then_the_process() {
        let folder = tempfile::tempdir().unwrap();
        for (bus, text) in [
            ("0000:01:00.0", format!("Model: \t\t X\nGPU UUID: \t {UUID}\nDevice Minor: \t 5\n")),
            ("b", String::new()),
        ] {
            std::fs::create_dir(folder.path().join(bus)).unwrap();
            std::fs::write(folder.path().join(bus).join("information"), text).unwrap();
        }
        let known = known(folder.path());
        assert_eq!(known, [(UUID.to_owned(), 5)]);
        let mut numbering = Numbering { listed: None, known, renumbered: Some("CUDA_VISIBLE_DEVICES") };
        assert_eq!(numbering.number(UUID, 0).unwrap(), 5);
        numbering.listed = Some(format!("GPU-ffff, {UUID}"));
        assert_eq!((numbering.number(UUID, 0).unwrap(), numbering.machine_number(UUID)), (1, Some(1)));
        let error = numbering.number("GPU-eeee", 0).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some(DEVICES_VARIABLE)));
        (numbering.listed, numbering.known) = (None, Vec::new());
        let error = numbering.number(UUID, 0).unwrap_err().to_string();
        assert!(error.contains("CUDA_VISIBLE_DEVICES") && error.contains(DEVICES_VARIABLE), "{error}");
        numbering.renumbered = None;
        assert_eq!((numbering.number(UUID, 3).unwrap(), numbering.machine_number(UUID)), (3, None));
        // The driver's files have the device that this one is a part of.
        numbering.known = vec![("GPU-ffff".to_owned(), 0)];
        let error = numbering.number(&UUID.replace("GPU", "MIG"), 0).unwrap_err().to_string();
        assert!(error.contains("a part of one") && error.contains(DEVICES_VARIABLE), "{error}");
    }

    #[test]
    fn containers_with_some_devices_renumber_them() {
        let with = |wanted: &'static str, value: &'static str| {
            renumbered(move |name| (name == wanted).then(|| OsString::from(value)))
        };
        assert_eq!(with("NVIDIA_VISIBLE_DEVICES", "all"), None);
        assert_eq!(with("NVIDIA_VISIBLE_DEVICES", "1"), Some("NVIDIA_VISIBLE_DEVICES"));
        assert_eq!(with("CUDA_VISIBLE_DEVICES", "all"), Some("CUDA_VISIBLE_DEVICES"));
        assert_eq!(with("HOME", "1"), None);
    }
}
