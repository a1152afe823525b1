//! Measures the memory of a second model, the time of a hit, and the overhead of the layer, as ratios of interleaved
//! medians. Uses the demo's seeded BERT-base, which is generated at first use.
#![allow(clippy::unwrap_used)]

use cotensor::LocalOptions;
use cotensor::memory::{PackCache, process};
use cotensor::model::engine::{Engine, FileMode, RtenEngine};
use cotensor::model::tensor::Array;
use cotensor::model::tensor::Value;
use cotensor_demo::materialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
const HITS: usize = 50;

fn main() {
    let cache = std::env::var_os("COTENSOR_CACHE").map_or_else(|| PackCache::default_dir().unwrap(), PathBuf::from);
    let folder = materialize("bert-base", &cache.join("models"), &|_, _| true).unwrap();
    if std::env::args().any(|argument| argument == "--second-process") {
        return second_process(&cache, &folder);
    }
    let weights = std::fs::metadata(folder.join("onnx/model.onnx_data")).unwrap().len();
    println!("BERT-base, {:.1} MiB of weights, {} cores", mib(weights), std::thread::available_parallelism().unwrap());
    memory(&cache, &folder, weights);
    time(&cache, &folder);
}

fn options(cache: &Path) -> LocalOptions {
    let engine = Some(RtenEngine::NAME.to_owned());
    LocalOptions { cache: Some(cache.to_path_buf()), engine, ..LocalOptions::default() }
}

fn input() -> Value {
    Value::from(Array::i64([1, 128], (0..128).map(|i| 1000 + i * 37 % 20_000).collect()).unwrap())
}

/// Memory added by a second model in this process, and by a second process, with every page of the weights touched.
fn memory(cache: &Path, folder: &Path, weights: u64) {
    let pid = std::process::id();
    let runtime = options(cache).runtime().unwrap();
    let holder = runtime.store().holder("bench");
    let ids = input();
    let ones = Value::from(Array::i64([1, 128], vec![1; 128]).unwrap());
    let zeros = Value::from(Array::i64([1, 128], vec![0; 128]).unwrap());
    let inputs = [("input_ids", &ids), ("attention_mask", &ones), ("token_type_ids", &zeros)];
    let first = runtime.open(folder).unwrap().stage("encoder").unwrap();
    first.run(&inputs, &["last_hidden_state"], &holder).unwrap();
    let one = process::pss_bytes(pid).unwrap();
    // A copy of the folder: only the content is equal.
    let twin = tempfile::tempdir_in(cache).unwrap();
    let twin_folder = twin.path().join("twin");
    copy(folder, &twin_folder);
    let model = runtime.open(&twin_folder).unwrap();
    let stage = model.stage("encoder").unwrap();
    let other = Value::from(Array::i64([1, 128], (0..128).map(|i| 2000 + i).collect()).unwrap());
    let inputs = [("input_ids", &other), ("attention_mask", &ones), ("token_type_ids", &zeros)];
    assert!(stage.run(&inputs, &["last_hidden_state"], &holder).unwrap().computed);
    let two = process::pss_bytes(pid).unwrap();
    report(
        "a second model in the process adds, share of the weights (at most 0.03)",
        two.saturating_sub(one) as f64 / weights as f64,
    );
    let alone = process::pss_bytes(pid).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("--second-process")
        .env("COTENSOR_CACHE", cache)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    let both = process::pss_bytes(pid).unwrap() + process::pss_bytes(child.id()).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    report(
        "a second process adds, share of the weights (at most 0.05)",
        both.saturating_sub(alone) as f64 / weights as f64,
    );
}

/// Opens and runs the model, prints a line, and waits until standard input is closed.
fn second_process(cache: &Path, folder: &Path) {
    let runtime = options(cache).runtime().unwrap();
    let model = runtime.open(folder).unwrap();
    let stage = model.stage("encoder").unwrap();
    let (ids, ones) = (input(), Value::from(Array::i64([1, 128], vec![1; 128]).unwrap()));
    let zeros = Value::from(Array::i64([1, 128], vec![0; 128]).unwrap());
    let inputs = [("input_ids", &ids), ("attention_mask", &ones), ("token_type_ids", &zeros)];
    stage.run(&inputs, &["last_hidden_state"], &runtime.store().holder("second")).unwrap();
    println!("ready");
    std::io::read_to_string(std::io::stdin()).unwrap();
}

/// A stage through Cotensor and on plain rten, and hits.
fn time(cache: &Path, folder: &Path) {
    let runtime = options(cache).runtime().unwrap();
    let holder = runtime.store().holder("bench");
    let stage = runtime.open(folder).unwrap().stage("encoder").unwrap();
    let engine = RtenEngine::new(None).plain();
    let plain = engine.load_file(&folder.join("onnx/model.onnx"), FileMode::Read).unwrap();
    let ones = Value::from(Array::i64([1, 128], vec![1; 128]).unwrap());
    let zeros = Value::from(Array::i64([1, 128], vec![0; 128]).unwrap());
    let (mut through, mut direct, mut hits, mut first_hits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as i64 {
        let fresh = || Value::from(Array::i64([1, 128], (0..128).map(|i| 1000 + round * 128 + i).collect()).unwrap());
        let ids = fresh();
        let inputs = [("input_ids", &ids), ("attention_mask", &ones), ("token_type_ids", &zeros)];
        through.push(timed(|| assert!(stage.run(&inputs, &["last_hidden_state"], &holder).unwrap().computed)));
        let views = inputs.map(|(name, value)| (name, value.tensor().unwrap()));
        direct.push(timed(|| drop(plain.run_alone(&views, &["last_hidden_state"]).unwrap())));
        let hit = || timed(|| assert!(!stage.run(&inputs, &["last_hidden_state"], &holder).unwrap().computed));
        // The first hit follows a run of the engine, with cold processor caches.
        first_hits.push(hit());
        hits.extend((0..HITS).map(|_| hit()));
    }
    let (through, direct) = (median(through), median(direct));
    println!("a run through Cotensor {:.1} ms, plain rten {:.1} ms", ms(through), ms(direct));
    report("a run through Cotensor over plain rten (at most 1.05)", through.as_secs_f64() / direct.as_secs_f64());
    report("a hit with hashed inputs, in microseconds (at most 20)", ms(median(hits)) * 1e3);
    report("a hit right after the engine ran, in microseconds", ms(median(first_hits)) * 1e3);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn report(what: &str, figure: f64) {
    println!("{figure:9.3}  {what}");
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
