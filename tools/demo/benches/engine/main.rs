//! Measures the fast engine beside its peers in one run: ratios of interleaved medians, with the bounds that the project
//! sets itself. Uses the demo's seeded models, which are generated at first use.
//!
//! The peers onnxruntime and torch run in the interpreter that `COTENSOR_BENCH_PYTHON` names, by default `python3`. A
//! peer that it cannot import is left out. Arguments select parts: `path`, `processes`, `open`, `decoding`.
#![allow(clippy::unwrap_used)]

mod decoding;
mod inputs;
mod open;
mod path;
mod peer;
mod processes;

use cotensor::LocalOptions;
use cotensor::Runtime;
use cotensor::memory::PackCache;
use cotensor_demo::materialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The engine that is measured.
const ENGINE: &str = "ort";

/// A part of the bench; its argument is the folder of the cache.
type Part = fn(&Path);

/// The argument of a child process; the part that it runs, the engine and the index follow.
const CHILD: &str = "--child";

fn main() {
    let cache = std::env::var_os("COTENSOR_CACHE").map_or_else(|| PackCache::default_dir().unwrap(), PathBuf::from);
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [CHILD, part, engine, index] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return match part {
            "open" => open::child(&cache, engine),
            _ => processes::child(&cache, engine, index.parse().unwrap()),
        };
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{threads} processors; threads as the engines choose");
    let parts: [(&str, Part); 4] =
        [("path", path::run), ("processes", processes::run), ("open", open::run), ("decoding", decoding::run)];
    for (name, run) in parts {
        if arguments.is_empty() || arguments.iter().any(|argument| argument == name) {
            println!("{name}");
            run(&cache);
        }
    }
}

/// The folder of a seeded model.
fn model(cache: &Path, name: &str) -> PathBuf {
    materialize(name, &cache.join("models"), &|_, _| true).unwrap()
}

/// A runtime of this process; `None`, with a message, if the engine's library is missing.
fn runtime(cache: &Path, engine: &str) -> Option<Arc<Runtime>> {
    let options =
        LocalOptions { cache: Some(cache.to_path_buf()), engine: Some(engine.to_owned()), ..LocalOptions::default() };
    options.runtime().inspect_err(|error| println!("  {engine} left out: {error}")).ok()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let made = work();
    (start.elapsed(), made)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Prints a figure beside its bound.
fn at_most(what: &str, figure: f64, bound: f64) {
    let met = if figure <= bound { "met" } else { "MISSED" };
    println!("  {figure:9.3}  {what}; at most {bound}: {met}");
}

/// As [`at_most`], for a figure that should be large.
fn at_least(what: &str, figure: f64, bound: f64) {
    let met = if figure >= bound { "met" } else { "MISSED" };
    println!("  {figure:9.3}  {what}; at least {bound}: {met}");
}
