//! The primary context of a device, in which bytes are copied.

use super::driver::CudaDriver;
use super::error::{CONTEXT_IS_DESTROYED, INVALID_VALUE, is_lost};
use super::functions::{DEVICE_ORDINAL, EVENT_FLAGS, NON_BLOCKING, NOT_CAPTURED};
use super::mapping::Mapping;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::result::Result as StdResult;
use std::sync::{Arc, Mutex};

/// The context that all libraries of this process share, and streams of its own in it.
pub(super) struct Context {
    retained: Retained,
    /// Streams without a copy. Each copy has a stream to itself: one that a capture takes in is not that of the next copy.
    idle: Mutex<Vec<usize>>,
}

/// A stream for one copy. The work of another library can come before the copy in it.
pub struct CopyStream {
    context: Arc<Context>,
    stream: usize,
}

/// A count of the primary context.
struct Retained {
    driver: Arc<CudaDriver>,
    device: i32,
    context: usize,
    /// Another one than at first tells that a library of this process has reset the device: the handle is then that of a new context,
    /// without the stream. None where the driver does not tell.
    id: Option<u64>,
}

impl Context {
    /// Opens the context of the device with this handle.
    pub(super) fn open(driver: &Arc<CudaDriver>, device: i32) -> Result<Self> {
        let mut context = 0;
        // SAFETY: `context` outlives the call (see the module `cuda`).
        let code = unsafe { (driver.functions.retain_context)(&raw mut context, device) };
        driver.check("opening the context of the device", code)?;
        let mut retained = Retained { driver: Arc::clone(driver), device, context, id: None };
        retained.id = retained.read_id().and_then(StdResult::ok);
        let context = Self { retained, idle: Mutex::default() };
        // The first stream: a context that cannot be used is an error here.
        let stream = context.retained.with(|| context.take_stream())?;
        context.give_back(stream);
        Ok(context)
    }

    /// A stream that no capture has taken in. The context is the current one.
    fn take_stream(&self) -> Result<usize> {
        let (driver, mut stream) = (&self.retained.driver, 0);
        let mut idle = lock(&self.idle);
        if let Some(free) = idle.iter().position(|stream| matches!(self.is_captured(*stream), Ok(false))) {
            return Ok(idle.swap_remove(free));
        }
        drop(idle);
        // SAFETY: `stream` outlives the call (see the module `cuda`).
        let code = unsafe { (driver.functions.create_stream)(&raw mut stream, NON_BLOCKING) };
        driver.check("creating a stream", code)?;
        Ok(stream)
    }

    fn give_back(&self, stream: usize) {
        lock(&self.idle).push(stream);
    }

    /// Whether a stream is captured into a graph. The context is the current one.
    fn is_captured(&self, stream: usize) -> Result<bool> {
        let (driver, mut status) = (&self.retained.driver, NOT_CAPTURED);
        // SAFETY: `status` outlives the call; the stream is one of the context (see the module `cuda`).
        let code = unsafe { (driver.functions.capture_status)(stream, &raw mut status) };
        driver.check("looking up the stream of the array", code)?;
        Ok(status != NOT_CAPTURED)
    }

    /// A wait for a captured stream would end the capture with an error. The context is the current one.
    ///
    /// # Errors
    /// `Conflict` for a captured stream; the driver's.
    fn check_not_captured(&self, stream: usize) -> Result<()> {
        if !self.is_captured(stream)? {
            return Ok(());
        }
        let message = "the stream of the array is captured into a CUDA graph, which runs its work later: publish the array \
                       before the capture, or after the graph has run";
        Err(Error::new(ErrorKind::Conflict, message))
    }

    /// Copies `source` to the byte `offset` of a mapping, and waits. The caller has checked the range.
    pub(super) fn write(&self, mapping: &Mapping, offset: usize, source: &[u8]) -> Result<()> {
        let (address, pointer) = (mapping.address() + offset as u64, source.as_ptr().cast());
        self.finish(None, |driver, stream| {
            // SAFETY: `finish` waits for the copy, so `source` and the mapping outlive it. The range is inside of the mapping.
            let code = unsafe { (driver.functions.copy_to_device)(address, pointer, source.len(), stream) };
            driver.check(format_args!("copying {} bytes to the device", source.len()), code)
        })
    }

    /// Copies bytes of a mapping from the byte `offset` on, and waits. The caller has checked the range.
    pub(super) fn read(&self, mapping: &Mapping, offset: usize, target: &mut [u8]) -> Result<()> {
        // SAFETY: the mapping is borrowed, and the caller has checked the range.
        unsafe { self.read_address(mapping.address() + offset as u64, target, None) }
    }

    /// Copies the bytes at an address of the device, and waits.
    ///
    /// # Safety
    /// The device can read as many bytes there as `target` has, until the call returns.
    pub(super) unsafe fn read_address(
        &self,
        address: u64,
        target: &mut [u8],
        after: Option<&CopyStream>,
    ) -> Result<()> {
        let (len, pointer) = (target.len(), target.as_mut_ptr().cast());
        self.finish(after, |driver, stream| {
            // SAFETY: the caller's promise. `finish` waits for the copy, and nothing else uses `target` meanwhile.
            let code = unsafe { (driver.functions.copy_to_host)(pointer, address, len, stream) };
            driver.check(format_args!("copying {len} bytes from the device"), code)
        })
    }

    /// Copies `len` bytes from one address of the device to another one, and waits.
    ///
    /// # Safety
    /// The device can read them at `source` and write them at `target`, until the call returns.
    pub(super) unsafe fn copy(&self, target: u64, source: u64, len: usize, after: Option<&CopyStream>) -> Result<()> {
        self.finish(after, |driver, stream| {
            // SAFETY: the caller's promise; `finish` waits for the copy.
            let code = unsafe { (driver.functions.copy_on_device)(target, source, len, stream) };
            driver.check(format_args!("copying {len} bytes on the device"), code)
        })
    }

    /// A stream for one copy.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn copy_stream(self: &Arc<Self>) -> Result<CopyStream> {
        let stream = self.retained.with(|| self.take_stream())?;
        Ok(CopyStream { context: Arc::clone(self), stream })
    }

    /// Waits for the work of a stream of this process.
    ///
    /// # Errors
    /// `Conflict` for a stream that is captured; the driver's.
    ///
    /// # Safety
    /// `stream` is a stream of this context, or a number that the driver has for a default stream.
    pub(super) unsafe fn wait_for(&self, stream: usize) -> Result<()> {
        let driver = &self.retained.driver;
        self.retained.with(|| {
            self.check_not_captured(stream)?;
            // SAFETY: the caller's promise.
            let code = unsafe { (driver.functions.synchronize_stream)(stream) };
            driver.check("waiting for the stream of the array", code)
        })
    }

    /// Waits for the work that a stream of this process has now, by an event: work that comes later is not waited for. A lost context has
    /// no work.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    ///
    /// # Safety
    /// As [`wait_for`](Self::wait_for).
    pub(super) unsafe fn wait_for_present(&self, stream: usize) -> Result<()> {
        let (driver, mut event) = (&self.retained.driver, 0);
        let done = self.retained.with(|| {
            self.check_not_captured(stream)?;
            // SAFETY: `event` outlives the call (see the module `cuda`).
            driver.check("making an event", unsafe { (driver.functions.create_event)(&raw mut event, EVENT_FLAGS) })?;
            // SAFETY: the caller's promise; the event is destroyed once.
            let [waited, _] = unsafe {
                let recorded = (driver.functions.record_event)(event, stream);
                let waited = if recorded == 0 { (driver.functions.synchronize_event)(event) } else { recorded };
                [waited, (driver.functions.destroy_event)(event)]
            };
            driver.check("waiting for an event of the stream", waited)
        });
        match done {
            Err(error) if error.kind() == ErrorKind::Io && self.becomes_idle() => Ok(()),
            done => done,
        }
    }

    /// Sets `len` bytes of a mapping from the byte `offset` on to zero, and waits. The caller has checked the range.
    pub(super) fn clear(&self, mapping: &Mapping, offset: usize, len: usize) -> Result<()> {
        let address = mapping.address() + offset as u64;
        self.finish(None, |driver, stream| {
            // SAFETY: as in `write`.
            let code = unsafe { (driver.functions.fill)(address, 0, len, stream) };
            driver.check(format_args!("clearing {len} bytes"), code)
        })
    }

    /// Waits for all work in this context: kernels of any library may use a segment whose address they have.
    pub(super) fn synchronize(&self) -> Result<()> {
        let driver = &self.retained.driver;
        driver.check_process()?;
        driver.check("waiting for the work of this process on the device", self.wait())
    }

    /// Waits for all work in this context. Returns whether none is left: it has ended, or the context is lost.
    pub(super) fn becomes_idle(&self) -> bool {
        !self.retained.driver.is_forked() && matches!(self.wait(), code if code == 0 || is_lost(code))
    }

    fn wait(&self) -> u32 {
        // SAFETY: the call has no arguments; a context is current.
        let wait = || unsafe { (self.retained.driver.functions.synchronize)() };
        self.retained.enter(wait).map_or_else(|code| code, |(code, _)| code)
    }

    /// Free bytes of the device, and all.
    pub(super) fn memory(&self) -> Result<(usize, usize)> {
        let (driver, mut free, mut total) = (&self.retained.driver, 0, 0);
        self.retained.with(|| {
            // SAFETY: both values outlive the call (see the module `cuda`).
            let code = unsafe { (driver.functions.memory)(&raw mut free, &raw mut total) };
            driver.check("reading the free memory of the device", code)
        })?;
        Ok((free, total))
    }

    /// The number in this process of the device that has an address, in any context; none for an address that the driver does not know.
    pub(super) fn ordinal_of(&self, address: u64) -> Result<Option<i32>> {
        let (driver, mut ordinal) = (&self.retained.driver, -1);
        // The documentation lets the driver demand a context.
        self.retained.with(|| {
            // SAFETY: `ordinal` outlives the call, which writes an `int` for this attribute. The driver only looks the address up.
            let code =
                unsafe { (driver.functions.pointer_attribute)((&raw mut ordinal).cast(), DEVICE_ORDINAL, address) };
            match code {
                INVALID_VALUE => Ok(None),
                code => driver.check("looking an address up", code).map(|()| Some(ordinal)),
            }
        })
    }

    /// Gives work to a stream, after what `after` has already, and waits for it.
    fn finish(&self, after: Option<&CopyStream>, submit: impl FnOnce(&CudaDriver, usize) -> Result<()>) -> Result<()> {
        let driver = &self.retained.driver;
        self.retained.with(|| {
            let stream = match after {
                Some(after) => {
                    self.check_not_captured(after.stream)?;
                    after.stream
                }
                None => self.take_stream()?,
            };
            let done = submit(driver, stream).and_then(|()| {
                // SAFETY: the stream exists as long as this context, which `enter` has compared with the one at first. Where the driver does not
                // tell, no library of the process may reset the device (`cuDevicePrimaryCtxReset`).
                driver.check("waiting for the device", unsafe { (driver.functions.synchronize_stream)(stream) })
            });
            if after.is_none() {
                self.give_back(stream);
            }
            done
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let driver = &self.retained.driver;
        if driver.is_forked() {
            return;
        }
        let _ = self.retained.with(|| {
            for stream in lock(&self.idle).drain(..) {
                // SAFETY: nothing uses the stream any more.
                driver.check("removing a stream", unsafe { (driver.functions.destroy_stream)(stream) })?;
            }
            Ok(())
        });
    }
}

impl CopyStream {
    /// The driver's handle. The owner of an array lets this stream wait for the work that writes the array.
    #[must_use]
    pub fn handle(&self) -> usize {
        self.stream
    }

    /// Waits for the work that the stream has.
    ///
    /// # Errors
    /// `Conflict` when the work is captured into a graph; `Io` when the context is lost.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream is one of the context.
        unsafe { self.context.wait_for(self.stream) }
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        self.context.give_back(self.stream);
    }
}

impl Retained {
    /// As [`enter`](Self::enter), with errors instead of results of the driver.
    fn with<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let entered = self.enter(work).map_err(|code| self.driver.failure("entering the context of the device", code));
        let (done, left) = entered?;
        let done = done?;
        self.driver.check("leaving the context of the device", left)?;
        Ok(done)
    }

    /// Runs `work` with the context as the current one of this thread, and then restores the former one. Returns the driver's result of
    /// that, too. A stream that a thread of this process captures into a graph does not notice calls of `work`.
    ///
    /// # Errors
    /// The driver's result when the context cannot be entered.
    fn enter<T>(&self, work: impl FnOnce() -> T) -> StdResult<(T, u32), u32> {
        let (functions, mut former) = (&self.driver.functions, 0);
        self.check_id()?;
        // SAFETY: the context is retained.
        let entered = unsafe { (functions.push_context)(self.context) };
        if entered != 0 {
            return Err(entered);
        }
        let done = self.driver.relaxed(work);
        // SAFETY: `former` outlives the call (see the module `cuda`).
        let left = unsafe { (functions.pop_context)(&raw mut former) };
        Ok((done, left))
    }

    /// # Errors
    /// The driver's result for a context that does not exist any more.
    fn check_id(&self) -> StdResult<(), u32> {
        match (self.id, self.read_id()) {
            (None, _) | (_, None) => Ok(()),
            (Some(first), Some(Ok(id))) if id == first => Ok(()),
            (_, Some(Err(code))) if is_lost(code) => Err(code),
            _ => Err(CONTEXT_IS_DESTROYED),
        }
    }

    fn read_id(&self) -> Option<StdResult<u64, u32>> {
        let (read, mut id) = (self.driver.context_id?, 0);
        // SAFETY: `id` outlives the call. The driver knows handles of contexts that do not exist any more.
        let code = unsafe { read(self.context, &raw mut id) };
        Some(if code == 0 { Ok(id) } else { Err(code) })
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        if self.driver.is_forked() {
            return;
        }
        // SAFETY: it was retained once for this value.
        let _ = unsafe { (self.driver.functions.release_context)(self.device) };
    }
}
