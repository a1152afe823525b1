//! Leases a graph's weights and reads the missing ones into the store.

use super::codes::StoredCodes;
use super::hash::{CHUNK_BYTES, WeightFiles, hash_weights, read_whole};
use super::note::{read_note, write_note};
use crate::graph::content::to_f32;
use crate::graph::{Graph, Weight};
use cotensor_core::{ContentHash, Device, Error, ErrorKind, Result};
use cotensor_store::{BlobSource, BlobSpec, CopyReason, Holder, Lease, Store};
use std::time::SystemTime;

/// The most bytes of a weight's label.
const LABEL_BYTES_MAX: usize = 400;

/// A graph's weights in a store.
#[derive(Debug)]
pub struct LoadedWeights {
    /// One lease for each of [`Graph::weights`], in that order.
    pub leases: Vec<Lease>,
    /// The content hash of each.
    pub hashes: Vec<ContentHash>,
}

/// Leases the weights of `graph` for `holder` and reads the weights that the store lacks from the graph's files.
/// `producer` is the name in reports.
///
/// The store keeps a note with the content hashes under the identity of the files (path, device, inode, size, times). A
/// second process reads the note instead of the files.
///
/// # Errors
/// `Conflict` for a file that changes while it is read, `Io`, or as
/// [`BlobStore::blobs`](cotensor_store::BlobStore::blobs).
pub fn load_weights(graph: &Graph, store: &dyn Store, holder: &Holder, producer: &str) -> Result<LoadedWeights> {
    load_at(graph, store, holder, producer, SystemTime::now())
}

/// As [`load_weights`] at the time `now`. The times of a file that was written shortly before cannot be trusted.
fn load_at(
    graph: &Graph,
    store: &dyn Store,
    holder: &Holder,
    producer: &str,
    now: SystemTime,
) -> Result<LoadedWeights> {
    let weights = HashedWeights::at(graph, store, now)?;
    Ok(LoadedWeights { leases: weights.lease(holder, producer)?, hashes: weights.hashes })
}

/// A graph's weights, before they are in a store: their files and content hashes.
pub struct HashedWeights<'g> {
    pub(super) weights: &'g [Weight],
    files: WeightFiles,
    hashes: Vec<ContentHash>,
    store: &'g dyn Store,
    now: SystemTime,
}

impl<'g> HashedWeights<'g> {
    /// Opens the files of the weights. Takes the hashes from the store's note, or reads the files.
    ///
    /// # Errors
    /// `Conflict` for a file that changes while it is read, and `Io`.
    pub fn of(graph: &'g Graph, store: &'g dyn Store) -> Result<Self> {
        Self::at(graph, store, SystemTime::now())
    }

    fn at(graph: &'g Graph, store: &'g dyn Store, now: SystemTime) -> Result<Self> {
        let weights = graph.weights();
        let mut files = WeightFiles::default();
        for weight in weights {
            files.open(&weight.source.file)?;
        }
        let key = files.identity(graph);
        if let Some(hashes) = store.get_note(&key).and_then(|note| read_note(&note, weights.len())) {
            return Ok(Self { weights, files, hashes, store, now });
        }
        let hashes = hash_weights(weights, &files)?;
        if files.settled(now) {
            store.put_note(&key, &write_note(&hashes));
        }
        Ok(Self { weights, files, hashes, store, now })
    }

    /// The content hash of each of [`Graph::weights`], in that order.
    pub fn hashes(&self) -> &[ContentHash] {
        &self.hashes
    }

    /// As [`load_weights`]: one lease for each of [`Graph::weights`], in that order.
    ///
    /// # Errors
    /// As [`load_weights`].
    pub fn lease(&self, holder: &Holder, producer: &str) -> Result<Vec<Lease>> {
        self.lease_described(holder, producer, &StoredCodes::default())
    }

    /// As [`lease`](Self::lease), with metadata of codes.
    pub(crate) fn lease_described(&self, holder: &Holder, producer: &str, codes: &StoredCodes) -> Result<Vec<Lease>> {
        let weights = self.weights.iter().zip(&self.hashes).zip(codes.describe(self.weights));
        let specs: Vec<BlobSpec> = weights
            .map(|((weight, &hash), metadata)| BlobSpec {
                device: Device::Cpu,
                hash,
                dtype: weight.dtype,
                shape: weight.shape.clone(),
                producer: producer.to_owned(),
                label: label_of(weight, producer),
                metadata,
            })
            .collect();
        let leases = self.store.blobs(&specs, &mut self.reader(), holder)?;
        if leases.len() != specs.len() {
            let message = format!("the store gave {} leases for {} weights", leases.len(), specs.len());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(leases)
    }

    /// Reads weights from the files.
    pub(super) fn reader(&self) -> WeightReader<'_> {
        let Self { weights, files, hashes, store, now } = self;
        WeightReader { weights, hashes, files, store: *store, now: *now }
    }
}

/// The model and the name of a weight; nothing for a name that is too long to be shown.
fn label_of(weight: &Weight, producer: &str) -> String {
    let label = format!("{}/{}", producer.trim_start_matches("model:"), weight.name);
    if label.len() > LABEL_BYTES_MAX { String::new() } else { label }
}

/// Reads weights into memory of the store or into a file.
pub(super) struct WeightReader<'a> {
    weights: &'a [Weight],
    hashes: &'a [ContentHash],
    files: &'a WeightFiles,
    store: &'a dyn Store,
    now: SystemTime,
}

impl BlobSource for WeightReader<'_> {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        let weight = &self.weights[index];
        let file = self.files.of(weight);
        let source = &weight.source;
        if source.is_rearranged() {
            read_whole(file, weight, target)?;
            let is_converted = source.dtype != weight.dtype;
            let reason = if is_converted { CopyReason::EngineConversion } else { CopyReason::FileImport };
            self.store.record_copy(&weight.name, reason, target.len());
        } else if source.dtype == weight.dtype {
            file.read_parallel(source.offset, target)?;
            self.store.record_copy(&weight.name, CopyReason::FileImport, target.len());
        } else {
            let width = source.dtype.size_bytes();
            let mut buffer = vec![0; CHUNK_BYTES.min(source.length as usize)];
            let mut offset = source.offset;
            for part in target.chunks_mut(CHUNK_BYTES / width * weight.dtype.size_bytes()) {
                let bytes = &mut buffer[..part.len() / weight.dtype.size_bytes() * width];
                file.read(offset, bytes)?;
                to_f32(source.dtype, bytes, part);
                offset += bytes.len() as u64;
            }
            self.store.record_copy(&weight.name, CopyReason::EngineConversion, target.len());
        }
        file.check_unchanged()?;
        // The times of a file that was just written do not show a second write.
        if !file.settled(self.now) {
            let mut hasher = blake3::Hasher::new();
            hasher.update_rayon(target);
            if hasher.finalize().as_bytes() != self.hashes[index].as_bytes() {
                return Err(file.changed());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::graph::{WeightSource, open_graph};
    use cotensor_core::DType;
    use cotensor_store::LocalStore;
    use cotensor_store::{BlobStore, TensorStore};
    use rten_onnx::onnx::{
        DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    };
    use std::cell::RefCell;
    use std::io::Write;
    use std::path::Path;
    use std::time::Duration;

    const BYTES: usize = 4096;

    fn weight(path: &Path, dtype: DType, bytes: usize) -> Weight {
        let source = WeightSource {
            file: path.to_path_buf(),
            offset: 0,
            length: bytes as u64,
            dtype,
            permutation: None,
            repacks: Vec::new(),
        };
        Weight { name: "w".to_owned(), dtype: DType::F32, shape: vec![bytes / dtype.size_bytes()], source }
    }

    /// An open file of weights.
    fn weights_file(bytes: &[u8]) -> (tempfile::NamedTempFile, WeightFiles) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let mut files = WeightFiles::default();
        files.open(file.path()).unwrap();
        (file, files)
    }

    fn fill(weight: &Weight, hash: ContentHash, files: &WeightFiles, now: SystemTime) -> Result<Vec<u8>> {
        let store = LocalStore::builder().build();
        let mut target = vec![0; weight.size_bytes()];
        let weights = std::slice::from_ref(weight);
        WeightReader { weights, hashes: &[hash], files, store: &*store, now }.fill(0, &mut target)?;
        Ok(target)
    }

    #[test]
    fn changed_file_is_a_conflict() {
        let (mut file, files) = weights_file(&[1; BYTES]);
        let weight = weight(file.path(), DType::F32, BYTES);
        let hash = hash_weights(std::slice::from_ref(&weight), &files).unwrap()[0];
        assert_eq!(hash, ContentHash::of(&[1; BYTES]));
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(fill(&weight, hash, &files, later).unwrap(), [1; BYTES]);
        // The times change.
        file.write_all(&[2]).unwrap();
        let error = fill(&weight, hash, &files, later).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Conflict, Some(file.path())));
    }

    #[test]
    fn content_is_checked_when_the_times_cannot_be_trusted() {
        let (file, files) = weights_file(&[1; BYTES]);
        let weight = weight(file.path(), DType::F32, BYTES);
        let other = ContentHash::of(&[2; BYTES]);
        let error = fill(&weight, other, &files, SystemTime::now()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }

    #[test]
    fn conversion_in_chunks_equals_conversion_in_one_pass() {
        let count = CHUNK_BYTES / 2 + 1000;
        let halves: Vec<u8> = (0..count).flat_map(|index| ((index * 31 % 0x7c00) as u16).to_le_bytes()).collect();
        let (file, files) = weights_file(&halves);
        let weight = weight(file.path(), DType::F16, halves.len());
        let hash = hash_weights(std::slice::from_ref(&weight), &files).unwrap()[0];
        let filled = fill(&weight, hash, &files, SystemTime::now()).unwrap();
        let last = halves.len() - 2;
        let mut value = [0; 4];
        to_f32(DType::F16, &halves[last..], &mut value);
        assert_eq!(filled[filled.len() - 4..], value);
        assert_eq!(ContentHash::of(&filled), hash);
    }

    #[test]
    fn large_reads_are_complete() {
        let bytes: Vec<u8> = (0..(9 << 20) + 5).map(|index: usize| (index % 251) as u8).collect();
        let (file, files) = weights_file(&bytes);
        let mut target = vec![0; bytes.len() - 3];
        files.of(&weight(file.path(), DType::F32, BYTES)).read_parallel(3, &mut target).unwrap();
        assert!(target == bytes[3..]);
    }

    #[test]
    fn note_is_written_for_settled_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/vit/onnx");
        for name in ["model.onnx", "model.onnx_data"] {
            // Written, not copied, so that the times are new.
            std::fs::write(folder.path().join(name), std::fs::read(path.join(name)).unwrap()).unwrap();
        }
        let graph = open_graph(&folder.path().join("model.onnx")).unwrap();
        let mut files = WeightFiles::default();
        for weight in graph.weights() {
            files.open(&weight.source.file).unwrap();
        }
        let key = files.identity(&graph);
        let store = LocalStore::builder().build();
        let holder = store.holder("test");
        let hashes = load_at(&graph, &*store, &holder, "test", SystemTime::now()).unwrap().hashes;
        assert_eq!(store.get_note(&key), None);
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(load_at(&graph, &*store, &holder, "test", later).unwrap().hashes, hashes);
        assert_eq!(store.get_note(&key), Some(write_note(&hashes)));
        // The next load uses the note, but not a damaged one.
        let others: Vec<_> = hashes.iter().map(|hash| ContentHash::of(hash.as_bytes())).collect();
        store.put_note(&key, &write_note(&others));
        assert_eq!(load_at(&graph, &*store, &holder, "test", later).unwrap().hashes, others);
        let mut damaged = write_note(&others);
        damaged[0] ^= 1;
        store.put_note(&key, &damaged);
        assert_eq!(load_at(&graph, &*store, &holder, "test", later).unwrap().hashes, hashes);
    }

    #[test]
    fn an_engine_that_converts_weights_has_a_note_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("half.onnx");
        let halves: Vec<u8> = (0..BYTES / 2).flat_map(|index| ((index % 0x7c00) as u16).to_le_bytes()).collect();
        std::fs::write(&path, half_precision(halves).write_buf().unwrap()).unwrap();
        let store = LocalStore::builder().build();
        let later = SystemTime::now() + Duration::from_secs(60);
        let hash = |widens: bool| {
            let mut graph = open_graph(&path).unwrap();
            if widens {
                graph.widen();
            }
            let loaded = load_at(&graph, &*store, &store.holder("test"), "test", later).unwrap();
            assert_eq!(loaded.leases[0].dtype(), graph.weights()[0].dtype);
            loaded.hashes[0]
        };
        let half = hash(false);
        assert_ne!(hash(true), half);
        assert_eq!(hash(false), half);
    }

    /// `y = x + w` with a `float16` weight.
    fn half_precision(halves: Vec<u8>) -> ModelProto {
        let name = |name: &str| Some(name.to_owned());
        let weight = TensorProto {
            name: name("w"),
            dims: vec![halves.len() as i64 / 2],
            data_type: Some(DataType::FLOAT16),
            raw_data: Some(RefCell::new(halves)),
            ..TensorProto::default()
        };
        let node = NodeProto {
            op_type: name("Add"),
            input: vec!["x".into(), "w".into()],
            output: vec!["y".into()],
            ..NodeProto::default()
        };
        let port = |port: &str| ValueInfoProto { name: name(port), r#type: None };
        ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
            graph: Some(GraphProto {
                node: vec![node],
                initializer: vec![weight],
                input: vec![port("x")],
                output: vec![port("y")],
                value_info: vec![],
            }),
            ..ModelProto::default()
        }
    }

    /// Maps a file and writes each number from its input to the byte at an offset, without flushing.
    const WRITER: &str = "import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    mapping = mmap.mmap(file.fileno(), 0)
    for line in sys.stdin:
        mapping[int(sys.argv[2])] = int(line)
        print('written', flush=True)
";

    #[test]
    fn write_through_a_mapping_is_detected() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        // The build folder is on a disk. A tmpfs never writes its pages back, so it does not show a change.
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/vit/onnx");
        for name in ["model.onnx", "model.onnx_data"] {
            std::fs::write(folder.path().join(name), std::fs::read(fixtures.join(name)).unwrap()).unwrap();
        }
        let graph = open_graph(&folder.path().join("model.onnx")).unwrap();
        let written = &graph.weights().iter().max_by_key(|weight| weight.source.length).unwrap().source;
        let mut writer = Command::new("python3");
        writer.args(["-c", WRITER]).arg(&written.file).arg(written.offset.to_string());
        let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut numbers, out) = (writer.stdin.take().unwrap(), writer.stdout.take().unwrap());
        let mut written = BufReader::new(out).lines();
        let mut write = |number: u8| {
            writeln!(numbers, "{number}").unwrap();
            assert_eq!(written.next().unwrap().unwrap(), "written");
        };
        let store = LocalStore::builder().build();
        let holder = store.holder("test");
        let quiet = SystemTime::now() + Duration::from_secs(60);
        let load = || load_at(&graph, &*store, &holder, "test", quiet).unwrap().hashes;
        write(1);
        let first = load();
        assert_eq!(load(), first);
        write(2);
        assert_ne!(load(), first);
        drop(numbers);
        assert!(writer.wait().unwrap().success());
    }
}
