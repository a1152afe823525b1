//! Files that change or end early while `put` reads them, and tensor names that look like paths.

use cotensor_attacks::{Target, content};
use cotensor_core::{DType, ErrorKind, Kind};
use cotensor_formats::{FileTensor, Format, PublishOptions, TensorReader, write};
use cotensor_store::{Retention, TensorStore};
use std::fs::File;
use std::io::Read;
use std::time::Duration;

const BYTES: usize = 4 << 20;

/// A reader that modifies its file after a number of bytes.
struct Meddled<F> {
    file: File,
    after: usize,
    meddle: Option<F>,
}

impl<F: FnOnce()> Read for Meddled<F> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        if self.after == 0
            && let Some(meddle) = self.meddle.take()
        {
            meddle();
        }
        let len = match self.meddle {
            Some(_) => target.len().min(self.after),
            None => target.len(),
        };
        let read = self.file.read(&mut target[..len])?;
        self.after = self.after.saturating_sub(read);
        Ok(read)
    }
}

fn put_as(name: &str) -> PublishOptions<'_> {
    PublishOptions {
        name,
        kind: Kind::Other,
        producer: "attack",
        retention: Retention::Cached { recompute: Duration::ZERO },
        keep_for: None,
    }
}

#[test]
fn file_truncated_while_it_is_read_is_an_error() {
    let target = Target::start(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.raw");
    let store = target.connect("putter");
    for left in [0, BYTES as u64 / 2] {
        std::fs::write(&path, content(BYTES)).unwrap();
        let truncate = || File::options().write(true).open(&path).unwrap().set_len(left).unwrap();
        let source = Meddled { file: File::open(&path).unwrap(), after: BYTES * 3 / 4, meddle: Some(truncate) };
        let mut reader =
            TensorReader::open(source, Format::Raw, Some(FileTensor::raw(DType::U8, vec![BYTES]))).unwrap();
        let error = reader.put(0, &*store, &store.holder(""), &put_as("torn")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    // A growing file has more bytes than its header announces.
    std::fs::write(&path, content(BYTES)).unwrap();
    let grow = || drop(std::fs::write(&path, content(BYTES + 1)));
    let source = Meddled { file: File::open(&path).unwrap(), after: BYTES / 2, meddle: Some(grow) };
    let mut reader = TensorReader::open(source, Format::Raw, Some(FileTensor::raw(DType::U8, vec![BYTES]))).unwrap();
    assert!(reader.put(0, &*store, &store.holder(""), &put_as("torn")).is_err());
    assert_eq!(store.get("torn", &store.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
    drop((reader, store, folder));
    target.assert_unharmed();
}

#[test]
fn file_can_be_removed_after_put() {
    let target = Target::start(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.raw");
    std::fs::write(&path, content(BYTES)).unwrap();
    let store = target.connect("putter");
    let entry = FileTensor::raw(DType::U8, vec![BYTES]);
    let mut reader = TensorReader::open(File::open(&path).unwrap(), Format::Raw, Some(entry)).unwrap();
    let lease = reader.put(0, &*store, &store.holder(""), &put_as("../../../etc/passwd")).unwrap();
    File::options().write(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(lease.bytes().unwrap() == content(BYTES), "the file was copied, not mapped");
    // A name is not used as a path.
    let mut written = Vec::new();
    write(&mut written, Format::Safetensors, &[("../../../etc/passwd", &lease)]).unwrap();
    let read = TensorReader::open(&written[..], Format::Safetensors, None).unwrap();
    assert_eq!(read.entries()[0].name, "../../../etc/passwd");
    store.remove("../../../etc/passwd").unwrap();
    drop((lease, reader, store, folder));
    target.assert_unharmed();
}

#[test]
fn oversized_headers_are_refused_before_memory_is_reserved() {
    let target = Target::start(|config| config.max_memory_bytes = 64 << 20);
    let store = target.connect("putter");
    let header = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let huge = 1u64 << 40;
    let tensors = header(&format!(r#"{{"a":{{"dtype":"U8","shape":[{huge}],"data_offsets":[0,{huge}]}}}}"#));
    let npy = [
        b"\x93NUMPY\x01\x00\x76\x00",
        format!("{:<117}\n", format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({huge},), }}")).as_bytes(),
    ]
    .concat();
    for (format, bytes) in [(Format::Safetensors, tensors), (Format::Npy, npy)] {
        let mut reader = TensorReader::open(&bytes[..], format, None).unwrap();
        let error = reader.put(0, &*store, &store.holder(""), &put_as("huge")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    }
    for bytes in [u64::MAX.to_le_bytes().to_vec(), [&(33u64 << 20).to_le_bytes()[..], b"{"].concat(), header("{")] {
        assert!(TensorReader::open(&bytes[..], Format::Safetensors, None).is_err());
    }
    drop(store);
    target.assert_unharmed();
}
