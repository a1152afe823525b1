//! Threads that help with work on a large memory, such as a copy.
//!
//! The thread that has the work and the helpers take one chunk after another. A helper that gets no processor delays nothing: the thread takes
//! all chunks then, and waits only for those that a helper has begun. A thread that is started for the work, and joined after it, would
//! delay it until it has run, which takes milliseconds beside other work.

use cotensor_core::sync::{lock, wait, wait_timeout};
use std::marker::PhantomData;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// More threads do not copy faster: memory bandwidth is the limit.
const THREADS_MAX: usize = 4;
/// After this time without work, a helper ends.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// How long the thread polls for the end of a helper's chunk before it sleeps.
const POLL: Duration = Duration::from_micros(100);

/// What is done with each chunk: a range of bytes.
type Work<'a> = dyn Fn(Range<usize>) + Sync + 'a;

/// Work on `len` bytes.
///
/// - **H1**: `work` is valid until [`Posted`] is dropped. That waits until the job is withdrawn and no helper has it any more.
struct Job {
    work: *const Work<'static>,
    len: usize,
    chunk: usize,
    /// The first byte that no thread has taken.
    next: AtomicUsize,
    /// The number of helpers that have this job. It is raised under the lock, while the job is posted.
    helping: AtomicUsize,
}

// SAFETY: `work` may be called on several threads, by its type, and is valid by H1.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Works on one chunk after another that no other thread has taken.
    fn run(&self) {
        while let Some(start) =
            Some(self.next.fetch_add(self.chunk, Ordering::Relaxed)).filter(|start| *start < self.len)
        {
            // SAFETY: H1: the thread of `Posted` calls this before it drops that, and a helper while it counts in `helping`.
            let work = unsafe { &*self.work };
            work(start..self.len.min(start + self.chunk));
        }
    }

    fn has_chunks(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.len
    }
}

/// The helpers of this process.
struct Helpers {
    /// The process that has them. A forked child has no such threads, and the lock may be held for ever.
    owner: u32,
    /// The most helpers.
    count_max: usize,
    state: Mutex<State>,
    posted: Condvar,
    left: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Arc<Job>>,
    /// The number of helpers.
    count: usize,
    /// The number of threads that sleep until the helpers have left their jobs. A thread may post a job while that of another thread, which
    /// is withdrawn, still has a helper.
    waiting: usize,
}

/// A job that helpers may take, until the drop.
struct Posted<'a> {
    job: Arc<Job>,
    helpers: &'static Helpers,
    _work: PhantomData<&'a Work<'a>>,
}

impl Helpers {
    /// The helpers; none on a single processor, and in a forked child.
    fn of_process() -> Option<&'static Self> {
        static HELPERS: OnceLock<Helpers> = OnceLock::new();
        let helpers = HELPERS.get_or_init(|| {
            let count_max = available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX) - 1;
            let (state, posted, left) = Default::default();
            Self { owner: std::process::id(), count_max, state, posted, left }
        });
        (helpers.count_max > 0 && helpers.owner == std::process::id()).then_some(helpers)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Lets helpers take chunks of a job. None while they help another thread.
    fn post<'a>(&'static self, len: usize, chunk: usize, work: &'a Work<'a>) -> Option<Posted<'a>> {
        let (next, helping) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // SAFETY: only the lifetime changes. H1: `Posted` ends before `'a`.
        let work = unsafe { std::mem::transmute::<*const Work<'a>, *const Work<'static>>(work) };
        let job = Arc::new(Job { work, len, chunk, next, helping });
        let mut state = self.lock();
        if state.job.is_some() {
            return None;
        }
        while state.count < self.count_max {
            let thread = std::thread::Builder::new().name("cotensor-helper".to_owned()).stack_size(128 << 10);
            if thread.spawn(|| self.help()).is_err() {
                break;
            }
            state.count += 1;
        }
        state.job = Some(Arc::clone(&job));
        drop(state);
        self.posted.notify_all();
        Some(Posted { job, helpers: self, _work: PhantomData })
    }

    /// A helper.
    fn help(&self) {
        let mut state = self.lock();
        loop {
            let Some(job) = state.job.as_ref().filter(|job| job.has_chunks()).cloned() else {
                let (guard, is_late) = wait_timeout(&self.posted, state, IDLE_MAX);
                state = guard;
                if is_late && state.job.is_none() {
                    state.count -= 1;
                    return;
                }
                continue;
            };
            job.helping.fetch_add(1, Ordering::Relaxed);
            drop(state);
            let leaving = Leaving { job, helpers: self };
            leaving.job.run();
            drop(leaving);
            state = self.lock();
        }
    }
}

/// Ends a helper's part of a job, also by a panic.
struct Leaving<'a> {
    job: Arc<Job>,
    helpers: &'a Helpers,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let state = self.helpers.lock();
        // Release: the thread of the job sees the work of this helper.
        self.job.helping.fetch_sub(1, Ordering::Release);
        if state.waiting > 0 {
            self.helpers.left.notify_all();
        }
    }
}

impl Drop for Posted<'_> {
    /// Withdraws the job, and waits until no helper has it (H1).
    fn drop(&mut self) {
        let (job, helpers) = (&self.job, self.helpers);
        let mut state = helpers.lock();
        state.job = None;
        drop(state);
        // From here on no helper takes the job.
        let is_left = || job.helping.load(Ordering::Acquire) == 0;
        let start = Instant::now();
        while !is_left() {
            if start.elapsed() < POLL {
                std::hint::spin_loop();
                continue;
            }
            state = helpers.lock();
            state.waiting += 1;
            while !is_left() {
                state = wait(&helpers.left, state);
            }
            state.waiting -= 1;
            return;
        }
    }
}

/// Calls `work` with each chunk of `len` bytes, on this thread and on helpers as far as they have time.
pub(crate) fn in_chunks(len: usize, chunk: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    if len > chunk
        && let Some(helpers) = Helpers::of_process()
        && let Some(posted) = helpers.post(len, chunk, work)
    {
        return posted.job.run();
    }
    (0..len).step_by(chunk.max(1)).for_each(|start| work(start..len.min(start + chunk)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn each_byte_is_in_one_chunk_at_every_length() {
        for (len, chunk) in [(0, 10), (1, 10), (10, 10), (11, 10), (1000, 7), (100_000, 100)] {
            let counts: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
            in_chunks(len, chunk, &|range| {
                assert!(range.len() <= chunk && range.start % chunk == 0);
                for count in &counts[range] {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{len} by {chunk}");
        }
    }

    /// A thread that stops waiting for its helpers leaves the wake-up of another one, whose job they have begun meanwhile. The test is the
    /// helper of both.
    #[test]
    fn all_threads_that_wait_for_helpers_go_on() {
        static HELPERS: OnceLock<Helpers> = OnceLock::new();
        let helpers = HELPERS.get_or_init(|| {
            let (state, posted, left) = Default::default();
            Helpers { owner: std::process::id(), count_max: 0, state, posted, left }
        });
        let waiting = |count| {
            while helpers.lock().waiting != count {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|threads| {
            let [first, second] = [1, 2].map(|count| {
                let posted = helpers.post(1, 1, &|_| ()).unwrap();
                posted.job.helping.fetch_add(1, Ordering::Relaxed);
                let leaving = Leaving { job: Arc::clone(&posted.job), helpers };
                let waiter = threads.spawn(move || drop(posted));
                waiting(count);
                (leaving, waiter)
            });
            for (leaving, waiter) in [first, second] {
                drop(leaving);
                waiter.join().unwrap();
            }
        });
    }

    /// Helpers help one thread at a time, and none uses the work of a thread after its end: it frees it at once.
    #[test]
    fn threads_have_work_at_the_same_time() {
        let start = Barrier::new(4);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    start.wait();
                    for round in 0..300 {
                        let done = Box::new(AtomicUsize::new(0));
                        in_chunks(1000 + round, 100, &|range| {
                            done.fetch_add(range.len(), Ordering::Relaxed);
                        });
                        assert_eq!(done.load(Ordering::Relaxed), 1000 + round);
                    }
                });
            }
        });
    }
}
