//! Blobs: packed, adopted from a cache, with several dtypes and shapes, on the host and on a device.

use cotensor_core::testing::FakeDevice;
use cotensor_core::{
    ALIGNMENT, BlobCache, BlobLocation, ContentHash, DType, Device, Error, ErrorKind, HeapMemory, Memory, PackMut,
    Result, SegmentMut,
};
use cotensor_store::{BlobSource, BlobSpec, BlobStore, Lease, LocalStore, MemoryControl, StoreReports, TensorStore};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A source of blobs from memory. Counts its calls.
#[derive(Default)]
struct Source {
    contents: Vec<Vec<u8>>,
    filled: usize,
}

impl Source {
    fn new(contents: &[&[u8]]) -> (Self, Vec<BlobSpec>) {
        let contents: Vec<Vec<u8>> = contents.iter().map(|bytes| bytes.to_vec()).collect();
        let spec = |bytes: &Vec<u8>| BlobSpec {
            device: Device::Cpu,
            hash: ContentHash::of(bytes),
            dtype: DType::U8,
            shape: vec![bytes.len()],
            producer: "bert".to_owned(),
            label: String::new(),
            metadata: None,
        };
        let specs = contents.iter().map(spec).collect();
        (Self { contents, filled: 0 }, specs)
    }
}

impl BlobSource for Source {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        self.filled += 1;
        target.copy_from_slice(&self.contents[index]);
        Ok(())
    }
}

/// A cache in memory. It fails with a full disk, at `begin` (`full`) or at `commit` (`fails_to_commit`).
#[derive(Clone, Default)]
struct FakeCache(Arc<FakeCacheState>);

#[derive(Default)]
struct FakeCacheState {
    blobs: Mutex<HashMap<ContentHash, BlobLocation>>,
    notes: Mutex<HashMap<ContentHash, Vec<u8>>>,
    full: AtomicBool,
    fails_to_commit: AtomicBool,
}

struct FakePack {
    cache: FakeCache,
    entries: Vec<(ContentHash, Box<dyn SegmentMut>)>,
}

fn no_room() -> Error {
    Error::new(ErrorKind::Io, "no room")
}

impl BlobCache for FakeCache {
    fn find(&self, hash: &ContentHash) -> Option<BlobLocation> {
        self.0.blobs.lock().unwrap().get(hash).cloned()
    }

    fn begin(&self, entries: &[(ContentHash, usize)]) -> Result<Box<dyn PackMut>> {
        if self.0.full.load(Ordering::SeqCst) {
            return Err(no_room());
        }
        let reserve = |&(hash, len): &(ContentHash, usize)| Ok((hash, HeapMemory.reserve(len)?));
        Ok(Box::new(FakePack { cache: self.clone(), entries: entries.iter().map(reserve).collect::<Result<_>>()? }))
    }

    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        self.0.notes.lock().unwrap().get(key).cloned()
    }

    fn put_note(&self, key: &ContentHash, note: &[u8]) -> Result<()> {
        if self.0.full.load(Ordering::SeqCst) {
            return Err(no_room());
        }
        self.0.notes.lock().unwrap().insert(*key, note.to_vec());
        Ok(())
    }
}

impl PackMut for FakePack {
    fn entry_mut(&mut self, index: usize) -> &mut [u8] {
        self.entries[index].1.bytes_mut().unwrap()
    }

    fn commit(self: Box<Self>) -> Result<Vec<BlobLocation>> {
        if self.cache.0.fails_to_commit.load(Ordering::SeqCst) {
            return Err(no_room());
        }
        let mut blobs = self.cache.0.blobs.lock().unwrap();
        let insert = |(hash, segment): (ContentHash, Box<dyn SegmentMut>)| {
            let len = segment.len();
            let located: BlobLocation = (segment.freeze()?, 0..len);
            blobs.insert(hash, located.clone());
            Ok(located)
        };
        self.entries.into_iter().map(insert).collect()
    }
}

fn address(lease: &Lease) -> usize {
    lease.bytes().unwrap().as_ptr() as usize
}

#[test]
fn blobs_are_named_by_label_and_hash() {
    let store = LocalStore::builder().build();
    let holder = store.holder("bert");
    let (mut source, mut specs) = Source::new(&[b"first", b"other"]);
    for spec in &mut specs {
        spec.label = "bert/pooler.bias".to_owned();
    }
    let leases = store.blobs(&specs, &mut source, &holder).unwrap();
    for (lease, spec) in leases.iter().zip(&specs) {
        assert_eq!(lease.name(), format!("weight/bert/pooler.bias/{}", spec.hash.short()));
    }
    let (mut source, mut specs) = Source::new(&[b"third"]);
    specs[0].label = "n".repeat(2000);
    let long = store.blobs(&specs, &mut source, &holder).unwrap();
    assert_eq!(long[0].name(), format!("weight/{}", specs[0].hash));
}

#[test]
fn blobs_are_packed_aligned_and_once() {
    let store = LocalStore::builder().build();
    let holder = store.holder("bert");
    let (mut source, specs) = Source::new(&[b"first", &[7; 100], b"", b"first"]);
    let leases = store.blobs(&specs, &mut source, &holder).unwrap();
    assert_eq!(source.filled, 3, "equal contents are filled once");
    assert!(leases.iter().all(|lease| std::ptr::addr_eq(lease.segment(), leases[0].segment())));
    assert!(leases.iter().all(|lease| address(lease).is_multiple_of(ALIGNMENT)));
    assert_eq!(address(&leases[0]), address(&leases[3]));
    assert_eq!((leases[0].bytes().unwrap(), leases[2].bytes().unwrap()), (&b"first"[..], &b""[..]));
    assert_eq!(leases[0].name(), format!("weight/{}", specs[0].hash));
    let used = store.stats().memory_usage_bytes;
    assert_eq!(used, 64 + 128, "the budget counts capacity");
    drop(leases);

    // The next model leases the same blobs and fills none.
    let again = store.blobs(&specs, &mut source, &store.holder("other")).unwrap();
    assert_eq!((source.filled, store.stats().memory_usage_bytes), (3, used));
    assert_eq!(store.optimize().freed_tensors_count, 0);
    // A pack is freed as a whole: one lease keeps it.
    let one = again.into_iter().next().unwrap();
    assert_eq!(store.optimize().freed_tensors_count, 0);
    drop(one);
    assert_eq!((store.optimize().freed_tensors_count, store.stats().memory_usage_bytes), (3, 0));
}

#[test]
fn blob_is_leased_in_several_shapes_and_dtypes() {
    let store = LocalStore::builder().build();
    let holder = store.holder("bert");
    let bytes = [0u8; 24];
    let spec = |dtype, shape: &[usize]| BlobSpec {
        device: Device::Cpu,
        hash: ContentHash::of(&bytes),
        dtype,
        shape: shape.to_vec(),
        producer: "bert".to_owned(),
        label: String::new(),
        metadata: None,
    };
    let mut source = Source { contents: vec![bytes.to_vec(); 3], filled: 0 };
    let specs = [spec(DType::F32, &[6]), spec(DType::F32, &[1, 6]), spec(DType::I64, &[3])];
    let leases = store.blobs(&specs, &mut source, &holder).unwrap();
    assert_eq!(source.filled, 1);
    assert_eq!((leases[1].shape(), leases[2].shape(), leases[2].dtype()), (&[1, 6][..], &[3][..], DType::I64));
    assert_eq!(leases[2].typed::<i64>().unwrap(), [0; 3]);
    assert!(leases[2].typed::<f32>().is_err());
    assert_eq!(address(&leases[0]), address(&leases[2]));
    assert_eq!(leases[1].try_clone().unwrap().shape(), [1, 6]);
    // One blob, three identities, which do not depend on the order of the requests.
    let identities: Vec<_> = leases.iter().map(Lease::identity).collect();
    assert!(identities[0] != identities[1] && identities[0] != identities[2] && identities[1] != identities[2]);
    assert_eq!(leases[1].try_clone().unwrap().identity(), identities[1]);
    let other = LocalStore::builder().build();
    for (spec, identity) in specs.iter().zip(&identities).rev() {
        let leases = other.blobs(std::slice::from_ref(spec), &mut source, &other.holder("clip")).unwrap();
        assert_eq!(leases[0].identity(), *identity);
    }
    let other_size = [spec(DType::U8, &[24]), spec(DType::U8, &[25])];
    assert_eq!(store.blobs(&other_size, &mut source, &holder).unwrap_err().kind(), ErrorKind::Invalid);
    let wrong_size = [spec(DType::U8, &[23])];
    assert_eq!(store.blobs(&wrong_size, &mut source, &holder).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn cached_blobs_are_adopted_without_a_copy() {
    let cache = FakeCache::default();
    let (mut source, specs) = Source::new(&[&[1; 1000], &[2; 500]]);
    {
        let store = LocalStore::builder().cache(Arc::new(cache.clone())).build();
        store.blobs(&specs, &mut source, &store.holder("first process")).unwrap();
    }
    assert_eq!(source.filled, 2);
    let store = LocalStore::builder().cache(Arc::new(cache.clone())).max_memory_bytes(1500).build();
    let leases = store.blobs(&specs, &mut source, &store.holder("second process")).unwrap();
    assert_eq!(source.filled, 2, "nothing is read again");
    assert_eq!(address(&leases[0]), cache.find(&specs[0].hash).unwrap().0.bytes().unwrap().as_ptr() as usize);
    assert_eq!(store.stats().memory_usage_bytes, 1500);
    let (mut more, more_specs) = Source::new(&[&[3; 10]]);
    let error = store.blobs(&more_specs, &mut more, &store.holder("third")).unwrap_err();
    assert_eq!((error.kind(), more.filled), (ErrorKind::OverBudget, 0));
    store.put_note(&specs[0].hash, b"note");
    assert_eq!(cache.get_note(&specs[0].hash).unwrap(), b"note");
}

#[test]
fn cache_errors_are_counted_and_blobs_still_load() {
    let cache = FakeCache::default();
    let store = LocalStore::builder().cache(Arc::new(cache.clone())).build();
    let holder = store.holder("bert");
    assert_eq!((store.diagnostics().cache_errors, store.diagnostics().last_cache_error), (0, None));
    for (flag, content) in [(&cache.0.full, 1u8), (&cache.0.fails_to_commit, 2)] {
        flag.store(true, Ordering::SeqCst);
        let bytes = [content; 32];
        let (mut source, specs) = Source::new(&[&bytes]);
        let leases = store.blobs(&specs, &mut source, &holder).unwrap();
        assert_eq!(leases[0].bytes().unwrap(), bytes);
        assert!(cache.find(&specs[0].hash).is_none());
        flag.store(false, Ordering::SeqCst);
        let diagnostics = store.diagnostics();
        assert_eq!(diagnostics.cache_errors, u64::from(content), "counted, although the call succeeded");
        assert!(diagnostics.last_cache_error.unwrap().contains("no room"));
    }
    cache.0.full.store(true, Ordering::SeqCst);
    store.put_note(&ContentHash::of(b"key"), b"note");
    assert_eq!(store.diagnostics().cache_errors, 3);
}

#[test]
fn device_blobs_are_filled_by_counted_copies() {
    let device = FakeDevice::default();
    let store = LocalStore::builder().memory(Arc::new(device.clone())).build();
    let (mut source, mut specs) = Source::new(&[b"weights", b"bias"]);
    let on_host = store.blobs(&specs, &mut source, &store.holder("bert")).unwrap();
    specs[0].device = Device::Fake(0);
    let error = store.blobs(&specs, &mut source, &store.holder("bert")).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("device")), "one request is for one device");
    specs[1].device = Device::Fake(0);
    let leases = store.blobs(&specs, &mut source, &store.holder("bert")).unwrap();
    assert_eq!(on_host[1].bytes().unwrap(), b"bias");
    assert_eq!(leases[1].name(), format!("{}@fake:0", on_host[1].name()));
    drop(on_host);
    let mut read = [0; 4];
    leases[1].segment().read_at(leases[1].layout().offset_bytes(), &mut read).unwrap();
    assert_eq!(&read, b"bias");
    let copies = store.diagnostics().copies;
    assert_eq!((&*copies[0].reason, copies[0].count, copies[0].bytes), ("device transfer", 2, 11));
    drop(leases);
    store.optimize();
    assert_eq!(device.live_bytes(), 0);
}

#[test]
fn potential_savings_equal_what_optimize_frees() {
    let store = LocalStore::builder().build();
    let holder = store.holder("bert");
    let (mut source, specs) = Source::new(&[&[1; 64], &[2; 6400]]);
    let savings = || (store.recommendations().potential_savings_mb * f64::from(1 << 20)) as u64;
    let mut leases = store.blobs(&specs, &mut source, &holder).unwrap();
    leases.truncate(1);
    assert_eq!(savings(), 0, "a pack with one leased blob stays");
    leases.clear();
    assert_eq!(savings(), 6464);
    assert_eq!(store.optimize().freed_memory_bytes, 6464);
    assert_eq!(savings(), 0);
}
