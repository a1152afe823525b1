//! The primary context of each device, and the current context of each thread.

use crate::codes::{INVALID_CONTEXT, INVALID_DEVICE, Outcome};
use std::cell::RefCell;

/// The handle of the first device's context.
const FIRST: u64 = 0x1000;

thread_local! {
    /// The contexts of this thread; the last one is current.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The contexts of a process.
pub(crate) struct Contexts {
    /// How often each device's context is retained, by the number of the device here.
    retained: Vec<u32>,
    /// How many contexts each device has had before the present one.
    former: Vec<u64>,
}

impl Contexts {
    pub(super) fn of(devices: usize) -> Self {
        Self { retained: vec![0; devices], former: vec![0; devices] }
    }

    /// Retains the context of a device. Returns its handle.
    pub(crate) fn retain(&mut self, ordinal: i32) -> Outcome<u64> {
        *self.count(ordinal)? += 1;
        Ok(FIRST + ordinal as u64)
    }

    /// Releases the context of a device once. Returns whether that was the last time.
    pub(crate) fn release(&mut self, ordinal: i32) -> Outcome<bool> {
        let count = self.count(ordinal)?;
        *count = count.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let is_last = *count == 0;
        if is_last {
            self.reset(ordinal)?;
        }
        Ok(is_last)
    }

    /// Ends the context of a device. The next one has the same handle.
    pub(crate) fn reset(&mut self, ordinal: i32) -> Outcome {
        let index = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        *self.former.get_mut(index).ok_or(INVALID_DEVICE)? += 1;
        Ok(())
    }

    /// The number of a context, which no other one of the process has.
    pub(crate) fn id(&self, context: u64) -> Outcome<u64> {
        let ordinal = self.ordinal(context)?;
        let former = self.former.get(ordinal as usize).ok_or(INVALID_CONTEXT)?;
        Ok(context + (former << 32))
    }

    fn count(&mut self, ordinal: i32) -> Outcome<&mut u32> {
        let index = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        self.retained.get_mut(index).ok_or(INVALID_DEVICE)
    }

    pub(crate) fn push(&self, context: u64) -> Outcome {
        self.ordinal(context)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    pub(crate) fn pop(&self) -> Outcome<u64> {
        STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)
    }

    /// The device of the current context, by its number in this process.
    pub(crate) fn current(&self) -> Outcome<i32> {
        self.ordinal(STACK.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?)
    }

    /// The device of a context that is retained.
    fn ordinal(&self, context: u64) -> Outcome<i32> {
        let index = context.checked_sub(FIRST).and_then(|index| usize::try_from(index).ok()).ok_or(INVALID_CONTEXT)?;
        match self.retained.get(index) {
            Some(retained) if *retained > 0 => i32::try_from(index).map_err(|_| INVALID_CONTEXT),
            _ => Err(INVALID_CONTEXT),
        }
    }
}
