//! Spills segments to files and reads them back.

use super::file::{CONTEXT, PIECE_BYTES, SpillFile};
use super::files::Files;
use super::folder::OWNER;
use crate::descriptors::{are_scarce, none_left};
use crate::state::segment::Sealed;
use cotensor_client::open_regular;
use cotensor_core::{Error, ErrorKind, Hasher, Result, Segment, SegmentMut};
use cotensor_memory::MemfdMut;
use cotensor_store::{SpillStorage, SpilledSegment};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Read;
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
        let number = files.reserve(bytes)?;
        let path = files.folder.join(format!("{number}-{:08x}.tensors", files.tag));
        let mut file = SpillFile { number, path, bytes, hash: String::new() };
        // Dropping this removes the file and its count.
        let mut on_disk = OnDisk { file: file.clone(), files: Arc::clone(files) };
        let write = || files.write(&file.path, &source, bytes);
        let written = match write() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tracing::error!("{} was removed; its spilled tensors are lost", files.folder.display());
                files.make_folder()?;
                write()
            }
            written => written,
        };
        file.hash = written.map_err(|error| {
            if is_full(&error) {
                Error::new(ErrorKind::OverBudget, format!("spilling: {error}")).in_file(&files.folder)
            } else {
                io(error)
            }
        })?;
        files.state().files.insert(number, file.clone());
        on_disk.file.hash = file.hash;
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
        let mut state = self.state();
        for file in &files {
            state.next = state.next.max(file.number);
            state.bytes += file.bytes;
            state.files.insert(file.number, file.clone());
        }
        drop(state);
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
        let SpillFile { path, bytes, hash, .. } = &self.file;
        let io = |error: std::io::Error| Error::io("reading a spilled segment", &error).in_file(path);
        let corrupt = |what: &str| Error::corrupt(format!("the spilled file {what}")).in_file(path);
        let len = usize::try_from(*bytes).map_err(|_| corrupt("is too long"))?;
        let mut file = open_regular(path, OFlags::RDONLY).map_err(io)?;
        if file.metadata().map_err(io)?.len() != *bytes {
            return Err(corrupt("has another length"));
        }
        let mut memory = MemfdMut::create(len)?;
        // The segment keeps a duplicate, which is made while these two are open.
        if file.try_clone().map_or(true, are_scarce) {
            return Err(none_left());
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut hasher = Hasher::new(CONTEXT);
        let mut at = 0;
        while at < len {
            let part = piece.get_mut(..PIECE_BYTES.min(len - at)).unwrap_or_default();
            file.read_exact(part).map_err(io)?;
            hasher.field(part);
            memory.write_at(at, part)?;
            at += part.len();
        }
        if hasher.finish().to_string() != *hash {
            return Err(corrupt("has changed"));
        }
        Ok(Arc::new(Sealed::of(memory)?))
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file.path);
        let mut state = self.files.state();
        state.files.remove(&self.file.number);
        state.bytes -= self.file.bytes;
    }
}
