//! The runs behind a comparison: every way watched once and timed several times, each in a fresh process.

use crate::by_hand::{Onnxruntime, Peer};
use crate::compare::{Cost, DemoOptions};
use crate::measure::{Measured, Progress, WORKER_TIME_MAX, run};
use crate::scenario::Scenario;
use crate::worker::{Mode, WorkerOptions, WorkerReport};
use cotensor::core::{Error, Result};
use cotensor::model::pipeline::UserReport;
use std::path::Path;
use std::process::Command;

/// How the folders of cold runs begin, below the cache folder.
const COLD_PREFIX: &str = ".cold-";
/// How the folders of recorded runs begin, below the cache folder.
const RECORD_PREFIX: &str = ".recorded-";

/// The runs of one way.
pub(crate) struct Way {
    /// Its memory was read while it ran, which costs it time.
    pub(crate) watched: Measured,
    /// Not watched; at least one.
    pub(crate) timed: Vec<WorkerReport>,
}

impl Way {
    /// The timed run of median time, the faster one of the two in the middle.
    pub(crate) fn median(&self) -> &WorkerReport {
        let mut order: Vec<&WorkerReport> = self.timed.iter().collect();
        order.sort_by(|a, b| a.time_ms.total_cmp(&b.time_ms));
        order[(order.len() - 1) / 2]
    }

    pub(crate) fn cost(&self) -> Cost {
        Cost { memory_bytes: self.watched.peak_bytes(), time_ms: self.median().time_ms }
    }

    /// The users of every run, watched or timed.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[UserReport]> {
        std::iter::once(&self.watched.report).chain(&self.timed).map(|report| &report.users[..])
    }
}

/// All runs of one scenario.
pub(crate) struct Ways {
    pub(crate) without: Way,
    pub(crate) mapped: Way,
    pub(crate) by_hand: Way,
    pub(crate) with: Way,
    /// With Cotensor and an empty weight cache: what the very first run takes.
    pub(crate) with_cold: Way,
    /// The program by hand on onnxruntime, where a Python interpreter has it.
    pub(crate) onnxruntime: Option<Onnxruntime>,
}

/// Runs `scenario` in all ways on the model in `folder`.
///
/// # Errors
/// What a worker gives.
pub(crate) fn measure(
    scenario: &Scenario,
    folder: &Path,
    options: &DemoOptions,
    progress: &dyn Progress,
) -> Result<Ways> {
    remove_stale(&options.cache, COLD_PREFIX)?;
    remove_stale(&options.cache, RECORD_PREFIX)?;
    let recorded = empty_folder(&options.cache, RECORD_PREFIX)?;
    let mut onnxruntime = Peer::find(options, recorded.path());
    let peers = u64::from(onnxruntime.is_some());
    let ways = Mode::ALL.len() as u64;
    // Cold runs watched and timed, one that fills the cache; each way watched once and timed in each round.
    let total = 3 + ways + peers * 2 + (ways + peers) * options.repeats as u64;
    let mut done = 0;
    let mut step = |what: &str| {
        progress.step(done, total, &format!("{} {what}", scenario.name));
        done += 1;
    };
    let run_mode = |mode: Mode, watch: bool, cache: &Path, record: Option<&Path>| {
        let worker = WorkerOptions {
            scenario: scenario.name.to_owned(),
            mode,
            model: folder.to_path_buf(),
            cache: cache.to_path_buf(),
            threads: options.threads,
            max_memory_bytes: options.max_memory_bytes,
            record: record.map(Path::to_path_buf),
        };
        let mut command = Command::new(&options.program);
        command.args(&options.program_arguments);
        run(command, &worker, watch, &options.stop)
    };
    let mut cold = |watch| {
        step("with, first run ever");
        let cache = empty_folder(&options.cache, COLD_PREFIX)?;
        run_mode(Mode::With, watch, cache.path(), None)
    };
    let with_cold = Way { watched: cold(true)?, timed: vec![cold(false)?.report] };
    step("with, filling the weight cache");
    run_mode(Mode::With, false, &options.cache, None)?;
    let mut watched = |mode: Mode| {
        step(&format!("{}, watched", mode.name()));
        Ok(Way { watched: run_mode(mode, true, &options.cache, None)?, timed: Vec::new() })
    };
    let [mut without, mut mapped] = [watched(Mode::Without)?, watched(Mode::Mapped)?];
    let [mut by_hand, mut with] = [watched(Mode::ByHand)?, watched(Mode::With)?];
    if let Some(peer) = &mut onnxruntime {
        step("by_hand, recorded for onnxruntime");
        run_mode(Mode::ByHand, false, &options.cache, Some(recorded.path()))?;
        step("by_hand on onnxruntime, watched");
        peer.run(true)?;
    }
    // Interleaved, so that a drift of the machine meets all alike.
    for round in 1..=options.repeats {
        let of = format!("timed ({round} of {})", options.repeats);
        for (mode, way) in Mode::ALL.into_iter().zip([&mut without, &mut mapped, &mut by_hand, &mut with]) {
            step(&format!("{}, {of}", mode.name()));
            way.timed.push(run_mode(mode, false, &options.cache, None)?.report);
        }
        if let Some(peer) = &mut onnxruntime {
            step(&format!("by_hand on onnxruntime, {of}"));
            peer.run(false)?;
        }
    }
    progress.step(total, total, &format!("{} done", scenario.name));
    let onnxruntime = onnxruntime.and_then(Peer::finish);
    Ok(Ways { without, mapped, by_hand, with, with_cold, onnxruntime })
}

/// An empty folder below `cache`, so on the same disk; removed when dropped.
fn empty_folder(cache: &Path, prefix: &str) -> Result<tempfile::TempDir> {
    let made = std::fs::create_dir_all(cache).and_then(|()| tempfile::Builder::new().prefix(prefix).tempdir_in(cache));
    made.map_err(|error| Error::io("cannot make a folder", &error).in_file(cache))
}

/// Removes what a demo that was killed left behind in `folder`: folders with this prefix, older than any worker can be.
pub(crate) fn remove_stale(folder: &Path, prefix: &str) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| Error::io("cannot list", &error).in_file(folder))?,
    };
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        let ours = entry.file_name().to_string_lossy().starts_with(prefix);
        if ours && age.is_some_and(|age| age > 2 * WORKER_TIME_MAX) {
            // Best effort: what cannot be removed is in nobody's way.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::SystemTime;

    #[test]
    fn only_old_cold_caches_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 3 * WORKER_TIME_MAX;
        for (name, is_old) in [(".cold-old", true), (".cold-new", false), ("packs", true)] {
            let folder = cache.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            if is_old {
                File::open(folder).unwrap().set_modified(old).unwrap();
            }
        }
        remove_stale(cache.path(), COLD_PREFIX).unwrap();
        let left = |name: &str| cache.path().join(name).is_dir();
        assert_eq!([left(".cold-old"), left(".cold-new"), left("packs")], [false, true, true]);
        remove_stale(&cache.path().join("absent"), COLD_PREFIX).unwrap();
        let cold = empty_folder(&cache.path().join("fresh"), COLD_PREFIX).unwrap();
        assert!(cold.path().is_dir());
    }
}
