//! Options of functions, and limits of a provider.

use std::time::Duration;

/// Options of one function. Default: direct, parallel, not cached.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A summary for lists of functions.
    pub summary: String,
    /// Whether a call is a task.
    pub execution: Execution,
    /// Whether calls run in parallel.
    pub concurrency: Concurrency,
    /// Whether concurrent equal calls share one run.
    pub singleflight: bool,
    /// Whether results are cached for equal calls.
    pub cache: Option<Cache>,
    /// Whether the result stays with the provider and the caller gets a reference.
    pub managed: bool,
    /// The time limit of one run. After it, the callers get an error and the run is cancelled.
    pub timeout: Option<Duration>,
}

/// How a call of a function is tracked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// The call is not tracked.
    #[default]
    Direct,
    /// The call is a task that its caller waits for. It can be listed and cancelled.
    Task,
}

/// How many runs of a function are active at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// Up to [`Limits::workers`].
    #[default]
    Parallel,
    /// One. The others wait in order without occupying a worker.
    Serialized,
}

/// A result cache. Calls are equal when the contents of their arguments are equal; names of tensors do not matter. A
/// call with an object equals no other call, because the object can change.
/// Cached results keep their tensors' memory.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// How long a result is cached.
    pub ttl: Duration,
    /// The most cached results. The least recently used result is evicted first.
    pub capacity: usize,
}

impl Options {
    /// The default options with a summary.
    pub fn new(summary: &str) -> Self {
        Self { summary: summary.to_owned(), ..Self::default() }
    }

    /// Makes calls tasks.
    #[must_use]
    pub fn task(mut self) -> Self {
        self.execution = Execution::Task;
        self
    }

    /// Runs one call at a time.
    #[must_use]
    pub fn serialized(mut self) -> Self {
        self.concurrency = Concurrency::Serialized;
        self
    }

    /// Lets concurrent equal calls share one run.
    #[must_use]
    pub fn singleflight(mut self) -> Self {
        self.singleflight = true;
        self
    }

    /// Caches results for equal calls.
    #[must_use]
    pub fn cached(mut self, ttl: Duration, capacity: usize) -> Self {
        self.cache = Some(Cache { ttl, capacity });
        self
    }

    /// Keeps the result at the provider.
    #[must_use]
    pub fn managed(mut self) -> Self {
        self.managed = true;
        self
    }

    /// Sets the time limit of one run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// The limits of a provider.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most functions that run at a time.
    pub workers: usize,
    /// The most runs that wait for a worker. Further calls are refused.
    pub waiting_max: usize,
    /// The most tasks, including ended ones. The oldest ended task is removed first.
    pub tasks_max: usize,
    /// How long an ended task and its result are kept.
    pub task_ttl: Duration,
    /// The most callers at a time.
    pub callers_max: usize,
    /// The most object references of one caller.
    pub objects_max: usize,
    /// How long memory for large results is kept while it is not used.
    pub memory_idle: Duration,
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
            memory_idle: crate::arena::IDLE_MAX,
        }
    }
}
