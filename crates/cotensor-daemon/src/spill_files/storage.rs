//! Spills segments to files and reads them back.

use super::content;
use super::files::Files;
use super::folder::OWNER;
use cotensor_core::{Error, ErrorKind, Result, Segment};
use cotensor_store::{SpillStorage, SpilledSegment};
use cotensor_supervisor::SpillFile;
use std::fs::File;
use std::sync::Arc;

/// Whether the disk, the quota or the limit of file sizes is exhausted.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Spills segments to the files of a folder.
pub(crate) struct SpillToFiles(pub(crate) Arc<Files>);

impl SpillStorage for SpillToFiles {
    fn spill(&self, segment: &dyn Segment) -> Result<Arc<dyn SpilledSegment>> {
        let files = &self.0;
        let io = |error: std::io::Error| Error::io("spilling", &error).in_file(&files.folder);
        let fd = segment.fd().ok_or_else(|| Error::unsupported("this segment has no descriptor"))?;
        let source = File::from(fd.try_clone_to_owned().map_err(io)?);
        let bytes = source.metadata().map_err(io)?.len();
        let file = files.table().reserve(bytes)?;
        // Dropping this removes the file and its count.
        let mut on_disk = OnDisk { file, files: Arc::clone(files) };
        let write = || content::write(&on_disk.file.path, &source, bytes);
        let written = match write() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tracing::error!("{} was removed; its spilled tensors are lost", files.folder.display());
                files.make_folder()?;
                write()
            }
            written => written,
        };
        on_disk.file.hash = written.map_err(|error| {
            if is_full(&error) {
                Error::new(ErrorKind::OverBudget, format!("spilling: {error}")).in_file(&files.folder)
            } else {
                io(error)
            }
        })?;
        files.table().complete(on_disk.file.clone());
        tracing::debug!("spilled {bytes} bytes to {}", on_disk.file.path.display());
        Ok(Arc::new(on_disk))
    }

    fn blocking(&self, work: &mut dyn FnMut()) {
        use tokio::runtime::{Handle, RuntimeFlavor};
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
            _ => work(),
        }
    }
}

impl Files {
    /// Takes over the files of a former server and removes all others.
    pub(crate) fn adopt(self: &Arc<Self>, files: Vec<SpillFile>) -> Vec<Arc<dyn SpilledSegment>> {
        files.iter().for_each(|file| self.table().adopt(file.clone()));
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_name().is_some_and(|name| name != OWNER) && !files.iter().any(|file| file.path == path) {
                let _ = std::fs::remove_file(path);
            }
        }
        let spilled = |file| -> Arc<dyn SpilledSegment> { Arc::new(OnDisk { file, files: Arc::clone(self) }) };
        files.into_iter().map(spilled).collect()
    }
}

/// A segment in a file. Dropping it removes the file.
struct OnDisk {
    file: SpillFile,
    files: Arc<Files>,
}

impl SpilledSegment for OnDisk {
    fn number(&self) -> u64 {
        self.file.number
    }

    fn bytes(&self) -> u64 {
        self.file.bytes
    }

    fn check(&self) -> Result<()> {
        let SpillFile { path, bytes, .. } = &self.file;
        let found = std::fs::symlink_metadata(path);
        if found.map_err(|error| Error::io("reading a spilled segment", &error).in_file(path))?.len() == *bytes {
            Ok(())
        } else {
            Err(Error::corrupt("the spilled file has another length").in_file(path))
        }
    }

    fn restore(&self) -> Result<Arc<dyn Segment>> {
        Ok(Arc::new(content::read(&self.file)?))
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file.path);
        self.files.table().remove(&self.file);
    }
}
