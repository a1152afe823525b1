//! The driver: what a process has made with it, and the entrance of all functions.

use super::addresses::Addresses;
use super::captures::Captures;
use super::contexts::Contexts;
use super::events::{Events, Recorded};
use super::streams::{Streams, Work};
use crate::codes::{INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, Outcome};
use crate::machine::{Allocation, Machine, Settings};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The driver; none before `cuInit`.
static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

/// The last number that is no handle. Programs have other meanings for small numbers of streams.
const LAST_RESERVED: u64 = 0xffff;
/// How often a blocked function looks for the end of that.
const BLOCKED_INTERVAL: Duration = Duration::from_millis(2);

/// What the driver of a process knows.
pub(crate) struct Process {
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    /// The process that has called `cuInit`.
    id: u32,
    /// The machine's devices by the numbers that they have here.
    visible: Vec<u32>,
    handles: HashMap<u64, Arc<Allocation>>,
    pub(crate) addresses: Addresses,
    pub(crate) contexts: Contexts,
    streams: Streams,
    events: Events,
    pub(crate) captures: Captures,
    /// The result of all calls, once the contexts are lost.
    lost: Option<u32>,
    /// How often the functions of [`Settings::deadly`] were called.
    calls: HashMap<String, u32>,
    /// The last handle.
    last: u64,
}

/// Initializes the driver.
pub(crate) fn initialize() -> Outcome {
    let mut process = lock();
    match &*process {
        Some(process) if process.id != std::process::id() => {
            process.machine.note_forked("cuInit");
            return Err(NOT_INITIALIZED);
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let machine = Machine::at(&crate::fake::own_folder().ok_or(NO_DEVICE)?);
    let settings = machine.settings();
    if let Some(&code) = settings.failures.get("cuInit") {
        return Err(code);
    }
    let visible = visible(settings.devices, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    if visible.is_empty() {
        return Err(NO_DEVICE);
    }
    *process = Some(Process {
        machine,
        settings,
        id: std::process::id(),
        contexts: Contexts::of(visible.len()),
        visible,
        handles: HashMap::new(),
        addresses: Addresses::default(),
        streams: Streams::default(),
        events: Events::default(),
        captures: Captures::default(),
        lost: None,
        calls: HashMap::new(),
        last: LAST_RESERVED,
    });
    Ok(())
}

/// Runs `call`, the function `name`, if the driver is usable.
pub(crate) fn enter(name: &str, call: impl FnOnce(&mut Process) -> Outcome) -> u32 {
    let mut process = entered(name);
    let Some(process) = process.as_mut() else { return NOT_INITIALIZED };
    if process.id != std::process::id() {
        process.machine.note_forked(name);
        return NOT_INITIALIZED;
    }
    process.die_at(name);
    process.lost = process.lost.or_else(|| process.settings.lost.get(&process.id).copied());
    let failure = process.lost.or_else(|| process.settings.failures.get(name).copied());
    match failure {
        Some(code) => code,
        None => call(process).err().unwrap_or(0),
    }
}

/// The driver, once the settings do not block the function `name`. Other threads can call it meanwhile.
fn entered(name: &str) -> MutexGuard<'static, Option<Process>> {
    loop {
        let mut guard = lock();
        let own = guard.as_mut().filter(|process| process.id == std::process::id());
        let is_blocked = own.is_some_and(|process| {
            process.settings = process.machine.settings();
            process.settings.blocked.contains(name)
        });
        if !is_blocked {
            return guard;
        }
        drop(guard);
        std::thread::sleep(BLOCKED_INTERVAL);
    }
}

fn lock() -> MutexGuard<'static, Option<Process>> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The devices that a process sees, by the value of `CUDA_VISIBLE_DEVICES`: numbers, separated by commas, up to the first that does
/// not exist.
fn visible(devices: u32, variable: Option<&str>) -> Vec<u32> {
    let Some(variable) = variable else { return (0..devices).collect() };
    let numbers = variable.split(',').map(|number| number.trim().parse().ok().filter(|number| *number < devices));
    numbers.map_while(|number| number).collect()
}

impl Process {
    /// Kills the process at the call of a function that the settings name.
    fn die_at(&mut self, name: &str) {
        let Some(&last) = self.settings.deadly.get(name) else { return };
        let calls = self.calls.entry(name.to_owned()).or_insert(0);
        *calls += 1;
        if *calls == last {
            // SAFETY: the call has no pointers, and ends the process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    }

    pub(crate) fn devices(&self) -> usize {
        self.visible.len()
    }

    /// The machine's index of a device of this process.
    pub(crate) fn device(&self, ordinal: i32) -> Outcome<u32> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.visible.get(index)).copied().ok_or(INVALID_DEVICE)
    }

    /// The number of a device in this process, by its index on the machine.
    pub(crate) fn ordinal(&self, device: u32) -> Outcome<i32> {
        let index = self.visible.iter().position(|visible| *visible == device);
        index.and_then(|index| i32::try_from(index).ok()).ok_or(INVALID_DEVICE)
    }

    /// A new handle.
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds an allocation. Returns its handle.
    pub(crate) fn add(&mut self, allocation: Allocation) -> Outcome<u64> {
        if !self.visible.contains(&allocation.device) {
            return Err(INVALID_VALUE);
        }
        let handle = self.next();
        self.handles.insert(handle, Arc::new(allocation));
        Ok(handle)
    }

    pub(crate) fn allocation(&self, handle: u64) -> Outcome<&Arc<Allocation>> {
        self.handles.get(&handle).ok_or(INVALID_VALUE)
    }

    pub(crate) fn release(&mut self, handle: u64) -> Outcome {
        self.handles.remove(&handle).map(drop).ok_or(INVALID_VALUE)
    }

    /// Releases the context of a device. The last time, its streams end.
    pub(crate) fn release_context(&mut self, ordinal: i32) -> Outcome {
        if self.contexts.release(ordinal)? {
            self.streams.remove_all(ordinal);
        }
        Ok(())
    }

    /// Ends the context of a device with its streams, whichever parts of the process have retained it.
    pub(crate) fn reset_context(&mut self, ordinal: i32) -> Outcome {
        self.contexts.reset(ordinal)?;
        self.streams.remove_all(ordinal);
        Ok(())
    }

    /// Makes a stream in the current context.
    pub(crate) fn stream(&mut self, is_blocking: bool) -> Outcome<u64> {
        self.captures.check_unsafe()?;
        let ordinal = self.contexts.current()?;
        let (handle, device) = (self.next(), self.device(ordinal)?);
        self.streams.add(handle, ordinal, device, is_blocking);
        Ok(handle)
    }

    /// The handle here of a stream of the current context.
    fn stream_here(&mut self, stream: u64) -> Outcome<u64> {
        let ordinal = self.contexts.current()?;
        let device = self.device(ordinal)?;
        self.streams.handle(stream, ordinal, device)
    }

    /// Adds work to a stream of the current context. A captured stream does not run it.
    pub(crate) fn submit(&mut self, stream: u64, work: Work) -> Outcome {
        self.captures.check_unsafe()?;
        let stream = self.stream_here(stream)?;
        match self.captures.of(stream) {
            Some(_) => self.streams.check(stream, work, &self.addresses),
            None => self.streams.submit(stream, work, &self.addresses),
        }
    }

    /// Captures a stream of the current context into a graph.
    pub(crate) fn begin_capture(&mut self, stream: u64, mode: i32) -> Outcome {
        let stream = self.stream_here(stream)?;
        self.captures.begin(stream, mode)
    }

    /// Ends a capture. Returns the handle of a graph.
    pub(crate) fn end_capture(&mut self, stream: u64) -> Outcome<u64> {
        self.captures.end(stream)?;
        Ok(self.next())
    }

    /// Whether a stream of the current context is captured, as the driver's number.
    pub(crate) fn capture_status(&mut self, stream: u64) -> Outcome<i32> {
        let stream = self.stream_here(stream)?;
        Ok(self.captures.status(stream))
    }

    /// Makes an event.
    pub(crate) fn event(&mut self) -> Outcome<u64> {
        self.contexts.current()?;
        let handle = self.next();
        self.events.add(handle);
        Ok(handle)
    }

    /// Records an event in a stream of the current context.
    pub(crate) fn record_event(&mut self, event: u64, stream: u64) -> Outcome {
        let stream = self.stream_here(stream)?;
        let recorded = match self.captures.of(stream) {
            Some(first) => Recorded::Captured { stream, first },
            None => Recorded::After { stream, position: self.streams.position(stream)? },
        };
        self.events.record(event, recorded)
    }

    /// Lets a stream of the current context wait for an event. One that waits for an event of a capture becomes a part of it.
    pub(crate) fn wait_event(&mut self, stream: u64, event: u64) -> Outcome {
        let stream = self.stream_here(stream)?;
        match self.events.get(event)? {
            Recorded::Never => Ok(()),
            Recorded::Captured { stream: recorded, first } => self.captures.join(stream, recorded, first),
            Recorded::After { stream: recorded, position } => {
                let work = Work::Wait { stream: recorded, position };
                self.streams.submit(stream, work, &self.addresses)
            }
        }
    }

    /// Runs the work before an event.
    pub(crate) fn synchronize_event(&mut self, event: u64) -> Outcome {
        self.captures.check_unsafe()?;
        match self.events.get(event)? {
            Recorded::Never => Ok(()),
            Recorded::Captured { stream, .. } => {
                self.captures.check_wait(&[stream])?;
                // The capture has ended, and its work has never run.
                Err(INVALID_VALUE)
            }
            Recorded::After { stream, position } => {
                let done = self.streams.run_until(stream, position, &self.addresses);
                self.lose(done)
            }
        }
    }

    pub(crate) fn destroy_event(&mut self, event: u64) -> Outcome {
        self.events.remove(event)
    }

    /// Runs the work of a stream of the current context.
    pub(crate) fn synchronize(&mut self, stream: u64) -> Outcome {
        let stream = self.stream_here(stream)?;
        self.captures.check_unsafe()?;
        self.captures.check_wait(&[stream])?;
        self.run(stream)
    }

    /// Runs the work of a stream. The contexts are lost when it fails.
    fn run(&mut self, stream: u64) -> Outcome {
        let done = self.streams.run(stream, &self.addresses);
        self.lose(done)
    }

    /// The contexts are lost when work has failed.
    fn lose(&mut self, done: Outcome) -> Outcome {
        self.lost = self.lost.or(done.err().filter(|code| *code != INVALID_HANDLE));
        done
    }

    /// Runs the work of all streams of the current context.
    pub(crate) fn synchronize_all(&mut self) -> Outcome {
        let streams = self.streams.all(self.contexts.current()?);
        self.captures.check_unsafe()?;
        self.captures.check_wait(&streams)?;
        streams.into_iter().try_for_each(|stream| self.run(stream))
    }

    /// Runs the work of a stream, and removes it.
    pub(crate) fn destroy(&mut self, stream: u64) -> Outcome {
        self.synchronize(stream)?;
        self.streams.remove(stream);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn variable_selects_devices() {
        assert_eq!(visible(3, None), [0, 1, 2]);
        assert_eq!(visible(3, Some("2,0")), [2, 0]);
        assert_eq!(visible(3, Some("1,7,0")), [1]);
        assert!(visible(3, Some("")).is_empty());
    }
}
