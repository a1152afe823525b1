//! From a call's name to what answers it.

use crate::counters::{Calls, Errors};
use crate::session::Session;
use cotensor_client::protocol::{Hello, Method};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::{self as rpc, Call, Id, Message, Response};
use cotensor_rpc::{FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame};
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde_json::value::RawValue;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

/// The bytes of a batch's answers; those that do not fit are refused in the rest of the message.
const BATCH_BYTES_MAX: usize = FRAME_BYTES_MAX - (1 << 20);

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
    /// The next descriptor of the call, to be kept.
    ///
    /// # Errors
    /// `Invalid` when there is none, `OverBudget` when too many are open.
    pub(crate) fn fd(&mut self) -> Result<OwnedFd> {
        let missing = || Error::invalid("a file descriptor has to come with this call, which is not part of a batch");
        self.session.daemon.room_for(self.fds.pop_front().ok_or_else(missing)?)
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
            Some(_) if call.method != Hello::NAME && caller.session.is_ungreeted() => {
                let error = Error::new(ErrorKind::Conflict, "`session.hello` comes first on a connection");
                Box::pin(std::future::ready(Err(rpc::to_object(&error))))
            }
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
                let bytes = to_bytes(&value);
                match bytes.len() > FRAME_BYTES_MAX {
                    true => Some(to_bytes(&self.refused(too_long(value.id))).into()),
                    false => Some(Reply { value: bytes, fds }),
                }
            }
            Message::Batch(calls) => {
                let mut batch = Batch::default();
                for call in calls {
                    match call {
                        Err(response) => batch.add(self.refused(response).into()),
                        Ok(Call { id: Some(id), .. }) if batch.is_full() => batch.refuse(self.refused(too_long(id))),
                        Ok(call) => {
                            if let Some(reply) = self.call(caller(Vec::new()), call).await {
                                batch.add(reply);
                            }
                        }
                    }
                    // A long batch is no reason for others to wait.
                    tokio::task::yield_now().await;
                }
                (!batch.responses.is_empty()).then(|| Reply { value: to_bytes(&batch.responses), fds: batch.fds })
            }
        }
    }
}

/// The answers to a batch, as long as there is room for them in a message.
#[derive(Default)]
struct Batch {
    responses: Vec<Box<RawValue>>,
    bytes: usize,
    fds: Vec<OwnedFd>,
}

impl Batch {
    fn add(&mut self, reply: Reply<Response>) {
        let Reply { value, mut fds } = reply;
        if self.fds.len() + fds.len() > FRAME_FDS_MAX {
            let error = Error::invalid("more descriptors than one message carries: call one by one");
            return self.refuse(Response::new(value.id, Err(rpc::to_object(&error))));
        }
        let Ok(response) = serde_json::value::to_raw_value(&value) else { return };
        if self.bytes + response.get().len() > BATCH_BYTES_MAX {
            self.bytes = BATCH_BYTES_MAX;
            return self.refuse(too_long(value.id));
        }
        self.bytes += response.get().len();
        self.responses.push(response);
        self.fds.append(&mut fds);
    }

    /// Whether answers are left out already: what follows is not even called.
    fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES_MAX
    }

    fn refuse(&mut self, response: Response) {
        self.responses.extend(serde_json::value::to_raw_value(&response));
    }
}

fn too_long(id: Id) -> Response {
    let error = Error::new(ErrorKind::Unsupported, "the answer is longer than a message may be: ask for less");
    Response::new(id, Err(rpc::to_object(&error)))
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
