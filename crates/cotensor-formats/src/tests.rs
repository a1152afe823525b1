use super::*;
use cotensor_core::{DType, ErrorKind, Kind};
use cotensor_store::LocalStore;
use cotensor_store::Retention;
use cotensor_store::{StoreReports, TensorStore};
use std::time::Duration;

fn put(name: &str) -> PublishOptions<'_> {
    PublishOptions {
        name,
        kind: Kind::Other,
        producer: "test",
        retention: Retention::Cached { recompute: Duration::ZERO },
        keep_for: None,
    }
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 37 % 251) as u8).collect()
}

#[test]
fn every_dtype_round_trips_in_every_format() {
    let store = LocalStore::builder().build();
    let holder = store.holder("test");
    for &dtype in DType::ALL {
        let bytes = numbers(6 * dtype.size_bytes());
        let entry = FileTensor::raw(dtype, vec![2, 3]);
        let mut raw = TensorReader::open(&bytes[..], Format::Raw, Some(entry.clone())).unwrap();
        let lease = raw.put(0, &*store, &holder, &put(dtype.name())).unwrap();
        for format in [Format::Npy, Format::Safetensors, Format::Raw] {
            let mut file = Vec::new();
            let written = write(&mut file, format, &[("a \"name\"\n", &lease)]);
            let missing: &[DType] = match format {
                Format::Npy => &[DType::BF16, DType::F8E4M3FN, DType::F8E5M2],
                Format::Safetensors => &[DType::C128],
                Format::Raw => &[],
            };
            if missing.contains(&dtype) {
                assert_eq!(written.unwrap_err().kind(), ErrorKind::Unsupported);
                continue;
            }
            written.unwrap();
            let raw = (format == Format::Raw).then(|| entry.clone());
            let mut reader = TensorReader::open(&file[..], format, raw).unwrap();
            let found = &reader.entries()[0];
            assert_eq!((found.dtype, &found.shape[..]), (dtype, &[2, 3][..]));
            assert_eq!(found.name, if format == Format::Safetensors { "a \"name\"\n" } else { "" });
            let back = reader.put(0, &*store, &holder, &put("back")).unwrap();
            assert_eq!(back.bytes().unwrap(), bytes, "{dtype} {format:?}");
        }
    }
    let copies = store.stats().copies;
    assert_eq!(
        copies.iter().map(|copy| (&copy.reason[..], copy.count)).collect::<Vec<_>>(),
        [("file import", 17 + 47)]
    );
}

#[test]
fn one_tensor_of_many_is_read_by_skipping_the_others() {
    let store = LocalStore::builder().build();
    let holder = store.holder("test");
    let lease = |name: &str, dtype, bytes: &[u8]| {
        let shape = vec![bytes.len() / DType::size_bytes(dtype)];
        let mut reader = TensorReader::open(bytes, Format::Raw, Some(FileTensor::raw(dtype, shape))).unwrap();
        reader.put(0, &*store, &holder, &put(name)).unwrap()
    };
    let (bytes, words) = (lease("bytes", DType::U8, &numbers(5)), lease("words", DType::F64, &numbers(80)));
    let mut file = Vec::new();
    write(&mut file, Format::Safetensors, &[("bytes", &bytes), ("words", &words)]).unwrap();
    let mut reader = TensorReader::open(&file[..], Format::Safetensors, None).unwrap();
    let names: Vec<_> = reader.entries().iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names, ["words", "bytes"]);
    let mut target = [0; 5];
    reader.read(1, &mut target).unwrap();
    assert_eq!(target[..], numbers(5));
    assert!(reader.read(0, &mut [0; 80]).is_err(), "a skipped tensor cannot be read later");
    assert!(write(&mut Vec::new(), Format::Npy, &[("bytes", &bytes), ("words", &words)]).is_err());
}

#[test]
fn big_endian_elements_are_swapped() {
    let header = b"\x93NUMPY\x01\x00\x3a\x00{'descr': '>i4', 'fortran_order': False, 'shape': (2,), }\n";
    let file = [&header[..], &[0, 0, 0, 1, 0, 0, 1, 0]].concat();
    let mut reader = TensorReader::open(&file[..], Format::Npy, None).unwrap();
    let mut target = [0; 8];
    reader.read(0, &mut target).unwrap();
    assert_eq!(target, [1, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn column_major_becomes_row_major_in_one_copy() {
    let store = LocalStore::builder().build();
    // numpy.asfortranarray(numpy.arange(6, dtype='>i2').reshape(2, 3)), as numpy 2.4 saves it.
    let header = b"{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }";
    let header = [&b"\x93NUMPY\x01\x00\x76\x00"[..], header, &[b' '; 59], b"\n"].concat();
    let file = [&header[..], &[0, 0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5]].concat();
    let mut reader = TensorReader::open(&file[..], Format::Npy, None).unwrap();
    let lease = reader.put(0, &*store, &store.holder("test"), &put("x")).unwrap();
    assert_eq!((lease.shape(), lease.layout().is_contiguous()), (&[2, 3][..], true));
    assert_eq!(lease.bytes().unwrap(), [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]);
    let copies = store.stats().copies;
    assert_eq!(
        copies.iter().map(|copy| (&copy.reason[..], copy.count, copy.bytes)).collect::<Vec<_>>(),
        [("file import", 1, 12)]
    );
    let mut short = TensorReader::open(&file[..file.len() - 1], Format::Npy, None).unwrap();
    assert_eq!(short.read(0, &mut [0; 12]).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn files_of_the_wrong_length_are_refused() {
    let entry = || Some(FileTensor::raw(DType::F32, vec![2]));
    let short = TensorReader::open(&[0; 7][..], Format::Raw, entry()).unwrap().read(0, &mut [0; 8]).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::Corrupt);
    let mut long = TensorReader::open(&[0; 9][..], Format::Raw, entry()).unwrap();
    assert_eq!(long.read(0, &mut [0; 8]).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(TensorReader::open(&[0; 8][..], Format::Raw, None).is_err());
    assert!(TensorReader::open(&[0; 8][..], Format::Npy, entry()).is_err());
    let huge = Some(FileTensor::raw(DType::F64, vec![usize::MAX, 2]));
    assert_eq!(TensorReader::open(&[0; 8][..], Format::Raw, huge).err().unwrap().field(), Some("shape"));
}
