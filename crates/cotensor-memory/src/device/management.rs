//! What programs take of the memory of NVIDIA's GPUs, by the driver's management library (NVML). Unlike CUDA, it opens no context, and so
//! takes no memory of a GPU.
//!
//! **Unsafe** code calls the library. Each block relies on two facts: the library is NVML, which its user has named or installed; the types
//! here are those of `nvml.h`.

use super::cuda::number_of;
use cotensor_core::{Device, Error, ErrorKind, Result};
use libloading::Library;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint, c_ulonglong};
use std::path::Path;
use std::ptr::null_mut;

/// The variable with the path of the library.
pub const MANAGEMENT_VARIABLE: &str = "COTENSOR_NVML";
/// The library that the driver installs.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const INSUFFICIENT_SIZE: u32 = 7;
/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;
/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const UUID_BYTES_MAX: usize = 96;
/// The most processes of a GPU that are read.
const PROCESSES_MAX: u32 = 4096;

/// The memory of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuUsage {
    /// The device in stores, if its number on the machine is known.
    pub device: Option<Device>,
    /// Its UUID.
    pub uuid: String,
    /// Bytes of the GPU.
    pub total_bytes: u64,
    /// Bytes that programs and stores have, without those that the driver keeps for itself.
    pub used_bytes: u64,
    /// Bytes of each process, where the driver tells them; none for all if it does not name processes.
    pub processes: Option<BTreeMap<u32, Option<u64>>>,
}

impl GpuUsage {
    /// The used bytes that the driver attributes to no process: mostly tensors of a store, which descriptors keep. None where the driver does
    /// not tell the bytes of each process.
    #[must_use]
    pub fn unattributed_bytes(&self) -> Option<u64> {
        let known: Option<u64> = self.processes.as_ref()?.values().copied().sum();
        Some(self.used_bytes.saturating_sub(known?))
    }
}

/// Reads the memory of all GPUs by the library that [`MANAGEMENT_VARIABLE`] names, else the installed one. A GPU that cannot be read is an error
/// among the others.
///
/// # Errors
/// `NotFound` without the library, `Io` for one that does not work.
pub fn gpu_usage() -> Result<Vec<Result<GpuUsage>>> {
    let named = std::env::var_os(MANAGEMENT_VARIABLE).filter(|path| !path.is_empty());
    gpu_usage_by(Path::new(named.as_deref().unwrap_or(LIBRARY.as_ref())))
}

/// As [`gpu_usage`], by the library at `path`.
///
/// # Errors
/// As [`gpu_usage`].
pub fn gpu_usage_by(path: &Path) -> Result<Vec<Result<GpuUsage>>> {
    let management = Management::open(path)?;
    let mut count = 0;
    // SAFETY: `count` outlives the call (see the module).
    management.check("counting GPUs", unsafe { (management.functions.count)(&raw mut count) })?;
    Ok((0..count)
        .map(|index| management.usage(index).map_err(|error| error.prefixed(format!("GPU {index}"))))
        .collect())
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Default)]
struct DetailedMemory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which the functions with the suffix 3 write, too.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_bytes: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type ListProcesses = unsafe extern "C" fn(usize, *mut c_uint, *mut ProcessInfo) -> u32;

/// The functions. A handle of a GPU is a pointer that only the library reads.
struct Functions {
    shutdown: unsafe extern "C" fn() -> u32,
    error_text: unsafe extern "C" fn(u32) -> *const c_char,
    count: unsafe extern "C" fn(*mut c_uint) -> u32,
    by_index: unsafe extern "C" fn(c_uint, *mut usize) -> u32,
    uuid: unsafe extern "C" fn(usize, *mut c_char, c_uint) -> u32,
    memory: unsafe extern "C" fn(usize, *mut Memory) -> u32,
    /// Of drivers from 510 on.
    detailed_memory: Option<unsafe extern "C" fn(usize, *mut DetailedMemory) -> u32>,
    /// For programs that compute, and for those that draw.
    processes: Vec<ListProcesses>,
}

/// The library, initialized until the drop.
struct Management {
    functions: Functions,
    _library: Library,
}

impl Management {
    fn open(path: &Path) -> Result<Self> {
        // SAFETY: the user has installed or named this library as NVML, so its initializers run as in other programs.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let text = format!(
                "no management library of a GPU driver can be loaded: {error}; {MANAGEMENT_VARIABLE} names another"
            );
            Error::not_found(text)
        })?;
        let missing = |name: &str| Error::unsupported(format!("the library has no function {name}")).in_file(path);
        // SAFETY: the types are those of `nvml.h` (see the module). The value keeps the library.
        let (init, functions) = unsafe {
            let init =
                *library.get::<unsafe extern "C" fn() -> u32>("nvmlInit_v2").map_err(|_| missing("nvmlInit_v2"))?;
            let lists = ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"];
            let functions = Functions {
                shutdown: *library.get("nvmlShutdown").map_err(|_| missing("nvmlShutdown"))?,
                error_text: *library.get("nvmlErrorString").map_err(|_| missing("nvmlErrorString"))?,
                count: *library.get("nvmlDeviceGetCount_v2").map_err(|_| missing("nvmlDeviceGetCount_v2"))?,
                by_index: *library
                    .get("nvmlDeviceGetHandleByIndex_v2")
                    .map_err(|_| missing("nvmlDeviceGetHandleByIndex_v2"))?,
                uuid: *library.get("nvmlDeviceGetUUID").map_err(|_| missing("nvmlDeviceGetUUID"))?,
                memory: *library.get("nvmlDeviceGetMemoryInfo").map_err(|_| missing("nvmlDeviceGetMemoryInfo"))?,
                detailed_memory: library.get("nvmlDeviceGetMemoryInfo_v2").ok().map(|found| *found),
                processes: lists.into_iter().filter_map(|name| library.get(name).ok().map(|found| *found)).collect(),
            };
            (init, functions)
        };
        // SAFETY: the call has no arguments.
        let code = unsafe { init() };
        if code != 0 {
            return Err(Error::new(
                ErrorKind::Io,
                format!("starting the management library: {}", describe(&functions, code)),
            ));
        }
        Ok(Self { functions, _library: library })
    }

    fn check(&self, what: &str, code: u32) -> Result<()> {
        if code == 0 {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Io, format!("{what}: {}", describe(&self.functions, code))))
        }
    }

    fn usage(&self, index: u32) -> Result<GpuUsage> {
        let (mut gpu, mut uuid) = (0, [0; UUID_BYTES_MAX]);
        // SAFETY: `gpu` outlives the call (see the module).
        self.check("opening a GPU", unsafe { (self.functions.by_index)(index, &raw mut gpu) })?;
        // SAFETY: `uuid` outlives the call and has the length that the library gets.
        let code = unsafe { (self.functions.uuid)(gpu, uuid.as_mut_ptr().cast(), UUID_BYTES_MAX as c_uint) };
        self.check("reading the UUID of a GPU", code)?;
        let uuid = CStr::from_bytes_until_nul(&uuid).unwrap_or_default().to_string_lossy().into_owned();
        let (total_bytes, used_bytes) = self.memory(gpu)?;
        // The library has an order of its own.
        let device = number_of(&uuid).map(Device::Cuda);
        Ok(GpuUsage { device, uuid, total_bytes, used_bytes, processes: self.processes(gpu) })
    }

    /// All bytes of a GPU, and those in use. Older drivers count their own among these.
    fn memory(&self, gpu: usize) -> Result<(u64, u64)> {
        if let Some(read) = self.functions.detailed_memory {
            // `NVML_STRUCT_VERSION(Memory, 2)`.
            let version = size_of::<DetailedMemory>() as c_uint | 2 << 24;
            let mut memory = DetailedMemory { version, ..DetailedMemory::default() };
            // SAFETY: `memory` outlives the call (see the module).
            if unsafe { read(gpu, &raw mut memory) } == 0 {
                return Ok((memory.total, memory.used));
            }
        }
        let mut memory = Memory::default();
        // SAFETY: as above.
        self.check("reading the memory of a GPU", unsafe { (self.functions.memory)(gpu, &raw mut memory) })?;
        Ok((memory.total, memory.used))
    }

    /// The processes of a GPU, each once. None if the library does not name them.
    fn processes(&self, gpu: usize) -> Option<BTreeMap<u32, Option<u64>>> {
        let [first, others @ ..] = &*self.functions.processes else { return None };
        let lists = std::iter::once(list(*first, gpu)?).chain(others.iter().filter_map(|read| list(*read, gpu)));
        Some(bytes_of_each(lists))
    }
}

/// The bytes of each process; none where the driver does not tell those of a part (MIG). A process is in a list once for each part that it
/// uses. One that computes and draws is in both lists, with the same bytes.
fn bytes_of_each(lists: impl Iterator<Item = Vec<ProcessInfo>>) -> BTreeMap<u32, Option<u64>> {
    let mut all: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for list in lists {
        let mut found = BTreeMap::new();
        for ProcessInfo { pid, used_bytes, .. } in list {
            let sum = found.entry(pid).or_insert(Some(0_u64));
            let bytes = (used_bytes != NOT_AVAILABLE).then_some(used_bytes);
            *sum = sum.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
        }
        for (pid, bytes) in found {
            let known = all.entry(pid).or_default();
            *known = (*known).max(bytes);
        }
    }
    all
}

impl Drop for Management {
    fn drop(&mut self) {
        // SAFETY: it was initialized once for this value.
        let _ = unsafe { (self.functions.shutdown)() };
    }
}

/// What one of the lists has. None for an error.
fn list(read: ListProcesses, gpu: usize) -> Option<Vec<ProcessInfo>> {
    let mut count = 0;
    // SAFETY: `count` outlives the call; without room, the library writes the number only.
    let mut code = unsafe { read(gpu, &raw mut count, null_mut()) };
    // Processes may start in between.
    for _ in 0..4 {
        if code == 0 && count == 0 {
            return Some(Vec::new());
        }
        if !matches!(code, 0 | INSUFFICIENT_SIZE) {
            return None;
        }
        count = count.saturating_add(8).min(PROCESSES_MAX);
        let mut processes = vec![ProcessInfo::default(); count as usize];
        // SAFETY: `processes` has `count` values, and both outlive the call.
        code = unsafe { read(gpu, &raw mut count, processes.as_mut_ptr()) };
        if code == 0 {
            processes.truncate(count as usize);
            return Some(processes);
        }
    }
    None
}

fn describe(functions: &Functions, code: u32) -> String {
    // SAFETY: the library returns null, or a string that lives as long as the library.
    let text = unsafe {
        let text = (functions.error_text)(code);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| format!("result {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::Memory as _;
    use cotensor_fake_cuda::FakeCuda;

    #[test]
    fn structures_have_the_sizes_of_the_library() {
        assert_eq!([size_of::<Memory>(), size_of::<DetailedMemory>(), size_of::<ProcessInfo>()], [24, 40, 24]);
    }

    #[test]
    fn bytes_of_no_process_are_the_rest() {
        let fake = FakeCuda::start().unwrap();
        fake.set_devices(2).unwrap();
        let driver = crate::CudaDriver::load(&fake.library()).unwrap();
        let memory = crate::CudaMemory::new(&driver, driver.devices().unwrap().remove(1));
        let _kept = memory.reserve(9 << 20).unwrap().freeze().unwrap();
        fake.attribute(1, 17, 2 << 20).unwrap();
        fake.attribute(1, 18, 1 << 20).unwrap();
        let read = |index| gpu_usage_by(&fake.library()).unwrap().swap_remove(index).unwrap();
        let (first, second) = (read(0), read(1));
        assert_eq!((first.used_bytes, first.unattributed_bytes(), first.total_bytes), (0, Some(0), 1 << 30));
        assert_eq!(second.uuid, "GPU-636f7465-6e73-6f72-2066-616b00000001");
        // No list and no file of the driver names the fake's devices.
        assert_eq!((second.device, second.used_bytes), (None, 10 << 20));
        assert_eq!(second.processes, Some([(17, Some(2 << 20)), (18, Some(1 << 20))].into()));
        assert_eq!(second.unattributed_bytes(), Some(7 << 20));
        // A process whose bytes the driver does not tell.
        fake.attribute(1, 19, u64::MAX).unwrap();
        let second = read(1);
        assert_eq!((second.processes.as_ref().unwrap()[&19], second.unattributed_bytes()), (None, None));
        fake.fail("nvmlDeviceGetComputeRunningProcesses_v3", 999).unwrap();
        let second = read(1);
        assert_eq!((second.processes.clone(), second.unattributed_bytes()), (None, None));
        fake.fail("nvmlDeviceGetMemoryInfo_v2", 25).unwrap();
        assert_eq!(read(1).used_bytes, 11 << 20, "with the driver's own");
    }

    #[test]
    fn parts_of_a_process_are_added_and_both_lists_are_one() {
        let info = |(pid, used_bytes, gpu_instance)| ProcessInfo { pid, used_bytes, gpu_instance, compute_instance: 0 };
        let list = |of: &[(u32, u64, u32)]| of.iter().copied().map(info).collect::<Vec<_>>();
        let computing = list(&[(1, 5, 0), (1, 7, 1), (2, 3, 0), (3, 4, 0), (3, NOT_AVAILABLE, 1)]);
        let drawing = list(&[(2, 3, 0), (1, 5, 0), (4, 1, 0)]);
        let expected = BTreeMap::from([(1, Some(12)), (2, Some(3)), (3, None), (4, Some(1))]);
        assert_eq!(bytes_of_each([computing, drawing].into_iter()), expected);
    }

    #[test]
    fn libraries_that_do_not_work_are_errors() {
        let error = gpu_usage_by(Path::new("/nonexistent/libnvidia-ml.so.1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(MANAGEMENT_VARIABLE), "{error}");
        assert_eq!(gpu_usage_by(Path::new("libc.so.6")).unwrap_err().kind(), ErrorKind::Unsupported);
        let fake = FakeCuda::start().unwrap();
        let is_an_error = |function: &str, error: Error| {
            assert_eq!(error.kind(), ErrorKind::Io, "{function}");
            assert!(error.to_string().contains("Unknown Error"), "{error}");
            fake.repair().unwrap();
        };
        for function in ["nvmlInit_v2", "nvmlDeviceGetCount_v2"] {
            fake.fail(function, 999).unwrap();
            is_an_error(function, gpu_usage_by(&fake.library()).unwrap_err());
        }
        for function in ["nvmlDeviceGetUUID", "nvmlDeviceGetHandleByIndex_v2"] {
            fake.fail(function, 999).unwrap();
            let error = gpu_usage_by(&fake.library()).unwrap().remove(0).unwrap_err();
            assert!(error.to_string().contains("GPU 0"), "{error}");
            is_an_error(function, error);
        }
    }
}
