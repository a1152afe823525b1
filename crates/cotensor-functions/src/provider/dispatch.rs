//! The methods of a provider. Handlers neither wait nor run functions: a run answers its requests when it ends.

use super::flight::{Outcome, Watcher};
use super::peer::Peer;
use super::shared::Launched;
use crate::{Arguments, Execution, Failure};
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{Empty, FUNCTIONS, openrpc_of_provider};
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_rpc as rpc;
use cotensor_rpc::server::{Registry, Request};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Every method of the protocol.
pub(super) fn methods() -> Registry<Peer> {
    let mut methods = Registry::default();
    methods
        .add::<p::Call>(call)
        .add::<p::Submit>(submit)
        .add::<p::Status>(|request, params| {
            let info = request.peer().shared.tasks.info(params.task);
            request.finish(info);
        })
        .add::<p::TaskResult>(result)
        .add::<p::Wait>(wait)
        .add::<p::Cancel>(|request, params| {
            let info = request.peer().shared.tasks.cancel(params.task);
            request.finish(info);
        })
        .add::<p::ListTasks>(|request, params| {
            let tasks = request.peer().shared.tasks.list(&params);
            request.finish(Ok(tasks));
        })
        .add::<p::CallObject>(call_object)
        .add::<p::ReleaseObject>(|request, params| {
            let released = request.peer().release(params.object);
            request.finish(released.map(|()| Empty {}));
        })
        .add::<p::Discover>(|request, _| {
            let document = discover(request.peer());
            request.finish(Ok(document));
        })
        .add::<p::Taken>(|request, params| {
            request.peer().taken(params.taken);
            request.finish(Ok(Empty {}));
        })
        .add::<p::OpenSlab>(|mut request, params| {
            let peer = Arc::clone(request.peer());
            let missing = || Error::invalid("a slab without its descriptor");
            let fd = request.take_fds().into_iter().next().ok_or_else(missing);
            let opened = fd.and_then(|fd| peer.arena().open_slab(&params, fd));
            // A notification has no answer: the end of the connection tells the caller that its slab was refused.
            if opened.is_err() && request.is_notification() {
                peer.end_connection();
            }
            request.finish(opened.map(|()| Empty {}));
        })
        .add::<p::ReleaseRanges>(|request, params| {
            request.peer().arena().reclaim(&params.ranges);
            request.finish(Ok(Empty {}));
        });
    methods
}

fn discover(peer: &Peer) -> serde_json::Value {
    let mut functions: Vec<_> = peer.shared.functions.all().iter().map(|function| function.info()).collect();
    functions.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    let mut document = openrpc_of_provider();
    document[FUNCTIONS] = serde_json::json!(functions);
    document
}

/// A request that its run and its time limit race to answer.
type Once = Arc<Mutex<Option<Request<Peer>>>>;

fn take(request: &Once) -> Option<Request<Peer>> {
    lock(request).take()
}

fn call(request: Request<Peer>, params: p::CallParams) {
    let peer = Arc::clone(request.peer());
    let shared = Arc::clone(&peer.shared);
    // Arguments first: what was lent is given back, whatever becomes of the call.
    let ready = peer
        .arguments(&params.released, params.args, params.kwargs)
        .and_then(|arguments| Ok((shared.functions.find(&params.function)?, arguments)));
    let (function, arguments) = match ready {
        Ok(ready) => ready,
        Err(error) => return request.error(rpc::to_object(&error)),
    };
    if function.options.execution == Execution::Task {
        // Its caller waits for the task's end, and takes its result.
        let timeout = params.timeout_ms.map(Duration::from_millis);
        match shared.submit(&function, arguments, &peer, timeout) {
            Ok(task) => shared.wait(task, None, Box::new(move |_| result(request, p::TaskParams { task }))),
            Err(error) => request.error(rpc::to_object(&error)),
        }
        return;
    }
    let run = peer.next();
    let (watcher, request) = answering(&peer, request, run);
    match shared.launch(&function, arguments, &peer, watcher, peer.allocator(function.lends())) {
        Ok(Some(launched)) => enter(&peer, &request, run, &launched, params.timeout_ms),
        // The result was there, and the watcher has answered.
        Ok(None) => {}
        Err(error) => refuse(&request, &error),
    }
}

/// Registers the caller for a run, and queues the run if it is new.
fn enter(peer: &Arc<Peer>, request: &Once, run: u64, launched: &Launched, timeout_ms: Option<u64>) {
    peer.waits(run, &launched.flight, launched.watch);
    limit(peer, request, run, timeout_ms);
    if launched.is_new
        && let Err(error) = peer.shared.line_up(launched, Some(peer))
    {
        peer.waits_no_more(run);
        refuse(request, &error);
    }
}

/// The watcher that answers a request when its run is over.
fn answering(peer: &Arc<Peer>, request: Request<Peer>, run: u64) -> (Watcher, Once) {
    let once: Once = Arc::new(Mutex::new(Some(request)));
    let (answered, peer) = (Arc::clone(&once), Arc::clone(peer));
    let watcher = move |outcome: &Outcome| {
        if let Some(request) = take(&answered) {
            peer.give(request, outcome);
        }
        peer.waits_no_more(run);
    };
    (Box::new(watcher), once)
}

/// Answers a request with a timeout when its time is over. Its run is cancelled unless another caller waits for it.
fn limit(peer: &Arc<Peer>, request: &Once, run: u64, timeout_ms: Option<u64>) {
    let Some(timeout) = timeout_ms.map(Duration::from_millis) else { return };
    let (shared, weak) = (Arc::clone(&peer.shared), Arc::downgrade(peer));
    let pending = Arc::downgrade(request);
    let alarm = move || {
        let request = pending.upgrade().and_then(|request| take(&request));
        if let (Some(peer), Some(request)) = (weak.upgrade(), request) {
            peer.waits_no_more(run);
            request.error(Failure::timed_out(timeout).to_object());
        }
    };
    if let Some(limit) = shared.timer.after(timeout, Box::new(alarm)) {
        peer.keep_limit(run, limit);
    }
}

fn refuse(request: &Once, error: &Error) {
    if let Some(request) = take(request) {
        request.error(rpc::to_object(error));
    }
}

fn submit(request: Request<Peer>, params: p::CallParams) {
    let peer = Arc::clone(request.peer());
    let submitted = || -> Result<p::SubmitResult> {
        let arguments = peer.arguments(&params.released, params.args, params.kwargs)?;
        let function = peer.shared.functions.find(&params.function)?;
        let timeout = params.timeout_ms.map(Duration::from_millis);
        let task = peer.shared.submit(&function, arguments, &peer, timeout)?;
        Ok(p::SubmitResult { task, epoch: peer.shared.epoch })
    };
    request.finish(submitted());
}

fn result(request: Request<Peer>, params: p::TaskParams) {
    let peer = Arc::clone(request.peer());
    match peer.shared.tasks.outcome(params.task) {
        Ok(outcome) => peer.give(request, &outcome),
        Err(error) => request.error(rpc::to_object(&error)),
    }
}

fn wait(request: Request<Peer>, params: p::WaitParams) {
    let peer = Arc::clone(request.peer());
    let waiter = Box::new(move |info| request.finish(info));
    peer.shared.wait(params.task, params.timeout_ms.map(Duration::from_millis), waiter);
}

fn call_object(request: Request<Peer>, params: p::CallObjectParams) {
    let peer = Arc::clone(request.peer());
    let ready = peer
        .arguments(&params.released, params.args, params.kwargs)
        .and_then(|arguments| Ok((peer.object(params.object)?, arguments)));
    let (object, arguments): (_, Arguments) = match ready {
        Ok(ready) => ready,
        Err(error) => return request.error(rpc::to_object(&error)),
    };
    let run = peer.next();
    let (watcher, request) = answering(&peer, request, run);
    match peer.shared.launch_method(object, params.method, arguments, &peer, watcher) {
        Ok(launched) => enter(&peer, &request, run, &launched, params.timeout_ms),
        Err(error) => refuse(&request, &error),
    }
}
