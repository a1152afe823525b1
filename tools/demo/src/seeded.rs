//! Seeded weights: real architectures at real size without a checkpoint.
//!
//! A skeleton lists the parameter and distribution of every large tensor. Values depend only on the parameter's key, so
//! that two graphs with the same parameter, or two machines, get the same bytes.

use cotensor::core::{ContentHash, Error, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of values per random stream; a tensor consists of as many streams as needed.
const STREAM_VALUES: usize = 1 << 18;

#[derive(Deserialize)]
struct Seeds {
    graphs: BTreeMap<String, GraphSeeds>,
}

#[derive(Deserialize)]
struct GraphSeeds {
    data: String,
    data_bytes: u64,
    tensors: Vec<TensorSeed>,
}

#[derive(Deserialize)]
struct TensorSeed {
    key: String,
    shape: Vec<usize>,
    offset: u64,
    init: Init,
    #[serde(default)]
    transposed: bool,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Init {
    Normal { mean: f32, std: f32 },
    Constant { value: f32 },
    Sinusoid,
}

/// Writes the external data files of all graphs in `seeds` (seed.json) into `folder`. `done` gets the bytes written so
/// far and in total, after every tensor and from several threads; it stops the writing by returning false.
pub(crate) fn write_weights(seeds: &[u8], folder: &Path, done: &(dyn Fn(u64, u64) -> bool + Sync)) -> Result<()> {
    let seeds: Seeds =
        serde_json::from_slice(seeds).map_err(|error| Error::corrupt(error.to_string()).in_field("seed.json"))?;
    let size = |tensor: &TensorSeed| (tensor.shape.iter().product::<usize>() * size_of::<f32>()) as u64;
    let total = seeds.graphs.values().flat_map(|graph| &graph.tensors).map(size).sum();
    let written = AtomicU64::new(0);
    let report = |tensor: &TensorSeed| {
        let bytes = size(tensor);
        done(written.fetch_add(bytes, Ordering::Relaxed) + bytes, total)
    };
    for graph in seeds.graphs.values() {
        let path = folder.join(&graph.data);
        let io = |error: std::io::Error| Error::io("cannot write seeded weights", &error).in_file(&path);
        let file = File::create_new(&path).map_err(io)?;
        file.set_len(graph.data_bytes).map_err(io)?;
        write_tensors(&file, &graph.tensors, &report).map_err(io)?;
    }
    Ok(())
}

fn write_tensors(
    file: &File,
    tensors: &[TensorSeed],
    done: &(dyn Fn(&TensorSeed) -> bool + Sync),
) -> std::io::Result<()> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(tensor) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
                        file.write_all_at(&bytes(&values(tensor)), tensor.offset)?;
                        if !done(tensor) {
                            return Err(std::io::Error::other("stopped"));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(std::io::Error::other("a writer thread panicked")))
        })
    })
}

fn values(tensor: &TensorSeed) -> Vec<f32> {
    let len = tensor.shape.iter().product();
    let drawn = match tensor.init {
        Init::Constant { value } => vec![value; len],
        Init::Normal { mean, std } => normal(&tensor.key, len, mean, std),
        Init::Sinusoid => sinusoid(&tensor.shape),
    };
    match (tensor.transposed, tensor.shape.as_slice()) {
        (true, &[rows, columns]) => transposed(&drawn, rows, columns),
        _ => drawn,
    }
}

fn normal(key: &str, len: usize, mean: f32, std: f32) -> Vec<f32> {
    let mut values = Vec::with_capacity(len);
    for stream in 0..len.div_ceil(STREAM_VALUES) {
        let seed = ContentHash::of(format!("cotensor seeded v1/{key}/{stream}").as_bytes());
        let mut rng = ChaCha8Rng::from_seed(*seed.as_bytes());
        let count = STREAM_VALUES.min(len - values.len());
        values.extend((0..count).map(|_| {
            let deviate: f32 = StandardNormal.sample(&mut rng);
            mean + std * deviate
        }));
    }
    values
}

/// Whisper's fixed positional embedding: `[positions, width]`, sines then cosines with geometrically decreasing
/// frequencies.
fn sinusoid(shape: &[usize]) -> Vec<f32> {
    let (width, positions) = (shape.last().copied().unwrap_or(1), shape.iter().rev().skip(1).product::<usize>());
    let half = width / 2;
    let step = (10_000f64).ln() / (half.max(2) - 1) as f64;
    let at = |position: usize, index: usize| {
        let angle = position as f64 * (-step * (index % half.max(1)) as f64).exp();
        if index < half { angle.sin() as f32 } else { angle.cos() as f32 }
    };
    (0..positions).flat_map(|position| (0..width).map(move |index| at(position, index))).collect()
}

/// Transposes a `[columns, rows]` matrix to `[rows, columns]`.
fn transposed(drawn: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut values = vec![0.0; drawn.len()];
    for (column, drawn_row) in drawn.chunks_exact(rows).enumerate() {
        for (row, &value) in drawn_row.iter().enumerate() {
            values[row * columns + column] = value;
        }
    }
    values
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_only_on_the_key() {
        let a = normal("layer.0", STREAM_VALUES + 5, 0.0, 1.0);
        assert_eq!(a, normal("layer.0", STREAM_VALUES + 5, 0.0, 1.0));
        assert_eq!(a[..9], normal("layer.0", 9, 0.0, 1.0)[..]);
        assert_ne!(a[..9], normal("layer.1", 9, 0.0, 1.0)[..]);
        let mean = a.iter().sum::<f32>() / a.len() as f32;
        assert!(mean.abs() < 0.02, "{mean}");
    }

    #[test]
    fn progress_is_reported_per_tensor() {
        let seeds = br#"{"graphs": {"model": {"data": "model.onnx_data", "data_bytes": 80, "tensors": [
            {"key": "a", "shape": [2, 4], "offset": 0, "init": {"kind": "constant", "value": 0.5}},
            {"key": "b", "shape": [12], "offset": 32, "init": {"kind": "normal", "mean": 0.0, "std": 1.0}}]}}}"#;
        let folder = tempfile::tempdir().unwrap();
        let reports = std::sync::Mutex::new(Vec::new());
        write_weights(seeds, folder.path(), &|done, total| {
            reports.lock().unwrap().push((done, total));
            true
        })
        .unwrap();
        let mut reports = reports.into_inner().unwrap();
        reports.sort_unstable();
        assert!(reports == [(32, 80), (80, 80)] || reports == [(48, 80), (80, 80)], "{reports:?}");
        let written = std::fs::read(folder.path().join("model.onnx_data")).unwrap();
        assert_eq!((&written[..32], written.len()), (&[0, 0, 0, 0x3f].repeat(8)[..], 80));
    }

    #[test]
    fn transposition_moves_every_element() {
        // Generated as 3 rows of 2: [[0, 1], [2, 3], [4, 5]]; stored as 2 rows of 3.
        assert_eq!(transposed(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2, 3), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }
}
