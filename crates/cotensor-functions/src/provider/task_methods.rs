//! The methods for tasks.

use super::caller_state::Cancel;
use super::functions::Function;
use super::peer::Peer;
use super::run::Outcome;
use super::runs::Origin;
use super::state::ProviderState;
use super::tasks::Waiter;
use crate::{Arguments, Failure};
use cotensor_client::protocol::provider as p;
use cotensor_core::Result;
use cotensor_rpc as rpc;
use cotensor_rpc::server::{Registry, Request};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(super) fn add_to(methods: &mut Registry<Peer>) {
    methods
        .add::<p::Submit>(|request, params| {
            let submitted = submit(request.peer(), params);
            request.finish(submitted);
        })
        .add::<p::Status>(|request, params| {
            let info = request.peer().provider.tasks.info(params.task);
            request.finish(info);
        })
        .add::<p::TaskResult>(|request, params| answer_with_result(request, params.task))
        .add::<p::Wait>(|request, params| {
            let (peer, id) = (Arc::clone(request.peer()), request.id());
            let waiter = Box::new(move |info| request.finish(info));
            let timeout = params.timeout_ms.map(Duration::from_millis);
            let Some(number) = wait(&peer, id, params.task, timeout, waiter) else { return };
            let weak = Arc::downgrade(&peer.provider);
            on_cancel(&peer, id, params.task, number, Box::new(move || stop_waiting(&weak, params.task, number)));
        })
        .add::<p::Cancel>(|request, params| {
            let info = request.peer().provider.tasks.cancel(params.task);
            request.finish(info);
        })
        .add::<p::ListTasks>(|request, params| {
            let tasks = request.peer().provider.tasks.list(&params);
            request.finish(Ok(tasks));
        });
}

fn submit(peer: &Arc<Peer>, params: p::CallParams) -> Result<p::SubmitResult> {
    let arguments = peer.arguments(&params.released, params.args, params.kwargs)?;
    let function = peer.provider.functions.find(&params.function)?;
    let origin = Origin::new(&peer.client, params.timeout_ms, params.waiting)?;
    let task = start(peer, &function, arguments, origin, params.timeout_ms)?;
    Ok(p::SubmitResult { task, epoch: peer.provider.epoch })
}

/// Runs a call as a task, and answers with its result.
pub(super) fn call_as_task(
    request: Request<Peer>,
    function: &Arc<Function>,
    arguments: Arguments,
    origin: Origin,
    timeout_ms: Option<u64>,
) {
    let (peer, id) = (Arc::clone(request.peer()), request.id());
    let task = match start(&peer, function, arguments, origin, timeout_ms) {
        Ok(task) => task,
        Err(error) => return request.error(rpc::to_object(&error)),
    };
    let waiter = Box::new(move |_| answer_with_result(request, task));
    let Some(number) = wait(&peer, id, task, None, waiter) else { return };
    let weak = Arc::downgrade(&peer.provider);
    let cancel = move || {
        if let Some(provider) = weak.upgrade() {
            provider.tasks.end(task, Err(Failure::cancelled()));
        }
    };
    on_cancel(&peer, id, task, number, Box::new(cancel));
}

/// Lets the caller cancel the request `id`, which waits for a task under `number`.
fn on_cancel(peer: &Arc<Peer>, id: Option<u64>, task: u64, number: u64, cancel: Cancel) {
    let Some(id) = id else { return };
    peer.state.add_cancel(id, cancel);
    // The wait may have ended before the entry existed.
    if !peer.provider.tasks.is_waiting(task, number) {
        peer.state.remove_cancel(id);
    }
}

/// Ends a wait for a task: answers with the task's state.
fn stop_waiting(provider: &Weak<ProviderState>, task: u64, number: u64) {
    let removed = provider.upgrade().and_then(|provider| provider.tasks.remove_waiter(task, number));
    if let Some((waiter, info)) = removed {
        waiter(Ok(info));
    }
}

fn answer_with_result(request: Request<Peer>, task: u64) {
    let peer = Arc::clone(request.peer());
    match peer.provider.tasks.outcome(task) {
        Ok(outcome) => peer.answer(request, &outcome),
        Err(error) => request.error(rpc::to_object(&error)),
    }
}

/// Starts a task. Returns its number.
///
/// # Errors
/// `Conflict` when too many tasks or runs have not ended.
fn start(
    peer: &Peer,
    function: &Arc<Function>,
    arguments: Arguments,
    origin: Origin,
    timeout_ms: Option<u64>,
) -> Result<u64> {
    let provider = &peer.provider;
    let task = provider.tasks.add(&function.name, &peer.client)?;
    let end = |provider: &Arc<ProviderState>| {
        let provider = Arc::downgrade(provider);
        move |outcome: Outcome| {
            if let Some(provider) = provider.upgrade() {
                provider.tasks.end(task, outcome);
            }
        }
    };
    let limit = timeout_ms.map(Duration::from_millis).and_then(|timeout| {
        let end = end(provider);
        provider.timer.after(timeout, Box::new(move || end(Err(Failure::timed_out(timeout)))))
    });
    let end = end(provider);
    let watcher = Box::new(move |outcome: &Outcome| end(outcome.clone()));
    let run = provider.runs.join_or_create(function, arguments, origin, watcher, peer.allocator(false));
    let started = run.and_then(|run| {
        let Some(run) = run else { return Ok(()) };
        provider.tasks.attach(task, &run.run, run.watcher, limit);
        if run.is_new { provider.runs.push(&run) } else { Ok(()) }
    });
    started.inspect_err(|_| provider.tasks.discard(task))?;
    Ok(task)
}

/// Calls `waiter` with the task's state when the task has ended or `timeout` has passed. Returns the number of a waiter that
/// waits.
fn wait(peer: &Arc<Peer>, id: Option<u64>, task: u64, timeout: Option<Duration>, waiter: Waiter) -> Option<u64> {
    let (provider, weak) = (&peer.provider, Arc::downgrade(peer));
    let answer = move |info| {
        waiter(info);
        if let (Some(peer), Some(id)) = (weak.upgrade(), id) {
            peer.state.remove_cancel(id);
        }
    };
    let number = provider.tasks.add_waiter(task, Box::new(answer))?;
    if let Some(timeout) = timeout {
        let weak = Arc::downgrade(provider);
        let limit = provider.timer.after(timeout, Box::new(move || stop_waiting(&weak, task, number)));
        if let Some(limit) = limit {
            provider.tasks.set_waiter_limit(task, number, limit);
        }
    }
    Some(number)
}
