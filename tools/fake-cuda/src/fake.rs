//! Starts and controls a machine.

use crate::machine::{Machine, Settings};
use std::ffi::{CStr, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Allocations of the device are multiples of this many bytes.
pub const GRANULARITY: u64 = crate::machine::GRANULARITY;
/// The name of the built library.
const BUILT: &str = "libcotensor_fake_cuda.so";
/// The name of its copy in the folder of a machine.
const LIBRARY: &str = "libcuda.so.1";

/// A machine with devices. Its end removes the folder, so programs that use the devices must have ended.
#[derive(Debug)]
pub struct FakeCuda {
    folder: tempfile::TempDir,
    settings: Mutex<Settings>,
}

impl FakeCuda {
    /// A machine with one device of 1 GiB.
    ///
    /// # Errors
    /// When the built library is not beside this executable, and for errors of the file system.
    pub fn start() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        // A copy, not a link: the loader takes two paths of one file for one library.
        std::fs::copy(built()?, folder.path().join(LIBRARY))?;
        Ok(Self { folder, settings: Mutex::default() })
    }

    /// The library to load instead of the driver's.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.folder.path().join(LIBRARY)
    }

    /// Bytes of a device that allocations of all processes have.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn used_bytes(&self, device: u32) -> io::Result<u64> {
        self.machine().used_bytes(device)
    }

    /// The function that a process has called last although it was forked after `cuInit`, if one has.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn call_after_fork(&self) -> io::Result<Option<String>> {
        self.machine().forked()
    }

    /// The number of devices. Programs that have called `cuInit` keep the number that they found.
    ///
    /// # Errors
    /// Errors of the file system; so for all settings.
    pub fn set_devices(&self, devices: u32) -> io::Result<()> {
        self.set(|settings| settings.devices = devices)
    }

    /// The memory of each device.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn set_memory_bytes(&self, bytes: u64) -> io::Result<()> {
        self.set(|settings| settings.memory_bytes = bytes)
    }

    /// The version of the driver: 1000 times the major number, and 10 times the minor one.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn set_version(&self, version: u32) -> io::Result<()> {
        self.set(|settings| settings.version = version)
    }

    /// Whether a device can access the memory of another one; false at first.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn set_peer_access(&self, possible: bool) -> io::Result<()> {
        self.set(|settings| settings.peer_access = possible)
    }

    /// Whether the memory of ended allocations is free only for the second `cuMemCreate` after their end, as NVIDIA's driver frees memory
    /// of a killed process some milliseconds later; false at first.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn set_frees_late(&self, late: bool) -> io::Result<()> {
        self.set(|settings| settings.frees_late = late)
    }

    /// The bytes of a device that the management library attributes to a process; `u64::MAX` for a number that it does not tell.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn attribute(&self, device: u32, process: u32, bytes: u64) -> io::Result<()> {
        self.set(|settings| {
            settings.attributed.insert((device, process), bytes);
        })
    }

    /// The unit of allocations that the driver tells. Its allocations stay multiples of [`GRANULARITY`].
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn set_granularity_bytes(&self, bytes: u64) -> io::Result<()> {
        self.set(|settings| settings.granularity_bytes = bytes)
    }

    /// Lets a function of all programs not return until [`repair`](Self::repair), as a wait for a kernel that does not end. Other functions of
    /// the program can be called meanwhile.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn block(&self, function: &str) -> io::Result<()> {
        self.set(|settings| {
            settings.blocked.insert(function.to_owned());
        })
    }

    /// Kills each program at its call number `call`, from 1, of a function, before the function has any effect; until [`repair`](Self::repair).
    /// Calls are counted from now on.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn kill_at(&self, function: &str, call: u32) -> io::Result<()> {
        self.set(|settings| {
            settings.deadly.insert(function.to_owned(), call);
        })
    }

    /// Lets a function fail in all programs with a result, until [`repair`](Self::repair).
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn fail(&self, function: &str, result: u32) -> io::Result<()> {
        self.set(|settings| {
            settings.failures.insert(function.to_owned(), result);
        })
    }

    /// Ends the failures of [`fail`](Self::fail), [`block`](Self::block) and [`kill_at`](Self::kill_at).
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn repair(&self) -> io::Result<()> {
        self.set(|settings| {
            settings.failures.clear();
            settings.blocked.clear();
            settings.deadly.clear();
        })
    }

    /// Ends the contexts of a process, as an illegal address of a kernel does. From its next call on, all its calls have the
    /// result.
    ///
    /// # Errors
    /// As [`set_devices`](Self::set_devices).
    pub fn lose_contexts(&self, process: u32, result: u32) -> io::Result<()> {
        self.set(|settings| {
            settings.lost.insert(process, result);
        })
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) -> io::Result<()> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut settings);
        self.machine().configure(&settings)
    }

    fn machine(&self) -> Machine {
        Machine::at(self.folder.path())
    }
}

/// The library as cargo has built it, beside the test that depends on this crate.
fn built() -> io::Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    let found = [folder.join(BUILT), folder.join("deps").join(BUILT)].into_iter().find(|path| path.exists());
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{BUILT} is not in {}", folder.display()));
    found.ok_or_else(missing)
}

/// The folder of this library, which is the machine.
pub(crate) fn own_folder() -> Option<PathBuf> {
    static HERE: u8 = 0;
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the call writes `found` if it does not return 0. The address is of this library.
    let found = unsafe {
        if libc::dladdr((&raw const HERE).cast(), found.as_mut_ptr()) == 0 {
            return None;
        }
        found.assume_init()
    };
    if found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the path as long as the library is loaded.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    Path::new(OsStr::from_bytes(path.to_bytes())).parent().map(Path::to_owned)
}
