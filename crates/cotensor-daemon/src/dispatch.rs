//! From a call's name to what answers it.

use crate::counters::{Calls, Errors};
use crate::session::Session;
use cotensor_client::protocol::Method;
use cotensor_client::wire::rpc::{self, Call, Message, Response};
use cotensor_client::wire::{FRAME_FDS_MAX, Frame};
use cotensor_core::{Error, Result};
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde_json::value::RawValue;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

/// A result and the descriptors that go with it.
pub(crate) struct Reply<T> {
    pub(crate) value: T,
    pub(crate) fds: Vec<OwnedFd>,
}

impl<T> From<T> for Reply<T> {
    fn from(value: T) -> Self {
        Self { value, fds: Vec::new() }
    }
}

/// Who calls, and the descriptors that came with the call.
pub(crate) struct Caller {
    pub(crate) session: Arc<Session>,
    fds: VecDeque<OwnedFd>,
}

impl Caller {
    /// The next descriptor of the call.
    ///
    /// # Errors
    /// `Invalid` when there is none.
    pub(crate) fn fd(&mut self) -> Result<OwnedFd> {
        let missing = || Error::invalid("a file descriptor has to come with this call, which is not part of a batch");
        self.fds.pop_front().ok_or_else(missing)
    }
}

impl Deref for Caller {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

type Outcome = Result<Reply<Box<RawValue>>, ErrorObjectOwned>;
type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Handler = Box<dyn Fn(Caller, Option<Box<RawValue>>) -> Running + Send + Sync>;

/// The methods that a daemon answers, and how often it did.
#[derive(Default)]
pub(crate) struct Methods {
    by_name: HashMap<&'static str, Endpoint>,
    errors: Errors,
}

struct Endpoint {
    handler: Handler,
    calls: Calls,
}

impl Methods {
    /// Answers `M` by `handler`.
    pub(crate) fn add<M, F>(&mut self, handler: fn(Caller, M::Params) -> F) -> &mut Self
    where
        M: Method + 'static,
        F: Future<Output = Result<Reply<M::Result>>> + Send + 'static,
    {
        let run = move |caller: Caller, params: Option<Box<RawValue>>| -> Running {
            let params = params.as_deref().map_or("{}", RawValue::get);
            match serde_json::from_str::<M::Params>(params) {
                Ok(params) => {
                    let running = handler(caller, params);
                    Box::pin(async { encode(running.await) })
                }
                Err(error) => {
                    let error = Error::invalid(error.to_string()).in_field("params");
                    Box::pin(std::future::ready(Err(rpc::to_object(&error))))
                }
            }
        };
        let before = self.by_name.insert(M::NAME, Endpoint { handler: Box::new(run), calls: Calls::default() });
        debug_assert!(before.is_none(), "{} has two handlers", M::NAME);
        self
    }

    /// The names of all methods, and how often each was called.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.by_name.iter().map(|(name, endpoint)| (*name, endpoint.calls.get()))
    }

    /// The errors that calls ended in.
    pub(crate) fn errors(&self) -> &Errors {
        &self.errors
    }

    /// Answers one call; `None` for a notification.
    async fn call(&self, caller: Caller, call: Call) -> Option<Reply<Response>> {
        let running = match self.by_name.get(call.method.as_str()) {
            Some(endpoint) => {
                endpoint.calls.add();
                (endpoint.handler)(caller, call.params)
            }
            None => Box::pin(std::future::ready(Err(ErrorCode::MethodNotFound.into()))),
        };
        let outcome = running.await;
        if let Err(error) = &outcome {
            self.errors.add(error.code());
        }
        let id = call.id?;
        Some(match outcome {
            Ok(Reply { value, fds }) => Reply { value: Response::new(id, Ok(value)), fds },
            Err(error) => Response::new(id, Err(error)).into(),
        })
    }

    fn refused(&self, response: Response) -> Response {
        self.errors.add(response.error_code().unwrap_or_default());
        response
    }

    /// Answers a message: the body to send back, if there is one, and its descriptors.
    pub(crate) async fn answer(&self, session: &Arc<Session>, message: Frame) -> Option<Reply<Vec<u8>>> {
        let caller = |fds: Vec<OwnedFd>| Caller { session: Arc::clone(session), fds: fds.into() };
        match rpc::parse(&message.body) {
            Message::Refused(response) => Some(to_bytes(&self.refused(response)).into()),
            Message::Single(call) => {
                let Reply { value, fds } = self.call(caller(message.fds), call).await?;
                Some(Reply { value: to_bytes(&value), fds })
            }
            Message::Batch(calls) => {
                let (mut responses, mut all) = (Vec::new(), Vec::new());
                for call in calls {
                    match call {
                        Err(response) => responses.push(self.refused(response)),
                        Ok(call) => {
                            let Some(Reply { value, mut fds }) = self.call(caller(Vec::new()), call).await else {
                                continue;
                            };
                            if all.len() + fds.len() > FRAME_FDS_MAX {
                                let error =
                                    Error::invalid("more descriptors than one message carries: call one by one");
                                responses.push(Response::new(value.id, Err(rpc::to_object(&error))));
                                continue;
                            }
                            responses.push(value);
                            all.append(&mut fds);
                        }
                    }
                }
                (!responses.is_empty()).then(|| Reply { value: to_bytes(&responses), fds: all })
            }
        }
    }
}

fn encode<T: serde::Serialize>(outcome: Result<Reply<T>>) -> Outcome {
    let Reply { value, fds } = outcome.map_err(|error| rpc::to_object(&error))?;
    let value =
        serde_json::value::to_raw_value(&value).map_err(|_| ErrorObjectOwned::from(ErrorCode::InternalError))?;
    Ok(Reply { value, fds })
}

fn to_bytes(response: &impl serde::Serialize) -> Vec<u8> {
    // Responses are maps of strings and raw JSON: nothing in them can fail to be written.
    serde_json::to_vec(response).unwrap_or_default()
}
