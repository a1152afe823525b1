//! The daemon's methods: async handlers in the method registry, for sockets and HTTP requests.

use crate::daemon::Daemon;
use crate::descriptors::room_for;
use crate::state::functions::FunctionCall;
use crate::state::session::{Granted, Session};
use cotensor_client::protocol::{Empty, Hello, Method};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::server::{BatchPermit, CallCounts, Peer, Registry, Request};
use cotensor_rpc::{Call, Frame, is_batch, to_object};
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::sync::{oneshot, watch};

/// The most waiting calls of one connection. A call waits for the work of another session.
const WAITING_CALLS_MAX: usize = 1024;

/// The result of a handler.
pub(crate) type Answer<T> = Result<Reply<T>>;

/// The value of an answer that says nothing.
pub(crate) const NOTHING: Empty = Empty {};

/// A result and its descriptors.
pub(crate) struct Reply<T> {
    pub(crate) value: T,
    pub(crate) fds: Vec<OwnedFd>,
    /// What the session takes back if the result is not sent.
    granted: Option<Granted>,
}

impl<T> Reply<T> {
    /// A result with descriptors that need not be taken back.
    pub(crate) fn with_fds(value: T, fds: Vec<OwnedFd>) -> Self {
        Self { value, fds, granted: None }
    }

    /// A result that gives the client leases, descriptors or a pack.
    pub(crate) fn granting(value: T, mut granted: Granted) -> Self {
        Self { value, fds: granted.take_fds(), granted: Some(granted) }
    }
}

impl<T> From<T> for Reply<T> {
    fn from(value: T) -> Self {
        Self::with_fds(value, Vec::new())
    }
}

/// The session of a call, and the descriptors that came with it.
pub(crate) struct Caller {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) session: Arc<Session>,
    fds: VecDeque<OwnedFd>,
}

impl Caller {
    /// The next descriptor of the call.
    ///
    /// # Errors
    /// `Invalid` when there is none, `OverBudget` when too many are open.
    pub(crate) fn fd(&mut self) -> Result<OwnedFd> {
        let missing = || Error::invalid("this call needs a file descriptor and cannot be part of a batch");
        self.daemon.room_for(self.fds.pop_front().ok_or_else(missing)?)
    }
}

impl Deref for Caller {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// The methods of a daemon.
#[derive(Default)]
pub(crate) struct Methods(Registry<Client>);

impl Methods {
    /// Registers the handler of `M`. A handler that does not finish at once continues on the runtime.
    pub(crate) fn add<M, F>(&mut self, handler: fn(Caller, M::Params) -> F) -> &mut Self
    where
        M: Method + 'static,
        F: Future<Output = Result<Reply<M::Result>>> + Send + 'static,
    {
        self.0.add::<M>(move |mut request: Request<Client>, params| {
            let (client, fds) = (Arc::clone(request.peer()), request.take_fds().into());
            let (daemon, session) = (Arc::clone(&client.daemon), Arc::clone(&client.session));
            let mut running = Box::pin(handler(Caller { daemon, session, fds }, params));
            match running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => answer(request, outcome.map_err(|error| to_object(&error))),
                Poll::Pending => {
                    client.wait(request, async move { running.await.map_err(|error| to_object(&error)) });
                }
            }
        });
        self
    }

    /// The methods' names, in no order.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.names()
    }

    /// Runs the handlers of a message's calls, as [`Registry::handle`].
    pub(crate) fn handle(&self, client: &Arc<Client>, message: Frame, permit: Option<BatchPermit>) {
        self.0.handle(client, message, permit);
    }

    /// Answers one message of a session without a socket. `None` for notifications.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        daemon: &Arc<Daemon>,
        session: &Arc<Session>,
        message: Frame,
    ) -> Option<Vec<u8>> {
        let (answer, received) = oneshot::channel();
        // Dropping this future drops `_cancel`, which cancels waiting calls.
        let (client, _cancel) = Client::new(daemon, session, Some(answer));
        if is_batch(&message.body) {
            // A long batch would delay the other requests of this thread.
            let methods = Arc::clone(self);
            let _ = tokio::task::spawn_blocking(move || methods.handle(&client, message, None)).await;
        } else {
            self.handle(&client, message, None);
            drop(client);
        }
        received.await.ok()
    }
}

fn answer<T: Serialize>(request: Request<Client>, outcome: Result<Reply<T>, ErrorObjectOwned>) {
    match outcome {
        Ok(Reply { value, fds, granted: None }) => {
            request.value(&value, fds);
        }
        Ok(Reply { value, fds, granted: Some(granted) }) => {
            request.value_settled(&value, fds, move |is_sent| if is_sent { granted.keep() } else { drop(granted) });
        }
        Err(error) => request.error(error),
    }
}

/// The sender of calls: a connection, or one HTTP request.
pub(crate) struct Client {
    daemon: Arc<Daemon>,
    session: Arc<Session>,
    /// Receives the answer of an HTTP request. Answers on a socket go to the session's outbox.
    http: Option<Mutex<Option<oneshot::Sender<Vec<u8>>>>>,
    waiting: AtomicUsize,
    /// Whether an answer could not be sent.
    failed: AtomicBool,
    /// Closed when the connection or the request ends.
    cancelled: watch::Receiver<()>,
}

impl Client {
    /// The client at the session's socket. Dropping the second value cancels its waiting calls.
    pub(crate) fn on_socket(daemon: &Arc<Daemon>, session: &Arc<Session>) -> (Arc<Self>, watch::Sender<()>) {
        Self::new(daemon, session, None)
    }

    fn new(
        daemon: &Arc<Daemon>,
        session: &Arc<Session>,
        http: Option<oneshot::Sender<Vec<u8>>>,
    ) -> (Arc<Self>, watch::Sender<()>) {
        let (cancel, cancelled) = watch::channel(());
        let client = Self {
            daemon: Arc::clone(daemon),
            session: Arc::clone(session),
            http: http.map(|answer| Mutex::new(Some(answer))),
            waiting: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            cancelled,
        };
        (Arc::new(client), cancel)
    }

    /// Whether an answer could not be sent. The connection has ended then.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// A function that a client provides, for a call over HTTP; none for another method.
    fn function_call(&self, name: &str) -> Option<Result<FunctionCall>> {
        self.http.as_ref()?;
        let (function, provider) = self.daemon.functions.find(name).ok()?;
        let call = || {
            let store = Arc::clone(&self.daemon.store);
            let (holder, client) = (self.session.holder("")?, self.session.client().to_owned());
            let slots = self.daemon.functions.slots.clone();
            Ok(FunctionCall { store, holder, room_for, client, function, provider, slots })
        };
        Some(call())
    }

    /// Answers `request` when `running` is done, unless the client has disconnected.
    fn wait<T: Serialize>(
        &self,
        request: Request<Self>,
        running: impl Future<Output = Result<Reply<T>, ErrorObjectOwned>> + Send + 'static,
    ) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_CALLS_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let message =
                format!("{WAITING_CALLS_MAX} calls of this connection wait: try again when one has been answered");
            return request.error(to_object(&Error::new(ErrorKind::Conflict, message)));
        }
        let mut cancelled = self.cancelled.clone();
        tokio::spawn(async move {
            let client = Arc::clone(request.peer());
            tokio::select! {
                biased;
                _ = cancelled.changed() => request.cancel(),
                outcome = running => answer(request, outcome),
            }
            client.waiting.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

impl Peer for Client {
    fn counts(&self) -> &CallCounts {
        &self.daemon.counts
    }

    /// Over HTTP, functions of clients are methods.
    fn unknown(request: Request<Self>, method: &str, params: Option<&RawValue>) {
        let client = Arc::clone(request.peer());
        match client.function_call(method) {
            Some(Ok(call)) => {
                let params = params.map(ToOwned::to_owned);
                client.wait(request, async move { Ok(call.run(params).await?.into()) });
            }
            Some(Err(error)) => request.error(to_object(&error)),
            None => request.error(ErrorCode::MethodNotFound.into()),
        }
    }

    fn admit(&self, call: &Call) -> Result<()> {
        if call.method != Hello::NAME && self.session.needs_hello() {
            Err(Error::new(ErrorKind::Conflict, "`session.hello` comes first on a connection"))
        } else {
            Ok(())
        }
    }

    fn send(&self, frame: Frame) -> bool {
        match (&self.http, self.session.outbox()) {
            (Some(answer), _) => {
                let answer = lock(answer).take();
                answer.is_some_and(|answer| answer.send(frame.body).is_ok())
            }
            (None, Some(outbox)) => {
                let sent = outbox.send(frame).is_ok();
                if !sent {
                    self.failed.store(true, Ordering::Relaxed);
                }
                sent
            }
            (None, None) => false,
        }
    }
}
