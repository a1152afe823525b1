//! How functions are run.

use std::time::Duration;

/// How one function is run. The default: called directly, in parallel, every time.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What it does, for people.
    pub summary: String,
    /// Whether a call is entered among the tasks.
    pub execution: Execution,
    /// Whether calls run beside each other.
    pub concurrency: Concurrency,
    /// Whether equal calls at the same time run once.
    pub singleflight: bool,
    /// Whether results are kept for equal calls; off by default.
    pub cache: Option<Cache>,
    /// Whether the result stays with the provider, and the caller gets a reference.
    pub managed: bool,
    /// The longest that one run may take; its callers get an error then, and the run is asked to stop.
    pub timeout: Option<Duration>,
}

/// What a call of a function is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// A call, and nothing else.
    #[default]
    Direct,
    /// A task, whose caller waits for it: it can be listed and cancelled.
    Task,
}

/// How many runs of a function there are at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// As many as there are workers.
    #[default]
    Parallel,
    /// One; the others wait in order, and occupy no worker.
    Serialized,
}

/// How long results are kept for equal calls. Calls are equal when their arguments' contents are, whatever tensors are
/// named. What is kept holds its tensors' memory.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// How long a result serves.
    pub ttl: Duration,
    /// The most results; the one that was used longest ago goes first.
    pub capacity: usize,
}

impl Options {
    /// The defaults, with a summary.
    pub fn new(summary: &str) -> Self {
        Self { summary: summary.to_owned(), ..Self::default() }
    }

    /// A call is a task.
    #[must_use]
    pub fn task(mut self) -> Self {
        self.execution = Execution::Task;
        self
    }

    /// One run at a time.
    #[must_use]
    pub fn serialized(mut self) -> Self {
        self.concurrency = Concurrency::Serialized;
        self
    }

    /// Equal calls at the same time run once.
    #[must_use]
    pub fn singleflight(mut self) -> Self {
        self.singleflight = true;
        self
    }

    /// Results are kept for equal calls.
    #[must_use]
    pub fn cached(mut self, ttl: Duration, capacity: usize) -> Self {
        self.cache = Some(Cache { ttl, capacity });
        self
    }

    /// The result stays here.
    #[must_use]
    pub fn managed(mut self) -> Self {
        self.managed = true;
        self
    }

    /// The longest that one run may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// The bounds of a provider.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Threads that run functions.
    pub workers: usize,
    /// Runs that may wait for a worker; more are refused.
    pub waiting_max: usize,
    /// Tasks that are kept, those that have ended included; of the latter, the oldest go first.
    pub tasks_max: usize,
    /// How long an ended task and its result are kept.
    pub task_ttl: Duration,
    /// Callers at a time.
    pub callers_max: usize,
    /// Objects that one caller may have references to.
    pub objects_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(4, usize::from),
            waiting_max: 100_000,
            tasks_max: 100_000,
            task_ttl: Duration::from_secs(3600),
            callers_max: 256,
            objects_max: 10_000,
        }
    }
}
