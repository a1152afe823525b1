//! The rounds of the scenario of several processes, and what they save.

use super::daemon::Daemon;
use super::fleet::Fleet;
use super::memory::FleetMemory;
use super::worker::Weights;
use crate::measure::Progress;
use crate::options::DemoOptions;
use crate::savings::max_abs_diff;
use cotensor::core::Result;
use cotensor::model::pipeline::UserReport;
use serde::Serialize;
use std::path::Path;
use std::process::Command;

/// The answers of each process after the first.
const ANSWERS: usize = 10;

/// What the processes run.
pub(crate) struct Setting<'a> {
    pub(crate) name: &'a str,
    /// The family and the name of the model.
    pub(crate) models: Vec<String>,
    pub(crate) checkpoints: Vec<String>,
    pub(crate) folder: &'a Path,
    /// `seeded` or `checkpoint`.
    pub(crate) weights: &'static str,
    /// Name of the engine, and name with version.
    pub(crate) engine: (&'static str, String),
    pub(crate) hardware: String,
}

/// Memory and time of all processes together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FleetCost {
    /// The proportional set sizes of all processes after their answers, including the daemon's and its segments.
    pub memory_bytes: u64,
    /// Milliseconds from the start of the first process until every process has answered.
    pub time_ms: f64,
    /// Median milliseconds of a further answer, while all processes compute.
    pub answer_ms: f64,
}

/// The result of the scenario: medians of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Processes {
    /// Name of the scenario.
    pub name: String,
    /// The family of the model.
    pub models: Vec<String>,
    /// The name of the model.
    pub checkpoints: Vec<String>,
    /// The number of processes.
    pub processes: usize,
    /// The variant over which savings are counted: `copies`.
    pub baseline: &'static str,
    /// No document claims savings of this scenario.
    pub claim: Option<()>,
    /// The arithmetic of a claim that is not reached: none.
    pub why_short: Option<String>,
    /// The engine with its version.
    pub engine: String,
    /// Cores, threads and device.
    pub hardware: String,
    /// `seeded` or `checkpoint`.
    pub weights: &'static str,
    /// Each process with weights of its own, as the engine loads by default.
    pub copies: FleetCost,
    /// Each process with the engine's mapping of the same files.
    pub mapped: FleetCost,
    /// With the weights of a daemon that has none at the start.
    pub with: FleetCost,
    /// As `with`, started again while the daemon has the weights.
    pub with_again: FleetCost,
    /// The memory of one round of `with`, by process.
    pub memory: FleetMemory,
    /// Memory savings of `with` over the baseline, in percent.
    pub memory_saved_percent: f64,
    /// Time savings of `with` over the baseline until every process has answered, in percent.
    pub time_saved_percent: f64,
    /// Largest difference of any first answer from that of the baseline.
    pub max_abs_diff: f64,
    /// The figures behind the ratios, in sentences.
    pub arithmetic: Vec<String>,
}

/// Runs the scenario.
///
/// # Errors
/// The errors of starting the daemon and the processes, and of running the model; `Io` when the demo is stopped.
pub(crate) fn compare(setting: Setting<'_>, options: &DemoOptions, progress: &dyn Progress) -> Result<Processes> {
    let total = 4 * options.repeats as u64;
    let mut done = 0;
    let mut run = |weights: &Weights, label: &str, rounds: &mut Rounds, daemon: Option<(&Daemon, usize)>| {
        progress.step(done, total, &format!("{} {label}", setting.name));
        done += 1;
        rounds.add(&setting, options, weights, daemon)
    };
    let [mut copies, mut mapped, mut with, mut again] = [(); 4].map(|()| Rounds::default());
    // Interleaved, so that a drift of the machine's speed affects all variants equally.
    for round in 1..=options.repeats {
        let of = |what: &str| format!("{what} ({round} of {})", options.repeats);
        run(&Weights::Copy, &of("copies"), &mut copies, None)?;
        run(&Weights::Mapped, &of("mapped"), &mut mapped, None)?;
        let daemon = Daemon::start(options)?;
        let shared = Weights::Daemon(daemon.socket.clone());
        run(&shared, &of("with"), &mut with, Some((&daemon, 0)))?;
        // Other texts: the daemon has the results of the first ones.
        run(&shared, &of("with, started again"), &mut again, Some((&daemon, options.processes)))?;
    }
    progress.step(total, total, &format!("{} done", setting.name));
    let answers = [&copies, &mapped, &with].into_iter().flat_map(|rounds| &rounds.answers).map(Vec::as_slice);
    let max_abs_diff = max_abs_diff(&copies.answers[0], answers)?;
    let memory = with.memory.clone();
    let [copies, mapped, with, with_again] = [copies, mapped, with, again].map(Rounds::cost);
    let saved = |of: f64, with: f64| 100.0 * (of - with) / of;
    Ok(Processes {
        name: setting.name.to_owned(),
        models: setting.models,
        checkpoints: setting.checkpoints,
        processes: options.processes,
        baseline: "copies",
        claim: None,
        why_short: None,
        engine: setting.engine.1,
        hardware: setting.hardware,
        weights: setting.weights,
        memory_saved_percent: saved(copies.memory_bytes as f64, with.memory_bytes as f64),
        time_saved_percent: saved(copies.time_ms, with.time_ms),
        max_abs_diff,
        arithmetic: arithmetic(&mapped, &with, &memory),
        copies,
        mapped,
        with,
        with_again,
        memory,
    })
}

/// The figures behind the ratios, in sentences.
fn arithmetic(mapped: &FleetCost, with: &FleetCost, memory: &FleetMemory) -> Vec<String> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    vec![
        format!(
            "with the daemon: {:.1} MiB in {} processes, {:.1} MiB in its server, {:.1} MiB in its supervisor, {:.1} MiB in segments that no process maps",
            mib(memory.clients.iter().sum()),
            memory.clients.len(),
            mib(memory.server),
            mib(memory.supervisor),
            mib(memory.unmapped)
        ),
        format!(
            "relative to mapped files: {:.2} times the memory, {:.2} times the time to the last first answer, {:.2} times the time of an answer",
            with.memory_bytes as f64 / mapped.memory_bytes as f64,
            with.time_ms / mapped.time_ms,
            with.answer_ms / mapped.answer_ms
        ),
    ]
}

/// The measurements of a variant in all rounds.
#[derive(Default)]
struct Rounds {
    memory_bytes: Vec<f64>,
    time_ms: Vec<f64>,
    answer_ms: Vec<f64>,
    /// The first answers of all processes, by round.
    answers: Vec<Vec<UserReport>>,
    /// Of the last round.
    memory: FleetMemory,
}

impl Rounds {
    /// Runs the processes once. `daemon` comes with the index of the first process: equal indexes have equal texts.
    fn add(
        &mut self,
        setting: &Setting<'_>,
        options: &DemoOptions,
        weights: &Weights,
        daemon: Option<(&Daemon, usize)>,
    ) -> Result<()> {
        let first = daemon.map_or(0, |(_, first)| first);
        let indexes = first..first + options.processes;
        let commands = indexes.map(|index| command(setting, options, weights, index)).collect();
        let mut fleet = Fleet::start(commands, &options.stop)?;
        self.answer_ms.extend(fleet.answer(ANSWERS)?);
        self.memory = FleetMemory::of(&fleet.pids(), daemon.map(|(daemon, _)| daemon.processes()).transpose()?)?;
        self.memory_bytes.push(self.memory.total as f64);
        self.time_ms.push(fleet.first_ms);
        self.answers.push(std::mem::take(&mut fleet.first));
        Ok(())
    }

    fn cost(self) -> FleetCost {
        FleetCost {
            memory_bytes: median(self.memory_bytes) as u64,
            time_ms: median(self.time_ms),
            answer_ms: median(self.answer_ms),
        }
    }
}

/// The median; of an even number of values, the lower one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The command `demo-process` of one process.
fn command(setting: &Setting<'_>, options: &DemoOptions, weights: &Weights, index: usize) -> Command {
    let mut command = Command::new(&options.program);
    command.args(&options.program_arguments).arg("demo-process").arg(setting.folder);
    command.args(["--index", &index.to_string(), "--engine", setting.engine.0]);
    command.args(["--threads", &options.threads.to_string()]).arg("--cache").arg(&options.cache);
    match weights {
        Weights::Copy => {}
        Weights::Mapped => {
            command.arg("--mapped");
        }
        Weights::Daemon(socket) => {
            command.arg("--socket").arg(socket);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_medians() {
        assert_eq!([median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0]), median(vec![])], [2.0, 1.0, 0.0]);
        let rounds = Rounds {
            memory_bytes: vec![10.0, 30.0, 20.0],
            time_ms: vec![1.0],
            answer_ms: vec![5.0, 6.0, 7.0],
            ..Rounds::default()
        };
        let cost = rounds.cost();
        assert_eq!((cost.memory_bytes, cost.time_ms, cost.answer_ms), (20, 1.0, 6.0));
    }
}
