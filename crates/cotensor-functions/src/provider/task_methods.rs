//! The methods for tasks.

use super::functions::Function;
use super::peer::Peer;
use super::run::Outcome;
use super::state::ProviderState;
use super::tasks::Waiter;
use crate::{Arguments, Failure};
use cotensor_client::protocol::provider as p;
use cotensor_core::Result;
use cotensor_rpc as rpc;
use cotensor_rpc::server::{Registry, Request};
use std::sync::Arc;
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
            let provider = Arc::clone(&request.peer().provider);
            let waiter = Box::new(move |info| request.finish(info));
            wait(&provider, params.task, params.timeout_ms.map(Duration::from_millis), waiter);
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
    let task = start(peer, &function, arguments, params.timeout_ms)?;
    Ok(p::SubmitResult { task, epoch: peer.provider.epoch })
}

/// Runs a call as a task, and answers with its result.
pub(super) fn call_as_task(
    request: Request<Peer>,
    function: &Arc<Function>,
    arguments: Arguments,
    timeout_ms: Option<u64>,
) {
    let peer = Arc::clone(request.peer());
    match start(&peer, function, arguments, timeout_ms) {
        Ok(task) => wait(&peer.provider, task, None, Box::new(move |_| answer_with_result(request, task))),
        Err(error) => request.error(rpc::to_object(&error)),
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
fn start(peer: &Peer, function: &Arc<Function>, arguments: Arguments, timeout_ms: Option<u64>) -> Result<u64> {
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
    let run = provider.runs.join_or_create(function, arguments, &peer.client, watcher, peer.allocator(false));
    let started = run.and_then(|run| {
        let Some(run) = run else { return Ok(()) };
        provider.tasks.attach(task, &run.run, run.watcher, limit);
        if run.is_new { provider.runs.push(&run) } else { Ok(()) }
    });
    started.inspect_err(|_| provider.tasks.discard(task))?;
    Ok(task)
}

/// Calls `waiter` with the task's state when the task has ended or `timeout` has passed.
fn wait(provider: &Arc<ProviderState>, task: u64, timeout: Option<Duration>, waiter: Waiter) {
    let Some(number) = provider.tasks.add_waiter(task, waiter) else { return };
    let Some(timeout) = timeout else { return };
    let weak = Arc::downgrade(provider);
    let callback = move || {
        let removed = weak.upgrade().and_then(|provider| provider.tasks.remove_waiter(task, number));
        if let Some((waiter, info)) = removed {
            waiter(Ok(info));
        }
    };
    if let Some(limit) = provider.timer.after(timeout, Box::new(callback)) {
        provider.tasks.set_waiter_limit(task, number, limit);
    }
}
