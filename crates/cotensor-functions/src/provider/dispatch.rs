//! What callers ask of a provider. Nothing here waits or runs: what takes time is answered by whoever is done with it.

use super::flight::{Flight, Outcome, Watcher};
use super::peer::Peer;
use super::reply::{Batch, Reply};
use super::shared::Launched;
use crate::{Arguments, Execution, Failure};
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{FUNCTIONS, Method, openrpc_of_provider};
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_rpc::{self as rpc, Call, Message};
use cotensor_rpc::{Frame, check_integers};
use jsonrpsee_types::ErrorCode;
use serde_json::value::RawValue;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Answers a message, or sees that it will be. A call that is `alone` may be left to the caller, who runs it at once.
pub(super) fn answer(peer: &Arc<Peer>, Frame { body, fds }: Frame, alone: bool) -> Option<Arc<Flight>> {
    match rpc::parse(&body) {
        Message::Refused(response) => {
            peer.send(&response);
        }
        Message::Single(call) => return one(peer, call, fds, None, alone),
        Message::Batch(calls) => {
            let (calls, answered): (Vec<_>, Vec<_>) = calls.into_iter().partition(std::result::Result::is_ok);
            let answered: Vec<_> = answered.into_iter().filter_map(std::result::Result::err).collect();
            if calls.is_empty() {
                if let Ok(body) = serde_json::to_vec(&answered) {
                    peer.send_body(body);
                }
                return None;
            }
            let batch = Batch::new(calls.len(), answered);
            for call in calls.into_iter().flatten() {
                one(peer, call, Vec::new(), Some(Arc::clone(&batch)), false);
            }
        }
    }
    None
}

fn one(
    peer: &Arc<Peer>,
    Call { id, method, params, .. }: Call,
    fds: Vec<OwnedFd>,
    batch: Option<Arc<Batch>>,
    alone: bool,
) -> Option<Arc<Flight>> {
    // Whoever lends does not wait for its turn: the next calls need it.
    if id.is_none() && matches!(method.as_str(), p::OpenLent::NAME | p::ReturnLent::NAME) {
        peer.arena().on_notification(&method, params.as_deref().map_or("{}", RawValue::get), fds);
        return None;
    }
    let asked = peer.asked();
    let reply = Reply::new(peer, id, batch);
    if let Err(error) = asked {
        reply.error(rpc::to_object(&error));
        return None;
    }
    let params = params.as_deref().map_or("{}", RawValue::get);
    match method.as_str() {
        p::Call::NAME => return with::<p::Call, _>(params, reply, |reply, params| call(reply, params, alone)),
        p::Submit::NAME => with::<p::Submit, _>(params, reply, submit),
        p::Status::NAME => with::<p::Status, _>(params, reply, |reply, params| {
            let info = reply.peer().shared.tasks.info(params.task);
            reply.send(info);
        }),
        p::TaskResult::NAME => with::<p::TaskResult, _>(params, reply, result),
        p::Wait::NAME => with::<p::Wait, _>(params, reply, wait),
        p::Cancel::NAME => with::<p::Cancel, _>(params, reply, |reply, params| {
            let info = reply.peer().shared.tasks.cancel(params.task);
            reply.send(info);
        }),
        p::ListTasks::NAME => with::<p::ListTasks, _>(params, reply, |reply, params| {
            let tasks = reply.peer().shared.tasks.list(&params);
            reply.value(&tasks);
        }),
        p::CallObject::NAME => {
            return with::<p::CallObject, _>(params, reply, |reply, params| call_object(reply, params, alone));
        }
        p::ReleaseObject::NAME => with::<p::ReleaseObject, _>(params, reply, |reply, params| {
            let released = reply.peer().release(params.object);
            reply.send(released.map(|()| cotensor_client::protocol::Empty {}));
        }),
        p::Discover::NAME => with::<p::Discover, _>(params, reply, |reply, _| {
            let document = discover(reply.peer());
            reply.value(&document);
        }),
        p::Taken::NAME => with::<p::Taken, _>(params, reply, |reply, params| {
            reply.peer().taken(params.taken);
            reply.value(&cotensor_client::protocol::Empty {});
        }),
        p::OpenLent::NAME | p::ReturnLent::NAME => {
            let heard = peer.arena().on_message(&method, params, fds);
            reply.send(heard.map(|()| cotensor_client::protocol::Empty {}));
        }
        _ => reply.error(ErrorCode::MethodNotFound.into()),
    }
    None
}

fn discover(peer: &Peer) -> serde_json::Value {
    let mut functions: Vec<_> = peer.shared.functions.all().iter().map(|function| function.info()).collect();
    functions.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    let mut document = openrpc_of_provider();
    document[FUNCTIONS] = serde_json::json!(functions);
    document
}

fn with<M: Method, T: Default>(params: &str, reply: Reply, handle: impl FnOnce(Reply, M::Params) -> T) -> T {
    let read = || serde_json::from_str(params).map_err(|error| Error::invalid(error.to_string()));
    match check_integers(params).and_then(|()| read()) {
        Ok(params) => handle(reply, params),
        Err(error) => {
            reply.error(rpc::to_object(&error.in_field("params")));
            T::default()
        }
    }
}

/// The reply to a call that several may want to answer: its run, its time limit, whoever comes first.
type Once = Arc<Mutex<Option<Reply>>>;

fn take(reply: &Once) -> Option<Reply> {
    lock(reply).take()
}

fn call(reply: Reply, params: p::CallParams, alone: bool) -> Option<Arc<Flight>> {
    let peer = Arc::clone(reply.peer());
    let shared = Arc::clone(&peer.shared);
    // Arguments first: what was lent is given back, whatever becomes of the call.
    let ready = peer
        .arguments(&params.returned, params.args, params.kwargs)
        .and_then(|arguments| Ok((shared.functions.find(&params.function)?, arguments)));
    let (function, arguments) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            reply.error(rpc::to_object(&error));
            return None;
        }
    };
    if function.options.execution == Execution::Task {
        // Its caller waits for the task's end, and takes its result.
        let timeout = params.timeout_ms.map(Duration::from_millis);
        match shared.submit(&function, arguments, &peer, timeout) {
            Ok(task) => shared.wait(task, None, Box::new(move |_| result(reply, p::TaskParams { task }))),
            Err(error) => reply.error(rpc::to_object(&error)),
        }
        return None;
    }
    let run = peer.next();
    let (watcher, reply) = answering(&peer, reply, run);
    match shared.launch(&function, arguments, &peer, watcher, peer.allocator(function.lends())) {
        Ok(launched) => enter(&peer, &reply, run, launched?, params.timeout_ms, alone),
        Err(error) => refuse(&reply, &error),
    }
}

/// The caller waits for a run from here on. The run, where this thread is to run it.
fn enter(
    peer: &Arc<Peer>,
    reply: &Once,
    run: u64,
    launched: Launched,
    timeout_ms: Option<u64>,
    alone: bool,
) -> Option<Arc<Flight>> {
    peer.waits(run, &launched.flight, launched.watch);
    limit(peer, Arc::clone(reply), run, timeout_ms);
    if !launched.is_new {
        return None;
    }
    match peer.shared.line_up(&launched, alone) {
        Ok(here) => here.then_some(launched.flight),
        Err(error) => {
            peer.waits_no_more(run);
            refuse(reply, &error)
        }
    }
}

/// What answers a call when its run is over.
fn answering(peer: &Arc<Peer>, reply: Reply, run: u64) -> (Watcher, Once) {
    let once: Once = Arc::new(Mutex::new(Some(reply)));
    let (answered, peer) = (Arc::clone(&once), Arc::clone(peer));
    let watcher = move |outcome: &Outcome| {
        if let Some(reply) = take(&answered) {
            peer.give(reply, outcome);
        }
        peer.waits_no_more(run);
    };
    (Box::new(watcher), once)
}

/// Answers a call that has no answer when its time is over. Its run ends if nobody else waits for it.
fn limit(peer: &Arc<Peer>, reply: Once, run: u64, timeout_ms: Option<u64>) {
    let Some(timeout) = timeout_ms.map(Duration::from_millis) else { return };
    let (shared, weak) = (Arc::clone(&peer.shared), Arc::downgrade(peer));
    let pending = Arc::downgrade(&reply);
    let alarm = move || {
        let reply = pending.upgrade().and_then(|reply| take(&reply));
        if let (Some(peer), Some(reply)) = (weak.upgrade(), reply) {
            peer.waits_no_more(run);
            reply.error(Failure::timed_out(timeout).to_object());
        }
    };
    if let Some(limit) = shared.timer.after(timeout, Box::new(alarm)) {
        peer.keep_limit(run, limit);
    }
}

fn refuse<T>(reply: &Once, error: &Error) -> Option<T> {
    if let Some(reply) = take(reply) {
        reply.error(rpc::to_object(error));
    }
    None
}

fn submit(reply: Reply, params: p::CallParams) {
    let peer = Arc::clone(reply.peer());
    let submitted = || -> Result<p::SubmitResult> {
        let arguments = peer.arguments(&params.returned, params.args, params.kwargs)?;
        let function = peer.shared.functions.find(&params.function)?;
        let timeout = params.timeout_ms.map(Duration::from_millis);
        let task = peer.shared.submit(&function, arguments, &peer, timeout)?;
        Ok(p::SubmitResult { task, epoch: peer.shared.epoch })
    };
    reply.send(submitted());
}

fn result(reply: Reply, params: p::TaskParams) {
    let peer = Arc::clone(reply.peer());
    match peer.shared.tasks.outcome(params.task) {
        Ok(outcome) => peer.give(reply, &outcome),
        Err(error) => reply.error(rpc::to_object(&error)),
    }
}

fn wait(reply: Reply, params: p::WaitParams) {
    let peer = Arc::clone(reply.peer());
    let waiter = Box::new(move |info| reply.send(info));
    peer.shared.wait(params.task, params.timeout_ms.map(Duration::from_millis), waiter);
}

fn call_object(reply: Reply, params: p::CallObjectParams, alone: bool) -> Option<Arc<Flight>> {
    let peer = Arc::clone(reply.peer());
    let ready = peer
        .arguments(&params.returned, params.args, params.kwargs)
        .and_then(|arguments| Ok((peer.object(params.object)?, arguments)));
    let (object, arguments): (_, Arguments) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            reply.error(rpc::to_object(&error));
            return None;
        }
    };
    let run = peer.next();
    let (watcher, reply) = answering(&peer, reply, run);
    match peer.shared.launch_method(object, params.method, arguments, &peer, watcher) {
        Ok(launched) => enter(&peer, &reply, run, launched, params.timeout_ms, alone),
        Err(error) => refuse(&reply, &error),
    }
}
