//! Computations that wait for the page.

use crate::errors::Result;
use cotensor_core::{Error, ErrorKind};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use wasm_bindgen::prelude::*;

/// What a computation and the page exchange.
#[derive(Default)]
pub(crate) struct Page {
    promise: Cell<Option<JsValue>>,
    answer: Cell<Option<JsValue>>,
}

impl Page {
    /// The value of a promise of the page. If it is rejected, the page frees the task.
    pub(crate) async fn wait(&self, promise: JsValue) -> JsValue {
        self.promise.set(Some(promise));
        self.answer.set(None);
        poll_fn(|_| self.answer.take().map_or(Poll::Pending, Poll::Ready)).await
    }
}

type Computation = Pin<Box<dyn Future<Output = cotensor_core::Result<String>>>>;

/// A computation that waits for the page. `runTask` of `web/src/models/core.ts` runs it.
#[wasm_bindgen]
pub struct Task {
    computation: Option<Computation>,
    page: Rc<Page>,
    result: String,
}

#[wasm_bindgen]
impl Task {
    /// Continues with `answer`, the value of the last promise. Returns the next promise; nothing when there is a result.
    ///
    /// # Errors
    /// Those of the computation; `Conflict` after its end.
    pub fn poll(&mut self, answer: JsValue) -> Result<JsValue> {
        let Some(computation) = &mut self.computation else {
            return Err(Error::new(ErrorKind::Conflict, "the task has ended").in_field("poll").into());
        };
        self.page.answer.set(Some(answer));
        match computation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Ok(self.page.promise.take().unwrap_or_default()),
            Poll::Ready(result) => {
                self.computation = None;
                self.result = result?;
                Ok(JsValue::UNDEFINED)
            }
        }
    }

    /// The result as JSON.
    pub fn result(&self) -> String {
        self.result.clone()
    }
}

impl Task {
    /// The computation waits by means of `page`.
    pub(crate) fn new(
        page: Rc<Page>,
        computation: impl Future<Output = cotensor_core::Result<String>> + 'static,
    ) -> Self {
        Self { computation: Some(Box::pin(computation)), page, result: String::new() }
    }
}
