//! The methods of a provider. Handlers neither wait nor run functions: a call is answered when its run ends.

use super::caller_state::Cancel;
use super::peer::Peer;
use super::run::{Outcome, Watcher};
use super::runs::{Origin, WatchedRun};
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
        .add::<p::CancelCall>(|request, params| {
            request.peer().state.cancel(params.call);
            request.finish(Ok(Empty {}));
        })
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
    let ready = peer.arguments(&params.released, params.args, params.kwargs).and_then(|arguments| {
        let origin = Origin::new(&peer.client, params.timeout_ms, params.waiting)?;
        Ok((peer.provider.functions.find(&params.function)?, arguments, origin))
    });
    let (function, arguments, origin) = match ready {
        Ok(ready) => ready,
        Err(error) => return request.error(rpc::to_object(&error)),
    };
    if function.options.execution == Execution::Task {
        return task_methods::call_as_task(request, &function, arguments, origin, params.timeout_ms);
    }
    let (call, id) = (peer.state.next_call(), request.id());
    let (watcher, request) = answer_later(&peer, request, call);
    let allocator = peer.allocator(function.result_is_for_one_caller());
    match peer.provider.runs.join_or_create(&function, arguments, origin, watcher, allocator) {
        Ok(Some(run)) => wait_for(&peer, WaitingRequest { request, id, call }, &run, params.timeout_ms),
        // The result was cached, and the watcher has answered.
        Ok(None) => {}
        Err(error) => refuse(&request, &error),
    }
}

fn call_object(request: Request<Peer>, params: p::CallObjectParams) {
    let peer = Arc::clone(request.peer());
    let ready = peer.arguments(&params.released, params.args, params.kwargs).and_then(|arguments| {
        let origin = Origin::new(&peer.client, params.timeout_ms, params.waiting)?;
        Ok((peer.object(params.object)?, arguments, origin))
    });
    let (object, arguments, origin) = match ready {
        Ok(ready) => ready,
        Err(error) => return request.error(rpc::to_object(&error)),
    };
    let (call, id) = (peer.state.next_call(), request.id());
    let (watcher, request) = answer_later(&peer, request, call);
    let runs = &peer.provider.runs;
    match runs.create_for_method(object, params.method, arguments, origin, watcher, peer.allocator(true)) {
        Ok(run) => wait_for(&peer, WaitingRequest { request, id, call }, &run, params.timeout_ms),
        Err(error) => refuse(&request, &error),
    }
}

/// A request that its run, its time limit and its cancellation race to answer.
type SharedRequest = Arc<Mutex<Option<Request<Peer>>>>;

/// A request that waits for a run.
struct WaitingRequest {
    request: SharedRequest,
    /// The id of the request, if it is an integer.
    id: Option<u64>,
    /// The number of the call.
    call: u64,
}

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
fn wait_for(peer: &Arc<Peer>, waiting: WaitingRequest, run: &WatchedRun, timeout_ms: Option<u64>) {
    let call = waiting.call;
    peer.state.add_call(call, &run.run, run.watcher);
    if let Some(timeout) = timeout_ms.map(Duration::from_millis) {
        let end = end_early(peer, &waiting, Failure::timed_out(timeout));
        if let Some(limit) = peer.provider.timer.after(timeout, end) {
            peer.state.set_limit(call, limit);
        }
    }
    if let Some(id) = waiting.id {
        peer.state.set_cancel(call, id, end_early(peer, &waiting, Failure::cancelled()));
    }
    if run.is_new
        && let Err(error) = peer.provider.runs.push(run)
    {
        peer.state.remove_call(call);
        refuse(&waiting.request, &error);
    }
}

/// Answers a request before its run ends. The run is cancelled unless another call waits for it.
fn end_early(peer: &Arc<Peer>, waiting: &WaitingRequest, failure: Failure) -> Cancel {
    let (peer, request, call) = (Arc::downgrade(peer), Arc::downgrade(&waiting.request), waiting.call);
    Box::new(move || {
        let request = request.upgrade().and_then(|request| take(&request));
        if let (Some(peer), Some(request)) = (peer.upgrade(), request) {
            peer.state.remove_call(call);
            request.error(failure.to_object());
        }
    })
}

fn refuse(request: &SharedRequest, error: &Error) {
    if let Some(request) = take(request) {
        request.error(rpc::to_object(error));
    }
}
