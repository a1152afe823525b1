//! The machine: a folder with a file for each allocation, and settings. All processes that use it see the same.

mod handle;
mod settings;

use handle::Handle;
pub(crate) use handle::duplicate;
pub(crate) use settings::{GRANULARITY, Settings};

use crate::codes::{OUT_OF_MEMORY, Outcome, UNKNOWN};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SETTINGS: &str = "settings";
/// The file with the name of a function that a process has called after a fork.
const FORKED: &str = "forked";
/// The file whose lock a process has while it creates an allocation.
const LOCK: &str = "lock";
/// The first and the last bytes of new memory: the driver's documentation promises no zeros.
static FORMER: [u8; 64 << 10] = [0xA5; 64 << 10];

/// The hardware. Its content is the folder's.
#[derive(Clone)]
pub(crate) struct Machine {
    folder: PathBuf,
}

/// Memory of a device. It exists while this value, or a duplicate of its handle in any process, does.
pub(crate) struct Allocation {
    /// The device's index on the machine.
    pub(crate) device: u32,
    pub(crate) bytes: u64,
    /// The content.
    pub(crate) file: File,
    handle: Handle,
}

impl Machine {
    pub(crate) fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings::parse(&std::fs::read_to_string(self.folder.join(SETTINGS)).unwrap_or_default())
    }

    /// Replaces the settings: a process reads the old or the new ones.
    pub(crate) fn configure(&self, settings: &Settings) -> std::io::Result<()> {
        let (new, path) = (self.folder.join("settings.new"), self.folder.join(SETTINGS));
        std::fs::write(&new, settings.to_text())?;
        std::fs::rename(new, path)
    }

    /// Notes that a process has called a function after a fork.
    pub(crate) fn note_forked(&self, function: &str) {
        let _ = std::fs::write(self.folder.join(FORKED), function);
    }

    /// The function that a forked process has called last.
    pub(crate) fn forked(&self) -> std::io::Result<Option<String>> {
        match std::fs::read_to_string(self.folder.join(FORKED)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Allocates memory, with bytes that are left from former programs.
    pub(crate) fn allocate(&self, device: u32, bytes: u64) -> Outcome<Allocation> {
        let _lock = self.lock().map_err(|_| UNKNOWN)?;
        let settings = self.settings();
        let late = if settings.frees_late { self.late_bytes(device).map_err(|_| UNKNOWN)? } else { 0 };
        let used = self.used_bytes(device).map_err(|_| UNKNOWN)?.saturating_add(late);
        if used.saturating_add(bytes) > settings.memory_bytes {
            return Err(OUT_OF_MEMORY);
        }
        // The handle first: a file without one is free memory.
        let handle = Handle::create().map_err(|_| UNKNOWN)?;
        let path = self.path(device, handle.number());
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(|_| UNKNOWN)?;
        file.set_len(bytes).map_err(|_| UNKNOWN)?;
        for offset in [0, bytes - FORMER.len() as u64] {
            file.write_all_at(&FORMER, offset).map_err(|_| UNKNOWN)?;
        }
        Ok(Allocation { device, bytes, file, handle })
    }

    /// The allocation of an exported descriptor; none if the descriptor is something else.
    pub(crate) fn open(&self, descriptor: OwnedFd) -> Option<Allocation> {
        let handle = Handle::of(descriptor)?;
        (0..self.settings().devices).find_map(|device| {
            let path = self.path(device, handle.number());
            let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
            let bytes = file.metadata().ok()?.len();
            Some(Allocation { device, bytes, file, handle: handle.duplicate().ok()? })
        })
    }

    /// Bytes of all allocations of a device. Removes the files of those that no process has.
    pub(crate) fn used_bytes(&self, device: u32) -> std::io::Result<u64> {
        let (used, unused) = self.allocations(device)?;
        for path in unused {
            let _ = std::fs::remove_file(path);
        }
        Ok(used)
    }

    /// Bytes of allocations that no process has any more, and that no call has found before.
    fn late_bytes(&self, device: u32) -> std::io::Result<u64> {
        let unused = self.allocations(device)?.1;
        unused.iter().map(|path| Ok(std::fs::metadata(path)?.len())).sum()
    }

    /// Bytes of the allocations of a device that processes have, and the files of the others.
    fn allocations(&self, device: u32) -> std::io::Result<(u64, Vec<PathBuf>)> {
        let (mut used, mut unused) = (0, Vec::new());
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some((of, number)) = name.to_str().and_then(|name| name.strip_prefix("memory-")?.split_once('-'))
            else {
                continue;
            };
            let (Ok(of), Ok(number)) = (of.parse::<u32>(), number.parse()) else { continue };
            if of != device {
                continue;
            }
            if Handle::exists(number)? {
                used += entry.metadata()?.len();
            } else {
                unused.push(entry.path());
            }
        }
        Ok((used, unused))
    }

    fn path(&self, device: u32, number: u64) -> PathBuf {
        self.folder.join(format!("memory-{device}-{number}"))
    }

    fn lock(&self) -> std::io::Result<File> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.folder.join(LOCK))?;
        file.lock()?;
        Ok(file)
    }
}

impl Allocation {
    /// A descriptor that another process can open.
    pub(crate) fn export(&self) -> std::io::Result<OwnedFd> {
        self.handle.duplicate().map(Handle::into_descriptor)
    }
}
