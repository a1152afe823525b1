//! The methods of a provider. Handlers neither wait nor run functions: a call is answered when its run ends.

use super::peer::Peer;
use super::run::{Outcome, Watcher};
use super::runs::{Runs, WatchedRun};
use super::task_methods;
use crate::{Execution, Failure};
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{Empty, FUNCTIONS, openrpc_of_provider};
use cotensor_core::Error;
use cotensor_core::sync::lock;
use cotensor_rpc as rpc;
use cotensor_rpc::server::{Registry, Request};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Every method of the protocol.
pub(super) fn methods() -> Registry<Peer> {
    let mut methods = Registry::default();
    task_methods::add_to(&mut methods);
    methods
        .add::<p::Call>(call)
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
            request.peer().state.take_result(params.taken);
            request.finish(Ok(Empty {}));
        })
        .add::<p::OpenSlab>(|mut request, params| {
            let peer = Arc::clone(request.peer());
            let missing = || Error::invalid("a slab without its descriptor");
            let fd = request.take_fds().into_iter().next().ok_or_else(missing);
            let opened = fd.and_then(|fd| peer.arena().open_slab(&params, fd));
            // A notification has no answer: the end of the connection reports the error to the caller.
            if opened.is_err() && request.is_notification() {
                peer.end_connection();
            }
            request.finish(opened.map(|()| Empty {}));
        })
        .add::<p::CloseSlabs>(|request, params| {
            request.peer().arena().close_slabs(&params);
            request.finish(Ok(Empty {}));
        })
        .add::<p::ReleaseRanges>(|request, params| {
            request.peer().arena().reclaim(&params.ranges);
            request.finish(Ok(Empty {}));
        });
    methods
}

fn discover(peer: &Peer) -> serde_json::Value {
    let mut functions: Vec<_> = peer.provider.functions.all().iter().map(|function| function.info()).collect();
    functions.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    let mut document = openrpc_of_provider();
    document[FUNCTIONS] = serde_json::json!(functions);
    document
}

fn call(request: Request<Peer>, params: p::CallParams) {
    let peer = Arc::clone(request.peer());
    // The arguments first: decoding releases their arena ranges even if the call fails.
    let ready = peer
        .arguments(&params.released, params.args, params.kwargs)
        .and_then(|arguments| Ok((peer.provider.functions.find(&params.function)?, arguments)));
    let (function, arguments) = match ready {
        Ok(ready) => ready,
        Err(error) => return request.error(rpc::to_object(&error)),
    };
    if function.options.execution == Execution::Task {
        return task_methods::call_as_task(request, &function, arguments, params.timeout_ms);
    }
    let call = peer.state.next_call();
    let (watcher, request) = answer_later(&peer, request, call);
    let allocator = peer.allocator(function.result_is_for_one_caller());
    match peer.provider.runs.join_or_create(&function, arguments, &peer.client, watcher, allocator) {
        Ok(Some(run)) => wait_for(&peer, &request, call, &run, params.timeout_ms),
        // The result was cached, and the watcher has answered.
        Ok(None) => {}
        Err(error) => refuse(&request, &error),
    }
}

fn call_object(request: Request<Peer>, params: p::CallObjectParams) {
    let peer = Arc::clone(request.peer());
    let ready = peer
        .arguments(&params.released, params.args, params.kwargs)
        .and_then(|arguments| Ok((peer.object(params.object)?, arguments)));
    let (object, arguments) = match ready {
        Ok(ready) => ready,
        Err(error) => return request.error(rpc::to_object(&error)),
    };
    let call = peer.state.next_call();
    let (watcher, request) = answer_later(&peer, request, call);
    match Runs::create_for_method(object, params.method, arguments, &peer.client, watcher, peer.allocator(true)) {
        Ok(run) => wait_for(&peer, &request, call, &run, params.timeout_ms),
        Err(error) => refuse(&request, &error),
    }
}

/// A request that its run and its time limit race to answer.
type SharedRequest = Arc<Mutex<Option<Request<Peer>>>>;

fn take(request: &SharedRequest) -> Option<Request<Peer>> {
    lock(request).take()
}

/// A watcher that answers a request when its run ends.
fn answer_later(peer: &Arc<Peer>, request: Request<Peer>, call: u64) -> (Watcher, SharedRequest) {
    let request: SharedRequest = Arc::new(Mutex::new(Some(request)));
    let (answered, peer) = (Arc::clone(&request), Arc::clone(peer));
    let watcher = move |outcome: &Outcome| {
        if let Some(request) = take(&answered) {
            peer.answer(request, outcome);
        }
        peer.state.remove_call(call);
    };
    (Box::new(watcher), request)
}

/// Records that a call waits for a run, and queues the run if it is new.
fn wait_for(peer: &Arc<Peer>, request: &SharedRequest, call: u64, run: &WatchedRun, timeout_ms: Option<u64>) {
    peer.state.add_call(call, &run.run, run.watcher);
    limit(peer, request, call, timeout_ms);
    if run.is_new
        && let Err(error) = peer.provider.runs.push(run)
    {
        peer.state.remove_call(call);
        refuse(request, &error);
    }
}

/// Answers a request with a timeout when its time is over. Its run is cancelled unless another caller waits for it.
fn limit(peer: &Arc<Peer>, request: &SharedRequest, call: u64, timeout_ms: Option<u64>) {
    let Some(timeout) = timeout_ms.map(Duration::from_millis) else { return };
    let (weak, request) = (Arc::downgrade(peer), Arc::downgrade(request));
    let callback = move || {
        let request = request.upgrade().and_then(|request| take(&request));
        if let (Some(peer), Some(request)) = (weak.upgrade(), request) {
            peer.state.remove_call(call);
            request.error(Failure::timed_out(timeout).to_object());
        }
    };
    if let Some(limit) = peer.provider.timer.after(timeout, Box::new(callback)) {
        peer.state.set_limit(call, limit);
    }
}

fn refuse(request: &SharedRequest, error: &Error) {
    if let Some(request) = take(request) {
        request.error(rpc::to_object(error));
    }
}
