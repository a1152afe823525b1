//! The library of the driver, loaded at run time: builds and machines without CUDA need nothing of it.

use super::error::{NOT_INITIALIZED, driver_error};
use super::functions::{ContextId, Functions, RELAXED, Vendor, context_id};
use cotensor_core::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::Arc;

/// The variable with the path of the driver's library.
pub const DRIVER_VARIABLE: &str = "COTENSOR_CUDA_DRIVER";
/// The library that NVIDIA's driver installs.
const NVIDIA: &str = "libcuda.so.1";
/// That of AMD's, in the first version that has all needed functions.
const AMD: &str = "libamdhip64.so.7";

/// A GPU driver, initialized in this process. A process that was forked afterwards cannot use it.
pub struct CudaDriver {
    pub(super) functions: Functions,
    pub(super) context_id: Option<ContextId>,
    /// Never unloaded: the driver's threads run until the process ends.
    _library: ManuallyDrop<Library>,
    path: PathBuf,
    vendor: Vendor,
    version: c_int,
    /// The process that has initialized it.
    process: u32,
}

impl CudaDriver {
    /// The installed driver: the library that [`DRIVER_VARIABLE`] names, else NVIDIA's `libcuda.so.1`, or AMD's `libamdhip64.so.7` on machines
    /// without a device of NVIDIA.
    ///
    /// # Errors
    /// `NotFound` without a driver or without a device, `Unsupported` for a driver that is too old, `Io` for one that does not
    /// work.
    pub fn open() -> Result<Arc<Self>> {
        match std::env::var_os(DRIVER_VARIABLE).filter(|path| !path.is_empty()) {
            Some(named) => Self::load(named.as_ref()),
            None => Self::first_of([NVIDIA.as_ref(), AMD.as_ref()]),
        }
    }

    /// The first of two libraries that is a driver with a device. Without one, the error is that of the first.
    fn first_of([first, second]: [&Path; 2]) -> Result<Arc<Self>> {
        match Self::load(first) {
            Err(error) if error.kind() == ErrorKind::NotFound => Self::load(second).map_err(|_| error),
            loaded => loaded,
        }
    }

    /// The driver whose library is at `path`, or has this name in a folder that the loader searches.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn load(path: &Path) -> Result<Arc<Self>> {
        // SAFETY: the user has installed or named this library as the driver, so its initializers run as in other CUDA programs.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let path = path.display();
            let text =
                format!("no CUDA driver can be loaded from {path}: {error}; {DRIVER_VARIABLE} names another library");
            Error::not_found(text)
        })?;
        let is_amd = has(&library, "hipInit") && !has(&library, "cuInit");
        Self::initialize(library, path, if is_amd { Vendor::Amd } else { Vendor::Nvidia })
    }

    /// The driver of a vendor.
    pub(super) fn initialize(library: Library, path: &Path, vendor: Vendor) -> Result<Arc<Self>> {
        let functions = Functions::find(&library, vendor).map_err(|missing| {
            let text = format!("the driver has no function {missing}; {}", needed(vendor));
            Error::unsupported(text).in_file(path)
        })?;
        let (context_id, process) = (context_id(&library), std::process::id());
        let (library, path) = (ManuallyDrop::new(library), path.to_owned());
        let mut driver = Self { functions, context_id, _library: library, path, vendor, version: 0, process };
        let mut version = 0;
        // SAFETY: `version` outlives the call (see the module).
        driver.check("reading the driver's version", unsafe { (driver.functions.version)(&raw mut version) })?;
        driver.version = version;
        check_version(vendor, version).map_err(|error| error.in_file(&driver.path))?;
        // SAFETY: the call has no pointers. 0 is the only value.
        driver.check("initializing the driver", unsafe { (driver.functions.init)(0) })?;
        Ok(Arc::new(driver))
    }

    /// The version of the interface that the driver supports, such as `13.0`.
    pub fn version(&self) -> String {
        self.vendor.version_text(self.version)
    }

    /// The interface of the driver: `CUDA`, or `HIP` for AMD's.
    pub fn interface(&self) -> &'static str {
        self.vendor.interface()
    }

    pub(super) fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this process was forked after it had initialized the driver. Each call would fail, or wait for a lock of a thread that the
    /// process does not have.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// # Errors
    /// `Unsupported` in a forked process.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_forked() { Err(driver_error("using a GPU", NOT_INITIALIZED, "no driver here")) } else { Ok(()) }
    }

    /// Runs calls of the driver that do not concern captured streams: a capture of another library goes on.
    pub(super) fn relaxed<T>(&self, calls: impl FnOnce() -> T) -> T {
        let mut mode = RELAXED;
        // SAFETY: `mode` outlives the call, which exchanges it for that of this thread (see the module `cuda`).
        let exchanged = unsafe { (self.functions.exchange_capture_mode)(&raw mut mode) };
        let done = calls();
        if exchanged == 0 {
            // SAFETY: as above.
            let _ = unsafe { (self.functions.exchange_capture_mode)(&raw mut mode) };
        }
        done
    }

    /// Turns the result of a call into an error that names what was done.
    pub(super) fn check(&self, what: impl fmt::Display, code: u32) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.failure(what, code)) }
    }

    /// The error of a call whose result is not 0.
    pub(super) fn failure(&self, what: impl fmt::Display, code: u32) -> Error {
        driver_error(what, code, &self.describe(code))
    }

    /// The name and the text of a result, as the driver has them.
    fn describe(&self, code: u32) -> String {
        let text = |function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text = null();
            // SAFETY: `text` outlives the call. The driver writes null, or a string that lives as long as the library.
            unsafe {
                let found = function(code, &raw mut text) == 0 && !text.is_null();
                found.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (text(self.functions.error_name), text(self.functions.error_text)) {
            (Some(name), Some(text)) => format!("{name}, {text}"),
            _ => format!("result {code}"),
        }
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDriver({}, {})", self.path.display(), self.version())
    }
}

fn has(library: &Library, name: &str) -> bool {
    // SAFETY: the symbol is looked up and not used.
    unsafe { library.get::<unsafe extern "C" fn()>(name) }.is_ok()
}

fn check_version(vendor: Vendor, version: c_int) -> Result<()> {
    if version >= vendor.version_min() {
        return Ok(());
    }
    let (interface, found) = (vendor.interface(), vendor.version_text(version));
    Err(Error::unsupported(format!("the driver supports {interface} {found}; {}", needed(vendor))))
}

fn needed(vendor: Vendor) -> String {
    let (interface, version) = (vendor.interface(), vendor.version_text(vendor.version_min()));
    format!("Cotensor needs one for {interface} {version} or later")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_fake_cuda::FakeCuda;

    #[test]
    fn libraries_that_are_no_driver_are_errors() {
        let error = CudaDriver::load(Path::new("/nonexistent/libcuda.so.1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(DRIVER_VARIABLE), "{error}");
        let error = CudaDriver::load(Path::new("libc.so.6")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("CUDA 11.4"), "{error}");
    }

    #[test]
    fn another_vendor_is_tried_without_a_device() {
        let [none, missing] = ["/nonexistent/libcuda.so.1", "/nonexistent/libamdhip64.so.7"].map(Path::new);
        let error = CudaDriver::first_of([none, missing]).unwrap_err();
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        let (fake, empty) = (FakeCuda::start().unwrap(), FakeCuda::start().unwrap());
        empty.set_devices(0).unwrap();
        for first in [none, &empty.library()] {
            assert_eq!(CudaDriver::first_of([first, &fake.library()]).unwrap().path(), fake.library());
        }
        empty.set_version(10_020).unwrap();
        let error = CudaDriver::first_of([&empty.library(), &fake.library()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "an old driver is a reason of its own: {error}");
    }

    #[test]
    fn versions_are_those_of_the_vendor() {
        let found = |vendor, version| check_version(vendor, version).map_err(|error| error.to_string());
        let texts = [
            (Vendor::Nvidia, 11_030, "supports CUDA 11.3; Cotensor needs one for CUDA 11.4"),
            (Vendor::Amd, 70_051_831, "supports HIP 7.0; Cotensor needs one for HIP 7.1"),
        ];
        for (vendor, version, text) in texts {
            let error = found(vendor, version).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert_eq!([found(Vendor::Nvidia, 13_000), found(Vendor::Amd, 70_125_424)], [Ok(()), Ok(())]);
    }
}
