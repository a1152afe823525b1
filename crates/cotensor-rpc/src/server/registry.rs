//! Methods by name, and the way of a message from its bytes to the handlers of its calls.

use super::batch::{Batch, BatchPermit};
use super::counters::ErrorCounts;
use super::request::Request;
use crate::frame::Frame;
use crate::message::{Call, Message, Response, parse, to_object};
use crate::method::Method;
use cotensor_core::{Error, Result};
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The other end of a connection that a server answers: its methods, its limits and its socket.
pub trait Peer: Sized + Send + Sync + 'static {
    /// The methods that this peer may call.
    fn registry(&self) -> &Registry<Self>;

    /// Admits a call before its handler runs. [`finished`](Self::finished) follows for every call, also for a refused
    /// one.
    ///
    /// # Errors
    /// The answer to the call instead of its result.
    fn admit(&self, call: &Call) -> Result<()>;

    /// Answers a call of a method that the registry does not have.
    fn unknown(request: Request<Self>, _method: &str, _params: Option<&RawValue>) {
        request.error(ErrorObjectOwned::from(ErrorCode::MethodNotFound));
    }

    /// A call that [`admit`](Self::admit) saw has its answer.
    fn finished(&self) {}

    /// Checks that an answer of `bytes` bytes may join the answers that wait to be sent.
    ///
    /// # Errors
    /// The answer to send instead.
    fn check_backlog(&self, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// Queues a message for the peer. False when it will not arrive.
    fn send(&self, frame: Frame) -> bool;
}

type Handler<P> = Box<dyn Fn(Request<P>, Option<&RawValue>) + Send + Sync>;

/// The methods of a server, with counts of calls and errors.
pub struct Registry<P: Peer> {
    methods: HashMap<&'static str, RegisteredMethod<P>>,
    errors: ErrorCounts,
}

struct RegisteredMethod<P: Peer> {
    handler: Handler<P>,
    calls: AtomicU64,
}

impl<P: Peer> Default for Registry<P> {
    fn default() -> Self {
        Self { methods: HashMap::new(), errors: ErrorCounts::default() }
    }
}

impl<P: Peer> Registry<P> {
    /// Registers the handler of `M`. The handler answers the request, now or later; missing parameters are `{}`.
    pub fn add<M: Method>(&mut self, handler: impl Fn(Request<P>, M::Params) + Send + Sync + 'static) -> &mut Self {
        let run = move |request: Request<P>, params: Option<&RawValue>| match serde_json::from_str(
            params.map_or("{}", RawValue::get),
        ) {
            Ok(params) => handler(request, params),
            Err(error) => request.error(to_object(&Error::invalid(error.to_string()).in_field("params"))),
        };
        let entry = RegisteredMethod { handler: Box::new(run) as Handler<P>, calls: AtomicU64::new(0) };
        let before = self.methods.insert(M::NAME, entry);
        debug_assert!(before.is_none(), "{} has two handlers", M::NAME);
        self
    }

    /// Each method's name and number of calls, in no order.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.methods.iter().map(|(name, entry)| (*name, entry.calls.load(Ordering::Relaxed)))
    }

    /// Errors that were answered, by code.
    pub fn errors(&self) -> &ErrorCounts {
        &self.errors
    }
}

/// Runs the handlers of a message's calls. The calls of a batch begin in their order; `permit` is freed after the last
/// answer.
///
/// Descriptors belong to a single call. In a batch, no call has any.
pub fn handle<P: Peer>(peer: &Arc<P>, Frame { body, fds }: Frame, permit: Option<BatchPermit>) {
    match parse(&body) {
        Message::Refused(response) => {
            peer.registry().errors.add(response.error_code().unwrap_or_default());
            peer.send(Frame::new(serde_json::to_vec(&response).unwrap_or_default()));
        }
        Message::Single(call) => dispatch(peer, call, fds, None),
        Message::Batch(calls) => {
            drop(fds);
            let batch = Batch::new(calls.len(), permit);
            for call in calls {
                match call {
                    Ok(call) => dispatch(peer, call, Vec::new(), Some(&batch)),
                    Err(response) => refuse(peer, &batch, response),
                }
            }
        }
    }
}

fn refuse<P: Peer>(peer: &Arc<P>, batch: &Batch, response: Response) {
    peer.registry().errors.add(response.error_code().unwrap_or_default());
    if let Some(message) = batch.finish(Some(response), Vec::new()).message {
        peer.send(message);
    }
}

fn dispatch<P: Peer>(peer: &Arc<P>, call: Call, fds: Vec<OwnedFd>, batch: Option<&Arc<Batch>>) {
    let admitted = peer.admit(&call);
    let Call { id, method, params, .. } = call;
    let request = Request::new(peer, id, fds, batch.cloned());
    let entry = peer.registry().methods.get(method.as_str());
    match (entry, admitted) {
        _ if batch.is_some_and(|batch| batch.is_full()) => request.error(to_object(&Batch::full())),
        (None, _) => P::unknown(request, &method, params.as_deref()),
        (_, Err(error)) => request.error(to_object(&error)),
        (Some(entry), Ok(())) => {
            entry.calls.fetch_add(1, Ordering::Relaxed);
            (entry.handler)(request, params.as_deref());
        }
    }
}
