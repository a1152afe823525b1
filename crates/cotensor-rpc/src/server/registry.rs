//! Methods by name, and the way of a message from its bytes to the handlers of its calls.

use super::batch::{Batch, BatchPermit};
use super::request::{Peer, Request};
use crate::frame::Frame;
use crate::message::{Call, Message, Response, parse, to_object};
use crate::method::Method;
use cotensor_core::Error;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

type Handler<P> = Box<dyn Fn(Request<P>, Option<&RawValue>) + Send + Sync>;

/// The methods of a server.
pub struct Registry<P: Peer> {
    methods: HashMap<&'static str, Handler<P>>,
}

impl<P: Peer> Default for Registry<P> {
    fn default() -> Self {
        Self { methods: HashMap::new() }
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
        let before = self.methods.insert(M::NAME, Box::new(run));
        debug_assert!(before.is_none(), "{} has two handlers", M::NAME);
        self
    }

    /// The methods' names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.methods.keys().copied()
    }

    /// Runs the handlers of a message's calls. The calls of a batch begin in their order; `permit` is freed after the last
    /// answer.
    ///
    /// Descriptors belong to a single call. In a batch, no call has any.
    pub fn handle(&self, peer: &Arc<P>, Frame { body, fds }: Frame, permit: Option<BatchPermit>) {
        match parse(&body) {
            Message::Refused(response) => {
                peer.counts().add_error(response.error_code().unwrap_or_default());
                peer.send(Frame::new(serde_json::to_vec(&response).unwrap_or_default()));
            }
            Message::Single(call) => self.dispatch(peer, call, fds, None),
            Message::Batch(calls) => {
                drop(fds);
                let batch = Batch::new(calls.len(), permit);
                for call in calls {
                    match call {
                        Ok(call) => self.dispatch(peer, call, Vec::new(), Some(&batch)),
                        Err(response) => refuse(peer, &batch, response),
                    }
                }
            }
        }
    }

    fn dispatch(&self, peer: &Arc<P>, call: Call, fds: Vec<OwnedFd>, batch: Option<&Arc<Batch>>) {
        let admitted = peer.admit(&call);
        let Call { id, method, params, .. } = call;
        let request = Request::new(peer, id, fds, batch.cloned());
        let handler = self.methods.get(method.as_str());
        match (handler, admitted) {
            _ if batch.is_some_and(|batch| batch.is_full()) => request.error(to_object(&Batch::full())),
            (None, _) => P::unknown(request, &method, params.as_deref()),
            (_, Err(error)) => request.error(to_object(&error)),
            (Some(handler), Ok(())) => {
                peer.counts().add_call(&method);
                handler(request, params.as_deref());
            }
        }
    }
}

fn refuse<P: Peer>(peer: &Arc<P>, batch: &Batch, response: Response) {
    peer.counts().add_error(response.error_code().unwrap_or_default());
    batch.finish(Some(response), Vec::new(), None).send(&**peer);
}
